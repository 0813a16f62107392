"""Which pairs the report shows: galleries of cards, donors, duplicates, and where other scores disagree."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from matplotlib.axes import Axes

from cleanpairs.core import DataError, plural
from cleanpairs.data import Pairs, visible
from cleanpairs.data.decoding import thumbnails
from cleanpairs.repair.actions import REMATCHED
from cleanpairs.repair.displaced import COLUMNS
from cleanpairs.repair.plan import truth_after
from cleanpairs.report.outcome import Outcome, table_of_scores
from cleanpairs.report.plots import DASHED, drawn


class Cards:
    """Makes cards of N pairs. An image is read and shrunk once, however often the page shows it."""

    def __init__(self, pairs: Pairs, outcome: Outcome) -> None:
        self.pairs, self.outcome = pairs, outcome
        self._addresses: dict[int, str | None] = {}
        own = np.arange(len(pairs))
        sources = (np.where(outcome.action == action, outcome.donor, own) for action in REMATCHED)
        self._truth_after = {} if outcome.truth is None else truth_after(pairs, *sources)

    def image_addresses(self, ids: np.ndarray) -> list[str | None]:
        """Return the images of pairs (k,) as data addresses, None where there is none or it cannot be decoded."""
        rows = self.pairs.image_index[ids]
        new = np.array([m for m in np.unique(rows).tolist() if m not in self._addresses], np.int64)
        small = thumbnails(self.pairs.images, new, 160)  # pixels: the page has half of it on a dense screen
        for row, jpeg in zip(new.tolist(), small, strict=True):
            address = None if jpeg is None else "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()
            self._addresses[row] = address
        return [self._addresses[m] for m in rows.tolist()]

    def gallery(
        self, title: str, note: str, total: int, ids: np.ndarray, *, name: str = "neutral",
        why: Sequence[str | None] | None = None, notes: Sequence[str] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the cards of pairs (k,) out of ``total``.

        The ``note`` says how they were chosen. The kind ``name`` gives them their colour. Sentences ``why`` (N,) go
        with all pairs. Pairs that were chosen by other scores have these as ``notes`` (k,).
        """
        before = self.image_addresses(ids)
        replaced = self.outcome.action[ids] == "rematch_image"
        after = self.image_addresses(np.where(replaced, self.outcome.donor[ids], ids))
        cards = [
            {
                "pair_id": i,
                "image": before[k],
                "new_image": after[k],
                "verdict": self._verdict(i),
                "note": notes[k] if notes else None,
                "why": why[i] if why else None,
            }
            for k, i in enumerate(ids.tolist())
        ]
        return {"name": name, "title": title, "note": note, "total": total, "cards": cards}

    def _verdict(self, i: int) -> tuple[str, bool] | None:
        """Return the truth about pair ``i`` and what became of it, and whether that was right."""
        outcome = self.outcome
        if outcome.truth is None:
            return None
        wrong = bool(outcome.truth[i])
        if outcome.kind[i] != "repaired":
            return ("truth: mismatched" if wrong else "truth: matched"), (outcome.kind[i] == "kept") != wrong
        if not wrong:
            return "truth: matched before the repair", False
        if outcome.action[i] == "recaption":
            return "truth: mismatched before, caption written", True
        if "true_key" not in self._truth_after:
            return "truth: mismatched", True
        back = not np.ma.filled(self._truth_after["true_mismatch"], True)[i]
        return ("truth: repaired with its own partner" if back else "truth: repaired with a wrong partner"), back


def galleries(cards: Cards, count: int, why: Sequence[str | None] | None) -> list[dict[str, Any]]:
    """Return the repairs, the worst pairs, the doubtful ones on both sides of the threshold, and the best."""
    outcome = cards.outcome

    def ranked(kind: str, by: np.ndarray) -> np.ndarray:
        ids = np.flatnonzero(outcome.kind == kind)
        return ids[np.argsort(by[ids], kind="stable")]

    repaired, kept = ranked("repaired", -outcome.repair_score), ranked("kept", outcome.correspondence)
    kind = "flagged" if (outcome.kind == "flagged").any() else "dropped"
    gone, Kind = ranked(kind, outcome.correspondence), kind.capitalize()
    spread = repaired[np.unique(np.linspace(0, len(repaired) - 1, min(count, len(repaired))).round().astype(int))]
    has_scores = np.isfinite(outcome.repair_score[repaired]).any()
    by_score = " from the highest repair score to the lowest" if has_scores else ""
    doubtful, best = (ids[count:][::-1][:count] for ids in (gone, kept))
    chosen = [
        ("repaired", "Repaired pairs", f"evenly spread{by_score}", repaired, spread),
        (kind, f"{Kind}: the worst", "the lowest correspondence of all", gone, gone[:count]),
        (kind, f"{Kind}, though doubtful", f"the highest correspondence of all that were {kind}", gone, doubtful),
        ("kept", "Kept, though doubtful", "the lowest correspondence of all that were kept", kept, kept[:count]),
        ("kept", "Kept: the best", "the highest correspondence of all that were kept", kept, best),
    ]
    return [
        cards.gallery(title, note, len(whole), ids, name=name, why=why)
        for name, title, note, whole, ids in chosen
        if len(ids)
    ]


