r"""Auto: no noise rate, no threshold, no schedule to choose; and probabilities that hold.

A share of the pairs exchange their captions before any training: these *planted* pairs are mismatched for sure, and go
through all that follows as if nobody knew (target-decoy competition: Elias and Gygi, Nature Methods 2007). Untrained
evidence gives every pair a first probability w of being right; networks train on all pairs weighted by w, and of their
scores, with neighbours asked again, the planted pairs' calibrate w and the noise rate. Then these get their
captions back, sparse transport repairs pairs with w < 1/2 for the training (L2RM's idea), fresh networks judge all
pairs once more, and a ridge regression joins them. Equations, sources and reasons: docs/methods/auto.md.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from cleanpairs.core.errors import DataError
from cleanpairs.core.parameters import choice, number, whole
from cleanpairs.correspondence import agreement
from cleanpairs.correspondence.agreement import (
    NeighbourAgreement,
    neighbour_agreement,
    normalised_agreement,
    nothing_known,
    similarity_to_neighbours,
)
from cleanpairs.correspondence.calibration import DRAWS, UNDETERMINED, Calibration, calibrate, noise_rate, positions
from cleanpairs.correspondence.evidence import image_vectors
from cleanpairs.correspondence.mixture import split_in_two
from cleanpairs.correspondence.repair_evidence import RepairEvidence
from cleanpairs.correspondence.similarity import SimilarityAgreement, similarity_agreement
from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.ensemble import Ensemble, members_of
from cleanpairs.encoders.linear import Linear
from cleanpairs.encoders.tokenizer import TokenTable
from cleanpairs.estimators import Embedded, PairCleaner
from cleanpairs.estimators.refusal import caption_spaces
from cleanpairs.objectives import InfoNCEWithRCE
from cleanpairs.ops.normalised_similarity import VectorPairs, among_all, cosines
from cleanpairs.ops.search import top_k
from cleanpairs.ops.sparse_transport import sparse_transport
from cleanpairs.repair.decisions import KEEP_MARGIN, TRANSPORT_TEMPERATURE
from cleanpairs.scoring import embed_images, embed_texts
from cleanpairs.trainer import EpochContext, TrainingData, TrainingStage, TrainingStrategy, step_seed

DIM = 256  # of the spaces in which the agreement is asked for: principal directions; more of them find no more
CANDIDATES = 32
# Of the ranks of similarity to neighbours and evidence, beside 1 of the networks' score; by whether the evidence is
# similarity.
WEIGHTS = {False: (0.5, 1.5), True: (2.0, 0.15)}
BESIDE = 1e6, 4.0, 1.0, 0.0  # of the ranks of the vectors' similarity, where there is one, beside these; 1e6: alone
AMONG_TAU = 0.05  # of the networks' similarity among those with all captions and all images
SAMPLE = 512  # pairs whose similarities to each other tell how far those of networks and regression spread
SAME = 1e-5  # deviation of similarities that are all the same
FEW_PLANTED, MOST_PLANTED, LEAST_PLANTED = 100, 2000, 30  # pairs
PLANTED_SHARE = 0.25  # at most
LEAST_SHARE = 0.1  # of the mass that stays: an edge that carries less is no repair


def reduced(x: Any, seed: int) -> np.ndarray:
    """Unit vectors (n, <= 256) float32 of the rows (n, D), dense or sparse, in their principal directions."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.preprocessing import normalize

    dim = min(DIM, min(x.shape) - 1)
    if dim >= 2:
        with np.errstate(invalid="ignore"):  # the shares of a variance of zero, where all rows are alike
            x = TruncatedSVD(dim, random_state=seed).fit_transform(x)
    return np.asarray(normalize(x.toarray() if hasattr(x, "toarray") else x), dtype=np.float32)


