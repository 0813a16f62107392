"""Scoring without holding the input: precomputed vectors stream through the model, partition by partition.

A partition of the input (:mod:`cleanpairs.engine`) becomes a part of the scores table by a pure function of its rows
and the model. So one process, a pool and a cluster write the same table. With as many threads it is the same bit for
bit, else up to the rounding of sums. The parts lie in ``OUT.parts/`` until the last is there. A job that was killed
resumes from the finished ones. Only Parquet and embedding folders are scored in parts, and no encoded images.
"""

import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import cleanpairs
from cleanpairs.commands.run import SCORES_SCHEMA, scores_table
from cleanpairs.core import ConfigError, RefusedError, percent, sha256_of
from cleanpairs.core.limits import read_ahead
from cleanpairs.correspondence.calibration import Estimate
from cleanpairs.data import ParquetSink, Source, iter_tables, load_source, open_source, staged_file
from cleanpairs.data.readers import reader_of
from cleanpairs.data.rows import texts_of
from cleanpairs.engine import Engine, Finished, Partition, make_engine, plan_partitions, remove_job, run_partitions
from cleanpairs.estimators import PairScorer
from cleanpairs.estimators.batches import RowScorer
from cleanpairs.estimators.encoders import MOST_NEW, unknown_share
from cleanpairs.estimators.null_threshold import BLOCK, UnseenThreshold, spread_blocks, unseen_threshold
from cleanpairs.estimators.persistence import load_estimator
from cleanpairs.scoring import Embeddings


@dataclass(frozen=True)
class ScoreResult:
    """Counts of a scored input.

    - ``flagged``: pairs below ``threshold``
    - ``unknown_words``: share of the words of its first captions that the model does not know. None where it has no
      vocabulary
    - ``noise_rate``: estimated share of mismatched pairs, NaN where undetermined. It is known if the threshold goes by
      random pairs of this input (:mod:`cleanpairs.estimators.null_threshold`). None if the threshold is that of
      ``fit``
    """

    pairs: int
    flagged: int
    quarantined: int
    threshold: float
    unknown_words: float | None = None
    noise_rate: Estimate | None = None


@dataclass(frozen=True)
class ScoreWork:
    """Scores a partition's pairs, numbered from 0, and writes them as a Parquet file.

    The model is a fitted estimator, or the directory of one, which can be sent to other processes. Messages name the
    input ``data``. Pairs below ``threshold`` are flagged.
    """

    model: PairScorer | str
    source: Source
    data: str
    threshold: float
    batch_rows, partition_rows = 4096, 65_536

    @cached_property
    def _scorer(self) -> RowScorer:
        model: PairScorer = load_estimator(Path(self.model)) if isinstance(self.model, str) else self.model
        scorer: RowScorer | None = model._row_scorer(roles_of(self.source))
        assert scorer is not None
        return scorer

    def __call__(self, partition: Partition, path: Path) -> dict[str, Any]:
        """See :data:`cleanpairs.engine.work.Work`."""
        where = self.source, partition.first, partition.rows, self.batch_rows
        batches = reader_of(self.source).iter_range(*where, hash_vectors=self._scorer.hashes)
        scored = ((batch.keys, self._scorer(batch, self.data), batch.faults) for batch in read_ahead(batches))
        return dict(_write_scored(path, scored, self.threshold))


def _write_scored(path: Path, scored: Iterable[tuple[Any, ...]], threshold: float) -> Counter[str]:
    """Write keys, scores and reasons of pairs, batch by batch, as a table of scores. Return their counts."""
    counts = Counter(pairs=0, flagged=0, quarantined=0)
    with ParquetSink(path, SCORES_SCHEMA) as sink:
        for keys, scores, reasons in scored:
            sink.write(scores_table(keys, scores, threshold, reasons, first=counts["pairs"]))
            counts.update(pairs=len(scores), flagged=int((scores < threshold).sum()), quarantined=len(reasons))
    return counts


