"""The base of every dual encoder.

A dual encoder turns a batch of images or captions into a *state*. That is a tensor (B, E) of unit vectors, which are
compared by cosine, or a :class:`Local`, whose words are compared with regions (SAF, SGR).
"""

from typing import Any, NamedTuple

from torch import Tensor, nn

from cleanpairs.encoders.tokenizer import PackedTokens


class Local(NamedTuple):
    """B sets of local vectors: regions of images or words of captions."""

    parts: Tensor  # (B, L, D). Zero behind each length
    lengths: Tensor  # (B,) int64, from 1 to L


State = Tensor | Local


class DualEncoder(nn.Module):
    """Two towers, and a similarity of their states: the cosine of unit vectors, unless a subclass has another."""

    config: dict[str, Any]  # arguments of the constructor
    image: Any  # the tower of images
    dim: int
    image_drop = 0.0
    text_drop = 0.0
    local = False  # whether states are :class:`Local`

    def encode_images(self, images: Tensor, keep: Tensor | None = None) -> Any:
        """State of B images: regions (B, R, D) or pixels (B, 3, H, W). ``keep`` (B, R) bool: region dropping."""
        return self.image(images, keep)

    def encode_texts(self, tokens: PackedTokens) -> Any:
        """State of B packed captions, in the packed order."""
        raise NotImplementedError

    def forward(self, images: Tensor, keep: Tensor | None, tokens: PackedTokens) -> tuple[Any, Any]:
        """``(image state, text state)`` of B pairs: one call for a training step, so that a launcher can wrap it."""
        return self.encode_images(images, keep), self.encode_texts(tokens)

    def vector(self, state: Any) -> Tensor:
        """(B, E) unit vectors of a state, for nearest neighbours and distances: itself, or its parts' mean."""
        return state

    def similarity(self, images: Any, texts: Any) -> Tensor:
        """(B_image, B_text) similarity."""
        return images @ texts.T

    def paired_similarity(self, images: Any, texts: Any) -> Tensor:
        """(B,) similarity of each image with the caption of its row: the diagonal of :meth:`similarity`."""
        return (images * texts).sum(dim=1)


def full_precision(state: State) -> State:
    """A state in float32. Autocast may have given it another type."""
    return Local(state.parts.float(), state.lengths) if isinstance(state, Local) else state.float()


def take_state(state: State, rows: Tensor) -> State:
    """Return the ``rows`` (b,) int64 or bool of a state."""
    if isinstance(state, Local):
        return Local(state.parts[rows], state.lengths[rows])
    return state[rows]


def input_dim(model: DualEncoder) -> int | None:
    """Dimensions D of the image vectors that a model, or each network of an ensemble, takes. None: it takes pixels."""
    dim = (model.config.get("members") or [model.config])[0].get("dim_image")
    return None if dim is None else int(dim)
