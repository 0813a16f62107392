"""Which pairs the report shows, and their thumbnails."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from cleanpairs.data.display import visible
from cleanpairs.data.images import read_image
from cleanpairs.data.pairs import Pairs
from cleanpairs.errors import DataError
from cleanpairs.report.outcome import Outcome

__all__ = ["Card", "Gallery", "galleries"]

THUMBNAIL = 160  # longest side in pixels: shown at half of it on a dense screen
NO_PICTURE = "no picture: the data holds vectors"


@dataclass(frozen=True)
class Card:
    """One pair, ready to be shown: text made visible, thumbnails as data addresses (None where there is none)."""

    pair_id: int
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


@dataclass(frozen=True)
class Gallery:
    """A titled choice of cards out of ``total`` pairs."""

    name: str
    title: str
    note: str
    total: int
    cards: list[Card]


def galleries(pairs: Pairs, outcome: Outcome, count: int) -> list[Gallery]:
    """The repairs, the doubtful pairs that were kept, the worst and the most doubtful of those that were not.

    ``count`` cards each at most; galleries of no pair are left out. Ties are in order of pair_id.
    """
    repaired = _sorted(outcome, "repaired", -outcome.repair_score)
    kept = _sorted(outcome, "kept", outcome.correspondence)
    kind = "flagged" if (outcome.kind == "flagged").any() else "dropped"
    dropped = _sorted(outcome, kind, outcome.correspondence)
    spread = repaired[np.unique(np.linspace(0, len(repaired) - 1, min(count, len(repaired))).round().astype(int))]
    chosen = [
        ("repaired", "Repaired pairs", "evenly spread from the surest to the least sure", len(repaired), spread),
        ("kept", "Kept, though doubtful", "the lowest correspondence of all that were kept", len(kept), kept[:count]),
        (kind, f"{kind.capitalize()}: the worst", "the lowest correspondence of all", len(dropped), dropped[:count]),
        (
            kind,
            f"{kind.capitalize()}, though doubtful",
            "the highest correspondence below the threshold",
            len(dropped),
            dropped[max(count, len(dropped) - count) :][::-1],
        ),
    ]
    needed = np.unique(np.concatenate([ids for *_, ids in chosen])).astype(np.int64)
    donors = outcome.donor[needed][outcome.action[needed] == "rematch_image"]
    images = np.unique(pairs.image_index[np.concatenate([needed, donors]).astype(np.int64)])
    thumbnails = dict(zip(images.tolist(), _thumbnails(pairs, images.tolist()), strict=True))
    return [
        Gallery(name, title, note, total, [_card(pairs, outcome, int(i), thumbnails) for i in ids])
        for name, title, note, total, ids in chosen
        if len(ids)
    ]


def _sorted(outcome: Outcome, kind: str, by: np.ndarray) -> np.ndarray:
    ids = np.flatnonzero(outcome.kind == kind)
    return ids[np.argsort(by[ids], kind="stable")]


def _thumbnails(pairs: Pairs, images: Sequence[int]) -> list[str | None]:
    return [None if data is None else _thumbnail(data) for data in pairs.images.read(images)]


def _thumbnail(data: bytes) -> str | None:
    """A small JPEG, without the original's metadata; None where it cannot be decoded."""
    try:
        small = read_image(data)
    except DataError:
        return None
    small.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, format="JPEG", quality=82, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _card(pairs: Pairs, outcome: Outcome, i: int, thumbnails: dict[int, str | None]) -> Card:
    replaces_image = outcome.action[i] == "rematch_image"
    donor = int(outcome.donor[i])
    repaired = outcome.kind[i] == "repaired" and (donor >= 0 or outcome.action[i] == "recaption")
    verdict, right = _verdict(pairs, outcome, i, donor)
    return Card(
        pair_id=i,
        key=visible(pairs.keys[i], 60),
        image=thumbnails[int(pairs.image_index[i])],
        alt=NO_PICTURE if pairs.images.kind != "bytes" else "the picture cannot be read",
        before=visible(pairs.captions[i] or ""),
        after=visible(outcome.caption[i] or "") if repaired and not replaces_image else None,
        new_image=thumbnails[int(pairs.image_index[donor])] if repaired and replaces_image else None,
        replaces_image=bool(replaces_image),
        score=float(outcome.correspondence[i]),
        repair_score=float(outcome.repair_score[i]) if repaired else None,
        donor=donor if repaired and donor >= 0 else None,
        verdict=verdict,
        right=right,
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
