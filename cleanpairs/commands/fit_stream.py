"""A fit on many vectors of one space: a sample of them tells how to score a pair, and all rows are scored in a stream.

Memory does not grow with the rows, but for a few numbers of each. A fit that was killed resumes from the scores that
are finished.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.commands.run import Run, write_scores
from cleanpairs.commands.score import ScoreWork, roles_of, score_stream
from cleanpairs.core import one_thread
from cleanpairs.correspondence.displacement import Displacement, find_displaced_rows
from cleanpairs.correspondence.similarity import NUMBERS, one_space_by_cosine
from cleanpairs.data import Pairs, Source, refuse_changed_input
from cleanpairs.data.readers import load_some, reader_of
from cleanpairs.engine import plan_partitions
from cleanpairs.estimators import PairScorer
from cleanpairs.estimators.frozen import GivenVectors
from cleanpairs.explain import ISSUES, lowest
from cleanpairs.ops.matching import unit_rows
from cleanpairs.ops.normalised_similarity import VectorPairs

# The table of the worst pairs, and the key of each quarantined row.
Streamed = tuple[pa.Table, dict[int, str]]


@dataclass(frozen=True)
class StreamedFit:
    """Rows of an input, and the ``pairs`` of some of these ``rows`` (k,), rising, on which the method is fitted.

    Some explain pairs, and are what displaced rows are compared with.
    """

    source: Source
    rows: np.ndarray
    pairs: Pairs
    sample: ClassVar[int] = NUMBERS.exact + NUMBERS.others
    issues: ClassVar = ISSUES[0], ISSUES[-1]  # the kinds that it looks for

    @classmethod
    def of(cls, estimator: PairScorer, source: Source, streamed_from: int) -> "StreamedFit | None":
        """Draw the sample. None if there are fewer rows, or lists of captions, or no sample tells enough."""
        n = source.n_rows
        if n < streamed_from or source.explicit_lists or not estimator._fits_sample(roles_of(source)):
            return None
        rows = np.sort(np.random.default_rng(0).choice(n, min(n, cls.sample), replace=False))
        pairs = load_some(source, rows)
        if not _in_one_space(pairs):
            return None
        estimator._is_sample = len(rows) < n
        return cls(source, rows, pairs)

    @property
    def _some(self) -> slice:
        """Some 8,192 of the sample."""
        return slice(None, None, max(1, len(self.rows) // NUMBERS.exact))

    @one_thread()
    def finish(self, run: Run, estimator: PairScorer, data: str, options: Mapping[str, Any]) -> Streamed:
        """Score all rows, take over what that tells of the noise rate, and look for displaced rows."""
        estimator._fingerprint, model, scores = self.source.fingerprint, run.path / "model", run.path / "scores.parquet"
        estimator.save_pretrained(model, overwrite=True)
        score_stream(model, data, scores, overwrite=True, columns=dict(options))
        refuse_changed_input(self.source)
        table = pq.read_table(scores, columns=["key", "correspondence", "reason"])
        bad = np.flatnonzero(table["reason"].is_valid())
        some = table.take(pa.array(bad))
        estimator._judge_all(table["correspondence"].to_numpy())
        estimator.quarantined_ = dict(zip(bad.tolist(), some["reason"].to_pylist(), strict=True))
        displaced = self._displaced(table["reason"].is_null().to_numpy())
        if displaced.blocks:
            read = reader_of(self.source).iter_range(self.source, 0, len(table), ScoreWork.batch_rows)
            sides = zip(*((batch.image_group[batch.row], batch.text_group) for batch in read), strict=True)
            image_group, text_group = map(np.concatenate, sides)
            estimator._set_displaced(np.arange(len(table)), image_group, text_group, displaced)
            columns = table["key"].to_pylist(), estimator.correspondence_, estimator.threshold_, estimator.quarantined_
            write_scores(scores, *columns, {}, estimator._moves_)
        estimator.save_pretrained(model, overwrite=True)
        keys = dict(zip(bad.tolist(), some["key"].to_pylist(), strict=True))
        return self._worst(estimator, table["key"]), keys

    def _displaced(self, usable: np.ndarray) -> Displacement:
        """Return what is displaced among n rows. ``usable`` (n,) rows are compared. Only vectors are read."""
        columns = {role: name for role, name in self.source.columns.items() if role in ("features", "text_features")}
        source, reader, n = replace(self.source, columns=columns), reader_of(self.source), self.source.n_rows
        # Arrays are mapped. Of Parquet a part also reads the rows before it in its row group.
        mapped, whole = any(path.endswith(".npy") for path in source.paths), ScoreWork.partition_rows
        parts = plan_partitions(reader.row_groups(source), n, target=whole // 4 if mapped else whole)

        @lru_cache(maxsize=4 if mapped else 2)  # so many parts are in memory
        def read(k: int) -> list[tuple[np.ndarray, ...]]:
            where = parts[k].first, parts[k].rows, ScoreWork.batch_rows
            batches = reader.iter_range(source, *where, hash_vectors=False)
            return [(batch.vectors[:, 0], batch.text_vectors) for batch in batches]

        lock = Lock()

        def part(k: int) -> list[tuple[np.ndarray, ...]]:
            with lock:  # another thread may read it
                return read(k)

        images, texts = GivenVectors().vectors(self.pairs)
        sample = self.rows[self._some], images[self.pairs.image_index[self._some]], texts[self._some]
        sides = (_Side(part, side, np.array([part.first for part in parts]), n) for side in (0, 1))
        return find_displaced_rows(*sides, usable=usable, sample=sample)

    def _worst(self, estimator: PairScorer, keys: pa.ChunkedArray, count: int = 200) -> pa.Table:
        """Return the worst pairs, explained by the sample, and the displaced rows."""
        y, blocks = estimator.correspondence_, estimator._blocks_
        ends = np.array([(block["pair_id"], block["last"]) for block in blocks], np.int64).reshape(-1, 2)
        rows = np.union1d(self.rows[self._some], np.concatenate([lowest(y, count, blocks), ends.ravel()]))
        pairs = replace(load_some(self.source, rows), keys=keys.take(pa.array(rows)).to_pylist())
        explainer = estimator.explainer(pairs, correspondence=y[rows], threshold=estimator.threshold_)
        at = np.searchsorted(rows, ends).tolist()
        explainer.displaced = [b | {"pair_id": at[0], "last": at[1]} for b, at in zip(blocks, at, strict=True)]
        issues = explainer.issues(count)
        listed = pa.array([issue in self.issues for issue in issues["issue"].to_pylist()], pa.bool_())
        issues = issues.filter(listed)
        place = issues.schema.get_field_index("pair_id")
        return issues.set_column(place, issues.schema.field(place), pa.array(rows[issues["pair_id"].to_numpy()]))


@dataclass(frozen=True)
class _Side:
    """Vectors of the images (``side`` 0) or the captions of n rows. Parts that begin at ``first`` give batches."""

    part: Callable[[int], list[tuple[np.ndarray, ...]]]
    side: int
    first: np.ndarray
    n: int

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        at, found = np.searchsorted(self.first, rows, side="right") - 1, list[np.ndarray]()
        for k in np.unique(at).tolist():
            here, batches = rows[at == k] - self.first[k], self.part(k)
            starts = np.cumsum([0, *(len(images) for images, _ in batches)])
            of = np.searchsorted(starts, here, side="right") - 1
            found += [batches[b][self.side][here[of == b] - starts[b]] for b in np.unique(of).tolist()]
        return unit_rows(np.concatenate(found))


def _in_one_space(pairs: Pairs) -> bool:
    """Whether the cosines of the pairs are above those of random ones."""
    given = GivenVectors()
    if not given.has_vectors(pairs):
        return False
    images, texts = given.vectors(pairs)
    return one_space_by_cosine(VectorPairs(images[pairs.image_index], texts, pairs.pair_image_group, pairs.text_group))
