"""What becomes of each mismatched pair, decided on arrays alone; :mod:`cleanpairs.repair.planning` says what for.

Search, scores, transport and assignment go through the candidate edges in blocks: where arrays lie in files, a block
and a few numbers for each pair are in memory, and the decisions are the same, bit for bit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from cleanpairs.ops.scratch import MEMORY, Buckets, Scratch, picked, release
from cleanpairs.ops.search import SearchNote
from cleanpairs.ops.sparse_transport import sparse_transport
from cleanpairs.repair.assignment import Greedy
from cleanpairs.repair.candidates import Corpus, DonorSearch, Edges, NeighbourSearch, candidate_edges
from cleanpairs.repair.edge_pairs import BUCKET, EdgeScorer, Paired, pair_edges
from cleanpairs.repair.settings import RepairSettings

_UNSURE, _DIRTIER, _UNDETERMINED, _NOT_ASKED = 4, 5, 6, 7
DIRTIER = 0.02  # by which the expected share of mismatched pairs may rise above that of the kept ones
STAY, SHARPNESS = 0.3, 0.5
RELAXATION = 1.8
_PAIRS = 1 << 20  # pairs that are worked on at once
_SAMPLED = 1 << 20  # edges by whose ranks all are cut into runs


@dataclass(frozen=True)
class Chance:
    """``probability(image_of, text_of)`` (k,) float32 of k pairs that show an image and a text, NaN where it cannot be
    judged; ``kept`` pairs are trusted, of which ``mismatched`` are expected not to be matched.
    """

    probability: Callable[[np.ndarray, np.ndarray], np.ndarray]
    kept: int
    mismatched: float


# Of each mismatched pair: whose part it takes, a pair, -1 where it is dropped; whether the image is replaced, and the
# donor a trusted pair; scores, NaN where there is none; why it is dropped, a number of `REASONS`.
REPAIR = np.dtype(
    [
        ("donor", np.int64), ("is_image", bool), ("trusted", bool), ("score", np.float32), ("margin", np.float32),
        ("confidence", np.float32), ("reason", np.uint8),
    ]
)  # fmt: skip


def decide_repairs(
    corpus: Corpus,
    judge: Callable[[], EdgeScorer],
    settings: RepairSettings,
    temperature: float,
    *,
    chance: Chance | None = None,
    search: DonorSearch | None = None,
    look: NeighbourSearch | None = None,
    scratch: Scratch = MEMORY,
) -> tuple[np.ndarray, tuple[SearchNote, ...]]:
    """Decide for all mismatched pairs at once: (R,) of :data:`REPAIR`, and how candidates were looked for. ``judge``
    makes what scores pairs; the others are those of :func:`cleanpairs.repair.planning.plan_repairs`.
    """
    mismatched, probable = corpus.mismatched, settings.repairs == "probable"
    if settings.repairs == "none" or (probable and chance is None):
        return _no_repairs(len(mismatched), _UNDETERMINED if probable else _NOT_ASKED), ()
    edges = candidate_edges(corpus, settings, search=search, look=look, scratch=scratch)
    scratch.trim()
    scorer = judge()
    paired = pair_edges(edges, scorer, scratch=scratch)
    own = scorer(mismatched, mismatched, None)
    del scorer
    scratch.trim()
    chances = None if chance is None else _chances(edges, paired, chance, scratch)
    shares = chances if probable else None
    if settings.strategy == "ot" and not probable:
        shares = transport_shares(corpus, paired, settings, temperature, scratch)
    scratch.trim()
    found = _Candidates(edges, paired, own, shares, settings)
    best, sure, unsure = found.overview()
    greedy = Greedy(
        n_rows=len(mismatched),
        n_pairs=paired.count,
        row_member=mismatched,
        members=edges.members,
        n_members=len(corpus.image.index),
        capacity=settings.max_reuse,
    )
    for ranked in found.best_first(scratch):
        greedy.take(ranked["edge"], ranked["row"], ranked["is_image"], ranked["group"], ranked["pair"])
        del ranked
    scratch.trim()
    failed = [np.isneginf(best), best < settings.min_repair_score, best <= own]
    reason = np.select(failed, [0, 1, 2], 3)
    reason[unsure & ~sure] = _UNSURE
    decided = _decided(greedy, found, chances, reason)
    if probable and chance is not None:
        dirtier = ~_as_pure(decided["confidence"], chance) & (decided["donor"] >= 0)
        decided[dirtier] = _no_repairs(1, _DIRTIER)
    return decided, edges.searches


def _decided(greedy: Greedy, found: "_Candidates", chances: np.ndarray | None, reason: np.ndarray) -> np.ndarray:
    """What each row has taken, with ``chances`` by number of pair; ``reason`` (R,) of those that have nothing."""
    edges, paired, edge = found.edges, found.paired, greedy.edge
    repaired = np.flatnonzero(edge >= 0)
    chosen = edge[repaired]
    out, pair = _no_repairs(len(edge), reason), np.full(len(edge), -1, np.int64)
    pair[repaired] = picked(paired.number, chosen)
    out["donor"][repaired] = greedy.donor[repaired]
    out["is_image"][repaired], out["trusted"][repaired] = picked(edges.is_image, chosen), picked(edges.trusted, chosen)
    out["score"][repaired] = picked(paired.score, chosen)
    if chances is not None:
        out["confidence"][repaired] = picked(chances, pair[repaired])
    margin = out["score"] - found.runner_up(out["is_image"], pair)
    out["margin"] = np.where(np.isinf(margin), np.nan, margin)  # nothing to compare with
    return out


def _no_repairs(n: int, reason: int | np.ndarray) -> np.ndarray:
    """Of n mismatched pairs none is repaired, for one of :data:`cleanpairs.repair.actions.REASONS`."""
    out = np.full(n, np.array((-1, False, False, np.nan, np.nan, np.nan, 0), REPAIR))
    out["reason"] = reason
    return out


def _as_pure(confidence: np.ndarray, chance: Chance) -> np.ndarray:
    """(R,) bool: of the repairs, NaN where there is none, the surest that make what is kept hardly dirtier."""
    surest = np.argsort(-np.nan_to_num(confidence, nan=-1), kind="stable")[: int((~np.isnan(confidence)).sum())]
    wrong = chance.mismatched + np.cumsum(1 - confidence[surest].astype(np.float64))
    share = wrong / (chance.kept + np.arange(1, len(surest) + 1))
    within = np.flatnonzero(share <= chance.mismatched / max(chance.kept, 1) + DIRTIER)
    out = np.zeros(len(confidence), bool)
    out[surest[: within[-1] + 1 if len(within) else 0]] = True
    return out


def _chances(edges: Edges, paired: Paired, chance: Chance, scratch: Scratch) -> np.ndarray:
    """Probability (U,) of each pair that edges make; 0 where the donor is a trusted pair."""
    out = scratch.full(paired.count, 0, np.float32)
    for s in edges.blocks():
        untrusted = np.flatnonzero(~edges.trusted[s])
        number, first = np.unique(paired.number[s][untrusted], return_index=True)
        at = untrusted[first] + s.start
        out[number] = chance.probability(*edges.shown_by(at))
        release(out, paired.number)
    return out


def transport_shares(
    corpus: Corpus, paired: Paired, settings: RepairSettings, temperature: float, scratch: Scratch
) -> np.ndarray:
    """Partial transport between mismatched images and mismatched captions: the share of its row's mass that the plan
    sends along each pair that an edge to a mismatched donor makes, (u,) float32 in [0, 1].

    Each distinct image and caption of the mismatched pairs is a node; its mass is the number of mismatched pairs that
    show it, times the rows that one donor may serve. The candidate edges of both directions are one graph, and

        C = - cosine,    lambda = temperature / 2,    xi = - (w + 0.3 (t - w))

    with w and t the median cosines of mismatched and trusted pairs: an edge pays off above w + 0.3 (t - w). The two
    constants were chosen on photographs (docs/log.md).
    """
    share = scratch.full(paired.count, 0, np.float32)
    graph, (wrong, right) = paired.graph, corpus.typical
    if not len(graph.row):
        return share
    # How many mismatched pairs show each image, and each text; and how many rows that of one pair may serve.
    a = np.bincount(corpus.image.group[corpus.mismatched])[graph.image_group].astype(np.float64)
    b = np.bincount(corpus.text.group[corpus.mismatched])[graph.text_group].astype(np.float64)
    lent = (settings.lenders != "trusted" and some for some in (settings.replaces_image, settings.replaces_text))
    capacity = [settings.max_reuse if some else 1 for some in lent]
    stay = wrong + STAY * max(right - wrong, 0.0)
    cost = scratch.empty(len(graph.row), np.float64)
    blocks = [slice(start, start + _PAIRS) for start in range(0, len(graph.row), _PAIRS)]
    for s in blocks:
        cost[s] = -graph.similarity[s].astype(np.float64)
        release(cost, graph.similarity)
    # Rows are images, in order, and within these columns: the kernel is built of them as they are.
    mass = sparse_transport(
        graph.row, graph.column, cost, a * capacity[0], b * capacity[1], stay_cost=-stay, reg=SHARPNESS * temperature,
        relaxation=RELAXATION,
    ).mass  # fmt: skip
    for s in blocks:
        most = np.minimum(a[graph.row[s]], b[graph.column[s]])
        share[graph.number[s]] = np.minimum(mass[s] / most, 1).astype(np.float32)
        release(share, mass, graph.row, graph.column, graph.number)
    return share


class _Candidates:
    """Edges, their scores, and what is made of these: how good each is, in which order they are tried."""

    def __init__(
        self, edges: Edges, paired: Paired, own: np.ndarray, shares: np.ndarray | None, settings: RepairSettings
    ) -> None:
        self.edges, self.paired, self.own, self.shares, self.settings = edges, paired, own, shares, settings

    def _blocks(self) -> Iterator[slice]:
        for s in self.edges.blocks():
            yield s
            release(self.paired.number, self.paired.score, self.shares)

    def _allowed(self, s: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of a block the edges that may be taken, (b',) places in it; their rank, float32, a share before a score; the
        key, complex64, by whose rise they are tried; and the good edges that are not probable enough.
        """
        edges, settings, score = self.edges, self.settings, self.paired.score[s]
        good = np.flatnonzero((score >= settings.min_repair_score) & (score > self.own[edges.row[s]]))
        unsure, share = good[:0], np.full(len(good), np.nan, np.float32)
        if self.shares is not None:
            share = picked(self.shares, self.paired.number[s][good])
        if settings.repairs == "probable":
            sure = share >= settings.min_confidence
            good, share, unsure = good[sure], share[sure], good[~sure]
        else:
            share = np.where(edges.trusted[s][good], np.float32(np.nan), share)
        rank = score[good] + np.float32(settings.mismatched_bonus) * ~edges.trusted[s][good]
        rank -= np.float32(settings.image_margin) * edges.is_image[s][good]
        rank = np.where(np.isnan(share), rank, 2 + share).astype(np.float32)
        return good, rank, -(rank + 1j * edges.similarity[s][good]), unsure

    def overview(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of each row: its best score (R,) float32, -inf without an edge; has it a good edge; has it one too
        improbable.
        """
        best = np.full(len(self.own), -np.inf, np.float32)
        sure, unsure = np.zeros(len(self.own), bool), np.zeros(len(self.own), bool)
        step = max(1, len(self.edges) // _SAMPLED)
        some = [np.empty(0, np.complex64)]
        for s in self._blocks():
            row = self.edges.row[s]
            np.maximum.at(best, row, self.paired.score[s])
            good, _, key, below = self._allowed(s)
            sure[row[good]] = True
            unsure[row[below]] = True
            some.append(key[::step].copy())
        self._bounds = np.unique(np.sort(np.concatenate(some))[:: max(1, BUCKET // step)])
        return best, sure, unsure

    def best_first(self, scratch: Scratch) -> Iterator[dict[str, np.ndarray]]:
        """The edges that may be taken, best first; among equal ranks the more similar, text, then the lower numbers."""
        counts = np.zeros(len(self._bounds) + 1, np.int64)
        for s in self._blocks():
            runs = np.searchsorted(self._bounds, self._allowed(s)[2], side="right")
            counts += np.bincount(runs, minlength=len(counts))
        whole = dict.fromkeys(("row", "group", "pair"), np.int32)
        types = {"edge": np.int64, **whole, "similarity": np.float32, "rank": np.float32, "is_image": bool}
        buckets, edges = Buckets(scratch, counts, types), self.edges
        for s in self._blocks():
            good, rank, key, _ = self._allowed(s)
            buckets.add(
                np.searchsorted(self._bounds, key, side="right"), edge=good + s.start, row=edges.row[s][good],
                group=edges.donor_group[s][good], pair=self.paired.number[s][good], rank=rank,
                similarity=edges.similarity[s][good], is_image=edges.is_image[s][good],
            )  # fmt: skip
        for b in range(len(buckets)):
            part = buckets.part(b)
            order = np.lexsort((part["group"], part["row"], part["is_image"], -part["similarity"], -part["rank"]))
            yield {name: values[order] for name, values in part.items()}

    def runner_up(self, replaces_image: np.ndarray, chosen_pair: np.ndarray) -> np.ndarray:
        """The best score (R,) among a row's edges in the chosen direction that make another pair, -inf without one."""
        best = np.full(len(self.own), -np.inf, np.float32)
        for s in self._blocks():
            row = self.edges.row[s]
            rival = (self.edges.is_image[s] == replaces_image[row]) & (self.paired.number[s] != chosen_pair[row])
            np.maximum.at(best, row[rival], self.paired.score[s][rival])
        return best
