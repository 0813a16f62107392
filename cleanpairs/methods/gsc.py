"""GSC: geometrical structure consistency (Zhao et al., CVPR 2024, arXiv 2405.16996). See docs/methods/others.md."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core.parameters import choice, number, whole
from cleanpairs.correspondence.mixture import GuardedSplit, split_in_two
from cleanpairs.methods.splitting import PAPERS, Splitting, WarmupCleaner, scaled
from cleanpairs.ops.matching import matching_probability
from cleanpairs.trainer import EpochContext, TrainingStage


def structure_consistency(V: Tensor, U: Tensor, y: Tensor) -> Tensor:
    """Cosine of the rows of V and U, without gradient (GSC).

    Parameters
    ----------
    V, U : (B, B) Tensor
        Similarities of images, and of texts.
    y : (B,) Tensor
        Weights of the columns.

    Returns
    -------
    (B,) Tensor
        In [-1, 1].
    """
    with torch.no_grad():
        return torch.cosine_similarity(V * y, U * y, dim=1)


def geometric_loss(V: Tensor, U: Tensor, y: Tensor, excluded: Tensor | None = None) -> Tensor:
    """Loss within the modalities, L_geo of GSC.

    Parameters
    ----------
    V, U : (B, B) Tensor
        Similarities of images, and of texts.
    y : (B,) Tensor in [0, 1]
        Labels.
    excluded : (B, B) bool Tensor, optional
        True where a pair is no negative.

    Returns
    -------
    (B,) Tensor
        Unreduced loss.
    """
    G = (V * y) @ (U * y).T  # (B, B): geometry of image i with that of text j
    if excluded is not None:
        G = G.masked_fill(excluded, float("-inf"))
    return -y * G.log_softmax(dim=1).diagonal()


class _Consistent(Splitting):
    apart = False  # the labels weigh all pairs
    kept = (*Splitting.kept, "a", "b", "c", "p")

    def __init__(self, n: int, method: Any) -> None:
        self.networks, self.beta, self.label_pass = method.networks, method.beta, method.label_pass
        super().__init__(n, method)
        self.a, self.b = np.ones_like(self.y), np.ones_like(self.y)
        self.c, self.p = (np.full_like(self.y, np.nan) for _ in range(2))  # of the epoch's batches

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        f = view.forward(network, *batch, seed=seed)
        y, S = f.of(self.y[network]), f.similarity()
        V, U = (view.similarity(f.model, side, side) for side in (f.images, f.texts))
        if self.label_pass == "batch":
            self.c[network, f.rows] = structure_consistency(V, U, y).float().cpu().numpy()
            self.p[network, f.rows] = matching_probability(S, self.tau, f.excluded).cpu().numpy()
        loss = self.warm_objective(S, y, f.excluded)
        return (loss + self.method.gamma * geometric_loss(V, U, y, f.excluded)).mean()

    def losses(self, view: EpochContext, network: int) -> np.ndarray:
        c = self.consistency(view, network) if self.label_pass == "eval" else self.c[network]
        return 1 - scaled(np.where(np.isfinite(c), c, 1.0))  # NaN: of a batch that diverged

    def divide(self, network: int, losses: np.ndarray) -> GuardedSplit:
        """Split as the paper does, plausible or not, since the labels are only weights."""
        return GuardedSplit(split_in_two(losses).low.astype(np.float32), None)

    def consistency(self, view: EpochContext, network: int) -> np.ndarray:
        encoded, rows_of = view.encoded(network), view.data.image_index
        images, texts = (replace(encoded, images=e, texts=e) for e in (encoded.images, encoded.texts))
        y, total, s = torch.from_numpy(self.y[network]), np.zeros(self.n), view.settings
        rng = np.random.default_rng(view.seed(23, network))
        rounds = 1 if view.networks[network].model.local else s.label_rounds
        for _ in range(rounds):
            for rows in np.array_split(rng.permutation(self.n), max(1, round(self.n / s.eval_group_size))):
                V, U = images.similarity(rows_of[rows], rows_of[rows]), texts.similarity(rows, rows)
                total[rows] += structure_consistency(V, U, y[rows]).numpy()
        return total / rounds

    def judge(self, view: EpochContext) -> np.ndarray:
        for k in range(self.networks):
            p = view.probability(k, self.tau) if self.label_pass == "eval" else self.p[k]
            self.a[k] = self.beta * self.w[k] + (1 - self.beta) * self.a[k]
            self.b[k] = self.beta * np.where(np.isfinite(p), p, self.b[k]) + (1 - self.beta) * self.b[k]
        y = np.minimum(self.a, self.b)
        self.y = np.ascontiguousarray(y[::-1])  # of the other network, where there are two
        return np.asarray((self.a + self.b).mean(axis=0) / 2)


@dataclass(kw_only=True, eq=False, repr=False)
class GSC(WarmupCleaner):
    """Labels by the agreement of a pair's neighbours in both modalities and by its matching probability.

    Parameters
    ----------
    networks : {1, 2}
        Two networks, each trained with the other's labels, are GSC+.

    gamma : float
        Weight of the loss within the modalities.

    beta : float in [0, 1]
        Weight of an epoch's figures in the labels.

    label_pass : {"eval", "batch"}
        Where the labels' figures come from.

    Notes
    -----
    Zhao et al., CVPR 2024 (arXiv 2405.16996). Equations and departures from the paper: docs/methods/others.md.
    """

    method_name: ClassVar[str] = "gsc"

    networks: int = whole(2, 1, most=2)
    gamma: float = number(1.0, least=0)
    beta: float = number(0.7, least=0, most=1)
    warmup: int = 2  # 1 in the paper, whose epochs have a thousand steps
    label_pass: str = choice("eval", "batch")

    warm_loss = "infonce"
    _strategy = _Consistent
    _paper: ClassVar[dict[str, Any]] = {
        **PAPERS, "epochs": 60, "lr_update": 15, "tau": 0.07, "warmup": 1, "label_pass": "batch", "gamma": 0.01,
    }  # fmt: skip

    def _stages(self) -> list[TrainingStage]:
        return self._one_stage()
