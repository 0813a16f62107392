"""From a finished run to a plan: what ``cleanpairs rematch`` does, and ``export`` without a plan.

Every pair is scored, or its score read. Then it is decided (:func:`cleanpairs.repair.planning.plan_repairs`). The pairs
are in memory. Many rows are a stream of batches, of which the vectors of the pairs that a repair can concern are kept.
Of vectors of one space both ways give the same plan. Trained towers see the rows in other batches: their scores differ
in the seventh digit, and a few repairs may differ.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cleanpairs.commands.run import Run, Scores
from cleanpairs.commands.score import roles_of, threshold_of_rows
from cleanpairs.core import ConfigError, RefusedError, check_number, current_progress
from cleanpairs.core.plain import rate_in_words
from cleanpairs.data import Pairs, Source, load_source, open_source, staged_file
from cleanpairs.data.duplicates import VectorSigns
from cleanpairs.data.readers import iter_tables, load_some, reader_of
from cleanpairs.data.recorded import remember_user_path, with_absolute_paths
from cleanpairs.engine import Engine, make_engine
from cleanpairs.engine.queries import EngineSearch
from cleanpairs.estimators import PairScorer
from cleanpairs.estimators.batches import RowScorer
from cleanpairs.estimators.embedded import Embedded
from cleanpairs.ops.columns import numbered, with_columns
from cleanpairs.ops.search import TopK, top_k
from cleanpairs.repair.actions import NOT_IN_UIDS
from cleanpairs.repair.candidates import NeighbourSearch
from cleanpairs.repair.decisions import no_repairs
from cleanpairs.repair.plan import PLAN_SCHEMA, PlanSummary, RepairPlan, write_plan
from cleanpairs.repair.plan_input import TEXTS, EmbeddedRows, PlanInput
from cleanpairs.repair.planning import Planned, plan_repairs
from cleanpairs.repair.recaption import CaptionWriter
from cleanpairs.repair.settings import RepairSettings
from cleanpairs.scoring import Embeddings


def chosen_threshold(
    threshold: float | str | None, max_wrong: float | None, keep: float | None, run: Run
) -> tuple[float | None, str | None]:
    """Return the threshold of ``--threshold``, ``--max-wrong`` or ``--keep``, None for the run's, and a text on it.

    ``threshold``: a number, None, or "auto": the density minimum of the run's scores.
    Raises ConfigError: more than one of them, or one that is out of range. RefusedError: "auto", and the scores do not
    separate, and are not all high either, or as :meth:`cleanpairs.estimators.PairScorer.threshold_for`.
    """
    if sum(given is not None for given in (threshold, max_wrong, keep)) > 1:
        raise ConfigError("--threshold, --max-wrong and --keep exclude each other: each of them chooses the threshold")
    if max_wrong is None and keep is None and threshold != "auto":
        if threshold is None:
            return None, None
        check_number("a plan", "threshold", threshold, least=0, most=1, also=("auto",))
        return float(threshold), None
    scores, calibration = run.scores(), run.calibration()
    y = scores.correspondence[np.isfinite(scores.correspondence)]
    if threshold != "auto":
        from cleanpairs.estimators.cut import cut_at

        known, displaced = (y, calibration, str(run.info["method"])), len(scores.moves) > 0
        cut = cut_at(*known, max_wrong=max_wrong, keep=keep, run=str(run.path), displaced=displaced)
        return cut.threshold, str(cut)
    from cleanpairs.audit import expected_quality
    from cleanpairs.correspondence.density_minimum import find_density_minimum

    minimum = find_density_minimum(y)
    if not minimum.right and not minimum.separated:
        raise RefusedError(f"--threshold auto: the scores of {run.path.name} do not separate: give a number")
    limit = 0.0 if minimum.right else minimum.threshold
    quality = None if calibration is None else str(expected_quality(y, calibration, threshold=limit, run=str(run.path)))
    return limit, quality


def rematch_run(
    run: Run,
    out: str | Path,
    settings: RepairSettings | None = None,
    data: str | Path | None = None,
    *,
    recaption: CaptionWriter | str | Path | None = None,
    streamed_from: int = RepairSettings.streamed_from,
    overwrite: bool = False,
    engine: Engine | None = None,
    **columns: Any,
) -> tuple[RepairPlan, PlanSummary]:
    """Plan the repairs of a run's input, or of ``data`` as :func:`cleanpairs.load_pairs` takes it with ``columns``.

    Returns the plan, without its rows where these were streamed, and its counts.

    - ``out``: the plan: Parquet, or CSV where it ends in .csv
    - ``recaption``: what writes captions for what would be dropped. See
      :meth:`cleanpairs.estimators.PairScorer.recaption`
    - ``streamed_from``: so many rows are streamed, where they can be
    - ``engine``: what searches. By default this process. The searches of several workers resume from the folder
      ``OUT.parts`` after a kill. All machines of a cluster see it

    Raises OutputExistsError: ``out`` exists.
    """
    out = Path(out)
    folder = out.with_name(out.name + ".parts").absolute()
    source, read = run.open_input() if data is None else open_source(data, **columns), None
    if data is not None:
        remember_user_path(data, columns)
        read = {**with_absolute_paths({"data": data}), "columns": with_absolute_paths(columns)}
    planning = Planning(run, source, settings or RepairSettings(), folder, engine, read)
    many = out.suffix != ".csv" and source.n_rows >= streamed_from and recaption is None
    with staged_file(out, overwrite=overwrite, inputs=source.inputs) as staged:
        scorer = planning.row_scorer() if many else None
        if scorer is not None:
            return planning.streamed(scorer, staged)
        plan, _ = planning.in_memory(recaption)
        plan.save(staged)
        return plan, plan.summary()


class Planning:
    """Plans the repairs of the ``source`` that a run was fitted on, or of other data.

    ``engine``: what searches. ``parts``: the folder for the files of several workers.
    ``read``: other data, and how it is read, as a plan notes them. A plan has what a card tells of the run, too.
    """

    batch_rows = 4096

    def __init__(
        self, run: Run, source: Source, settings: RepairSettings, parts: Path, engine: Engine | None,
        read: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        scores, fitted = run.fitted_scores(), run.fingerprint == source.fingerprint
        self.model: PairScorer = run.estimator(scores, fitted=not fitted)
        self.source, self.settings, self.parts = source, settings, parts
        read = read or {"data": run.info["input"]["data"], "columns": run.info["input"]["options"]}
        about = {"method": run.info.get("method"), "noise": rate_in_words(run.result) if fitted else None}
        self.read = {**read, "about": about}
        self.engine = engine or make_engine("local")
        self.why: pa.ChunkedArray | None = scores.why if fitted else None  # (N,): what the run says against pairs

    def in_memory(
        self, recaption: CaptionWriter | str | Path | None = None, *, explode: bool = False
    ) -> tuple[RepairPlan, Pairs]:
        """Return the plan of pairs in memory, and these. ``explode``: rows with lists of captions get images, too."""
        settings, pairs = self.settings, load_source(self.source)
        if self.source.explicit_lists and not explode:
            if settings.targets == "image" and settings.replaces_image:
                raise ConfigError("targets=image: rows with lists keep their image: export with --captions split")
            settings = replace(settings, targets="text")
        with self._neighbour_search() as search:
            plan = self.model.rematch(pairs, settings, neighbour_search=search, recaption=recaption)
        (table,) = self._with_why(iter([plan.table]))
        return replace(plan, table=table, settings={**plan.settings, **self.read}), pairs

    def row_scorer(self) -> RowScorer | None:
        """Return what embeds and scores the rows batch by batch. None if the rows cannot be streamed."""
        reader, roles = reader_of(self.source), roles_of(self.source)
        streams = roles and not self.source.explicit_lists and "true_mismatch" not in reader.schema(self.source).names
        by_rows = streams and self.settings.strategy in ("ot", "nearest")
        scorer = self.model._row_scorer(roles) if by_rows else None
        return scorer if scorer is not None and scorer.compares_vectors else None

    def streamed(self, scorer: RowScorer, staged: Path) -> tuple[RepairPlan, PlanSummary]:
        """Write the plan to ``staged``, in memory that grows with the mismatched pairs, and by some 30 bytes a row.

        Returns the plan without its rows, and its counts.
        """
        model, source = self.model, self.source
        unseen = threshold_of_rows(model, scorer, source, str(self.read["data"]))
        fitted = model._has_scores_of(source, source.n_rows)
        settings = self.settings.resolved(model._applied_threshold(unseen, of_fit=fitted))
        known, quarantined = (model.correspondence_, model.quarantined_) if fitted else (None, {})
        moves = model._displaced_of_fit()[0] if fitted and settings.displaced else None
        rows = self._embedded_batches(scorer, known is not None)
        texts = staged.with_suffix(".texts")
        few = reader_of(source).iter_range(source, 0, min(source.n_rows, 1024), 1024) if settings.dedup else ()
        first = [np.asarray(batch.vectors) for batch in few]
        signs_of = VectorSigns(np.concatenate(first)) if first else None
        given = PlanInput.from_rows(rows, source.n_rows, settings, texts, known, moves, signs_of)
        given = replace(given, reasons={**given.reasons, **quarantined})  # filters of the fit are not asked again
        with self._neighbour_search() as search:
            planned = plan_repairs(
                given,
                partial(model.bank_.judging, Embeddings(given.z_image), Embeddings(given.z_text)),
                settings,
                fingerprint=source.fingerprint,
                temperature=model.bank_.tau,
                judge=model._judge(given, settings, self._embed_some, fitted=fitted, unseen=unseen),
                neighbour_search=search,
            )
            head = replace(planned.head, settings={**planned.head.settings, **self.read})
            return head, write_plan(staged, head, self._with_why(planned.tables()))

    @contextmanager
    def _neighbour_search(self) -> Iterator[NeighbourSearch]:
        """Yield what searches by cosine. Files of an engine's workers are removed once the plan is made."""
        if not self.engine.remote:
            number = count(1)

            def in_this_process(queries: np.ndarray, rows: np.ndarray, k: int) -> TopK:
                progress = partial(current_progress().advance, f"search {next(number)}", "rows")
                return top_k(queries, rows, k, progress=progress)

            yield in_this_process
            return
        search = EngineSearch(self.parts, self.engine)
        yield search
        search.remove()

    def _with_why(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for first, table in numbered(tables):
            yield table if self.why is None else with_columns(table, {"why": self.why.slice(first, len(table))})

    def _embedded_batches(self, scorer: RowScorer, scored: bool) -> EmbeddedRows:
        for batch in reader_of(self.source).iter_range(self.source, 0, self.source.n_rows, self.batch_rows):
            images, texts = scorer.embedded(batch, str(self.read["data"]))
            yield batch, images.vectors, texts.vectors, None if scored else scorer.compared(batch, images, texts)

    def _embed_some(self, rows: np.ndarray) -> Embedded:
        return self.model._embed(load_some(self.source, rows))


def plan_selection(scores: Scores, source: Source, settings: RepairSettings, staged: Path) -> RepairPlan:
    """Write the plan that keeps and drops the rows of an input as they are, one pair each, by their ``scores``.

    Returns the plan without its rows. No vector is read.
    """
    y, keys, text = scores.correspondence, scores.table["key"], source.columns.get("text")
    none, no_vectors = np.empty(0, np.int64), np.empty((0, 1), np.float32)
    mismatched = np.flatnonzero(y < settings.resolved_threshold)

    def texts() -> Iterator[pa.RecordBatch]:
        batches = iter_tables(source, Planning.batch_rows, ["uid" if text is None else text])
        for first, batch in numbered(batches):
            captions = pa.nulls(len(batch), pa.string()) if text is None else batch.column(0).cast(pa.string())
            some = keys.slice(first, len(batch)).combine_chunks()
            yield pa.RecordBatch.from_arrays([some, captions.fill_null("")], schema=TEXTS)

    given = PlanInput(
        y, none, none, mismatched, none, no_vectors, no_vectors, none, none, (0.0, 1.0), scores.reasons, texts
    )
    least, noted = float(settings.min_repair_score), {**settings.noted(), "searches": []}
    head = RepairPlan(PLAN_SCHEMA.empty_table(), settings.resolved_threshold, least, source.fingerprint, noted)
    write_plan(staged, head, Planned(head, given, no_repairs(len(mismatched), NOT_IN_UIDS)).tables())
    return head
