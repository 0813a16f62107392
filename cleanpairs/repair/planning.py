"""Rematching: who gets which caption or image from whom, as a plan to be read, edited and saved before it is used.

A mismatched pair has a correspondence below the threshold. With ``rematch_text`` its image keeps the row and takes a
caption that fits. With ``rematch_image`` the caption takes an image. Both come from mismatched or trusted pairs.

First the captions of displaced rows go back to their images by the rule (:mod:`cleanpairs.repair.displaced`).
Candidates are the nearest parts by cosine, per pool and direction, scored by the scorer of the corpus. One joint greedy
assignment gives parts to rows. Its order depends on the strategy:

- ``nearest``: the highest score comes first.
- ``ot``: a partial transport between all mismatched images and captions
  (:func:`cleanpairs.repair.decisions.transport_shares`). Rows that get nothing take from trusted donors.
- ``half-replace``: the trusted pairs nearest in what stays (REPAIR).
- ``pseudo-caption``: the caption of the most similar trusted image (PC2).

What holds of every plan (and is tested on random corpora):

- no repaired pair has the image and the text of any pair of the input or of another repaired pair.
- the caption of a mismatched pair serves at most ``max_reuse`` rows, its own included. So does its image. A trusted
  pair's caption (image) serves at most ``max_reuse`` rows besides its own.
- a repaired pair scores at least ``min_repair_score`` and more than the row's present pair.

The last two hold of a repair by the rule of displaced rows only so far as it gives each caption to one image at most.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core import RefusedError
from cleanpairs.correspondence.pair_probability import PairProbability
from cleanpairs.data.duplicates import lesser_duplicates
from cleanpairs.ops.columns import grouped, numbered, one_array, picked, taken, with_columns
from cleanpairs.ops.search import TopK, top_k
from cleanpairs.repair.actions import ACTIONS, COPIED, DUPLICATE, KINDS, REASONS
from cleanpairs.repair.candidates import (
    Corpus,
    DonorSearch,
    EdgeScorer,
    NeighbourSearch,
    Side,
    candidate_edges,
    half_replacing,
    pseudo_captioning,
)
from cleanpairs.repair.copies import near_copies
from cleanpairs.repair.decisions import SHARE, RepairProbability, decide_repairs, no_repairs
from cleanpairs.repair.displaced import reason_of
from cleanpairs.repair.editing import donor_use
from cleanpairs.repair.plan import CAPTIONS, PLAN_SCHEMA, RepairPlan
from cleanpairs.repair.plan_input import TEXTS, PlanInput
from cleanpairs.repair.settings import RepairSettings

BoundScorer = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], EdgeScorer]
# ``scorer(image_group, text_group, image_rows, text_rows)``: what scores candidates and present pairs alike, by the
# rows of their vectors, out of those that may be scored. The groups are content hashes by row. Pairs come sorted
# by image. Such is :meth:`cleanpairs.scoring.bank.Bank.judging` of given images and texts.


@dataclass(frozen=True)
class Planned:
    """A plan that is decided, and whose rows are not made yet. ``head``: the plan without them."""

    head: RepairPlan
    given: PlanInput
    repairs: np.ndarray  # of :data:`cleanpairs.repair.decisions.REPAIR`
    shares: np.ndarray = field(default_factory=lambda: np.empty(0, SHARE))  # by rising pair
    duplicates: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # pairs that are dropped, rising

    def plan(self) -> RepairPlan:
        """Return the whole plan, in memory."""
        return replace(self.head, table=pa.concat_tables([self.head.table, *self.tables()]).combine_chunks())

    def tables(self) -> Iterator[pa.Table]:
        """Yield all rows, in order, batch by batch."""
        given, repairs = self.given, self.repairs
        use = _donor_uses(given.mismatched, repairs)
        pairs = np.unique(np.append(repairs["donor"][repairs["donor"] >= 0], self.shares["donor"]))
        donors = pa.Table.from_batches(picked(given.texts(), pairs), TEXTS).combine_chunks()
        for first, batch in numbered(given.texts()):
            at = _within(given.mismatched, slice(first, first + len(batch)))
            donor = repairs["donor"][at]
            of = taken(donors, pa.array(np.searchsorted(pairs, donor), mask=donor < 0))
            rows = self._rows(first, batch, at, use[at], of)
            yield with_columns(rows, {"captions": self._weighted_captions(first, rows["repair_score"], donors, pairs)})

    def _weighted_captions(self, first: int, score: pa.ChunkedArray, donors: pa.Table, pairs: np.ndarray) -> pa.Array:
        """Return the weighted captions of the pairs with these scores, from pair ``first`` on. Null where it is one.

        ``donors``: keys and captions of the donor ``pairs`` (k,).
        """
        n = len(score)
        some = self.shares[_within(self.shares["pair"], slice(first, first + n))]
        if not len(some):
            return pa.nulls(n, CAPTIONS)
        place = some["pair"] - first
        captions = one_array(taken(donors["caption"], np.searchsorted(pairs, some["donor"])))
        weight = pa.array(some["share"] * score.to_numpy()[place], pa.float32())
        columns = captions, pa.repeat("rematched", len(some)), weight
        cells = pa.StructArray.from_arrays(columns, fields=list(CAPTIONS.value_type))
        counts = np.bincount(place, minlength=n)
        return pc.if_else(pa.array(counts > 0), grouped(cells, counts).cast(CAPTIONS), None)

    @cached_property
    def _faulty(self) -> np.ndarray:
        return np.array(sorted(self.given.reasons), np.int64)

    def _rows(self, first: int, batch: pa.RecordBatch, at: slice, use: np.ndarray, donors: pa.Table) -> pa.Table:
        """The pairs of a batch, from pair ``first`` on. Of the r mismatched ones ``at`` among them: their ``use``, and
        what is ``donors`` to them.
        """
        (keys, captions), n = batch.columns, len(batch)
        s, repairs, mismatched = slice(first, first + n), self.repairs[at], self.given.mismatched[at] - first
        correspondence = self.given.correspondence[s]
        quarantined, repaired = np.isnan(correspondence), repairs["donor"] >= 0
        place = np.full(n, -1, np.int64)
        place[mismatched] = np.arange(len(mismatched))

        def spread(values: np.ndarray | pa.ChunkedArray) -> pa.Array:
            """Spread (r,) over (n,). Null where a pair is not mismatched, or the value is null."""
            known = isinstance(values, np.ndarray)
            some = pa.array(values, mask=~repaired | np.isnan(values)) if known else one_array(values)
            return taken(some, pa.array(place, mask=place < 0))

        # Words by number: as objects, millions of them would take most of the time.
        action = np.where(quarantined, ACTIONS.index("quarantine"), ACTIONS.index("keep"))
        change = np.where(repairs["is_image"], ACTIONS.index("rematch_image"), ACTIONS.index("rematch_text"))
        action[mismatched] = np.where(repaired, change, ACTIONS.index("drop"))
        action[self._duplicates_in(s)] = ACTIONS.index("drop")
        takes_text = pa.array(action == ACTIONS.index("rematch_text"))
        gone = pa.array((action == ACTIONS.index("drop")) | quarantined)
        new = pc.if_else(takes_text, spread(donors["caption"]), captions)
        return pa.table(
            {
                "pair_id": np.arange(s.start, s.stop),
                "key": keys,
                "action": taken(pa.array(ACTIONS, pa.string()), pa.array(action)),
                "correspondence": pa.array(correspondence, mask=quarantined, type=pa.float32()),
                "donor_pair_id": spread(repairs["donor"]),
                "donor_key": spread(donors["key"]),
                "caption": pc.if_else(gone, None, new),
                "original_caption": captions,
                "repair_score": spread(repairs["score"]),
                "margin": spread(repairs["margin"]),
                "confidence": spread(repairs["confidence"]),
                "donor_use": spread(use),
                "reason": self._reasons(s, repairs, mismatched, quarantined),
                "why": pa.nulls(n, pa.string()),
                "captions": pa.nulls(n, CAPTIONS),
            },
            schema=PLAN_SCHEMA,
        )

    def _duplicates_in(self, s: slice) -> np.ndarray:
        """Return the places of near duplicates among the pairs ``s``."""
        return np.asarray(self.duplicates[_within(self.duplicates, s)] - s.start)

    def _reasons(self, s: slice, repairs: np.ndarray, mismatched: np.ndarray, quarantined: np.ndarray) -> pa.Array:
        """Return why the pairs ``s`` are not kept as they were. Parameters as of :meth:`_rows`."""
        faults = {i: self.given.reasons[i] for i in self._faulty[_within(self._faulty, s)].tolist()}
        moved, distance = np.flatnonzero(repairs["distance"]), repairs["distance"]
        rules = {d: reason_of(d) for d in np.unique(distance[moved]).tolist()}
        words = [*REASONS, *KINDS, "no correspondence", *sorted({*faults.values(), *rules.values()})]
        kind = np.where(repairs["is_image"], 0, 2) + np.where(repairs["trusted"], 0, 1)
        why = np.full(len(quarantined), -1, np.int64)
        why[mismatched] = np.where(repairs["donor"] >= 0, len(REASONS) + kind, repairs["reason"])
        why[quarantined] = len(REASONS) + len(KINDS)
        why[self._duplicates_in(s)] = DUPLICATE
        number = {word: at for at, word in enumerate(words)}
        for i in moved.tolist():
            why[mismatched[i]] = number[rules[int(distance[i])]]
        for i, reason in faults.items():
            why[i - s.start] = number[reason]
        return taken(pa.array(words, pa.string()), pa.array(why, mask=why < 0))


def plan_repairs(
    given: PlanInput,
    scorer: BoundScorer,
    settings: RepairSettings,
    *,
    fingerprint: str,
    temperature: float = 0.07,
    judge: RepairProbability | None = None,
    donor_search: DonorSearch | None = None,
    neighbour_search: NeighbourSearch = top_k,
    most_edges: int = 1 << 25,
) -> Planned:
    """Plan the repair of every pair below the threshold. Nothing is changed. The same input gives the same plan.

    - ``given`` PlanInput: N pairs. ``scorer``: of their vectors. ``settings``: those of ``given``
    - ``fingerprint``: of the input. ``temperature``: of the model's softmax, above 0
    - ``judge``: tells how likely the repairs are right. Without it none is probable
    - ``donor_search`` callable: a method's own way to look for donors, by the numbers of pairs
    - ``neighbour_search`` callable: does the searches by cosine, as :func:`cleanpairs.ops.search.top_k`
    - ``most_edges``: candidate edges in memory, of some 55 bytes. So many mismatched pairs that there would be more get
      fewer ``candidates`` each, which the plan's settings note

    Raises RefusedError: scores that are not finite.
    """
    corpus = _corpus(given, settings)
    pools = 1 if settings.repairs == "probable" else len(corpus.pools)  # that are searched for all
    ways = len(given.mismatched) * pools * (settings.replaces_text + settings.replaces_image)
    settings = replace(settings, candidates=max(1, min(settings.candidates, most_edges // max(ways, 1))))
    if donor_search is not None:
        donor_search = partial(_by_pair, donor_search, given.concerned)
    elif settings.strategy in ("half-replace", "pseudo-caption"):
        paper = half_replacing if settings.strategy == "half-replace" else pseudo_captioning
        donor_search = paper(given.z_image[given.image_row], given.z_text[given.text_row])
    search = partial(candidate_edges, corpus, settings, donor_search, neighbour_search)
    make_scorer = partial(_edge_scorer, given, scorer)
    repairs, shares, searches = decide_repairs(corpus, make_scorer, settings, temperature, search, judge)
    repaired = repairs["donor"] >= 0
    repairs["donor"][repaired] = given.concerned[repairs["donor"][repaired]]
    for name in ("pair", "donor"):
        shares[name] = given.concerned[shares[name]]
    if settings.repairs == "probable" and repaired.any():
        carriers = np.where(repairs["is_image"], given.mismatched, repairs["donor"])[repaired]
        pairs, place = np.unique(carriers, return_inverse=True)
        many = near_copies(given.texts, pairs)[place] > 2
        repairs[np.flatnonzero(repaired)[many]] = no_repairs(1, COPIED)
    given, repairs = _with_moves(given, repairs)
    lesser = _lesser(given, repairs, settings)
    repairs[np.isin(given.mismatched, lesser)] = no_repairs(1, DUPLICATE)
    shares = shares[~np.isin(shares["pair"], lesser)]
    noted = {**settings.noted(), "searches": [asdict(note) for note in searches]}
    least = float(settings.min_repair_score)
    head = RepairPlan(PLAN_SCHEMA.empty_table(), settings.resolved_threshold, least, fingerprint, noted)
    return Planned(head, given, repairs, shares, lesser)


def _lesser(given: PlanInput, repairs: np.ndarray, settings: RepairSettings) -> np.ndarray:
    """Return the pairs (k,) that would show a near duplicate of a better pair's image. Kept pairs beat repairs."""
    if not given.near.size:
        return np.empty(0, np.int64)
    image, score = np.arange(len(given)), given.undecided.astype(np.float64) + 1
    score[given.undecided < settings.resolved_threshold] = np.nan
    repaired = repairs["donor"] >= 0
    made, pairs = repairs[repaired], given.mismatched[repaired]
    image[pairs], score[pairs] = np.where(made["is_image"], made["donor"], pairs), np.nan_to_num(made["confidence"])
    return lesser_duplicates(given.near[0][image], given.near[1], score)


