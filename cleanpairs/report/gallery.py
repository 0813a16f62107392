"""Which pairs the report shows, as cards: what the template needs of each, with text made visible."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cleanpairs.audit.fragment import data_address, thumbnails
from cleanpairs.data.display import visible
from cleanpairs.data.pairs import Pairs
from cleanpairs.report.outcome import Outcome

THUMBNAIL = 160  # longest side in pixels: shown at half of it on a dense screen


class Cards:
    """Makes cards of N pairs; an image is read and shrunk once, however often the page shows it.

    ``missing`` says why there is no picture.
    """

    def __init__(self, pairs: Pairs, outcome: Outcome) -> None:
        self.pairs, self.outcome = pairs, outcome
        self._known: dict[int, str | None] = {}
        vectors = pairs.images.kind != "bytes"
        self.missing = "no picture: the data holds vectors" if vectors else "the picture cannot be read"

    def pictures(self, ids: np.ndarray) -> list[str | None]:
        """Data addresses of pairs (k,), None where there is no picture or it cannot be decoded."""
        rows = self.pairs.image_index[ids]
        new = np.array([m for m in np.unique(rows).tolist() if m not in self._known], np.int64)
        small = thumbnails(self.pairs.images, new, THUMBNAIL)
        self._known |= dict(zip(new.tolist(), map(data_address, small), strict=True))
        return [self._known[m] for m in rows.tolist()]

    def gallery(
        self, title: str, note: str, total: int, ids: np.ndarray, *, name: str = "neutral",
        why: Sequence[str | None] | None = None, notes: Sequence[str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """The cards of pairs (k,) out of ``total``.

        ``note``: how they were chosen; ``name``: the kind that gives them their colour; ``why`` (N,): sentences on what
        speaks against the pairs; ``notes`` (k,): other scores, where pairs are chosen by these.
        """
        outcome = self.outcome
        replaced = outcome.action[ids] == "rematch_image"
        before = self.pictures(ids)
        after = self.pictures(np.where(replaced, outcome.donor[ids], ids))
        cards = [
            self._card(i, image, new_image, visible(why[i]) if why and why[i] else None, notes[k] if notes else None)
            for k, (i, image, new_image) in enumerate(zip(ids.tolist(), before, after, strict=True))
        ]
        return {"name": name, "title": title, "note": note, "total": total, "cards": cards}

    def _card(
        self, i: int, image: str | None, new_image: str | None, why: str | None, note: str | None
    ) -> dict[str, Any]:
        pairs, outcome = self.pairs, self.outcome
        replaces_image, donor = bool(outcome.action[i] == "rematch_image"), int(outcome.donor[i])
        repaired = outcome.kind[i] == "repaired" and (donor >= 0 or outcome.action[i] == "recaption")
        verdict, right = _verdict(pairs, outcome, i, donor)
        return {
            "pair_id": i,
            "kind": str(outcome.kind[i]),
            "key": visible(pairs.keys[i], 60),
            "image": image,
            "alt": self.missing,
            "before": visible(pairs.captions[i] or ""),
            "after": visible(outcome.caption[i] or "") if repaired and not replaces_image else None,
            "new_image": new_image,
            "replaces_image": replaces_image,
            "score": float(outcome.correspondence[i]),
            "repair_score": float(outcome.repair_score[i]) if repaired else None,
            "donor": donor if repaired and donor >= 0 else None,
            "verdict": verdict,
            "right": right,
            "note": note,
            "why": why,
        }


def galleries(shown: Cards, count: int, why: Sequence[str | None] | None) -> list[dict[str, Any]]:
    """The repairs, the worst pairs, the doubtful ones on both sides of the threshold, and the best.

    ``count`` cards each at most; galleries of no pair are left out. Ties are in order of pair_id.
    """
    outcome = shown.outcome
    repaired = _sorted(outcome, "repaired", -outcome.repair_score)
    kept = _sorted(outcome, "kept", outcome.correspondence)
    kind = "flagged" if (outcome.kind == "flagged").any() else "dropped"
    gone, Kind = _sorted(outcome, kind, outcome.correspondence), kind.capitalize()
    spread = repaired[np.unique(np.linspace(0, len(repaired) - 1, min(count, len(repaired))).round().astype(int))]
    doubtful, best = (ids[count:][::-1][:count] for ids in (gone, kept))
    chosen = [
        ("repaired", "Repaired pairs", "evenly spread from the surest to the least sure", repaired, spread),
        (kind, f"{Kind}: the worst", "the lowest correspondence of all", gone, gone[:count]),
        (kind, f"{Kind}, though doubtful", "the highest correspondence below the threshold", gone, doubtful),
        ("kept", "Kept, though doubtful", "the lowest correspondence of all that were kept", kept, kept[:count]),
        ("kept", "Kept: the best", "the highest correspondence of all that were kept", kept, best),
    ]
    return [
        shown.gallery(title, note, len(whole), ids, name=name, why=why)
        for name, title, note, whole, ids in chosen
        if len(ids)
    ]


def _sorted(outcome: Outcome, kind: str, by: np.ndarray) -> np.ndarray:
    ids = np.flatnonzero(outcome.kind == kind)
    return ids[np.argsort(by[ids], kind="stable")]


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
