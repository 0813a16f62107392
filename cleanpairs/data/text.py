"""Captions as data: their normal form, their hash, what is no caption."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable

import numpy as np

__all__ = [
    "MAX_CAPTION_BYTES",
    "NOT_UTF8",
    "caption_fault",
    "concerns_caption",
    "content_hash",
    "normalise_text",
    "text_groups",
]

MAX_CAPTION_BYTES = 65_536
NOT_UTF8 = "the caption is not UTF-8"


def normalise_text(text: str) -> str:
    """NFKC, casefolded, white space collapsed: two captions with one normal form are the same text."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def content_hash(data: bytes | memoryview) -> int:
    """64 bits of BLAKE2b as a signed integer; equal contents have equal numbers in every corpus."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def text_groups(captions: Iterable[str]) -> np.ndarray:
    """Content hash (N,) int64 of each caption's normal form."""
    return np.fromiter((content_hash(normalise_text(c).encode("utf-8", "surrogatepass")) for c in captions), np.int64)


def caption_fault(caption: str | None) -> str | None:
    """Why a caption is unusable, or None."""
    if caption is None:
        return "there is no caption"
    if not caption.strip():
        return "the caption is empty"
    if "\0" in caption:
        return "the caption holds a NUL character"
    if len(caption) > MAX_CAPTION_BYTES // 4 and len(caption.encode("utf-8", "surrogatepass")) > MAX_CAPTION_BYTES:
        return f"the caption is longer than {MAX_CAPTION_BYTES} bytes"
    return None


def concerns_caption(reason: str) -> bool:
    """Whether a reason speaks of the caption: one of :func:`caption_fault`, or :data:`NOT_UTF8`."""
    return reason.startswith(("the caption ", "there is no caption"))