def donors(cards: Cards, count: int) -> list[tuple[int, int, str | None]]:
    """Return (pair, uses, image) of the ``count`` pairs that most repaired pairs took a part of, at least two."""
    outcome = cards.outcome
    ids, uses = np.unique(outcome.donor[(outcome.kind == "repaired") & (outcome.donor >= 0)], return_counts=True)
    order = np.argsort(-uses, kind="stable")[:count]
    order = order[uses[order] > 1]
    return list(zip(ids[order].tolist(), uses[order].tolist(), cards.image_addresses(ids[order]), strict=True))


def duplicates(cards: Cards, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the ``count`` largest groups of one image and of one text, of ``total`` groups of ``pairs`` pairs."""
    pairs, groups = cards.pairs, []
    images = pairs.image_group[np.unique(pairs.image_index)]  # a selection of pairs shares the images of all
    texts = pairs.text_group[[bool((caption or "").strip()) for caption in pairs.captions]] if len(pairs) else images
    for title, group, members, most_images, most_captions in (
        ("The same image", pairs.pair_image_group, images, 1, 4),
        ("The same text", pairs.text_group, texts, 6, 1),
    ):
        names, size = np.unique(members, return_counts=True)
        order, largest = np.argsort(-size, kind="stable")[:count], []
        for name in names[order[size[order] > 1]].tolist():
            ids = np.flatnonzero(group == name)
            _, first = np.unique(pairs.image_index[ids], return_index=True)
            distinct = dict.fromkeys(visible(pairs.captions[i] or "(no caption)", 120) for i in ids[:200].tolist())
            largest.append({
                "pairs": len(ids),
                "images": len(first),
                "captions": list(distinct)[:most_captions],
                "pictures": cards.image_addresses(ids[np.sort(first)][:most_images]),
                "mean": float(pd.Series(cards.outcome.correspondence[ids]).mean()),
            })  # fmt: skip
        if largest:
            several = int((size > 1).sum()), int(np.isin(group, names[size > 1]).sum())
            groups.append((title, {"total": several[0], "pairs": several[1], "largest": largest}))
    return groups


def precomputed_scores(pairs: Pairs, scores: Any, most: int = 4) -> dict[str, np.ndarray]:
    """Return name -> scores (N,) float64 or NaN: those of the input, then other floats of the scores table."""
    columns = {name: np.asarray(values, np.float64) for name, values in pairs.precomputed_scores.items()}
    table, ours = table_of_scores(scores), ("correspondence", *COLUMNS.names)
    for field in table.schema:
        if pa.types.is_floating(field.type) and field.name not in ours:
            columns[field.name] = table[field.name].cast(pa.float64()).fill_null(np.nan).to_numpy()
    return dict(list(columns.items())[:most])


def compare_scores(cards: Cards, given: Mapping[str, np.ndarray], count: int) -> list[dict[str, Any]]:
    """Compare each precomputed score with the correspondence, over the pairs that have both, if there are two.

    The galleries have the pairs whose ranks are furthest apart, ``count`` each way.
    """
    out, outcome = [], cards.outcome
    for name, values in given.items():
        if len(values) != len(outcome):
            counts = f"{plural(len(values), 'pair')}, the run about {len(outcome)}"
            raise DataError(f"the precomputed score {name!r} is about {counts}")
        rows = np.flatnonzero(np.isfinite(values) & outcome.scored)
        if len(rows) < 2:
            continue
        from scipy.stats import spearmanr
        from sklearn.metrics import roc_auc_score

        x, y, title = values[rows], outcome.correspondence[rows], visible(name, 60)
        constant = x.min() == x.max() or y.min() == y.max()
        truth = None if outcome.truth is None else outcome.truth[rows]
        has_truth = truth is not None and truth.min() != truth.max()
        out.append({
            "name": title,
            "pairs": len(rows),
            "rank_correlation": float("nan") if constant else float(spearmanr(x, y).statistic),
            "auroc": float(roc_auc_score(truth, -x)) if has_truth else None,
            "auroc_ours": float(roc_auc_score(truth, -y)) if has_truth else None,
            "figure": _figure(x, y, title, outcome.threshold),
            "galleries": _disagreements(cards, visible(name, 40), values, rows, count),
        })  # fmt: skip
    return out


def _figure(given: np.ndarray, correspondence: np.ndarray, name: str, threshold: float) -> str:
    def draw(ax: Axes) -> None:
        bins = (40, np.linspace(0, 1, 41))
        counts, *_, mesh = ax.hist2d(given, correspondence, bins, cmin=1, norm="log", cmap="Blues", rasterized=True)
        mesh.set_clim(1, max(np.nanmax(counts), 2))
        ax.figure.colorbar(mesh, ax=ax, label="pairs")
        ax.axhline(threshold, **DASHED)
        ax.set_xlabel(name.replace("$", r"\$"))
        ax.set_ylabel("correspondence")

    return drawn(draw)


def _disagreements(cards: Cards, name: str, values: np.ndarray, both: np.ndarray, count: int) -> list[dict[str, Any]]:
    from scipy.stats import rankdata

    gap = (rankdata(values[both]) - rankdata(cards.outcome.correspondence[both])) / len(both)  # in (-1, 1)
    parts = []
    for sign, title in ((1, f"Higher by {name} than by cleanpairs"), (-1, f"Lower by {name} than by cleanpairs")):
        order = np.argsort(-gap, kind="stable")[::sign][:count]
        ids = both[order[sign * gap[order] > 0]]
        notes = [f"{name} {value:.3g}" for value in values[ids]]
        if len(ids):
            parts.append(cards.gallery(title, "ranks furthest apart first", len(both), ids, notes=notes))
    return parts
