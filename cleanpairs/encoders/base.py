"""What every dual encoder is."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from cleanpairs.encoders.tokenizer import PackedTokens

__all__ = ["DualEncoder"]


class DualEncoder(Protocol):
    """Two towers into one space of ``dim`` dimensions; also a torch module."""

    config: dict[str, Any]
    dim: int
    image_drop: float
    text_drop: float

    def encode_images(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """(B, E) unit vectors of regions (B, R, D) or pixels (B, 3, H, W)."""
        ...

    def encode_texts(self, tokens: PackedTokens) -> Tensor:
        """(B, E) unit vectors of packed captions, in the packed order."""
        ...

    def similarity(self, z_image: Tensor, z_text: Tensor) -> Tensor:
        """(B_image, B_text) similarity."""
        ...

    def fit_input(self, mean: Tensor, std: Tensor) -> None:
        """Fix the standardisation of the input regions."""
        ...

    def eval(self) -> Any:
        """Evaluation mode, as torch has it; so are the next five."""
        ...

    def train(self, mode: bool = True) -> Any:
        """Training mode."""
        ...

    def parameters(self) -> Any:
        """What is learned."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that a copy needs."""
        ...

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> Any:
        """Take over :meth:`state_dict`."""
        ...

    def to(self, device: torch.device) -> Any:
        """Move to ``device``."""
        ...

    def __call__(self, images: Tensor, keep: Tensor | None, tokens: PackedTokens) -> tuple[Tensor, Tensor]:
        """``(z_image, z_text)``, each (B, E), for a training step."""
        ...
