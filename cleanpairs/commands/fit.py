"""One fit from a recipe to a finished run directory: what ``cleanpairs fit`` and the demonstration call."""

import shlex
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.commands.fit_stream import Streamed, StreamedFit
from cleanpairs.commands.run import LATEST, Run, default_run_path, write_scores
from cleanpairs.core import ConfigError, OutputError, OutputExistsError, current_progress, distributed, jsonable
from cleanpairs.core.limits import one_thread
from cleanpairs.core.plain import displaced_in_words, rate_in_words
from cleanpairs.core.recipe import DataOptions, Recipe, parse_yaml, read_yaml
from cleanpairs.data import Pairs, Source, load_pairs, open_source
from cleanpairs.data.atomic import staged_file, write_whole
from cleanpairs.data.filters import FILTERS, PREFIX, chosen_filters
from cleanpairs.data.formats.vectors import splits_of
from cleanpairs.data.guard import data_inputs, refuse_inputs, same_file
from cleanpairs.data.inspection import count_reasons
from cleanpairs.data.locks import output_lock
from cleanpairs.data.readers import options_for_others, reader_of
from cleanpairs.data.recorded import check_recorded, open_recorded, remember_user_path, with_absolute_paths
from cleanpairs.data.text import visible
from cleanpairs.estimators import PairCleaner, PairScorer
from cleanpairs.estimators.encoders import GIVEN, text_encoder_for
from cleanpairs.estimators.persistence import versions
from cleanpairs.explain import ISSUES, LISTED
from cleanpairs.repair.editing import write_csv
from cleanpairs.trainer import EpochRecord


@dataclass(frozen=True)
class FitInput:
    """What a fit reads.

    Parameters
    ----------
    pairs : Pairs
        The method is fitted on them.
    val : Pairs, optional
        Validation pairs.
    streamed : StreamedFit, optional
        All rows, if ``pairs`` are a sample.
    """

    pairs: Pairs
    val: Pairs | None
    streamed: StreamedFit | None = None


def result_table(result: Mapping[str, Any]) -> str:
    """Return a result of :func:`fit_run` as text: a verdict, counts, and the histogram of the correspondence."""
    run = "" if same_file(LATEST, result["run"]) else f" {shlex.quote(result['run'])}"
    out, n = result["standing_out"], result.get("answers")
    odd = f"{len(out):,}  (kept, but with a lower score than half of all random pairs)"
    found = list(result["issues"].items())[1:-1]  # without doubtful pairs, and blocks of displaced rows
    others = [f"{name}: {'at least ' * (k >= LISTED)}{k:,}" for name, k in found if k]
    best = " at the best epoch" * bool(result.get("epochs"))
    seen = f"; {result['val_seen']}" if result.get("val_seen") else ""
    rows = {
        "method": result["method"],
        "pairs": f"{result['pairs']:,}  ({result['quarantined']:,} quarantined)",
        "quarantined": _quarantined_text(result["set_aside"]),
        "not quarantined": "; ".join(
            f"{n:,} x {FILTERS[name].reason.format(FILTERS[name].setting)} (--drop {name})"
            for name, n in result["doubtful"].items()
        ),
        "displaced": displaced_in_words([block["why"] for block in result["displaced"]]),
        "flagged": f"{result['flagged']:,}  (correspondence below {result['threshold']:.3g})",
        "answers": f"{n:,}  (taken from runs in the same folder; a run in another folder has none)" if n else None,
        "captions": result["captions"],
        "validation": None if result["val_rsum"] is None else f"rSum {result['val_rsum']:.1f}{best}{seen}",
        "worst": result["worst"],
        "outliers": odd if out else None,
        "issues": f"{'; '.join(others) or 'doubtful pairs alone'}  (issues.csv; cleanpairs worst{run})",
    }
    lines = [rate_in_words(result), *(f"{name:<16}{text}" for name, text in rows.items() if text), "", "correspondence"]
    top = max([*result["histogram"], 1])
    for k, count in enumerate(result["histogram"]):
        lines.append(f"  {k / 10:.1f}-{(k + 1) / 10:.1f}  {count:>9,}  {'█' * round(40 * count / top)}")
    count = f"cleanpairs review{run} --calibrate  (forty answers measure the noise rate)"
    few = result["pairs"] - result["quarantined"] < 40
    steps = [] if few or n else [count]
    steps += [f"cleanpairs review{run} (look at the outliers)"] if out else []
    steps.append(f"cleanpairs export{run} --out out.parquet")
    lines += ["", f"{'run':<16}{result['run']}{'' if run else '  (runs/latest, until the next fit)'}"]
    return "\n".join([*lines, *(f"{'next' if k == 0 else '':<16}{step}" for k, step in enumerate(steps))])


