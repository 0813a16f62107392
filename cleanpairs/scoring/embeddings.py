"""Images and captions as a model sees them, once for all, and their similarity."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cleanpairs.encoders.base import DualEncoder, Local, State
from cleanpairs.encoders.tokenizer import TokenTable, packed_batches, parts_of
from cleanpairs.ops.mapped import blocks, release
from cleanpairs.ops.matching import duplicate_mask


@dataclass(frozen=True)
class Embeddings:
    """n images or captions. Of a model that compares words with regions also these, end to end."""

    vectors: np.ndarray  # (n, E) float32, unit
    parts: np.ndarray | None = None  # (total, D) float32: row i's are parts[offsets[i]:offsets[i + 1]]
    offsets: np.ndarray | None = None  # (n + 1,) int64

    def __len__(self) -> int:
        return len(self.vectors)

    def take(self, rows: np.ndarray) -> "Embeddings":
        """Chosen rows, (b,) int64 or bool, in that order."""
        if self.parts is None or self.offsets is None:
            return Embeddings(self.vectors[rows])
        at, offsets = parts_of(self.offsets, np.arange(len(self))[rows])
        return Embeddings(self.vectors[rows], self.parts[at], offsets)

    def state(self, rows: np.ndarray, device: torch.device | str = "cpu") -> State:
        """Return the state of chosen rows (b,) int64, on ``device``, of a model that compares words with regions."""
        assert self.parts is not None and self.offsets is not None  # another model has no state but the vectors
        at, offsets = parts_of(self.offsets, rows)
        lengths = np.diff(offsets)
        padded = np.zeros((len(rows), int(lengths.max(initial=1)), self.parts.shape[1]), dtype=np.float32)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = self.parts[at]
        return Local(torch.from_numpy(padded).to(device), torch.from_numpy(lengths).to(device))


def as_input(images: np.ndarray | Tensor, device: torch.device | str) -> Tensor:
    """Return a batch of images as the encoders take it: float32 regions, or uint8 pixels."""
    if not isinstance(images, Tensor):
        array = np.ascontiguousarray(images)
        images = torch.from_numpy(array if array.flags.writeable else array.copy())  # a batch of a mapped file
    x = images.to(device, non_blocking=True)
    return x if x.dtype == torch.uint8 else x.float()


def _collected(model: DualEncoder, n: int, states: Iterable[tuple[Any, State]]) -> Embeddings:
    """Return the embeddings of n rows by their states, batch by batch: rows (b,) int64, or a slice, and their state."""
    vectors, lengths = np.empty((n, model.dim), np.float32), np.zeros(n, np.int64)
    found: list[tuple[Any, np.ndarray]] = []
    for rows, state in states:
        vectors[rows] = model.vector(state).float().cpu().numpy()
        if isinstance(state, Local):
            lengths[rows] = state.lengths.cpu().numpy()
            there = np.arange(state.parts.shape[1]) < lengths[rows, None]
            found.append((rows, state.parts.float().cpu().numpy()[there]))
    if not model.local:
        return Embeddings(vectors)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    parts = np.empty((int(offsets[-1]), found[0][1].shape[1] if found else model.dim), np.float32)
    for rows, values in found:
        ends = np.cumsum(lengths[rows])
        parts[np.repeat(offsets[rows] - ends + lengths[rows], lengths[rows]) + np.arange(int(ends[-1]))] = values
    return Embeddings(vectors, parts, offsets)


@torch.inference_mode()
def embed_images(
    model: DualEncoder, images: np.ndarray | Tensor, *, device: torch.device | str = "cpu", batch_size: int = 256
) -> Embeddings:
    """Embeddings of images (M, R, D) float or (M, 3, H, W) uint8, in evaluation mode."""
    model.eval()
    rows = blocks(len(images), batch_size)
    return _collected(model, len(images), ((at, model.encode_images(as_input(images[at], device))) for at in rows))


@torch.inference_mode()
def embed_texts(
    model: DualEncoder, tokens: TokenTable, *, device: torch.device | str = "cpu", batch_size: int = 256
) -> Embeddings:
    """Embeddings of N captions, in evaluation mode. Batches hold captions of like length."""
    model.eval()
    batches = packed_batches(tokens, batch_size, device)
    return _collected(model, len(tokens), ((rows, model.encode_texts(packed)) for rows, packed in batches))


@dataclass(frozen=True)
class Encoded:
    """M images and N captions, and the similarity of any of them: by ``model``, if it is more than a dot product."""

    images: Embeddings
    texts: Embeddings
    model: DualEncoder | None = None
    device: torch.device | str = "cpu"

    @torch.inference_mode()
    def similarity(self, image_rows: np.ndarray, text_rows: np.ndarray) -> Tensor:
        """Return the similarities (b_image, b_text) float32 on the CPU."""
        if self.model is None or not self.model.local:
            z_image = torch.from_numpy(self.images.vectors[image_rows])
            return z_image @ torch.from_numpy(self.texts.vectors[text_rows]).T
        images, texts = self.images.state(image_rows, self.device), self.texts.state(text_rows, self.device)
        return self.model.similarity(images, texts).float().cpu()

    @torch.inference_mode()
    def paired(self, image_rows: np.ndarray, text_rows: np.ndarray) -> np.ndarray:
        """Return the similarity (e,) float32 of e pairs."""
        out = np.empty(len(image_rows), dtype=np.float32)
        block = 1024 if self.model is not None and self.model.local else 16_384
        for s in blocks(len(out), block):
            if self.model is None or not self.model.local:
                out[s] = np.einsum("ij,ij->i", self.images.vectors[image_rows[s]], self.texts.vectors[text_rows[s]])
                release(self.images.vectors, self.texts.vectors)
            else:
                states = self.images.state(image_rows[s], self.device), self.texts.state(text_rows[s], self.device)
                out[s] = self.model.paired_similarity(*states).float().cpu().numpy()
        return out


def matrix(encoded: Encoded, image_rows: np.ndarray, text_rows: np.ndarray, block: int = 256) -> np.ndarray:
    """Return similarities (b_image, b_text) float32, made in blocks, as a model with parts needs much memory."""
    out = np.empty((len(image_rows), len(text_rows)), dtype=np.float32)
    for i in blocks(len(image_rows), block):
        for t in blocks(len(text_rows), block):
            out[i, t] = encoded.similarity(image_rows[i], text_rows[t]).numpy()
    return out


@torch.inference_mode()
def in_groups(
    figure: Callable[[Tensor, Tensor | None], Tensor],
    encoded: Encoded,
    image_index: np.ndarray,
    groups: tuple[np.ndarray, np.ndarray] | None,
    *,
    group_size: int = 128,
    rounds: int = 1,
    seed: int = 0,
) -> np.ndarray:
    """Mean over ``rounds`` random partitions into groups of ``figure(S, excluded)`` -> (B,), for N pairs: (N,) float32.

    The papers take it from the mini-batch that a pair happens to be trained in. Here dropout, augmentation and a
    batch's company do not enter. Pairs that are no negatives are marked by ``excluded`` (B, B) bool, or None. The
    ``groups`` are the content hashes (N,) of images and of captions. Each pair has an ``image_index`` (N,) int64.
    """
    n = len(image_index)
    total = np.zeros(n, dtype=np.float64)
    rng = np.random.default_rng(seed)
    for _ in range(rounds):
        order = rng.permutation(n)
        for rows in np.array_split(order, max(1, round(n / group_size))):
            S = encoded.similarity(image_index[rows], rows)  # (B, B)
            excluded = None
            if groups is not None:
                excluded = duplicate_mask(*(torch.from_numpy(group[rows]) for group in groups))
            total[rows] += figure(S, excluded).numpy()
    return (total / max(rounds, 1)).astype(np.float32)
