"""Trusted pairs that every score is measured against.

A probability is a mean over fixed mini-batches: the bank's groups, with the pair in question added. In a group it is
p_i = (P_ii + Q_ii) / 2 of :mod:`cleanpairs.ops.matching`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from cleanpairs.encoders.base import DualEncoder
from cleanpairs.ops.mapped import blocks, release
from cleanpairs.ops.matching import places
from cleanpairs.scoring.embeddings import Embeddings, Encoded

PairJudge = Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]
# ``judge(image_of, text_of, similarity)`` -> (e,) float32: the matching probability of e pairs, by rows of images and
# texts, and by their similarity where it is known already.


@dataclass(frozen=True)
class Bank:
    """B trusted pairs, a multiple of ``group_size`` or less."""

    images: Embeddings
    texts: Embeddings
    image_group: np.ndarray  # (B,) int64 content hashes, none twice
    text_group: np.ndarray
    tau: float
    group_size: int = 127
    model: DualEncoder | None = None  # where the similarity is more than a dot product
    device: torch.device | str = "cpu"

    def __len__(self) -> int:
        return len(self.images)

    def __call__(
        self,
        images: Embeddings,
        texts: Embeddings,
        image_group: np.ndarray,
        text_group: np.ndarray,
        image_of: np.ndarray | None = None,
        text_of: np.ndarray | None = None,
    ) -> np.ndarray:
        """Matching probability (e,) float32 of e pairs, ``image_of``, ``text_of`` (e,) int64, of m images and n texts.
        By default of each image with the text of its row. ``image_group``, ``text_group`` (m,), (n,) int64: content
        hashes. Bank entries with a pair's own image or text are no negatives of it.
        """
        image_of, text_of = (np.arange(len(images)) if given is None else given for given in (image_of, text_of))
        return self.judging(images, texts, image_group, text_group, image_of, text_of)(image_of, text_of, None)

    def judging(
        self,
        images: Embeddings,
        texts: Embeddings,
        image_group: np.ndarray,
        text_group: np.ndarray,
        image_rows: np.ndarray,
        text_rows: np.ndarray,
    ) -> PairJudge:
        """Return what scores pairs of the given rows. Their sums over the bank are computed once."""
        used_image, place_of_image = _distinct_rows(image_rows, len(image_group))
        used_text, place_of_text = _distinct_rows(text_rows, len(text_group))
        images_with_bank = Encoded(images, self.texts, self.model, self.device)
        texts_with_bank = Encoded(self.images, texts, self.model, self.device)
        to_text = self._log_sums(images_with_bank, used_image, image_group, self.image_group, by_image=True)
        to_image = self._log_sums(texts_with_bank, used_text, text_group, self.text_group, by_image=False)
        same_text = places(self.text_group, text_group[used_text]).astype(np.int32)  # in the bank
        same_image = places(self.image_group, image_group[used_image]).astype(np.int32)
        pairs = Encoded(images, texts, self.model, self.device)
        local = self.model is not None and self.model.local  # it compares something else than the vectors

        def judge(image_of: np.ndarray, text_of: np.ndarray, similarity: np.ndarray | None) -> np.ndarray:
            out = np.empty(len(image_of), dtype=np.float64)
            for s in blocks(len(out), 16_384):
                a, b = image_of[s], text_of[s]
                i, t = place_of_image[a], place_of_text[b]
                cosine = pairs.paired(a, b) if similarity is None or local else similarity[s]
                own = cosine[:, None].astype(np.float64) / self.tau
                out[s] = self._probability(own, to_text[i], same_text[t], self.image_group, image_group[a])
                out[s] += self._probability(own, to_image[t], same_image[i], self.text_group, text_group[b])
            return (out / 2).astype(np.float32)

        return judge

    @torch.inference_mode()
    def _log_sums(
        self, encoded: Encoded, rows: np.ndarray, group: np.ndarray, bank_group: np.ndarray, *, by_image: bool
    ) -> np.ndarray:
        """log sum_j exp(S_j / tau) of each bank group, (rows, G) float64, without entries of the row's group."""
        B = len(self)
        size = min(self.group_size, B)
        groups = -(-B // size) if B else 0
        out = np.full((len(rows), groups), -np.inf)
        local = self.model is not None and self.model.local
        bank, other = np.arange(B), None
        if not local:
            other = torch.from_numpy((encoded.texts if by_image else encoded.images).vectors / np.float32(self.tau)).T
        most = 256 if local else 1024  # of which the logits stay in the processor's cache
        step = max(1, -(-len(rows) // max(1, -(-len(rows) // most))))  # even: sums of few rows would differ in a bit
        for start in range(0, len(rows) if B else 0, step):
            chosen = rows[start : start + step]
            if other is not None:
                vectors = (encoded.images if by_image else encoded.texts).vectors
                logits = torch.from_numpy(vectors[chosen]) @ other  # (b, B)
                release(vectors)
            else:
                S = encoded.similarity(chosen, bank) if by_image else encoded.similarity(bank, chosen).T
                logits = S / self.tau
            own = places(bank_group, group[chosen])
            there = np.flatnonzero(own >= 0)
            logits[there, own[there]] = float("-inf")
            if groups * size > B:  # the last group is a smaller one
                logits = torch.nn.functional.pad(logits, (0, groups * size - B), value=float("-inf"))
            logits = logits.reshape(len(chosen), groups, size)
            # Logits of cosines are at most 1 / tau: where that is small enough, no maximum has to be taken off first.
            # From .025 on exp(1 / tau) and exp(-1 / tau), times many, are within float32's range.
            sums = logits.exp_().sum(dim=2).log() if self.tau >= 0.025 else logits.logsumexp(dim=2)
            out[start : start + len(chosen)] = sums.numpy()
        return out

    def _probability(
        self, own: np.ndarray, log_sum: np.ndarray, same: np.ndarray, bank_group: np.ndarray, group: np.ndarray
    ) -> np.ndarray:
        """Mean over bank groups of exp(own) / (exp(own) + sum): (b,). At ``same`` the sum has exp(own) itself."""
        if not log_sum.shape[1]:
            return np.ones(len(own))
        with np.errstate(over="ignore"):
            p = 1 / (1 + np.exp(log_sum - own))  # (b, G)
        there = np.flatnonzero((same >= 0) & (bank_group[same] != group))
        g = same[there] // self.group_size
        p[there, g] = np.minimum(1.0, np.exp(own[there, 0] - log_sum[there, g]))
        return np.asarray(p.mean(axis=1))


def trusted_rows(
    image_group: np.ndarray, text_group: np.ndarray, correspondence: np.ndarray, *, group_size: int, groups: int = 8,
    seed: int = 0,
) -> np.ndarray:  # fmt: skip
    """Rows (B,) int64 for a bank of ``groups`` times ``group_size``, or less, drawn from the more trusted half of n
    pairs, no image and no text twice.
    """
    trusted = np.flatnonzero(correspondence >= np.median(correspondence))
    order = np.random.default_rng(seed).permutation(trusted)
    for group in (image_group, text_group):
        order = order[np.sort(np.unique(group[order], return_index=True)[1])]
    size = min(len(order), groups * group_size)
    return order[: size - size % group_size if size > group_size else size]


def _distinct_rows(rows: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct ``rows``, rising, and by row, of ``most``, its place among them. No sorting of millions."""
    occurs = np.zeros(most, bool)
    occurs[rows] = True
    return np.flatnonzero(occurs), np.cumsum(occurs, dtype=np.int32) - 1