def _with_moves(given: PlanInput, repairs: np.ndarray) -> tuple[PlanInput, np.ndarray]:
    """Return the pairs to be repaired and their repairs (R,), with those that the rule repairs. These have no score."""
    moved = no_repairs(len(given.moves), 0)
    for name in ("donor", "distance", "confidence"):
        moved[name] = given.moves[name]
    pairs = np.concatenate([given.mismatched, given.moves["pair"]])
    order = np.argsort(pairs)
    return replace(given, mismatched=pairs[order]), np.concatenate([repairs, moved])[order]


def _corpus(given: PlanInput, settings: RepairSettings) -> Corpus:
    """Return the pairs that a repair can concern, numbered by their places among :attr:`PlanInput.concerned`."""
    kept, R = given.concerned, len(given.mismatched)
    images, image_group = np.unique(given.image_group[kept], return_inverse=True)
    texts, text_group = np.unique(given.text_group[kept], return_inverse=True)
    rows = np.arange(len(kept), dtype=np.int32)
    best_first = rows[R + np.argsort(-given.correspondence[given.trusted], kind="stable")]
    pools = [(rows[:R], False)] if settings.donor_pool != "trusted" else []
    pools += [(best_first, True)] if settings.donor_pool != "mismatched" else []
    return Corpus(
        Side(given.z_image, given.image_row, image_group.astype(np.int32)),
        Side(given.z_text, given.text_row, text_group.astype(np.int32)),
        R,
        pools,
        _existing_pairs(given, images, texts),
        given.typical,
        np.isin(kept, given.moves["donor"]).astype(np.int32),
    )


