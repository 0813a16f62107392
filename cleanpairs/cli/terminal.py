"""Text of strangers on a terminal: nothing that it would obey, and no more than there is room for."""

from __future__ import annotations

import sys
import unicodedata

__all__ = ["columns", "cut", "plural", "safe"]


def plural(count: int, noun: str) -> str:
    """``1 change``, ``2 changes``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def safe(text: str) -> str:
    """One line without anything that a terminal would obey, cannot write, or would turn around; blanks as blanks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    line = "".join(
        c if c.isprintable() else " " if unicodedata.category(c) == "Zs" else c.encode("unicode_escape").decode()
        for c in text
    )
    return line.encode(encoding, "backslashreplace").decode(encoding)


def columns(char: str) -> int:
    """Columns that a terminal gives a character."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, end: str, width: int) -> str:
    """``text`` and ``end`` in at most ``width`` columns: of the text as much as there is room for, of the end all."""
    room = max(width - sum(map(columns, end)), 12)
    if sum(map(columns, text)) <= room:
        return text + end
    used, kept = 3, 0
    for char in text:
        used += columns(char)
        if used > room:
            break
        kept += 1
    return text[:kept] + "..." + end
