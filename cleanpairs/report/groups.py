"""Pairs that share something: the donors of most repairs, the same image in several rows, the same text."""

from typing import Any

import numpy as np

from cleanpairs.data.display import visible
from cleanpairs.report.gallery import Cards

PICTURES, CAPTIONS = 6, 4  # of a group that are shown


def reused_donors(shown: Cards, count: int) -> list[dict[str, Any]]:
    """The ``count`` pairs whose caption or image most repaired pairs got, twice at least, ties in order of pair_id."""
    pairs, outcome = shown.pairs, shown.outcome
    used = outcome.donor[(outcome.kind == "repaired") & (outcome.donor >= 0)]
    ids, uses = np.unique(used, return_counts=True)
    order = np.argsort(-uses, kind="stable")[:count]
    order = order[uses[order] > 1]
    return [
        {
            "pair_id": i,
            "key": visible(pairs.keys[i], 60),
            "caption": visible(pairs.captions[i] or ""),
            "image": image,
            "uses": n,
            "score": float(outcome.correspondence[i]),
        }
        for i, n, image in zip(ids[order].tolist(), uses[order].tolist(), shown.pictures(ids[order]), strict=True)
    ]


def duplicate_images(shown: Cards, count: int) -> dict[str, Any]:
    """Images that occur in several rows with the same bytes (or vectors); the ``count`` largest groups, out of
    ``total`` that hold ``pairs`` pairs.
    """
    pairs = shown.pairs
    _, group = np.unique(pairs.image_group, return_inverse=True)
    used = np.unique(pairs.image_index)  # a selection of pairs shares the images of all
    size = np.bincount(group[used], minlength=int(group.max(initial=-1)) + 1)
    return _groups(shown, count, group[pairs.image_index], size, by_image=True)


def duplicate_texts(shown: Cards, count: int) -> dict[str, Any]:
    """Captions that several pairs have, but for case and white space; as :func:`duplicate_images`."""
    usable = np.array([bool((caption or "").strip()) for caption in shown.pairs.captions], dtype=bool)
    _, group = np.unique(shown.pairs.text_group, return_inverse=True)
    size = np.bincount(group[usable], minlength=int(group.max(initial=-1)) + 1)  # no caption is no shared caption
    return _groups(shown, count, group, size, by_image=False)


def _groups(shown: Cards, count: int, group: np.ndarray, size: np.ndarray, *, by_image: bool) -> dict[str, Any]:
    """``group`` (N,): of each pair; ``size`` (G,): what makes a group one of several."""
    pairs, found = shown.pairs, []
    largest = np.argsort(-size, kind="stable")[:count]
    for g in largest[size[largest] > 1].tolist():
        ids = np.flatnonzero(group == g)
        _, first = np.unique(pairs.image_index[ids], return_index=True)
        texts = dict.fromkeys(visible(pairs.captions[i] or "(empty caption)", 120) for i in ids[:200].tolist())
        scores = shown.outcome.correspondence[ids]
        known = scores[np.isfinite(scores)]
        found.append(
            {
                "pairs": len(ids),
                "images": len(first),
                "captions": list(texts)[: CAPTIONS if by_image else 1],
                "pictures": shown.pictures(ids[np.sort(first)][: 1 if by_image else PICTURES]),
                "mean": float(known.mean()) if len(known) else float("nan"),
            }
        )
    return {"total": int((size > 1).sum()), "pairs": int((size[group] > 1).sum()), "largest": found}