def _quarantined_text(kinds: Sequence[Mapping[str, Any]], most: int = 3) -> str:
    """Return the commonest reasons why pairs are quarantined, and the option that changes it."""
    lines = [f"{kind['pairs']:,} x {visible(kind['reason'], 120)}" for kind in kinds[:most]]
    lines += ["others: see scores.parquet"] if len(kinds) > most else []
    filtered = any(kind["reason"].startswith(PREFIX) for kind in kinds)
    return "; ".join(lines) + "; --drop none keeps what filters quarantine" * filtered


def fit_run(
    recipe: Recipe,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    latest: bool = True,
    backbone_named: bool = False,
    streamed_from: int = 50_000,
) -> dict[str, Any]:
    """Fit ``recipe`` on its data, and write a run directory. Returns the ``result`` of its run.json.

    - ``out``: the run directory, else the recipe's, else ``runs/<date>-<method>-<data>``
    - ``resume``: resume the run there. One that was stopped before its first checkpoint begins anew
    - ``latest``: let ``runs/latest`` point to the run
    - ``streamed_from``: of so many rows of vectors of one space a sample is fitted, and all are scored in a stream
    - ``backbone_named``: the backbone was named in this call: ConfigError where vectors or an encoder take its place

    Raises CleanpairsError: as :meth:`cleanpairs.estimators.PairScorer.fit`, and OutputExistsError for a run that
    exists. KeyboardInterrupt: on SIGINT, SIGTERM or SIGHUP, with the state of a training saved.
    Of several processes (torchrun) all train, and the first one alone writes and reports. The others return nothing.
    """
    estimator: PairScorer = recipe.estimator()
    noted = replace(recipe, data=DataOptions(**with_absolute_paths(vars(recipe.data))))
    estimator.validate()
    with distributed.process_group(estimator._resolved_device()), ExitStack() as resources:
        named = out or recipe.output.out or (LATEST if resume else "")
        if resume:
            Run.check_resumable(named)
            _refuse_other_settings(Run(Path(named)), noted)
        given = _input(recipe, estimator, backbone_named, streamed_from)
        if distributed.rank() > 0:
            if not (shared := str(distributed.broadcast(""))):
                raise OutputError("the first process could not make the run directory: see its error message")
            training: Any = {"run_dir": shared, "resume": resume} if isinstance(estimator, PairCleaner) else {}
            estimator.fit(given.pairs, val=given.val, **training)
            return {}
        data, options = recipe.data, _options(recipe.data)
        reads = [*data_inputs(data.train, options), *data_inputs(data.val, options)]
        made = ""
        try:
            # Not before the data is read, as another fit may take this name meanwhile.
            path = Path(named or default_run_path(recipe.method, str(data.train)))
            try:
                refuse_inputs([path], reads)
            except OutputExistsError as error:
                raise OutputExistsError(f"{error}: --out DIR, outside of the data") from None
            resources.enter_context(output_lock([path]))
            run = Run.create(path, overwrite=recipe.output.overwrite, resume=resume, latest=latest)
            made = str(run.path.absolute())
        finally:
            distributed.broadcast(made)
        # A fit by the recipe of the run asks again before it replaces this one.
        return _fit(run, replace(noted, output=replace(recipe.output, overwrite=False)), estimator, given, resume)


def _refuse_other_settings(run: Run, recipe: Recipe) -> None:
    """ConfigError where a complete run, which has nothing to resume, is of other settings."""
    file = run.path / "recipe.yaml"
    if file.exists() and run.info.get("status") == "complete" and not run.has_checkpoint():
        before, now = read_yaml(file), parse_yaml(recipe.to_yaml(), "the recipe")
        if any(before.get(part) != now.get(part) for part in (before.keys() | now.keys()) - {"output"}):
            raise ConfigError(f"{run.path} is complete, and of other settings: --overwrite replaces it")


def check_stored(recipe: Recipe, run: str | Path) -> None:
    """Raise CleanpairsError where the recipe that the directory ``run`` holds would open what nobody has named here."""
    data, opened = recipe.data, Run.open(run)
    where = opened.path / "recipe.yaml"
    open_recorded(data.train, _options(data), opened.fingerprint, where)
    if data.val is not None:
        check_recorded(data.val, options_for_others(data.val, str(data.train), _options(data)), where)


def _options(data: DataOptions) -> dict[str, Any]:
    given = {name: value for name, value in vars(data).items() if value is not None and value is not False}
    return {name: value for name, value in with_absolute_paths(given).items() if name not in ("train", "val")}


