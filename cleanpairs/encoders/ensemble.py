"""Several dual encoders as one, whose similarity is the weighted mean of the members' similarities."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cleanpairs.encoders.base import DualEncoder, Local, State
from cleanpairs.encoders.tokenizer import PackedTokens


class Ensemble(DualEncoder):
    """The mean of several dual encoders of one kind, itself a dual encoder.

    Its state is the members' states side by side: parts, or unit vectors, each times the root of its weight. So the dot
    product is the mean cosine. The ``weights`` of the members' cosines have the sum 1. None: equal weights.
    """

    def __init__(self, members: Sequence[Any], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.roots = [math.sqrt(weight) for weight in weights or [1 / len(members)] * len(members)]
        first: Any = self.members[0]
        self.local = bool(first.local)
        self.dims = [int(m.dim) for m in members]
        self.dim = sum(self.dims)
        self.image_drop, self.text_drop = first.image_drop, first.text_drop
        self.config: dict[str, Any] = {"members": [m.config for m in members]}
        if weights is not None:
            self.config["weights"] = list(weights)

    def _joined(self, states: Sequence[Any]) -> State:
        if self.local:
            return Local(torch.cat([s.parts for s in states], dim=-1), states[0].lengths)
        return torch.cat([state * root for state, root in zip(states, self.roots, strict=True)], dim=-1)

    def _each(self, *states: Any) -> Iterator[tuple[Any, ...]]:
        """Each member with its part of states that are :class:`Local`."""
        parts = ([Local(part, s.lengths) for part in s.parts.split(self.dims, dim=-1)] for s in states)
        return zip(self.members, *parts, strict=True)

    def encode_images(self, images: Tensor, keep: Tensor | None = None) -> State:
        """The members' states, side by side."""
        return self._joined([m.encode_images(images, keep) for m in self.members])  # type: ignore[operator]

    def encode_texts(self, tokens: PackedTokens) -> State:
        """The members' states, side by side, in the packed order."""
        return self._joined([m.encode_texts(tokens) for m in self.members])  # type: ignore[operator]

    def vector(self, state: State) -> Tensor:
        """(B, sum of dims) unit vectors."""
        if not isinstance(state, Local):
            return state
        vectors = [m.vector(own) for m, own in self._each(state)]
        return torch.cat(vectors, dim=-1) / math.sqrt(len(vectors))

    def similarity(self, images: State, texts: State) -> Tensor:
        """Mean similarity (B_image, B_text)."""
        if not self.local:
            return super().similarity(images, texts)
        return torch.stack([m.similarity(i, t) for m, i, t in self._each(images, texts)]).mean(dim=0)

    def paired_similarity(self, images: State, texts: State) -> Tensor:
        """Mean similarity (B,) of rows of like position."""
        if not self.local:
            return super().paired_similarity(images, texts)
        return torch.stack([m.paired_similarity(i, t) for m, i, t in self._each(images, texts)]).mean(dim=0)

    def fit_input(self, mean: Tensor, std: Tensor) -> None:
        """Fix the standardisation of every member's input."""
        for member in self.members:
            member.fit_input(mean, std)  # type: ignore[operator]


def members_of(model: Any) -> list[Any]:
    """The networks of an ensemble, or the only one."""
    return list(model.members) if type(model) is Ensemble else [model]  # SGRAF is one network of two parts
