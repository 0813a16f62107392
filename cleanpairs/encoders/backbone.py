"""What the backbones that learn words have in common: their shape, pixels, and the standardisation of regions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.cnn import SmallCNN
from cleanpairs.encoders.towers import Standardised


@dataclass(frozen=True)
class Shape:
    """What makes a backbone, beside the sizes of its inputs.

    - ``pixels``: the images are pixels (B, 3, H, W) uint8, and a small CNN makes the regions
    - ``dim``, ``dim_word``: joint and word embedding
    - ``image_drop``, ``text_drop`` float in [0, 1): size augmentation: share of regions and of words that are left out
      in training; ``text_drop`` is applied where the words are packed
    """

    pixels: bool = False
    dim: int = 1024
    dim_word: int = 300
    image_drop: float = 0.2
    text_drop: float = 0.2


class Backbone(DualEncoder, Standardised):
    """A dual encoder of image regions and words.

    ``vocabulary``: size of the word table; ``dim_image``: dimensions D of an image region; ``shape``: fields of
    :attr:`Shape`, which a subclass may have more of.
    """

    Shape: ClassVar[type[Shape]] = Shape

    def __init__(self, vocabulary: int, dim_image: int, **shape: Any) -> None:
        super().__init__()
        self.shape: Any = self.Shape(**shape)
        self.config = {"vocabulary": vocabulary, "dim_image": dim_image, **asdict(self.shape)}
        self.dim, self.image_drop, self.text_drop = self.shape.dim, self.shape.image_drop, self.shape.text_drop
        self.cnn: nn.Module | None = SmallCNN(dim=dim_image) if self.shape.pixels else None
        self.sentence: Standardised | None = None  # of a frozen encoder's vectors beside the words

    def regions(self, images: Tensor) -> Tensor:
        """Regions (B, R, D), of themselves or of pixels."""
        return images if self.cnn is None else self.cnn(images)

    def _input(self) -> Standardised:
        """Where the regions are standardised."""
        return self

    def fit_input(self, mean: Tensor, std: Tensor) -> None:
        """Fix the standardisation of region inputs, (D,) each; pixels have none."""
        if self.cnn is None:
            self._input().standardise(mean, std)

    def fit_text(self, mean: Tensor, std: Tensor) -> None:
        """Fix the standardisation of the sentence vectors, (D,) each."""
        assert self.sentence is not None
        self.sentence.standardise(mean, std)