def _input(recipe: Recipe, estimator: PairScorer, backbone_named: bool, streamed_from: int) -> FitInput:
    """Read the input of :func:`fit_run`, by its parameters."""
    data, options, streamed = recipe.data, _options(recipe.data), None
    assert data.train is not None
    alone = data.val is None and distributed.world_size() == 1
    if alone and estimator._fits_sample({"features", "text_features"}):
        streamed = StreamedFit.of(estimator, open_source(data.train, **options), streamed_from)
    pairs = load_pairs(data.train, **options) if streamed is None else streamed.pairs
    remember_user_path(data.train, options)
    if (
        backbone_named
        and isinstance(estimator, PairCleaner)
        and (estimator.encoder is not None or text_encoder_for(estimator, pairs) == GIVEN)
    ):
        instead = estimator.encoder or "vectors of both sides, which the data brings,"
        raise ConfigError(
            f"--backbone {estimator.backbone} would train nothing: {instead} take its place, with a small head; "
            "leave --backbone out, or read the captions by --set text_encoder=words"
        )
    if data.val is not None:
        of_val = options_for_others(data.val, data.train, options)
        val = load_pairs(data.val, **of_val)
        if val.source.fingerprint == pairs.source.fingerprint:
            remedy = "give other pairs, or none (of a research directory the dev split is read then)"
            raise ConfigError(f"{data.val} is the training data: {remedy}")
        remember_user_path(data.val, of_val)
        return FitInput(pairs, val)
    splits = splits_of(Path(data.train)) if pairs.source.kind == "precomp" and data.split in (None, "train") else []
    own = next((split for split in ("dev", "val") if split in splits), None)
    dev = None if own is None else load_pairs(data.train, split=own, text_column=data.text_column)
    return FitInput(pairs, dev, streamed)


