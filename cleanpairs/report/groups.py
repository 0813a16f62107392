"""Pairs that share something: the donors of most repairs, the same image in several rows, the same text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cleanpairs.data.display import visible
from cleanpairs.data.pairs import Pairs
from cleanpairs.report.outcome import Outcome
from cleanpairs.report.pictures import Pictures

PICTURES, CAPTIONS = 6, 4  # of a group that are shown


@dataclass(frozen=True)
class Donor:
    """A pair whose caption or image ``uses`` repaired pairs got."""

    pair_id: int
    key: str
    caption: str
    image: str | None
    uses: int
    score: float


@dataclass(frozen=True)
class Group:
    """``pairs`` pairs of ``images`` images; ``shown`` of their captions and addresses of pictures, not all of them."""

    pairs: int
    images: int
    captions: list[str]
    pictures: list[str | None]
    mean: float


@dataclass(frozen=True)
class Groups:
    """The largest groups, out of ``total`` groups of two or more that hold ``pairs`` pairs."""

    total: int
    pairs: int
    largest: list[Group]


def reused_donors(pairs: Pairs, outcome: Outcome, pictures: Pictures, count: int) -> list[Donor]:
    """The ``count`` donors of most repairs, ties in order of pair_id; none where nothing was repaired."""
    used = outcome.donor[(outcome.kind == "repaired") & (outcome.donor >= 0)]
    ids, uses = np.unique(used, return_counts=True)
    order = np.argsort(-uses, kind="stable")[:count]
    pictures.load(ids[order])
    return [
        Donor(
            i,
            visible(pairs.keys[i], 60),
            visible(pairs.captions[i] or ""),
            pictures.of_pair(i),
            n,
            float(outcome.correspondence[i]),
        )
        for i, n in zip(ids[order].tolist(), uses[order].tolist(), strict=True)
    ]


def duplicate_images(pairs: Pairs, outcome: Outcome, pictures: Pictures, count: int) -> Groups:
    """Images that occur in several rows with the same bytes (or vectors); the ``count`` largest groups."""
    _, group = np.unique(pairs.image_group, return_inverse=True)
    used = np.unique(pairs.image_index)  # a selection of pairs shares the images of all
    size = np.bincount(group[used], minlength=int(group.max(initial=-1)) + 1)
    return _groups(pairs, outcome, pictures, count, group[pairs.image_index], size, by_image=True)


def duplicate_texts(pairs: Pairs, outcome: Outcome, pictures: Pictures, count: int) -> Groups:
    """Captions that several pairs have, but for case and white space; the ``count`` largest groups."""
    usable = np.array([bool((pairs.captions[i] or "").strip()) for i in range(len(pairs))], dtype=bool)
    _, group = np.unique(pairs.text_group, return_inverse=True)
    size = np.bincount(group[usable], minlength=int(group.max(initial=-1)) + 1)  # no caption is no shared caption
    return _groups(pairs, outcome, pictures, count, group, size, by_image=False)


def _groups(
    pairs: Pairs,
    outcome: Outcome,
    pictures: Pictures,
    count: int,
    group: np.ndarray,
    size: np.ndarray,
    *,
    by_image: bool,
) -> Groups:
    """``group`` (N,): of each pair; ``size`` (G,): what makes a group one of several."""
    many = size[group] > 1
    largest = np.argsort(-size, kind="stable")[:count]
    largest = largest[size[largest] > 1]
    order = np.flatnonzero(np.isin(group, largest))
    found = []
    for g in largest.tolist():
        ids = order[group[order] == g]
        _, first = np.unique(pairs.image_index[ids], return_index=True)
        shown = ids[np.sort(first)][: 1 if by_image else PICTURES]
        pictures.load(shown)
        texts = dict.fromkeys(visible(pairs.captions[i] or "(empty caption)", 120) for i in ids[:200].tolist())
        scores = outcome.correspondence[ids]
        known = scores[np.isfinite(scores)]
        found.append(
            Group(
                pairs=len(ids),
                images=len(first),
                captions=list(texts)[:CAPTIONS] if by_image else list(texts)[:1],
                pictures=[pictures.of_pair(i) for i in shown.tolist()],
                mean=float(known.mean()) if len(known) else float("nan"),
            )
        )
    return Groups(int((size > 1).sum()), int(many.sum()), found)
