"""The settings of scorers, in groups: a class has those of the groups that it inherits, and its own.

``_section`` of a group is its heading in recipes. Below all is what scikit-learn asks of an estimator. It is not
imported, as that takes as long as half of torch.
"""

import inspect
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from cleanpairs.core import ConfigError, nearest
from cleanpairs.core.parameters import LARGEST_SEED, check_whole, choice, number, text, whole
from cleanpairs.encoders.tokenizer import KINDS


def described(cls: type) -> str:
    """Return the docstring of a class, whose Parameters are followed by those that it inherits."""
    section = re.compile(r"^Parameters\n-+\n(.*?)(?=^\w[\w ]*\n-+\n|\Z)", re.M | re.S)
    entries: dict[str, str] = {}
    for kind in cls.__mro__:
        match = section.search(inspect.cleandoc(vars(kind).get("__doc__") or ""))
        for entry in re.findall(r"^\S.*?(?=^\S|\Z)", match[1] if match else "", re.M | re.S):
            if not {name := entry.split(" : ")[0]}.isdisjoint(vars(kind).get("__annotations__", ())):
                entries.setdefault(name, entry.strip())
    own = section.sub("", inspect.cleandoc(cls.__doc__ or "")).strip()
    head, *sections = re.split(r"\n\n(?=\w+\n-+\n)", own)
    if entries:
        head += "\n\nParameters\n----------\n" + "\n\n".join(entries.values())
    return "\n\n".join([head, *sections]) + "\n"


class Estimator:
    """Base of all estimators, which follow scikit-learn: the constructor only stores its parameters.

    Notes
    -----
    In a ``GridSearchCV`` the pairs are Pairs, a DataFrame, a Table or a list of dicts, which scikit-learn can divide.
    Load a path, a Dataset or a dict by :func:`cleanpairs.load_pairs` first.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Describe the inherited parameters too."""
        super().__init_subclass__(**arguments)
        cls.__doc__ = described(cls)

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        return {name: p.default for name, p in sorted(inspect.signature(cls).parameters.items())}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters.

        Parameters
        ----------
        deep : bool
            scikit-learn's. There are no estimators within this one.

        Returns
        -------
        dict
            Name -> value, by name.
        """
        return {name: getattr(self, name) for name in self._defaults()}

    def set_params(self, **params: Any) -> Self:
        """Set some of the parameters.

        Parameters
        ----------
        **params
            New values by name. They are checked by ``fit``.

        Returns
        -------
        Estimator
            This one.

        Raises
        ------
        ConfigError
            There is no parameter of this name.
        """
        defaults = self._defaults()
        for name, value in params.items():
            if name not in defaults:
                raise ConfigError(f"{type(self).__name__} has no parameter {name!r}{nearest(name, list(defaults))}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        """The parameters that are not the defaults."""
        own = self.get_params()
        changed = [f"{k}={own[k]!r}" for k, default in self._defaults().items() if repr(own[k]) != repr(default)]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn's base class, but that pairs are no table of numbers."""
        from sklearn.base import BaseEstimator

        tags = BaseEstimator.__sklearn_tags__(self)
        tags.input_tags.two_d_array, tags.no_validation, tags.target_tags.required = False, True, False
        return tags

    def _repr_html_(self) -> str | None:
        """Return the diagram of a notebook. None, for the text, after ``sklearn.set_config(display="text")``."""
        from sklearn import get_config
        from sklearn.utils import estimator_html_repr

        return str(estimator_html_repr(self)) if get_config()["display"] == "diagram" else None


def _check_seed(owner: str, name: str, value: Any) -> None:
    if isinstance(value, np.random.RandomState):
        raise ConfigError(f"{name} of {owner} must be a whole number, numpy.random.default_rng(...) or None")
    if not isinstance(value, np.random.Generator):
        check_whole(owner, name, value, 0, most=LARGEST_SEED, none=True)


def check_model(owner: str, name: str, value: Any) -> None:
    """A directory, a name on the hub, or None."""
    if value is not None and (not isinstance(value, (str, Path)) or not str(value)):
        raise ConfigError(f"{name} of {owner} must be a directory, a name on the hub or None, found {value!r}")


@dataclass(kw_only=True, eq=False, repr=False)
class EncoderSettings(Estimator):
    """What reads the images and the captions.

    Parameters
    ----------
    encoder : str or Path, optional
        CLIP, SigLIP or another encoder of both sides, in place of backbone, image encoder and learned words.
        It is a directory, a name on the Hugging Face hub, or ``open_clip:MODEL/PRETRAINED``.

    image_encoder : str or torch.nn.Module
        "auto": vectors of the data where it has them, else "efficientnet_lite0". "efficientnet_lite0": frozen.
        "features": vectors of the data. A torch module is frozen.

    text_encoder : str or Path, optional
        With "words", words are learned from the captions. With "auto", vectors of the installed sentence encoder join
        them, where that knows the language. With "features", the captions' vectors of the data are taken. Else it is a
        frozen encoder: a directory, or a name on the hub. None means "words". But None and "auto" take the data's
        vectors, where it has those of both sides.
    """

    _section: ClassVar[str] = "backbone"

    encoder: str | Path | None = field(default=None, metadata={"check": check_model})
    image_encoder: Any = "auto"  # a name, or a torch module
    text_encoder: str | Path | None = field(default=None, metadata={"check": check_model})


