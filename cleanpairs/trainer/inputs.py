"""What of a batch goes to the device, made ready on the CPU; of the next batch while the device is at work on this one.

The arrays of a batch follow from its pairs and its seed alone, so it does not matter which thread makes them, nor when.
Where the images fit on a GPU beside the training (:func:`on_device`), they go there once, and a batch names their rows.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cleanpairs.encoders.tokenizer import PackedTokens, pack
from cleanpairs.ops.matching import duplicate_mask
from cleanpairs.scoring import as_input
from cleanpairs.trainer.shares import Shares, take_packed
from cleanpairs.trainer.types import TrainingData

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
class StageInputs:
    """b pairs on the CPU: ``images`` (b, R, D) or (b, 3, H, W), or the rows (b,) int64 of those that are on the device;
    ``keep`` (b, R) bool or None, packed captions.
    """

    images: Tensor
    keep: Tensor | None
    tokens: PackedTokens

    def pinned(self) -> "StageInputs":
        """In memory that a GPU reads by itself."""
        ids, sizes, lengths, sentences = self.tokens
        keep, sentences = (None if x is None else x.pin_memory() for x in (self.keep, sentences))
        tokens = PackedTokens(ids.pin_memory(), sizes, lengths.pin_memory(), sentences)
        return StageInputs(self.images.pin_memory(), keep, tokens)

    def to(self, device: torch.device, held: Tensor | None) -> tuple[Tensor, Tensor | None, PackedTokens]:
        """A network's arguments; ``held``: all images, where they are on the device."""
        keep = None if self.keep is None else self.keep.to(device, non_blocking=True)
        images = self.images if held is None else held[self.images.to(device, non_blocking=True)]
        return as_input(images, device), keep, self.tokens.to(device)


@dataclass(frozen=True)
class Inputs:
    """B pairs in packed order: ``rows`` and ``source`` (B,), the stages of this process by their first position,
    ``excluded`` (B, B) bool or None, and the words of the longest caption.
    """

    rows: np.ndarray
    source: np.ndarray
    stages: dict[int, StageInputs]
    excluded: Tensor | None
    width: int

    @classmethod
    def of(
        cls, data: TrainingData, groups: tuple[np.ndarray, ...], captions: np.ndarray | None, seed: int, *,
        image_drop: float, text_drop: float, exclude_duplicates: bool, micro_batch: int | None, pin: bool, held: bool,
    ) -> "Inputs":  # fmt: skip
        """See :meth:`cleanpairs.trainer.EpochContext.forward`."""
        rng = np.random.default_rng(seed)
        rows = np.concatenate(groups)
        source = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
        texts = rows if captions is None else captions[rows]
        tokens, order = pack(data.tokens, texts, drop=text_drop, rng=rng)
        rows, texts, source = rows[order], texts[order], source[order]
        kept = None
        if data.images.ndim == 3 and data.images.shape[1] > 1 and image_drop > 0:
            u = rng.random((len(rows), data.images.shape[1]), dtype=np.float32)
            kept = u >= image_drop
            kept[np.arange(len(rows)), u.argmax(axis=1)] = True
        stages = {}
        for at in Shares.of(len(rows), micro_batch).stages:
            image_rows = data.image_index[rows[at]]
            stage = StageInputs(
                torch.from_numpy(image_rows if held else np.asarray(data.images[image_rows])),
                None if kept is None else torch.from_numpy(kept[at]),
                tokens if len(at) == len(rows) else take_packed(tokens, at),
            )
            stages[int(at[0])] = stage.pinned() if pin else stage
        excluded = None
        if exclude_duplicates:
            excluded = duplicate_mask(
                torch.from_numpy(data.image_group[rows]), torch.from_numpy(data.text_group[texts])
            )
            excluded = excluded.pin_memory() if pin and excluded is not None else excluded
        return cls(rows, source, stages, excluded, len(tokens.batch_sizes))


class Prefetch:
    """The inputs of the batches that come next, made in a thread.

    ``make``: ``make(network, groups, seed)``: the inputs.
    """

    def __init__(self, make: Callable[[int, tuple[np.ndarray, ...], int], Inputs]) -> None:
        self.make = make
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="inputs")
        self.waiting: list[tuple[int, tuple[np.ndarray, ...], int, Future[Inputs]]] = []
        self.hits = 0

    def expect(self, network: int, groups: tuple[np.ndarray, ...], seed: int) -> None:
        """Make the inputs of a batch that comes next."""
        self.waiting = [
            *self.waiting[-1:],
            (network, groups, seed, self.thread.submit(self.make, network, groups, seed)),
        ]

    def take(self, network: int, groups: tuple[np.ndarray, ...], seed: int) -> Inputs | None:
        """The inputs, if this batch was expected."""
        for of, expected, by, future in self.waiting:
            same = len(groups) == len(expected) and all(a is b for a, b in zip(groups, expected, strict=True))
            if same and (of, by) == (network, seed):
                self.hits += 1
                return future.result()
        return None
