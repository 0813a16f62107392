"""Scores inside a Ray Data pipeline: a batch of rows goes in, the same rows with three more columns come out.

An example is in docs/scale.md. The columns are those of ``cleanpairs score``, and so are their values, with the same
threshold: see :mod:`cleanpairs.estimators.batches` on when to the last bit. Nothing here imports Ray.
"""

from pathlib import Path
from typing import Any

import pyarrow as pa

from cleanpairs.commands.run import SCORES_SCHEMA, scores_table
from cleanpairs.core import ConfigError, DataError
from cleanpairs.data.columns import find_columns
from cleanpairs.data.rows import Rows, convert, row_numbers, vector_shape
from cleanpairs.estimators.persistence import load_estimator
from cleanpairs.ops.columns import is_list, one_array, plain_batch, plain_schema


class ScorePairs:
    """A model that scores batches of rows. ``Dataset.map_batches`` makes one for each worker, and then calls it.

    Parameters
    ----------
    run : str or Path
        A run directory, or that of a saved model. Every machine must see it.
    image_column, text_column : str, optional
        Columns of the image vectors and of the captions. The default are columns with usual names.
    threshold : float in [0, 1], optional
        A pair below it is mismatched. The default is the threshold of the fit. A batch has none of its own: give that
        of :meth:`~cleanpairs.estimators.PairScorer.own_threshold`, or what `cleanpairs score` says of the same data.
    threads : int
        Threads of PyTorch and Arrow in this process. With as many, scores are the same to the last bit.

    Raises
    ------
    DataError
        There is no model in ``run``, or it is damaged.
    ConfigError
        The model scores no vectors.
    """

    def __init__(
        self, run: str | Path, *, image_column: str | None = None, text_column: str | None = None,
        threshold: float | None = None, threads: int = 1,
    ) -> None:  # fmt: skip
        import torch

        torch.set_num_threads(threads)
        pa.set_cpu_count(threads)
        folder = Path(run) / "model"
        self.model = load_estimator(folder if folder.exists() else Path(run))
        self.threshold = float(self.model.threshold_ if threshold is None else threshold)
        self.given = {"image_column": image_column, "text_column": text_column}
        if self.model._row_scorer({"text", "features", "text_features"}) is None:
            raise ConfigError(f"the model in {run} scores no batches of vectors: use `cleanpairs score`")

    def __call__(self, batch: Any) -> Any:
        """Score a batch.

        Parameters
        ----------
        batch : pyarrow.Table
            Rows with image vectors and captions, or caption vectors.

        Returns
        -------
        pyarrow.Table
            The same with the columns ``correspondence`` (float32), ``is_mismatch`` (bool) and ``reason`` (string). The
            reason says why a row cannot be scored, and the other two are null then. Else it is null.

        Raises
        ------
        DataError
            Columns are missing, of the wrong kind, hold lists of captions, or have the name of a new one.
        """
        if not isinstance(batch, pa.Table):
            raise DataError(f'a batch must be a pyarrow Table (batch_format="pyarrow"), found {type(batch).__name__}')
        added = SCORES_SCHEMA.names[2:]
        if taken := [name for name in added if name in batch.column_names]:
            raise DataError(f"the batch has a column {taken[0]!r} already, and a score would replace it: rename it")
        schema = plain_schema(batch.schema)  # without Ray's type of tensors, whose values lie in lists
        found = find_columns(schema, self.given, "the batch")
        columns: dict[str, str] = {role: found[role] for role in ("text", "features", "text_features") if role in found}
        scorer = self.model._row_scorer(columns.keys())
        if scorer is None or ("text" in columns and is_list(schema.field(columns["text"]).type)):
            names = ", ".join(map(str, schema))
            raise DataError(f"the batch needs one caption a row, image_features, perhaps text_features; it has {names}")
        whole = plain_batch(pa.RecordBatch.from_pydict({name: one_array(batch[name]) for name in columns.values()}))
        shapes = {role: vector_shape(whole[name]) for role, name in columns.items() if role != "text"}
        how: dict[str, Any] = {"image_root": None, "first_row": 0, "hash_vectors": scorer.hashes}
        scored = [SCORES_SCHEMA.empty_table()]
        at_once = 4096
        for start in range(0, len(whole), at_once):
            part = whole.slice(start, at_once)
            rows = convert(Rows("the batch", part), columns, shapes, names=row_numbers(start, len(part)), **how)
            scores = scorer(rows, "the batch")
            scored.append(scores_table(rows.keys, scores, self.threshold, rows.faults))
        table = pa.concat_tables(scored)
        for name in added:
            batch = batch.append_column(SCORES_SCHEMA.field(name), table[name])
        return batch
