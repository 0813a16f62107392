"""Candidate edges between mismatched rows and the parts that could repair them, found by nearest neighbours.

Equal parts are one candidate: donors are *groups* of equal texts or of equal images, each with the members that can
give the part. All edges are in memory: some 55 bytes each at the peak (docs/scale.md).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from cleanpairs.ops.mapped import blocks
from cleanpairs.ops.search import SearchNote, TopK, top_k
from cleanpairs.repair.assignment import Members
from cleanpairs.repair.settings import RepairSettings

DonorSearch = Callable[[bool, bool, np.ndarray, np.ndarray, int], TopK | None]
# ``search(is_image, trusted, queries, donors, k)``: for each pair of ``queries`` (Q,), whose text is kept where
# ``is_image`` and whose image is kept otherwise, the k best pairs of ``donors`` (G,) to take the other part from, as
# positions (Q, k) in it and scores. None: the most similar parts are to be looked for.

NeighbourSearch = Callable[[np.ndarray, np.ndarray, int], TopK]
# ``search(queries, rows, k)``: as :func:`cleanpairs.ops.search.top_k`.

EdgeScorer = Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]
# ``scorer(image_of, text_of, cosine)`` -> (u,) float32: the score of u pairs, each by a pair that shows its image and
# one that shows its text, and the inner product of their vectors where it is known.


@dataclass(frozen=True)
class Side:
    """One modality: ``z`` (M, d) unit vectors, ``index`` (N,) row of ``z`` of each pair, ``group`` (N,) dense group."""

    z: np.ndarray
    index: np.ndarray
    group: np.ndarray


@dataclass(frozen=True)
class Corpus:
    """N pairs, or those of them that a repair can concern.

    - ``mismatched``: R, the first of these pairs, which are to be repaired
    - ``pools``: donor pairs (m,) int64, and whether they are trusted
    - ``existing`` (U,) int64, sorted: image group times the number of text groups plus text group, of the pairs that no
      repair may make. The last is a number above all of these
    - ``typical``: median cosine of mismatched and trusted pairs
    - ``text_uses`` (N,): how many rows the caption of each pair serves already, where a rule has moved some
    """

    image: Side
    text: Side
    mismatched: int
    pools: list[tuple[np.ndarray, bool]]
    existing: np.ndarray
    typical: tuple[float, float]
    text_uses: np.ndarray


COLUMNS = {"row": np.int32, "is_image": bool, "trusted": bool, "donor_group": np.int32, "similarity": np.float32}


@dataclass(frozen=True)
class Edges:
    """Columns of E candidate edges, and the donor groups that they point to.

    - ``row`` int32: the mismatched pair
    - ``is_image``, ``trusted`` bool: the image is replaced. The donor group is of trusted pairs
    - ``donor_group`` int32: place in ``members``, the pairs that can give its part
    - ``similarity`` float32
    - ``searches``: how neighbours were looked for
    - ``cosine``: ``similarity`` is the inner product of the vectors in all of them
    """

    row: np.ndarray
    is_image: np.ndarray
    trusted: np.ndarray
    donor_group: np.ndarray
    similarity: np.ndarray
    members: Members
    searches: tuple[SearchNote, ...]
    cosine: bool

    def __len__(self) -> int:
        return len(self.row)

    def shown_by(self, at: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray]:
        """Pairs that show the images, and pairs that show the texts, of the edges ``at``: (b,) int32 each."""
        own, given, is_image = self.row[at], self.members.first[self.donor_group[at]], self.is_image[at]
        return np.where(is_image, given, own), np.where(is_image, own, given)

    def only(self, some: np.ndarray) -> "Edges":
        """Return the edges where ``some`` (E,) is true. All donor groups stay."""
        return replace(self, **{name: getattr(self, name)[some] for name in COLUMNS})

    def and_others(self, others: "Edges") -> "Edges":
        """Return these edges, followed by ``others`` of the same mismatched pairs."""
        columns = {name: np.concatenate([getattr(self, name), getattr(others, name)]) for name in COLUMNS}
        columns["donor_group"][len(self) :] += len(self.members.first)
        members = (self.members.member, others.members.member)
        starts = self.members.start, others.members.start[1:] + self.members.start[-1]
        return replace(
            self, **columns, members=Members(*map(np.concatenate, (members, starts))),
            searches=self.searches + others.searches, cosine=self.cosine and others.cosine,
        )  # fmt: skip


def candidate_edges(
    corpus: Corpus, settings: RepairSettings, donor_search: DonorSearch | None, neighbour_search: NeighbourSearch,
    *, trusted: Sequence[bool] = (False, True), rows: Mapping[bool, np.ndarray] | None = None,
) -> Edges:  # fmt: skip
    """Return the nearest admissible parts of mismatched pairs, ``settings.candidates`` out of every pool and direction.

    - ``donor_search``, ``neighbour_search``: as :func:`cleanpairs.repair.planning.plan_repairs` has them
    - ``trusted``: of which pools
    - ``rows``: the mismatched pairs that may get another text, by False, or another image, by True. All when None
    """
    image, text = corpus.image, corpus.text
    k = settings.candidates + 8  # the nearest often are what a row may not take: the other captions of its image
    directions = [False] * settings.replaces_text + [True] * settings.replaces_image
    pools = [pool for pool in corpus.pools if len(pool[0]) and pool[1] in trusted]
    parts = {name: [np.empty(0, kind)] for name, kind in COLUMNS.items()}
    holders: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0, np.int32), np.empty(0, np.int32))]
    searches: list[SearchNote] = []
    by_cosine, first = True, 0
    for (donors, sure), is_image in product(pools, directions):
        wanted = np.arange(corpus.mismatched, dtype=np.int32) if rows is None else rows[is_image]
        if not len(wanted):
            continue
        kept, given = (text, image) if is_image else (image, text)
        query_of_row, queries = _distinct(kept, wanted)
        group_of_donor, distinct_donors = _distinct(given, donors)
        found = donor_search(is_image, sure, queries, distinct_donors, k) if donor_search is not None else None
        if found is None:
            found = neighbour_search(_rows(kept, queries), _rows(given, distinct_donors), k)
        else:
            by_cosine = False
        if found.note is not None:
            searches.append(found.note)
        admissible = _admissible(corpus, found, wanted, query_of_row, distinct_donors, is_image, settings.candidates)
        for row, nearest, similarity in admissible:
            columns = (row, np.full(len(row), is_image), np.full(len(row), sure), nearest + first, similarity)
            for (name, kind), column in zip(COLUMNS.items(), columns, strict=True):
                parts[name].append(column.astype(kind, copy=False))
        # What k mismatched pairs carry may go back to k. Equal parts of trusted pairs are one donor.
        group_of, holder = (np.arange(len(distinct_donors)), distinct_donors) if sure else (group_of_donor, donors)
        holders.append(((first + group_of).astype(np.int32), holder.astype(np.int32)))
        first += len(distinct_donors)
    group, member = (np.concatenate(each) for each in zip(*holders, strict=True))
    return Edges(
        **{name: np.concatenate(parts.pop(name)) for name in COLUMNS},
        members=Members.from_groups(group, member, first),
        searches=tuple(searches),
        cosine=by_cosine,
    )


def _admissible(
    corpus: Corpus, found: TopK, wanted: np.ndarray, query_of_row: np.ndarray, donors: np.ndarray, is_image: bool,
    candidates: int,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:  # fmt: skip
    """Yield row, place and score of the nearest ``found`` for the mismatched pairs ``wanted`` that make new pairs."""
    kept, given = (corpus.text, corpus.image) if is_image else (corpus.image, corpus.text)
    n_text = np.int64(corpus.text.group.max(initial=-1) + 1)
    for some in blocks(len(wanted), 1 << 15):  # their neighbours take some 50 MB
        rows, query = wanted[some], query_of_row[some]
        nearest = found.indices[query]  # (R, k)
        group = given.group[donors[np.maximum(nearest, 0)]]  # (R, k)
        own = kept.group[rows][:, None]
        key = group * n_text + own if is_image else own * n_text + group
        admitted = (nearest >= 0) & (corpus.existing[np.searchsorted(corpus.existing, key)] != key)
        admitted &= np.cumsum(admitted, axis=1) <= candidates
        row, column = np.nonzero(admitted)
        yield rows[row], nearest[row, column], found.scores[query[row], column]


def _distinct(side: Side, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct parts among ``pairs`` (m,): the number of each (m,), and a pair that has it (G,)."""
    _, first, number_of = np.unique(side.group[pairs], return_index=True, return_inverse=True)
    order = np.argsort(side.index[pairs[first]], kind="stable")
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return place[number_of], pairs[first[order]]


