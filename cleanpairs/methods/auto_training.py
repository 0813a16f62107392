"""The trained stage of ``auto``: networks, labels by the planted pairs' scores, and captions exchanged for it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from cleanpairs.core.plain import part_of
from cleanpairs.correspondence.agreement import normalised_agreement, similarity_to_neighbours
from cleanpairs.correspondence.calibration import Calibration, calibrate, noise_rate, positions
from cleanpairs.correspondence.mixture import split_in_two
from cleanpairs.correspondence.similarity import first_within_standard_errors
from cleanpairs.correspondence.words import lowest_ratio
from cleanpairs.methods.untrained import Untrained, frozen_pairs, words_of
from cleanpairs.objectives import InfoNCEWithRCE
from cleanpairs.ops.normalised_similarity import VectorPairs, among_all, cosines
from cleanpairs.ops.search import top_k
from cleanpairs.ops.sparse_transport import sparse_transport
from cleanpairs.repair.decisions import KEEP_MARGIN, TRANSPORT_TEMPERATURE
from cleanpairs.trainer import EpochContext, TrainingStage, TrainingStrategy


@dataclass(frozen=True)
class AutoNumbers:
    """The numbers of this algorithm. The ranks of several scores add up. The networks' score has the weight 1.

    Parameters
    ----------
    agreement_weights : (float, float)
        Weights of the similarity to neighbours, and of the untrained agreement.

    similarity_weights : (float, float)
        The same where the untrained agreement is the similarity of vectors of one space.

    similarity_rank_weights : tuple of float
        Weights of that similarity's rank, tried in this order. The first weight that sets the planted pairs as far
        below the others as the best does is taken. 1e6: the similarity alone.

    word_weight : float
        Weight of the rank of the worst word, among pairs that seem to be matched.

    among_tau : float
        Temperature of the networks' similarity among all captions and all images.

    candidates : int
        Captions to look at for each image to be repaired, and images for each caption.

    least_mass : float
        An edge that carries a smaller share of the mass is no repair.
    """

    agreement_weights: tuple[float, float] = (0.5, 1.5)
    similarity_weights: tuple[float, float] = (2.0, 0.15)
    similarity_rank_weights: tuple[float, ...] = (1e6, 4.0, 1.0, 0.0)
    word_weight: float = 2.0
    among_tau: float = 0.05
    candidates: int = 32
    least_mass: float = 0.1


NUMBERS = AutoNumbers()


def ranks(score: np.ndarray) -> np.ndarray:
    """Ranks of scores.

    Parameters
    ----------
    score : (N,) float
        Scores.

    Returns
    -------
    (N,) float
        In (0, 1). Equal scores have equal ranks.
    """
    from scipy.stats import rankdata

    return np.asarray((rankdata(score) - 0.5) / max(len(score), 1))


def ranks_by_length(score: np.ndarray, length: np.ndarray) -> np.ndarray:
    """:func:`ranks` among captions of about as many words: an eighth of all captions, or more that are equal.

    Parameters
    ----------
    score, length : (N,) float, (N,) int
        Scores, and words of each caption. The worst of many words fits worse than that of few.

    Returns
    -------
    (N,) float
        In (0, 1).
    """
    part = np.searchsorted(np.unique(np.quantile(length, np.arange(1, 8) / 8)), length)
    found = np.empty(len(score))
    for number in np.unique(part):
        found[part == number] = ranks(score[part == number])
    return found


def reordered(order: np.ndarray, words: np.ndarray, matched: float) -> np.ndarray:
    """Scores of pairs that seem to be matched, changed by the word that fits worst. None falls below the other pairs.

    Parameters
    ----------
    order : (N,) float
        Scores.
    words : (N,) float
        Rank in (0, 1) of each caption's worst word, of :func:`ranks_by_length`.
    matched : float
        Share of the pairs that seem to be matched. These have the highest scores.

    Returns
    -------
    (N,) float
        The scores.
    """
    least = np.quantile(order, 1 - matched)
    above = np.maximum(order - least, 0)
    return np.asarray(np.minimum(order, least) + above * (1 + NUMBERS.word_weight * words))


def first_within_one_standard_error(scores: list[np.ndarray], planted: np.ndarray) -> int:
    """Return the first of several scores that sets the planted pairs as far below the others as the best one does.

    Parameters
    ----------
    scores : list of (N,) float
        In the order of preference.
    planted : (m,) int64
        Rows that are mismatched for sure.

    Returns
    -------
    int
        Number of the score. As far: by the standard error of the difference.
    """
    worth = [-positions(score[planted], np.delete(score, planted)) for score in scores]
    return first_within_standard_errors(worth, errors=1)


def matched(found: Calibration, score: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Probability of being matched.

    Parameters
    ----------
    found : Calibration
        What turns quantiles into probabilities.
    score : (N,) float
        Scores.
    among : (n,) float
        Scores among which their quantiles are taken.

    Returns
    -------
    (N,) float
        In [0, 1].
    """
    at = positions(score, among)
    if len(found.draws) and np.isnan(noise_rate(found, len(score)).value):  # what is not known makes no pair sure
        return 1 - np.mean([found.mismatched(at, theta) for theta in found.draws], axis=0)
    return np.asarray(1 - found.mismatched(at))


