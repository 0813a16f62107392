"""The corpus that ships with the package: clip art with captions, in the public domain."""

from pathlib import Path
from typing import TYPE_CHECKING

from cleanpairs.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from cleanpairs.data import Pairs

__all__ = ["CLIPART_SPLITS", "clipart_path", "load_clipart"]

CLIPART_SPLITS = ("train", "val", "test")


def clipart_path(split: str = "train") -> Path:
    """The Parquet file of one split of the clip art.

    - ``split`` {"train", "val", "test"}: about 1,900, 200 and 500 pairs

    Returns pathlib.Path: columns: ``key`` (string), ``image`` (struct<bytes, path>: a 96x96 JPEG), ``caption``
    (string), ``image_features`` (9 x 256 float16: a 3x3 grid of EfficientNet-Lite0 regions, 256 principal components).
    Raises ConfigError: if there is no such split; DataError: if the file is not in the installation.
    """
    if split not in CLIPART_SPLITS:
        raise ConfigError(f"clip art: split must be one of {', '.join(map(repr, CLIPART_SPLITS))}, got {split!r}")
    path = Path(__file__).parent / "clipart" / f"clipart_{split}.parquet"
    if not path.is_file():
        raise DataError(f"clip art: {path} is not in this installation of cleanpairs; install it again")
    return path


def load_clipart(split: str = "train") -> "Pairs":
    """The clip art as pairs: one image, one caption each.

    Pictures of equal title lie within one split, captions are all different, and nearly equal pictures were left out.
    Source and licence (public domain) are in ``cleanpairs/datasets/clipart/NOTICE.md``.

    ``split``, and what is raised: as of :func:`clipart_path`.

    >>> from cleanpairs.datasets import load_clipart
    >>> pairs = load_clipart("val")
    >>> len(pairs)
    200
    """
    from cleanpairs.data import load_pairs  # not before it is needed: it brings pyarrow

    return load_pairs(clipart_path(split))