def _rows(side: Side, pairs: np.ndarray) -> np.ndarray:
    """Return the vectors of ``pairs`` (m,). Without a copy, where they stand one after the other."""
    index = side.index[pairs]
    if len(index) and index[-1] - index[0] == len(index) - 1 and (np.diff(index) == 1).all():
        return side.z[index[0] : index[-1] + 1]
    return np.asarray(side.z[index])


@dataclass(frozen=True)
class ScoredEdges(Edges):
    """E edges. The U distinct pairs of image and text that they make are numbered by their groups, each scored once.

    - ``number`` (E,) int32, ``score`` (E,) float32: of the pair that each edge makes
    - ``count``: U
    - ``lead`` (F,): of each pair that an edge to a mismatched donor makes the first such edge. By the numbers of pairs
    """

    number: np.ndarray
    score: np.ndarray
    count: int
    lead: np.ndarray


def score_edges(corpus: Corpus, edges: Edges, scorer: EdgeScorer) -> ScoredEdges:
    """Number the pairs that ``edges`` make, and score each once, sorted by their images."""
    image, text = edges.shown_by(slice(None))
    group = corpus.text.group
    key = corpus.image.group[image] * np.int64(group.max(initial=0) + 1) + group[text]
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    del key
    scores = scorer(image[first], text[first], edges.similarity[first] if edges.cosine else None)
    untrusted = np.flatnonzero(~edges.trusted)
    lead = untrusted[np.unique(number[untrusted], return_index=True)[1]]
    of_pair = number.astype(np.int32)
    return ScoredEdges(**vars(edges), number=of_pair, score=scores[number], count=len(first), lead=lead)


