"""Plots of a fitted estimator; matplotlib is imported when one is asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cleanpairs.data import load_pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Plots:
    """``plot_scores``, ``plot_training`` and ``plot_pairs``, for whatever :class:`PairScorer` has after ``fit``."""

    def _of_fit(self, name: str) -> Any:
        if not hasattr(self, name):
            from cleanpairs.core.errors import NotFittedError  # which imports scikit-learn

            raise NotFittedError(
                f"this {type(self).__name__} has no {name}: it is not fitted, or from_pretrained loaded it, which "
                "leaves the training pairs behind; call fit"
            )
        return getattr(self, name)

    def plot_scores(self, *, truth: np.ndarray | None = None, ax: "Axes | None" = None) -> "Axes":
        """Histogram of ``correspondence_``; see :func:`cleanpairs.report.plots.plot_scores`. Raises NotFittedError."""
        from cleanpairs.report.plots import plot_scores

        return plot_scores(self._of_fit("correspondence_"), self._of_fit("threshold_"), truth=truth, ax=ax)

    def plot_training(self, *, ax: "Axes | None" = None) -> "Axes":
        """Loss and, where validated, rSum by epoch, out of ``history_``. Raises NotFittedError: there is none."""
        from cleanpairs.report.plots import plot_training

        return plot_training(self._of_fit("history_"), ax=ax)

    def plot_pairs(self, pairs: Any, which: str | Sequence[int] = "worst", *, count: int = 8) -> np.ndarray:
        """Pictures with captions and scores of ``pairs``, which are those of ``fit``, or are scored.

        See :func:`cleanpairs.report.plots.plot_pairs`, also for what is returned and raised; NotFittedError.
        """
        from cleanpairs.report.plots import plot_pairs

        threshold = self._of_fit("threshold_")
        pairs = load_pairs(pairs)
        y = getattr(self, "correspondence_", None)
        own = y is not None and pairs.source.fingerprint == self._of_fit("fingerprint_") and len(pairs) == len(y)
        scores: np.ndarray = y if own else self.score_pairs(pairs)  # type: ignore[attr-defined, assignment]
        return plot_pairs(pairs, scores, threshold, which=which, count=count)
