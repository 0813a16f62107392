r"""What scores mean: probabilities, the noise rate and a threshold, with intervals, by null scores, labels or both.

Null scores are those of pairs that are known to be mismatched, and in all else are like the observed ones. Of N
observed pairs a share pi is mismatched. With q the quantile of a score among the observed ones, the null's quantiles
have the density

    h(q) = f_0 / f_observed = g(q) / pi,    g(q) = P(mismatched | q),    pi = mean of g over q

g is a beta calibration (Kull et al., AISTATS 2017), falling in q, by maximum likelihood with a prior,

    g(q) = 1 / (1 + exp(-(a - b log q + c log(1 - q)))),    b, c > 0

Its log odds end at 7 either way. The lowest scores are taken to be mismatched pairs' (Storey, JRSS B 2002), so pi is an
upper estimate. Of a score whose scale means something the score at q may take the place of log(1 - q) (``by_score``).
Some matched pairs of a weak score s, in deviations of the null's, score as low as mismatched ones. Its odds change
little there, unlike log q:

    g(q) = 1 / (1 + exp(-(a - b log(1 + exp(s)) - c s)))

Null pairs are weighted by another figure's known moments: raking (Deville and Saerndal, JASA 1992).

Intervals come from the bootstrap of observed pairs and null. They are widened 1.3 times, since one model's scores share
its errors. By scores a draw has at most 8,192 pairs. Each draw adds the chance by which so many pairs hold more or
fewer mismatched ones.

Labels state whether some pairs are matched. They give the posterior of

    g(q) = least + (most - least) / (1 + exp(s (log(q / (1 - q)) + l)))

over a grid of l, s, least and most. A label is wrong with a known probability, small for a person's. Which pairs are
labelled may depend on their scores. The next ones to label (:meth:`Calibration.telling`) are those whose labels most
lower the variance of pi, and are most informative of the parameters.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cleanpairs.core import one_thread

BINS = 1000
_MIDDLE = (np.arange(BINS) + 0.5) / BINS
SUREST, ORDER = 7.0, 0.5  # of the log odds, and what they fall by from q = 0 to 1 anyway
EDGE = 1e-4  # quantiles nearer to 0 and 1 are alike
LEAST = 30  # null pairs


@dataclass(frozen=True)
class Estimate:
    """A share with its 95 % interval.

    Parameters
    ----------
    value, low, high : float in [0, 1]
        NaN where it is of nothing.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]" if np.isfinite(self.value) else "-"

    def joined(self, other: "Estimate") -> "Estimate":
        """The share of what one or the other holds for, of two that are independent."""
        pairs = ((self.value, other.value), (self.low, other.low), (self.high, other.high))
        return Estimate(*(1 - (1 - a) * (1 - b) for a, b in pairs))

    def determined(self, widest: float = 0.3) -> "Estimate":
        """The same. Undetermined where the interval is wider than ``widest``."""
        return self if self.high - self.low <= widest else UNDETERMINED


UNDETERMINED = Estimate(float("nan"), float("nan"), float("nan"))