# Other ways to look for donors than the nearest part: the papers' searches, over vectors of pairs.


def half_replacing(z_image: np.ndarray, z_text: np.ndarray, neighbours: int = 32) -> DonorSearch:
    """Half-replacing: of the ``neighbours`` trusted pairs nearest in the kept part, the other part that fits best.

    ``z_image``, ``z_text`` (N, E) float: unit vectors of the images and texts of all pairs.
    Source: REPAIR (Zheng et al., 2024), eq. 10 to 13.
    """

    def search(is_image: bool, trusted: bool, queries: np.ndarray, donors: np.ndarray, k: int) -> TopK | None:
        if not trusted:
            return None
        kept, given = (z_text, z_image) if is_image else (z_image, z_text)
        near = top_k(kept[queries], kept[donors], neighbours)
        at = np.maximum(near.indices, 0)
        fit = np.einsum("qke,qe->qk", given[donors[at]], kept[queries])  # S of the half with what stays
        fit = np.where(near.indices >= 0, fit, -np.inf)
        order = np.argsort(-fit, axis=1, kind="stable")[:, :k]
        indices = np.take_along_axis(near.indices, order, 1)
        return TopK(np.take_along_axis(fit, order, 1).astype(np.float32), indices, near.note)

    return search


def pseudo_captioning(image: np.ndarray, text: np.ndarray) -> DonorSearch:
    """Pseudo-captions: the trusted pair that is most similar in the part that stays lends the other one.

    ``image``, ``text`` (N, K), (N, L) float: unit rows: vectors, or PC2's predicted pseudo-classes.
    Source: PC2 (Duan et al., 2024), section 3.3.
    """

    def search(is_image: bool, trusted: bool, queries: np.ndarray, donors: np.ndarray, k: int) -> TopK | None:
        kept = text if is_image else image
        return top_k(kept[queries], kept[donors], k) if trusted else None

    return search
