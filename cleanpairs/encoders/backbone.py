"""The base of the backbones that learn words: their shape, and standardised regions."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import Tensor

from cleanpairs.core import ConfigError
from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.tokenizer import PackedTokens
from cleanpairs.encoders.towers import RegionTower, Standardised, WordTower, l2_normalise


@dataclass(frozen=True)
class Shape:
    """The settings of a backbone, apart from the sizes of its inputs."""

    dim: int = 1024  # joint embedding
    dim_word: int = 300
    image_drop: float = 0.2  # size augmentation: share of the regions left out in training, in [0, 1)
    text_drop: float = 0.2  # the same of words, where they are packed


class Backbone(DualEncoder, Standardised):
    """A dual encoder of image regions, of ``dim_image`` dimensions, and of words, by a table of ``vocabulary`` rows.
    ``shape``: fields of :attr:`Shape`.
    """

    Shape: ClassVar[type[Shape]] = Shape

    def __init__(self, vocabulary: int, dim_image: int, **shape: Any) -> None:
        super().__init__()
        self.shape: Any = self.Shape(**shape)
        self.config = {"vocabulary": vocabulary, "dim_image": dim_image, **asdict(self.shape)}
        self.dim, self.image_drop, self.text_drop = self.shape.dim, self.shape.image_drop, self.shape.text_drop
        self.sentence: Any = None  # of a frozen encoder's vectors, in addition to the words

    def fit_text(self, mean: Tensor, std: Tensor) -> None:
        """Fix the standardisation of the sentence vectors, (D,) each."""
        self.sentence.fit_input(mean, std)


@dataclass(frozen=True)
class VSEShape(Shape):
    """``dim_sentence``: of a frozen encoder's vectors, whose projection is added to the pooled words. 0 for none."""

    dim_sentence: int = 0


class VSEInf(Backbone):
    """VSE infinity (Chen et al., CVPR 2021): region and word towers, compared by cosine. See :class:`Backbone`."""

    Shape = VSEShape

    def __init__(self, vocabulary: int, dim_image: int, **shape: Any) -> None:
        super().__init__(vocabulary, dim_image, **shape)
        s: VSEShape = self.shape
        if s.dim % 2:
            raise ConfigError(f"dim of the vse_inf backbone must be even, found {s.dim}")
        self.image = RegionTower(dim_image, s.dim)
        self.text = WordTower(vocabulary, s.dim, dim_word=s.dim_word)
        self.sentence = RegionTower(s.dim_sentence, s.dim) if s.dim_sentence else None

    def encode_texts(self, tokens: PackedTokens) -> Tensor:
        """Unit vectors (B, E), in the packed order."""
        words = self.text(tokens)
        if self.sentence is None or tokens.sentences is None:
            return words
        return l2_normalise(words + self.sentence(tokens.sentences[:, None]))

    def fit_input(self, mean: Tensor, std: Tensor) -> None:
        """Fix the standardisation of the image tower."""
        self.image.fit_input(mean, std)
