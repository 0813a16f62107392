"""The report in words: how many pairs are wrong as they came, kept and repaired; what was cleaned, and how."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cleanpairs.core.registry import BACKBONES, METHODS
from cleanpairs.correspondence.calibration import UNDETERMINED, Calibration, Estimate
from cleanpairs.data.pairs import Pairs
from cleanpairs.repair.actions import REPAIRED, acted
from cleanpairs.repair.plan import RepairPlan, wrong_in_output
from cleanpairs.report.outcome import Outcome

STAGES = ("as it came", "kept", "kept and repaired")


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as ``{"input.rows": 5}``; lists as text; empty ones left out."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            out |= flattened(value, f"{prefix}{key}.")
        elif not isinstance(value, list | tuple):
            out[prefix + str(key)] = value
        elif value:
            out[prefix + str(key)] = ", ".join(map(str, value))
    return out


def verdict(
    outcome: Outcome, plan: RepairPlan | None, pairs: Pairs, result: Mapping[str, Any],
    calibration: Calibration | None,
) -> dict[str, Any] | None:  # fmt: skip
    """A sentence on what is estimated, and what is known where the truth is; and (name, share of mismatched pairs) as
    text, of :data:`STAGES`. None of no pairs.

    - ``result``: run.json's: ``noise_rate`` in [0, 1] or None, ``noise_rate_interval``
    - ``calibration``: of the scores; without it the share among the kept pairs is undetermined
    """
    kept, repaired = (int((outcome.kind == kind).sum()) for kind in ("kept", "repaired"))
    if not len(outcome):
        return None
    rate, of_kept, output = estimates = _estimated(outcome, plan, result, calibration)
    known = _known(outcome, plan, pairs)
    share = f"{kept / len(outcome):.0%} of the pairs are kept"
    if np.isnan(rate.value):
        sentence = "How many pairs are mismatched is undetermined: label some (cleanpairs audit). " + share
    else:
        sentence = f"About {_text(rate)} of the pairs are mismatched. {share}"
        sentence += f", of which about {_text(of_kept)} are mismatched" if np.isfinite(of_kept.value) else ""
    if repaired:
        sentence += f"; {repaired / len(outcome):.1%} are repaired"
        sentence += f", which makes it about {_text(output)}" if np.isfinite(output.value) else ""
    sentence += "."
    stages = STAGES[: 3 if repaired else 2]
    if known is not None:
        listed = [f"{value:.1%} {name}" for name, value in zip(stages, known, strict=False) if np.isfinite(value)]
        sentence += f" The truth of this corpus is known: mismatched are {', '.join(listed)}."
        estimates = [Estimate(value, np.nan, np.nan) for value in known]
    return {"sentence": sentence, "shares": list(zip(stages, map(_text, estimates), strict=False))}


def _estimated(
    outcome: Outcome, plan: RepairPlan | None, result: Mapping[str, Any], calibration: Calibration | None
) -> list[Estimate]:
    """Of all pairs, of the kept ones, and of those and the repaired ones."""
    rate = result.get("noise_rate")
    interval = result.get("noise_rate_interval") or (np.nan, np.nan)
    found = [UNDETERMINED if rate is None else Estimate(float(rate), *map(float, interval)), UNDETERMINED, UNDETERMINED]
    kept = int((outcome.kind == "kept").sum())
    if calibration is not None and kept:
        found[1] = calibration.shares(outcome.correspondence[outcome.scored], [kept])[0]
        if plan is not None:
            column = plan.table.filter(acted(plan.table, REPAIRED))["confidence"].cast("float64")
            sure = column.fill_null(np.nan).to_numpy()  # NaN where the probability of a repair is not known
            share = (found[1].value * kept + float((1 - sure).sum())) / (kept + len(sure))
            found[2] = Estimate(share, np.nan, np.nan)
    return found


def _known(outcome: Outcome, plan: RepairPlan | None, pairs: Pairs) -> list[float] | None:
    """The true shares, NaN where it is unknown what a repair has made of a pair."""
    if outcome.truth is None or not outcome.truth[outcome.scored].any():
        return None
    came = float(outcome.truth[outcome.scored].mean())
    shares = None if plan is None else wrong_in_output(pairs, plan.table.sort_by("pair_id"))
    kept = outcome.truth[outcome.kind == "kept"]
    return [came, *(shares or (float(kept.mean()) if len(kept) else np.nan, np.nan))]


def _text(share: Estimate) -> str:
    if np.isnan(share.value):
        return "undetermined"
    within = f" ({share.low:.1%} to {share.high:.1%})" if np.isfinite(share.low) else ""
    return f"{share.value:.1%}{within}"


def story(
    info: Mapping[str, Any], settings: Mapping[str, Any], outcome: Outcome, plan: RepairPlan | None
) -> list[tuple[str, str]]:
    """(Heading, sentence) of what is known, by a run.json ``info`` and the estimator's ``settings``."""
    result = info.get("result") or {}
    told = [
        ("Data", _data(info.get("input") or {})),
        ("Method", _method(info, settings, result)),
        ("Noise", _noise(result, outcome)),
        ("Threshold", _threshold(settings, result, outcome.threshold)),
        ("Repair", _repair(plan)),
    ]
    return [(name, text) for name, text in told if text]


