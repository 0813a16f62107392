"""The parameters that every method has, and their checks.

A method is a dataclass that adds its own parameters to these and may change their defaults: the constructor, which only
stores, is made from the fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from sklearn.base import BaseEstimator

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.parameters import check_choice, check_flag, check_number, check_whole
from cleanpairs.core.registry import BACKBONES, IMAGE_ENCODERS
from cleanpairs.encoders.tokenizer import KINDS
from cleanpairs.estimators.encoders import AUTO, WORDS, takes_sentences
from cleanpairs.trainer import TrainingSettings

__all__ = ["SharedParameters"]


@dataclass(kw_only=True, eq=False, repr=False)
class SharedParameters(BaseEstimator):
    """Parameters of all methods.

    Parameters
    ----------
    backbone : str
        Dual encoder; see ``cleanpairs.core.registry.BACKBONES``.
    image_encoder : str or torch.nn.Module
        ``auto`` (vectors of the data where it has them, else ``efficientnet_lite0``), ``efficientnet_lite0``
        (frozen), ``cnn`` (trained from the pixels), ``features``; or a module, which is frozen.
    image_size : int, optional
        Side in pixels of the square that the image encoder sees; its own default when None.
    image_transform : callable, optional
        For a module as ``image_encoder``: a list of B RGB images of Pillow to its pixels (B, 3, H, W).
    encoder : str or path, optional
        Both towers of a CLIP or SigLIP model, a directory or a name on the hub, in place of ``backbone``,
        ``image_encoder`` and the learned words.
    tune : str
        What of ``encoder`` is trained: ``head`` (frozen towers, whose vectors are computed once, and a small head on
        each), ``lora`` (adapters and heads), ``blocks:N`` (the last N blocks of both towers, and heads), ``full``.
    encoder_lr : float, optional
        Learning rate of the weights of ``encoder`` that are trained; by ``tune`` when None (2e-4 for LoRA, else 1e-5).
    lora_rank : int
        Rank of LoRA's matrices.
    gradient_checkpointing : bool
        In the towers: more time, less memory.
    text_encoder : str or path, optional
        ``words`` (or None): learned from the captions. ``auto``: beside them vectors of the sentence encoder that comes
        with the installation, where it knows the captions' language. With both (None and ``auto``), the data's vectors
        are taken instead where it brings those of both sides and ``image_encoder`` is "auto" or "features". A directory
        or a name on the hub: those of another frozen encoder, like a sentence-transformers model; the backbones
        ``mlp`` and ``vse_inf`` take both, others these alone. ``features``: the captions' vectors of the data.
    dim, dim_word : int
        Joint embedding and word embedding.
    dim_sim : int
        Similarity vectors of the backbones that compare words with regions.
    image_drop, text_drop : float in [0, 1)
        Size augmentation: share of regions and of words left out at random in training.
    epochs : int
        Epochs of the last (or only) stage, whose model is kept.
    lr, lr_update, weight_decay, grad_clip, batch_size
        AdamW; in the last stage the rate falls to a tenth after every ``lr_update`` epochs behind the warm-up (when
        None: once, after two thirds of all epochs).
    micro_batch : int, optional
        Pairs that go through the towers at once, on each process, where a batch is too large for the memory (gradient
        cache): the same loss of the whole batch, for one more forward pass. All when None. See docs/scale.md.
    compile : bool
        Compile the towers by ``torch.compile``; where that fails they run as they are, and the log says so.
    tau : float
        Temperature of the matching probability.
    threshold : float, "auto" or None
        Pairs with a correspondence below it are flagged; "auto" takes the density minimum between the two modes;
        None is the method's own.
    eval_group_size : int
        Pairs in a group of an evaluation pass: the more, the lower the probability of every pair.
    label_tau : float, optional
        Temperature of the label's probability; ``tau`` when None.
    cross_fit : int
        Folds of :mod:`cleanpairs.estimators.cross_fitting`, which multiply the time by about their number plus one; 0
        for none, as which two score worse (docs/log.md).
    exclude_duplicates : bool
        Pairs with the same image or text are no negatives of each other.
    near_duplicates : bool
        One picture in several sizes, qualities or formats is one image, as the same bytes are; see
        :mod:`cleanpairs.data.duplicates`.
    require_evidence : bool
        Refuse pairs whose images and captions do not depend on each other; see :mod:`cleanpairs.estimators.refusal`.
    max_bad_share : float in [0, 1], optional
        More of the pairs may not be quarantined; CLEANPAIRS_MAX_BAD_SHARE, or 0.2, when None.
    standardise : bool
        Input vectors are centred and scaled per dimension.
    tokenizer : {"words", "characters", "subword"}
        What a token of a caption is; see :mod:`cleanpairs.encoders.tokenizer`. Scripts without spaces are cut into
        characters by "words" too; "subword" learns frequent pieces.
    min_count, max_length : int
        Vocabulary: least occurrences of a token; tokens after which a caption is cut (characters: four times as many).
    device : {"auto", "cpu", "cuda"}
    precision : {"auto", "fp32", "bf16"}
        auto: bf16 on a GPU, fp32 on a CPU.
    random_state : int
        Seed of everything.
    """

    method_name: ClassVar[str]

    backbone: str = "vse_inf"
    image_encoder: Any = "auto"
    image_size: int | None = None
    image_transform: Any = None
    encoder: str | Path | None = None
    tune: str = "head"
    encoder_lr: float | None = None
    lora_rank: int = 8
    gradient_checkpointing: bool = False
    text_encoder: str | Path | None = None
    dim: int = 256
    dim_word: int = 300
    dim_sim: int = 64
    image_drop: float = 0.3
    text_drop: float = 0.2
    epochs: int = 18
    lr: float = 5e-4
    lr_update: int | None = None
    weight_decay: float = 1e-4
    grad_clip: float = 2.0
    batch_size: int = 64
    micro_batch: int | None = None
    compile: bool = False
    tau: float = 0.07
    threshold: float | str | None = None
    eval_group_size: int = 64
    label_tau: float | None = None
    cross_fit: int = 0
    exclude_duplicates: bool = True
    near_duplicates: bool = True
    require_evidence: bool = True
    max_bad_share: float | None = None
    standardise: bool = True
    tokenizer: str = "words"
    min_count: int = 1
    max_length: int = 64
    device: str = "auto"
    precision: str = "auto"
    random_state: int = 0

    def _validate(self) -> None:
        """Every parameter in its range; ConfigError names the first that is not."""
        whole = {
            "epochs": 1,
            "batch_size": 2,
            "dim": 2,
            "dim_word": 1,
            "dim_sim": 1,
            "min_count": 1,
            "max_length": 1,
            "eval_group_size": 2,
        }
        for name, least in {**whole, "random_state": 0}.items():
            check_whole(self.method_name, name, getattr(self, name), least)
        check_whole(self.method_name, "cross_fit", self.cross_fit, 0)
        if self.cross_fit == 1:
            raise ConfigError(f"cross_fit of {self.method_name} must be 0 for none, or at least 2 folds, found 1")
        for name in ("lr_update", "image_size"):
            check_whole(self.method_name, name, getattr(self, name), 1, none=True)
        check_whole(self.method_name, "micro_batch", self.micro_batch, 2, none=True)
        for name in ("lr", "tau", "grad_clip"):
            check_number(self.method_name, name, getattr(self, name), above=0)
        for name in ("image_drop", "text_drop"):
            check_number(self.method_name, name, getattr(self, name), least=0, below=1)
        check_number(self.method_name, "label_tau", self.label_tau, above=0, also=(None,))
        check_number(self.method_name, "weight_decay", self.weight_decay, least=0)
        check_number(self.method_name, "max_bad_share", self.max_bad_share, least=0, most=1, also=(None,))
        check_number(self.method_name, "threshold", self.threshold, least=0, most=1, also=("auto", None))
        for name in ("exclude_duplicates", "near_duplicates", "require_evidence", "standardise", "compile"):
            check_flag(self.method_name, name, getattr(self, name))
        check_choice(self.method_name, "tokenizer", self.tokenizer, KINDS)
        check_choice(self.method_name, "device", self.device, ("auto", "cpu", "cuda"))
        check_choice(self.method_name, "precision", self.precision, ("auto", "fp32", "bf16"))
        BACKBONES.entry(self.backbone)
        self._validate_encoders()
        self._device()

    def _validate_encoders(self) -> None:
        """Those that are given, and whether they go together."""
        from torch import nn

        from cleanpairs.encoders.tuned import parse_tune

        owner = self.method_name
        check_whole(owner, "lora_rank", self.lora_rank, 1)
        check_flag(owner, "gradient_checkpointing", self.gradient_checkpointing)
        check_number(owner, "encoder_lr", self.encoder_lr, above=0, also=(None,))
        for name in ("encoder", "text_encoder"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, (str, Path)) or not str(value)):
                raise ConfigError(f"{name} of {owner} must be a directory, a name on the hub or None, found {value!r}")
        if parse_tune(self.tune) is None:
            raise ConfigError(f"tune of {owner} must be head, lora, blocks:N or full, found {self.tune!r}")
        if self.tune != "head" and self.encoder is None:
            raise ConfigError(f"tune={self.tune!r} of {owner} needs an encoder to tune: name it, --encoder NAME")
        if self.image_transform is not None and not callable(self.image_transform):
            raise ConfigError(f"image_transform of {owner} must be callable or None, found {self.image_transform!r}")
        if isinstance(self.image_encoder, str):
            if self.image_encoder not in ("auto", "features"):
                IMAGE_ENCODERS.entry(self.image_encoder)
        elif not isinstance(self.image_encoder, nn.Module):
            raise ConfigError(
                f"image_encoder of {owner} must be a name or a torch module, found {self.image_encoder!r}"
            )
        if self.encoder is not None:
            given = self.tune == "head" and self.image_encoder == "features"
            if self.image_encoder != "auto" and not given:
                raise ConfigError(
                    f"encoder of {owner} looks at the images itself, found image_encoder={self.image_encoder!r} beside "
                    f"it: leave one out ('features', with tune='head', takes vectors that it has made before)"
                )
            if self.text_encoder not in (None, AUTO, WORDS):
                raise ConfigError(f"encoder of {owner} reads the captions itself: leave text_encoder out")
        pixels = isinstance(self.image_encoder, str) and self.image_encoder == "cnn"
        if (
            pixels
            and self.text_encoder not in (None, AUTO, WORDS)
            and (self.text_encoder == "features" or not takes_sentences(self.backbone))
        ):
            raise ConfigError(f"text_encoder of {owner} goes with vectors or a frozen image encoder, not with 'cnn'")

    def _device(self) -> str:
        import torch

        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device 'cuda' is not available here: use device='cpu' or 'auto'")
        return "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"

    def _precision(self) -> str:
        bf16 = self.precision == "bf16" or (self.precision == "auto" and self._device() == "cuda")
        return "bf16-mixed" if bf16 else "32-true"

    def _lr_update(self) -> int:
        return self.lr_update or max(1, self.epochs * 2 // 3)

    def _settings(self) -> TrainingSettings:
        return TrainingSettings(
            batch_size=self.batch_size,
            micro_batch=self.micro_batch,
            compile=self.compile,
            lr=self.lr,
            weight_decay=self.weight_decay,
            grad_clip=self.grad_clip,
            exclude_duplicates=self.exclude_duplicates,
            eval_group_size=self.eval_group_size,
            device=self._device(),
            precision=self._precision(),
            seed=self.random_state,
        )
