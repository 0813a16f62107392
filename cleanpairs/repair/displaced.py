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


def moves_and_misplaced(
    row: np.ndarray, image_group: np.ndarray, text_group: np.ndarray, found: Displacement, quarantined: Container[int],
    correspondence: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Find the captions that the rule moves, and the pairs that show another image's caption.

    Parameters
    ----------
    row, image_group, text_group : (N,) int64
        Input row, image and text of the pairs that were searched. Equal groups are one image, or one text. The captions
        of an image may stand at any of its rows.
    found : Displacement
        What was found in these rows.
    quarantined : container of int
        Pairs that neither get nor give a caption.
    correspondence : (N,) float
        Probability that a pair in place has its own caption. It keeps one that is less likely to belong to a block.

    Returns
    -------
    moves : np.ndarray
        (k,) of :data:`MOVE`, by rising pair.
    away : np.ndarray
        (N,) bool. The pairs of displaced rows that show another image's caption, even if their own is not found, and
        those in place whose caption belongs to a block.

    Notes
    -----
    The j-th caption of a row moves to the j-th place of another row. Where that row has fewer places, it stays.
    A caption goes to one image, the likeliest, if it belongs there with a probability above 2/3. A pair that shows its
    own caption already stays as it is.
    """
    _, first, row = np.unique(row, return_index=True, return_inverse=True)  # among those searched
    count, place, distance = np.diff(first, append=len(row)), np.arange(len(row)) - first[row], found.distance[row]
    inside = (distance != 0) & (row + distance >= 0) & (row + distance < len(first))
    source = np.where(inside, row + distance, 0)
    donor = np.where(inside & (place < count[source]), first[source] + place, -1)  # the pair with the caption of each

    pair = np.flatnonzero((donor >= 0) & (found.probability[row] > 2 / 3))  # a wrong caption costs twice a missed one
    moves = np.empty(len(pair), MOVE)
    moves["pair"], moves["donor"] = pair, donor[pair]
    moves["distance"], moves["confidence"] = distance[pair], found.probability[row[pair]]
    moves = moves[text_group[moves["donor"]] != text_group[pair]]
    both = zip(moves["pair"], moves["donor"], strict=True)
    moves = moves[[not (i in quarantined or j in quarantined) for i, j in both]]
    moves = moves[np.argsort(-moves["confidence"], kind="stable")]
    moves = np.sort(moves[np.unique(moves["donor"], return_index=True)[1]], order="pair")

    has = np.flatnonzero(donor >= 0)
    there = donor[has]
    right = np.zeros(len(row), bool)
    right[has[text_group[there] == text_group[has]]] = True
    right[there[image_group[there] == image_group[has]]] = True  # the caption of another row of their image
    away = (distance != 0) & ~right

    giver = moves["donor"]
    claimed = (distance[giver] == 0) & (image_group[giver] != image_group[moves["pair"]])
    kept = claimed & (correspondence[giver] > moves["confidence"])
    away[giver[claimed & ~kept]] = True
    return moves[~kept], away


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
