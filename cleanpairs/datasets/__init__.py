"""The corpus that ships with the package: clip art with captions, in the public domain."""

from pathlib import Path

from cleanpairs.core import ConfigError
from cleanpairs.data import Pairs, load_pairs

__all__ = ["CLIPART_SPLITS", "clipart_path", "load_clipart"]

CLIPART_SPLITS = ("train", "val", "test")


def clipart_path(split: str = "train") -> Path:
    """Return the Parquet file of one split of the clip art.

    Parameters
    ----------
    split : {"train", "val", "test"}
        About 1,900, 200 and 500 pairs.

    Returns
    -------
    pathlib.Path
        Columns: ``key`` (string), ``image`` (struct<bytes, path>: a 96x96 JPEG), ``caption`` (string),
        ``image_features`` (9 x 256 float16: a 3x3 grid of EfficientNet-Lite0 regions, 256 principal components).

    Raises
    ------
    ConfigError
        There is no such split.
    """
    if split not in CLIPART_SPLITS:
        raise ConfigError(f"clip art: split must be one of {', '.join(map(repr, CLIPART_SPLITS))}, got {split!r}")
    return Path(__file__).parent / "clipart" / f"clipart_{split}.parquet"


def load_clipart(split: str = "train") -> Pairs:
    """The clip art as pairs: one image, one caption each. Captions are all different.

    Parameters
    ----------
    split : {"train", "val", "test"}
        About 1,900, 200 and 500 pairs.

    Returns
    -------
    Pairs
        The pairs.

    Raises
    ------
    ConfigError
        There is no such split.

    Notes
    -----
    Source and licence (public domain): ``cleanpairs/datasets/clipart/NOTICE.md``.

    Examples
    --------
    >>> from cleanpairs.datasets import load_clipart
    >>> pairs = load_clipart("val")
    >>> len(pairs)
    200
    """
    return load_pairs(clipart_path(split))
