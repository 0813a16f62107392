r"""From a score of any kind to a noise rate and a probability, by the same score of pairs that are known to be wrong.

The null pairs are image i with the caption of a random j. With F the distribution functions of N observed and K null
scores,

    F(t) / F_null(t) = pi + b q^4    over t between the quantiles q = .05 and .9 of the null, by least squares: where
                                     right pairs have no mass, the ratio of the two tails is the share of wrong ones
                                     (Storey, JRSS B 2002), and the fit takes it there
    P(wrong | s) = pi f_null(s) / f(s)    the ratio of densities by isotonic regression of which scores are null, the
                                          maximum-likelihood estimate among those that fall with s; its log odds are
                                          a mean over bootstrap draws (bagging), which takes off its steps
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.isotonic import IsotonicRegression

from cleanpairs.ops.normalised_similarity import Background, cosines

__all__ = ["LEAST_PAIRS", "Calibration", "noise_rate", "null_pairs", "scores_and_null"]

LEAST_PAIRS = 80  # of fewer nothing is known
NULLS = 4  # null pairs, for each pair
MOST_NULLS = 100_000
LOW, HIGH = 0.05, 0.9  # quantiles of the null between which the tails are compared
LEAST = 0.003  # no score is surer than this
KNOTS = 2001
DRAWS, MOST_DRAWN = 20, 20_000  # of the bootstrap; pairs above which the ratio is smooth without
ORDER = 0.1  # logits between the lowest and the highest score: what is equally likely keeps its order


def null_pairs(image_group: np.ndarray, text_group: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows (K,) of images and (K,) of captions that belong to different pairs, images and texts, of N pairs."""
    n, rng = len(image_group), np.random.default_rng(seed)
    orders = [rng.permutation(n) for _ in range(NULLS)]
    image, text = np.concatenate(orders), np.concatenate([np.roll(order, 1) for order in orders])
    different = (image_group[image] != image_group[text]) & (text_group[image] != text_group[text])
    return image[different][:MOST_NULLS], text[different][:MOST_NULLS]


def scores_and_null(pairs: Background, kind: str, tau: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Similarities (N,) of the pairs among themselves, and of null pairs (K,); cosines where ``kind`` is empty."""
    image, text = null_pairs(pairs.image_group, pairs.text_group, seed)
    observed = cosines(pairs.images, pairs.texts).astype(np.float64)
    null = cosines(pairs.images[image], pairs.texts[text]).astype(np.float64)
    if kind:
        of_image, of_text = pairs.shared(pairs, kind=kind, tau=tau)
        observed -= (of_image + of_text) / 2
        null -= (of_image[image] + of_text[text]) / 2
    return observed, null


@dataclass(frozen=True)
class Calibration:
    """What scores mean: ``noise_rate`` in [0, 1], and the probability of being right at any score.

    ``knots`` (k,) rising scores; ``logits`` (k,) of the probability there, linear between them.
    """

    noise_rate: float
    knots: np.ndarray
    logits: np.ndarray

    @classmethod
    def of(cls, observed: np.ndarray, null: np.ndarray, rate: float | None = None) -> Calibration | None:
        """By N observed and K null scores; None where there are fewer than :data:`LEAST_PAIRS` of either.

        ``rate``: the noise rate where it is known better.
        """
        if min(len(observed), len(null)) < LEAST_PAIRS:
            return None
        rate = noise_rate(observed, null) if rate is None else rate
        score = np.concatenate([observed, null])
        knots = np.unique(np.quantile(score, np.linspace(0, 1, KNOTS)))
        rng, logits = np.random.default_rng(0), np.zeros(len(knots))
        draws = DRAWS if len(observed) <= MOST_DRAWN else 1
        for _ in range(draws):
            own, other = (s if draws == 1 else s[rng.integers(0, len(s), len(s))] for s in (observed, null))
            wrong = np.clip(rate * _ratio(own, other, knots), LEAST, 1 - LEAST)
            logits -= np.log(wrong / (1 - wrong)) / draws
        return cls(rate, knots, logits + ORDER * np.linspace(-0.5, 0.5, len(knots)))

    def __call__(self, score: np.ndarray) -> np.ndarray:
        """The probability (n,) float64 of being right, rising with the score (n,)."""
        width = max(float(self.knots[-1] - self.knots[0]), 1e-12)
        beyond = np.clip(score, self.knots[0] - width, self.knots[-1] + width) - np.clip(
            score, self.knots[0], self.knots[-1]
        )
        return np.asarray(1 / (1 + np.exp(-np.interp(score, self.knots, self.logits) - ORDER * beyond / width)))

    def threshold(self) -> float:
        """The score below which a pair is more likely wrong; -inf where none is."""
        below = np.flatnonzero(self.logits < 0)
        if not len(below):
            return -np.inf
        i = int(below[-1])
        if i + 1 == len(self.knots):
            return float(np.nextafter(self.knots[i], np.inf))
        return float(np.interp(0, self.logits[i : i + 2], self.knots[i : i + 2]))


def _ratio(observed: np.ndarray, null: np.ndarray, at: np.ndarray) -> np.ndarray:
    """f_null / f_observed (k,) at rising scores, falling."""
    is_null = np.repeat([0.0, 1.0], [len(observed), len(null)])
    weight = np.repeat([1 / len(observed), 1 / len(null)], [len(observed), len(null)])
    model = IsotonicRegression(increasing=False, out_of_bounds="clip")
    p = model.fit(np.concatenate([observed, null]), is_null, sample_weight=weight).predict(at)
    return np.asarray(p / np.maximum(1 - p, 1e-12))


def noise_rate(observed: np.ndarray, null: np.ndarray) -> float:
    """pi in [0, 1]: the ratio of the lower tails of N observed and K null scores, at q = 0."""
    q = np.linspace(LOW, HIGH, 86)
    cuts, observed, null = np.quantile(null, q), np.sort(observed), np.sort(null)
    below = np.searchsorted(observed, cuts, side="right") / len(observed)
    level = np.searchsorted(null, cuts, side="right") / len(null)
    # The ratio's variance falls as 1 / q; right pairs have more and more mass, never less.
    slope, start = np.polyfit(q**4, below / level, 1, w=np.sqrt(q))
    return float(np.clip(start if slope > 0 else np.average(below / level, weights=q), 0, 1))
