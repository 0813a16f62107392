"""A fit on many vectors of one space: a sample of them tells how to score a pair, and all rows are scored in a stream.

Memory does not grow with the rows, but for one number of each. A fit that was killed goes on from the scores that are
finished.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cleanpairs.commands.run import Run
from cleanpairs.commands.score import roles_of, score_stream
from cleanpairs.correspondence.similarity import null_pairs, one_space
from cleanpairs.data import Pairs, Source
from cleanpairs.data.readers import load_some
from cleanpairs.estimators import PairScorer
from cleanpairs.explain import ISSUES
from cleanpairs.export.writing import refuse_changed_input
from cleanpairs.features.rows import Progress
from cleanpairs.ops.matching import unit_rows
from cleanpairs.ops.normalised_similarity import VectorPairs


@dataclass(frozen=True)
class StreamedFit:
    """Rows of an input, and the ``pairs`` of some of these ``rows`` (k,), rising, on which the method is fitted."""

    source: Source
    rows: np.ndarray
    pairs: Pairs
    sample: ClassVar[int] = 8192

    @classmethod
    def of(cls, estimator: PairScorer, source: Source, streamed_from: int) -> "StreamedFit | None":
        """None where the input has fewer rows or lists of captions, or is not scored by a sample."""
        n = source.n_rows
        if n < streamed_from or source.explicit_lists or not estimator._fits_sample(roles_of(source)):
            return None
        rows = np.sort(np.random.default_rng(0).choice(n, min(n, cls.sample), replace=False))
        pairs = load_some(source, rows)
        if not _in_one_space(pairs):
            return None
        estimator._sample_of = n
        return cls(source, rows, pairs)

    def finish(
        self, run: Run, estimator: PairScorer, data: str, options: Mapping[str, Any], progress: Progress
    ) -> tuple[pa.Table, dict[int, str]]:
        """Score all rows, and take over what that tells of the noise rate.

        Returns the table of the worst pairs, and the key of each quarantined row.
        """
        estimator._fingerprint, model, scores = self.source.fingerprint, run.path / "model", run.path / "scores.parquet"
        estimator.save_pretrained(model, overwrite=True)
        score_stream(model, data, scores, overwrite=True, columns=dict(options), progress=progress)
        refuse_changed_input(self.source)
        table = pq.read_table(scores, columns=["key", "correspondence", "reason"])
        bad = np.flatnonzero(table["reason"].is_valid())
        some = table.take(pa.array(bad))
        estimator._judge_all(table["correspondence"].to_numpy())
        estimator.quarantined_ = dict(zip(bad.tolist(), some["reason"].to_pylist(), strict=True))
        estimator.save_pretrained(model, overwrite=True)
        return self._worst(estimator, table["key"]), dict(zip(bad.tolist(), some["key"].to_pylist(), strict=True))

    def _worst(self, estimator: PairScorer, keys: pa.ChunkedArray, count: int = 200) -> pa.Table:
        """Of the worst pairs, explained by the sample."""
        y = estimator.correspondence_
        known = np.flatnonzero(np.isfinite(y))
        rows = np.union1d(self.rows, known[np.argsort(y[known], kind="stable")[:count]])
        pairs = replace(load_some(self.source, rows), keys=keys.take(pa.array(rows)).to_pylist())
        explainer = estimator.explainer(pairs, correspondence=y[rows], threshold=estimator.threshold_)
        found = explainer.issues(count)
        found = found.filter(pa.array([issue == ISSUES[0] for issue in found["issue"].to_pylist()], pa.bool_()))
        place = found.schema.get_field_index("pair_id")
        return found.set_column(place, found.schema.field(place), pa.array(rows[found["pair_id"].to_numpy()]))


def _in_one_space(pairs: Pairs) -> bool:
    """Whether the cosines of the pairs are above those of random ones."""
    array, texts = pairs.images.array(), pairs.text_vectors
    if array is None or texts is None or array.shape[1:] != (1, texts.shape[1]):
        return False
    groups = pairs.pair_image_group, pairs.text_group
    known = VectorPairs(unit_rows(array[pairs.image_index, 0]), unit_rows(texts), *groups)
    return one_space(*known.scores_and_null(known, np.stack(null_pairs(*groups, each=1)), kind=None))
