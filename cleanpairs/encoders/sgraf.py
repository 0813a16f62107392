"""SAF, SGR and SGRAF (Diao et al., AAAI 2021): words attend over regions, and the similarity is reasoned out of both.

Departures from the published networks: of three batch norms the two named in
:mod:`cleanpairs.encoders.local_similarity` are left out; SGRAF, which the authors train as two models and average, is
trained here as one whose similarity is the mean.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cleanpairs.encoders import backbone
from cleanpairs.encoders.base import Local
from cleanpairs.encoders.ensemble import Ensemble
from cleanpairs.encoders.local_similarity import AttentionFiltration, GraphReasoning, LocalSimilarity
from cleanpairs.encoders.tokenizer import PackedTokens
from cleanpairs.encoders.towers import WORD_DROPOUT, BiGRU, l2_normalise, padded


@dataclass(frozen=True)
class Shape(backbone.Shape):
    """``dim_sim``: similarity vectors; ``sgr_steps``: rounds of graph reasoning, at least 1; SAF has none."""

    dim_sim: int = 256
    text_drop: float = 0.0
    sgr_steps: int = 3


class _LocalEncoder(backbone.Backbone):
    """Regions -> linear -> l2; words -> BiGRU -> l2; a similarity of the two sets."""

    Shape = Shape
    local = True
    reasoning: Callable[[Any], nn.Module]

    def __init__(self, vocabulary: int, dim_image: int, **shape: Any) -> None:
        super().__init__(vocabulary, dim_image, **shape)
        s: Shape = self.shape
        self.image = nn.Linear(dim_image, s.dim)
        nn.init.xavier_uniform_(self.image.weight)
        nn.init.zeros_(self.image.bias)
        self.embedding = nn.Embedding(vocabulary, s.dim_word)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.dropout = nn.Dropout(WORD_DROPOUT)
        self.gru = BiGRU(s.dim_word, s.dim)
        self.compare = LocalSimilarity(s.dim, s.dim_sim, self.reasoning(s))
        self.add_moments(dim_image)

    def encode_images(self, images: Tensor, keep: Tensor | None = None) -> Local:
        """Unit regions of regions (B, R, D), or of pixels (B, 3, H, W); ``keep`` (B, R): those that stay."""
        x = l2_normalise(self.image(self.standardised(self.regions(images))))
        if keep is None:
            return Local(x, torch.full((len(x),), x.shape[1], device=x.device))
        kept = torch.zeros_like(x)  # those that stay in front
        kept[torch.arange(x.shape[1], device=x.device) < keep.sum(dim=1)[:, None]] = x[keep]
        return Local(kept, keep.sum(dim=1))

    def encode_texts(self, tokens: PackedTokens) -> Local:
        """Unit words, in the packed order."""
        hidden = self.gru(self.dropout(self.embedding(tokens.ids)), tokens.batch_sizes)  # (total, E), step-major
        return Local(padded(l2_normalise(hidden), tokens), tokens.lengths)

    def vector(self, state: Local) -> Tensor:
        """(B, E) unit vectors: the normalised mean of the parts."""
        return l2_normalise(state.parts.sum(dim=1))

    def similarity(self, images: Local, texts: Local) -> Tensor:
        """(B_image, B_text) in (0, 1)."""
        return self.compare(images, texts)

    def paired_similarity(self, images: Local, texts: Local) -> Tensor:
        """(B,) in (0, 1)."""
        return self.compare.paired(images, texts)


class SGR(_LocalEncoder):
    """Similarity graph reasoning; parameters as VSEInf's, ``dim_sim``, ``sgr_steps``."""

    reasoning = staticmethod(lambda s: GraphReasoning(s.dim_sim, s.sgr_steps))


class SAF(_LocalEncoder):
    """Similarity attention filtration; parameters as :class:`SGR`."""

    reasoning = staticmethod(lambda s: AttentionFiltration(s.dim_sim))


class SGRAF(Ensemble):
    """An SAF and an SGR whose similarities are averaged; parameters as :class:`SGR`."""

    Shape = Shape

    def __init__(self, vocabulary: int, dim_image: int, **shape: Any) -> None:
        super().__init__([kind(vocabulary, dim_image, **shape) for kind in (SAF, SGR)])
        self.config = dict(self.members[0].config)  # type: ignore[arg-type]
