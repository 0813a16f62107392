"""IN2R: intra-modal neighbours rectify noisy pairs (Liu et al., ICML 2026, arXiv 2606.04061).

Equations, and departures from the paper: docs/methods/others.md.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from cleanpairs.core.parameters import choice, number, whole
from cleanpairs.methods.splitting import FeatureMemory, Splitting, SplittingCleaner
from cleanpairs.objectives import InfoNCEWithRCE, TripletLoss
from cleanpairs.trainer import BatchOutput, EpochContext


class GraphRefiner(nn.Module):
    """Mixes the partners of a pair's neighbours to one target by self-attention (IN2R).

    Parameters
    ----------
    dim : int
        Dimensions of the vectors.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        heads = next(h for h in (4, 2, 1) if dim % h == 0)
        self.attention = nn.MultiheadAttention(dim, heads, dropout=0.1, batch_first=True)
        self.dropout, self.norm = nn.Dropout(0.1), nn.LayerNorm(dim)

    def forward(self, X: Tensor) -> Tensor:
        """Z = LN(X + dropout(MHA(X))), and the mean of its rows.

        Parameters
        ----------
        X : (n, k, E) Tensor
            Partners of k neighbours.

        Returns
        -------
        (n, E) Tensor
            Unit vectors.
        """
        mixed = self.attention(X, X, X, need_weights=False)[0]
        return normalize(self.norm(X + self.dropout(mixed)).mean(dim=1), dim=1)


class _Neighbours(Splitting):
    def __init__(self, n: int, method: Any) -> None:
        super().__init__(n, method)
        self.nce, self.within = InfoNCEWithRCE(tau=method.tau), self.pair_objective
        if isinstance(self.within, TripletLoss):
            self.within = TripletLoss(margin=0.3, negatives="hard")
        size, device = min(method.memory, max(4, n)), method._resolved_device()
        self.neighbours = min(method.neighbours, size)
        self.memories = [FeatureMemory(size, device) for _ in range(self.networks)]

    def head(self, model: Any) -> nn.Module:
        return nn.ModuleList([GraphRefiner(model.dim), GraphRefiner(model.dim)])

    def batches(self, view: EpochContext, network: int) -> list[tuple[np.ndarray, ...]]:
        """Clean pairs stand there twice, for two passes with other dropout."""
        return [(batch[0], *batch) for batch in super().batches(view, network)]

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        f = view.forward(network, *batch, seed=seed)
        first, again, noisy = (f.select(f.source == k) for k in range(3))
        if not self.split_known:
            return self.agreeing(view, first, again, self.warm_objective, self.warm_objective).mean()
        loss = self.reduced(self.agreeing(view, first, again, self.pair_objective, self.within))
        self.remember(network, first)
        if len(noisy.rows) and len(self.memories[network]) >= self.neighbours and self.method.noisy_weight:
            loss = loss + self.method.noisy_weight * self.rectified(view, network, noisy)
        return loss

    def agreeing(self, view: EpochContext, first: BatchOutput, again: BatchOutput, across: Any, within: Any) -> Tensor:
        again = again.select(np.argsort(again.rows)[np.argsort(np.argsort(first.rows))])
        ones, excluded = torch.ones(len(first.rows), device=view.device), first.excluded
        loss = across(first.similarity(), ones, excluded)
        if self.method.within_weight:
            V = view.similarity(first.model, first.images, again.images)
            U = view.similarity(first.model, first.texts, again.texts)
            loss = loss + self.method.within_weight * (within(V, ones, excluded) + within(U, ones, excluded))
        return loss

    def remember(self, network: int, f: BatchOutput) -> None:
        w, clean = self.w[(network + 1) % self.networks], self.clean_rows(network)
        sure = w[f.rows] >= (w[clean].mean() if len(clean) else np.inf)
        with torch.no_grad():
            chosen = f.select(sure)
            self.memories[network].push(f.model.vector(chosen.images), f.model.vector(chosen.texts), chosen.rows)

    def rectified(self, view: EpochContext, network: int, noisy: BatchOutput) -> Tensor:
        memory, (of_images, of_texts) = self.memories[network], view.networks[network].head
        f, g = noisy.model.vector(noisy.images).float(), noisy.model.vector(noisy.texts).float()
        loss = torch.zeros((), device=view.device)
        for z, same, partners, refiner in (
            (f, memory.images, memory.texts, of_images),
            (g, memory.texts, memory.images, of_texts),
        ):
            near = memory.near(z.detach(), same, self.neighbours)  # (n, k)
            target = refiner(partners[near])
            loss = loss + self.nce(z @ target.T, torch.ones_like(z[:, 0]), noisy.excluded).mean()
        return loss


@dataclass(kw_only=True, eq=False, repr=False)
class IN2R(SplittingCleaner):
    """Two networks. Noisy pairs learn from the partners of their nearest clean neighbours, mixed by attention.

    Parameters
    ----------
    memory : int
        Vectors of clean pairs that each network remembers.

    neighbours : int
        Nearest clean pairs whose partners make the target. All that the memory can hold, if these are fewer.

    noisy_weight : float
        Weight of the noisy pairs' loss.

    within_weight : float
        Weight of the losses within the modalities.

    reduction : {"mean", "sum"}
        Whether the clean pairs' loss is the mean, or the sum, of a batch.

    Notes
    -----
    Liu et al., ICML 2026 (arXiv 2606.04061). Equations and departures from the paper: docs/methods/others.md.
    """

    method_name: ClassVar[str] = "in2r"

    label_epochs: int | None = 3
    memory: int = whole(65_536, 4)
    neighbours: int = whole(4, 1)
    noisy_weight: float = number(0.5, least=0)
    within_weight: float = number(1.0, least=0)
    reduction: str = choice("mean", "sum")

    _strategy = _Neighbours
    _paper: ClassVar[dict[str, Any]] = {
        **SplittingCleaner._papers, "backbone": "vse_inf", "tau": 0.05, "lr": 5e-4, "weight_decay": 1e-4,
        "lr_update": None, "lr_decay": "cosine", "warmup": 5, "warm_loss": "rce", "epochs": 45, "image_drop": 0.2,
        "text_drop": 0.2, "neighbours": 5, "noisy_weight": 1.0, "within_weight": 0.1, "reduction": "sum",
    }  # fmt: skip
