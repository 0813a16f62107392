r"""Auto: no noise rate, no threshold, no schedule to choose; and probabilities that hold.

1. Before any training a share of the pairs exchange their captions: these *planted* pairs are mismatched for sure, like
   those that were so before, and go through all that follows as if nobody knew (target-decoy competition: Elias and
   Gygi, Nature Methods 2007). No image and no caption is there a second time.
2. Agreement with neighbours and regressions in frozen spaces (:mod:`cleanpairs.correspondence.agreement`) gives every
   pair a first probability of being right.
3. Two networks train side by side on all pairs, cross entropy and its reverse weighted by w (L2RM's warm-up objective;
   CRCL's idea of weighing by the label), w = the first probability at first.
4. After each of the epochs 2 .. ``label_epochs`` both networks score every pair in evaluation mode. After the last of
   these the frozen spaces' neighbours are asked again, with the weights that the networks have taught, and trusted
   neighbours in the joint space. The planted pairs' scores are the null of pairs that were learned like all others:
   :mod:`cleanpairs.correspondence.calibration` makes w of it, and the noise rate with its interval. Later epochs have
   learned wrong pairs by heart, and are not asked.
5. The planted pairs get their own captions back. These were never trained together: they are ranked among themselves,
   which tells less than the others' order does and more than the evidence alone. As a random share of the pairs they
   would have the distribution of w of the one or of the other; they get the mean of both.
6. Sparse partial transport between the images and the captions of the pairs with w < 1/2 gives each such image the
   caption that suits it best of those left over (L2RM's idea, in the whole corpus and not in a batch); these repaired
   pairs train with the weight ``repaired``.

7. Beside the networks the model has a ridge regression between the frozen spaces, weighted by w, in closed form
   (:mod:`cleanpairs.encoders.linear`). On few pairs it retrieves better than they do, and with them better than either.

The correspondence is w, a probability; the threshold is 1/2. The model's similarity is the mean of both networks'
(Co-teaching's two views, as in NCR and REPAIR) and the regression's.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from cleanpairs.core.errors import DataError
from cleanpairs.core.parameters import number, whole
from cleanpairs.correspondence.agreement import Agreement, neighbours_agreement, nothing_known, similarity_to_neighbours
from cleanpairs.correspondence.calibration import DRAWS, Calibration, calibrate, noise_rate, positions
from cleanpairs.correspondence.density_minimum import DensityMinimum
from cleanpairs.correspondence.evidence import image_vectors
from cleanpairs.correspondence.mixture import gaussian_split
from cleanpairs.correspondence.planting import plant
from cleanpairs.correspondence.repair_evidence import RepairEvidence
from cleanpairs.correspondence.similarity import SimilarityEvidence, area, similarity_evidence
from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.ensemble import Ensemble, members_of
from cleanpairs.encoders.linear import Linear
from cleanpairs.encoders.tokenizer import TokenTable
from cleanpairs.estimators import Embedded, PairCleaner
from cleanpairs.estimators.refusal import caption_spaces
from cleanpairs.objectives.rce import InfoNCEWithRCE
from cleanpairs.ops.matching import matching_probability
from cleanpairs.ops.search import top_k
from cleanpairs.ops.sparse_transport import sparse_transport
from cleanpairs.repair.decisions import SHARPNESS, STAY
from cleanpairs.scoring import embed_images, embed_texts
from cleanpairs.trainer import EpochContext, TrainingData, TrainingStrategy, step_seed

DIM = 256  # of the spaces in which the agreement is asked for: principal directions; more of them find no more
CANDIDATES = 32
# Of the ranks of similarity to neighbours and evidence, beside 1 of the networks' score; by whether the evidence is
# similarity.
WEIGHTS = {False: (0.5, 1.5), True: (2.0, 0.15)}
BESIDE = 0.0, 1.0, 4.0  # of the ranks of the vectors' similarity, where there is one, beside these
SAMPLE = 512  # pairs whose similarities to each other tell how far those of networks and regression spread
SAME = 1e-5  # deviation of similarities that are all the same
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


def evidence_of(data: TrainingData, seed: int, null: np.ndarray | None = None) -> Agreement:
    """Untrained evidence of a training's pairs: similarity, where images and captions are vectors of one space; else
    neighbours' agreement, then of the ``null`` pairs (2, m) too.
    """
    both = vectors_of_both(data.images, data.tokens)
    if both is not None:
        image, text = both
        found = similarity_evidence(image[data.image_index], text, data.image_group, data.text_group, seed=seed)
        if found is not None:
            return found
    return agreement_of(data, seed, null)


def agreement_of(
    data: TrainingData, seed: int, null: np.ndarray | None = None, right: np.ndarray | None = None
) -> Agreement:
    """Neighbours' agreement, of standardised mean regions, and of rare words, frozen vectors or both, where they stand
    side by side; of the ``null`` pairs (2, m) too; with the weights ``right`` (N,), where these are known.
    """
    images, texts = frozen_spaces(data.images, data.tokens, seed)
    groups = data.image_group, data.text_group
    return neighbours_agreement(images[data.image_index], texts, *groups, planted=null, right=right, seed=seed)


def ranks(score: np.ndarray) -> np.ndarray:
    """(N,) in (0, 1); equal scores have equal ranks."""
    from scipy.stats import rankdata

    return np.asarray((rankdata(score) - 0.5) / max(len(score), 1))


class _Weighing(TrainingStrategy):
    """The procedure of the module's head.

    It looks at ``rows`` (K,) of images and ``texts`` (K,) of captions: the N pairs as they are trained, then the
    planted images with their own captions.
    """

    captions: np.ndarray

    def __init__(self, data: TrainingData, method: "Auto") -> None:
        n = len(data)
        self.label_epochs = min(method.label_epochs, method.epochs)
        rng = np.random.default_rng(step_seed(method.random_state, 18))
        share = method.planted if self.label_epochs > 1 else 0.0
        self.captions, self.planted = plant(data.image_group, data.text_group, share, rng)
        self.trained = self.captions.copy()
        self.rows = np.concatenate([np.arange(n), self.planted])
        self.texts = np.concatenate([self.captions, self.planted])
        null = np.stack([self.planted, self.captions[self.planted]])
        found = (
            evidence_of(data, method.random_state, null)
            if method.untrained_evidence
            else nothing_known(n, len(self.planted))
        )
        self.similarity = isinstance(found, SimilarityEvidence)
        self.settled = isinstance(found, SimilarityEvidence) and found.settled
        self.by_similarity = found.calibration if isinstance(found, SimilarityEvidence) else None
        self.rate, self.as_given, self.null = found.wrong, found.right, found.null
        # The planted pairs are judged by what the pairs say as they were given, as the null pairs are: nobody else is
        # then the worse for them.
        observed, self.right = found.observed.copy(), found.right.copy()
        if self.similarity and len(self.planted) and not self.settled:
            changed = replace(data, tokens=data.tokens.take(self.captions), text_group=data.text_group[self.captions])
            again = evidence_of(changed, method.random_state)
            observed, self.right, self.null = again.observed, again.right, again.null
        elif len(found.planted):
            observed[self.planted], self.right[self.planted] = found.planted, found.planted_right
        self.observed = np.concatenate([observed, found.observed[self.planted]])
        self.objective = InfoNCEWithRCE(tau=method.tau)
        self.tau, self.networks, self.seed = method.tau, method.networks, method.random_state
        self.repaired, self.neighbour_similarity = method.repaired, method.neighbour_similarity
        self.w = self.right.astype(np.float32)
        self.weight = self.w.copy()
        if self.settled:
            self.weight[self.planted] = 0
        self.scores = np.zeros(len(self.rows), dtype=np.float64)  # sums over networks and epochs
        self.calibration: Calibration | None = None

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        """Mean over the batch of the weighted objective."""
        f = view.forward(network, *batch, seed=seed)
        return self.objective(f.similarity(), f.of(self.weight), f.excluded).mean()

    def end_epoch(self, view: EpochContext) -> None:
        """Ask the networks, calibrate by the planted pairs, and repair once."""
        self.note = None
        if view.epoch < 2 or view.epoch > self.label_epochs:
            return
        for k in range(self.networks):
            self.scores += self.probability(view, k)
        last = view.epoch == self.label_epochs
        if self.settled:
            if last:
                self.calibration = self.by_similarity
        else:
            order = ranks(self.scores)
            if not last:
                order += ranks(self.observed)
            elif self.neighbour_similarity:
                neighbour_similarity, untrained = WEIGHTS[self.similarity]
                order += neighbour_similarity * self.similar(view) + untrained * ranks(self.agreement_again(view))
            if last and self.similarity:
                order = self.best([ranks(self.observed), *(order + c * ranks(self.observed) for c in BESIDE)])
            self.w = self.calibrated(order, last).astype(np.float32)
        self.weight = self.w.copy()
        if self.settled and not last:
            self.weight[self.planted] = 0
        self.mean_probability = float(self.w.mean())
        if last:
            self.captions = np.arange(len(self.w), dtype=np.int64)
            if self.repaired > 0:
                self.repair(view)

    def best(self, orders: list[np.ndarray]) -> np.ndarray:
        """Of scores (K,) those that set the planted pairs, which nobody has named, farthest below the observed ones."""
        if not len(self.planted):
            return orders[0]
        observed = np.delete(np.arange(len(self.w)), self.planted)
        return max(orders, key=lambda order: area(order[observed], order[self.planted]))

    def calibrated(self, order: np.ndarray, last: bool) -> np.ndarray:
        """P(matched) (N,) of scores (K,); at ``last`` of the planted images with their own captions."""
        n = len(self.w)
        null = np.zeros(n, bool)
        null[self.planted] = True
        observed, planted = order[:n][~null], order[self.planted]
        known = positions(self.observed[self.planted], self.null) if len(self.null) else None
        found = calibrate(observed, planted, known=known, draws=DRAWS if last else 0, seed=self.seed)
        if found is None:
            return self.as_given if last and self.similarity else self.mixed(order[:n])
        at = positions(order[:n], observed)
        w = 1 - found.mismatched(at)
        if last and np.isnan(noise_rate(found, n).value):  # what is not known makes no pair sure
            w = 1 - np.mean([found.mismatched(at, theta) for theta in found.draws], axis=0)
        if last:
            self.calibration = found
            at = positions(order[n:], order[n:])  # among themselves
            w[self.planted] = np.quantile(w[~null], at)
            if len(self.null):
                w[self.planted] = (w[self.planted] + np.quantile(self.as_given, at)) / 2
        return w

    def mixed(self, order: np.ndarray) -> np.ndarray:
        """P(matched) (N,) where there are too few pairs to plant some: by the papers' mixture, or the agreement's."""
        split = gaussian_split(order / max(float(order.max()), 1e-12))
        return np.asarray(split.high if split.separated and not len(self.null) else self.right)

    def similar(self, view: EpochContext) -> np.ndarray:
        """How similar each pair is to its trusted neighbours in the joint space (K,); planted ones are none."""
        d, trusted = view.data, np.zeros(len(self.rows))
        trusted[: len(self.w)] = self.w
        trusted[self.planted] = 0
        image, text = self.joint(view, d.image_index[self.rows], self.texts)
        groups = d.image_group[self.rows], d.text_group[self.texts]
        return similarity_to_neighbours(image, text, *groups, trusted, seed=view.seed(8))

    def agreement_again(self, view: EpochContext) -> np.ndarray:
        """The frozen spaces' evidence (K,); neighbours' agreement with the weights that the networks have taught."""
        if self.similarity or not len(self.null):
            return self.observed
        # By the networks alone: two wrong pairs that agree would raise each other's weight, as planted ones cannot.
        trusted = self.calibrated(ranks(self.scores), last=False)
        trusted[self.planted] = self.as_given[self.planted]
        null = np.stack([self.planted, self.captions[self.planted]])
        # The spaces are made again: kept through the training they are 3 KB a pair.
        again = agreement_of(view.data, self.seed, null, trusted)
        observed = again.observed[self.rows]
        observed[self.planted] = again.planted
        return observed

    def joint(self, view: EpochContext, images: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Unit vectors (n, 2 d) float32 of rows of the images and the captions: those of all networks side by side."""
        encoded = [view.encoded(k) for k in range(self.networks)]
        return tuple(  # type: ignore[return-value]
            np.concatenate([getattr(e, side).vectors[rows] for e in encoded], axis=1) / np.float32(len(encoded) ** 0.5)
            for side, rows in (("images", images), ("texts", texts))
        )

    def probability(self, view: EpochContext, network: int) -> np.ndarray:
        """Matching probability (K,) in evaluation mode, over random groups."""
        return view.figure(
            network, lambda S, excluded: matching_probability(S, self.tau, excluded), seed=view.seed(7, network),
            pairs=(self.rows, self.texts),
        )  # fmt: skip

    def repair(self, view: EpochContext) -> None:
        """Give the images of wrong pairs the captions of wrong pairs, jointly, where one fits."""
        lost = np.flatnonzero(self.w < 0.5)
        if len(lost) < 4:
            return
        image, text = self.joint(view, view.data.image_index[lost], lost)
        k = min(CANDIDATES, len(lost))
        m = len(lost)
        asking, found, back = np.repeat(np.arange(m), k), top_k(image, text, k).indices, top_k(text, image, k).indices
        row, column = np.concatenate([asking, back.ravel()]), np.concatenate([found.ravel(), asking])
        edge = (row != column) & (row >= 0) & (column >= 0)  # below 0: an approximate search found no more
        key = np.unique(row[edge] * m + column[edge])
        row, column = key // m, key % m
        cosine, own = np.einsum("ij,ij->i", image[row], text[column]), np.einsum("ij,ij->i", image, text)
        kept = np.flatnonzero(self.w >= 0.5)
        present = float(np.median(own))
        trusted = np.mean([
            np.median(np.einsum(
                "ij,ij->i", view.encoded(j).images.vectors[view.data.image_index[kept]],
                view.encoded(j).texts.vectors[kept],
            )) for j in range(self.networks)
        ]) if len(kept) else 1.0  # fmt: skip
        stay, reg = present + STAY * max(float(trusted) - present, 0.0), SHARPNESS * self.tau
        plan = sparse_transport(row, column, -cosine, np.ones(m), np.ones(m), stay_cost=-stay, reg=reg)
        order = np.lexsort((-plan.mass, row))
        best = order[np.unique(row[order], return_index=True)[1]]  # of each row, the edge that carries most
        good = best[(cosine[best] > own[row[best]]) & (plan.mass[best] > LEAST_SHARE * plan.row_left[row[best]])]
        self.captions[lost[row[good]]] = lost[column[good]]
        self.weight[lost[row[good]]] = self.repaired

    def labels(self) -> np.ndarray:
        """0 where a pair counts as wrong."""
        return np.where(self.w < 0.5, np.float32(0), self.w)

    def value(self) -> np.ndarray:
        """w (N,) float32."""
        return self.w

    def state(self) -> dict[str, Any]:
        """What the epochs have changed; the agreement and the planted pairs are computed again."""
        known = {} if self.calibration is None else {k: v for k, v in vars(self.calibration).items() if v is not None}
        return {"w": self.w, "weight": self.weight, "caption": self.captions, "scores": self.scores, **known}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`; a DataError says that it is another version's."""
        if len(state["scores"]) != len(self.rows):
            raise DataError("the checkpoint is of another version of cleanpairs; start again with --overwrite")
        self.w, self.weight = (np.array(state[name], dtype=np.float32) for name in ("w", "weight"))
        self.captions = np.array(state["caption"], dtype=np.int64)
        self.scores = np.array(state["scores"], dtype=np.float64)
        self.calibration = Calibration.from_dict(state) if "theta" in state else None


@dataclass(kw_only=True, eq=False, repr=False)
class Auto(PairCleaner):
    """The method that asks for no setting: neighbours' agreement, two networks, weights that are probabilities.

    Parameters beside those of all methods, which :class:`cleanpairs.estimators.PairCleaner` lists:

    Parameters
    ----------
    label_epochs : int
        Epochs whose scores enter the correspondence.
    repaired : float in [0, 1]
        Weight of the repaired pairs in the training after these epochs; 0 for none.
    networks : {1, 2}
        How many are trained; two take twice the time.
    planted : float in [0, .25]
        Share of the pairs that exchange captions up to epoch `label_epochs`; at least 100 pairs where these are no
        more than a quarter, and at most 2,000. 0: none, and the noise rate is undetermined.
    untrained_evidence, neighbour_similarity : bool
        False: without neighbours' agreement in the frozen spaces (all pairs have weight 1 at first), without the
        similarity to neighbours in the joint space. For comparisons.
    regression : bool
        False: the networks retrieve and score alone, without the ridge regression.
    """

    method_name: ClassVar[str] = "auto"
    _null_threshold = False  # its correspondence is a probability

    text_encoder: str | Path | None = "auto"
    epochs: int = 12
    dropout: float = 0.1
    label_epochs: int = whole(5, 2)
    repaired: float = number(0.5, least=0, most=1)
    networks: int = whole(2, 1, most=2)
    planted: float = number(0.1, least=0, most=0.25)
    untrained_evidence: bool = True
    neighbour_similarity: bool = True
    regression: bool = True

    def _procedure(self, data: TrainingData) -> _Weighing:
        self._trained = _Weighing(data, self)
        return self._trained

    def _set_threshold(self, y: np.ndarray) -> None:
        super()._set_threshold(y)
        rate = noise_rate(self._trained.calibration, len(y))
        self.noise_rate_, self.noise_rate_interval_ = rate.value, (rate.low, rate.high)
        if self._trained.similarity and np.isnan(rate.value):
            self.noise_rate_ = self._trained.rate  # without an interval: too few planted pairs for one
        self.calibration_ = None if np.isnan(rate.value) else self._trained.calibration
        del self._trained

    def _default_threshold(self, density_minimum: DensityMinimum) -> float:
        return 0.5

    def _model_and_temperature(
        self, networks: DualEncoder, y: np.ndarray, data: TrainingData
    ) -> tuple[DualEncoder, float]:
        """The networks and the regression; the cosines of each with as much spread over random pairs as the other's."""
        networks, tau = super()._model_and_temperature(networks, y, data)
        if not self.regression or self._trained.similarity or networks.local or data.images.ndim != 3 or not y.any():
            return networks, tau
        device, seed = self.resolved_device(), self.random_state
        linear = Linear.fit(
            data.images, data.tokens, data.image_index, y, vocabulary=len(self.tokenizer_), seed=seed
        ).to(device)
        rng = np.random.default_rng(step_seed(self.random_state, 19))
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
        spaces = frozen_spaces(images, tokens, self.random_state)
        groups = pairs.pair_image_group, pairs.text_group
        return RepairEvidence(
            *spaces, pairs.image_index, *groups, correspondence, threshold, joint=joint, seed=self.random_state
        )
