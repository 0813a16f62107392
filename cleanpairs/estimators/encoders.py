"""The pretrained networks of an estimator: what stands before the trained model, or within it.

By the parameters ``encoder`` (both towers of CLIP or SigLIP), ``text_encoder`` (text alone), ``image_encoder`` (a torch
module) and ``tune``, and by the vectors that the data brings. Without them an estimator learns its own words, and
nothing here is used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.core.registry import BACKBONES
from cleanpairs.data import Pairs
from cleanpairs.encoders.tokenizer import TokenTable
from cleanpairs.estimators.languages import MOST_PIECES, MOST_UNKNOWN, knows
from cleanpairs.features import (
    FrozenTexts,
    ImageMatrix,
    PrecomputedTexts,
    TokenNumbers,
    encoded_matrix,
    image_matrix,
    pixel_matrix,
)
from cleanpairs.features.rows import Progress
from cleanpairs.features.texts import precomputed_text_vectors

if TYPE_CHECKING:
    from cleanpairs.encoders.module_encoder import ModuleEncoder
    from cleanpairs.encoders.pretrained import PretrainedCLIP
    from cleanpairs.encoders.sentences import SentenceEncoder
    from cleanpairs.estimators.cleaner import PairCleaner

GIVEN = "features"  # as the name of an encoder: the vectors that the data brings
AUTO, WORDS = "auto", "words"  # as the name of a text encoder: what suits the captions; learned words alone


def text_encoder_for(estimator: PairCleaner, pairs: Pairs) -> str | Path | None:
    """The text encoder of a fit on ``pairs``: the one that is named, else the data's vectors (:data:`GIVEN`), where it
    brings them of both sides and no encoder of images is named; else words are learned (:data:`WORDS`), or what suits
    the captions is chosen when they are known (:data:`AUTO`). None beside ``encoder``, which reads the captions itself.

    Raises DataError: there are no captions, and the vectors are not taken.
    """
    named = estimator.text_encoder
    given = pairs.has_both_vectors and estimator.image_encoder in ("auto", GIVEN)
    if estimator.encoder is not None:
        found = named if named not in (AUTO, WORDS) else None
    else:
        found = named if named not in (None, AUTO) else GIVEN if given else named or WORDS
    if found != GIVEN:
        refuse_without_captions(pairs, found or estimator.encoder)
    return found


def refuse_without_captions(pairs: Pairs, reader: Any) -> None:
    """DataError where ``reader``, a text encoder, would find no captions to read."""
    if not pairs.has_captions and len(pairs.reasons) < len(pairs):
        raise DataError(
            f"the data has no captions, and {reader} reads them: leave encoders out, which takes the vectors of both "
            "sides, or name a column of captions"
        )


@dataclass(frozen=True)
class Encoders:
    """Pretrained networks, loaded; each may be None.

    ``both``: CLIP or SigLIP, with ``tuned`` whether its towers are trained too; ``text``: captions to vectors, or
    "features" for those of the data; ``image``: a module that makes vectors of images.
    """

    both: PretrainedCLIP | None = None
    tuned: bool = False
    text: SentenceEncoder | str | None = None
    image: ModuleEncoder | None = None

    @classmethod
    def load(cls, estimator: PairCleaner, text_encoder: str | Path | None) -> Encoders:
        """Those that the parameters of ``estimator`` name, and ``text_encoder``, of :func:`text_encoder_for`.

        Raises ConfigError, DataError: see :class:`cleanpairs.encoders.pretrained.PretrainedCLIP` and its like.
        """
        both: PretrainedCLIP | None = None
        text: SentenceEncoder | str | None = None
        image: ModuleEncoder | None = None
        device = estimator.resolved_device()
        if estimator.encoder is not None:
            from cleanpairs.encoders.pretrained import PretrainedCLIP

            both = PretrainedCLIP.load(_resolved(estimator.encoder), device)
        if text_encoder == GIVEN:
            text = GIVEN
        elif text_encoder == AUTO:
            if estimator.encoder is None and takes_sentences(estimator.backbone):
                text = _shipped(device)
        elif text_encoder not in (None, WORDS):
            from cleanpairs.encoders.sentences import SHIPPED, SentenceEncoder

            text = _shipped(device) if text_encoder == SHIPPED else None
            text = text or SentenceEncoder.load(_resolved(str(text_encoder)), device)
        if not isinstance(estimator.image_encoder, str):
            from cleanpairs.encoders.module_encoder import ModuleEncoder

            image = ModuleEncoder(estimator.image_encoder, estimator.image_transform, device)
        return cls(both, both is not None and estimator.tune != "head", text, image)

    @property
    def frozen_images(self) -> PretrainedCLIP | ModuleEncoder | None:
        """What makes vectors of images, if anything here does."""
        return self.image if self.both is None or self.tuned else self.both

    # -- what they make of pairs ------------------------------------------------------------------------------------

    def images(self, pairs: Pairs, encoder: str, size: int | None, progress: Progress | None = None) -> ImageMatrix:
        """The images as the trained model takes them: vectors, regions or pixels.

        ``encoder``: a name for :func:`cleanpairs.features.image_matrix`, where no pretrained network is in its place.
        """
        if self.both is not None:
            if self.tuned:
                return pixel_matrix(pairs, self.both.transform, progress=progress)
            if encoder != GIVEN:
                return encoded_matrix(pairs, self.both, progress=progress)
            matrix = image_matrix(pairs, GIVEN)
            check_vectors(matrix.array, self.both)
            return matrix
        if self.image is not None:
            return encoded_matrix(pairs, self.image, progress=progress)
        return image_matrix(pairs, encoder, image_size=size, progress=progress)

    def texts(self, pairs: Pairs | None = None, dim: int | None = None) -> Any:
        """What makes tables of captions, in place of a :class:`cleanpairs.encoders.tokenizer.Tokenizer`; None: nothing.

        For given vectors ``pairs``, or the dimensions ``dim`` when they are known.
        """
        if self.both is not None:
            return TokenNumbers(self.both) if self.tuned else FrozenTexts(self.both)
        if isinstance(self.text, str):
            if dim is None:
                assert pairs is not None
                dim = int(precomputed_text_vectors(pairs).shape[1])
            return PrecomputedTexts(dim)
        return None if self.text is None else FrozenTexts(self.text)

    def suiting(self, captions: Sequence[str], estimator: PairCleaner) -> tuple[Encoders, str]:
        """These, without the text encoder where ``text_encoder="auto"`` and it does not know the captions' language;
        and what the captions become, in words.
        """
        if self.both is not None:
            return self, f"vectors of {self.both.name}"
        if self.text is None:
            if estimator.text_encoder != AUTO:
                return self, "learned words"
            if not takes_sentences(estimator.backbone):
                return self, f"learned words (backbone {estimator.backbone} takes nothing else)"
            from cleanpairs.encoders.sentences import INSTALL, SHIPPED

            return self, f"learned words ({SHIPPED} is not installed; for captions in English: {INSTALL})"
        if isinstance(self.text, str):
            return self, "vectors of the data, both sides (--text-encoder words: learned words)"
        beside = "learned words and " if takes_sentences(estimator.backbone) else ""
        if estimator.text_encoder != AUTO:
            return self, f"{beside}vectors of {self.text.name}"
        known, why = knows(self.text, captions)
        if known:
            return self, f"{beside}vectors of {self.text.name} ({why})"
        limits = f"{MOST_PIECES:g} and {MOST_UNKNOWN:.0%} at most"
        return replace(self, text=None), f"learned words ({why}, where it knows a language {limits})"

    # -- the model --------------------------------------------------------------------------------------------------

    def in_one_space(self, matrix: ImageMatrix, tokens: TokenTable) -> bool:
        """Whether both sides are single vectors of one length: of one model, or of the data."""
        if self.tuned or tokens.vectors is None or matrix.array.shape[1:] != (1, tokens.vectors.shape[1]):
            return False
        return self.both is not None or (self.text == GIVEN and matrix.encoder == GIVEN)

    def builder(self, estimator: PairCleaner, matrix: ImageMatrix, tokens: TokenTable) -> Callable[[], Any] | None:
        """A maker of fresh models on these inputs; None: the estimator's backbone is the model."""
        if self.both is not None and self.tuned:
            from cleanpairs.encoders.tuned import TunedCLIP

            both, e = self.both, estimator
            return lambda: TunedCLIP(
                both, tune=e.tune, rank=e.lora_rank, encoder_lr=e.encoder_lr, checkpointing=e.gradient_checkpointing
            )
        if self.both is None and (self.text is None or tokens.sentences is not None):
            return None
        from cleanpairs.encoders.joint_head import JointHead, VectorTowers

        assert tokens.vectors is not None
        dim_image, dim_text = int(matrix.array.shape[-1]), int(tokens.vectors.shape[1])
        if self.in_one_space(matrix, tokens):
            return lambda: JointHead(dim_image)
        images = vector_moments(matrix.array.reshape(-1, dim_image))
        texts = vector_moments(tokens.vectors)

        def build() -> Any:
            model = VectorTowers(dim_image, dim_text, dim=estimator.dim, image_drop=estimator.image_drop)
            if estimator.standardise:
                model.fit_input(*images)
                model.fit_text(*texts)
            return model

        return build

    # -- on disk ----------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Names and fingerprints, for JSON: of networks that are not saved."""
        found = {"encoder": self.both, "text_encoder": self.text, "image_encoder": self.image}
        return {
            role: {"name": part.name, "fingerprint": part.fingerprint}
            for role, part in found.items()
            if part is not None and not isinstance(part, str)
        }

    def check(self, saved: dict[str, Any], path: Path) -> None:
        """Whether these are the networks that the model in ``path`` was made with.

        Raises DataError: the files of a pretrained model have changed; ConfigError: the module is another one, or has
        other weights or another transform.
        """
        found = self.to_dict()
        for role, network in saved.items():
            if found.get(role, {}).get("fingerprint") == network["fingerprint"]:
                continue
            if role == "image_encoder":
                raise ConfigError(
                    f"image_encoder is not the module that {path} was made with ({network['name']}; class, weights and "
                    f"transform count): give the same one"
                )
            raise DataError(
                f"{network['name']} is not the model that {path} was made with (its files have changed): fit again, or "
                f"put the former files back"
            )


