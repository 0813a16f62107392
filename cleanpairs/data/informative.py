"""Pairs whose image or caption says nothing: no method can tell whether they match, and they fit with anything.

Practice of cleanvision (blank images) and data-juicer (captions that are empty of words, or repeated). A property that
most of a corpus has is what the corpus is like, and no reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from cleanpairs.data.pairs import Pairs

__all__ = ["PREFIX", "has_word", "uninformative"]

PREFIX = "uninformative: "
REPEATED, REPEATED_SHARE = 20, 0.01  # a caption of as many images, and of such a share of all, says nothing of one
MOST = 0.5  # of the images, or of the pairs: where more have it, it is no reason

_EMPTY = re.compile(
    r"(?:https?://|www\.)\S+"  # an address
    r"|(?<!\S)[#@]\S+"  # a hashtag, a name
    r"|(?<!\S)\S+\.(?:jpe?g|png|gif|webp|bmp|tiff?|svg|heic|mp4|mov|avi|webm|pdf)(?!\S)"  # a file
    r"|(?<!\S)(?:IMG|DSC|DSCN|DSCF|MVI|VID|PXL)[_-]?\d\S*(?!\S)",  # a camera's number
    re.IGNORECASE,
)
_LETTER = re.compile(r"[^\W\d_]")


def has_word(caption: str) -> bool:
    """Whether a letter is left of a caption without addresses, hashtags, names and file names."""
    return bool(_LETTER.search(_EMPTY.sub(" ", caption)))


def uninformative(pairs: Pairs, flat: Iterable[int] = ()) -> dict[int, str]:
    """Why pairs say nothing: pair_id -> a reason that begins with :data:`PREFIX`.

    Parameters
    ----------
    pairs : Pairs
    flat : iterable of int
        Rows of ``pairs.images`` that show one colour.
    """
    found: dict[int, str] = {}

    def note(rows: np.ndarray, why: str) -> None:
        if len(rows) <= MOST * len(pairs):
            for i in rows.tolist():
                found.setdefault(i, PREFIX + why)

    note(np.flatnonzero(np.isin(pairs.image_index, list(flat))), "the image shows one colour")
    if not pairs.has_captions:
        return found
    empty = np.array([not has_word(caption) for caption in pairs.captions], bool)
    note(np.flatnonzero(empty), "the caption has no word")
    both = np.unique(np.stack([pairs.text_group, pairs.pair_image_group]), axis=1)
    texts, images = np.unique(both[0], return_counts=True)
    many = texts[images >= max(REPEATED, REPEATED_SHARE * len(np.unique(pairs.pair_image_group)))]
    note(np.flatnonzero(np.isin(pairs.text_group, many) & ~empty), "the caption is that of many images")
    return found
