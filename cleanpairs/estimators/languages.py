"""Whether a frozen sentence encoder knows the language of some captions, by how its tokenizer cuts their words.

A tokenizer keeps the words of the language that it was made for whole, and cuts others into pieces or gives them up as
unknown. Of captions and titles in English all-MiniLM-L6-v2 makes 1.04 to 1.33 pieces a word, of part numbers 1.6, of
French 1.9, German 2.8, Russian 5.4; of Japanese a third of the pieces is unknown, of Chinese 72 % (docs/encoders.md).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cleanpairs.encoders.tokenizer import UNKNOWN, Tokenizer
from cleanpairs.encoders.words import words

if TYPE_CHECKING:
    from cleanpairs.encoders.sentences import SentenceEncoder

SAMPLE = 2000  # captions that are looked at, at even distances
MOST_NEW = 0.5  # share of the words; of more a model says nothing
MOST_PIECES, MOST_UNKNOWN = 1.5, 0.05  # pieces a word; share of the pieces


def unknown_share(tokenizer: Any, captions: Sequence[str]) -> float | None:
    """Share of the words of captions that a model has not learned, by some of them; None where it has no vocabulary."""
    vocabulary = getattr(tokenizer, "words", tokenizer)
    if not isinstance(vocabulary, Tokenizer) or not captions:
        return None
    return float((vocabulary.encode(_some(captions)).ids == UNKNOWN).mean())


def knows(encoder: "SentenceEncoder", captions: Sequence[str]) -> tuple[bool, str]:
    """Whether the vectors of ``encoder`` say what these captions say; and the figures, in words."""
    chosen = [words(text) for text in _some(captions)]
    marks = len(encoder.tokens([""])[0])
    unknown = set(encoder.tokens(["[UNK]"])[0]) - set(encoder.tokens([""])[0])
    rows = encoder.tokens([" ".join(text) for text in chosen if text])
    pieces = sum(len(row) - marks for row in rows) / max(1, sum(map(len, chosen)))
    share = sum(token in unknown for row in rows for token in row) / max(1, sum(len(row) - marks for row in rows))
    said = f"{encoder.name} makes {pieces:.2f} pieces of a word, {share:.0%} of them unknown"
    return bool(rows) and pieces <= MOST_PIECES and share <= MOST_UNKNOWN, said


def _some(captions: Sequence[str]) -> Sequence[str]:
    return captions[:: max(1, len(captions) // SAMPLE)]