def frozen_spaces(images: np.ndarray, tokens: TokenTable, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (M, d) of standardised mean regions, and (N, e) of rare words, frozen vectors or both."""
    from sklearn.preprocessing import normalize

    spaces = [reduced(normalize(space), seed) for space in caption_spaces(tokens)]
    texts = normalize(np.concatenate(spaces, axis=1)) if len(spaces) > 1 else spaces[0]
    return reduced(image_vectors(images, np.arange(len(images))), seed), texts


def vectors_of_both(images: np.ndarray, tokens: TokenTable) -> tuple[np.ndarray, np.ndarray] | None:
    """Unit vectors (M, e) of the images and (N, f) of the captions, where both came as one vector each."""
    from sklearn.preprocessing import normalize

    if tokens.vectors is None or images.ndim != 3 or images.shape[1] != 1 or not len(tokens):
        return None
    text = np.asarray(tokens.vectors[tokens.ids[tokens.offsets[:-1]]], np.float32)
    return normalize(images[:, 0].astype(np.float32)), normalize(text)


def evidence_of(data: TrainingData, seed: int, null: np.ndarray | None = None) -> NeighbourAgreement:
    """Untrained evidence: similarity of vectors of one space, else agreement, then of the ``null`` pairs (2, m) too."""
    groups = data.image_group, data.text_group
    both = vectors_of_both(data.images, data.tokens)
    if both is not None:
        image, text = both
        found = similarity_agreement(VectorPairs(image[data.image_index], text, *groups), seed=seed)
        if found is not None:
            return found
    images, texts = frozen_spaces(data.images, data.tokens, seed)
    return neighbour_agreement(VectorPairs(images[data.image_index], texts, *groups), planted=null, seed=seed)


def ranks(score: np.ndarray) -> np.ndarray:
    """(N,) in (0, 1); equal scores have equal ranks."""
    from scipy.stats import rankdata

    return np.asarray((rankdata(score) - 0.5) / max(len(score), 1))


def plant(
    image_group: np.ndarray, text_group: np.ndarray, share: float, rng: np.random.Generator,
    similar: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Exchange captions among a random share of N pairs.

    - ``image_group``, ``text_group`` (N,) int64: of equal numbers an image gets no caption
    - ``share`` float in [0, .25]; raised to 100 pairs where these are no more than a quarter, and at most 2,000
    - ``similar`` (m,), (m, k): of rows, the pairs with which alone they may exchange, as :func:`similar_pairs` has it

    Returns (N,) int64: whose caption each pair has; (m,) int64: the rows that have another's, none of fewer than 30.
    """
    n = len(image_group)
    caption = np.arange(n)
    many = int(min(max(share * n, FEW_PLANTED), PLANTED_SHARE * n, MOST_PLANTED)) if share else 0
    if similar is not None:
        for i, others in zip(*similar, strict=True):
            free = others[(others >= 0) & (caption[others] == others)]
            if len(free) and caption[i] == i and many > 1:
                caption[i], caption[free[0]], many = free[0], i, many - 2
        rows = np.flatnonzero(caption != np.arange(n))
    else:
        rows = rng.permutation(n)[:many]
        caption[rows] = np.roll(rows, 1)

    def same(at: np.ndarray) -> np.ndarray:
        return (image_group[caption[at]] == image_group[at]) | (text_group[caption[at]] == text_group[at])

    for _ in range(20):
        for i in rows[same(rows)]:
            j = rng.choice(rows)
            caption[i], caption[j] = caption[j], caption[i]
    alike = rows[same(rows)]
    if len(rows) - len(alike) < LEAST_PLANTED:
        return np.arange(n), np.zeros(0, np.int64)
    return caption, np.sort(np.setdiff1d(rows, alike))


def simplest(scores: list[np.ndarray], planted: np.ndarray) -> int:
    """Number of the first of several scores (N,) that sets the ``planted`` rows (m,), which are mismatched for sure, as
    far below the others as the best does, by the standard error of the difference.
    """
    placed = np.array([positions(score[planted], np.delete(score, planted)) for score in scores])
    more = placed - placed[placed.mean(1).argmin()]
    return int((more.mean(1) <= more.std(1) / len(planted) ** 0.5).argmax())


class _Weighing(TrainingStrategy):
    """Weights of N pairs in two stages, each from fresh networks. In the first the planted pairs have each other's
    captions, which calibrates; in the last all have their own. Without planted pairs there is the last alone.
    """

    captions: np.ndarray
    kept = ("w", "weight", "captions", "scores", "beside")

    def __init__(self, data: TrainingData, method: "Auto") -> None:
        n = len(data)
        self.label_epochs = min(method.label_epochs, method.epochs)
        rng = np.random.default_rng(step_seed(method.random_state_, 18))
        share = method.planted if self.label_epochs > 1 else 0.0
        groups, similar, self.of_similar = (data.image_group, data.text_group), None, method.mismatches == "similar"
        if self.of_similar:
            images, texts = frozen_spaces(data.images, data.tokens, method.random_state_)
            similar = agreement.similar_pairs(VectorPairs(images[data.image_index], texts, *groups), rng)
        self.captions, self.planted = plant(*groups, share, rng, similar)
        self.exchanged = np.stack([self.planted, self.captions[self.planted]])
        found = nothing_known(n, len(self.planted))
        if method.untrained_evidence:
            found = evidence_of(data, method.random_state_, self.exchanged)
        of_similarity = found if isinstance(found, SimilarityAgreement) else None
        self.similarity, self.settled = of_similarity is not None, of_similarity is not None and of_similarity.settled
        self.calibration: Calibration | None = None
        if of_similarity is not None and of_similarity.settled:
            self.calibration = of_similarity.calibration
            self.captions, self.planted, self.of_similar = np.arange(n), self.planted[:0], False
        self.found, self.null = found, found.similar if self.of_similar else found.null
        self.as_given = found.observed, found.matched.astype(np.float32)
        # The planted pairs are judged by what the pairs say as they were given, as the null pairs are: nobody else is
        # then the worse for them.
        self.observed, right = found.observed.copy(), found.matched.copy()
        if self.similarity and len(self.planted):
            changed = replace(data, tokens=data.tokens.take(self.captions), text_group=data.text_group[self.captions])
            again = evidence_of(changed, method.random_state_)
            self.observed, right = again.observed, again.matched
            self.null = again.similar if self.of_similar else again.null
        elif len(self.planted) and len(found.planted):
            self.observed[self.planted], right[self.planted] = found.planted, found.planted_matched
        self.method, self.networks, self.objective = method, method.networks, InfoNCEWithRCE(tau=method.tau)
        self.w = right.astype(np.float32)
        self.weight = self.w.copy()
        self.scores = np.zeros(n, dtype=np.float64)  # sums over networks and epochs of the stage
        self.beside = 0.0  # weight of the rank of the vectors' similarity

    def stages(self, last: TrainingStage) -> list[TrainingStage]:
        return [TrainingStage(self.label_epochs), last] if len(self.planted) else [last]

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        f = view.forward(network, *batch, seed=seed)
        return self.objective(f.similarity(), f.of(self.weight), f.excluded).mean()

    def end_epoch(self, view: EpochContext) -> None:
        if view.epoch < 2 or view.epoch > self.label_epochs:
            return
        own, last = np.arange(len(self.w), dtype=np.int64), view.epoch == self.label_epochs
        calibrating = len(self.planted) > 0 and view.stage == 1
        texts = self.captions if calibrating else own
        if not self.settled:
            self.scores += self.normalised(view, own, texts)
        if last and not self.settled:
            self.w = (self.first_label(view) if calibrating else self.label(view)).astype(np.float32)
        elif calibrating:
            self.w = self.calibrated(ranks(self.scores) + ranks(self.observed), draws=0)[0].astype(np.float32)
        if last or calibrating:
            self.weight = self.w.copy()
        self.mean_probability = float(self.w.mean())
        if last:
            self.captions = own
            if calibrating:
                self.scores = np.zeros(len(own))
            if self.method.repaired > 0:
                self.repair(view)

    def first_label(self, view: EpochContext) -> np.ndarray:
        """P(matched) (N,) by the planted pairs' scores; of these pairs, which get their own captions now, what is known
        without training.
        """
        trusted, right = self.w.copy(), self.calibrated(ranks(self.scores), draws=0)[0]
        # They answer nobody: what their own captions teach of their images would be held against them, and not against
        # the other mismatched pairs.
        trusted[self.planted] = right[self.planted] = 0
        order = self.order(view, self.captions, trusted, right, self.observed, self.exchanged)
        if self.similarity:
            self.beside = BESIDE[simplest([order + b * ranks(self.observed) for b in BESIDE], self.planted)]
        w, self.calibration = self.calibrated(order + self.beside * ranks(self.observed), draws=DRAWS)
        w[self.planted] = self.as_given[1][self.planted]
        return w

    def label(self, view: EpochContext) -> np.ndarray:
        """P(matched) (N,) of all pairs with their own captions, by the calibration of the first stage."""
        observed, right = self.as_given
        score = ranks(self.scores)
        trusted = self.w if self.calibration is None else self.probability(self.calibration, score, score)
        order = self.order(view, np.arange(len(self.w)), self.w, trusted, observed, np.zeros((2, 0), np.int64))
        order += self.beside * ranks(observed)
        if self.calibration is not None:
            return self.probability(self.calibration, order, order)
        # Too few pairs to plant some: what is known untrained, or the papers' mixture.
        split = split_in_two(order / max(float(order.max()), 1e-12))
        return split.high if split.separated and not self.similarity and not len(self.null) else right

    def calibrated(self, order: np.ndarray, draws: int) -> tuple[np.ndarray, Calibration]:
        """P(matched) (N,) of scores (N,), and the calibration by those of the planted pairs."""
        observed = np.delete(order, self.planted)
        known = positions(self.observed[self.planted], self.null) if len(self.null) else None
        seed = self.method.random_state_
        found = calibrate(observed, order[self.planted], known=known, draws=draws, seed=seed)
        assert found is not None  # there are enough of both
        return self.probability(found, order, observed), found

    def probability(self, found: Calibration, order: np.ndarray, among: np.ndarray) -> np.ndarray:
        """P(matched) (N,) of scores (N,), by their quantiles among others."""
        at = positions(order, among)
        if len(found.draws) and np.isnan(noise_rate(found, len(order)).value):  # what is not known makes no pair sure
            return 1 - np.mean([found.mismatched(at, theta) for theta in found.draws], axis=0)
        return np.asarray(1 - found.mismatched(at))

    def order(
        self, view: EpochContext, texts: np.ndarray, trusted: np.ndarray, right: np.ndarray, observed: np.ndarray,
        null: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """Scores (N,) of the images and the captions ``texts`` (N,): the sum of the ranks of the networks' similarity,
        of the similarity to ``trusted`` (N,) neighbours, and of the frozen spaces' evidence by weights ``right`` (N,).
        """
        order, d, (joint, untrained) = ranks(self.scores), view.data, WEIGHTS[self.similarity]
        if self.method.neighbour_similarity:
            image, text = self.joint(view, d.image_index, texts)
            groups = d.image_group, d.text_group[texts]
            order += joint * similarity_to_neighbours(VectorPairs(image, text, *groups), trusted, seed=view.seed(8))
        if not self.similarity and len(self.null):
            # The spaces are made again: kept through the training they are 3 KB a pair.
            seed = self.method.random_state_
            images, captions = frozen_spaces(d.images, d.tokens, seed)
            spaces = VectorPairs(images[d.image_index], captions, d.image_group, d.text_group)
            observed, of_null = normalised_agreement(spaces, right, null, seed=seed)
            observed[null[0]] = of_null
        return order + untrained * ranks(observed)

    def normalised(self, view: EpochContext, own: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """The networks' similarity (N,) of the images and the captions ``texts`` (N,), less what both have with all; of
        local ones, whose similarity is no product of vectors, the matching probability.
        """
        d = view.data
        if view.networks[0].model.local:
            p = [view.probability(k, self.method.tau, pairs=(own, texts)) for k in range(self.networks)]
            return np.asarray(sum(p))

        def pairs_of(rows: np.ndarray) -> VectorPairs:
            joint = self.joint(view, d.image_index[rows], texts[rows])
            return VectorPairs(*joint, d.image_group[rows], d.text_group[texts[rows]])

        return among_all(pairs_of, len(own), tau=AMONG_TAU, seed=view.seed(7))[0]

    def joint(self, view: EpochContext, images: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Unit vectors (n, 2 d) float32 of rows of the images and the captions: those of all networks side by side."""
        encoded = [view.encoded(k) for k in range(self.networks)]
        return tuple(  # type: ignore[return-value]
            np.concatenate([getattr(e, side).vectors[rows] for e in encoded], axis=1) / np.float32(len(encoded) ** 0.5)
            for side, rows in (("images", images), ("texts", texts))
        )

    def repair(self, view: EpochContext) -> None:
        lost = np.flatnonzero(self.w < 0.5)
        if len(lost) < 4:
            return
        image, text = self.joint(view, view.data.image_index[lost], lost)
        m, k = len(lost), min(CANDIDATES, len(lost))
        asking, found, back = np.repeat(np.arange(m), k), top_k(image, text, k).indices, top_k(text, image, k).indices
        row, column = np.concatenate([asking, back.ravel()]), np.concatenate([found.ravel(), asking])
        edge = (row != column) & (row >= 0) & (column >= 0)  # below 0: an approximate search found no more
        key = np.unique(row[edge] * m + column[edge])
        row, column = key // m, key % m
        cosine, own = cosines(image[row], text[column]), cosines(image, text)
        kept, present, trusted = np.flatnonzero(self.w >= 0.5), float(np.median(own)), 1.0
        if len(kept):
            rows = view.data.image_index[kept]
            each = [view.encoded(j) for j in range(self.networks)]
            trusted = np.mean([np.median(cosines(e.images.vectors[rows], e.texts.vectors[kept])) for e in each])
        stay = present + KEEP_MARGIN * max(float(trusted) - present, 0.0)
        reg = TRANSPORT_TEMPERATURE * self.method.tau
        plan = sparse_transport(row, column, -cosine, np.ones(m), np.ones(m), stay_cost=-stay, reg=reg)
        order = np.lexsort((-plan.mass, row))
        best = order[np.unique(row[order], return_index=True)[1]]  # of each row, the edge that carries most
        good = best[(cosine[best] > own[row[best]]) & (plan.mass[best] > LEAST_SHARE * plan.row_left[row[best]])]
        self.captions[lost[row[good]]] = lost[column[good]]
        self.weight[lost[row[good]]] = self.method.repaired

    def labels(self) -> np.ndarray:
        return np.where(self.w < 0.5, np.float32(0), self.w)

    def value(self) -> np.ndarray:
        return self.w

    def state(self) -> dict[str, Any]:
        known = {} if self.calibration is None else vars(self.calibration)
        return {**super().state(), **{f"calibration_{k}": v for k, v in known.items() if v is not None}}

    def load_state(self, state: dict[str, Any]) -> None:
        if "beside" not in state or len(state["scores"]) != len(self.w):
            raise DataError("the checkpoint is of another version of cleanpairs; start again with --overwrite")
        super().load_state(state)
        known = {k.removeprefix("calibration_"): v for k, v in state.items() if k.startswith("calibration_")}
        self.calibration = Calibration.from_dict(known) if known else None


@dataclass(kw_only=True, eq=False, repr=False)
class Auto(PairCleaner):
    """The method that asks for no setting: neighbours' agreement, four networks, weights that are probabilities.

    Parameters beside those of :class:`cleanpairs.estimators.PairCleaner`:

    - ``epochs``: of the second stage, whose networks are kept
    - ``label_epochs``: epochs of the first stage; of both those whose scores enter the correspondence
    - ``repaired`` float in [0, 1]: weight of the repaired pairs in the second stage
    - ``networks``: how many are trained, up to 16
    - ``planted`` float in [0, .25]: share of the pairs that exchange captions in the first stage, as :func:`plant` has
      it; 0: none, no first stage, and the noise rate is undetermined
    - ``mismatches`` {"random", "similar"}: whose captions the planted pairs get: any, or those of the twentieth of the
      pairs that is most like theirs; then more is flagged, and of the noise rate there is an upper bound alone
    - ``untrained_evidence``, ``neighbour_similarity``: False, for comparisons: without neighbours' agreement in the
      frozen spaces (all pairs have weight 1 at first), without the similarity to neighbours in the joint space
    - ``regression``: False: the networks retrieve and score alone
    """

    method_name: ClassVar[str] = "auto"
    _null_threshold = False  # its correspondence is a probability

    text_encoder: str | Path | None = "auto"
    epochs: int = 12
    label_epochs: int = whole(5, 2)
    repaired: float = number(0.5, least=0, most=1)
    networks: int = whole(4, 1, most=16)
    planted: float = number(0.1, least=0, most=0.25)
    mismatches: str = choice("random", "similar")
    untrained_evidence: bool = True
    neighbour_similarity: bool = True
    regression: bool = True

    def _procedure(self, data: TrainingData) -> _Weighing:
        self._trained = _Weighing(data, self)
        return self._trained

    def _stages(self) -> list[TrainingStage]:
        return self._trained.stages(*super()._stages())

    def _set_threshold(self, y: np.ndarray) -> None:
        super()._set_threshold(y)
        trained, rate = self._trained, noise_rate(self._trained.calibration, len(y))
        self.calibration_ = None if np.isnan(rate.value) else trained.calibration
        self.noise_rate_bound_ = rate.high if trained.of_similar else trained.found.bound(rate)
        rate = UNDETERMINED if trained.of_similar else rate
        self.noise_rate_, self.noise_rate_interval_ = rate.value, (rate.low, rate.high)
        if trained.similarity and np.isnan(rate.value) and not trained.of_similar:
            self.noise_rate_ = trained.found.noise_rate  # without an interval: too few planted pairs for one
        del self._trained

    def _model_and_temperature(
        self, networks: DualEncoder, y: np.ndarray, data: TrainingData
    ) -> tuple[DualEncoder, float]:
        """The networks and the regression; the cosines of each with as much spread over random pairs as the other's."""
        networks, tau = super()._model_and_temperature(networks, y, data)
        if not self.regression or self._trained.similarity or networks.local or data.images.ndim != 3 or not y.any():
            return networks, tau
        device, seed = self.resolved_device(), self.random_state_
        linear = Linear.fit(
            data.images, data.tokens, data.image_index, y, vocabulary=len(self.tokenizer_), seed=seed
        ).to(device)
        rng = np.random.default_rng(step_seed(self.random_state_, 19))
        some = np.sort(rng.choice(len(data), min(len(data), SAMPLE), replace=False))
        images, tokens = data.images[data.image_index[some]], data.tokens.take(some)
        S, L = (
            embed_images(m, images, device=device).vectors @ embed_texts(m, tokens, device=device).vectors.T
            for m in (networks, linear)
        )
        if min(S.std(), L.std()) < SAME:
            return networks, tau
        share = float(L.std() / (S.std() + L.std()))
        members = members_of(networks)
        weights = [*(share / len(members) for _ in members), 1 - share]
        spread = float((share * S + (1 - share) * L).std() / S.std())
        return Ensemble([*members, linear], weights).eval(), tau * spread

    def repair_evidence(self, found: Embedded, correspondence: np.ndarray, threshold: float) -> RepairEvidence | None:
        """See :meth:`cleanpairs.estimators.PairScorer.repair_evidence`."""
        pairs, images, tokens = found.pairs, found.frozen_images, found.frozen_texts
        if self.calibration_ is None:
            return None
        assert images is not None and tokens is not None
        both = vectors_of_both(images, tokens)
        joint = both if both is not None and both[0].shape[1] == both[1].shape[1] else None
        spaces = frozen_spaces(images, tokens, self.random_state_)
        groups = pairs.pair_image_group, pairs.text_group
        return RepairEvidence(
            *spaces, pairs.image_index, *groups, correspondence, threshold, joint=joint, seed=self.random_state_
        )
