"""Captions as data: their normal form, their hash, their faults, and how they are printed."""

import hashlib
import re
import unicodedata
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from cleanpairs.core import limit

_SEPARATORS = re.compile(  # after NFKC, which makes full-width forms and the ellipsis plain
    "[.,;:!?'\"()\\[\\]{}\\-_`\u00a1\u00ab\u00b7\u00bb\u00bf\u058a\u060c\u061b\u061f\u0964\u0965"
    "\u2010-\u201f\u2039\u203a\u3001\u3002\u3008-\u3011\u3014-\u301f\u30fb]+"
)
NOT_UTF8 = "the caption is not UTF-8"
NOT_FINITE = "is not finite"  # the end of a reason of a vector
NO_DOWNLOAD = "the download failed"
NO_CAPTION_FILE = "there is no caption file"


def normalise_text(text: str) -> str:
    """NFKC, casefolded, without punctuation around words, white space collapsed. Equal forms are the same text."""
    plain = unicodedata.normalize("NFKC", text[:65_536]).casefold() + text[65_536:]  # it takes the square of the marks
    return " ".join(_SEPARATORS.sub(" ", plain).split()) or " ".join(plain.split())


def content_hash(data: bytes | memoryview) -> int:
    """64 bits of BLAKE2b as a signed integer. Equal contents have equal numbers in every corpus."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def text_groups(captions: Iterable[str] | pa.Array) -> np.ndarray:
    """Content hash (N,) int64 of each caption's normal form. A null is an empty caption."""
    texts = (c or "" for c in captions.to_pylist()) if isinstance(captions, pa.Array) else captions
    return np.array([content_hash(normalise_text(c).encode("utf-8", "surrogatepass")) for c in texts], np.int64)


def unusable_captions(captions: Iterable[str | None]) -> dict[int, str]:
    """Number of each unusable caption -> why it is unusable."""
    most = limit("caption_bytes")
    return {i: fault for i, caption in enumerate(captions) if (fault := _fault(caption, most))}


def _fault(caption: str | None, most: int) -> str | None:
    if caption is None:
        return "there is no caption"
    if not (word := caption.strip()):
        return "the caption is empty"
    # as pandas, Excel and JavaScript write it
    if len(word) < 10 and word.casefold() in {"nan", "none", "null", "n/a", "na", "<na>", "#n/a", "undefined"}:
        return f"the caption is {word!r}, which stands for none"
    if "\0" in caption:
        return "the caption holds a NUL character"
    if len(caption) > most // 4 and len(caption.encode("utf-8", "surrogatepass")) > most:
        return f"the caption is longer than {most} bytes"
    return None


def text_of(raw: bytes, encoding: str | None = None) -> str:
    """The text of a file: UTF-8, or UTF-16 where its mark says so. Raises UnicodeDecodeError."""
    marked = raw.startswith((b"\xff\xfe", b"\xfe\xff"))
    return raw.decode(encoding or ("utf-16" if marked else "utf-8-sig"))


def concerns_caption(reason: str) -> bool:
    """Whether a reason speaks of the caption or its vector."""
    return reason.startswith(("the caption ", "there is no caption", "its text vector ", "there is no text vector"))


def visible(text: object, most: int = 280) -> str:
    """``text`` on one line, of at most ``most`` characters. Those that cannot be seen, or that turn a text around, are
    written as ``⟨U+202E⟩``. Templates escape HTML.
    """
    raw = str(text)
    # The two joiners are parts of correct Persian and of many emoji: harmless.
    plain = (c.isprintable() or c.isspace() or c in "\u200c\u200d" for c in raw[:most])
    escaped = "".join(c if ok else f"⟨U+{ord(c):04X}⟩" for c, ok in zip(raw, plain, strict=False))
    return " ".join(escaped.split()) + (" …" if len(raw) > most else "")
