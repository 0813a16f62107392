"""What scikit-learn expects of an estimator beyond ``fit``: flags, figures to decide by, and one to compare by."""

from __future__ import annotations

from typing import Any

import numpy as np

from cleanpairs.core.errors import ConfigError
from cleanpairs.data import load_pairs
from cleanpairs.data.dataset_objects import as_dataset


class SklearnConventions:
    """A mixin for scorers: n pairs go in as :func:`cleanpairs.load_pairs` takes them.

    In a ``GridSearchCV`` they are a DataFrame or a list of dicts, which scikit-learn can divide.
    """

    def _draw_seed(self: Any) -> None:
        """A seed for ``random_state=None``, or out of a Generator; it is kept there."""
        if self.random_state is None or isinstance(self.random_state, np.random.Generator):
            self.random_state = int(np.random.default_rng(self.random_state).integers(2**31))

    def decision_function(self: Any, pairs: Any) -> np.ndarray:
        """How far each pair is below the threshold, (n,) float32: mismatched above 0; NaN where quarantined."""
        return np.asarray(self.threshold_ - self.score_pairs(pairs), np.float32)

    def predict(self: Any, pairs: Any) -> np.ndarray:
        """(n,) bool: which pairs are mismatched; those that are quarantined are."""
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
            raise ConfigError(f"y must hold both matched and mismatched among {len(pairs)} pairs; found {truth.shape}")
        from cleanpairs.scoring.evaluate import detection

        return float(detection(self.score_pairs(pairs), truth, self.threshold_).auroc)

    def transform(self: Any, dataset: Any) -> Any:
        """A ``datasets.Dataset`` of one pair a row with a column ``correspondence``; of other data the (n,) scores."""
        scores = self.score_pairs(dataset)
        found = as_dataset(dataset)
        return scores if not hasattr(found, "add_column") else found.add_column("correspondence", scores)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.two_d_array, tags.no_validation, tags.target_tags.required = False, True, False
        return tags
