"""The settings of scorers, in groups: a class has those of the groups that it inherits, and its own.

What each setting is: docs/methods/index.md; ``_section`` of a group is its heading in recipes. Below all is what
scikit-learn asks of an estimator, without importing it: that takes as long as half of torch.
"""

import inspect
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.parameters import LARGEST_SEED, check_whole, choice, number, whole
from cleanpairs.core.registry import nearest
from cleanpairs.data import load_pairs
from cleanpairs.encoders.tokenizer import KINDS


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

    def predict(self: Any, pairs: Any) -> np.ndarray:
        """Which pairs are mismatched.

        Parameters
        ----------
        pairs : n pairs
            As :func:`cleanpairs.load_pairs` takes them.

        Returns
        -------
        (n,) bool
            Pairs of ``fit`` are judged by its correspondence and threshold. Others are judged by :meth:`score_pairs`
            and :meth:`own_threshold`, which goes by all of them together. Quarantined pairs count as mismatched.
        """
        y, threshold = self._judged(load_pairs(pairs))
        return np.asarray(~(y >= threshold))

    def fit_predict(self: Any, pairs: Any, y: Any = None) -> np.ndarray:
        """(n,) bool: :meth:`predict` after :meth:`fit`."""
        pairs = load_pairs(pairs)
        return np.asarray(self.fit(pairs, y).predict(pairs))


def _check_seed(owner: str, name: str, value: Any) -> None:
    if not isinstance(value, np.random.Generator):
        check_whole(owner, name, value, 0, most=LARGEST_SEED, none=True)


@dataclass(kw_only=True, eq=False, repr=False)
class EncoderSettings(Estimator):
    """What reads the images and the captions."""

    _section: ClassVar[str] = "backbone"

    encoder: str | Path | None = None
    image_encoder: Any = "auto"  # a name, or a torch module
    text_encoder: str | Path | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class ScoringSettings(Estimator):
    """What is flagged, what refused."""

    _section: ClassVar[str] = "method"

    threshold: float | str | None = number(None, least=0, most=1, also=("auto", None))
    eval_group_size: int = whole(64, 2)
    require_dependence: bool = True
    max_bad_share: float | None = number(None, least=0, most=1, also=(None,))
    drop: str = ""


@dataclass(kw_only=True, eq=False, repr=False)
class RunSettings(Estimator):
    """What makes two runs alike, and where they take place."""

    _section: ClassVar[str] = "train"

    near_duplicates: bool = True
    device: str = choice("auto", "cpu", "cuda")
    random_state: Any = field(default=0, metadata={"check": _check_seed})


@dataclass(kw_only=True, eq=False, repr=False)
class ModelSettings(EncoderSettings):
    """The dual encoder that is trained, and what reads for it."""

    _section: ClassVar[str] = "backbone"

    backbone: str = "mlp"
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
    """How it is trained."""

    _section: ClassVar[str] = "train"

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
