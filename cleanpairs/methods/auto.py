r"""Auto: no noise rate, no threshold, no schedule to choose. What holds of the four papers, and a witness of its own.

1. Before any training, neighbours' agreement in frozen spaces (:mod:`cleanpairs.correspondence.agreement`) gives every
   pair a probability u of being right, and the corpus its noise rate pi, without a label.
2. Two networks train side by side on all pairs, cross entropy and its reverse weighted by w (L2RM's warm-up objective;
   CRCL's idea of weighing by the label), w = u at first.
3. After each of the epochs 2 .. ``horizon`` both networks score every pair in evaluation mode; their mean over networks
   and epochs, calibrated by u, is joined with u (:mod:`cleanpairs.correspondence.witnesses`): the new w. At the horizon
   likeness to trusted neighbours in the joint space is a third witness, and gives most of w's order. Later epochs have
   learned wrong pairs by heart, and are not asked. Where u sees nothing wrong, a mixture of their score decides.
4. After the horizon, sparse partial transport between the images and the captions of the pairs with w < 1/2 gives each
   such image the caption that suits it best of those left over (L2RM's idea, in the whole corpus and not in a batch);
   these repaired pairs train with the weight ``repaired``.

The correspondence is w, a probability; the threshold is 1/2. The model is the mean of both networks (Co-teaching's two
views, as in NCR and REPAIR).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import normalize
from torch import Tensor, nn

from cleanpairs.correspondence.agreement import Agreement, neighbours_agreement, neighbours_likeness, nothing_known
from cleanpairs.correspondence.evidence import image_vectors
from cleanpairs.correspondence.mixture import gaussian_split
from cleanpairs.correspondence.valley import Valley
from cleanpairs.correspondence.witnesses import in_order, joined, ranks
from cleanpairs.estimators import PairCleaner
from cleanpairs.estimators.refusal import caption_spaces
from cleanpairs.objectives.rce import InfoNCEWithRCE
from cleanpairs.ops.joint import SHARPNESS, STAY
from cleanpairs.ops.matching import matching_probability
from cleanpairs.ops.search import top_k
from cleanpairs.ops.sparse_transport import sparse_transport
from cleanpairs.parameters import check_flag, check_number, check_whole
from cleanpairs.trainer import TrainingData, View

__all__ = ["Auto"]

DIM = 256  # of the spaces in which the agreement is asked for: principal directions; more of them find no more
CANDIDATES = 32
LIKENESS, UNTRAINED = 2.0, 0.15  # of the ranks in the last order, beside 1 of the networks' score
DOUBT = 0.03  # error of the estimated noise rate (docs/methods/auto.md)
LEAST_SHARE = 0.1  # of the mass that stays: an edge that carries less is no repair


def reduced(x: Any, seed: int) -> np.ndarray:
    """Unit vectors (n, <= 256) float32 of the rows (n, D), dense or sparse, in their principal directions."""
    dim = min(DIM, min(x.shape) - 1)
    if dim >= 2:
        with np.errstate(invalid="ignore"):  # the shares of a variance of zero, where all rows are alike
            x = TruncatedSVD(dim, random_state=seed).fit_transform(x)
    return np.asarray(normalize(x.toarray() if hasattr(x, "toarray") else x), dtype=np.float32)


def agreement_of(data: TrainingData, seed: int) -> Agreement:
    """Neighbours' agreement of a training's pairs: of standardised mean regions, and of rare words, frozen vectors or
    both, where they stand side by side.
    """
    images = reduced(image_vectors(data.images, np.arange(len(data.images))), seed)
    spaces = [reduced(normalize(space), seed) for space in caption_spaces(data.tokens)]
    texts = normalize(np.concatenate(spaces, axis=1)) if len(spaces) > 1 else spaces[0]
    return neighbours_agreement(images[data.image_index], texts, data.image_group, data.text_group, seed=seed)


def believed(wrong: float) -> float:
    """The share that is to be called wrong: none for an estimate within its error, all of it from twice that on."""
    return float(np.clip(2 * (wrong - DOUBT), 0, wrong))


class _Weighing:
    """The procedure of the module's head."""

    def __init__(self, data: TrainingData, method: Auto) -> None:
        n = len(data)
        agreement = agreement_of(data, method.random_state) if method.witness else nothing_known(n)
        self.right, self.wrong, self.own = agreement.right, agreement.wrong, agreement.own
        self.asked = len(agreement.control) > 0  # else there are too few pairs, and all count as right at first
        self.objective = InfoNCEWithRCE(tau=method.tau)
        self.tau, self.networks, self.witness = method.tau, method.networks, method.witness
        self.horizon = min(method.horizon, method.epochs)
        self.repaired, self.likeness = method.repaired, method.likeness
        self.w = self.right.astype(np.float32)
        self.weight = self.w.copy()
        self.caption = np.arange(n, dtype=np.int64)
        self.scores = np.zeros((self.networks, n), dtype=np.float64)  # sums over the epochs
        self.counted = 0
        self.found = 0.0  # share of wrong pairs by the networks' score alone
        self.mean_probability: float | None = None
        self.note: str | None = None

    def head(self, model: Any) -> nn.Module | None:
        """Nothing."""
        return None

    def head_lr(self) -> float | None:
        """There is no head."""
        return None

    def start_epoch(self, view: View) -> None:
        """All was settled when the last epoch ended."""

    def batches(self, view: View, network: int) -> list[tuple[np.ndarray, ...]]:
        """All pairs once, for each network in an order of its own."""
        return [(rows,) for rows in view.batches(None, *([network] if network else []))]

    def loss(self, view: View, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        """Mean over the batch of the weighted objective."""
        f = view.forward(network, *batch, seed=seed, captions=self.caption)
        return self.objective(f.similarity(), f.of(self.weight), f.excluded).mean()

    def end_epoch(self, view: View) -> None:
        """Ask the networks, join what they say with the agreement, and repair once."""
        self.note = None
        if view.epoch < 2 or view.epoch > self.horizon:
            return
        for k in range(self.networks):
            self.scores[k] += self.probability(view, k)
        self.counted += 1
        said = self.scores.sum(axis=0)
        self.w = self.joined([said])
        if view.epoch == self.horizon and self.likeness:
            like = self.like(view)
            order = ranks(said) + LIKENESS * like + UNTRAINED * ranks(self.own)
            self.w = in_order(self.joined([said, like]), order, self.rate()).astype(np.float32)
        self.weight = self.w.copy()
        self.mean_probability = float(self.w.mean())
        if view.epoch == self.horizon and self.repaired > 0:
            self.repair(view)

    def joined(self, scores: list[np.ndarray]) -> np.ndarray:
        """w (N,) float32 of the trained witnesses' scores, the networks' first, and of the untrained one.

        Where that one is not asked, or sees next to nothing wrong (captions that were swapped within a category, or are
        wrong by half, are like those of like images), there is nothing to calibrate by: the papers' mixture splits the
        networks' score, if its two components are apart.
        """
        self.found = 0.0
        if self.witness and believed(self.wrong) > DOUBT:
            return joined(self.right, scores, believed(self.wrong)).astype(np.float32)
        split = gaussian_split(scores[0] / (self.networks * self.counted), early_stop=False)
        if self.witness and not split.separated:  # two witnesses that see nothing wrong
            return joined(self.right, scores, believed(self.wrong)).astype(np.float32)
        self.found = float(1 - split.high.mean())
        return np.asarray(split.high, dtype=np.float32)

    def rate(self) -> float:
        """The share of wrong pairs, by the witness that has seen any."""
        return self.found or believed(self.wrong)

    def like(self, view: View) -> np.ndarray:
        """The third witness (N,): how like each pair is to its trusted neighbours in the joint space."""
        d = view.data
        image, text = self.joint(view, d.image_index, np.arange(len(d)))
        return neighbours_likeness(image, text, d.image_group, d.text_group, self.w, seed=view.seed(8))

    def joint(self, view: View, images: np.ndarray, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Unit vectors (n, 2 d) float32 of rows of the images and the captions: those of all networks side by side."""
        encoded = [view.encoded(k) for k in range(self.networks)]
        return tuple(  # type: ignore[return-value]
            np.concatenate([getattr(e, side).vectors[rows] for e in encoded], axis=1) / np.float32(len(encoded) ** 0.5)
            for side, rows in (("images", images), ("texts", texts))
        )

    def probability(self, view: View, network: int) -> np.ndarray:
        """Matching probability (N,) of all pairs in evaluation mode, over random groups."""
        return view.figure(
            network, lambda S, excluded: matching_probability(S, self.tau, excluded), seed=view.seed(7, network)
        )

    def repair(self, view: View) -> None:
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
        self.caption[lost[row[good]]] = lost[column[good]]
        self.weight[lost[row[good]]] = self.repaired

    def labels(self) -> np.ndarray:
        """0 where a pair counts as wrong."""
        return np.where(self.w < 0.5, np.float32(0), self.w)

    def value(self) -> np.ndarray:
        """w (N,) float32."""
        return self.w

    def state(self) -> dict[str, Any]:
        """What the epochs have changed; the agreement is computed again."""
        return {
            "w": self.w, "weight": self.weight, "caption": self.caption, "scores": self.scores, "counted": self.counted,
            "found": self.found,
        }  # fmt: skip

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.w, self.weight = (np.array(state[name], dtype=np.float32) for name in ("w", "weight"))
        self.caption = np.array(state["caption"], dtype=np.int64)
        self.scores, self.counted = np.array(state["scores"], dtype=np.float64), int(state["counted"])
        self.found = float(state["found"])


@dataclass(kw_only=True, eq=False, repr=False)
class Auto(PairCleaner):
    """The method that asks for no setting: neighbours' agreement, two networks, weights that are probabilities.

    Parameters beside those of :class:`cleanpairs.estimators.SharedParameters`:

    Parameters
    ----------
    horizon : int
        Epochs whose scores enter the correspondence.
    repaired : float in [0, 1]
        Weight of the repaired pairs in the training behind the horizon; 0 for none.
    networks : {1, 2}
        How many are trained; two take twice the time.
    witness, likeness : bool
        False: without neighbours' agreement in the frozen spaces (the papers' Gaussian mixture splits the networks'
        score instead, all pairs have weight 1 at first), without the likeness in the joint space. For comparisons.
    """

    method_name: ClassVar[str] = "auto"

    text_encoder: str | Path | None = "auto"
    epochs: int = 12
    horizon: int = 5
    repaired: float = 0.5
    networks: int = 2
    witness: bool = True
    likeness: bool = True

    def _validate(self) -> None:
        super()._validate()
        check_whole("auto", "horizon", self.horizon, 2)
        check_number("auto", "repaired", self.repaired, least=0, most=1)
        check_whole("auto", "networks", self.networks, 1)
        check_number("auto", "networks", self.networks, most=2)
        check_flag("auto", "witness", self.witness)
        check_flag("auto", "likeness", self.likeness)

    def _procedure(self, data: TrainingData) -> _Weighing:
        self._trained = _Weighing(data, self)
        return self._trained

    def _set_threshold(self, y: np.ndarray) -> None:
        super()._set_threshold(y)
        known = self._trained.asked or not self.witness
        self.noise_rate_ = max(self._trained.wrong, self._trained.found) if known else float("nan")
        del self._trained

    def _default_threshold(self, valley: Valley) -> float:
        return 0.5
