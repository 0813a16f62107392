"""Plots of a fitted estimator; matplotlib is imported when one is asked for."""

from __future__ import annotations

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

    def plot_scores(self, *, truth: np.ndarray | None = None, ax: Axes | None = None) -> Axes:
        """Histogram of ``correspondence_`` with the threshold, and how the scores divide into wrong and right pairs.

        ``truth`` (N,) bool: True where a pair is known to be wrong: the bars are split by it; ``ax`` matplotlib Axes:
        to draw on; new ones by default.
        Raises NotFittedError: there is no ``correspondence_``; DataError: ``truth`` is of other pairs.
        """
        from cleanpairs.report.plots import plot_scores

        return plot_scores(self._of_fit("correspondence_"), self._of_fit("threshold_"), truth=truth, ax=ax)

    def plot_training(self, *, ax: Axes | None = None) -> Axes:
        """Loss and, where validated, rSum by epoch, out of ``history_``.

        Raises NotFittedError: there is no ``history_``.
        """
        from cleanpairs.report.plots import plot_training

        return plot_training(self._of_fit("history_"), ax=ax)

    def plot_pairs(
        self,
        pairs: Any,
        which: str | Sequence[int] = "worst",
        *,
        count: int = 8,
        axes: Sequence[Axes] | np.ndarray | None = None,
    ) -> np.ndarray:
        """Pictures with captions and scores, flagged ones framed in another colour and called so.

        - ``pairs`` like ``fit``'s: those of ``fit`` have their ``correspondence_``; others are scored
        - ``which`` {"worst", "borderline", "best", "random"}, or pair_ids: the lowest scores, those nearest to the
          threshold, the highest, or any
        - ``count``: how many at most
        - ``axes`` sequence of matplotlib Axes: one a pair; new ones, four in a row, by default

        Returns (k,) array of Axes.
        Raises ConfigError: unknown ``which``, no such pair, or too few axes; NotFittedError.
        """
        from cleanpairs.report.plots import plot_pairs

        threshold = self._of_fit("threshold_")
        pairs = load_pairs(pairs)
        y = getattr(self, "correspondence_", None)
        own = y is not None and pairs.source.fingerprint == self._of_fit("fingerprint_") and len(pairs) == len(y)
        scores: np.ndarray = y if own else self.score_pairs(pairs)  # type: ignore[attr-defined, assignment]
        return plot_pairs(pairs, scores, threshold, which=which, count=count, axes=axes)
