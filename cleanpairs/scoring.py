"""Embeddings of a corpus, and one matching probability per pair out of them.

A probability is a mean over fixed mini-batches: in a group of K pairs, p_i = (P_ii + Q_ii) / 2 of
:mod:`cleanpairs.ops.matching`. Training labels use random groups of the corpus itself; scores of any data use the
groups of a :class:`Bank` of trusted pairs that is kept with the model, so that the same pair always has the same score
whatever it is scored beside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.tokenizer import TokenTable, pack

__all__ = ["Bank", "embed_images", "embed_texts", "group_probability"]


@torch.inference_mode()
def embed_images(
    model: DualEncoder, images: np.ndarray, *, device: torch.device | str = "cpu", batch_size: int = 256
) -> np.ndarray:
    """Unit vectors (M, E) float32 of images (M, R, D) float or (M, 3, H, W) uint8, in evaluation mode."""
    model.eval()
    out = np.empty((len(images), model.dim), dtype=np.float32)
    for start in range(0, len(images), batch_size):
        x = as_input(images[start : start + batch_size], device)
        out[start : start + len(x)] = model.encode_images(x).float().cpu().numpy()
    return out


@torch.inference_mode()
def embed_texts(
    model: DualEncoder, tokens: TokenTable, *, device: torch.device | str = "cpu", batch_size: int = 256
) -> np.ndarray:
    """Unit vectors (N, E) float32 of N captions, in evaluation mode; batches hold captions of like length."""
    model.eval()
    out = np.empty((len(tokens), model.dim), dtype=np.float32)
    by_length = np.argsort(-tokens.lengths, kind="stable")
    for start in range(0, len(tokens), batch_size):
        rows = by_length[start : start + batch_size]
        packed, order = pack(tokens, rows)
        out[rows[order]] = model.encode_texts(packed.to(torch.device(device))).float().cpu().numpy()
    return out


def as_input(images: np.ndarray, device: torch.device | str) -> Tensor:
    """A batch of images as the encoders take it: float32 regions, or uint8 pixels."""
    x = torch.from_numpy(np.ascontiguousarray(images)).to(device, non_blocking=True)
    return x if x.dtype == torch.uint8 else x.float()


def _diagonal_probability(S: Tensor, positive: Tensor, tau: float, excluded: Tensor | None) -> Tensor:
    """exp(s_i / tau) / (exp(s_i / tau) + sum_j exp(S_ij / tau)): (n,), of negatives S (n, m)."""
    logits = S / tau
    if excluded is not None:
        logits = logits.masked_fill(excluded, float("-inf"))
    own = positive / tau
    return torch.sigmoid(own - torch.logsumexp(logits, dim=1))


@torch.inference_mode()
def group_probability(
    z_image: np.ndarray,
    z_text: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
    *,
    tau: float,
    group_size: int = 128,
    rounds: int = 4,
    seed: int = 0,
    exclude_duplicates: bool = True,
) -> np.ndarray:
    """Matching probability of N pairs among each other, the mean over random groups.

    Parameters
    ----------
    z_image, z_text : (N, E) float32
        Unit vectors of each pair's image and text.
    image_group, text_group : (N,) int64
        Equal numbers are the same image, the same text; such pairs are no negatives of each other.
    tau : float
        Temperature.
    group_size, rounds : int
        Pairs in a group (the mini-batch of the paper), and in how many random partitions a pair takes part.
    seed : int
        Of the partitions.

    Returns
    -------
    (N,) float32 in [0, 1]; 1 for a pair without any negative.
    """
    n = len(z_image)
    total = np.zeros(n, dtype=np.float64)
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        order = rng.permutation(n)
        for rows in np.array_split(order, max(1, round(n / group_size))):
            zi, zt = torch.from_numpy(z_image[rows]), torch.from_numpy(z_text[rows])
            S = zi @ zt.T  # (B, B)
            excluded = torch.eye(len(rows), dtype=torch.bool)
            if exclude_duplicates:
                gi, gt = torch.from_numpy(image_group[rows]), torch.from_numpy(text_group[rows])
                excluded |= (gi[:, None] == gi) | (gt[:, None] == gt)
            own = S.diagonal()
            p = _diagonal_probability(S, own, tau, excluded) + _diagonal_probability(S.T, own, tau, excluded)
            total[rows] += (p / 2).numpy()
    return (total / max(rounds, 1)).astype(np.float32)


@dataclass(frozen=True)
class Bank:
    """Trusted pairs that every score is measured against.

    ``z_image``, ``z_text`` (B, E) float32 unit vectors; ``image_group``, ``text_group`` (B,) int64 content hashes;
    ``group_size`` pairs form one group, B is a multiple of it or less than it; ``tau`` the temperature.
    """

    z_image: np.ndarray
    z_text: np.ndarray
    image_group: np.ndarray
    text_group: np.ndarray
    tau: float
    group_size: int = 127

    @torch.inference_mode()
    def __call__(
        self, z_image: np.ndarray, z_text: np.ndarray, image_group: np.ndarray, text_group: np.ndarray
    ) -> np.ndarray:
        """Matching probability (n,) float32 of n pairs: unit vectors (n, E) and content hashes (n,) each.

        Bank entries with the pair's own image or text are left out of its negatives.
        """
        out = np.empty(len(z_image), dtype=np.float32)
        for start in range(0, len(out), 4096):
            s = slice(start, start + 4096)
            out[s] = self._score(z_image[s], z_text[s], image_group[s], text_group[s])
        return out

    def _score(self, z_image: np.ndarray, z_text: np.ndarray, gi: np.ndarray, gt: np.ndarray) -> np.ndarray:
        zi, zt = torch.from_numpy(np.ascontiguousarray(z_image)), torch.from_numpy(np.ascontiguousarray(z_text))
        own = (zi * zt).sum(dim=1)  # (n,)
        a, b = torch.from_numpy(gi), torch.from_numpy(gt)
        total = torch.zeros(len(own))
        groups = 0
        for start in range(0, len(self.z_image), self.group_size):
            g = slice(start, start + self.group_size)
            bank_a, bank_b = torch.from_numpy(self.image_group[g]), torch.from_numpy(self.text_group[g])
            excluded = (a[:, None] == bank_a) | (b[:, None] == bank_b)  # (n, group)
            to_text = zi @ torch.from_numpy(self.z_text[g]).T
            to_image = zt @ torch.from_numpy(self.z_image[g]).T
            p = _diagonal_probability(to_text, own, self.tau, excluded)
            total += (p + _diagonal_probability(to_image, own, self.tau, excluded)) / 2
            groups += 1
        return (total / max(groups, 1)).numpy()

    @classmethod
    def choose(
        cls,
        z_image: np.ndarray,
        z_text: np.ndarray,
        image_group: np.ndarray,
        text_group: np.ndarray,
        correspondence: np.ndarray,
        *,
        tau: float,
        group_size: int = 127,
        groups: int = 8,
        seed: int = 0,
    ) -> Bank:
        """A bank of ``groups`` times ``group_size`` pairs (n, ...), drawn from the more trusted half.

        Pairs with an image or text that the bank holds already are passed over; a small corpus makes a small bank.
        """
        trusted = np.flatnonzero(correspondence >= np.median(correspondence))
        order = np.random.default_rng(seed).permutation(trusted)
        _, first_image = np.unique(image_group[order], return_index=True)
        order = order[np.sort(first_image)]
        _, first_text = np.unique(text_group[order], return_index=True)
        order = order[np.sort(first_text)]
        size = min(len(order), groups * group_size)
        if size > group_size:
            size -= size % group_size
        order = order[:size]
        return cls(z_image[order], z_text[order], image_group[order], text_group[order], tau, group_size)


Scorer = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
