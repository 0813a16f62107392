"""Scoring without holding the input: precomputed vectors stream through the model, chunk by chunk.

Encoded images go through the frozen encoder into its cache first (see :mod:`cleanpairs.features`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.data import ParquetSink, load_pairs, open_source, staged_file
from cleanpairs.data.parquet import ParquetReader
from cleanpairs.data.text import text_groups
from cleanpairs.encoders.base import input_dim
from cleanpairs.errors import DataError
from cleanpairs.estimators import PairCleaner
from cleanpairs.run import SCORES_SCHEMA, scores_table
from cleanpairs.scoring import embed_images, embed_texts

__all__ = ["ScoreResult", "score_stream"]

ROWS = 4096


@dataclass(frozen=True)
class ScoreResult:
    """Counts of a scored input; ``flagged`` are those below ``threshold``."""

    pairs: int
    flagged: int
    quarantined: int
    threshold: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def score_stream(
    model: PairCleaner,
    data: str | Path,
    out: str | Path,
    *,
    overwrite: bool = False,
    columns: dict[str, Any] | None = None,
) -> ScoreResult:
    """Score all pairs of ``data`` and write the scores table ``out``, in memory that does not grow with the input.

    Parameters
    ----------
    model : fitted PairCleaner
    data : path
        Anything that :func:`cleanpairs.load_pairs` reads; ``columns`` are its options.

    Raises
    ------
    DataError
        The data cannot be read, or its vectors have another size than the model's.
    OutputExistsError
        ``out`` exists and ``overwrite`` is not given.
    """
    source = open_source(data, **(columns or {}))
    n = flagged = quarantined = 0
    with (
        staged_file(out, overwrite=overwrite, inputs=source.paths) as staged,
        ParquetSink(staged, SCORES_SCHEMA) as sink,
    ):
        for keys, scores, reasons in _chunks(model, source, data, columns or {}):
            table = scores_table(keys, scores, model.threshold_, reasons, first=n)
            sink.write(table)
            n += len(keys)
            flagged += int((scores < model.threshold_).sum())
            quarantined += len(reasons)
    return ScoreResult(n, flagged, quarantined, float(model.threshold_))


def _chunks(model: PairCleaner, source: Any, data: str | Path, columns: dict[str, Any]) -> Any:
    """(Keys, scores with NaN where quarantined, reasons by pair_id) of consecutive pairs."""
    streams = source.kind == "parquet" and "features" in source.columns and model.image_encoder_ == "features"
    if not streams or model.text_encoder == "features":
        pairs = load_pairs(data, **columns)
        pairs, images, texts, reasons = model._embed(pairs)
        scores = model._bank_scores(pairs, images, texts)
        scores[list(reasons)] = np.nan
        yield pairs.keys, scores, reasons
        return
    device, dim = model._device(), input_dim(model.model_)
    first = 0
    for batch in ParquetReader().iter_rows(source, ROWS):
        assert batch.vectors is not None
        if batch.vectors.shape[-1] != dim:
            raise DataError(f"the model takes image vectors of {dim} dimensions, {data} has {batch.vectors.shape[-1]}")
        rows = np.asarray(batch.row)
        images = embed_images(model.model_, batch.vectors, device=device).take(rows)
        texts = embed_texts(model.model_, model.tokenizer_.encode(batch.captions), device=device)
        scores = model.bank_(images, texts, batch.image_group[rows], text_groups(batch.captions))
        scores[list(batch.faults)] = np.nan
        yield batch.keys, scores, {first + i: why for i, why in batch.faults.items()}
        first += len(batch.captions)
