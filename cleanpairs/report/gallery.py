"""Which pairs the report shows, and their thumbnails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cleanpairs.data.display import visible
from cleanpairs.data.pairs import Pairs
from cleanpairs.report.outcome import Outcome
from cleanpairs.report.pictures import Pictures


@dataclass(frozen=True)
class Card:
    """One pair, ready to be shown: text made visible, thumbnails as data addresses (None where there is none)."""

    pair_id: int
    kind: str  # a key of KINDS, shown as a word
    key: str
    image: str | None
    alt: str
    before: str
    after: str | None  # the caption that replaces ``before``
    new_image: str | None  # the image that replaces ``image``
    replaces_image: bool
    score: float
    repair_score: float | None
    donor: int | None
    verdict: str | None  # in words, where the truth is known
    right: bool | None
    note: str | None  # another score, where pairs are chosen by it
    why: str | None = None  # one sentence on what speaks against it


@dataclass(frozen=True)
class Gallery:
    """A titled choice of cards out of ``total`` pairs."""

    name: str  # the kind that gives it its colour
    title: str
    note: str  # how its cards were chosen
    total: int
    cards: list[Card]


def galleries(
    pairs: Pairs, outcome: Outcome, pictures: Pictures, count: int, why: Sequence[str | None]
) -> list[Gallery]:
    """The repairs, the worst pairs, the doubtful ones on both sides of the threshold, and the best.

    ``count`` cards each at most; galleries of no pair are left out. Ties are in order of pair_id.
    """
    repaired = _sorted(outcome, "repaired", -outcome.repair_score)
    kept = _sorted(outcome, "kept", outcome.correspondence)
    kind = "flagged" if (outcome.kind == "flagged").any() else "dropped"
    dropped = _sorted(outcome, kind, outcome.correspondence)
    spread = repaired[np.unique(np.linspace(0, len(repaired) - 1, min(count, len(repaired))).round().astype(int))]
    chosen = [
        ("repaired", "Repaired pairs", "evenly spread from the surest to the least sure", len(repaired), spread),
        (kind, f"{kind.capitalize()}: the worst", "the lowest correspondence of all", len(dropped), dropped[:count]),
        (
            kind,
            f"{kind.capitalize()}, though doubtful",
            "the highest correspondence below the threshold",
            len(dropped),
            dropped[max(count, len(dropped) - count) :][::-1],
        ),
        ("kept", "Kept, though doubtful", "the lowest correspondence of all that were kept", len(kept), kept[:count]),
        (
            "kept",
            "Kept: the best",
            "the highest correspondence of all that were kept",
            len(kept),
            kept[max(count, len(kept) - count) :][::-1],
        ),
    ]
    for *_, ids in chosen:
        load_shown(pictures, outcome, ids)
    return [
        Gallery(
            name,
            title,
            note,
            total,
            [
                replace(card_of(pairs, outcome, i, pictures), why=visible(why[i]) if why[i] else None)
                for i in ids.tolist()
            ],
        )
        for name, title, note, total, ids in chosen
        if len(ids)
    ]


def load_shown(pictures: Pictures, outcome: Outcome, ids: np.ndarray) -> None:
    """Load what the cards of pairs (k,) show: their images, and those of donors of images."""
    donors = outcome.donor[ids][outcome.action[ids] == "rematch_image"]
    pictures.load(np.concatenate([ids, donors]).astype(np.int64))


def _sorted(outcome: Outcome, kind: str, by: np.ndarray) -> np.ndarray:
    ids = np.flatnonzero(outcome.kind == kind)
    return ids[np.argsort(by[ids], kind="stable")]


def card_of(pairs: Pairs, outcome: Outcome, i: int, pictures: Pictures, note: str | None = None) -> Card:
    """The card of pair ``i``, whose pictures are loaded."""
    replaces_image = outcome.action[i] == "rematch_image"
    donor = int(outcome.donor[i])
    repaired = outcome.kind[i] == "repaired" and (donor >= 0 or outcome.action[i] == "recaption")
    verdict, right = _verdict(pairs, outcome, i, donor)
    return Card(
        pair_id=i,
        kind=str(outcome.kind[i]),
        key=visible(pairs.keys[i], 60),
        image=pictures.of_pair(i),
        alt=pictures.missing,
        before=visible(pairs.captions[i] or ""),
        after=visible(outcome.caption[i] or "") if repaired and not replaces_image else None,
        new_image=pictures.of_pair(donor) if repaired and replaces_image else None,
        replaces_image=bool(replaces_image),
        score=float(outcome.correspondence[i]),
        repair_score=float(outcome.repair_score[i]) if repaired else None,
        donor=donor if repaired and donor >= 0 else None,
        verdict=verdict,
        right=right,
        note=note,
    )


def _verdict(pairs: Pairs, outcome: Outcome, i: int, donor: int) -> tuple[str | None, bool | None]:
    """What the truth says of pair ``i`` and what was done with it."""
    if outcome.truth is None:
        return None, None
    wrong = bool(outcome.truth[i])
    if outcome.kind[i] != "repaired":
        kept = outcome.kind[i] == "kept"
        return ("in truth mismatched" if wrong else "in truth matched"), kept != wrong
    if not wrong:
        return "was right before", False
    if outcome.action[i] == "recaption":
        return "was mismatched, a caption was written", True
    if pairs.true_key is None or donor < 0:
        return "in truth mismatched", True
    image, caption = (donor, i) if outcome.action[i] == "rematch_image" else (i, donor)
    if pairs.true_key[caption] == pairs.keys[image]:
        return "got its own partner back", True
    return "another partner than its own", False
