"""A first-in-first-out memory of feature pairs: a ring buffer that can be saved and gone on with."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class Remembered(NamedTuple):
    """m entries, in no particular order: vectors (m, E) float32 on the memory's device, and the pairs (m,) int64."""

    images: Tensor
    texts: Tensor
    rows: np.ndarray


class FeatureMemory:
    """At most ``size`` feature pairs, whose vectors lie on ``device``; the oldest make room."""

    def __init__(self, size: int, device: str = "cpu") -> None:
        self.size, self.device = size, device
        self.images = self.texts = torch.zeros(0, 0)
        self.rows: np.ndarray = np.full(size, -1, dtype=np.int64)
        self.next = self.filled = 0

    def __len__(self) -> int:
        return self.filled

    def push(self, images: Tensor, texts: Tensor, rows: np.ndarray) -> None:
        """Remember n feature pairs (n, E) of the pairs ``rows`` (n,); of more than ``size`` the last ones."""
        images, texts, rows = images[-self.size :], texts[-self.size :], rows[-self.size :]
        if not len(rows):
            return
        if not len(self.images):
            self.images, self.texts = (torch.zeros(self.size, z.shape[1], device=self.device) for z in (images, texts))
        at = (self.next + np.arange(len(rows))) % self.size
        place = torch.from_numpy(at).to(self.device)
        for held, new in ((self.images, images), (self.texts, texts)):
            held[place] = new.detach().to(self.device, torch.float32)
        self.rows[at] = rows
        self.next = int((self.next + len(rows)) % self.size)
        self.filled = min(self.size, self.filled + len(rows))

    def held(self) -> Remembered:
        """What is remembered, as views."""
        return Remembered(self.images[: self.filled], self.texts[: self.filled], self.rows[: self.filled])

    def state(self) -> dict[str, Any]:
        """What :meth:`load_state` goes on from."""
        vectors = {"images": self.images.cpu().numpy(), "texts": self.texts.cpu().numpy()}
        return {**vectors, "rows": self.rows, "next": self.next, "filled": self.filled}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from :meth:`state`."""
        self.images, self.texts = (
            torch.from_numpy(np.array(state[name], dtype=np.float32)).to(self.device) for name in ("images", "texts")
        )
        self.rows = np.array(state["rows"], dtype=np.int64)
        self.next, self.filled = int(state["next"]), int(state["filled"])
