"""VSE infinity (Chen et al., CVPR 2021): a dual encoder whose similarity is the cosine of two pooled vectors."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cleanpairs.core.errors import ConfigError
from cleanpairs.encoders import backbone
from cleanpairs.encoders.tokenizer import PackedTokens
from cleanpairs.encoders.towers import RegionTower, WordTower, l2_normalise


@dataclass(frozen=True)
class Shape(backbone.Shape):
    """``dim_sentence``: dimensions of a frozen sentence encoder's vectors, whose projection is added to the pooled
    words; 0 for none.
    """

    dim_sentence: int = 0


class VSEInf(backbone.Backbone):
    """Region and word towers to a joint space of ``dim`` dimensions.

    See :class:`cleanpairs.encoders.backbone.Backbone`.
    """

    Shape = Shape

    def __init__(self, vocabulary: int, dim_image: int, **shape: Any) -> None:
        super().__init__(vocabulary, dim_image, **shape)
        s: Shape = self.shape
        if s.dim % 2:
            raise ConfigError(f"dim of the vse_inf backbone must be even, found {s.dim}")
        self.image = RegionTower(dim_image, s.dim)
        self.text = WordTower(vocabulary, s.dim, dim_word=s.dim_word)
        self.sentence = RegionTower(s.dim_sentence, s.dim) if s.dim_sentence else None

    def encode_images(self, images: Tensor, keep: Tensor | None = None) -> Tensor:
        """Unit vectors (B, E) of regions (B, R, D), or of pixels (B, 3, H, W); ``keep`` (B, R): region dropping."""
        return self.image(self.regions(images), keep)

    def encode_texts(self, tokens: PackedTokens) -> Tensor:
        """Unit vectors (B, E), in the packed order."""
        words: Tensor = self.text(tokens)
        if self.sentence is None:
            return words
        assert tokens.sentences is not None
        return l2_normalise(words + self.sentence(tokens.sentences[:, None]))

    def standardise(self, mean: Tensor, std: Tensor) -> None:
        """Of the tower."""
        self.image.standardise(mean, std)
