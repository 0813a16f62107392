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
    array = np.ascontiguousarray(images)
    array = array if array.flags.writeable else array.copy()  # a batch of a mapped file
    x = torch.from_numpy(array).to(device, non_blocking=True)
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

    ``z_image``, ``z_text`` (B, E) float32 unit vectors; ``image_group``, ``text_group`` (B,) int64 content hashes, no
    hash twice; ``group_size`` pairs form one group, B is a multiple of it or less than it; ``tau`` the temperature.
    """

    z_image: np.ndarray
    z_text: np.ndarray
    image_group: np.ndarray
    text_group: np.ndarray
    tau: float
    group_size: int = 127

    def __call__(
        self, z_image: np.ndarray, z_text: np.ndarray, image_group: np.ndarray, text_group: np.ndarray
    ) -> np.ndarray:
        """Matching probability (n,) float32 of n pairs: unit vectors (n, E) and content hashes (n,) each.

        Bank entries with the pair's own image or text are left out of its negatives.
        """
        rows = np.arange(len(z_image))
        return self.edges(z_image, z_text, image_group, text_group, rows, rows)

    def edges(
        self,
        z_image: np.ndarray,
        z_text: np.ndarray,
        image_group: np.ndarray,
        text_group: np.ndarray,
        image_of: np.ndarray,
        text_of: np.ndarray,
    ) -> np.ndarray:
        """Matching probability (e,) float32 of e pairs out of m images and n texts.

        What a pair's image has in common with the bank is computed once an image, and likewise for texts, so that many
        candidate pairs of few images and texts cost little more than their own similarity.

        Parameters
        ----------
        z_image, z_text : (m, E), (n, E) float32
        image_group, text_group : (m,), (n,) int64
            Content hashes.
        image_of, text_of : (e,) int64
            Image and text of each pair.
        """
        used_image, image_at = np.unique(image_of, return_inverse=True)
        used_text, text_at = np.unique(text_of, return_inverse=True)
        to_text = self._log_sums(z_image, used_image, image_group, self.z_text, self.image_group)  # (m', G)
        to_image = self._log_sums(z_text, used_text, text_group, self.z_image, self.text_group)  # (n', G)
        same_text = self._positions(self.text_group, text_group[used_text])  # (n',) position in the bank, -1: none
        same_image = self._positions(self.image_group, image_group[used_image])
        out = np.empty(len(image_of), dtype=np.float32)
        for start in range(0, len(out), 16_384):
            s = slice(start, start + 16_384)
            i, t = image_at[s], text_at[s]
            a, b = used_image[i], used_text[t]
            own = np.einsum("ij,ij->i", z_image[a], z_text[b]).astype(np.float64)[:, None] / self.tau  # (b, 1)
            p = self._probability(own, to_text[i], same_text[t], self.image_group, image_group[a])
            p += self._probability(own, to_image[t], same_image[i], self.text_group, text_group[b])
            out[s] = p / 2
        return out

    def _positions(self, known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Where each of ``wanted`` stands in ``known`` (whose entries are distinct), -1 where it does not."""
        if not len(known):
            return np.full(len(wanted), -1)
        order = np.argsort(known, kind="stable")
        at = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
        return np.where(known[order][at] == wanted, order[at], -1)

    @torch.inference_mode()
    def _log_sums(
        self, z: np.ndarray, rows: np.ndarray, group: np.ndarray, bank: np.ndarray, bank_group: np.ndarray
    ) -> np.ndarray:
        """log sum_j exp(z . bank_j / tau) of each bank group, (rows, G) float64, without entries of the row's group."""
        starts = list(range(0, len(bank), self.group_size))
        out = np.full((len(rows), len(starts)), -np.inf)
        other, other_group = torch.from_numpy(bank), torch.from_numpy(bank_group)
        for start in range(0, len(rows), 4096):
            chosen = rows[start : start + 4096]
            logits = torch.from_numpy(np.ascontiguousarray(z[chosen])) @ other.T / self.tau  # (b, B)
            logits.masked_fill_(torch.from_numpy(group[chosen])[:, None] == other_group, float("-inf"))
            for g, first in enumerate(starts):
                out[start : start + len(chosen), g] = logits[:, first : first + self.group_size].logsumexp(1).numpy()
        return out

    def _probability(
        self, own: np.ndarray, log_sum: np.ndarray, same: np.ndarray, bank_group: np.ndarray, group: np.ndarray
    ) -> np.ndarray:
        """Mean over bank groups of exp(own) / (exp(own) + sum): (b,).

        Where the bank holds the pair's own text (image) at ``same``, its term in the sum is exp(own) itself: the sum is
        then the whole denominator. Unless that entry has left the sum already, for being of the pair's image (text).
        """
        if not log_sum.shape[1]:
            return np.ones(len(own))
        with np.errstate(over="ignore"):
            p = 1 / (1 + np.exp(log_sum - own))  # (b, G)
        there = np.flatnonzero((same >= 0) & (bank_group[same] != group))
        g = same[there] // self.group_size
        p[there, g] = np.minimum(1.0, np.exp(own[there, 0] - log_sum[there, g]))
        return np.asarray(p.mean(axis=1))

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
