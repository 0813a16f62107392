"""The training, validation and test pairs of a benchmark, and their images as features, once for all cells."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.core.errors import DataError
from cleanpairs.data import Pairs, load_pairs
from cleanpairs.data.images import vector_images
from cleanpairs.features import image_matrix, resolve_image_encoder

_SPLIT_NAMES = {"val": ("dev", "val"), "test": ("test",)}


@dataclass(frozen=True)
class Splits:
    """Clean pairs; ``digest`` says which, ``notes`` where splits were found that nobody named."""

    train: Pairs
    val: Pairs | None
    test: Pairs | None
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """12 hex digits of each split's fingerprint."""
        splits = (self.train, self.val, self.test)
        return "-".join(s.source.fingerprint[:12] if s is not None else "none" for s in splits)

    def with_features(self, encoder: str, size: int | None) -> "Splits":
        """Vectors in place of the images of all splits, from the feature cache; pixels and vectors stay as they are.

        Mismatched pairs exist in memory only, and their images would be encoded anew in each cell.
        """
        if self.train.images.kind == "features" or resolve_image_encoder(encoder, "bytes") == "cnn":
            return self
        train, val, test = (
            None if s is None else with_features(s, encoder, size) for s in (self.train, self.val, self.test)
        )
        assert train is not None
        return replace(self, train=train, val=val, test=test)


def load_splits(
    data: str | Path,
    *,
    val: str | Path | None = None,
    test: str | Path | None = None,
    limit: int | None = None,
    **columns: Any,
) -> Splits:
    """Clean training pairs, and the splits that belong to them; ``columns``: see :func:`cleanpairs.load_pairs`.

    ``val``, ``test``: in place of what is found: ``dev`` (``val``) and ``test`` of a directory in the research layout,
    ``NAME_val.parquet`` and ``NAME_test.parquet`` beside ``NAME_train.parquet``. ``limit``: of the training rows.
    Raises DataError: data that cannot be read, or that is mismatched already.
    """
    split = columns.pop("split", None)
    train = load_pairs(data, split=split, limit=limit, **columns)
    if train.true_mismatch is not None and train.true_mismatch.any():
        raise DataError(
            f"{data} holds mismatched pairs, by its column 'true_mismatch'; a benchmark starts from clean data"
        )
    columns.pop("key_column", None)
    found = [_split(role, given, Path(data), columns) for role, given in (("val", val), ("test", test))]
    return Splits(train, found[0][0], found[1][0], tuple(note for _, note in found if note))


def _split(role: str, given: str | Path | None, data: Path, columns: dict[str, Any]) -> tuple[Pairs | None, str | None]:
    folder = Path(given) if given is not None else data
    for name in _SPLIT_NAMES[role]:
        if (folder / f"{name}_caps.txt").exists():
            return load_pairs(folder, split=name, **columns), None if given else f"{role}: split {name} of {folder}"
    if given is not None:
        return load_pairs(given, **columns), None
    if data.name.endswith("_train.parquet"):
        sibling = data.with_name(f"{data.name.removesuffix('_train.parquet')}_{role}.parquet")
        if sibling.exists():
            return load_pairs(sibling, **columns), f"{role}: {sibling}, found beside the data"
    return None, None


def with_features(pairs: Pairs, encoder: str, size: int | None) -> Pairs:
    """The pairs with vectors in place of their images; what cannot be encoded is quarantined."""
    matrix = image_matrix(pairs, encoder, image_size=size)
    reasons = dict(pairs.reasons)
    for image, reason in matrix.failures.items():
        for pair in np.flatnonzero(pairs.image_index == image).tolist():
            reasons.setdefault(pair, reason)
    return replace(pairs, images=vector_images(matrix.array), reasons=reasons)