def judged_pairs(
    correspondence: np.ndarray, threshold: float, seed: int, *, most: int = 100_000, most_trusted: int = 25_000
) -> np.ndarray:
    """Return the pairs (k,), rising, that the probabilities of repairs are learned from: those with a correspondence.

    Of more than ``most`` pairs: those to be repaired, and ``most_trusted`` trusted ones.
    """
    wrong, right = np.flatnonzero(correspondence < threshold), np.flatnonzero(correspondence >= threshold)
    if len(correspondence) > most and len(right) > most_trusted:
        right = np.random.default_rng(seed).choice(right, most_trusted, replace=False)
    return np.sort(np.concatenate([wrong, right]))


def repair_probability(
    given: PlanInput,
    settings: RepairSettings,
    found: PairProbability | None,
    pairs: np.ndarray,
    matched: Callable[[np.ndarray], np.ndarray] | None = None,
) -> RepairProbability | None:
    """Return how likely repairs are right, by the evidence ``found`` about ``pairs`` (k,), rising, if any.

    ``matched``: makes a probability of the correspondence, where it is none.
    """
    if found is None or not found.judged:
        return None
    place = np.searchsorted(pairs, given.mismatched)  # among the pairs with evidence

    def of_pairs(image_of: np.ndarray, text_of: np.ndarray) -> np.ndarray:
        return found.probability(place[image_of], place[text_of])

    right = given.undecided[given.undecided >= settings.resolved_threshold]
    right = right if matched is None else matched(right)
    return RepairProbability(of_pairs, len(right), float((1 - right).sum()))