def check_vectors(array: np.ndarray, model: PretrainedCLIP) -> None:
    """DataError where vectors (m, E) or (m, 1, E) cannot be ``model``'s own."""
    if array.shape[-1] != model.dim or array.shape[1:-1] not in ((), (1,)):
        raise DataError(
            f"the model {model.name} makes one vector of {model.dim} dimensions of an image, and this data has vectors "
            f"of {' x '.join(map(str, array.shape[1:]))}: give the images themselves, or vectors of this model"
        )


def takes_sentences(backbone: str) -> bool:
    """Whether a backbone takes sentence vectors beside its words."""
    return hasattr(BACKBONES.load(backbone).Shape, "dim_sentence")


@functools.lru_cache(maxsize=2)
def _shipped(device: str) -> SentenceEncoder | None:
    """The sentence encoder that is installed with the package; None where it is not."""
    from cleanpairs.encoders.sentences import SHIPPED, SentenceEncoder, shipped

    return None if shipped() is None else SentenceEncoder.load(SHIPPED, device)


def _resolved(name: str | Path) -> str:
    """A directory by its absolute path, for a model that is loaded elsewhere; a name of the hub as it is."""
    return str(Path(name).resolve()) if Path(name).is_dir() else str(name)


def vector_moments(vectors: np.ndarray, sample: int = 16_384) -> tuple[Any, Any]:
    """Mean and standard deviation (D,) of vectors (n, D), of so many at even distances."""
    import torch

    x = np.asarray(vectors[:: max(1, len(vectors) // sample)], dtype=np.float32)
    return torch.from_numpy(x.mean(axis=0)), torch.from_numpy(x.std(axis=0))
