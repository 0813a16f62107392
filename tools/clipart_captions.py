"""Captions of clip art from the metadata inside SVG files, cleaned: "title, description words, keyword, keyword".

Used by build_clipart.py. Dropped are boilerplate (names of the library and of tools), ids, numbers, authors, addresses,
and keywords that were said before. A title that many files share names a collection, not a picture ("SVG Road Signs"):
the file's name takes its place, for the library made those of the pictures' titles. The folder's name joins the
keywords. Playing cards, whose names are codes, are spelt out.
"""

from __future__ import annotations

import html
import re
import unicodedata
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import PurePosixPath

__all__ = ["Caption", "Metadata", "captions_of", "read_metadata", "stem_word"]

MIN_WORDS = 3
MAX_WORDS = 25
MAX_DESCRIPTION = 12
SHARED_TITLE = 5  # a title of more files than this names a collection
SHARED_DESCRIPTION = 3

BOILERPLATE = frozenset(
    """
    aiga amp appicon apps artwork artworks autotrace autotraced bb bmp clip clipart cliparts collection com
    contact converted converter copyright created creator cvs domain downloaded draw enjoy eps etiquette example
    fs gif gimp gnome gtk hash http https icns iconset illustration image images inkscape jpeg jpg kde kr lemon
    lib library license mailto mapsym menu mime mimetypes misc miscellaneous miscellany nicubunu nws ooo open
    openclipart openoffice org package part pdf picture plastik png public rpg sample sibmission sodipodi
    submission svg symbolic theme themes trace traced tutoral tutorial unsorted vector vectorgfx vectorised
    vectorization vectorized vectorizer version webpage website work works www xml xpm
    """.split()
)
STOP_WORDS = frozenset(
    """
    a about all also an and any are as at be been but by can could da de dei del della des di do does done down el
    en et for from get good had has have her here his how i if il in into is it its just la le les lo made make
    may more most my new nice no non not of off old on one onto or other our out over per pour self she so some
    sul such than that the their them then there these they this those to too two un una und up use used uses
    using very was we were what when where which who will with without would you your
    """.split()
)
NO_INFORMATION = frozenset("sign symbol shape special clipart icon application action filesystem".split())
NO_FOLDERS = frozenset(  # folders whose names say nothing about a picture
    """
    duplicates etiquette-theme examples flat-theme icons lemon-theme menu plastik-theme shapes signs_and_symbols special
    svg unsorted
    """.split()
)
ABOUT_MAKING = re.compile(
    r"\b(?:derived|convert|inkscape|sodipodi|trac(?:e|ed|ing)|vectori|generated|tutorial|(?:made|created|done) \w+)",
    re.IGNORECASE,
)
SUITS = {"c": "clubs", "d": "diamonds", "h": "hearts", "s": "spades"}
RANKS = dict(zip("a23456789jqk", "ace two three four five six seven eight nine jack queen king".split(), strict=True))
RANKS["10"] = "ten"
CARD = re.compile(r"^(?P<design>[a-z]+)_(?P<suit>[cdhs])_(?P<rank>10|[2-9ajqk])$")
NOT_WORDS = re.compile(  # addresses, ids, markup, file names
    r"\S+@\S+|\S*://\S+|\bwww\.\S+|HASH\(\w+\)|0x[0-9a-fA-F]+|<[^>]*>|\b\w+\.(?:svg|png|eps|htm\w*)\b"
)
BLACK_AND_WHITE = re.compile(r"\bb\s*(?:and|&|n|amp)\s*w\b|\bbwh?\b", re.IGNORECASE)


@dataclass(frozen=True)
class Metadata:
    """What one SVG file says about itself; ``path`` is relative, without the ending; ``agents`` are people."""

    path: str
    title: str
    description: str
    keywords: tuple[str, ...]
    agents: tuple[str, ...]


@dataclass(frozen=True)
class Caption:
    """A caption, the ``family`` of its near duplicates (the title's words), and its ``keywords`` as one string."""

    text: str
    family: str
    keywords: str


def _local(tag: object) -> str:
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def _text(element: ElementTree.Element) -> str:
    return " ".join(html.unescape("".join(element.itertext())).split())


def read_metadata(path: str, svg: bytes) -> Metadata | None:
    """The Dublin Core metadata of an SVG file, or None where it has none or is not well-formed."""
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError:
        return None
    work = next((e for e in root.iter() if _local(e.tag) == "Work"), None)
    if work is None:
        return None
    field: dict[str, str] = {}
    keywords: list[str] = []
    agents: list[str] = []
    for element in work:
        name = _local(element.tag)
        if name in ("title", "description"):
            field.setdefault(name, _text(element))
        elif name == "subject":
            keywords += [_text(e) for e in element.iter() if _local(e.tag) == "li"]
        elif name in ("creator", "rights", "contributor"):
            agents += [_text(e) for e in element.iter() if _local(e.tag) == "title"]
    return Metadata(path, field.get("title", ""), field.get("description", ""), tuple(keywords), tuple(agents))


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()


def stem_word(word: str) -> str:
    """A word for comparison: lower case, no accents, no plural ``s``."""
    folded = _fold(word)
    return folded[:-1] if len(folded) > 3 and folded.endswith("s") and not folded.endswith("ss") else folded


