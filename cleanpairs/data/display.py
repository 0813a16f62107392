"""Corpus text made safe to look at: nothing invisible, nothing that turns its surroundings around, nothing endless."""

import unicodedata


def visible(text: object, limit: int = 280) -> str:
    """``text`` on one line, at most ``limit`` characters, control, bidirectional and zero-width ones, lone surrogates
    and private or unassigned code points as ``⟨U+202E⟩``. Escaping for HTML is the template's.
    """
    raw = str(text)
    shown = "".join(map(_shown, raw[:limit]))
    return " ".join(shown.split()) + (" …" if len(raw) > limit else "")


def _shown(c: str) -> str:
    if c.isspace():
        return " "
    joins = c in "\u200c\u200d"  # parts of correct Persian and of many emoji: harmless
    hidden = unicodedata.category(c) in {"Cc", "Cf", "Cs", "Co", "Cn"} and not joins
    return f"⟨U+{ord(c):04X}⟩" if hidden else c
