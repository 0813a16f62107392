"""Keys and captions as one line of a form: nothing invisible, nothing that turns its surroundings around."""

from __future__ import annotations

import unicodedata

__all__ = ["one_line"]

JOINERS = {"\u200c", "\u200d"}  # part of correct Persian and of many emoji


def one_line(text: object, limit: int) -> str:
    """``text`` without line breaks, at most ``limit`` characters of it, hidden characters as ``⟨U+202E⟩``.

    Hidden are control characters, bidirectional overrides, zero-width characters and lone surrogates.
    """
    raw = str(text)
    shown = " ".join("".join(_shown(c) for c in raw[:limit]).split())
    return shown + (" …" if len(raw) > limit else "")


def _shown(c: str) -> str:
    if c.isspace():
        return " "
    hidden = unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn"} and c not in JOINERS
    return f"⟨U+{ord(c):04X}⟩" if hidden else c
