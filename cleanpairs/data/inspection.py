"""A description of an input before it is used, as ``cleanpairs inspect`` prints it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cleanpairs.data.columns import SCORE, TRUTH
from cleanpairs.data.decoding import Decoder, Preparation, workers_for
from cleanpairs.data.filters import FILTERS, is_usual
from cleanpairs.data.formats.remote import bytes_of, location
from cleanpairs.data.images import image_header
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.readers import reader_of
from cleanpairs.data.text import concerns_caption

Facts = dict[str, Any]


def inspect_pairs(pairs: Pairs, *, rows: int = 5, decode: str = "sample", filters: bool = False) -> Facts:
    """Look at an input, and show ``rows`` pairs.

    By ``decode`` {"all", "sample", "none"} all images are decoded, 1,000 spread evenly, or none. With ``filters`` the
    pairs that each filter finds are counted, for which all images are looked at.

    Returns a dict, among others with:

    - ``files``, ``bytes``: of the table
    - ``unusable_images``: those that are missing, such as failed downloads, or cannot be read
    - ``distinct_images``: of the others, by bytes, or vectors
    - ``distinct_captions``: by normalised text
    - ``duplicate_pairs``: those that repeat another in both
    - ``vectors``, ``text_vectors``: shape and type, or None
    - ``corrupted``: pairs that are wrong by the input's own truth
    - ``reasons``, and ``failures`` of ``decoded``: kinds, each with the number of its pairs and the first
    - ``width``, ``height``: least, median and most pixels

    Raises DataError: the input cannot be read again.
    """
    source = pairs.source
    schema = reader_of(source).schema(source) if source.kind != "memory" else []
    role = {column: "precomputed score" if r.startswith(SCORE) else r for r, column in source.columns.items()}
    role |= dict.fromkeys(TRUTH, "truth")
    array, text = pairs.images.array(), pairs.text_vectors
    groups = np.stack([pairs.pair_image_group, pairs.text_group], axis=1)
    unusable = np.unique(pairs.image_index[[i for i, why in pairs.reasons.items() if not concerns_caption(why)]])
    return {
        "reader": source.kind,
        "files": [location(p) for p in source.files],
        "bytes": sum(map(bytes_of, source.files)),
        "image_root": source.image_root,
        "options": dict(source.options),
        "fingerprint": source.fingerprint,
        "columns": [{"name": f.name, "type": str(f.type), "role": role.get(f.name)} for f in schema],
        "rows": source.n_rows,
        "pairs": len(pairs),
        "images": len(pairs.images),
        "unusable_images": len(unusable),
        "distinct_images": len(np.unique(np.delete(pairs.image_group, unusable))),
        "distinct_captions": len(np.unique(pairs.text_group)),
        "duplicate_pairs": len(pairs) - len(np.unique(groups, axis=0)),
        "vectors": None if array is None else _shape(array),
        "text_vectors": None if text is None else _shape(text),
        "precomputed_scores": {name: _quantiles(values) for name, values in pairs.precomputed_scores.items()},
        "corrupted": None if pairs.true_mismatch is None else int(pairs.true_mismatch.sum()),
        "first": list(_first(pairs, rows)),
        "quarantined": len(pairs.reasons),
        "reasons": count_reasons(pairs.keys, sorted(pairs.reasons.items())),
        "decoded": _decoded(pairs, decode),
        "filters": list(_counted(pairs)) if filters else None,
    }


def _counted(pairs: Pairs) -> Iterator[Facts]:
    for name, entry in FILTERS.items():
        pair_ids = entry.find(pairs, entry.setting or 0.0)
        rows = [i for i in pair_ids.tolist() if i not in pairs.reasons]
        first = rows[0] if rows else None
        yield {
            "filter": name,
            "pairs": len(rows),
            "reason": entry.reason.format(entry.setting),
            "always": entry.always,
            "too_many": is_usual(pair_ids, pairs),
            "pair_id": first,
            "key": None if first is None else pairs.keys[first],
        }


def _shape(array: np.ndarray) -> str:
    return f"{' x '.join(map(str, array.shape[1:]))} {array.dtype.newbyteorder('=')}"


def _quantiles(values: np.ndarray) -> Facts:
    finite = values[np.isfinite(values)].astype(np.float64)
    at = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
    quantiles = np.quantile(finite, at).tolist() if len(finite) else [None] * len(at)
    return {"known": len(finite), "quantiles": dict(zip(map(str, at), quantiles, strict=True))}


def _first(pairs: Pairs, rows: int) -> Iterator[Facts]:
    n = min(rows, len(pairs))
    array = pairs.images.array()
    contents = pairs.images.read(pairs.image_index[:n].tolist()) if n else []
    for i, content in enumerate(contents):
        image = f"vectors {_shape(array)}" if array is not None else "no image"
        if content is not None:
            header = image_header(content)
            text = "no known image format" if header is None else "{} {}x{}".format(*header)
            image = f"{text}, {len(content):,} bytes"
        yield {"key": pairs.keys[i], "caption": pairs.captions[i], "image": image, "reason": pairs.reasons.get(i)}


def size_of(image: Any) -> np.ndarray:
    """Width and height of a decoded image, as the eight bytes of two uint32."""
    return np.array([image.width, image.height], np.uint32).view(np.uint8)


def _decoded(pairs: Pairs, decode: str) -> Facts | None:
    """Decode images of pairs that are not quarantined: all or a sample, by ``decode``."""
    rows = np.unique(np.delete(pairs.image_index, list(pairs.reasons)))
    if decode == "none" or not len(rows):
        return None
    spread = np.linspace(0, len(rows) - 1, min(len(rows), 1000)).astype(int)
    chosen = rows if decode == "all" else rows[spread]
    if pairs.images.kind == "features" and pairs.images.read(chosen[:1].tolist()) == [None]:
        return None  # there are vectors only
    sizes: list[np.ndarray] = []
    failed: list[tuple[int, str]] = []
    first_pair = {int(m): i for i, m in reversed(list(enumerate(pairs.image_index.tolist())))}
    with Decoder(Preparation(f"{__name__}:size_of"), workers_for(len(chosen))) as decoder:
        for batch in decoder.batches(pairs.images.at(chosen).iter_encoded(64)):
            sizes += [np.ascontiguousarray(a).view(np.uint32) for a in batch.arrays]
            failed += [(first_pair[int(chosen[k])], why) for k, why in batch.failures.items()]
    table = np.array(sizes).reshape(-1, 2)
    width, height = ([int(s.min()), int(np.median(s)), int(s.max())] if len(s) else None for s in table.T)
    failures = count_reasons(pairs.keys, failed)
    return {"images": len(chosen), "of": len(rows), "failures": failures, "width": width, "height": height}


def count_reasons(keys: Sequence[str] | Mapping[int, str], reasons: Sequence[tuple[int, str]]) -> list[Facts]:
    """Count reasons of pairs, the commonest first. Those that differ only in names and numbers are one,
    which begins with "for example".

    ``keys``: of the pairs. ``reasons``: (pair, reason).
    """
    kinds: dict[str, list[tuple[int, str]]] = {}
    for each in reasons:
        kinds.setdefault(re.sub(r"'[^']*'|\"[^\"]*\"|\d[\d,]*", "*", each[1]), []).append(each)
    found = []
    for same in sorted(kinds.values(), key=lambda same: -len(same)):
        (i, why), differ = same[0], len({why for _, why in same}) > 1
        reason = f"for example {why}" if differ else why
        found.append({"pairs": len(same), "pair_id": i, "key": keys[i], "reason": reason})
    return found
