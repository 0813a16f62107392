"""Rematching: who gets which caption or image from whom, as a plan to be read, edited and saved before it is used.

For a mismatched pair (image I_a, caption T_b), of correspondence below the threshold, there are two repairs:

- ``rematch_text``: the image keeps its row and takes a caption that fits, out of the mismatched captions (its own
  one is among them where captions were only swapped) and the trusted ones;
- ``rematch_image``: the caption keeps its row and takes an image, likewise.

Candidates are the nearest parts by cosine, per pool and direction; every candidate pair is scored by the same fixed
scorer as the corpus; one joint greedy assignment then gives parts to rows, best first. What is best, and where is
looked, is the strategy's:

- ``nearest``: the candidate of the highest score;
- ``ot``: a partial transport between all mismatched images and captions decides jointly, and its plan is the order
  (:mod:`cleanpairs.repair.transport_plan`); trusted donors serve who got nothing;
- ``half-replace``: the trusted pairs nearest in what stays lend the other part (REPAIR);
- ``pseudo-caption``: the most similar trusted image lends its caption (PC2).

What holds of every plan (and is tested on random corpora):

- no repaired pair has the image and the text of any pair of the input or of another repaired pair, so neither a row's
  wrong partner nor a duplicate of it comes back, and no repair makes a duplicate row;
- the caption of a mismatched pair serves at most ``max_reuse`` rows, its own included; so does its image; a trusted
  pair's caption (image) serves at most ``max_reuse`` rows besides its own;
- a repaired pair scores at least ``min_repair_score`` and more than the row's present pair.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.core.errors import ConfigError, DataError, RefusedError
from cleanpairs.correspondence.repair_evidence import RepairEvidence
from cleanpairs.data import Pairs
from cleanpairs.ops.scratch import MEMORY, Scratch
from cleanpairs.repair.candidates import DonorSearch, NeighbourSearch, Side
from cleanpairs.repair.decisions import REASONS, Chance, Corpus, Repairs, Rules, decide_repairs
from cleanpairs.repair.edge_pairs import EdgeScorer
from cleanpairs.repair.editing import donor_use
from cleanpairs.repair.plan import ACTIONS, PLAN_SCHEMA, PlanSummary, RepairPlan
from cleanpairs.repair.searches import half_replacing, pseudo_captioning
from cleanpairs.repair.transport_plan import SOLVERS, CosineReference

__all__ = [
    "STRATEGIES",
    "PairScorer",
    "PlanSummary",
    "RepairPlan",
    "RepairSettings",
    "donor_pools",
    "plan_repairs",
    "plan_rows",
]

STRATEGIES = ("nearest", "ot", "half-replace", "pseudo-caption")

REPAIRS = ("probable", "plausible", "none")
_DONORS = ("mismatched", "trusted", "both")
_TARGETS = ("text", "image", "both")
_SCORER_BLOCK = 1 << 14

SPILLED = 1 << 25  # candidates: some 2 GB of them
NO_CORRESPONDENCE = "no correspondence"
KINDS = ("trusted image", "mismatched image", "pseudo-caption of a trusted pair", "mismatched caption")


class PairScorer(Protocol):
    """Matching probability of each of n pairs against a fixed bank, whatever they are scored beside.

    ``(n, d), (n, d)`` unit vectors of image and text, ``(n,), (n,)`` their groups; returns (n,) float32 in [0, 1].
    Pairs come sorted by image, so that a scorer may compute once what depends on the image only.
    """

    def __call__(
        self, z_image: np.ndarray, z_text: np.ndarray, image_group: np.ndarray, text_group: np.ndarray
    ) -> np.ndarray:
        """Score n pairs."""
        ...


def plan_repairs(
    pairs: Pairs,
    correspondence: np.ndarray,
    z_image: np.ndarray,
    z_text: np.ndarray,
    scorer: PairScorer,
    settings: RepairSettings,
    *,
    temperature: float = 0.07,
    evidence: RepairEvidence | None = None,
    search: DonorSearch | None = None,
    look: NeighbourSearch | None = None,
    scratch: Scratch | None = None,
) -> RepairPlan:
    """Plan the repair of every pair below the threshold. Nothing is changed; the same input gives the same plan.

    Parameters
    ----------
    pairs : Pairs
        N pairs of M images.
    correspondence : (N,) float
        In [0, 1], low = bad; not finite where quarantined.
    z_image, z_text : (M, d), (N, d) float
        l2-normalised embeddings. Those of quarantined pairs are not looked at.
    scorer : PairScorer
        Judges candidates and present pairs alike.
    settings : RepairSettings
    temperature : float
        Of the model's softmax, above 0; the transport's regularisation is half of it.
    evidence : RepairEvidence, optional
        What the repairs' probabilities come from; without it none is probable.
    search : callable, optional
        A method's own way to look for donors instead of the strategy's; see
        :data:`cleanpairs.repair.candidates.DonorSearch`.
    look : callable, optional
        Who does the searches by cosine, instead of :func:`cleanpairs.ops.search.top_k`: they take most of the time.
    scratch : Scratch, optional
        Where candidates lie. By default in memory, or in temporary files where there may be more than
        :data:`SPILLED` of them; the plan is the same.

    Returns
    -------
    RepairPlan

    Raises
    ------
    DataError
        Arrays that do not belong to ``pairs``.
    RefusedError
        Embeddings or scores that are not finite.

    Notes
    -----
    Time is that of the search (matrix products of the mismatched pairs with the donors), of the scorer (at most
    ``4 * candidates`` pairs a mismatched pair) and of one Python loop over the candidates that are good enough.
    """
    threshold, strategy, donors = settings.threshold, settings.strategy, settings.lenders
    n = len(pairs)
    correspondence = np.asarray(correspondence)
    _check_shapes(pairs, correspondence, z_image, z_text)
    quarantined = ~np.isfinite(correspondence)
    quarantined[list(pairs.reasons)] = True
    trusted = np.flatnonzero(~quarantined & (np.where(quarantined, 0, correspondence) >= threshold))
    mismatched = np.flatnonzero(~quarantined & (np.where(quarantined, 0, correspondence) < threshold))
    image_index = np.asarray(pairs.image_index)
    _refuse_non_finite(z_image, np.unique(image_index[~quarantined]), "images")
    _refuse_non_finite(z_text, np.flatnonzero(~quarantined), "captions")

    image_group, text_group = np.asarray(pairs.image_group)[image_index], np.asarray(pairs.text_group)
    image = Side(z_image, image_index, np.unique(image_group, return_inverse=True)[1])
    text = Side(z_text, np.arange(n), np.unique(text_group, return_inverse=True)[1])
    n_text = int(text.group.max()) + 1 if n else 0
    present = np.flatnonzero(~quarantined)
    best_trusted = trusted[np.argsort(-correspondence[trusted], kind="stable")[: settings.max_trusted]]
    pools = donor_pools(mismatched, best_trusted, donors)
    if search is None and strategy == "half-replace":
        search = half_replacing(np.asarray(z_image)[image_index], z_text)
    elif search is None and strategy == "pseudo-caption":
        search = pseudo_captioning(np.asarray(z_image)[image_index], z_text)
    corpus = Corpus(
        image,
        text,
        mismatched,
        pools,
        np.unique(image.group[present] * n_text + text.group[present]),
        CosineReference.of(image, text, mismatched, trusted),
    )
    concerned = np.concatenate([mismatched, best_trusted])
    judge = _judge(pairs, scorer, z_image, z_text, concerned)
    if scratch is None:
        many = len(mismatched) * settings.candidates * 2 * len(pools) > SPILLED
        scratch = Scratch(tempfile.gettempdir()) if many else MEMORY
    chance = None
    if evidence is not None and evidence.judged:
        chance = Chance(evidence.probability, len(trusted), float((1 - correspondence[trusted]).sum()))
    repairs = decide_repairs(
        corpus, judge, settings.rules(temperature), chance=chance, search=search, look=look, scratch=scratch
    )
    noted = {**settings.noted(), "searches": [asdict(note) for note in repairs.searches]}
    table = _plan_table(pairs, correspondence, quarantined, mismatched, repairs)
    return RepairPlan(table, float(threshold), float(settings.min_repair_score), pairs.source.fingerprint, noted)


def donor_pools(mismatched: np.ndarray, best_trusted: np.ndarray, donors: str) -> list[tuple[np.ndarray, bool]]:
    """Who may lend parts, in the order in which they are asked, and whether they are trusted."""
    pools = [(mismatched, False)] if donors != "trusted" else []
    return pools + ([(best_trusted, True)] if donors != "mismatched" else [])


def _judge(
    pairs: Pairs, scorer: PairScorer, z_image: np.ndarray, z_text: np.ndarray, concerned: np.ndarray
) -> EdgeScorer:
    """The scores of pairs out of those ``concerned``."""
    image_index, text_group = np.asarray(pairs.image_index), np.asarray(pairs.text_group)
    image_group = np.asarray(pairs.image_group)
    judging = getattr(scorer, "judging", None)  # a scorer may share work between pairs of one image or text
    many = None if judging is None else judging(image_group, text_group, image_index[concerned], concerned)

    def judge(image_of: np.ndarray, text_of: np.ndarray, cosine: np.ndarray | None) -> np.ndarray:
        if many is not None:
            return np.asarray(many(image_index[image_of], text_of, cosine))
        out = np.empty(len(image_of), np.float32)
        for start in range(0, len(out), _SCORER_BLOCK):
            i, t = image_of[start : start + _SCORER_BLOCK], text_of[start : start + _SCORER_BLOCK]
            row = image_index[i]
            out[start : start + len(i)] = scorer(z_image[row], z_text[t], image_group[row], text_group[t])
        if not np.isfinite(out).all():
            raise RefusedError(f"the scorer gave {(~np.isfinite(out)).sum()} non-finite scores: is the model trained?")
        return out

    return judge


@dataclass(frozen=True)
class RepairSettings:
    """What is repaired, how, and how sure one must be; checked when they are put together.

    Parameters
    ----------
    threshold : float
        Pairs at or above it are trusted and kept.
    min_repair_score : float
        In [0, 1]; a repair that scores lower is not made, and the pair is dropped.
    candidates : int
        Nearest parts to score, per row, direction and pool (mismatched, trusted).
    donors : {"both", "mismatched", "trusted"}
        Where parts may come from.
    targets : {"both", "text", "image"}
        What may be replaced.
    max_reuse : int
        How many rows one donor's caption (image) may serve.
    mismatched_bonus : float
        Added to the score of a mismatched donor when candidates are ranked: a trusted caption has its image already, so
        it must fit clearly better. With 0.3 twice as many repairs find the image's own caption as with 0.05, on
        clip art with permuted captions (docs/log.md).
    image_margin : float
        Taken off the score of a replaced image when candidates are ranked: it wins only where it fits better by as much
        than every replacement of the caption that is still to be had.
    max_trusted : int
        Only so many trusted pairs, of the highest correspondence, are searched for donors: it bounds time.
    strategy : {"ot", "nearest", "half-replace", "pseudo-caption"}
        See the module's head. The last two take from trusted pairs only, the last one captions only.
    solver : {"sparse", "pot", "pot-exact"}
        Of the transport; see :func:`cleanpairs.repair.transport_plan.transport_shares`.
    repairs : {"probable", "plausible", "none"}
        probable: those that are likelier right than wrong, ordered by that, as long as the expected share of mismatched
        pairs does not rise above that of the kept ones by more than .01; none where it cannot be judged. plausible:
        what fits best, right or near, as the strategy has it.
    min_confidence : float
        In [0, 1]: of probable repairs, the least probability.

    Raises
    ------
    ConfigError
        A setting out of its range.
    """

    threshold: float
    repairs: str = "probable"
    min_confidence: float = 0.5
    min_repair_score: float = 0.5
    candidates: int = 32
    donors: str = "both"
    targets: str = "both"
    max_reuse: int = 1
    mismatched_bonus: float = 0.3
    image_margin: float = 0.05
    max_trusted: int = 100_000
    strategy: str = "ot"
    solver: str = "sparse"

    def __post_init__(self) -> None:
        known = {
            "repairs": REPAIRS, "donors": _DONORS, "targets": _TARGETS, "strategy": STRATEGIES, "solver": SOLVERS,
        }  # fmt: skip
        for name, choices in known.items():
            if (value := getattr(self, name)) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        for name in ("threshold", "min_repair_score", "min_confidence"):
            if not 0 <= (number := getattr(self, name)) <= 1:
                raise ConfigError(f"{name} must lie in [0, 1], got {number!r}")
        for name in ("candidates", "max_reuse", "max_trusted"):
            if (count := getattr(self, name)) < 1:
                raise ConfigError(f"{name} must be at least 1, got {count!r}")

    @property
    def lenders(self) -> str:
        """``donors``, as far as the strategy has a choice."""
        return "trusted" if self.strategy in ("half-replace", "pseudo-caption") else self.donors

    def rules(self, temperature: float) -> Rules:
        """What decisions need of them, and of the model."""
        if not (np.isfinite(temperature) and temperature > 0):
            raise ConfigError(f"temperature must be above 0, got {temperature!r}")
        text_only = self.strategy == "pseudo-caption"
        return Rules(
            self.min_repair_score, self.candidates, self.targets != "image" or text_only,
            self.targets != "text" and not text_only, self.max_reuse, self.mismatched_bonus, self.image_margin,
            self.min_confidence, temperature,
            self.strategy == "ot", self.solver, self.repairs,
        )  # fmt: skip

    def noted(self) -> dict[str, Any]:
        """As a plan keeps them, beside the threshold and the least score."""
        known = asdict(self)
        return {name: known[name] for name in known if name not in ("threshold", "min_repair_score")}


def _plan_table(
    pairs: Pairs, correspondence: np.ndarray, quarantined: np.ndarray, mismatched: np.ndarray, repairs: Repairs
) -> pa.Table:
    n = len(pairs)
    takes, donor = repairs.donor >= 0, np.full(n, -1, np.int64)
    donor[mismatched] = repairs.donor
    new_text, new_image = np.zeros(n, bool), np.zeros(n, bool)
    new_text[mismatched], new_image[mismatched] = takes & ~repairs.is_image, takes & repairs.is_image
    keys, captions = pa.array(pairs.keys, pa.string()), pa.array(pairs.captions, pa.string())
    of = pa.array(repairs.donor, mask=~takes)
    return plan_rows(
        0,
        keys,
        captions,
        np.where(quarantined, np.float32(np.nan), correspondence),
        pairs.reasons,
        mismatched,
        repairs,
        repairs.donor,
        donor_use(donor, new_text, new_image)[mismatched],
        keys.take(of),
        captions.take(of),
    )


def plan_rows(
    first: int,
    keys: pa.Array,
    captions: pa.Array,
    correspondence: np.ndarray,
    reasons: Mapping[int, str],
    mismatched: np.ndarray,
    repairs: Repairs,
    donor: np.ndarray,
    use: np.ndarray,
    donor_keys: pa.Array,
    donor_captions: pa.Array,
) -> pa.Table:
    """Rows of a plan for n consecutive pairs, r of them mismatched.

    Parameters
    ----------
    first : int
        Number of the first pair.
    keys, captions : (n,) string
    correspondence : (n,) float32
        NaN where quarantined.
    reasons : mapping
        Place among the n -> why it is quarantined.
    mismatched : (r,) int64
        Places among the n.
    repairs : Repairs
        Of the r.
    donor : (r,) int64
        Whose part each takes, -1 where it takes none.
    use : (r,) int32
        How many rows carry that part.
    donor_keys, donor_captions : (r,) string
        Null where it takes none.
    """
    n, r = len(keys), len(mismatched)
    quarantined, repaired = np.isnan(correspondence), donor >= 0
    place = np.full(n, -1, np.int64)
    place[mismatched] = np.arange(r)
    is_mismatched = place >= 0

    # Words by number: as objects, millions of them would take most of the time.
    action = np.where(quarantined, ACTIONS.index("quarantine"), ACTIONS.index("keep"))
    change = np.where(repairs.is_image, ACTIONS.index("rematch_image"), ACTIONS.index("rematch_text"))
    action[mismatched] = np.where(repaired, change, ACTIONS.index("drop"))
    told = sorted({NO_CORRESPONDENCE, *reasons.values()})
    words = [*REASONS, *KINDS, *told]
    why = np.full(n, -1, np.int64)
    why[mismatched] = np.where(repaired, len(REASONS) + kind_of(repairs), repairs.reason)
    if quarantined.any():
        number = {word: len(REASONS) + len(KINDS) + i for i, word in enumerate(told)}
        why[quarantined] = number[NO_CORRESPONDENCE]
        for i, reason in reasons.items():
            why[i] = number[reason]

    def spread(values: np.ndarray | pa.Array) -> pa.Array:
        """(n,) out of (r,); null where a pair is no mismatched pair, or the value is."""
        some = values if isinstance(values, pa.Array) else pa.array(values, mask=~repaired | np.isnan(values))
        return some.take(pa.array(place, mask=~is_mismatched))

    takes_text = action == ACTIONS.index("rematch_text")
    gone = (action == ACTIONS.index("drop")) | quarantined
    new = pc.if_else(pa.array(takes_text), spread(donor_captions), captions)
    return pa.table(
        {
            "pair_id": np.arange(first, first + n),
            "key": keys,
            "action": pa.array(ACTIONS, pa.string()).take(pa.array(action)),
            "correspondence": pa.array(correspondence, mask=quarantined, type=pa.float32()),
            "donor_pair_id": spread(donor),
            "donor_key": spread(donor_keys),
            "caption": pc.if_else(pa.array(gone), pa.scalar(None, pa.string()), new),
            "original_caption": captions,
            "repair_score": spread(repairs.score),
            "margin": spread(repairs.margin),
            "confidence": spread(repairs.confidence),
            "donor_use": spread(use),
            "reason": pa.array(words, pa.string()).take(pa.array(why, mask=why < 0)),
        },
        schema=PLAN_SCHEMA,
    )


def kind_of(repairs: Repairs) -> np.ndarray:
    """Number (R,) in :data:`KINDS` of the kind of donor."""
    return np.where(repairs.is_image, 0, 2) + np.where(repairs.trusted, 0, 1)


def _check_shapes(pairs: Pairs, correspondence: np.ndarray, z_image: np.ndarray, z_text: np.ndarray) -> None:
    n, m = len(pairs), len(pairs.images)
    if correspondence.shape != (n,):
        raise DataError(f"correspondence must be ({n},), one per pair of the data, got {correspondence.shape}")
    if z_image.ndim != 2 or z_text.ndim != 2 or z_image.shape[1] != z_text.shape[1]:
        raise DataError(f"embeddings must be (M, d) and (N, d) with one d, got {z_image.shape} and {z_text.shape}")
    if len(z_image) != m or len(z_text) != n:
        raise DataError(f"the data has {m} images and {n} captions, got {len(z_image)} and {len(z_text)} embeddings")


def _refuse_non_finite(z: np.ndarray, index: np.ndarray, what: str) -> None:
    bad = 0
    for start in range(0, len(index), _SCORER_BLOCK):
        bad += int((~np.isfinite(z[index[start : start + _SCORER_BLOCK]]).all(axis=1)).sum())
    if bad:
        raise RefusedError(f"the embeddings of {bad} {what} that are not quarantined are not finite: quarantine them")
