"""Candidate edges between orphaned rows and the parts that could repair them, found by nearest neighbours.

Equal parts are one candidate: a caption that stands in a thousand rows would otherwise fill every candidate list. So
donors are *groups* (of equal texts, of equal images), each with the members that can give the part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cleanpairs.ops.assign import Members
from cleanpairs.ops.search import SearchNote, TopK, top_k

__all__ = ["Edges", "Search", "Side", "candidate_edges"]

Search = Callable[[bool, bool, np.ndarray, np.ndarray, int], TopK | None]
"""``search(is_image, trusted, asking, showing, k)``: for each pair of ``asking`` (Q,), whose text is kept where
``is_image`` and whose image is kept otherwise, the k best pairs of ``showing`` (G,) to take the other part from, as
positions (Q, k) in it and scores. None: the most similar parts are to be looked for."""

# A row's neighbours often are what it may not take (the image's other captions): look that much further.
_SLACK = 8


@dataclass(frozen=True)
class Side:
    """One modality: ``z`` (M, d) unit vectors, ``index`` (N,) row of ``z`` of each pair, ``group`` (N,) dense group."""

    z: np.ndarray
    index: np.ndarray
    group: np.ndarray


@dataclass(frozen=True)
class Edges:
    """Columns of E candidate edges, and the donor groups that they point to.

    ``row`` int32, into the orphans; ``is_image`` bool; ``trusted`` bool: the donor group is of trusted pairs;
    ``donor_group`` int32, into ``members``; ``image_of``, ``text_of`` int32: pairs that show the edge's image and its
    text; ``key`` int64: image group times the number of text groups plus text group; ``similarity`` float32.
    ``searches``: how the neighbours were looked for, per pool and direction.
    """

    row: np.ndarray
    is_image: np.ndarray
    trusted: np.ndarray
    donor_group: np.ndarray
    image_of: np.ndarray
    text_of: np.ndarray
    key: np.ndarray
    similarity: np.ndarray
    members: Members
    searches: tuple[SearchNote, ...] = ()

    def __len__(self) -> int:
        return len(self.row)


def candidate_edges(
    image: Side,
    text: Side,
    orphans: np.ndarray,
    pools: Sequence[tuple[np.ndarray, bool]],
    taken: np.ndarray,
    *,
    replace_text: bool,
    replace_image: bool,
    candidates: int,
    search: Search | None = None,
) -> Edges:
    """The nearest admissible parts of every orphan, out of every pool.

    Parameters
    ----------
    image, text : Side
    orphans : (R,) int64
        Pairs to repair.
    pools : sequence of ((m,) int64, bool)
        Donor pairs, in the order in which a group's members are used, and whether they are trusted.
    taken : (U,) int64
        Sorted keys of pairs of image and text that no edge may make.
    replace_text, replace_image : bool
        Directions.
    candidates : int
        How many groups a row gets at most, per pool and direction.
    search : callable, optional
        Another way to look for them than by the cosine; see :data:`Search`.
    """
    n_text = int(text.group.max()) + 1 if len(text.group) else 0
    parts: list[dict[str, np.ndarray]] = []
    holders: list[Members] = []
    searches: list[SearchNote] = []
    first_group = 0
    for donors, trusted in pools:
        for is_image in (False, True):
            if not (replace_image if is_image else replace_text) or not len(donors) or not len(orphans):
                continue
            kept, given = (text, image) if is_image else (image, text)
            queries, query_of_row = np.unique(kept.group[orphans], return_inverse=True)
            groups, group_of_donor = np.unique(given.group[donors], return_inverse=True)
            asking = _representatives(query_of_row, orphans, len(queries))
            showing = _representatives(group_of_donor, donors, len(groups))
            found = search(is_image, trusted, asking, showing, candidates + _SLACK) if search is not None else None
            if found is None:
                found = top_k(kept.z[kept.index[asking]], given.z[given.index[showing]], candidates + _SLACK)
            if found.note is not None:
                searches.append(found.note)
            nearest = found.indices[query_of_row]  # (R, k)
            pair = showing[np.maximum(nearest, 0)]  # (R, k) a pair that shows the donor part
            own = kept.group[orphans][:, None]
            key = given.group[pair] * n_text + own if is_image else own * n_text + given.group[pair]
            admitted = (nearest >= 0) & ~_contains(taken, key)
            admitted &= np.cumsum(admitted, axis=1) <= candidates
            row, column = np.nonzero(admitted)
            donor, self_pair = pair[row, column], orphans[row]
            parts.append(
                {
                    "row": row.astype(np.int32),
                    "is_image": np.full(len(row), is_image),
                    "trusted": np.full(len(row), trusted),
                    "donor_group": (nearest[row, column] + first_group).astype(np.int32),
                    "image_of": (donor if is_image else self_pair).astype(np.int32),
                    "text_of": (self_pair if is_image else donor).astype(np.int32),
                    "key": key[row, column],
                    "similarity": found.scores[query_of_row[row], column],
                }
            )
            # What k wronged pairs carry may go back to k; equal parts of trusted pairs are one donor.
            held = (np.arange(len(groups)), showing) if trusted else (group_of_donor, donors)
            holders.append(Members.from_groups(*held, len(groups)))
            first_group += len(groups)
    return Edges(**_stack(parts), members=_join(holders), searches=tuple(searches))


def _representatives(group: np.ndarray, member: np.ndarray, n_groups: int) -> np.ndarray:
    """The first of each group's members: (n_groups,)."""
    first = np.empty(n_groups, np.int64)
    first[group[::-1]] = member[::-1]  # the last write wins: the first in order
    return first


def _contains(sorted_keys: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Which entries of ``key`` are among ``sorted_keys``; the same shape as ``key``, bool."""
    if not len(sorted_keys):
        return np.zeros(key.shape, bool)
    at = np.minimum(np.searchsorted(sorted_keys, key), len(sorted_keys) - 1)
    return sorted_keys[at] == key


def _stack(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    types: dict[str, type] = {
        "row": np.int32,
        "is_image": np.bool_,
        "trusted": np.bool_,
        "donor_group": np.int32,
        "image_of": np.int32,
        "text_of": np.int32,
        "key": np.int64,
        "similarity": np.float32,
    }
    return {name: np.concatenate([np.empty(0, kind), *(p[name] for p in parts)]) for name, kind in types.items()}


def _join(holders: list[Members]) -> Members:
    member, start, used = [np.empty(0, np.int64)], [np.zeros(1, np.int64)], 0
    for holder in holders:
        member.append(holder.member)
        start.append(holder.start[1:] + used)
        used += len(holder.member)
    return Members(np.concatenate(member), np.concatenate(start))
