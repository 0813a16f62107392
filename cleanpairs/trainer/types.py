"""What a training is made of and what it leaves."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.tokenizer import TokenTable


@dataclass(frozen=True)
class TrainingStage:
    """Epochs from fresh weights. In the last stage the rate falls behind ``warmup``: to a tenth every ``lr_update``, or
    with ``cosine`` along half a cosine.
    """

    epochs: int
    lr_update: int | None = None
    warmup: int = 0
    cosine: bool = False

    def decay(self, epoch: int) -> float:
        """Factor of the learning rate in ``epoch``, from 1. The last epoch of a cosine has more than 0."""
        if self.cosine:
            return 0.5 + 0.5 * math.cos(math.pi * max(0, epoch - 1 - self.warmup) / max(1, self.epochs - self.warmup))
        return 0.1 ** (max(0, epoch - 1 - self.warmup) // self.lr_update) if self.lr_update else 1.0


@dataclass(frozen=True)
class TrainingData:
    """N usable pairs. ``images``: (M, R, D) float regions or (M, 3, H, W) uint8 pixels, maybe memory-mapped."""

    images: np.ndarray
    tokens: TokenTable  # N captions
    image_index: np.ndarray  # (N,) int64
    image_group: np.ndarray  # (N,) int64, of each pair's image
    text_group: np.ndarray  # (N,) int64
    pair_id: np.ndarray | None = None  # (N,) int64, by which messages name the pairs

    def __len__(self) -> int:
        return len(self.image_index)


@dataclass(frozen=True)
class TrainingSettings:
    """How to train. See the estimators for what each setting means."""

    batch_size: int = 128
    lr: float = 5e-4
    weight_decay: float = 1e-4
    grad_clip: float = 2.0
    exclude_duplicates: bool = True
    eval_group_size: int = 64
    label_rounds: int = 4
    bucket: int = 8
    device: str = "cpu"
    precision: str = "fp32"
    seed: int = 0
    checkpoint_seconds: float = 20.0
    micro_batch: int | None = None


@dataclass(frozen=True)
class EpochRecord:
    """One line of the metrics log. ``epoch`` counts within ``stage``. Both from 1. ``micro_batch``: pairs of a piece.
    ``fallbacks``: times that the training went back to a good state, with half the learning rate.
    """

    stage: int
    epoch: int
    loss: float
    pairs_per_second: float
    seconds: float
    lr: float
    mean_probability: float | None
    flagged: float
    val_rsum: float | None
    skipped_steps: int
    note: str | None = None
    micro_batch: int | None = None
    fallbacks: int = 0


@dataclass
class Trained:
    """What a training leaves: the model (an ensemble of its networks, where there are two), the pairs' values."""

    model: DualEncoder
    values: np.ndarray  # (N,) float32
    history: list[dict[str, Any]] = field(default_factory=list)
    best_val_rsum: float | None = None
    heads: list[Any] = field(default_factory=list)  # what each network has learned besides its model, None for nothing


def step_seed(*parts: int) -> int:
    """One 63-bit seed out of several numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
