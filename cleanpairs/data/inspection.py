"""What an input is, seen before anything is done with it: what ``cleanpairs inspect`` prints."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cleanpairs.data.columns import SCORE
from cleanpairs.data.decoding import Decoder, Preparation, workers_for
from cleanpairs.data.filters import FILTERS, MOST, chosen_filters
from cleanpairs.data.formats.in_place import bytes_of, location
from cleanpairs.data.images import image_header
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.readers import iter_tables

SAMPLE = 1000  # images that are decoded, unless all of them are asked for
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_AT_ONCE = 64
_ROLES = {"true_mismatch": "truth", "true_key": "truth"}


@dataclass(frozen=True)
class Column:
    """A column of the input: its Arrow type, and its role (text, image, features, key, precomputed score, truth) if
    any.
    """

    name: str
    type: str
    role: str | None


@dataclass(frozen=True)
class Row:
    """One pair: its key, its caption, its image in words, and why it is quarantined, if so."""

    key: str
    caption: str
    image: str
    reason: str | None


@dataclass(frozen=True)
class Reason:
    """Pairs set aside for one kind of reason: how many, and the first of them."""

    pairs: int
    pair_id: int
    key: str
    reason: str


@dataclass(frozen=True)
class FilterCount:
    """Pairs that a filter of :mod:`cleanpairs.data.filters` finds, and the first of them.

    ``always``: `fit` sets them aside unless told not to; ``too_many``: more than half of all, so that none is set
    aside.
    """

    filter: str
    pairs: int
    reason: str
    always: bool
    too_many: bool
    pair_id: int | None
    key: str | None


@dataclass(frozen=True)
class Decoded:
    """Images that were decoded. ``of``: those there are; ``failures``: kinds of failure, by image row.

    ``width``, ``height``: smallest, median and largest, in pixels; None where none could be decoded.
    """

    images: int
    of: int
    failures: list[Reason]
    width: tuple[int, int, int] | None
    height: tuple[int, int, int] | None


@dataclass(frozen=True)
class Inspection:
    """What an input is.

    ``files``, ``bytes``: those that are read as the table (image files beside it are not counted, nor copies in the
    cache directory).
    ``distinct_images``: by their bytes, or vectors; ``distinct_captions``: by their text after normalisation;
    ``duplicate_pairs``: those that repeat another pair in both. ``vectors``, ``text_vectors``: shape and type, or None.
    ``precomputed_scores``: name -> number known and the quantiles :data:`QUANTILES`. ``corrupted``: pairs that are
    wrong by the input's own truth. ``other_readers``: what else would take it.
    """

    reader: str
    files: list[str]
    bytes: int
    image_root: str | None
    options: dict[str, str]
    fingerprint: str
    columns: list[Column]
    rows: int
    pairs: int
    images: int
    distinct_images: int
    distinct_captions: int
    duplicate_pairs: int
    vectors: str | None
    text_vectors: str | None
    precomputed_scores: dict[str, dict[str, Any]]
    corrupted: int | None
    first: list[Row]
    quarantined: int
    reasons: list[Reason]
    decoded: Decoded | None
    filters: list[FilterCount] | None = None
    other_readers: list[str] = field(default_factory=list)


def inspect_pairs(pairs: Pairs, *, rows: int = 5, decode: str = "sample", filters: str | None = None) -> Inspection:
    """Look at an input, and show ``rows`` pairs.

    ``decode`` {"all", "sample", "none"}: images to decode: all, 1,000 spread evenly, or none; ``filters``: those to
    count by, as :func:`cleanpairs.data.filters.chosen_filters` has them: all images are looked at.
    Raises DataError: the input cannot be read again.
    """
    source = pairs.source
    schema = next(iter(iter_tables(source, 1))).schema if source.kind != "memory" else []
    role = {column: "precomputed score" if r.startswith(SCORE) else r for r, column in source.columns.items()}
    array, text = pairs.images.array(), pairs.text_vectors
    both = np.stack([pairs.pair_image_group, pairs.text_group], axis=1)
    return Inspection(
        reader=source.kind,
        files=[location(p) for p in source.files],
        bytes=sum(map(bytes_of, source.files)),
        image_root=source.image_root,
        options=dict(source.options),
        fingerprint=source.fingerprint,
        columns=[Column(f.name, str(f.type), role.get(f.name) or _ROLES.get(f.name)) for f in schema],
        rows=source.n_rows,
        pairs=len(pairs),
        images=len(pairs.images),
        distinct_images=len(np.unique(pairs.image_group)),
        distinct_captions=len(np.unique(pairs.text_group)),
        duplicate_pairs=len(pairs) - len(np.unique(both, axis=0)),
        vectors=None if array is None else _shape(array),
        text_vectors=None if text is None else _shape(text),
        precomputed_scores={name: _quantiles(values) for name, values in pairs.precomputed_scores.items()},
        corrupted=None if pairs.true_mismatch is None else int(pairs.true_mismatch.sum()),
        first=list(_first(pairs, rows)),
        quarantined=len(pairs.reasons),
        reasons=_grouped([(i, pairs.keys[i], pairs.reasons[i]) for i in sorted(pairs.reasons)]),
        decoded=_decoded(pairs, decode),
        filters=None if filters is None else list(_counted(pairs, filters)),
    )


def _counted(pairs: Pairs, drop: str) -> Iterator[FilterCount]:
    for name, setting in chosen_filters(drop).items():
        of = FILTERS[name]
        found = of.find(pairs, setting)
        first = int(found[0]) if len(found) else None
        key = None if first is None else pairs.keys[first]
        too_many = len(found) > MOST * len(pairs)
        yield FilterCount(name, len(found), of.reason.format(setting), of.always, too_many, first, key)


def _shape(array: np.ndarray) -> str:
    return f"{' x '.join(map(str, array.shape[1:]))} {array.dtype.newbyteorder('=')}"


def _quantiles(values: np.ndarray) -> dict[str, Any]:
    known = values[np.isfinite(values)].astype(np.float64)
    found = np.quantile(known, QUANTILES).tolist() if len(known) else [None] * len(QUANTILES)
    return {"known": len(known), "quantiles": dict(zip(map(str, QUANTILES), found, strict=True))}


def _first(pairs: Pairs, rows: int) -> Iterator[Row]:
    n = min(rows, len(pairs))
    array = pairs.images.array()
    contents = pairs.images.read(pairs.image_index[:n].tolist()) if n else []
    for i, content in enumerate(contents):
        image = f"vectors {_shape(array)}" if array is not None else "no image"
        if content is not None:
            header = image_header(content)
            known = "no known image format" if header is None else "{} {}x{}".format(*header)
            image = f"{known}, {len(content):,} bytes"
        yield Row(pairs.keys[i], pairs.captions[i], image, pairs.reasons.get(i))


def size_of(image: Any) -> np.ndarray:
    """Width and height of a decoded image, as the eight bytes of two numbers."""
    return np.array([image.width, image.height], np.uint32).view(np.uint8)


def _decoded(pairs: Pairs, decode: str) -> Decoded | None:
    """Really decode images of pairs that are not set aside already."""
    usable = np.ones(len(pairs), bool)
    usable[list(pairs.reasons)] = False
    rows = np.unique(pairs.image_index[usable])
    if decode == "none" or not len(rows):
        return None
    chosen = rows if decode == "all" or len(rows) <= SAMPLE else rows[np.linspace(0, len(rows) - 1, SAMPLE).astype(int)]
    if pairs.images.kind == "features" and pairs.images.read(chosen[:1].tolist()) == [None]:
        return None  # there are vectors only
    sizes: list[np.ndarray] = []
    failed: list[tuple[int, str, str]] = []
    first_pair = {int(m): i for i, m in reversed(list(enumerate(pairs.image_index.tolist())))}

    def encoded() -> Iterator[tuple[int, Sequence[bytes | None]]]:
        for start in range(0, len(chosen), _AT_ONCE):
            yield start, pairs.images.read(chosen[start : start + _AT_ONCE].tolist())

    with Decoder(Preparation(f"{__name__}:size_of"), workers_for(len(chosen))) as decoder:
        for batch in decoder.batches(encoded()):
            sizes += [np.ascontiguousarray(a).view(np.uint32) for a in batch.arrays]
            for k, why in batch.failures.items():
                pair = first_pair[int(chosen[k])]
                failed.append((pair, pairs.keys[pair], why))
    table = np.array(sizes).reshape(-1, 2)
    spread = [(int(side.min()), int(np.median(side)), int(side.max())) if len(side) else None for side in table.T]
    return Decoded(len(chosen), len(rows), _grouped(failed), spread[0], spread[1])


def _grouped(found: Sequence[tuple[int, str, str]]) -> list[Reason]:
    """Reasons that differ in names and numbers only, counted as one, the commonest first."""
    kinds: dict[str, list[tuple[int, str, str]]] = {}
    for each in found:
        kinds.setdefault(re.sub(r"'[^']*'|\"[^\"]*\"|\d[\d,]*", "*", each[2]), []).append(each)
    largest = sorted(kinds.values(), key=lambda same: -len(same))
    return [Reason(len(same), *same[0]) for same in largest]
