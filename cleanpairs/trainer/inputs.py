"""What of a batch goes to the device, made ready on the CPU; of the next batch while the device is at work on this one.

The arrays of a batch follow from its pairs and its seed alone, so it does not matter which thread makes them, nor when.
Where the images fit on a GPU beside the training (:func:`on_device`), they go there once, and a batch names their rows.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cleanpairs.encoders.tokenizer import PackedTokens
from cleanpairs.scoring import as_input

HELD = 0.25  # of a GPU's free memory, that the images may take
BLOCK = 1024


def on_device(images: np.ndarray, device: torch.device) -> Tensor | None:
    """All M images on a GPU, as they are stored; None elsewhere, and where they leave it too little memory."""
    if device.type != "cuda" or images.nbytes > HELD * torch.cuda.mem_get_info(device)[0]:
        return None
    held = torch.empty(images.shape, dtype=torch.from_numpy(np.array(images[:0])).dtype, device=device)
    for start in range(0, len(images), BLOCK):
        held[start : start + BLOCK] = torch.from_numpy(np.array(images[start : start + BLOCK]))
    return held


@dataclass(frozen=True)
class PieceInputs:
    """b pairs on the CPU: ``images`` (b, R, D) or (b, 3, H, W), or the rows (b,) int64 of those that are on the device;
    ``keep`` (b, R) bool or None, packed captions.
    """

    images: Tensor
    keep: Tensor | None
    tokens: PackedTokens

    def pinned(self) -> "PieceInputs":
        """In memory that a GPU reads by itself."""
        ids, sizes, lengths, sentences = self.tokens
        keep, sentences = (None if x is None else x.pin_memory() for x in (self.keep, sentences))
        tokens = PackedTokens(ids.pin_memory(), sizes, lengths.pin_memory(), sentences)
        return PieceInputs(self.images.pin_memory(), keep, tokens)

    def to(self, device: torch.device, held: Tensor | None) -> tuple[Tensor, Tensor | None, PackedTokens]:
        """A network's arguments; ``held``: all images, where they are on the device."""
        keep = None if self.keep is None else self.keep.to(device, non_blocking=True)
        images = self.images if held is None else held[self.images.to(device, non_blocking=True)]
        return as_input(images, device), keep, self.tokens.to(device)


@dataclass(frozen=True)
class Inputs:
    """B pairs in packed order: ``rows`` and ``source`` (B,), how they are ``cut``, the pieces by their first position,
    ``excluded`` (B, B) bool or None.
    """

    rows: np.ndarray
    source: np.ndarray
    cut: list[np.ndarray]
    pieces: dict[int, PieceInputs]
    excluded: Tensor | None


def take_packed(tokens: PackedTokens, rows: np.ndarray) -> PackedTokens:
    """The chosen sequences (b,) int64, ascending, of packed ones on the CPU: packed themselves."""
    at = torch.from_numpy(rows)
    sizes = tokens.batch_sizes
    present = at[None, :] < sizes[:, None]  # (L, b)
    starts = sizes.cumsum(0) - sizes
    left = present.sum(dim=1)
    sentences = None if tokens.sentences is None else tokens.sentences[at]
    return PackedTokens(tokens.ids[(starts[:, None] + at)[present]], left[left > 0], tokens.lengths[at], sentences)