@dataclass(kw_only=True, eq=False, repr=False)
class ScoringSettings(Estimator):
    """What is flagged, and what is refused.

    Parameters
    ----------
    threshold : float in [0, 1], "auto" or None
        Pairs with a correspondence below it are flagged. "auto": the density minimum between the two modes, or 0 where
        there is only a high one and no pair looks mismatched. None: the method's own.

    eval_group_size : int
        Pairs in a group of an evaluation pass. Larger groups lower the probability of every pair.

    require_dependence : bool
        Refuse pairs whose images and captions do not depend on each other.

    max_bad_share : float in [0, 1], optional
        Share of the pairs that may be quarantined. None: ``CLEANPAIRS_MAX_BAD_SHARE``, or 0.2.

    drop : str
        Names of filters that quarantine more pairs, with commas between them. Some filters always do.
    """

    _section: ClassVar[str] = "method"

    threshold: float | str | None = number(None, least=0, most=1, also=("auto", None))
    eval_group_size: int = whole(64, 2)
    require_dependence: bool = True
    max_bad_share: float | None = number(None, least=0, most=1, also=(None,))
    drop: str = ""


@dataclass(kw_only=True, eq=False, repr=False)
class RunSettings(Estimator):
    """What makes two runs alike, and where they take place.

    Parameters
    ----------
    near_duplicates : bool
        Copies of an image in other sizes, qualities or formats count as one image, as equal bytes do.

    device : {"auto", "cpu", "cuda"}
        "auto": a GPU where there is one.

    random_state : int, numpy.random.Generator or None
        Seed of everything. A generator, and None, draw one at ``fit``, which is then ``random_state_``.
    """

    _section: ClassVar[str] = "train"

    near_duplicates: bool = True
    device: str = choice("auto", "cpu", "cuda")
    random_state: Any = field(default=0, metadata={"check": _check_seed})


@dataclass(kw_only=True, eq=False, repr=False)
class ModelSettings(EncoderSettings):
    """The dual encoder that is trained, and what reads for it.

    Parameters
    ----------
    backbone : str
        Dual encoder: "mlp", "vse_inf", "saf", "sgr" or "sgraf".

    image_size : int, optional
        Side in pixels of the square that the image encoder sees. None: its own.

    image_transform : callable, optional
        For a torch module as ``image_encoder``: turns a list of Pillow's RGB images into its pixels.

    tune : str
        What is trained of ``encoder``: "head" (frozen towers), "lora", "blocks:N" (the last N) or "full".

    encoder_lr : float, optional
        Learning rate of the trained weights of ``encoder``. None: 2e-4 for LoRA, else 1e-5.

    lora_rank : int
        Rank of LoRA's matrices.

    gradient_checkpointing : bool
        Recompute the activations of the towers: less memory, more time.

    dim : int
        Dimensions of the joint embedding.

    dim_word : int
        Dimensions of a word's embedding.

    dim_sim : int
        Dimensions of the similarity vectors of backbones that compare words with regions.

    dropout : float in [0, 1)
        Dropout in the heads of "mlp".

    image_drop : float in [0, 1)
        Share of the regions that are left out at random in training.

    text_drop : float in [0, 1)
        Share of the words that are left out at random in training.

    standardise : bool
        Centre and scale the input vectors by dimension.

    tokenizer : {"words", "characters", "subword"}
        What a token is. "words" takes characters where a script has no spaces.

    min_count : int
        Words that occur less often are not in the vocabulary.

    max_length : int
        Captions are cut after so many words, or four times as many characters.
    """

    _section: ClassVar[str] = "backbone"

    backbone: str = text("mlp")
    image_size: int | None = whole(None, 1, none=True)
    image_transform: Any = None
    tune: str = "head"
    encoder_lr: float | None = number(None, above=0, also=(None,))
    lora_rank: int = whole(8, 1)
    gradient_checkpointing: bool = False
    dim: int = whole(256, 2)
    dim_word: int = whole(300, 1)
    dim_sim: int = whole(64, 1)
    dropout: float = number(0.4, least=0, below=1)
    image_drop: float = number(0.3, least=0, below=1)
    text_drop: float = number(0.2, least=0, below=1)
    standardise: bool = True
    tokenizer: str = choice(*KINDS)
    min_count: int = whole(1, 1)
    max_length: int = whole(64, 1)


@dataclass(kw_only=True, eq=False, repr=False)
class FitSettings(Estimator):
    """How it is trained.

    Parameters
    ----------
    epochs : int
        Epochs of the last stage, whose model is kept.

    lr : float
        Learning rate of AdamW.

    lr_update : int, optional
        The rate falls to a tenth after each so many epochs of the last stage, without its warm-up. None: once, after
        two thirds of all.

    lr_decay : {"steps", "cosine"}
        How the rate falls after the warm-up: as ``lr_update`` says, or along half a cosine.

    weight_decay : float
        Weight decay of AdamW.

    grad_clip : float
        Largest norm of the gradient.

    batch_size : int
        Pairs in a step, of all processes together.

    micro_batch : int, optional
        Pairs that go through the towers at once, where a batch is too large for memory.

    tau : float
        Temperature of the matching probability.

    exclude_duplicates : bool
        Pairs with the same image or text are no negatives of each other.

    precision : {"auto", "fp32", "bf16"}
        "auto": bf16 on a GPU, fp32 on a CPU.
    """

    _section: ClassVar[str] = "train"

    epochs: int = whole(18, 1)
    lr: float = number(5e-4, above=0)
    lr_update: int | None = whole(None, 1, none=True)
    lr_decay: str = choice("steps", "cosine")
    weight_decay: float = number(1e-4, least=0)
    grad_clip: float = number(2.0, above=0)
    batch_size: int = whole(64, 2)
    micro_batch: int | None = whole(None, 2, none=True)
    tau: float = number(0.07, above=0)
    exclude_duplicates: bool = True
    precision: str = choice("auto", "fp32", "bf16")
