"""Repairs of displaced rows: one rule moves the captions of a block back to their images.

The rule has its own proof (:mod:`cleanpairs.correspondence.displacement`). So it does not ask for a margin, and it
concerns all pairs of a block, whatever their correspondence.
"""

from collections.abc import Container

import numpy as np
import pyarrow as pa

from cleanpairs.core import plural
from cleanpairs.correspondence.displacement import Displacement
from cleanpairs.repair.actions import DISPLACED

# A pair that gets the caption of the pair ``donor``, so many rows further on, and the probability that it is its own.
MOVE = np.dtype([("pair", np.int64), ("donor", np.int64), ("distance", np.int64), ("confidence", np.float32)])
COLUMNS = pa.schema([("displaced_from", pa.int64()), ("displaced_confidence", pa.float32())])  # of a table of scores


def moves_of(row: np.ndarray, text_group: np.ndarray, found: Displacement, quarantined: Container[int]) -> np.ndarray:
    """Find the captions that the rule moves.

    Parameters
    ----------
    row, text_group : (N,) int64
        Input row and text group of the pairs that were searched. Equal groups are one text.
    found : Displacement
        What was found in these rows.
    quarantined : container of int
        Pairs that neither get nor give a caption.

    Returns
    -------
    np.ndarray
        (k,) of :data:`MOVE`, by rising pair.

    Notes
    -----
    The j-th caption of a row moves to the j-th place of another row. Where that row has fewer places, it stays.
    A caption goes to one image, the likeliest, if it belongs there with a probability above 2/3. A pair that shows its
    own caption already stays as it is.
    """
    row, donor = _donors(row, found)
    pair = np.flatnonzero((donor >= 0) & (found.probability[row] > 2 / 3))  # a wrong caption costs twice a missed one
    out = np.empty(len(pair), MOVE)
    out["pair"], out["donor"] = pair, donor[pair]
    out["distance"], out["confidence"] = found.distance[row[pair]], found.probability[row[pair]]
    out = out[text_group[out["donor"]] != text_group[pair]]
    out = out[[not (i in quarantined or j in quarantined) for i, j in zip(out["pair"], out["donor"], strict=True)]]
    out = out[np.argsort(-out["confidence"], kind="stable")]
    return np.sort(out[np.unique(out["donor"], return_index=True)[1]], order="pair")


def misplaced(row: np.ndarray, image_group: np.ndarray, text_group: np.ndarray, found: Displacement) -> np.ndarray:
    """Find the pairs of displaced rows that show another image's caption, even if their own is not found.

    Parameters
    ----------
    row, text_group, found
        As of :func:`moves_of`.
    image_group : (N,) int64
        Equal numbers are one image. Its captions may stand at any of its rows.

    Returns
    -------
    np.ndarray
        (N,) bool.
    """
    row, donor = _donors(row, found)
    has = np.flatnonzero(donor >= 0)
    there = donor[has]
    right = np.zeros(len(row), bool)
    right[has[text_group[there] == text_group[has]]] = True
    right[there[image_group[there] == image_group[has]]] = True  # the caption of another row of their image
    return (found.distance[row] != 0) & ~right


def moves_and_misplaced(
    row: np.ndarray, image_group: np.ndarray, text_group: np.ndarray, found: Displacement, quarantined: Container[int],
    correspondence: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Find the moves, and the pairs that show another image's caption, so that each caption belongs to one image.

    Parameters
    ----------
    row, image_group, text_group, found, quarantined
        As of :func:`moves_of` and :func:`misplaced`.
    correspondence : (N,) float
        Probability that a pair in place has its own caption. It keeps one that is less likely to belong to a block.

    Returns
    -------
    moves : np.ndarray
        (k,) of :data:`MOVE`.
    away : np.ndarray
        (N,) bool.
    """
    moves, away = moves_of(row, text_group, found, quarantined), misplaced(row, image_group, text_group, found)
    donor, in_place = moves["donor"], found.distance[np.unique(row, return_inverse=True)[1]] == 0
    claimed = in_place[donor] & (image_group[donor] != image_group[moves["pair"]])
    kept = claimed & (correspondence[donor] > moves["confidence"])
    away[donor[claimed & ~kept]] = True
    return moves[~kept], away


def _donors(row: np.ndarray, found: Displacement) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of each of N pairs among those searched, and the pair that has its caption, or -1."""
    _, first, row = np.unique(row, return_index=True, return_inverse=True)
    count, source, place = np.diff(first, append=len(row)), row + found.distance[row], np.arange(len(row)) - first[row]
    inside = (found.distance[row] != 0) & (source >= 0) & (source < len(first))
    source = np.where(inside, source, 0)
    return row, np.where(inside & (place < count[source]), first[source] + place, -1)


def as_columns(moves: np.ndarray, n: int) -> pa.Table:
    """Return the moves among n pairs, as columns of a table of scores."""
    donor, confidence = np.full(n, -1), np.full(n, np.nan, np.float32)
    donor[moves["pair"]], confidence[moves["pair"]] = moves["donor"], moves["confidence"]
    return pa.table([pa.array(x, mask=donor < 0) for x in (donor, confidence)], COLUMNS)


def from_columns(table: pa.Table) -> np.ndarray:
    """Return the moves of a table of scores with one pair a row, (k,) of :data:`MOVE`. None of a table without them."""
    if not set(COLUMNS.names) <= set(table.column_names):
        return np.empty(0, MOVE)
    donor, confidence = (table[name].to_numpy(zero_copy_only=False) for name in COLUMNS.names)
    pair = np.flatnonzero(~np.isnan(confidence))
    out = np.empty(len(pair), MOVE)
    out["pair"], out["donor"], out["confidence"] = pair, donor[pair], confidence[pair]
    out["distance"] = out["donor"] - pair
    return out


def reason_of(distance: int) -> str:
    """Return the rule that moves captions of a block by ``distance`` rows, as a ledger names it."""
    far = abs(distance)
    return f"{DISPLACED}its caption stood {plural(far, 'row')} {'down' if distance > 0 else 'up'}"
