"""REPAIR: rank correlation and noisy pair half-replacing with memory (Zheng et al., 2024), section III.

Equations, and departures from the paper: docs/methods/repair.md.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core.parameters import number, whole
from cleanpairs.data import Pairs
from cleanpairs.encoders.base import State
from cleanpairs.methods.splitting import FeatureMemory, Splitting, SplittingCleaner
from cleanpairs.ops.matching import places
from cleanpairs.ops.ranks import rank_correlation
from cleanpairs.repair.candidates import DonorSearch, half_replacing
from cleanpairs.scoring import Embeddings
from cleanpairs.trainer import BatchOutput, EpochContext


def correspondence_of_ranks(c: np.ndarray, low: float, high: float) -> np.ndarray:
    """Eq. 9: rank correlations (n,) between ``low`` and ``high`` to soft correspondences (n,) float32 in [0, 1]."""
    return np.clip((c - low) / max(high - low, 1e-6), 0, 1).astype(np.float32)


def ends_of_ranks(c: np.ndarray) -> tuple[float, float]:
    """``(lo, gamma)`` of rank correlations (N,): the lowest 1 % (not below 0), and the highest 10 %."""
    ordered = np.sort(c)
    low = float(ordered[: max(1, len(c) // 100)].mean())
    return max(0.0, low), float(ordered[-max(1, len(c) // 10) :].mean())


class _Repairing(Splitting):
    kept = (*Splitting.kept, "ends")

    def __init__(self, n: int, method: Any) -> None:
        super().__init__(n, method)
        self.memories = [FeatureMemory(method.memory, method._resolved_device()) for _ in range(self.networks)]
        self.ends = np.tile(np.array([0.0, 1.0]), (self.networks, 1))

    def judge(self, view: EpochContext) -> np.ndarray:
        c_y = []
        for k, memory in enumerate(self.memories):
            z_image, z_text = (torch.from_numpy(z).to(view.device) for z in view.pair_vectors(k))  # (N, E)
            if not len(memory):  # nothing was trained on clean pairs yet: they are taken as they stand
                clean = np.flatnonzero(self.w[k] > self.clean_above)
                chosen = np.random.default_rng([self.method.random_state_, k]).permutation(clean)[: memory.size]
                memory.push(z_image[chosen], z_text[chosen], chosen)
            c = self.correlation(memory, z_image, z_text, np.arange(self.n))
            self.ends[k] = ends_of_ranks(c)
            c_y.append(correspondence_of_ranks(c, *self.ends[k]))
        self.y[:] = c_y[::-1]
        return np.asarray((np.mean(c_y, axis=0) + self.w.mean(axis=0)) / 2)

    def correlation(
        self, memory: FeatureMemory, z_image: Tensor, z_text: Tensor, rows: np.ndarray | None
    ) -> np.ndarray:
        """Rank correlation of pairs of vectors (n, E) with the memory: (n,); a pair's own entry is left out."""
        few = len(memory) < 3 or not len(z_image)
        if few or min(float((z.amax(0) - z.amin(0)).max()) for z in (z_image, z_text)) < 1e-5:
            return np.ones(len(z_image))  # all alike: ranks would be of rounding errors
        bank = memory.held()
        exclude = None if rows is None else torch.from_numpy(places(bank.rows, rows)).to(bank.images.device)
        c: np.ndarray = rank_correlation(z_image, z_text, bank.images, bank.texts, exclude=exclude).cpu().numpy()
        return c

    def split_loss(self, view: EpochContext, network: int, clean: BatchOutput, noisy: BatchOutput | None) -> Tensor:
        loss = self.pair_loss(clean, clean.of(self.y[network]))
        memory = self.memories[network]
        if noisy is not None and len(memory) and view.epoch > self.method.replace_after:
            wrong = np.asarray((self.w[:, noisy.rows] < self.method.eta).all(axis=0))
            if wrong.sum() >= 2:
                mismatched = noisy.select(wrong)
                replaced = self.replaced(view, network, mismatched, image=True)
                replaced = replaced + self.replaced(view, network, mismatched, image=False)
                loss = loss + self.method.noisy_weight * replaced
        with torch.no_grad():
            memory.push(clean.model.vector(clean.images), clean.model.vector(clean.texts), clean.rows)
        return loss

    def replaced(self, view: EpochContext, network: int, f: BatchOutput, *, image: bool) -> Tensor:
        memory = self.memories[network]
        kept_state: State = f.texts if image else f.images
        with torch.no_grad():
            kept = f.model.vector(kept_state).detach().float()  # (n, E)
        bank = memory.held()
        same, other = (bank.texts, bank.images) if image else (bank.images, bank.texts)
        near = (kept @ same.T).topk(min(self.method.neighbours, len(same)), dim=1).indices
        scores = torch.einsum("nke,ne->nk", other[near], kept)  # S(f_j, T_n) of the K nearest
        entries = near.gather(1, scores.argmax(dim=1, keepdim=True))[:, 0]  # (n,) of the memory
        given = other[entries]
        z = (given, kept) if image else (kept, given)
        c = self.correlation(memory, z[0], z[1], None)
        y = torch.from_numpy(correspondence_of_ranks(c, *self.ends[network])).to(view.device)
        sources = bank.rows[entries.cpu().numpy()]
        given_state: State = view.encode(network, sources, image=image) if f.model.local else given
        images, texts = (given_state, f.texts) if image else (f.images, given_state)
        S = view.similarity(f.model, images, texts)  # (n, n): new pairs on the diagonal
        excluded = view.duplicates(sources if image else f.rows, f.rows if image else sources)
        return self.pair_objective(S, y, excluded).mean()


@dataclass(kw_only=True, eq=False, repr=False)
class REPAIR(SplittingCleaner):
    """Two networks, labels by rank correlation with a memory of clean pairs, half-replaced noisy pairs.

    - ``memory``: feature pairs M that each network remembers
    - ``neighbours``: nearest texts (images) K among which a replacement is looked for
    - ``eta`` float in [0, 1]: pairs with a clean probability below it in both networks are half-replaced
    - ``noisy_weight``: weight of the loss of half-replaced pairs
    - ``replace_after``: epochs before the first half-replacing, the warm-up among them; 20 in the paper's figure 7
    """

    method_name: ClassVar[str] = "repair"

    memory: int = whole(4096, 4)
    neighbours: int = whole(32, 1)
    eta: float = number(0.25, least=0, most=1)
    noisy_weight: float = number(0.15, least=0)
    replace_after: int = whole(0, 0)

    _strategy = _Repairing
    _paper: ClassVar[dict[str, Any]] = {**SplittingCleaner._papers, "replace_after": 20}

    def _search(self, pairs: Pairs, images: Embeddings, texts: Embeddings) -> DonorSearch:
        """Half-replacing over the trusted pairs: what is nearest in the kept modality offers its other half."""
        return half_replacing(images.vectors[pairs.image_index], texts.vectors, self.neighbours)
