"""What scikit-learn asks of an estimator, without importing it: that takes as long as half of torch.

``clone``, pipelines and searches take such an estimator: it has parameters, tags, and a picture for notebooks.
"""

from __future__ import annotations

import inspect
from typing import Any, Self

import numpy as np

from cleanpairs.core.errors import ConfigError
from cleanpairs.core.registry import nearest
from cleanpairs.data import load_pairs
from cleanpairs.data.readers import as_dataset


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

    def _draw_seed(self: Any) -> None:
        """A seed for ``random_state=None``, or out of a Generator; it is kept there."""
        if self.random_state is None or isinstance(self.random_state, np.random.Generator):
            self.random_state = int(np.random.default_rng(self.random_state).integers(2**31))

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