class AutoTraining(TrainingStrategy):
    """Weights ``w`` of N pairs in two stages, each from fresh networks.

    In the first the planted pairs have each other's captions, and their scores calibrate those of all. In the last all
    have their own captions, and that calibration judges them. Without planted pairs there is the last alone. Where
    similarity settled all before the training, its label stays.

    Parameters
    ----------
    known : Untrained
        What is known before the training.

    method : Auto
        The method whose settings it takes.

    label_epochs : int
        Epochs of the first stage. The scores of so many epochs of each stage enter the correspondence.
    """

    captions: np.ndarray
    kept = ("w", "weight", "captions", "scores", "rank_weight")

    def __init__(self, known: Untrained, method: Any, label_epochs: int) -> None:
        self.known, self.networks, self.objective = known, method.networks, InfoNCEWithRCE(tau=method.tau)
        self.label_epochs, self.repair_weight, self.seed = label_epochs, method.repair_weight, method.random_state_
        self.captions, final = self.known.captions, self.known.similarity
        self.calibration = None if final is None else final.calibration
        self.settled = final is not None
        self.trains, self.dependence_is_known = method.retrieval or not known.by_similarity, known.by_similarity
        self.w = self.known.matched.astype(np.float32)
        self.weight = self.w.copy()
        self.scores = np.zeros(len(self.w), dtype=np.float64)  # sums over networks and epochs of the stage
        self.rank_weight = 0.0  # of the vectors' similarity

    def stages(self, given: list[TrainingStage]) -> list[TrainingStage]:
        """Return the calibration stage, if pairs are planted, and the given one. None if nothing is trained."""
        if not self.trains:
            return []
        return [TrainingStage(self.label_epochs), *given] if len(self.known.planted) else given

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        """See :class:`cleanpairs.trainer.TrainingStrategy`."""
        f = view.forward(network, *batch, seed=seed)
        return self.objective(f.similarity(), f.of(self.weight), f.excluded).mean()

    def end_epoch(self, view: EpochContext) -> None:
        """See :class:`cleanpairs.trainer.TrainingStrategy`."""
        if not 2 <= view.epoch <= self.label_epochs:
            return
        last, own = view.epoch == self.label_epochs, np.arange(len(self.w), dtype=np.int64)
        if len(self.known.planted) and view.stage == 1:
            self.scores += self.similarity(view, self.captions)
            if last:
                w = self.calibration_label(view)
            else:
                w = self.calibrated(ranks(self.scores) + ranks(self.known.observed))
            self.w = w.astype(np.float32)
            self.weight = self.w.copy()
            self.scores = np.zeros(len(own)) if last else self.scores
        elif not self.settled:
            self.scores += self.similarity(view, own)
            self.w = self.final_label(view, own).astype(np.float32) if last else self.w
        if last:  # the planted pairs get their own captions back
            self.weight, self.captions = self.w.copy(), own
        self.mean_probability = float(self.w.mean())
        if last and self.repair_weight > 0:
            self.repair(view)

    def calibration_label(self, view: EpochContext) -> np.ndarray:
        """Probability of being matched after the first stage, by the planted pairs' scores.

        Parameters
        ----------
        view : EpochContext
            The networks and the pairs of this epoch.

        Returns
        -------
        (N,) float
            Of the planted pairs, which get their own captions now, what is known without training.
        """
        known, planted = self.known, self.known.planted
        trust, weights = self.w.copy(), self.calibrated(ranks(self.scores))
        # Nothing is predicted from them: what their own captions teach of their images would count against them, and
        # not against the other mismatched pairs.
        trust[planted] = weights[planted] = 0
        exchanged = np.stack([planted, self.captions[planted]])
        order = self.joined(view, self.captions, trust, weights, known.observed, exchanged)
        if known.by_similarity:
            each = [order + weight * ranks(known.observed) for weight in NUMBERS.similarity_rank_weights]
            self.rank_weight = NUMBERS.similarity_rank_weights[first_within_one_standard_error(each, planted)]
        w = self.calibrated(order + self.rank_weight * ranks(known.observed), draws=100)
        w[planted] = known.agreement.matched.astype(np.float32)[planted]
        return w

    def calibrated(self, order: np.ndarray, draws: int = 0) -> np.ndarray:
        """Probability of being matched, by the scores of the planted pairs.

        Parameters
        ----------
        order : (N,) float
            Scores.
        draws : int
            Draws of the bootstrap. Where there are any, the calibration is kept.

        Returns
        -------
        (N,) float
            In [0, 1].
        """
        known, planted, some = self.known, self.known.planted, self.judged
        some[planted] = False
        observed = order[some]
        quantile = positions(known.observed[planted], known.null) if len(known.null) else None
        found = calibrate(observed, order[planted], known=quantile, weight=known.weight, draws=draws, seed=self.seed)
        assert found is not None  # there are enough of both
        if draws:
            self.calibration = found
        return matched(found, order, observed) * known.group_matched

    @property
    def untrained_rate(self) -> float | None:
        """The noise rate by the untrained agreement, among pairs of the right group. None: it tells none."""
        known = self.known
        if known.by_similarity or known.plants_similar_pairs or not len(known.agreement.null):
            return None
        of_groups = 0.0 if (groups := known.agreement.group_noise_rate) is None else groups.value
        return 1 - (1 - known.agreement.noise_rate) / max(1 - of_groups, 1e-12)

    def final_label(self, view: EpochContext, own: np.ndarray) -> np.ndarray:
        """Probability of being matched after the last stage, by the calibration of the first.

        Parameters
        ----------
        view : EpochContext
            The networks and the pairs of this epoch.
        own : (N,) int64
            All rows.

        Returns
        -------
        (N,) float
            Without planted pairs what is known untrained, or the papers' mixture. Where the rate is undetermined, the
            values of the untrained agreement, in the order of all scores.
        """
        score, given, weights = ranks(self.scores), self.known.agreement, self.w
        if self.calibration is not None:
            weights = matched(self.calibration, score, score[self.judged]) * self.known.group_matched
        order = self.joined(view, own, self.w, weights, given.observed, np.zeros((2, 0), np.int64))
        order += self.rank_weight * ranks(given.observed)
        if self.calibration is not None:
            other = self.untrained_rate
            rate = noise_rate(self.calibration, len(own), other=other)
            if np.isnan(rate.value) and other is not None:  # networks that learned little rank, and tell no probability
                return np.sort(given.matched)[order.argsort().argsort()]
            return matched(self.calibration, order, order[self.judged]) * self.known.group_matched
        split = split_in_two(order / max(float(order.max()), 1e-12))
        nothing_known = not self.known.by_similarity and not len(self.known.null)
        return split.high if split.separated and nothing_known else given.matched.astype(np.float32)

    def similarity(self, view: EpochContext, texts: np.ndarray) -> np.ndarray:
        """Similarity by the networks, less what both sides have with all.

        Parameters
        ----------
        view : EpochContext
            The networks and the pairs of this epoch.
        texts : (N,) int64
            Whose caption each image has.

        Returns
        -------
        (N,) float
            Of backbones that compare words with regions, the matching probability.
        """
        d, own = view.data, np.arange(len(self.w), dtype=np.int64)
        if view.networks[0].model.local:
            p = [view.probability(k, self.objective.tau, pairs=(own, texts)) for k in range(self.networks)]
            return np.asarray(sum(p))

        def pairs_of(rows: np.ndarray) -> VectorPairs:
            joint = self.joint(view, d.image_index[rows], texts[rows])
            return VectorPairs(*joint, d.image_group[rows], d.text_group[texts[rows]])

        return among_all(pairs_of, len(own), tau=NUMBERS.among_tau, seed=view.seed(7))[0]

    def joined(
        self, view: EpochContext, texts: np.ndarray, trust: np.ndarray, weights: np.ndarray, observed: np.ndarray,
        planted: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """Sum the ranks of the networks' similarity, the similarity to neighbours and the untrained agreement.

        Parameters
        ----------
        view : EpochContext
            The networks and the pairs of this epoch.

        texts : (N,) int64
            Whose caption each image has.

        trust : (N,) float
            Weights of the neighbours.

        weights : (N,) float
            Weights of the pairs for the new agreement.

        observed : (N,) float
            The agreement, where the vectors are of one space.

        planted : (2, m) int64
            Image and caption of pairs for which the new agreement is taken.

        Returns
        -------
        (N,) float
            The scores.
        """
        d, seed = view.data, self.seed
        joint, untrained = NUMBERS.similarity_weights if self.known.by_similarity else NUMBERS.agreement_weights
        image, text = self.joint(view, d.image_index, texts)
        pairs = VectorPairs(image, text, d.image_group, d.text_group[texts])
        order, words = ranks(self.scores) + joint * similarity_to_neighbours(pairs, trust, seed=view.seed(8)), None
        if not self.known.by_similarity and len(self.known.null):
            frozen = frozen_pairs(d, seed) if self.known.frozen is None else self.known.frozen
            words = words_of(d.tokens)
            observed, of_planted = normalised_agreement(frozen, weights, planted, seed=seed)
            observed[planted[0]] = of_planted
        order += untrained * ranks(observed)
        if words is None:
            return order
        low = lowest_ratio(frozen.images, words, weights, np.stack([np.arange(len(texts)), texts]), seed=seed)
        length = np.asarray((words > 0).sum(axis=1)).ravel()[texts]
        return reordered(order, ranks_by_length(low, length), float(weights.mean()))

    @property
    def judged(self) -> np.ndarray:
        """Which pairs (N,) have the right group. The calibration is of these."""
        some = self.known.group_matched >= 0.5
        return some if some.sum() >= 100 + len(self.known.planted) else np.ones(len(some), bool)

    def joint(self, view: EpochContext, images: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of all networks side by side.

        Parameters
        ----------
        view : EpochContext
            The networks and the pairs of this epoch.
        images, texts : (n,) int64
            Rows of the images and of the captions.

        Returns
        -------
        (n, 2 d) float32, (n, 2 d) float32
            Unit vectors.
        """
        encoded = [view.encoded(k) for k in range(self.networks)]
        length = np.float32(len(encoded) ** 0.5)
        image = np.concatenate([e.images.vectors[images] for e in encoded], axis=1)
        text = np.concatenate([e.texts.vectors[texts] for e in encoded], axis=1)
        return image / length, text / length

    def repair(self, view: EpochContext) -> None:
        """Give the captions of pairs with w < 1/2 to the images that they fit best, by sparse transport."""
        flagged = np.flatnonzero(self.w < 0.5)
        if len(flagged) < 4:
            return
        image, text = self.joint(view, view.data.image_index[flagged], flagged)
        m, k = len(flagged), min(NUMBERS.candidates, len(flagged))
        queries, found, back = np.repeat(np.arange(m), k), top_k(image, text, k).indices, top_k(text, image, k).indices
        row, column = np.concatenate([queries, back.ravel()]), np.concatenate([found.ravel(), queries])
        edge = (row != column) & (row >= 0) & (column >= 0)  # below 0: an approximate search found no more
        key = np.unique(row[edge] * m + column[edge])
        row, column = key // m, key % m
        cosine, own = cosines(image[row], text[column]), cosines(image, text)
        kept, present, trusted = np.flatnonzero(self.w >= 0.5), float(np.median(own)), 1.0
        if len(kept):
            rows = view.data.image_index[kept]
            each = [view.encoded(j) for j in range(self.networks)]
            trusted = np.mean([np.median(cosines(e.images.vectors[rows], e.texts.vectors[kept])) for e in each])
        least_cosine = present + KEEP_MARGIN * max(float(trusted) - present, 0.0)
        reg = TRANSPORT_TEMPERATURE * self.objective.tau
        plan = sparse_transport(row, column, -cosine, np.ones(m), np.ones(m), stay_cost=-least_cosine, reg=reg)
        order = np.lexsort((-plan.mass, row))
        best = order[np.unique(row[order], return_index=True)[1]]  # of each row, the edge that carries most
        good = best[(cosine[best] > own[row[best]]) & (plan.mass[best] > NUMBERS.least_mass * plan.row_left[row[best]])]
        self.captions[flagged[row[good]]] = flagged[column[good]]
        self.weight[flagged[row[good]]] = self.repair_weight

    def labels(self) -> np.ndarray:
        """See :class:`cleanpairs.trainer.TrainingStrategy`."""
        return np.where(self.w < 0.5, np.float32(0), self.w)

    def value(self) -> np.ndarray:
        """See :class:`cleanpairs.trainer.TrainingStrategy`."""
        return self.w

    def state(self) -> dict[str, Any]:
        """See :class:`cleanpairs.trainer.TrainingStrategy`."""
        known = {} if self.calibration is None else vars(self.calibration)
        return {**super().state(), **{f"calibration_{k}": v for k, v in known.items() if v is not None}}

    def load_state(self, state: dict[str, Any]) -> None:
        """See :class:`cleanpairs.trainer.TrainingStrategy`."""
        super().load_state(state)
        known = part_of(state, "calibration_")
        self.calibration = Calibration.from_dict(known) if known else None
