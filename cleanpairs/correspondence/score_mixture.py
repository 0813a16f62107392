"""Several scores of a pair as one: by labels, where there are any, else by what the scores agree on."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from cleanpairs.core import DataError


@dataclass(frozen=True)
class ScoreMixture:
    """Weights (C,) of C scores. Each score becomes its normal quantile in the data of the fit, by quantiles of these,
    ``knots`` (C, K).
    """

    knots: np.ndarray
    weights: np.ndarray
    bias: np.ndarray  # (1,)

    @classmethod
    def of(cls, scores: np.ndarray, labels: np.ndarray | None = None) -> Self:
        """By scores (N, C), NaN where one is missing, and labels (N,): 1 for a matched pair, 0, or NaN where unknown.

        Labels are fitted by a logistic regression. Without labels one factor is fitted (Bartlett's weights): a score
        counts as much as it agrees with the others. Two scores count alike. Raises DataError: fewer than ten labels of
        either kind, or fewer than 80 pairs with all scores.
        """
        from sklearn.decomposition import FactorAnalysis
        from sklearn.linear_model import LogisticRegression

        whole, least = scores[np.isfinite(scores).all(axis=1)], 80
        if len(whole) < least:
            raise DataError(f"several scores are combined by {least} pairs or more, and {len(whole)} have all of them")
        knots = np.quantile(whole, np.linspace(0, 1, 201), axis=0).T
        z, single = _normal(scores, knots), np.zeros(1)
        if labels is not None:
            labelled = np.isfinite(labels) & np.isfinite(z).all(axis=1)
            counts, needed = np.bincount((labels[labelled] > 0.5).astype(int), minlength=2), 10
            if counts.min() < needed:
                raise DataError(
                    f"labels weigh several scores by {needed} matched and {needed} mismatched pairs or more, and there "
                    f"are {counts[1]} and {counts[0]}: label more, or leave label_column out"
                )
            model = LogisticRegression().fit(z[labelled], labels[labelled] > 0.5)
            return cls(knots, model.coef_[0], model.intercept_)
        z = z[np.isfinite(z).all(axis=1)]
        weights = np.ones(z.shape[1])
        if z.shape[1] > 2:
            factor = FactorAnalysis(1, random_state=0).fit(z)
            weights = factor.components_[0] / np.maximum(factor.noise_variance_, 1e-3)
            weights = weights * np.sign(weights[np.abs(weights).argmax()])
        return cls(knots, 2 * weights / max(float((z @ weights).std()), 1e-12), single)

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """(n,) float32 in [0, 1] of scores (n, C): the probability of a match where there were labels. NaN where one
        is missing.
        """
        from scipy.special import expit

        return np.asarray(expit(_normal(scores, self.knots) @ self.weights + self.bias[0]), np.float32)

    def describe(self, columns: tuple[str, ...]) -> str:
        """The columns with their shares of all weights."""
        shares = self.weights / np.abs(self.weights).sum()
        return ", ".join(f"{name} {share:.2f}" for name, share in zip(columns, shares, strict=True))


def _normal(scores: np.ndarray, knots: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri

    at = np.linspace(0, 1, knots.shape[1])
    middle = []
    for column, known in zip(scores.T, knots, strict=True):
        distinct, first, count = np.unique(known, return_index=True, return_counts=True)
        middle.append(np.interp(column, distinct, at[first] + (count - 1) / 2 * at[1]))  # of ties their middle
    return np.asarray(ndtri(np.clip(np.stack(middle, axis=1), 0.001, 0.999)))
