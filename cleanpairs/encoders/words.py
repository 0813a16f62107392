"""Where a caption's tokens begin and end.

Text is NFKC-normalised and casefolded first. What a token is then depends on the kind of the tokenizer:

- ``words``: a run of letters and digits with their marks, or one character of a script that puts no spaces between
  words (Han, Kana, Thai, Lao, Khmer, Myanmar);
- ``characters``: one letter or digit with its marks, in every script;
- ``subword``: pieces of words that are frequent in the corpus (:class:`cleanpairs.encoders.tokenizer.Tokenizer`).

Symbols are tokens, an emoji with its modifiers one; punctuation, quotes and invisible characters are none. No token
reaches over white space.
"""

import re
import unicodedata

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30fa\u30fc-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003134f"
)
# What a character of an unspaced script is written with: vowel signs, tone marks, viramas (Thai, Lao, Myanmar, Khmer).
_UNSPACED_MARKS = (
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u102b-\u103e\u1056-\u1059\u105e-\u1060"
    "\u1062-\u1064\u1067-\u106d\u1071-\u1074\u1082-\u108d\u108f\u109a-\u109d\u17b4-\u17d3\u17dd\u3099\u309a"
)
# Marks are no letters to Python's \w, but they belong to the word: accents that do not compose, Cyrillic, Hebrew and
# Arabic points, and all that the scripts of India write with (vowel signs, viramas) but the dandas, its full stops.
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u0900-\u0963\u0966-\u0dff\u200c\u200d"
)
# Punctuation: ASCII's (but # % & * @ and other symbols), Latin, Hebrew, Arabic, Indic, Thai, Myanmar, Khmer, general,
# CJK. And what cannot be seen: zero-width blanks, which parts words in Thai and Khmer, and marks of direction.
_PUNCTUATION = (
    r".,;:!?'\"()\[\]{}\-"
    "\u00a1\u00ab\u00ad\u00b7\u00bb\u00bf\u05be\u05c0\u05c3\u05c6\u060c\u061b-\u061f\u066a-\u066d\u06d4\u0964\u0965"
    "\u0e2f\u0e4f\u0e5a\u0e5b\u104a-\u104f\u17d4-\u17da\u2010-\u2027\u2030-\u205e\u3001-\u3003\u3008-\u3011"
    "\u3014-\u301f\u30fb\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufe0e\ufe0f"
)
_LETTER = rf"[^\W{_UNSPACED}]"
_CHARACTER = rf"(?![{_PUNCTUATION}])[{_UNSPACED}][{_UNSPACED_MARKS}]*"  # of an unspaced script
# A symbol; an emoji goes on with variants, skin tones and what a zero-width joiner joins to it.
_SYMBOL = rf"[^\w\s{_PUNCTUATION}{_MARKS}](?:[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff]|\u200d[^\w\s])*"
_WORD = rf"{_LETTER}(?:{_LETTER}|[{_MARKS}])*"
_WORDS = re.compile(rf"{_CHARACTER}|{_WORD}|{_SYMBOL}")
_CHARACTERS = re.compile(rf"{_CHARACTER}|{_LETTER}[{_MARKS}]*|{_SYMBOL}")
_RUNS = re.compile(rf"(?P<run>(?:{_CHARACTER})+)|{_WORD}|{_SYMBOL}")


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def words(text: str) -> list[str]:
    """Tokens of a caption, by words; an empty list when it holds none."""
    return _WORDS.findall(_normal(text))


def characters(text: str) -> list[str]:
    """Tokens of a caption, by characters: a letter keeps its marks, and blanks are none."""
    return _CHARACTERS.findall(_normal(text))


def runs(text: str) -> list[tuple[str, bool]]:
    """Words, and runs of characters of scripts without spaces: (text, whether it is such a run)."""
    return [(match[0], match["run"] is not None) for match in _RUNS.finditer(_normal(text))]