def _words(text: str) -> list[str]:
    """Words in lower case: addresses, numbers, ids, markup and single letters gone; camelCase taken apart."""
    text = unicodedata.normalize("NFKC", html.unescape(text))
    text = NOT_WORDS.sub(" ", text)
    text = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text.replace("_", " ").replace("-", " "))
    text = BLACK_AND_WHITE.sub(" black and white ", text)
    text = re.sub(r"(?<=\w)['’]s\b", "", text)
    words = re.findall(r"[^\W\d_]+", text)
    return [w.lower() for w in words if len(w) > 1]


class _Authors:
    """Recognises author names: of one file by any of their words (cut-off ones too), of the library by full names."""

    def __init__(self, all_metadata: list[Metadata]) -> None:
        names = {tuple(_words(_fold(agent))) for m in all_metadata for agent in m.agents}
        self.full = {name for name in names if len(name) > 1}
        # In file names some authors stand by names that the metadata lacks.
        self.handles = frozenset(
            "ganson zazou peterm architetto rollandin francesco buculei nicu guillou cafe vasamaa mimooh benji".split()
        )

    def strip_stem(self, stem: list[str], metadata: Metadata) -> list[str]:
        """File-name words without the author's, which the library appended and cut off at 24 letters."""
        own = {w for agent in metadata.agents for w in _words(_fold(agent))}
        kept = list(stem)
        while len(kept) > 1 and _fold(kept[0]) in own:
            kept.pop(0)
        while len(kept) > 1:
            last = _fold(kept[-1])
            if not (last in self.handles or any(name.startswith(last) for name in own)):
                break
            kept.pop()
        kept = self.strip([w for w in kept if _fold(w) not in self.handles], metadata)
        return kept[:-1] if len(kept) > 1 and len(kept[-1]) < 3 else kept  # a counter: aa, ab, ...

    def strip(self, words: list[str], metadata: Metadata) -> list[str]:
        """Words of a text without names of people."""
        own = {w for agent in metadata.agents for w in _words(_fold(agent)) if len(w) > 3} | self.handles
        folded = [_fold(w) for w in words]
        drop = [w in own for w in folded]
        for i in range(len(words)):
            for n in (2, 3, 4):
                if tuple(folded[i : i + n]) in self.full:
                    drop[i : i + n] = [True] * len(folded[i : i + n])
        return [w for w, d in zip(words, drop, strict=True) if not d]


def _content(words: list[str]) -> list[str]:
    return [w for w in words if len(w) > 2 and w not in STOP_WORDS]


def _clean(words: list[str]) -> list[str]:
    """Without boilerplate, and without stop words at either end."""
    words = [w for w in words if w not in BOILERPLATE]
    while words and words[0] in STOP_WORDS:
        words = words[1:]
    while words and words[-1] in STOP_WORDS - {"down", "up", "in", "out", "off", "on"}:
        words = words[:-1]
    return words


def _spell_out(name: str) -> str:
    """``simple_c_k`` is the king of clubs."""
    card = CARD.match(name)
    return f"{RANKS[card['rank']]} of {SUITS[card['suit']]} playing card" if card else name


def _title_key(title: str) -> str:
    return " ".join(_words(title))


def captions_of(all_metadata: list[Metadata]) -> dict[str, Caption]:
    """Path -> caption, for the files whose metadata makes a usable one (3 to 25 words that mean something)."""
    titles = Counter(_title_key(m.title) for m in all_metadata)
    descriptions = Counter(m.description for m in all_metadata)
    authors = _Authors(all_metadata)
    captions = {}
    for m in all_metadata:
        title = _clean(authors.strip(_words(m.title), m))
        if titles[_title_key(m.title)] > SHARED_TITLE or " by " in f" {m.title.lower()} " or not _content(title):
            title = _clean(authors.strip_stem(_words(_spell_out(PurePosixPath(m.path).name)), m))
        first = re.split(r"(?<=[a-z)])[.!?;:](?:\s|$)", m.description, maxsplit=1)[0]
        description = (
            _clean(authors.strip(_words(first), m)) if descriptions[m.description] <= SHARED_DESCRIPTION else []
        )
        caption = _assemble(m, authors, title[:10], description[:MAX_DESCRIPTION])
        if caption is not None:
            captions[m.path] = caption
    return captions


def _assemble(m: Metadata, authors: _Authors, title: list[str], description: list[str]) -> Caption | None:
    if not _content(title):
        return None
    stems = {stem_word(w) for w in title}
    parts = [" ".join(title)]
    if any(stem_word(w) not in stems for w in _content(description)):  # whole, so that it still reads well
        repeats = stems <= {stem_word(w) for w in description}
        parts = [" ".join(description)] if repeats else [*parts, " ".join(description)]
        stems |= {stem_word(w) for w in description}
    folder = [f for f in PurePosixPath(m.path).parts[:-1] if f not in NO_FOLDERS][-1:]
    keywords: list[str] = []
    for keyword in sorted(set(m.keywords)) + folder:
        words = _clean([w for w in authors.strip(_words(keyword), m) if stem_word(w) not in stems])
        if _content(words):
            keywords.append(" ".join(words))
            stems |= {stem_word(w) for w in words}
    total = sum(len(p.split()) for p in parts)
    for keyword in keywords:
        if total + len(keyword.split()) <= MAX_WORDS:
            parts.append(keyword)
            total += len(keyword.split())
    text = ", ".join(parts)
    meaning = {stem_word(w) for w in _content(re.findall(r"[^\W\d_]+", text))}
    if len(meaning) < MIN_WORDS or not meaning - NO_INFORMATION:
        return None
    colours = {"black", "white", "colour", "color", "and"}
    family = " ".join(sorted({stem_word(w) for w in _content(title)} - colours)) or parts[0]
    return Caption(text, family, ", ".join(keywords))