@dataclass(frozen=True, eq=False)
class Calibration:
    """The function g.

    Parameters
    ----------
    theta : (3,) float
        a, b and c. Labels give five: the least and the most, too.
    draws : (B, 3) or (B, 5) float
        The same for each draw of the bootstrap.
    scores : (1000,) or (2, 1000) float, optional
        The features that g takes of scores, at the middle of each of 1,000 quantiles: minus the score as the third
        feature. A weak score has -log(1 + exp(s)) as the second one, too.
    unseen : float
        So many more pairs may be mismatched, whatever their scores.
    """

    theta: np.ndarray
    draws: np.ndarray = field(repr=False)
    scores: np.ndarray | None = field(default=None, repr=False)
    unseen: float = 0.0

    @property
    def rate(self) -> float:
        """pi, the mean of g."""
        return float(self.mismatched(_MIDDLE).mean())

    @property
    def separation(self) -> float:
        """The area under the ROC curve of matched against mismatched pairs that g expects, in [0, 1]."""
        from scipy.special import expit

        g = expit(_features(_MIDDLE, self.scores) @ self.theta)
        return float(((1 - g) * (np.cumsum(g) - g / 2)).sum() / max((1 - g).sum() * g.sum(), 1e-300))

    @property
    def counted(self) -> str:
        """What its shares are of, in words. Only a person's labels count captions of similar images."""
        return "are mismatched" if len(self.theta) == 5 else "fit no better than captions of other images"

    def mismatched(self, quantile: np.ndarray, theta: np.ndarray | None = None) -> np.ndarray:
        """P(mismatched) of quantiles.

        Parameters
        ----------
        quantile : (k,) float in [0, 1]
            Among the observed scores.
        theta : (d,) or (B, d) float, optional
            Other parameters than these.

        Returns
        -------
        (k,) or (B, k) float
        """
        return self._mismatched(quantile, _features(quantile, self.scores), self.theta if theta is None else theta)

    def _mismatched(self, quantile: np.ndarray, features: np.ndarray, theta: np.ndarray) -> np.ndarray:
        from scipy.special import expit

        odds = theta[..., :3] @ features.T
        least, most = (theta[..., 3:4], theta[..., 4:]) if theta.shape[-1] > 3 else (0.0, 1.0)
        g = expit(np.clip(odds, -SUREST, SUREST) + ORDER * (0.5 - np.asarray(quantile)))
        return np.asarray(least + (most - least) * g)

    def quantile(self, mismatched: np.ndarray) -> np.ndarray:
        """The quantile (k,) that has a probability (k,)."""
        q = np.concatenate([[EDGE], _MIDDLE, [1 - EDGE]])
        return np.asarray(np.interp(-np.asarray(mismatched, dtype=np.float64), -self.mismatched(q), q))

    def noise_rate(self, n: int) -> Estimate:
        """pi, of n pairs."""
        return self.shares(1 - self.mismatched((np.arange(n) + 0.5) / n), [n])[0]

    def shares(self, matched: np.ndarray, counts: Any) -> list[Estimate]:
        """Shares of mismatched ones among the best pairs.

        Parameters
        ----------
        matched : (k,) float
            P(matched) of all pairs. 0: surely mismatched.
        counts : (n,) int
            How many of them are the best, each.

        Returns
        -------
        list of Estimate
        """
        wrong, at = np.sort(1 - np.asarray(matched, dtype=np.float64)), np.asarray(counts, dtype=np.int64)
        q, sure = self.quantile(wrong), wrong == 1
        drawn = [_mismatch_count_quantile(np.where(sure, 1, p), at, z) / at for p, z in self._drawn(q)]
        value = np.cumsum(np.where(sure, 1, self.mismatched(q)))[at - 1] / at
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        high = np.minimum(high + self.unseen / at, 1)
        low = np.where(low * at < 1, 0, low)  # less than one pair is none
        ends = np.stack([value, np.minimum(low, value), np.maximum(high, value)], axis=1)
        return [Estimate(*each) for each in ends.tolist()]

    def below(self, matched: np.ndarray, flagged: np.ndarray) -> tuple[Estimate, Estimate]:
        """Precision and recall of flagging some pairs.

        Parameters
        ----------
        matched : (k,) float
            P(matched) of all pairs.
        flagged : (k,) bool
            Which are flagged.

        Returns
        -------
        Estimate, Estimate
            Pairs with 0 count as that, and by labels those with 1.
        """
        wrong, drawn = 1 - np.asarray(matched, dtype=np.float64), list[tuple[float, float]]()
        q, labelled = self.quantile(wrong), (wrong == 1) | (wrong == 0) & (len(self.theta) == 5)
        last = np.array([int(flagged.sum()), int((~flagged).sum())])
        for p, z in self._drawn(q):
            p = np.where(labelled, wrong, p)
            hit, missed = (
                float(_mismatch_count_quantile(p[some], n[None], z)[0]) if n else 0.0
                for some, n in zip((flagged, ~flagged), last, strict=True)
            )
            missed += self.unseen * (len(drawn) % 2)  # in half of the draws
            drawn.append((hit / max(last[0], 1), hit / max(hit + missed, 1e-12)))
        p = np.where(labelled, wrong, self.mismatched(q))
        hit, total = float(p[flagged].sum()), float(p.sum())
        precision, recall = zip(*drawn, strict=True)
        return with_interval(hit / max(last[0], 1), precision), with_interval(hit / max(total, 1e-12), recall)

    def _drawn(self, quantile: np.ndarray) -> Iterator[tuple[np.ndarray, float]]:
        """P(mismatched) (k,) of quantiles by each draw of the bootstrap, with a normal deviate of its own."""
        from scipy.special import ndtri

        order, features = np.random.default_rng(0).permutation(len(self.draws)), _features(quantile, self.scores)
        for theta, z in zip(self.draws, ndtri((order + 0.5) / max(len(order), 1)).tolist(), strict=True):
            yield self._mismatched(quantile, features, theta), z

    def purest(self, matched: np.ndarray, most: float) -> int:
        """The largest number of best pairs of which few are mismatched.

        Parameters
        ----------
        matched : (k,) float
            P(matched) of all pairs.
        most : float
            The expected share. The upper end of its interval is at most 1.5 times that, by labels at most that.

        Returns
        -------
        int
            0 where no such number is known.
        """
        n, slack = len(matched), 1.5 if len(self.theta) == 3 else 1.0
        counts = np.unique(np.linspace(min(LEAST, n), n, 400).astype(int))
        best = np.sort(-np.asarray(matched))
        counts = np.unique(np.searchsorted(best, best[counts - 1], side="right"))  # of equal ones all are kept
        for count, share in zip(counts[::-1].tolist(), self.shares(matched, counts)[::-1], strict=True):
            if share.value <= most and share.high <= slack * most:
                return int(count)
        return 0

    def best_share(self) -> float:
        """Share of the pairs with the lowest scores whose flagging is expected to come nearest to the best F1."""
        g = self.mismatched(_MIDDLE, self.draws)  # (B, 1000)
        f1 = np.cumsum(g, axis=1) / (np.arange(1, BINS + 1) + g.sum(axis=1, keepdims=True))
        best = np.maximum(f1.max(axis=1, keepdims=True), 1e-12)  # 0 where a draw has nothing mismatched
        return float(((f1 / best).mean(axis=0).argmax() + 1) / BINS)

    def telling(self, open_at: np.ndarray, count: int = 1, *, wrong_labels: float = 0.02, seed: int = 0) -> np.ndarray:
        """Which pairs to label next.

        Parameters
        ----------
        open_at : (k,) float
            Quantiles of the pairs that may be labelled.
        count : int
            How many of them.
        wrong_labels : float
            Expected share of wrong labels.
        seed : int
            Seed of the choice among equal ones.

        Returns
        -------
        (count,) int64
            Places in ``open_at``. They are chosen one after the other. The label of a chosen pair is drawn as the
            draws expect it, so that the next pair is not like it.
        """
        rng, bins = np.random.default_rng(seed), np.minimum((open_at * 200).astype(int), 199)
        at, free, chosen = (np.arange(200) + 0.5) / 200, np.ones(len(open_at), dtype=bool), []
        g = self.mismatched(at, self.draws)  # (B, 200)
        rate, answer = g.mean(axis=1), wrong_labels + (1 - 2 * wrong_labels) * g
        weight, uncertain = np.full(len(g), 1 / len(g)), _entropy(answer)
        for _ in range(min(count, len(open_at))):
            p = weight @ answer
            fall = ((weight * (rate - weight @ rate)) @ (answer - p)) ** 2 / (p * (1 - p))
            gain = _entropy(p) - weight @ uncertain
            worth = fall / max(fall.max(), 1e-12) + gain / max(gain.max(), 1e-12)
            best = int(np.where(np.bincount(bins[free], minlength=200) > 0, worth, -1).argmax())
            chosen.append(int(rng.choice(np.flatnonzero(free & (bins == best)))))
            free[chosen[-1]] = False
            weight = weight * (answer[:, best] if rng.random() < p[best] else 1 - answer[:, best])
            weight /= weight.sum()
        return np.array(chosen, dtype=np.int64)

    def shifted(self, rate: float) -> "Calibration":
        """With another a, for which the mean of g is ``rate``. Without intervals."""
        from scipy.optimize import brentq

        low, high, features = -200.0, 200.0, _features(_MIDDLE, self.scores)

        def above(a: float, least: float = 0.0) -> float:
            theta = np.array([a, *self.theta[1:]])
            return float(self._mismatched(_MIDDLE, features, theta).mean()) - least

        a = brentq(above, low, high, args=(np.clip(rate, above(low), above(high)),), xtol=1e-13)
        return replace(self, theta=np.array([a, *self.theta[1:]]), draws=np.empty((0, 3)))

    def moved(self, rate: float) -> "Calibration":
        """As :meth:`shifted`, with the draws. The log odds of each one's rate change as much."""
        from scipy.special import expit, logit

        by = logit(rate) - logit(self.rate)  # a may move far where no score lies, so its change does not suit the draws
        draws = [replace(self, theta=theta) for theta in self.draws]
        moved = [draw.shifted(expit(logit(draw.rate) + by)).theta for draw in draws]
        return replace(self.shifted(rate), draws=np.reshape(moved, self.draws.shape))

    def of_part(self, matched: np.ndarray) -> tuple["Calibration", float]:
        """The calibration of a part of the pairs, which holds another share of mismatched ones.

        Parameters
        ----------
        matched : (k,) float
            P(matched) of the part.

        Returns
        -------
        Calibration, float
            It differs by a factor of the odds, by EM: Saerens et al. (Neural Computation 2002). That of ``theta``
            comes second.
        """
        share = np.histogram(self.quantile(1 - np.asarray(matched, dtype=np.float64)), BINS, (0, 1))[0] / len(matched)
        g = self.mismatched(_MIDDLE, np.vstack([self.theta, self.draws]))  # (1 + B, 1000)
        before = g.mean(axis=1)
        odds = np.ones_like(before)
        for _ in range(100):
            p = g * odds[:, None] / (1 - g + g * odds[:, None])
            rate = np.maximum(p @ share, 1e-6)
            odds = rate / (1 - rate) * (1 - before) / before
        by = np.outer(np.log(odds), [1, 0, 0])
        return replace(self, theta=self.theta + by[0], draws=self.draws + by[1:]), float(odds[0])

    def to_dict(self) -> dict[str, Any]:
        """The fields as lists of numbers, by name."""
        return {name: np.asarray(value).tolist() for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "Calibration":
        """The calibration that :meth:`to_dict` stored."""
        fields: dict[str, Any] = {name: np.asarray(value, dtype=np.float64) for name, value in stored.items()}
        return cls(**fields)


def _entropy(p: np.ndarray) -> np.ndarray:
    return np.asarray(-p * np.log(p) - (1 - p) * np.log1p(-p))


def calibrate_by_labels(
    observed: np.ndarray, rows: np.ndarray, matched: np.ndarray, wrong: np.ndarray | float = 0.02, draws: int = 200
) -> Calibration:
    """The posterior of g by k labels, over two grids. The first covers the prior, and the second what the first leaves.

    Parameters
    ----------
    observed : (N,) float
        Scores of the pairs.
    rows, matched : (k,) int, (k,) bool
        Labelled pairs, and their labels.
    wrong : float, (k, 2) float, or (m, k, 2)
        Probability of a wrong label, of a matched and of a mismatched pair, or of m equally likely cases.
    draws : int
        Draws of the posterior.

    Returns
    -------
    Calibration
        The posterior mean, and the draws.
    """
    from scipy.special import expit, softmax

    wrong = np.broadcast_to(wrong, np.broadcast_shapes(np.shape(wrong), (1, len(rows), 2)))
    quantile, matched = positions(observed[rows], observed), np.asarray(matched, dtype=bool)
    q = np.clip(quantile, EDGE, 1 - EDGE)
    odds = np.log(q / (1 - q))
    least, most = np.array([0.0, 0.005, 0.02, 0.07]), np.array([1.0, 0.85, 0.7, 0.5, 0.0])
    likely = np.log(np.multiply.outer([0.4, 0.35, 0.2, 0.05], [0.36, 0.22, 0.18, 0.14, 0.1])).ravel()
    first, slope = wrong[..., 0], 1 - wrong.sum(axis=-1)  # of the probability that a pair is called mismatched
    first, slope = np.where(matched, 1 - first, first), np.where(matched, -slope, slope)
    few = np.arange(0, len(rows), 32)  # so many probabilities have a product above 0
    axes: tuple[np.ndarray, ...] = np.linspace(-6.0, 9.0, 21), np.linspace(-1.5, 2.5, 11)  # l and log s
    for _ in range(2):
        points = np.stack([x.ravel() for x in np.meshgrid(*axes, least, most, indexing="ij")])  # (4, P)
        points[3] = points[2:].max(axis=0)
        at, log_s = points[:2, :: len(likely), None]
        z = np.clip(-np.exp(log_s) * (odds + at), -SUREST, SUREST) + ORDER * (0.5 - quantile)
        g, ends = expit(z), points[2:, : len(likely)].T  # (curves, k), and of each label its probability with each end:
        answered = (a + b * low + b * (high - low) * g for a, b in zip(first, slope, strict=True) for low, high in ends)
        logs = np.array([np.log(np.multiply.reduceat(p, few, axis=1)).sum(axis=1) for p in answered])
        likelihood = logs.reshape(len(first), len(ends), -1).swapaxes(1, 2).reshape(len(first), -1)
        normal = ((points[0] - 1.6) / 2.6) ** 2 / 2 + ((points[1] - 0.3) / 0.8) ** 2 / 2
        prior = np.tile(likely, len(at)) - normal
        weight = softmax(likelihood + prior).sum(axis=0)
        mean = points @ weight
        spread = np.sqrt((points - mean[:, None]) ** 2 @ weight)
        around = 3.5 * (spread[:2] + [(axis[1] - axis[0]) / 3 for axis in axes])
        axes = tuple(np.linspace(m - s, m + s, 13) for m, s in zip(mean[:2], around, strict=True))

    def theta(p: np.ndarray) -> np.ndarray:
        s = np.exp(p[1])
        return np.stack([-s * p[0], s, s, p[2], p[3]], axis=-1)

    chosen = np.searchsorted(weight.cumsum(), (np.arange(draws) + 0.5) / draws).clip(0, len(weight) - 1)
    calibration = Calibration(theta(mean), theta(points[:, chosen]))
    rate = float(calibration.mismatched(_MIDDLE, calibration.draws).mean())
    return replace(calibration.shifted(rate), draws=calibration.draws)


def with_interval(value: float, drawn: Any) -> Estimate:
    """A share with the 95 % interval of its draws.

    Parameters
    ----------
    value : float
        The share.
    drawn : (B,) float
        Draws of it.

    Returns
    -------
    Estimate
        The interval holds the value itself.
    """
    low, high = np.quantile(list(drawn), [0.025, 0.975])
    return Estimate(float(value), float(min(low, value)), float(max(high, value)))


def _mismatch_count_quantile(p: np.ndarray, at: np.ndarray, z: float) -> np.ndarray:
    """How many of the first ``at`` pairs are mismatched, at a normal deviate ``z``. Skew as a Poisson number's."""
    mean, variance = np.cumsum(p)[at - 1], np.cumsum(p * (1 - p))[at - 1]
    return np.asarray(np.clip(mean + z * np.sqrt(variance) + (z * z - 1) / 6, 0, at))


def _features(q: np.ndarray, scores: np.ndarray | None = None) -> np.ndarray:
    q = np.clip(q, EDGE, 1 - EDGE)
    features = [np.ones_like(q), -np.log(q), np.log1p(-q)]
    if scores is not None:  # in place of the last
        of_scores = np.atleast_2d(scores)
        features[-len(of_scores) :] = [np.interp(q, _MIDDLE, each) for each in of_scores]
    return np.stack(features, axis=-1)


def positions(score: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Quantiles of scores among others.

    Parameters
    ----------
    score : (k,) float
        Which are looked up.
    among : (n,) float
        The others.

    Returns
    -------
    (k,) float in (0, 1)
        Of a tie the middle.
    """
    order = np.sort(among)
    low, high = (np.searchsorted(order, score, side=side) for side in ("left", "right"))
    return np.asarray((low + high + 1) / 2 / (len(order) + 1))


@one_thread()
def calibrate(
    observed: np.ndarray, null: np.ndarray, *, known: np.ndarray | None = None, weight: np.ndarray | None = None,
    by_score: bool = False, weak: float = 0.0, draws: int = 100, seed: int = 0,
) -> Calibration | None:  # fmt: skip
    """Fit g to scores, by null scores. The higher a score, the better matched a pair.

    Parameters
    ----------
    observed : (N,) float
        Scores of the pairs.
    null : (m,) float
        Scores of pairs that are known to be mismatched.
    known : (m,) float in (0, 1), optional
        The null pairs' quantile of another figure in its null distribution, which is known exactly.
    weight : (m,) float, optional
        Weights of the null pairs, with the mean 1.
    by_score : bool
        Whether the scores count, in deviations of the null scores. Else log(1 - q) counts.
    weak : float in [0, 1]
        Scores that separate less than that are weak. See the module's head.
    draws : int
        Draws of the bootstrap. 0: no intervals.
    seed : int
        Seed of the bootstrap.

    Returns
    -------
    Calibration or None
        None where there are fewer than 30 scores or null scores.
    """
    if min(len(observed), len(null)) < LEAST:
        return None
    rng, drawn = np.random.default_rng(seed), np.empty((draws, BINS))
    order = np.argsort(null)  # sorted numbers are found sooner among others
    null, known = null[order], None if known is None else known[order]
    given = np.ones(len(null)) if weight is None else weight[order]
    q, weight, scores = positions(null, observed), _raked(known, len(null)) * given, None
    if by_score:
        at = (np.arange(len(observed)) + 0.5) / len(observed)
        scores = -np.interp(_MIDDLE, at, np.sort(observed) - null.mean()) / max(float(null.std()), 1e-12)
    count = _histogram(q, weight)
    theta = _best_fit(count, scores)
    if scores is not None and Calibration(theta, theta[None], scores).separation < weak:
        scores = np.stack([-np.logaddexp(0, -scores), scores])
        theta = _best_fit(count, scores)
    n, m = len(observed), len(null)
    few, of_null = (min(n, 8192), min(m, 32_768)) if by_score else (n, m)  # else the error of its form is missed
    for b in range(draws):
        rows, seen = np.sort(rng.integers(0, m, of_null)), rng.integers(0, n, few)
        weight = _raked(None if known is None else known[rows], of_null) * given[rows]
        drawn[b] = _histogram(positions(null[rows], observed[seen]), weight)
    found, _ = _fit(drawn, np.tile([theta[0], *np.log(theta[1:])], (draws, 1)), scores)
    if not by_score:
        wider = 1.3  # so much larger than the spread of the draws were the errors of 57 fits
        found[:, 0] = theta[0] + wider * (found[:, 0] - theta[0])
        found[:, 1:] = theta[1:] * (found[:, 1:] / theta[1:]) ** wider
    return Calibration(theta, found, scores)


@dataclass(frozen=True)
class ScoreProbability:
    """P(matched) of a score.

    Parameters
    ----------
    noise_rate : float
        Noise rate of the pairs that it is learned from. NaN: undetermined.
    knots, logits : (k,) float
        Rising scores, and the log odds there. Between and beyond they are linear.
    """

    noise_rate: float
    knots: np.ndarray
    logits: np.ndarray

    @classmethod
    def from_null(cls, observed: np.ndarray, null: np.ndarray, rate: float | None = None) -> "ScoreProbability | None":
        """Learn it from observed and null scores.

        Parameters
        ----------
        observed, null : (N,) and (K,) float
            Scores.
        rate : float, optional
            The noise rate, where it is known.

        Returns
        -------
        ScoreProbability or None
            None of fewer than 80 scores of either kind.
        """
        if min(len(observed), len(null)) < 80:
            return None
        calibration = calibrate(observed, null, by_score=True, draws=30 if rate is None else 0)
        if calibration is None:
            return None
        lower = cautious(calibration, len(observed)) if rate is None else None
        if rate is not None:
            calibration = calibration.shifted(rate)
        knots = np.unique(np.quantile(np.concatenate([observed, null]), np.linspace(0, 1, 2001)))
        wrong = (lower or calibration).mismatched(positions(knots, observed))
        logits = np.log((1 - wrong) / wrong) + ORDER * np.linspace(-0.5, 0.5, len(knots))
        return cls(calibration.rate if lower is None else float("nan"), knots, logits)

    @classmethod
    def from_calibration(cls, calibration: Calibration, observed: np.ndarray) -> "ScoreProbability":
        """Take it from a calibration of ``observed`` scores (N,). Each of them is a knot."""
        knots = np.unique(observed)
        wrong = calibration.mismatched(positions(knots, observed))
        return cls(calibration.rate, knots, np.log((1 - wrong) / wrong))

    def __call__(self, score: np.ndarray) -> np.ndarray:
        """(n,) float64 in (0, 1), rising with the score (n,)."""
        from scipy.special import expit

        width = max(float(self.knots[-1] - self.knots[0]), 1e-12)
        near = np.clip(score, self.knots[0], self.knots[-1])
        beyond = np.clip((score - near) / width, -1, 1)
        return np.asarray(expit(np.interp(near, self.knots, self.logits) + ORDER * beyond))

    def threshold(self) -> float:
        """The score below which a pair is more likely wrong. -inf where none is."""
        above_all = np.nextafter(self.knots[-1], np.inf)
        return float(np.interp(0, self.logits, self.knots, left=-np.inf, right=above_all))


def noise_rate(calibration: Calibration | None, n: int, *, other: float | None = None, apart: float = 0.1) -> Estimate:
    """The noise rate of n pairs.

    Parameters
    ----------
    calibration : Calibration, optional
        The calibration of their scores.
    n : int
        How many there are.
    other : float, optional
        An estimate of the rate by other scores. The interval grows towards it by half its distance from the rate.
    apart : float
        Distance of ``other`` from the interval beyond which the rate is undetermined.

    Returns
    -------
    Estimate
        NaN where it is undetermined, or nothing was calibrated.
    """
    if calibration is None:
        return UNDETERMINED
    rate = calibration.noise_rate(n).determined()
    off = 0.0 if other is None else (other - rate.value) / 2  # half the range of two is their mean's standard error
    contradicted = other is not None and not rate.low - apart <= other <= rate.high + apart
    if contradicted or np.isnan(rate.value):
        return UNDETERMINED
    return Estimate(rate.value, float(max(rate.low + min(off, 0), 0)), float(min(rate.high + max(off, 0), 1)))


def cautious(calibration: Calibration, n: int) -> Calibration | None:
    """The calibration that judges n pairs whose noise rate is undetermined. None where it is determined.

    pi is an upper estimate. So the noise rate of this calibration is the middle between pi and the lower end of its
    interval.
    """
    rate = calibration.noise_rate(n)
    undetermined = np.isnan(noise_rate(calibration, n).value)
    return calibration.shifted((rate.low + rate.value) / 2) if undetermined else None


def _histogram(q: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.bincount(np.minimum((q * BINS).astype(int), BINS - 1), weights=weight, minlength=BINS)


def _best_fit(count: np.ndarray, scores: np.ndarray | None) -> np.ndarray:
    """Return a, b and c of the best of several fits to a histogram (BINS,)."""
    starts = np.array([[a, b, b] for a in (0.0, -3.0, 2.0) for b in (0.0, 2.0)])
    fits, losses = _fit(np.tile(count, (len(starts), 1)), starts, scores)
    return np.asarray(fits[losses.argmin()])


def _fit(count: np.ndarray, start: np.ndarray, scores: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Fit k functions g by maximum likelihood to histograms (k, BINS), from ``start`` (k, 3): a, log b, log c.

    Return a, b and c (k, 3), and the losses (k,). Newton's method with absolute eigenvalues (Dauphin et al. 2014), of
    all fits at once: five times as fast as L-BFGS-B for each, and the losses are hardly ever higher.
    """
    from scipy.special import expit

    grid = _features(_MIDDLE, scores)
    products, is_log = (grid[:, :, None] * grid[:, None]).reshape(BINS, 9), np.arange(3) > 0
    lowest, highest = np.array([-60.0, -3.0, -3.0]), np.array([60.0, 4.5, 4.5])
    # Means and precisions of the normal priors of a, log b and log c.
    expected, precision = np.zeros(3), np.array([0.02, 0.3, 0.05])
    if scores is None:
        expected, precision = np.log([1.0, 5.0, 0.3]), np.array([0.02, 3.0, 1.0])
    elif scores.ndim == 2:
        precision[2] = 3.0
    tried, best, loss = start.copy(), start.copy(), np.full(len(start), np.inf)
    step, share, at = np.zeros_like(start), np.ones((len(start), 1)), np.arange(len(start))  # at: fits that still move
    for _ in range(100):
        if not len(at):
            break
        p, n = tried[at], count[at]
        total, factor = n.sum(axis=1, keepdims=True), np.where(is_log, np.exp(p), 1)
        z, off = np.where(is_log, factor, p) @ grid.T, p - expected
        g = expit(z)
        mean = np.maximum(g.mean(axis=1, keepdims=True), 1e-12)
        value = (n * np.logaddexp(0, -z)).sum(axis=1) + (total * np.log(mean))[:, 0] + 0.5 * off**2 @ precision
        fitted = total * g * (1 - g) / (mean * BINS)
        slope, of_mean = (fitted - n * (1 - g)) @ grid * factor, fitted @ grid * factor
        curve = ((n * g * (1 - g) + fitted * (1 - 2 * g)) @ products).reshape(-1, 3, 3)
        curve = curve * factor[:, :, None] * factor[:, None] - of_mean[:, :, None] * of_mean[:, None] / total[:, None]
        curve[:, range(3), range(3)] += precision + slope * is_log
        slope += precision * off
        fixed = ((p <= lowest) & (slope > 0)) | ((p >= highest) & (slope < 0))
        slope[fixed], curve[fixed[:, :, None] | fixed[:, None]] = 0, 0
        size, axes = np.linalg.eigh(curve)
        moves = (axes @ ((slope[:, None] @ axes)[:, 0] / np.maximum(np.abs(size), 1e-3))[:, :, None])[:, :, 0]
        moves *= np.minimum(1, 3 / np.maximum(np.abs(moves).max(axis=1, keepdims=True), 1e-12))
        lower = value <= loss[at]
        step[at[lower]], best[at[lower]], loss[at[lower]] = moves[lower], p[lower], value[lower]
        share[at] = np.where(lower[:, None], 1, share[at] / 4)  # of a step that leads too far
        tried[at] = np.clip(best[at] - share[at] * step[at], lowest, highest)
        at = at[np.abs(tried[at] - best[at]).max(axis=1) > 1e-5]
    return np.where(is_log, np.exp(best), best), loss


def _raked(known: np.ndarray | None, m: int) -> np.ndarray:
    """Weights (m,) with the mean 1, under which ``known`` has the moments of a uniform figure."""
    if known is None:
        return np.ones(m)
    power = np.arange(1, 4)  # of the moments
    phi, tilt = known[:, None] ** power - 1 / (power + 1), np.zeros(len(power))
    for _ in range(20):
        weight = np.exp(np.clip(phi @ tilt, -3, 3))
        curve = (phi * weight[:, None]).T @ phi / weight.sum() + 1e-3 * np.eye(len(power))
        tilt = tilt - np.linalg.solve(curve, weight @ phi / weight.sum())
    weight = np.exp(np.clip(phi @ tilt, -3, 3))
    return np.asarray(weight / weight.mean())
