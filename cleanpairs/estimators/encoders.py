"""The pretrained networks of an estimator: what stands before the trained model, or within it.

The tokenizer of a sentence encoder shows whether it knows the language of some captions. It keeps words of its own
language whole. It cuts other words into pieces or calls them unknown. Of captions and titles in English
all-MiniLM-L6-v2 makes 1.04 to 1.33 pieces a word, of part numbers 1.6, of French 1.9, German 2.8, Russian 5.4. Of
Japanese a third of the pieces is unknown, of Chinese 72 % (docs/encoders.md).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from cleanpairs.core import BACKBONES, ConfigError, DataError, percent
from cleanpairs.data import Pairs
from cleanpairs.encoders.libraries import load_encoder
from cleanpairs.encoders.model_files import FrozenPair
from cleanpairs.encoders.module_encoder import ModuleEncoder
from cleanpairs.encoders.pretrained import PretrainedCLIP
from cleanpairs.encoders.sentences import INSTALL, SHIPPED, SentenceEncoder, shipped
from cleanpairs.encoders.tokenizer import UNKNOWN, Tokenizer, TokenTable, words
from cleanpairs.estimators.settings import EncoderSettings, ModelSettings
from cleanpairs.features import Captions, ImageMatrix, encoded_matrix, image_matrix, pixel_matrix
from cleanpairs.features.texts import refuse_without_captions

GIVEN = "features"  # as the name of an encoder: the vectors that the data brings
AUTO, WORDS = "auto", "words"  # as the name of a text encoder: what suits the captions. Learned words alone
MOST_NEW = 0.5  # share of the words. Of more a model says nothing
MOST_PIECES, MOST_UNKNOWN = 1.5, 0.05  # pieces a word. Share of the pieces


def text_encoder_for(settings: EncoderSettings, pairs: Pairs) -> str | Path | None:
    """Return the text encoder of a fit.

    Parameters
    ----------
    settings : EncoderSettings
        What is named.
    pairs : Pairs
        n pairs.

    Returns
    -------
    str, Path or None
        The one that is named. Else "features", where the data brings vectors of both sides and no encoder of images is
        named. Else "words" or "auto". None with ``encoder``, which reads the captions.

    Raises
    ------
    DataError
        There are no captions, and the vectors are not taken.
    """
    named = settings.text_encoder
    given = pairs.has_both_vectors and settings.image_encoder in ("auto", GIVEN)
    if settings.encoder is not None:
        name = named if named not in (AUTO, WORDS) else None
    else:
        name = named if named not in (None, AUTO) else GIVEN if given else named or WORDS
    if name != GIVEN:
        refuse_without_captions(pairs)
    return name


@dataclass(frozen=True)
class Encoders:
    """Pretrained networks, loaded.

    Parameters
    ----------
    joint : FrozenPair, optional
        CLIP, SigLIP or another encoder of both sides.
    tuned : bool
        Whether its towers are trained.
    text : SentenceEncoder, str or None
        Encoder of captions. "features": the data's vectors.
    image : ModuleEncoder, optional
        Encoder of images.
    """

    joint: FrozenPair | None = None
    tuned: bool = False
    text: SentenceEncoder | str | None = None
    image: ModuleEncoder | None = None

    @classmethod
    def load(cls, settings: ModelSettings, device: str, text_encoder: str | Path | None) -> "Encoders":
        """Load the networks that settings name.

        Parameters
        ----------
        settings : ModelSettings
            What is named.
        device : str
            Where they run.
        text_encoder : str, Path or None
            What :func:`text_encoder_for` gave.

        Returns
        -------
        Encoders
            Loaded.
        """
        joint = None if settings.encoder is None else load_encoder(resolved(settings.encoder), device)
        if settings.tune != "head" and joint is not None and not joint.tunable:
            raise ConfigError(
                f"tune={settings.tune!r} trains on a CLIP or SigLIP of transformers that takes one size of images, and "
                f"{joint.name} is none: leave tune out, or name another encoder"
            )
        text: SentenceEncoder | str | None = GIVEN if text_encoder == GIVEN else None
        if text_encoder == AUTO:
            text = _shipped(device) if joint is None and takes_sentences(settings.backbone) else None
        elif text_encoder not in (None, WORDS, GIVEN):
            text = _shipped(device) if text_encoder == SHIPPED else None
            text = text or SentenceEncoder(resolved(str(text_encoder)), device)
        module, image = settings.image_encoder, None
        if isinstance(module, nn.Module):
            image = ModuleEncoder(module, settings.image_transform, device)
        return cls(joint, joint is not None and settings.tune != "head", text, image)

    def images(self, pairs: Pairs, encoder: str, size: int | None) -> ImageMatrix:
        """Return the images as the trained model takes them.

        Parameters
        ----------
        pairs : Pairs
            n pairs.
        encoder : str
            See :func:`cleanpairs.features.image_matrix`.
        size : int, optional
            Side in pixels.

        Returns
        -------
        ImageMatrix
            Vectors, regions or pixels.
        """
        if self.image is not None:
            return encoded_matrix(pairs, self.image)
        if self.joint is None:
            return image_matrix(pairs, encoder, image_size=size)
        if self.tuned:
            return pixel_matrix(pairs, self.joint.transform)
        if encoder != GIVEN:
            return encoded_matrix(pairs, self.joint)
        matrix = image_matrix(pairs, GIVEN)
        check_vectors(matrix.array, self.joint)
        return matrix

    def captions(self, words: Tokenizer | None, dim: int | None) -> Captions:
        """Return what makes tables of captions.

        Parameters
        ----------
        words : Tokenizer, optional
            Learned words.
        dim : int, optional
            Dimensions of given vectors.

        Returns
        -------
        Captions
            Of words, of vectors, or of both.
        """
        if self.joint is not None:
            if isinstance(self.joint, PretrainedCLIP) and self.tuned:
                return Captions(self.joint)
            return Captions(frozen=self.joint)
        return Captions(dim=dim) if isinstance(self.text, str) else Captions(words, self.text)

    def suiting(self, captions: Sequence[str], settings: ModelSettings) -> "tuple[Encoders, str]":
        """Leave out a text encoder that was not named and does not know the language.

        Parameters
        ----------
        captions : sequence of str
            Captions of the pairs.
        settings : ModelSettings
            What is named.

        Returns
        -------
        Encoders, str
            These, and a sentence on what captions become.
        """
        if self.joint is not None:
            return self, f"vectors of {self.joint.name}"
        if self.text is None:
            if settings.text_encoder != AUTO:
                return self, "learned words"
            if not takes_sentences(settings.backbone):
                return self, f"learned words (backbone {settings.backbone} takes nothing else)"
            return self, f"learned words ({SHIPPED} is not installed; for captions in English: {INSTALL})"
        if isinstance(self.text, str):
            instead = " (--set text_encoder=words: learned words)" if any(captions) else ""
            return self, f"vectors of the data, both sides{instead}"
        if not takes_sentences(settings.backbone):
            return self, f"vectors of {self.text.name}, in place of the backbone {settings.backbone}"
        if settings.text_encoder != AUTO:
            return self, f"learned words and vectors of {self.text.name}"
        suits, why = knows(self.text, captions)
        if suits:
            return self, f"learned words and vectors of {self.text.name} ({why})"
        limits = f"the limits are {MOST_PIECES:g} and {percent(MOST_UNKNOWN, 0)}"
        return replace(self, text=None), f"learned words ({why}, so it is not used: {limits})"

    def in_one_space(self, matrix: ImageMatrix, tokens: TokenTable) -> bool:
        """Whether both sides are single vectors of one length, of one model or of the data.

        Parameters
        ----------
        matrix : ImageMatrix
            The images.
        tokens : TokenTable
            The captions.

        Returns
        -------
        bool
            Whether they are.
        """
        if self.tuned or tokens.vectors is None or matrix.array.shape[1:] != (1, tokens.vectors.shape[1]):
            return False
        return self.joint is not None or (self.text == GIVEN and matrix.encoder == GIVEN)

    def to_dict(self) -> dict[str, Any]:
        """Names and fingerprints, for JSON: of networks that are not saved."""
        networks = {"encoder": self.joint, "text_encoder": self.text, "image_encoder": self.image}
        return {
            role: {"name": part.name, "fingerprint": part.fingerprint}
            for role, part in networks.items()
            if part is not None and not isinstance(part, str)
        }


def check_vectors(array: np.ndarray, model: FrozenPair) -> None:
    """Refuse vectors that a model cannot have made.

    Parameters
    ----------
    array : (m, E) or (m, 1, E) float
        The vectors.
    model : FrozenPair
        The model.

    Raises
    ------
    DataError
        They have another shape.
    """
    if array.shape[-1] != model.dim or array.shape[1:-1] not in ((), (1,)):
        raise DataError(
            f"the model {model.name} makes one vector of {model.dim} dimensions of an image, and this data has vectors "
            f"of {' x '.join(map(str, array.shape[1:]))}: give the images themselves, or vectors of this model"
        )


def takes_sentences(backbone: str) -> bool:
    """Whether a backbone takes sentence vectors in addition to its words.

    Parameters
    ----------
    backbone : str
        Its name.

    Returns
    -------
    bool
        Whether it does.
    """
    return hasattr(BACKBONES.load(backbone).Shape, "dim_sentence")


@functools.lru_cache(maxsize=2)
def _shipped(device: str) -> SentenceEncoder | None:
    return None if shipped() is None else SentenceEncoder(SHIPPED, device)


def resolved(name: str | Path) -> str:
    """Return a directory by its absolute path, for a model that is loaded elsewhere. A name of the hub as it is."""
    return str(Path(name).resolve()) if Path(name).is_dir() else str(name)


def unknown_share(tokenizer: Any, captions: Sequence[str]) -> float | None:
    """Share of the words that a model has not learned, by about 2,000 captions.

    Parameters
    ----------
    tokenizer : Captions or None
        The model's.
    captions : sequence of str
        Captions of other data.

    Returns
    -------
    float or None
        In [0, 1]. None where the model has no vocabulary.
    """
    vocabulary = getattr(tokenizer, "words", None)
    if not isinstance(vocabulary, Tokenizer) or not captions:
        return None
    return float((vocabulary.encode(_some(captions)).ids == UNKNOWN).mean())


def knows(encoder: SentenceEncoder, captions: Sequence[str]) -> tuple[bool, str]:
    """Whether a sentence encoder knows the language of captions.

    Parameters
    ----------
    encoder : SentenceEncoder
        The encoder.
    captions : sequence of str
        The first words of about 2,000 of them are looked at.

    Returns
    -------
    bool, str
        Whether it does, and the figures in words.
    """
    chosen = [words(text)[:64] for text in _some(captions)]  # the encoder cuts what is far longer
    marks = len(encoder.tokens([""])[0])
    unknown = set(encoder.tokens(["[UNK]"])[0]) - set(encoder.tokens([""])[0])
    rows = encoder.tokens([" ".join(text) for text in chosen if text])
    pieces = sum(len(row) - marks for row in rows) / max(1, sum(map(len, chosen)))
    share = sum(token in unknown for row in rows for token in row) / max(1, sum(len(row) - marks for row in rows))
    figures = f"{encoder.name} makes {pieces:.2f} pieces of a word, {percent(share, 0)} of them unknown"
    return bool(rows) and pieces <= MOST_PIECES and share <= MOST_UNKNOWN, figures


def _some(captions: Sequence[str]) -> Sequence[str]:
    """About 2,000, at even distances."""
    return captions[:: max(1, len(captions) // 2000)]