def _data(given: Mapping[str, Any]) -> str:
    if not given.get("data"):
        return ""
    columns = ", ".join(f"{role} from “{column}”" for role, column in (given.get("columns") or {}).items())
    counts = f"{given['rows']:,} rows, {given['pairs']:,} pairs" if "rows" in given and "pairs" in given else ""
    parts = [str(given["data"]), str(given.get("kind") or ""), counts, columns]
    return "; ".join(p for p in parts if p) + "."


def _method(info: Mapping[str, Any], settings: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    name, backbone = info.get("method"), settings.get("backbone")
    if not isinstance(name, str):
        return ""
    text = name
    if name in METHODS:
        entry = METHODS.entry(name)
        text += f": {entry.summary} ({entry.source})"
    if isinstance(backbone, str) and backbone in BACKBONES:
        text += f". Backbone {backbone}: {BACKBONES.entry(backbone).summary}"
    if settings.get("image_encoder"):
        text += f". Image encoder: {settings['image_encoder']}"
    if result.get("epochs"):
        text += f". Trained for {result['epochs']} epochs"
        text += f" on {info['device']}" if info.get("device") else ""
        text += f", seed {info['seed']}" if info.get("seed") is not None else ""
    return text + "."


def _noise(result: Mapping[str, Any], outcome: Outcome) -> str:
    y = outcome.correspondence[outcome.scored]
    flagged, total = int((y < outcome.threshold).sum()), len(y)
    share = f"{flagged:,} of {total:,} scored pairs ({flagged / total:.1%}) are below the threshold." if total else ""
    if "noise_rate" not in result:
        return share
    rate, interval = result["noise_rate"], result.get("noise_rate_interval")
    if rate is None:
        told = "Undetermined: the scores do not tell how many pairs are mismatched; label some (cleanpairs audit)."
    else:
        within = f" (95 % interval {interval[0]:.1%} to {interval[1]:.1%})" if interval else ""
        told = f"An estimated {rate:.1%} of the pairs are mismatched{within}."
    return f"{told} {share}"


def _threshold(settings: Mapping[str, Any], result: Mapping[str, Any], threshold: float) -> str:
    value, own = f"{threshold:.3g}", result.get("threshold")
    if own is not None and abs(float(own) - threshold) > 1e-9:
        return f"{value}, given to the repair plan (the run's own is {float(own):.3g})."
    if "threshold" not in settings:
        return ""
    if settings["threshold"] == "auto":
        return f"{value}, chosen from the scores (auto): the density minimum between their two modes."
    if settings["threshold"] is None:
        return f"{value}, the method's default; --set threshold=auto chooses it from the scores."
    return f"{value}, as the settings say."


def _repair(plan: RepairPlan | None) -> str:
    if plan is None:
        return ""
    plain = {k: v for k, v in plan.settings.items() if isinstance(v, str | int | float)}  # no records of searches
    parts = [f"{k.replace('_', ' ')} {v}" for k, v in plain.items()]
    return "; ".join([*parts, f"a repair needs a score of at least {plan.min_repair_score:.3g}"]) + "."
