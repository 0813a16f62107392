"""The page: numbers, sentences, charts, tables and galleries put into the template, and written as one file."""

import base64
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.core import BACKBONES, METHODS, DataError, check_whole, percent, plural, without_secrets
from cleanpairs.core.plain import displaced_in_words, rate_in_words
from cleanpairs.correspondence.calibration import UNDETERMINED, Calibration, Estimate
from cleanpairs.data import Pairs, load_pairs, staged_file, visible
from cleanpairs.repair.actions import REPAIRED, acted
from cleanpairs.repair.plan import RepairPlan, check_data, wrong_in_output
from cleanpairs.report.gallery import Cards, compare_scores, donors, duplicates, galleries, precomputed_scores
from cleanpairs.report.outcome import Outcome, caption_lengths, outcome_of, slice_tables
from cleanpairs.report.plots import drawn, plot_scores, plot_training, precision_recall, series

MAX_BYTES = 10_000_000  # of a page. Galleries are halved until it fits


def write_report(
    out: str | Path,
    *,
    title: str,
    scores: Any,
    threshold: float,
    pairs: Any,
    plan: RepairPlan | None = None,
    truth: np.ndarray | None = None,
    info: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    metrics: Sequence[Mapping[str, Any]] = (),
    calibration: Calibration | None = None,
    next_steps: Sequence[tuple[str, str]] = (),
    why: Sequence[str | None] | None = None,
    summary: Mapping[str, Any] | None = None,
    slice_by: Sequence[str] = (),
    audit_result: Mapping[str, Any] | None = None,
    count: int = 12,
    overwrite: bool = False,
) -> Path:
    """Write one self-contained HTML page about what happened to every one of N pairs.

    It loads nothing and sends nothing: its content security policy lets in one style and one script by their hashes,
    and images that it contains itself. The same arguments give the same bytes.

    Parameters
    ----------
    out : str or Path
        The page to write.
    title : str
        Its title.
    scores : estimator, (N,) float or table
        A fitted estimator, correspondences, or a table with a column of them. Low is bad, null or NaN is quarantined.
        Other columns of floats are scores to compare with, as ``pairs.precomputed_scores`` is.
    threshold : float in [0, 1]
        Pairs below it are flagged. Without a ``plan`` nothing is repaired or dropped.
    pairs : Pairs or data
        As :func:`cleanpairs.load_pairs` takes them.
    plan : RepairPlan, optional
        What becomes of each pair.
    truth : (N,) bool, optional
        True where a pair is known to be wrong.
    info, settings : mapping, optional
        Those of the run, as its run.json has them, and the estimator's parameters.
    metrics : sequence of mapping
        One an epoch, with ``loss``, ``stage`` and, where there was validation, ``val_rsum``.
    calibration : Calibration, optional
        That of scores that are probabilities. The page then begins with the share of mismatched pairs.
    next_steps : sequence of (str, str)
        What may be done next, and the command for it.
    why : sequence of str or None, optional
        N sentences on what speaks against a pair. See :meth:`cleanpairs.explain.Explainer.why`.
    summary : mapping, optional
        Label to number, in large type at the top.
    slice_by : sequence of str
        Columns of the input. A table each.
    audit_result : mapping, optional
        Result of an audit, :meth:`cleanpairs.audit.AuditResult.to_dict`.
    count : int
        Cards in a gallery. There are fewer where the page would be larger than 10 MB.
    overwrite : bool
        Whether an old page is replaced.

    Returns
    -------
    pathlib.Path
        The page.

    Raises
    ------
    ConfigError
        The input has no such column to slice by.
    DataError
        Scores, pairs, plan and truth are not about the same pairs.
    OutputExistsError
        The page exists.
    """
    pairs = load_pairs(pairs)
    outcome, info, settings = outcome_of(scores, threshold, plan, truth), info or {}, settings or {}
    check_whole("the report", "count", count, 0)
    why = None if why is None else list(why)  # a Series has its own index
    for what, n in (("scores are", len(outcome)), ("reasons (why) are", len(why or outcome))):
        if n != len(pairs):
            raise DataError(f"the {what} about {plural(n, 'pair')}, and the data holds {len(pairs)}")
    if hasattr(scores, "_has_scores_of") and not scores._has_scores_of(pairs.source, n):
        raise DataError("the estimator was fitted to other data: give what it was fitted to, or score_pairs(pairs)")
    if plan is not None:
        check_data(plan, len(plan), pairs.source.fingerprint, n)
    cards, given = Cards(pairs, outcome), precomputed_scores(pairs, scores)
    rendered = partial(
        _rendered,
        title=title,
        pairs=pairs,
        outcome=outcome,
        info=flattened(info),
        story=story(info, settings, outcome, plan),
        settings=flattened(settings),
        summary=flattened(summary or {}),
        verdict=verdict(outcome, plan, pairs, info.get("result") or {}, calibration),
        next_steps=next_steps,
        figures=_figures(outcome, metrics),
        quarantined=np.flatnonzero(outcome.kind == "quarantined")[:50].tolist(),
        slices=[*slice_tables(pairs, outcome, slice_by), *caption_lengths(pairs, outcome)],
        missing="the image cannot be read" if pairs.images.kind == "bytes" else "no image: the data has vectors",
        audited=audit_result,
    )
    while True:
        few = max(1, count // 2)
        text = rendered(
            galleries=galleries(cards, count, why),
            comparisons=compare_scores(cards, given, few),
            donors=donors(cards, few),
            duplicates=duplicates(cards, few),
        )
        if count <= 1 or len(text.encode("utf-8")) <= MAX_BYTES:
            break
        count //= 2
    with staged_file(out, overwrite=overwrite) as staging:
        Path(staging).write_text(text, encoding="utf-8")
    return Path(out)


def _rendered(**values: Any) -> str:
    """The template with values in it. Its content security policy lets in its style and script by their hashes."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cleanpairs", "report"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "share": _share, "figure": _figure, "number": _number, "visible": visible, "quoting": _quoting
    }  # fmt: skip
    for name, file in (("style", "style.css"), ("script", "page.js")):
        text = Path(__file__).with_name(file).read_text(encoding="utf-8")
        digest = hashlib.sha256(text.encode()).digest()
        values |= {name: text, f"{name}_hash": base64.b64encode(digest).decode()}
    return environment.get_template("template.html").render(**values)


def _quoting(text: str) -> str:
    """HTML whose quoted words keep their place, also where they are written from right to left."""
    from markupsafe import Markup, escape

    return Markup(re.sub("“([^”]*)”", r"“<bdi>\1</bdi>”", str(escape(text))))


def _figures(outcome: Outcome, metrics: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return (name, data address, what it shows) of each chart that has data."""
    y, threshold = outcome.correspondence[outcome.scored], outcome.threshold
    truth = None if outcome.truth is None else outcome.truth[outcome.scored]
    figures = []
    if len(y):
        text = "How many pairs have which correspondence. Pairs left of the dashed line, the threshold, are flagged."
        figures.append(("Correspondence", drawn(lambda ax: plot_scores(y, threshold, truth=truth, ax=ax)), text))
    if truth is not None and truth.any() and not truth.all():
        text = "Precision and recall of flagging at every threshold. The truth of this corpus is known."
        figures.append(("Precision and recall", drawn(lambda ax: precision_recall(y, threshold, truth, ax)), text))
    if np.isfinite(series(metrics, "val_rsum")).any():  # a loss alone says nothing
        text = "Training loss, and the sum of the six recalls (at most 600) on the validation data."
        figures.append(("Training", drawn(lambda ax: plot_training(metrics, ax=ax)), text))
    return figures


def _figure(value: float | None, digits: int = 3) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def _share(part: float, whole: float) -> str:
    return percent(part / whole) if whole else "–"


def _number(value: Any) -> Any:
    """Return numbers as people read them, and other values as they are."""
    if value is None or isinstance(value, bool):
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else value
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return value


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings, as ``{"input.rows": 5}``. Lists become text, unless they are empty or of mappings."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            out |= flattened(value, f"{prefix}{key}.")
        elif not isinstance(value, list | tuple):
            out[prefix + str(key)] = without_secrets(value) if isinstance(value, str) else value
        elif value and not any(isinstance(part, Mapping) for part in value):
            out[prefix + str(key)] = ", ".join(map(str, value))
    return out


def verdict(
    outcome: Outcome, plan: RepairPlan | None, pairs: Pairs, result: Mapping[str, Any],
    calibration: Calibration | None,
) -> dict[str, Any] | None:  # fmt: skip
    """A sentence on what is estimated, and known where the truth is, and (name, share) of the stages of the data.

    The share is that of mismatched pairs, or of those that fit no better than others, as ``of`` says. ``result`` is
    run.json's. Without a ``calibration`` the share among the kept is undetermined.
    """
    truth = outcome.truth
    kept, repaired = (int((outcome.kind == kind).sum()) for kind in ("kept", "repaired"))
    if not len(outcome):
        return None
    rate, of_kept, output = [UNDETERMINED] * 3  # of the scored, of the kept, and of the kept and repaired pairs
    if result.get("noise_rate") is not None:
        rate = Estimate(result["noise_rate"], *(result.get("noise_rate_interval") or (np.nan, np.nan)))
    if calibration is not None and kept:
        of_kept = calibration.shares(outcome.correspondence[outcome.kind == "kept"], [kept])[0]
        if plan is not None:
            column = plan.table.filter(acted(plan.table, REPAIRED))["confidence"].cast("float64")
            sure = column.fill_null(np.nan).to_numpy()  # NaN where the probability of a repair is not known
            wrong = of_kept.value * kept + float((1 - sure).sum())
            output = Estimate(wrong / (kept + len(sure)), np.nan, np.nan)
    estimates = [rate, of_kept, output]
    sentence = f"{rate_in_words(result)} {kept:,} of {len(outcome):,} pairs {'is' if kept == 1 else 'are'} kept."
    counted = calibration.counted if calibration is not None else ""
    of = "no better than similar" if result.get("counts_similar") else "no better than random"
    of = "mismatched" if result.get("answers") or result.get("opinions") else of
    if np.isfinite(rate.value) and np.isfinite(of_kept.value):
        sentence += f" About {_estimate_text(of_kept)} of these {counted}."
    if repaired:
        sentence += f" {repaired:,} {'pairs are' if repaired > 1 else 'pair is'} repaired."
        sentence += f" About {_estimate_text(output)} of all these pairs {counted}." * bool(np.isfinite(output.value))
    stages = ("scored", "kept", "kept and repaired")[: 3 if repaired else 2]
    if truth is not None and truth[outcome.scored].any():
        own = np.array_equal(truth, pairs.true_mismatch) if pairs.true_mismatch is not None else False
        shares = wrong_in_output(pairs, plan.table) if plan is not None and own else None
        among = truth[outcome.kind == "kept"]  # what a repair has made of a pair may be unknown: NaN
        shares = shares or (float(among.mean()) if kept else np.nan, np.nan)
        rates = [float(truth[outcome.scored].mean()), *shares]
        known = zip(stages, rates, strict=False)
        listed = [f"{percent(value)} of the {name} pairs" for name, value in known if np.isfinite(value)]
        sentence += f" The truth of this corpus is known: {', '.join(listed)} are mismatched."
        of, estimates = "mismatched", [Estimate(value, np.nan, np.nan) for value in rates]
    sentence += f" {displaced_in_words([block['why'] for block in result.get('displaced', ())])}"
    stated = list(zip(stages, map(_estimate_text, estimates), strict=False))
    return {"sentence": sentence.rstrip(), "of": of, "shares": stated}


def _estimate_text(share: Estimate) -> str:
    if np.isnan(share.value):
        return "undetermined"
    within = f" ({percent(share.low)} to {percent(share.high)})" if np.isfinite(share.low) else ""
    return f"{percent(share.value)}{within}"


def story(
    info: Mapping[str, Any], settings: Mapping[str, Any], outcome: Outcome, plan: RepairPlan | None
) -> list[tuple[str, str]]:
    """Return (heading, sentence) of what is known, by a run.json ``info`` and the estimator's ``settings``."""
    result = info.get("result") or {}
    rows = [("Method", _method(info, settings, result)), ("Threshold", _threshold(settings, result, outcome))]
    if plan is not None:
        known = {k: v for k, v in plan.settings.items() if k != "data" and isinstance(v, str | int | float)}
        parts = "".join(f"{k.replace('_', ' ')} {_number(v)}; " for k, v in known.items())
        rows.append(("Repair", f"{parts}a repair needs a score of at least {plan.min_repair_score:.3g}."))
    return [(name, text) for name, text in rows if text]


def _method(info: Mapping[str, Any], settings: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    text = name = str(info.get("method") or "")
    backbone: Any = settings.get("backbone")
    if not name:
        return ""
    trained = backbone not in BACKBONES or result.get("epochs") != 0  # else vectors are the model
    if name in METHODS:
        text += f": {METHODS[name].summary}" * trained + f" ({METHODS[name].source})"
    if not trained:
        return f"{text}. Nothing was trained: the vectors are the model."
    vectors = str(result.get("captions")).partition(",")[0]
    both = settings.get("encoder") is not None or vectors == "vectors of the data"
    if vectors.startswith("vectors of"):  # else the backbone learns words
        text += f". {'Both sides' if both else 'Captions'} are {vectors}"
    elif backbone in BACKBONES:
        text += f". Backbone {backbone}: {BACKBONES[backbone].summary}"
    if settings.get("image_encoder") not in (None, "auto") and not both:
        text += f". Image encoder: {settings['image_encoder']}"
    if result.get("epochs"):
        text += f". Trained for {plural(result['epochs'], 'epoch')}"
        text += f" on {info['device']}" if info.get("device") else ""
        text += f", seed {info['seed']}" if info.get("seed") is not None else ""
    return text + "."


def _threshold(settings: Mapping[str, Any], result: Mapping[str, Any], outcome: Outcome) -> str:
    y, own = outcome.correspondence[outcome.scored], result.get("threshold")
    below = f" ({int((y < outcome.threshold).sum()):,} of {len(y):,} scored pairs are below it)" if len(y) else ""
    value = f"{outcome.threshold:.3g}{below}"
    if own is not None and abs(float(own) - outcome.threshold) > 1e-9:
        return f"{value}, given to the repair plan. The threshold of the run is {float(own):.3g}."
    if by := [plural(result[name], name[:-1]) for name in ("answers", "opinions") if result.get(name)]:
        return f"{value}, by {' and '.join(by)}."
    if "threshold" not in settings:
        return ""
    if settings["threshold"] == "auto":
        what = "the density minimum between their two modes" if outcome.threshold else "no pair looks mismatched"
        return f"{value}, chosen from the scores (auto): {what}."
    if settings["threshold"] is None:
        return f"{value}, the method's default. --set threshold=auto chooses it from the scores."
    return f"{value}, by the settings."