def _edge_scorer(given: PlanInput, scorer: BoundScorer) -> EdgeScorer:
    """Return the scores of pairs by their places among those concerned."""
    kept = given.concerned

    def by_row(z: np.ndarray, rows: np.ndarray, group: np.ndarray) -> np.ndarray:
        out = np.zeros(len(z), np.int64)
        out[rows] = group
        return out

    image_hash = by_row(given.z_image, given.image_row, given.image_group[kept])
    text_hash = by_row(given.z_text, given.text_row, given.text_group[kept])
    of_rows = scorer(image_hash, text_hash, given.image_row, given.text_row)

    def score(image_of: np.ndarray, text_of: np.ndarray, cosine: np.ndarray | None) -> np.ndarray:
        found = np.asarray(of_rows(given.image_row[image_of], given.text_row[text_of], cosine))
        if not np.isfinite(found).all():
            raise RefusedError(
                f"the scorer gave {(~np.isfinite(found)).sum()} non-finite scores: is the model trained?"
            )
        return found

    return score


def _by_pair(search: DonorSearch, kept: np.ndarray, *where: Any) -> TopK | None:
    is_image, trusted, queries, donors, k = where
    return search(is_image, trusted, kept[queries], kept[donors], k)


def _existing_pairs(given: PlanInput, images: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """:attr:`Corpus.existing` by the input, of these distinct hashes of images and texts."""
    last = np.array([np.iinfo(np.int64).max])
    if not len(images):
        return last
    pair, donor, n = given.moves["pair"], given.moves["donor"], len(given)
    image_group = np.append(given.image_group, given.image_group[pair])
    text_group = np.append(given.text_group, given.text_group[donor])
    image = np.minimum(np.searchsorted(images, image_group), len(images) - 1)
    text = np.minimum(np.searchsorted(texts, text_group), len(texts) - 1)
    both = (images[image] == image_group) & (texts[text] == text_group)
    both[:n] &= ~np.isnan(given.correspondence)
    return np.append(np.unique(image[both] * len(texts) + text[both]), last)


def _donor_uses(mismatched: np.ndarray, repairs: np.ndarray) -> np.ndarray:
    """Return how many rows carry the part that each of the ``mismatched`` (R,) takes."""
    R, takes = len(mismatched), repairs["donor"] >= 0
    pairs, place = np.unique(np.append(mismatched, repairs["donor"][takes]), return_inverse=True)
    donor, text, image = np.full(len(pairs), -1), np.zeros(len(pairs), bool), np.zeros(len(pairs), bool)
    donor[place[:R][takes]] = place[R:]
    text[place[:R]], image[place[:R]] = takes & ~repairs["is_image"], takes & repairs["is_image"]
    return donor_use(donor, text, image)[place[:R]]


def _within(rising: np.ndarray, rows: slice) -> slice:
    """Return the slice of the ``rising`` row numbers that lie in ``rows``."""
    return slice(*np.searchsorted(rising, [rows.start, rows.stop]))
