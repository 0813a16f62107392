"""Columns of text as bytes end to end, and what can be done to all of them at once where they are ASCII.

Most captions are ASCII, and for those a character is a byte: normalising and cutting into words are then a few passes
over one array, some nanoseconds a character. Other rows are the caller's, one by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

__all__ = [
    "Flat",
    "Tokens",
    "byte_table",
    "collapse_blanks",
    "flatten",
    "hashes",
    "in_chunks",
    "string_column",
    "tokens_of",
]

BLANK = 32
CHUNK = 65_536  # texts at once: what is made of their bytes on the way stays small
BREAK, LETTER, SYMBOL = 0, 1, 2  # classes of characters for :func:`tokens_of`


@dataclass(frozen=True)
class Flat:
    """n strings as UTF-8, end to end: string i is ``data[offsets[i]:offsets[i + 1]]``."""

    data: np.ndarray  # (total,) uint8
    offsets: np.ndarray  # (n + 1,) int64, from 0 to total

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Bytes of each string, (n,) int64."""
        return np.diff(self.offsets)

    def counts(self, mask: np.ndarray) -> np.ndarray:
        """In how many bytes of each string the ``mask`` (total,) bool is set: (n,) int64."""
        return np.diff(_before(mask)[self.offsets])

    def plain(self) -> np.ndarray:
        """(n,) bool: which strings are ASCII altogether."""
        high = self.data >= 128
        return self.counts(high) == 0 if high.any() else np.ones(len(self), bool)


@dataclass(frozen=True)
class Tokens:
    """Tokens of n strings: ``values`` (total,) pyarrow strings in order, ``counts`` (n,) int64 of each string."""

    values: pa.Array
    counts: np.ndarray


def _before(mask: np.ndarray) -> np.ndarray:
    """(total + 1,) int64: how many are set before each position."""
    out = np.zeros(len(mask) + 1, np.int64)
    np.cumsum(mask, out=out[1:])
    return out


def in_chunks(texts: Iterable[str] | pa.Array) -> Iterator[list[str] | pa.Array]:
    """Texts, some at a time, in order."""
    some = texts if isinstance(texts, (list, pa.Array)) else list(texts)
    for start in range(0, len(some), CHUNK):
        yield some[start : start + CHUNK]


def string_column(texts: list[str] | pa.Array) -> pa.Array | None:
    """The texts as a pyarrow array of strings, nulls empty; None where one is no Unicode text (a lone surrogate)."""
    if isinstance(texts, list):
        try:
            texts = pa.array(texts, pa.string())
        except UnicodeEncodeError:
            return None
    if pa.types.is_dictionary(texts.type):
        texts = texts.dictionary_decode()
    texts = texts if pa.types.is_string(texts.type) else texts.cast(pa.string())
    return texts.fill_null("") if texts.null_count else texts


def flatten(column: pa.Array) -> Flat:
    """The bytes of a pyarrow array of strings without nulls (n,); nothing is copied but the offsets."""
    _, ends, data = column.buffers()
    if not len(column) or ends is None:
        return Flat(np.empty(0, np.uint8), np.zeros(len(column) + 1, np.int64))
    offsets = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1].astype(np.int64)
    whole = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Flat(whole[offsets[0] : offsets[-1]], offsets - offsets[0])


def byte_table(of: Callable[[str], int]) -> np.ndarray:
    """(256,) uint8: ``of(character)`` for the 128 ASCII characters, 0 for other bytes."""
    return np.array([of(chr(c)) for c in range(128)] + [0] * 128, np.uint8)


def collapse_blanks(strings: Flat, table: np.ndarray) -> Flat:
    """ASCII strings with each byte put through ``table`` (256,), then stripped, and runs of blanks made one.

    What :meth:`str.translate` and ``" ".join(s.split(" "))`` without empty pieces would give.
    """
    data = table[strings.data]
    there = data != BLANK
    keep = there.copy()
    if len(data):
        keep[:-1] |= there[1:]  # the last blank before a word stands for its run
        starts, ends = strings.offsets[:-1], strings.offsets[1:]
        some = ends > starts
        last = ends[some] - 1
        keep[last] = there[last]  # what follows is another string's
        leading = some & ~there[np.minimum(starts, len(data) - 1)]
        if leading.any():
            words = np.flatnonzero(there)
            first = _before(there)[starts[leading]]  # the number of the first word byte from there on
            at = words[np.minimum(first, max(len(words) - 1, 0))] if len(words) else np.full(len(first), len(data))
            inside = (first < len(words)) & (at < ends[leading])
            keep[at[inside] - 1] = False
    return Flat(data[keep], _before(keep)[strings.offsets])


def tokens_of(strings: Flat, lower: np.ndarray, classes: np.ndarray, *, single: bool = False) -> Tokens:
    """ASCII strings cut into runs of letters and single symbols.

    Parameters
    ----------
    lower : (256,) uint8
        What each byte becomes.
    classes : (256,) uint8
        0 parts tokens and is in none, 1 is a letter, 2 a token of its own.
    single : bool
        Letters are tokens of their own, too.
    """
    kind = classes[strings.data]
    kept = kind != BREAK
    if single:
        start = kept
    else:
        letter = kind == LETTER
        follows = np.empty(len(letter), bool)
        follows[:1] = False
        follows[1:] = letter[:-1]
        heads = strings.offsets[:-1]
        follows[heads[heads < len(follows)]] = False
        start = kept & ~(letter & follows)
    ends = np.append(_before(kept)[:-1][start], np.count_nonzero(kept)).astype(np.int32)
    data = lower[strings.data[kept]]
    values = pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(ends), pa.py_buffer(data))
    return Tokens(values, strings.counts(start))


def hashes(strings: Flat) -> np.ndarray:
    """64 bits of BLAKE2b of each string's bytes, (n,) int64."""
    view, blake = memoryview(strings.data.tobytes()), hashlib.blake2b
    at = strings.offsets.tolist()
    found = [blake(view[a:b], digest_size=8).digest() for a, b in pairwise(at)]
    return np.frombuffer(b"".join(found), "<i8").astype(np.int64)