def score_stream(
    model: str | Path,
    data: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    columns: dict[str, Any] | None = None,
    engine: Engine | None = None,
    max_unknown: float = MOST_NEW,
) -> ScoreResult:
    """Score all pairs of ``data`` and write the scores table ``out``, in memory that does not grow with the input.

    - ``model``: the directory of :meth:`~cleanpairs.estimators.PairScorer.save_pretrained`
    - ``data``: anything that :func:`cleanpairs.load_pairs` reads. ``columns`` are its options
    - ``engine``: what does the work. By default this process
    - ``max_unknown``: share of the words that the model may not know. RefusedError beyond it

    Raises CleanpairsError: the data cannot be read, or does not fit the model. ``out``, or another job, is there.
    """
    engine = engine or make_engine("local")
    fitted: PairScorer = load_estimator(Path(model))
    source = open_source(data, **(columns or {}))
    unknown = _unknown_words(fitted, source, str(data), max_unknown)
    parts, done = Path(out).with_name(Path(out).name + ".parts"), None
    with staged_file(out, overwrite=overwrite, inputs=source.inputs) as staged:
        scorer = fitted._row_scorer(roles_of(source))
        if scorer is None:
            if engine.remote:
                raise ConfigError(
                    f"{data} cannot be divided among workers: that takes vectors in Parquet or an embedding folder, "
                    "and a fit without --drop, whose filters see all rows at once; leave --engine and --workers out"
                )
            embedded = fitted._embed(load_source(source))
            scores = fitted._scores_of(embedded)
            unseen = fitted._threshold_of(embedded, scores)
            threshold = fitted._applied_threshold(unseen)
            counts = _write_scored(staged, [(embedded.pairs.keys, scores, embedded.quarantined)], threshold)
        else:
            unseen = threshold_of_rows(fitted, scorer, source, str(data))
            threshold = fitted._applied_threshold(unseen)
            sent = str(Path(model).absolute()) if engine.remote else fitted
            work = ScoreWork(sent, source, str(data), threshold)
            groups = reader_of(source).row_groups(source)
            partitions = plan_partitions(groups, source.n_rows, target=ScoreWork.partition_rows)
            if len(partitions) <= 1 and not engine.remote:  # nothing to resume, nothing to put together
                counts = Counter(work(Partition(0, 0, source.n_rows), staged))
            else:
                job = _job_of(work, Path(model))
                done = run_partitions(
                    work, partitions, parts, job=job, engine=engine, overwrite=overwrite, stage="scoring"
                )
                counts = _put_together(parts, done, staged)
    if done is not None:  # now that their whole is in place
        remove_job(parts)
    rate = None if unseen is None else unseen.noise_rate
    return ScoreResult(**counts, threshold=threshold, unknown_words=unknown, noise_rate=rate)


def _unknown_words(model: PairScorer, source: Source, data: str, most: float) -> float | None:
    """Return the share of unknown words in the first captions. RefusedError if it is above ``most``."""
    captions: list[str] = []
    for table in iter_tables(source, 2000, [source.columns["text"]]) if "text" in source.columns else ():
        cells = texts_of(table.column(0))
        captions += [t for cell in cells for t in (cell if isinstance(cell, list) else [cell]) if isinstance(t, str)]
        if len(captions) >= 2000:
            break
    unknown = unknown_share(getattr(model, "tokenizer_", None), captions)
    if unknown is not None and unknown > most:
        raise RefusedError(
            f"{percent(unknown, 0)} of the words of {data} are unknown to the model: fit on this data, or allow it by "
            f"--set max_unknown={math.ceil(100 * unknown) / 100}"
        )
    return unknown


def _job_of(work: ScoreWork, model: Path) -> str:
    """Return all that the scores depend on, as text."""
    about = f"{work.threshold:.3g}"  # other threads give the last digits of scores otherwise
    files = {p.relative_to(model).as_posix(): sha256_of(p) for p in model.rglob("*") if p.is_file()}
    facts = [cleanpairs.__version__, work.source.fingerprint, files, work.batch_rows, about]
    return json.dumps(facts, sort_keys=True)


def threshold_of_rows(model: PairScorer, scorer: RowScorer, source: Source, data: str) -> UnseenThreshold | None:
    """Return the threshold of rows that the model was not fitted on, by some of them. See
    :meth:`cleanpairs.estimators.PairScorer.own_threshold`. None for a model that compares words with regions.
    """
    if not model._takes_own_threshold(source.fingerprint):
        return None
    bank = model.bank_
    if bank.model is not None and bank.model.local:
        return None
    parts: list[tuple[np.ndarray, ...]] = []
    ends = list(accumulate(reader_of(source).row_groups(source)))
    # Runs of one row group together: what lies before a row in its group is decoded with it.
    for _, together in groupby(spread_blocks(source.n_rows), lambda run: bisect_right(ends, run.start)):
        runs = list(together)
        first, last = runs[0].start, runs[-1].stop
        for batch in reader_of(source).iter_range(source, first, last - first, BLOCK, hash_vectors=True):
            row, first = first + batch.row, first + batch.n_rows
            chosen = np.any([(row >= run.start) & (row < run.stop) for run in runs], axis=0)
            if chosen.any():
                sides = scorer.embedded(batch, data)
                groups = batch.image_group[batch.row], batch.text_group
                scored = *(side.vectors for side in sides), *groups, scorer.compared(batch, *sides)
                parts.append(tuple(values[chosen] for values in scored))
    if not parts:
        return None
    images, texts, image_group, text_group, scores = (np.concatenate(each) for each in zip(*parts, strict=True))
    given = Embeddings(images), Embeddings(texts), image_group, text_group, scores
    return unseen_threshold(bank, model._pair_scores, *given, model.random_state_)


def roles_of(source: Source) -> set[str]:
    """Return the roles of the columns of a source that can be read from any row on, else none."""
    return set(source.columns) if reader_of(source).streams else set()


def _put_together(parts: Path, done: list[Finished], staged: Path) -> Counter[str]:
    total = Counter(pairs=0, flagged=0, quarantined=0)
    with ParquetSink(staged, SCORES_SCHEMA) as sink:
        for part in done:
            with pq.ParquetFile(parts / Partition(part.number, 0, 0).name, page_checksum_verification=True) as file:
                for batch in file.iter_batches():
                    moved = pa.array(np.asarray(batch.column(0)) + total["pairs"])
                    sink.write(pa.RecordBatch.from_arrays([moved, *batch.columns[1:]], schema=batch.schema))
            total.update(part.facts)
    return total
