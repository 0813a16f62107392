"""The settings of scorers, in groups: a class has those of the groups that it inherits, and its own.

A scorer is a dataclass that adds its own settings to these and may change their defaults: the constructor, which only
stores, is made from the fields. ``section`` of a group is the heading under which recipes have its settings. Below all
is what scikit-learn asks of an estimator for ``clone``, pipelines, searches and notebooks, without importing it: that
takes as long as half of torch.
"""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.parameters import choice, number, whole
from cleanpairs.core.registry import BACKBONES, IMAGE_ENCODERS, nearest
from cleanpairs.data import load_pairs
from cleanpairs.data.readers import as_dataset
from cleanpairs.encoders.tokenizer import KINDS
from cleanpairs.estimators.encoders import AUTO, WORDS, takes_sentences

if TYPE_CHECKING:
    from cleanpairs.estimators.cleaner import PairCleaner


class Estimator:
    """Parameters by the names of the constructor, which only stores; n pairs go in as :func:`cleanpairs.load_pairs`
    takes them. In a ``GridSearchCV`` they are Pairs, a DataFrame, a Table or a list of dicts, which scikit-learn can
    divide; of a path, a Dataset or a dict, what ``load_pairs`` makes of it.
    """

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        return {name: p.default for name, p in sorted(inspect.signature(cls).parameters.items())}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Name -> value of every parameter, by name; ``deep`` is scikit-learn's, and there is nothing below."""
        return {name: getattr(self, name) for name in self._defaults()}

    def set_params(self, **params: Any) -> Self:
        """Set some of the parameters; ConfigError for one that is none."""
        known = self._defaults()
        for name, value in params.items():
            if name not in known:
                raise ConfigError(f"{type(self).__name__} has no parameter {name!r}{nearest(name, list(known))}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """The parameters that are not the defaults."""
        own = self.get_params()
        changed = [f"{k}={own[k]!r}" for k, default in self._defaults().items() if repr(own[k]) != repr(default)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """As scikit-learn's base class has them, but that pairs are no table of numbers."""
        from sklearn.base import BaseEstimator

        tags = BaseEstimator.__sklearn_tags__(self)
        tags.input_tags.two_d_array, tags.no_validation, tags.target_tags.required = False, True, False
        return tags

    def _repr_html_(self) -> str | None:
        """The diagram of a notebook; None, for the text, after ``sklearn.set_config(display="text")``."""
        from sklearn import get_config
        from sklearn.utils import estimator_html_repr

        return str(estimator_html_repr(self)) if get_config()["display"] == "diagram" else None

    def decision_function(self: Any, pairs: Any) -> np.ndarray:
        """How far each pair is below the threshold, (n,) float32: mismatched above 0; NaN where quarantined.

        The threshold is :meth:`own_threshold`'s, which goes by all these pairs together, as a model knows those that it
        was trained on better; else that of ``fit``. The same pair among others may so be judged otherwise; its score
        (:meth:`score_pairs`) is the same.
        """
        self._fitted()
        found, scores = self.scored(pairs)
        return np.asarray(self.applied_threshold(self.threshold_of(found, scores)) - scores, np.float32)

    def predict(self: Any, pairs: Any) -> np.ndarray:
        """(n,) bool: which pairs are mismatched, by :meth:`decision_function`; those that are quarantined are."""
        return ~(self.decision_function(pairs) <= 0)

    def fit_predict(self: Any, pairs: Any, y: Any = None) -> np.ndarray:
        """(n,) bool, as :meth:`predict`, by the correspondence that ``fit`` gives these pairs themselves."""
        return np.asarray(~(self.fit(pairs, y).correspondence_ >= self.threshold_))

    def score(self: Any, pairs: Any, y: Any = None) -> float:
        """AUROC of detection against ``y`` (n,) bool (or the data's ``true_mismatch``); retrieval where none is known.

        Retrieval is the mean of R@1, R@5 and R@10 of both directions, in [0, 1].

        Raises ConfigError: ``y`` has another length, or only one class.
        """
        pairs = load_pairs(pairs)
        truth = pairs.true_mismatch if y is None else np.asarray(y, bool)
        if truth is None:
            return float(self.evaluate(pairs).rsum) / 600
        if truth.shape != (len(pairs),) or truth.all() or not truth.any():
            found = f"{truth.size} values, {int(truth.sum())} of them mismatched"
            raise ConfigError(f"y must hold both matched and mismatched among {len(pairs)} pairs; found {found}")
        from cleanpairs.scoring.evaluate import detection

        return float(detection(self.score_pairs(pairs), truth, self.threshold_).auroc)

    def transform(self: Any, dataset: Any) -> Any:
        """A ``datasets.Dataset`` of one pair a row with a column ``correspondence``; of other data the (n,) scores."""
        scores = self.score_pairs(dataset)
        found = as_dataset(dataset)
        return scores if not hasattr(found, "add_column") else found.add_column("correspondence", scores)


@dataclass(kw_only=True, eq=False, repr=False)
class EncoderSettings(Estimator):
    """What reads the images and the captions.

    - ``image_encoder``: ``auto`` (vectors of the data where it has them, else ``efficientnet_lite0``),
      ``efficientnet_lite0`` (frozen), ``cnn`` (trained from the pixels), ``features``; or a module, which is frozen
    - ``encoder``: both towers of a CLIP or SigLIP model, a directory or a name on the hub, in place of ``backbone``,
      ``image_encoder`` and the learned words
    - ``text_encoder``: ``words`` (or None): learned from the captions. ``auto``: beside them vectors of the sentence
      encoder that comes with the installation, where it knows the captions' language. With both (None and ``auto``),
      the data's vectors are taken instead where it brings those of both sides and ``image_encoder`` is "auto" or
      "features". A directory or a name on the hub: those of another frozen encoder, like a sentence-transformers model;
      the backbones ``mlp`` and ``vse_inf`` take both, others these alone. ``features``: the captions' vectors of the
      data
    """

    section: ClassVar[str] = "backbone"

    encoder: str | Path | None = None
    image_encoder: Any = "auto"
    text_encoder: str | Path | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class ScoringSettings(Estimator):
    """What is flagged, what refused.

    - ``threshold``: pairs with a correspondence below it are flagged; "auto" takes the density minimum between the two
      modes; None is the method's own
    - ``eval_group_size``: pairs in a group of an evaluation pass: the more, the lower the probability of every pair
    - ``label_tau``: temperature of the label's probability; the training's, or the pretrained model's, when None
    - ``require_evidence``: refuse pairs whose images and captions do not depend on each other; see
      :mod:`cleanpairs.estimators.refusal`
    - ``max_bad_share`` float in [0, 1]: more of the pairs may not be quarantined; CLEANPAIRS_MAX_BAD_SHARE, or 0.2,
      when None
    - ``drop``: filters that set pairs aside beside those that always do; see
      :func:`cleanpairs.data.filters.chosen_filters`
    """

    section: ClassVar[str] = "method"

    threshold: float | str | None = number(None, least=0, most=1, also=("auto", None))
    eval_group_size: int = whole(64, 2)
    label_tau: float | None = number(None, above=0, also=(None,))
    require_evidence: bool = True
    max_bad_share: float | None = number(None, least=0, most=1, also=(None,))
    drop: str = ""


@dataclass(kw_only=True, eq=False, repr=False)
class RunSettings(Estimator):
    """What makes two runs alike, and where they take place.

    - ``near_duplicates``: one picture in several sizes, qualities or formats is one image, as the same bytes are; see
      :mod:`cleanpairs.data.duplicates`
    - ``device`` {"auto", "cpu", "cuda"}
    - ``random_state``: seed of everything; of a generator, or where it is None, one is drawn at ``fit``, and kept here
    """

    section: ClassVar[str] = "train"

    near_duplicates: bool = True
    device: str = choice("auto", "cpu", "cuda")
    random_state: int = whole(0, 0)


@dataclass(kw_only=True, eq=False, repr=False)
class ModelSettings(Estimator):
    """The dual encoder that is trained.

    - ``backbone``: dual encoder; see ``cleanpairs.core.registry.BACKBONES``
    - ``image_size``: side in pixels of the square that the image encoder sees; its own default when None
    - ``image_transform`` callable: for a module as ``image_encoder``: a list of B RGB images of Pillow to its pixels
      (B, 3, H, W)
    - ``tune``: what of ``encoder`` is trained: ``head`` (frozen towers, whose vectors are computed once, and a small
      head on each), ``lora`` (adapters and heads), ``blocks:N`` (the last N blocks of both towers, and heads), ``full``
    - ``encoder_lr``: learning rate of the weights of ``encoder`` that are trained; by ``tune`` when None (2e-4 for
      LoRA, else 1e-5)
    - ``lora_rank``: rank of LoRA's matrices
    - ``gradient_checkpointing``: in the towers: more time, less memory
    - ``dim``, ``dim_word``: joint embedding and word embedding
    - ``dim_sim``: similarity vectors of the backbones that compare words with regions
    - ``image_drop``, ``text_drop`` float in [0, 1): size augmentation: share of regions and of words left out at random
      in training
    - ``standardise``: input vectors are centred and scaled per dimension
    - ``tokenizer`` {"words", "characters", "subword"}: what a token of a caption is; see
      :mod:`cleanpairs.encoders.tokenizer`. Scripts without spaces are cut into characters by "words" too; "subword"
      learns frequent pieces
    - ``min_count``, ``max_length``: vocabulary: least occurrences of a token; tokens after which a caption is cut
      (characters: four times as many)
    """

    section: ClassVar[str] = "backbone"

    backbone: str = "vse_inf"
    image_size: int | None = whole(None, 1, none=True)
    image_transform: Any = None
    tune: str = "head"
    encoder_lr: float | None = number(None, above=0, also=(None,))
    lora_rank: int = whole(8, 1)
    gradient_checkpointing: bool = False
    dim: int = whole(256, 2)
    dim_word: int = whole(300, 1)
    dim_sim: int = whole(64, 1)
    image_drop: float = number(0.3, least=0, below=1)
    text_drop: float = number(0.2, least=0, below=1)
    standardise: bool = True
    tokenizer: str = choice(*KINDS)
    min_count: int = whole(1, 1)
    max_length: int = whole(64, 1)


@dataclass(kw_only=True, eq=False, repr=False)
class FitSettings(Estimator):
    """How it is trained.

    - ``epochs``: epochs of the last (or only) stage, whose model is kept
    - ``lr``, ``lr_update``, ``weight_decay``, ``grad_clip``, ``batch_size``: AdamW; in the last stage the rate falls to
      a tenth after every ``lr_update`` epochs behind the warm-up (when None: once, after two thirds of all epochs)
    - ``micro_batch``: pairs that go through the towers at once, on each process, where a batch is too large for the
      memory (gradient cache): the same loss of the whole batch, for one more forward pass. All when None. See
      docs/scale.md
    - ``compile``: compile the towers by ``torch.compile``; where that fails they run as they are, and the log says so
    - ``tau``: temperature of the matching probability
    - ``exclude_duplicates``: pairs with the same image or text are no negatives of each other
    - ``precision`` {"auto", "fp32", "bf16"}: auto: bf16 on a GPU, fp32 on a CPU
    """

    section: ClassVar[str] = "train"

    epochs: int = whole(18, 1)
    lr: float = number(5e-4, above=0)
    lr_update: int | None = whole(None, 1, none=True)
    weight_decay: float = number(1e-4, least=0)
    grad_clip: float = number(2.0, above=0)
    batch_size: int = whole(64, 2)
    micro_batch: int | None = whole(None, 2, none=True)
    compile: bool = False
    tau: float = number(0.07, above=0)
    exclude_duplicates: bool = True
    precision: str = choice("auto", "fp32", "bf16")


def check_encoders(model: "PairCleaner") -> None:
    """The backbone and the encoders that are given, and whether they go together; ConfigError where they do not."""
    from torch import nn

    from cleanpairs.encoders.tuned import parse_tune

    owner = model.method_name
    BACKBONES.entry(model.backbone)
    for name in ("encoder", "text_encoder"):
        value = getattr(model, name)
        if value is not None and (not isinstance(value, (str, Path)) or not str(value)):
            raise ConfigError(f"{name} of {owner} must be a directory, a name on the hub or None, found {value!r}")
    if parse_tune(model.tune) is None:
        raise ConfigError(f"tune of {owner} must be head, lora, blocks:N or full, found {model.tune!r}")
    if model.tune != "head" and model.encoder is None:
        raise ConfigError(
            f"tune={model.tune!r} of {owner} needs an encoder to tune: name it, encoder=NAME (--encoder NAME)"
        )
    if model.image_transform is not None and not callable(model.image_transform):
        raise ConfigError(f"image_transform of {owner} must be callable or None, found {model.image_transform!r}")
    if isinstance(model.image_encoder, str):
        if model.image_encoder not in ("auto", "features"):
            IMAGE_ENCODERS.entry(model.image_encoder)
    elif not isinstance(model.image_encoder, nn.Module):
        raise ConfigError(f"image_encoder of {owner} must be a name or a torch module, found {model.image_encoder!r}")
    if model.encoder is not None:
        precomputed = model.tune == "head" and model.image_encoder == "features"
        if model.image_encoder != "auto" and not precomputed:
            raise ConfigError(
                f"encoder of {owner} looks at the images itself, found image_encoder={model.image_encoder!r} beside "
                f"it: leave one out ('features', with tune='head', takes vectors that it has made before)"
            )
        if model.text_encoder not in (None, AUTO, WORDS):
            raise ConfigError(f"encoder of {owner} reads the captions itself: leave text_encoder out")
    pixels = isinstance(model.image_encoder, str) and model.image_encoder == "cnn"
    named = model.text_encoder not in (None, AUTO, WORDS)
    if pixels and named and (model.text_encoder == "features" or not takes_sentences(model.backbone)):
        raise ConfigError(f"text_encoder of {owner} goes with vectors or a frozen image encoder, not with 'cnn'")
