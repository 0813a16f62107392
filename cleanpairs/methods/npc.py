"""NPC: negative pre-aware training (Zhang et al., AAAI 2024). See docs/methods/others.md."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core.parameters import number, whole
from cleanpairs.core.torch_state import evaluating
from cleanpairs.methods.splitting import Splitting, WarmupCleaner
from cleanpairs.objectives import InfoNCELoss
from cleanpairs.ops.search import top_k
from cleanpairs.trainer import EpochContext


def negative_weight(before: Tensor, after: Tensor) -> Tensor:
    """Weight of each pair by the losses of its trusted neighbours before and after a step on the batch (NPC).

    Parameters
    ----------
    before, after : (2, B) Tensor
        Losses, at least 0.

    Returns
    -------
    (B,) Tensor
        In (0, 1].
    """
    r = ((before + 1e-8) / (after + 1e-8)).mean(dim=0)
    return torch.where(r >= 1, torch.ones_like(r), r.tanh())


class _PreAware(Splitting):
    networks = 1
    apart = False
    kept = (*Splitting.kept, "nearest", "weight")
    needs_whole_graph = True  # gradients of a step that is taken back

    def __init__(self, n: int, method: Any) -> None:
        super().__init__(n, method)
        self.objective = InfoNCELoss(tau=method.tau)
        self.nearest = np.full((2, n), -1, dtype=np.int64)  # of the bank: by image, by text. -1: there is none yet
        self.weight = np.ones(n, dtype=np.float32)  # of the last step that a pair took part in

    def start_epoch(self, view: EpochContext) -> None:
        """Split before the first epoch if there is no warm-up, since the networks have learned elsewhere."""
        if not self.warmup and not self.split_known:
            self.end_epoch(view)

    def judge(self, view: EpochContext) -> np.ndarray:
        bank = np.flatnonzero(self.w[0] > self.method.bank_above)
        if self.nearest[0, 0] < 0 and len(bank) >= 2:
            for k, z in enumerate(view.pair_vectors(0)):
                self.nearest[k] = bank[np.maximum(top_k(z, z[bank], 1).indices[:, 0], 0)]
        return np.asarray(self.w[0])

    def loss(self, view: EpochContext, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        if self.nearest[0, 0] < 0:
            return self.warm_loss(view, network, view.forward(network, *batch, seed=seed))
        banks = self.nearest[:, batch[0]]  # (2, B)
        self.weight[batch[0]] = self.tried(view, batch[0], banks, seed).cpu().numpy()
        f = view.forward(network, *batch, *banks, seed=seed)
        total = torch.zeros((), device=view.device)
        for k in range(3):
            part = f.select(f.source == k)
            weight = self.weight if k == 0 else np.ones_like(self.weight)
            total = total + self.objective(part.similarity(), part.of(weight), part.excluded).mean()
        return total

    def tried(self, view: EpochContext, rows: np.ndarray, banks: np.ndarray, seed: int) -> Tensor:
        """Weights (B,) of the pairs ``rows``: the step is taken, looked at, and taken back."""
        network = view.networks[0]
        parameters = [p for p in network.parameters() if p.requires_grad]
        moved = [*parameters, *network.buffers()]  # the means of batch norm too
        before, kept = self.bank_losses(view, banks), [t.detach().clone() for t in moved]
        f, ones = view.forward(0, rows, seed=seed), torch.ones(len(rows), device=view.device)
        groups: list[dict[str, Any]] = getattr(network.model, "parameter_groups", lambda lr: [])(self.method.lr)
        rates = {id(p): group["lr"] for group in groups for p in group["params"]}  # of pretrained towers and heads
        loss = 2 * self.objective(f.similarity(), ones, f.excluded).mean()
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                if g is not None:  # AdamW's first step
                    rate = rates.get(id(p), self.method.lr)
                    p.mul_(1 - rate * self.method.weight_decay).sub_(rate * g / (g.abs() + 1e-8))
            after = self.bank_losses(view, banks)
            for t, old in zip(moved, kept, strict=True):
                t.copy_(old)
        return negative_weight(before, after)

    @torch.no_grad()
    def bank_losses(self, view: EpochContext, banks: np.ndarray) -> Tensor:
        model = view.networks[0].model
        losses = []
        with evaluating(model):
            for rows in banks:
                states = view.encode(0, rows, image=True), view.encode(0, rows, image=False)
                S = view.similarity(model, *states)
                losses.append(self.objective(S, torch.ones(len(rows), device=S.device), view.duplicates(rows, rows)))
        return torch.stack(losses)


@dataclass(kw_only=True, eq=False, repr=False)
class NPC(WarmupCleaner):
    """Pairs weigh by what a step on them would do to trusted neighbours.

    Parameters
    ----------
    warmup : int
        Epochs on all pairs before the memory bank is built. An ``encoder`` that is trained already takes 0.
    bank_above : float in [0, 1]
        Least clean probability of the memory bank's pairs.

    Notes
    -----
    Zhang et al., AAAI 2024. Equations and departures from the paper: docs/methods/others.md.
    """

    method_name: ClassVar[str] = "npc"

    warmup: int = whole(4, 0)
    bank_above: float = number(0.9, least=0, below=1)

    _strategy = _PreAware
    _paper: ClassVar[dict[str, Any]] = {  # CLIP ViT-B/32, fine-tuned whole
        "encoder": "openai/clip-vit-base-patch32", "tune": "full", "encoder_lr": 2e-7, "lr": 2e-7, "tau": 0.01,
        "warmup": 0, "epochs": 5, "batch_size": 256, "eval_group_size": 256, "weight_decay": 0.2,
        "grad_clip": 10.0, "exclude_duplicates": False, "near_duplicates": False, "label_epochs": 1,
    }  # fmt: skip
