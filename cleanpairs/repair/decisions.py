"""What becomes of each mismatched pair, decided on arrays alone. :mod:`cleanpairs.repair.planning` says what for."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from cleanpairs.ops.search import SearchNote
from cleanpairs.ops.sparse_transport import sparse_transport
from cleanpairs.repair.actions import DIRTIER, NOT_ASKED, RIVALLED, UNDETERMINED, UNSURE
from cleanpairs.repair.assignment import assign
from cleanpairs.repair.candidates import Corpus, Edges, EdgeScorer, ScoredEdges, score_edges
from cleanpairs.repair.settings import RepairSettings

KEEP_MARGIN = 0.3  # an edge pays off that far above the cosine of wrong pairs, of the way to that of right pairs
TRANSPORT_TEMPERATURE = 0.5  # lambda of the transport, of the model's temperature


@dataclass(frozen=True)
class RepairProbability:
    """How likely a repair is right.

    ``of_pairs(image_of, text_of)`` (k,) float32: of k pairs that show an image and a text. NaN where it cannot be
    judged. ``kept`` pairs are trusted, of which ``mismatched`` are expected not to be matched.
    """

    of_pairs: Callable[[np.ndarray, np.ndarray], np.ndarray]
    kept: int
    mismatched: float


# Of each mismatched pair: whose part it takes, a pair, -1 where it is dropped. Whether the image is replaced, and the
# donor a trusted pair. Scores, NaN where there is none. Why it is dropped, a number of `REASONS`. How many rows its
# caption was displaced by, 0 of all other repairs.
REPAIR = np.dtype(
    [
        ("donor", np.int64), ("is_image", bool), ("trusted", bool), ("score", np.float32), ("margin", np.float32),
        ("confidence", np.float32), ("reason", np.uint8), ("distance", np.int64),
    ]
)  # fmt: skip

# A caption for a pair with a new one, whose it is, and its share in the pair's weight.
SHARE = np.dtype([("pair", np.int64), ("donor", np.int64), ("share", np.float32)])


def decide_repairs(
    corpus: Corpus,
    make_scorer: Callable[[], EdgeScorer],
    settings: RepairSettings,
    temperature: float,
    searched: Callable[..., Edges],
    probability: RepairProbability | None,
) -> tuple[np.ndarray, np.ndarray, tuple[SearchNote, ...]]:
    """Decide for all mismatched pairs at once: (R,) of :data:`REPAIR`, the captions of several donors, of
    :data:`SHARE`, and how candidates were looked for.

    ``make_scorer`` makes what scores pairs. The other parameters are those of
    :func:`cleanpairs.repair.planning.plan_repairs`.
    """
    every, probable = np.arange(corpus.mismatched, dtype=np.int32), settings.repairs == "probable"
    if settings.repairs == "none" or (probable and probability is None):
        return no_repairs(len(every), UNDETERMINED if probable else NOT_ASKED), np.empty(0, SHARE), ()
    found = searched(trusted=[False] if probable else [False, True])
    scorer = make_scorer()
    edges, own = score_edges(corpus, found, scorer), scorer(every, every, None)
    best = np.full(len(own), -np.inf, np.float32)  # score of each row
    np.maximum.at(best, edges.row, edges.score)
    reason = np.select([np.isneginf(best), best < settings.min_repair_score, best <= own], [0, 1, 2], 3)
    good = _good(edges, own, settings)
    if probable and probability is not None:
        # A trusted pair's part is no probable repair, but may be a better candidate.
        top = good[_has_best_score(edges)[good]]
        sure = top[_confidence(edges, top, probability) >= settings.min_confidence]
        reason[slice(None) if settings.donor_pool == "trusted" else reason == 3] = UNSURE
        reason[edges.row[sure]] = RIVALLED
        rows = {way: np.unique(edges.row[sure[edges.is_image[sure] == way]]) for way in (False, True)}
        key = _row_and_direction(edges)
        found = found.only(np.isin(key, key[sure])).and_others(searched(trusted=[True], rows=rows))
        edges = score_edges(corpus, found, scorer)
        good = _good(edges, own, settings)
        good = good[_has_best_score(edges, alone=True)[good]]
        share = _confidence(edges, good, probability)
        good, share = good[share >= settings.min_confidence], share[share >= settings.min_confidence]
        reason[edges.row[good]] = 3
    elif settings.strategy == "ot":
        share = transport_shares(edges, corpus, settings, temperature)[edges.number[good]]
        share[edges.trusted[good]] = np.nan
    else:
        share = np.full(len(good), np.nan, np.float32)  # what goes before the score
    good = good[_best_first(edges, good, share, settings)]
    place, donor = assign(
        edges.row[good], edges.is_image[good], edges.donor_group[good], edges.number[good], rows=len(every),
        members=edges.members, text_uses=corpus.text_uses, capacity=settings.max_reuse,
    )  # fmt: skip
    edge = np.append(good, -1)[place]
    decided = _decided(edge, donor, edges, probability, reason)
    if probable and probability is not None:
        dirtier = ~_as_pure(decided["confidence"], probability) & (decided["donor"] >= 0)
        decided[dirtier] = no_repairs(1, DIRTIER)
    return decided, _shares(edges, edge, donor, settings.n_donors, temperature), edges.searches


def _good(edges: ScoredEdges, own: np.ndarray, settings: RepairSettings) -> np.ndarray:
    """Return the edges that score enough, and more than the present pair of their row, whose score is ``own`` (R,)."""
    return np.flatnonzero((edges.score >= settings.min_repair_score) & (edges.score > own[edges.row]))


def _row_and_direction(edges: Edges) -> np.ndarray:
    """Return a number (E,) of the row and the direction of each edge."""
    return edges.row * 2 + edges.is_image


def _has_best_score(edges: ScoredEdges, *, alone: bool = False) -> np.ndarray:
    """Return which edges (E,) make the best pair of their row in the same direction.

    ``alone``: there are others, and it is better than all of them.
    """
    key = _row_and_direction(edges)
    best = np.full(2 * edges.row.max(initial=0) + 2, -np.inf, np.float32)
    np.maximum.at(best, key, edges.score)
    top = edges.score == best[key]
    if not alone:
        return top
    first = np.zeros(len(best), np.int64)
    first[key[top]] = edges.number[top]
    rival = edges.number != first[key]
    rivals, ties = (np.bincount(key[some], minlength=len(best)) for some in (rival, rival & top))
    return top & (rivals > 0)[key] & (ties == 0)[key]


def _best_first(edges: ScoredEdges, at: np.ndarray, share: np.ndarray, settings: RepairSettings) -> np.ndarray:
    """The order in which the edges ``at`` (b,) are tried, (b,): by falling share, and by score where there is none.

    Shares are compared to six digits: no transport is more exact. Among equal edges the more similar comes first, then
    a new text, then the lower numbers.
    """
    known = ~np.isnan(share)
    score = edges.score[at] + np.float32(settings.mismatched_bonus) * ~edges.trusted[at]
    score -= np.float32(settings.image_margin) * edges.is_image[at]
    keys = [
        np.where(known, -share.round(6), np.inf),
        np.where(known, 0, -score),
        -edges.similarity[at],
        edges.is_image[at],
    ]
    return np.lexsort([edges.donor_group[at], edges.row[at], *reversed(keys)])


def _shares(edges: ScoredEdges, edge: np.ndarray, donor: np.ndarray, most: int, temperature: float) -> np.ndarray:
    """Several captions for each row with a new one, (k,) of :data:`SHARE`, by row.

    These are that of its donor, and those of the trusted pairs most similar to its image, ``most`` in all. A share is
    the softmax of the similarities at ``temperature``.
    """
    if most == 1:
        return np.empty(0, SHARE)
    chosen = edge[edges.row]  # (E,): of the row of each edge
    first = np.arange(len(edges)) == chosen
    other = edges.trusted & (chosen >= 0) & (edges.number != edges.number[chosen])
    at = np.flatnonzero((first | other) & ~edges.is_image & ~edges.is_image[chosen])
    at = at[np.lexsort([edges.donor_group[at], -edges.similarity[at], ~first[at], edges.row[at]])]
    rows, begin, row = np.unique(edges.row[at], return_index=True, return_inverse=True)
    left = np.arange(len(at)) - begin[row] < most
    at, row = at[left], row[left]
    best = np.full(len(rows), -np.inf)
    np.maximum.at(best, row, edges.similarity[at])
    weight = np.exp((edges.similarity[at] - best[row]) / temperature)
    out = np.empty(len(at), SHARE)
    out["pair"], out["share"] = edges.row[at], weight / np.bincount(row, weight, len(rows))[row]
    out["donor"] = np.where(first[at], donor[edges.row[at]], edges.members.first[edges.donor_group[at]])
    return out


def _decided(
    edge: np.ndarray, donor: np.ndarray, edges: ScoredEdges, probability: RepairProbability | None, reason: np.ndarray
) -> np.ndarray:
    """Return what each row gets by the ``edge`` and from the ``donor`` (R,) that it has taken, -1 where it has none.

    ``reason`` (R,): of those that have nothing.
    """
    repaired = np.flatnonzero(edge >= 0)
    chosen = edge[repaired]
    out, pair = no_repairs(len(edge), reason), np.full(len(edge), -1, np.int64)
    pair[repaired] = edges.number[chosen]
    out["donor"][repaired] = donor[repaired]
    out["is_image"][repaired], out["trusted"][repaired] = edges.is_image[chosen], edges.trusted[chosen]
    out["score"][repaired] = edges.score[chosen]
    if probability is not None:
        out["confidence"][repaired] = _confidence(edges, chosen, probability)
    # The best score among a row's edges in the chosen direction that make another pair.
    rival = (edges.is_image == out["is_image"][edges.row]) & (edges.number != pair[edges.row])
    runner_up = np.full(len(edge), -np.inf, np.float32)
    np.maximum.at(runner_up, edges.row[rival], edges.score[rival])
    margin = out["score"] - runner_up
    out["margin"] = np.where(np.isinf(margin), np.nan, margin)  # nothing to compare with
    return out


def no_repairs(n: int, reason: int | np.ndarray) -> np.ndarray:
    """Return n mismatched pairs that are not repaired, for one of :data:`cleanpairs.repair.actions.REASONS`."""
    out = np.full(n, np.array((-1, False, False, np.nan, np.nan, np.nan, 0, 0), REPAIR))
    out["reason"] = reason
    return out


def _as_pure(confidence: np.ndarray, probability: RepairProbability, dirtier: float = 0.02) -> np.ndarray:
    """Return which repairs (R,) are made: the surest ones, as long as they leave the output about as pure.

    A ``confidence`` is NaN where there is no repair. By ``dirtier`` the expected share of mismatched pairs may rise
    above that of the kept pairs.
    """
    surest = np.argsort(-np.nan_to_num(confidence, nan=-1), kind="stable")[: int((~np.isnan(confidence)).sum())]
    wrong = probability.mismatched + np.cumsum(1 - confidence[surest].astype(np.float64))
    share = wrong / (probability.kept + np.arange(1, len(surest) + 1))
    within = np.flatnonzero(share <= probability.mismatched / max(probability.kept, 1) + dirtier)
    out = np.zeros(len(confidence), bool)
    out[surest[: within[-1] + 1 if len(within) else 0]] = True
    return out


def _confidence(edges: ScoredEdges, at: np.ndarray, probability: RepairProbability) -> np.ndarray:
    """Return the probability (b,) of the pairs that the edges ``at`` make, 0 where all donors are trusted pairs."""
    lead = np.full(edges.count, -1)
    lead[edges.number[edges.lead]] = edges.lead
    lead, out = lead[edges.number[at]], np.zeros(len(at), np.float32)
    for start in range(0, len(at), 1 << 18):  # what judges needs some 200 bytes a pair
        some = start + np.flatnonzero(lead[start : start + (1 << 18)] >= 0)
        out[some] = probability.of_pairs(*edges.shown_by(lead[some]))
    return out


def transport_shares(edges: ScoredEdges, corpus: Corpus, settings: RepairSettings, temperature: float) -> np.ndarray:
    """Partial transport between mismatched images and mismatched captions.

    Returns the share of its row's mass that the plan sends along each pair that an edge to a mismatched donor makes,
    (U,) float32 in [0, 1].

    Each distinct image and caption of the mismatched pairs is a node. Its mass is the number of mismatched pairs that
    show it, times the rows that one donor may serve. The candidate edges of both directions are one graph, and

        C = - cosine,    lambda = temperature / 2,    xi = - (w + 0.3 (t - w))

    with w and t the median cosines of mismatched and trusted pairs: an edge pays off above w + 0.3 (t - w). The two
    constants were chosen on photographs (dev/LOG.md).
    """
    share = np.zeros(edges.count, np.float32)
    if not len(edges.lead):
        return share
    image, text = edges.shown_by(edges.lead)
    # Pairs are numbered by image, and within an image by text: the edges of the graph are in the order of its rows.
    images, row = np.unique(corpus.image.group[image], return_inverse=True)
    texts, column = np.unique(corpus.text.group[text], return_inverse=True)
    # How many mismatched pairs show each image, and each text, and how many rows that of one pair may serve.
    a = np.bincount(corpus.image.group[: corpus.mismatched])[images].astype(np.float64)
    b = np.bincount(corpus.text.group[: corpus.mismatched])[texts].astype(np.float64)
    capacity = [settings.max_reuse if replaced else 1 for replaced in (settings.replaces_image, settings.replaces_text)]
    wrong, right = corpus.typical
    mass = sparse_transport(
        row.astype(np.int32), column.astype(np.int32), -edges.similarity[edges.lead].astype(np.float64),
        a * capacity[0], b * capacity[1], stay_cost=-(wrong + KEEP_MARGIN * max(right - wrong, 0.0)),
        reg=TRANSPORT_TEMPERATURE * temperature, relaxation=1.8,
    ).mass  # fmt: skip
    share[edges.number[edges.lead]] = np.minimum(mass / np.minimum(a[row], b[column]), 1)
    return share