def _fit(run: Run, recipe: Recipe, estimator: PairScorer, given: FitInput, resume: bool) -> dict[str, Any]:
    """Train, and leave model, scores and issues in the run. What ends that is noted in the run, or takes it along."""
    pairs, streamed = given.pairs, given.streamed
    source = pairs.source if streamed is None else streamed.source
    info = _about(recipe, estimator, source, len(pairs) if streamed is None else source.n_rows)
    trains = streamed is None and isinstance(estimator, PairCleaner)
    try:
        if {"correspondence", "action", "source_key"} <= set(reader_of(source).stored_schema(source).names):
            message = "this data is an export: the dropped pairs are missing, so the noise rate comes out too low"
            warnings.warn(message, stacklevel=1)
        scored = _train(run, recipe, estimator, given, resume, info)
        result = _write_results(run, estimator, pairs, scored)
        result["val_seen"] = None if given.val is None else given.val.seen_in(pairs, "validation")
    except KeyboardInterrupt:
        run.write_info({**info, "status": "interrupted"})
        raise
    except BaseException as error:
        if not resume:
            run.discard_empty(trains)
        if not (trains and isinstance(error, OutputError) and run.path.exists()):  # a full disk costs no training
            run.restore_replaced()
        raise
    ended = {"status": "complete", "seed": estimator.random_state_, "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    files = run.hashes()  # `cleanpairs verify` holds the files to these
    run.write_info({**info, **ended, "result": result, "files": files})
    run.forget_replaced()
    run.take_answers()
    return run.result


def _train(
    run: Run, recipe: Recipe, estimator: PairScorer, given: FitInput, resume: bool, info: dict[str, Any]
) -> Streamed | None:
    """What a streamed fit returns (:meth:`StreamedFit.finish`)."""
    # A resumed run keeps its own recipe until it is known that these settings make no other training of it.
    begun = resume and (run.path / "recipe.yaml").exists()
    progress = current_progress()

    def on_epoch(record: EpochRecord, y: np.ndarray) -> None:
        nonlocal begun
        if begun:
            begun = False
            run.write_info(info)
        # A run that was killed may have logged epochs behind its last checkpoint: they are trained again.
        before = [m for m in run.metrics() if (m["stage"], m["epoch"]) < (record.stage, record.epoch)]
        run.write_metrics([*before, vars(record)])
        progress.epoch(record)

    options: dict[str, Any] = {}
    if isinstance(estimator, PairCleaner):
        options = {"run_dir": run.path, "resume": resume, "on_epoch": on_epoch, "on_step": progress.step}
    if not begun:
        run.write_info(info)
        write_whole(run.path / "recipe.yaml", recipe.to_yaml())
    progress.started(run.path)
    estimator.fit(given.pairs, val=given.val, **options)
    if given.streamed is None:
        return None
    return given.streamed.finish(run, estimator, str(recipe.data.train), _options(recipe.data))


def _about(recipe: Recipe, estimator: PairScorer, source: Source, pairs: int) -> dict[str, Any]:
    """Return run.json of a fit that begins."""
    return {
        "status": "running",
        "method": recipe.method,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions(),
        "seed": estimator.random_state,
        "device": estimator._resolved_device(),
        "precision": estimator._resolved_precision() if isinstance(estimator, PairCleaner) else None,
        "processes": distributed.world_size(),
        "input": {
            "data": recipe.data.train,
            "options": _options(recipe.data),
            "fingerprint": source.fingerprint,
            "kind": source.kind,
            "columns": source.columns,
            "rows": source.n_rows,
            "pairs": pairs,
        },
    }


@one_thread()  # the products are small
def _write_results(run: Run, estimator: PairScorer, pairs: Pairs, scored: Streamed | None) -> dict[str, Any]:
    """Write scores and issues of a fit. Returns the result. ``scored``: as of :meth:`StreamedFit.finish`."""
    run.write_metrics(estimator.history_)
    out: list[int] = []
    if scored is not None:
        issues, keys = scored
    else:
        estimator.save_pretrained(run.path / "model", overwrite=True)
        explainer = estimator.explainer(pairs)
        scores = pairs.keys, estimator.correspondence_, estimator.threshold_, estimator.quarantined_
        write_scores(run.path / "scores.parquet", *scores, explainer.sentences(), estimator._moves_)
        out = [i for i in estimator.standing_out_.tolist() if estimator.correspondence_[i] >= estimator.threshold_][:20]
        issues, keys = explainer.issues(LISTED, out), dict(enumerate(pairs.keys))
    with staged_file(run.path / "issues.csv", overwrite=True) as staged:
        write_csv(issues, staged)
    return {
        "run": str(run.path),
        **_result(estimator, keys, issues, ISSUES if scored is None else StreamedFit.issues),
        "displaced": estimator._blocks_,
        "standing_out": out,
        "doubtful": _doubtful(pairs, estimator) if scored is None else {},
    }


def _result(estimator: PairScorer, keys: Any, issues: pa.Table, kinds: Sequence[str]) -> dict[str, Any]:
    """Return the result of a fit, as counts of pairs.

    - ``histogram``: in ten equal bins of the correspondence
    - ``captions``: what they became
    - ``issues``: in ``issues.csv``, by ``kinds``, each up to :data:`cleanpairs.explain.LISTED`
    - ``set_aside``: by kinds of reasons
    - ``doubtful``: other pairs that each unused filter would find
    """
    y = estimator.correspondence_
    scores, interval = y[np.isfinite(y)], list(estimator.noise_rate_interval_)
    rows = issues.to_pylist()
    counts, worst = Counter(row["issue"] for row in rows), None
    doubtful = [row for row in rows if row["issue"] == ISSUES[0]]
    if doubtful:
        row = min(doubtful, key=itemgetter("score"))
        why = f": {visible(row['why'], 120)}" if row["why"] else ""
        worst = f"pair {row['pair_id']}, key {visible(row['key'], 40)}, correspondence {row['score']:.3f}{why}"
    return {
        "method": estimator.method_name,
        "pairs": len(y),
        "quarantined": len(estimator.quarantined_),
        "set_aside": count_reasons(keys, sorted(estimator.quarantined_.items())),
        "flagged": int((scores < estimator.threshold_).sum()),
        "threshold": float(estimator.threshold_),
        "noise_rate": jsonable(float(estimator.noise_rate_)),
        "noise_rate_interval": interval if np.isfinite(interval).all() else None,
        "noise_rate_bound": jsonable(float(estimator.noise_rate_bound_)),
        "counts_similar": estimator._counts_similar,
        "why_undetermined": estimator._why_undetermined,
        "better_than_random": jsonable(float(estimator.better_than_random_)),
        "val_rsum": jsonable(estimator.best_val_rsum_),
        "epochs": len(estimator.history_),
        "histogram": np.histogram(scores, bins=10, range=(0.0, 1.0))[0].tolist(),
        "captions": estimator._captions,
        "worst": worst,
        "issues": {name: counts[name] for name in kinds},
    }


def _doubtful(pairs: Pairs, estimator: PairScorer) -> dict[str, int]:
    used, counts = chosen_filters(estimator.drop), dict[str, int]()
    for name in {"hashtags", "mojibake", "repeated_image"} - used.keys():
        rows = FILTERS[name].find(pairs, FILTERS[name].setting or 0.0)
        counts[name] = len(set(rows.tolist()) - estimator.quarantined_.keys())
    return {name: count for name, count in sorted(counts.items()) if count}
