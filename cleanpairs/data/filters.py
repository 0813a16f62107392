"""Plain filters: they find pairs without a model, whose image or caption says nothing.

Practice of cleanvision (odd sizes, odd aspect ratios, low information) and data-juicer (filters of text and images),
with their defaults where those suit captions. A property of most of a corpus is no
fault: there the filter quarantines nothing.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cleanpairs.core import ConfigError, nearest
from cleanpairs.data.decoding import thumbnails
from cleanpairs.data.duplicates import flat_images
from cleanpairs.data.images import image_header
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.readers import load_pairs

PREFIX = "filter "
MAIN_SCRIPT = 0.8  # share of the captions above which another script is suspicious

_LETTER = re.compile(r"[^\W\d_]")


@dataclass(frozen=True)
class Filter:
    """A rule that quarantines pairs. ``always``: it is on by default. docs/inputs.md describes each."""

    reason: str
    setting: float | None
    always: bool
    find: Callable[[Pairs, float], np.ndarray]  # pairs (k,)


def chosen_filters(drop: str) -> dict[str, float]:
    """Name -> setting of the filters that ``drop`` asks for: names, perhaps with ``=NUMBER``, with commas between them,
    ``all``, or ``none`` of those that are on by default. Raises ConfigError: no such filter, or no such setting.
    """
    if not isinstance(drop, str):
        raise ConfigError(f"drop must be names of filters with commas between them, found {drop!r}")
    usual = {name: f.setting or 0.0 for name, f in FILTERS.items()}
    chosen = {name: usual[name] for name, f in FILTERS.items() if f.always}
    for part in (p.strip() for p in drop.split(",") if p.strip()):
        name, equals, value = part.partition("=")
        if part == "none":
            chosen = {}
        elif part == "all":
            chosen = usual | chosen
        elif name not in FILTERS:
            names = ", ".join([*FILTERS, "all", "none"])
            raise ConfigError(f"drop: there is no filter {name!r}{nearest(name, list(FILTERS))} (known: {names})")
        elif equals and (FILTERS[name].setting is None or not re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*", value)):
            takes = "no number" if FILTERS[name].setting is None else "a number from 0 on"
            raise ConfigError(f"drop: the filter {name} takes {takes}, found {part!r}")
        else:
            chosen[name] = float(value) if equals else usual[name]
    return chosen


def filter_reasons(pairs: Any, drop: str = "all", *, pictures: bool = True) -> dict[int, str]:
    """Return why filters quarantine pairs. A filter that finds more than half of the pairs quarantines none.

    Parameters
    ----------
    pairs : Pairs, path or table
        As :func:`cleanpairs.load_pairs` takes them.
    drop : str
        Names of filters with commas between them, perhaps with settings: ``"small=200,mojibake"``. Or ``"all"``.
        Filters that are always on are added, unless ``drop`` begins with ``"none"``.
    pictures : bool
        Whether images may be decoded, for the filter ``blank``.

    Returns
    -------
    dict of int to str
        ``pair_id`` -> the reason, which names the first filter that finds the pair.

    Raises
    ------
    ConfigError
        There is no such filter, or no such setting.
    """
    pairs, reasons = load_pairs(pairs), dict[int, str]()
    for name, setting in chosen_filters(drop).items():
        rows = FILTERS[name].find(pairs, setting) if pictures or name != "blank" else np.empty(0, np.int64)
        for i in () if is_usual(rows, pairs) else rows.tolist():
            reasons.setdefault(i, f"{PREFIX}{name}: {FILTERS[name].reason.format(setting)}")
    return reasons


def is_usual(rows: np.ndarray, pairs: Pairs) -> bool:
    """Whether a filter finds more than half of the pairs, so that it quarantines none."""
    return 2 * len(rows) > len(pairs)


def _blank(pairs: Pairs, _: float) -> np.ndarray:
    if pairs.images.kind == "features":
        return np.empty(0, np.int64)
    flat = flat_images(pairs)  # with those that cannot be decoded
    readable = [m for m, small in zip(flat, thumbnails(pairs.images, flat, 8), strict=True) if small is not None]
    return np.flatnonzero(np.isin(pairs.image_index, readable))


def _by_sides(odd: Callable[[np.ndarray, np.ndarray, float], np.ndarray]) -> Callable[[Pairs, float], np.ndarray]:
    """Find pairs by the shorter and the longer side (M,) of images in pixels, by their headers, or NaN."""

    def find(pairs: Pairs, setting: float) -> np.ndarray:
        sides = np.full((len(pairs.images), 2), np.nan)
        for start, encoded in pairs.images.iter_encoded(256):
            for m, content in enumerate(encoded, start):
                if content is not None and (header := image_header(content)) is not None:
                    sides[m] = header[1:]
        return np.flatnonzero(odd(sides.min(axis=1), sides.max(axis=1), setting)[pairs.image_index])

    return find


def _by_caption(holds: Callable[[str, float], bool]) -> Callable[[Pairs, float], np.ndarray]:
    def find(pairs: Pairs, setting: float) -> np.ndarray:
        if not pairs.has_captions:
            return np.empty(0, np.int64)
        return np.flatnonzero([holds(caption or "", setting) for caption in pairs.captions])

    return find


def _is_all_addresses(also: str = "") -> Callable[[str, float], bool]:
    """Whether a caption has letters, and none is left without addresses and what the pattern ``also`` matches."""
    compiled = re.compile(
        r"(?:https?://|www\.)\S+"  # an address
        r"|(?<!\S)\S+\.(?:jpe?g|png|gif|webp|bmp|tiff?|svg|heic|mp4|mov|avi|webm|pdf)(?!\S)"  # a file
        r"|(?<!\S)(?:IMG|DSC|DSCN|DSCF|MVI|VID|PXL)[_-]?\d\S*(?!\S)" + also,  # a camera's number
        re.IGNORECASE,
    )
    return lambda caption, _: bool(_LETTER.search(caption)) and not _LETTER.search(compiled.sub(" ", caption))


_is_address, _is_tags_or_addresses = _is_all_addresses(), _is_all_addresses(r"|(?<!\S)[#@]\S+")


def _has_no_word(caption: str, _: float) -> bool:
    """Whether a caption has only numbers and codes: ASCII with three digits, and without four letters in a row."""
    return not _LETTER.search(re.sub(r"(?<!\S)(?!\S*[A-Za-z]{4})(?=\S*\d{3})[!-~\d]++(?!\S)", " ", caption))


def _is_mojibake(caption: str, _: float) -> bool:
    if caption.isascii():
        return False
    from ftfy.badness import is_bad

    return bool(is_bad(caption))


def _repeated_caption(pairs: Pairs, share: float) -> np.ndarray:
    found = _repeated(pairs.text_group, pairs.pair_image_group, share)
    return np.flatnonzero(found & np.array([bool(c) for c in pairs.captions], bool) if pairs.has_captions else found)


def _repeated(group: np.ndarray, partner: np.ndarray, share: float) -> np.ndarray:
    """Which pairs (N,) bool are of a ``group`` (N,) with a ``share`` of all partners (N,), and with six times as many
    as 19 of 20 groups have.

    Product titles repeat smoothly: many of them occur several times. Boilerplate is few captions that stand out.
    """
    groups, many = np.unique(np.unique([group, partner], axis=1)[0], return_counts=True)
    least = max(share * len(np.unique(partner)), 6 * np.quantile(many, 0.95, method="lower")) if len(many) else 0
    return np.isin(group, groups[many >= least])


def other_scripts(captions: Sequence[str], least: float = MAIN_SCRIPT) -> Iterator[tuple[int, float, str]]:
    """Captions in another script than a share ``least`` of all: number, share of its letters, and a reason."""
    scripts = [_script(caption or "") for caption in captions]
    counts = Counter(script for script, _ in scripts if script)
    main, n = counts.most_common(1)[0] if counts else ("", 0)
    named = {script: script if script == "CJK" else script.capitalize() for script in counts}
    for i, (script, share) in enumerate(scripts) if n >= least * counts.total() else ():
        if script and script != main:
            yield i, share, f"written in {named[script]} letters, and most others in {named[main]}"


def _script(caption: str) -> tuple[str, float]:
    """The script of most letters, as Unicode's names begin, and its share of them."""
    if caption.isascii():
        return ("LATIN", 1.0) if _LETTER.search(caption) else ("", 0.0)
    counts = Counter(unicodedata.name(c, "OTHER").split()[0] for c in caption if c.isalpha())
    if not counts:
        return "", 0.0
    script, n = counts.most_common(1)[0]
    return script, n / counts.total()


