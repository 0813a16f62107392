"""The images and captions of a corpus as matrices that training can index, computed once and kept."""

from cleanpairs.features.images import (
    ImageEncoder,
    ImageMatrix,
    encoded_matrix,
    image_matrix,
    pixel_matrix,
    resolve_image_encoder,
)
from cleanpairs.features.texts import FrozenTexts, PrecomputedTexts, TextEncoder, TokenNumbers, WordsAndSentences

__all__ = [
    "FrozenTexts", "ImageEncoder", "ImageMatrix", "PrecomputedTexts", "TextEncoder", "TokenNumbers",
    "WordsAndSentences", "encoded_matrix", "image_matrix", "pixel_matrix", "resolve_image_encoder",
]  # fmt: skip
