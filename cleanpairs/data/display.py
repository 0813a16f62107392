"""Corpus text made safe to look at: nothing invisible, nothing that turns its surroundings around, nothing endless."""


def visible(text: object, limit: int = 280) -> str:
    """``text`` on one line, at most ``limit`` characters, control, bidirectional and zero-width ones, lone surrogates
    and private or unassigned code points as ``⟨U+202E⟩``. Escaping for HTML is the template's.
    """
    raw = str(text)
    # The two joiners are parts of correct Persian and of many emoji: harmless.
    plain = (c.isprintable() or c.isspace() or c in "\u200c\u200d" for c in raw[:limit])
    shown = "".join(c if ok else f"⟨U+{ord(c):04X}⟩" for c, ok in zip(raw, plain, strict=False))
    return " ".join(shown.split()) + (" …" if len(raw) > limit else "")
