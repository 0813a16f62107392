"""The images and captions of a corpus as matrices that training can index, computed once and kept."""

from cleanpairs.features.images import ImageMatrix, encoded_matrix, image_matrix, pixel_matrix, resolve_image_encoder
from cleanpairs.features.texts import Captions

__all__ = ["Captions", "ImageMatrix", "encoded_matrix", "image_matrix", "pixel_matrix", "resolve_image_encoder"]
