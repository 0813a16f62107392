"""Which pairs the report shows: galleries of cards, donors, duplicates; with text made visible."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from cleanpairs.audit.sheet import data_address, thumbnails
from cleanpairs.data.display import visible
from cleanpairs.data.pairs import Pairs
from cleanpairs.report.outcome import Outcome

THUMBNAIL = 160  # longest side in pixels: shown at half of it on a dense screen
PICTURES, CAPTIONS = 6, 4  # of a group of duplicates


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
        pairs, outcome, cards = self.pairs, self.outcome, []
        replaced = outcome.action[ids] == "rematch_image"
        before, after = self.pictures(ids), self.pictures(np.where(replaced, outcome.donor[ids], ids))
        for k, i in enumerate(ids.tolist()):
            donor, repaired = int(outcome.donor[i]), outcome.kind[i] == "repaired"
            verdict, right = _verdict(pairs, outcome, i, donor)
            cards.append({
                "pair_id": i,
                "kind": outcome.kind[i],
                "key": visible(pairs.keys[i], 60),
                "image": before[k],
                "alt": self.missing,
                "before": visible(pairs.captions[i] or ""),
                "after": visible(outcome.caption[i] or "") if repaired and not replaced[k] else None,
                "new_image": after[k],
                "replaces_image": bool(replaced[k]),
                "score": float(outcome.correspondence[i]),
                "repair_score": float(outcome.repair_score[i]) if repaired else None,
                "donor": donor if repaired and donor >= 0 else None,
                "verdict": verdict,
                "right": right,
                "note": notes[k] if notes else None,
                "why": visible(why[i]) if why and why[i] else None,
            })  # fmt: skip
        return {"name": name, "title": title, "note": note, "total": total, "cards": cards}


def galleries(shown: Cards, count: int, why: Sequence[str | None] | None) -> list[dict[str, Any]]:
    """The repairs, the worst pairs, the doubtful ones on both sides of the threshold, and the best.

    ``count`` cards each at most; galleries of no pair are left out. Ties are in order of pair_id.
    """
    outcome = shown.outcome

    def ranked(kind: str, by: np.ndarray) -> np.ndarray:
        ids = np.flatnonzero(outcome.kind == kind)
        return ids[np.argsort(by[ids], kind="stable")]

    repaired, kept = ranked("repaired", -outcome.repair_score), ranked("kept", outcome.correspondence)
    kind = "flagged" if (outcome.kind == "flagged").any() else "dropped"
    gone, Kind = ranked(kind, outcome.correspondence), kind.capitalize()
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


def _verdict(pairs: Pairs, outcome: Outcome, i: int, donor: int) -> tuple[str | None, bool | None]:
    """What the truth says of pair ``i`` and what was done with it."""
    if outcome.truth is None:
        return None, None
    wrong = bool(outcome.truth[i])
    if outcome.kind[i] != "repaired":
        return ("in truth mismatched" if wrong else "in truth matched"), (outcome.kind[i] == "kept") != wrong
    if not wrong:
        return "was right before", False
    if outcome.action[i] == "recaption":
        return "was mismatched, a caption was written", True
    if pairs.true_key is None:
        return "in truth mismatched", True
    image, caption = (donor, i) if outcome.action[i] == "rematch_image" else (i, donor)
    back = pairs.true_key[caption] == pairs.keys[image]
    return ("got its own partner back" if back else "another partner than its own"), back


def reused_donors(shown: Cards, count: int) -> list[dict[str, Any]]:
    """The ``count`` pairs whose caption or image most repaired pairs got, twice at least, ties in order of pair_id."""
    pairs, outcome = shown.pairs, shown.outcome
    ids, uses = np.unique(outcome.donor[(outcome.kind == "repaired") & (outcome.donor >= 0)], return_counts=True)
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


def duplicates(shown: Cards, count: int) -> list[tuple[str, dict[str, Any]]]:
    """What several image rows, or several pairs, share: the same bytes (or vector), the same text but for case and
    white space; of each that occurs the ``count`` largest groups, out of ``total`` that hold ``pairs`` pairs.
    """
    pairs = shown.pairs
    images = pairs.image_group[np.unique(pairs.image_index)]  # a selection of pairs shares the images of all
    texts = pairs.text_group[[bool((caption or "").strip()) for caption in pairs.captions]] if len(pairs) else images
    found = [
        ("The same image", _groups(shown, count, pairs.pair_image_group, images, 1, CAPTIONS)),
        ("The same text", _groups(shown, count, pairs.text_group, texts, PICTURES, 1)),
    ]
    return [(name, group) for name, group in found if group["total"]]


def _groups(
    shown: Cards, count: int, group: np.ndarray, members: np.ndarray, pictures: int, captions: int
) -> dict[str, Any]:
    """``group`` (N,): of each pair; ``members`` (k,): those of what makes a group one of several."""
    pairs, found = shown.pairs, []
    names, size = np.unique(members, return_counts=True)
    largest = np.argsort(-size, kind="stable")[:count]
    for name in names[largest[size[largest] > 1]].tolist():
        ids = np.flatnonzero(group == name)
        _, first = np.unique(pairs.image_index[ids], return_index=True)
        texts = dict.fromkeys(visible(pairs.captions[i] or "(empty caption)", 120) for i in ids[:200].tolist())
        found.append({
            "pairs": len(ids),
            "images": len(first),
            "captions": list(texts)[:captions],
            "pictures": shown.pictures(ids[np.sort(first)][:pictures]),
            "mean": float(pd.Series(shown.outcome.correspondence[ids]).mean()),
        })  # fmt: skip
    return {"total": int((size > 1).sum()), "pairs": int(np.isin(group, names[size > 1]).sum()), "largest": found}
