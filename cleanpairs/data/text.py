"""Captions as data: their normal form, their hash, what is no caption."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from cleanpairs.core.errors import DataError
from cleanpairs.core.limits import limit
from cleanpairs.core.regular import open_regular, read_text, reading

_SEPARATORS = re.compile(  # after NFKC, which makes full-width forms and the ellipsis plain
    "[.,;:!?'\"()\\[\\]{}\\-_`\u00a1\u00ab\u00b7\u00bb\u00bf\u058a\u060c\u061b\u061f\u0964\u0965"
    "\u2010-\u201f\u2039\u203a\u3001\u3002\u3008-\u3011\u3014-\u301f\u30fb]+"
)
_NUMBERS = re.compile(r"[\d,\s]*")
NOT_UTF8 = "the caption is not UTF-8"
NOT_FINITE_TEXT = "its text vector is not finite"


def normalise_text(text: str) -> str:
    """NFKC, casefolded, without punctuation, white space collapsed: captions of one normal form are the same text.

    Punctuation is what separates or encloses words (stops, commas, quotes, brackets, dashes) and not what is read as
    one (%, &, #, @, *); a caption of nothing else keeps it.
    """
    plain = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_SEPARATORS.sub(" ", plain).split()) or " ".join(plain.split())


def content_hash(data: bytes | memoryview) -> int:
    """64 bits of BLAKE2b as a signed integer; equal contents have equal numbers in every corpus."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def text_groups(captions: Iterable[str] | pa.Array) -> np.ndarray:
    """Content hash (N,) int64 of each caption's normal form; a null is an empty caption."""
    texts = (c or "" for c in captions.to_pylist()) if isinstance(captions, pa.Array) else captions
    return np.array([content_hash(normalise_text(c).encode("utf-8", "surrogatepass")) for c in texts], np.int64)


def caption_fault(caption: str | None) -> str | None:
    """Why a caption is unusable, or None."""
    if caption is None:
        return "there is no caption"
    if not caption.strip():
        return "the caption is empty"
    if "\0" in caption:
        return "the caption holds a NUL character"
    most = limit("caption_bytes")
    if len(caption) > most // 4 and len(caption.encode("utf-8", "surrogatepass")) > most:
        return f"the caption is longer than {most} bytes"
    return None


@lru_cache(maxsize=64)
def likely_encoding(path: str) -> str:
    """What a file that is not UTF-8 is likely to be, and how to have it read; by its first 64 kB."""
    from charset_normalizer import from_bytes

    with open_regular(path) as file:
        found = from_bytes(file.read(65_536)).best()
    return "of any encoding" if found is None else f"{found.encoding} (--encoding {found.encoding})"


def concerns_caption(reason: str) -> bool:
    """Whether a reason speaks of the caption or its vector: :func:`caption_fault`, :data:`NOT_UTF8`, a reader's."""
    return reason.startswith(("the caption ", "there is no caption", "its text vector ", "there is no text vector"))


def lines_of(path: str) -> list[str]:
    """The captions of a text file, one a line; of token numbers (not in ``*_caps.txt``) commas become spaces."""
    try:
        with reading(path):
            text = read_text(path)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 (byte {error.start}); save it so") from error
    lines = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    if Path(path).name.endswith("_caps.txt") or not all(map(_NUMBERS.fullmatch, lines)):
        return lines
    return [" ".join(line.replace(",", " ").split()) for line in lines]