FILTERS = {
    "blank": Filter("the image shows one colour", None, True, _blank),
    "small": Filter("the image's shorter side has fewer than {:g} pixels", 64, False,
        _by_sides(lambda short, _, least: short < least)),
    "aspect": Filter("the image's longer side is more than {:g} times the shorter", 3, False,
        _by_sides(lambda short, long, most: long > most * short)),
    "url": Filter("the caption is a URL or a file name", None, True, _by_caption(_is_address)),
    "no_word": Filter("the caption has no word", None, True, _by_caption(_has_no_word)),
    "hashtags": Filter("the caption has only #tags, @names and URLs", None, False,
        _by_caption(lambda caption, _: _is_tags_or_addresses(caption, 0) and not _is_address(caption, 0))),
    "caption_length": Filter("the caption has fewer than {:g} characters", 10, False,
        _by_caption(lambda caption, n: len(caption.strip()) < n)),
    "mojibake": Filter("the caption was read in a wrong encoding", None, False,
        _by_caption(_is_mojibake)),
    "language": Filter("the caption is in another script than at least {:g} of all captions", MAIN_SCRIPT, False,
        lambda pairs, least: np.array([i for i, *_ in other_scripts(pairs.captions, least)], np.int64)),
    "repeated_caption": Filter("the share of images with this caption is {:g} or more", 0.005, True, _repeated_caption),
    "repeated_image": Filter("the share of captions of this image is {:g} or more", 0.005, False,
        lambda pairs, share: np.flatnonzero(_repeated(pairs.pair_image_group, pairs.text_group, share))),
}  # fmt: skip
