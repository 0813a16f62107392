"""What a labelled audit says about a run: figures with intervals, and a calibrated probability for every pair; and
what calibrated probabilities let expect without a label.

At a threshold t every stratum of the sample falls into two cells, below t and not, of N_c pairs. With w_i the pairs for
which the labelled pair i stands, and y_i = 1 where it is mismatched,

    precision = sum_{i below t} w_i y_i / sum_{i below t} w_i
    recall    = sum_{i below t} w_i y_i / sum_i w_i y_i
    noise     = sum_i w_i y_i / sum_i w_i

Intervals: the share p_c of wrong pairs in cell c, of whose n_c labels k_c are wrong, is drawn from

    Beta(k_c + 1 / C, n_c - k_c + 1 / C),    C = number of cells that hold labels,

apart in every cell; the quantiles of 1,000 draws of the figures are the interval. It holds the truth in 90 to 98 % of
simulated audits; Jeffreys' 1/2 a cell, which piles up wrong pairs that nobody saw, in 50 %.

Sources: W. G. Cochran, Sampling Techniques, 3rd edition, 1977, chapters 5 and 6 (weights, ratio estimates);
A. Agresti and D. B. Hitchcock, Statistical Methods and Applications 14, 2005 (Beta intervals of proportions).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import expit, logit

from cleanpairs.audit.sample import AuditSample, stratum_of
from cleanpairs.core.errors import ConfigError, DataError, RefusedError
from cleanpairs.core.plain import plain
from cleanpairs.correspondence.calibration import UNDETERMINED, Calibration, Estimate, with_interval

LADDER = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DRAWS = 1_000
ECE_BINS = 5  # of a sample: with more of them, chance is most of what is measured
CHANCE_DRAWS = 200
CLIP = 1e-3  # scores nearer to 0 and 1 than this are alike: a logit of float32 rounding says nothing
RIDGE = 1e-3  # on both coefficients, in labels: only where the labels leave them open

Calibrator = Callable[[np.ndarray], np.ndarray]  # from scores (k,) in [0, 1] to probabilities (k,), never decreasing


@dataclass(frozen=True)
class ThresholdEstimate:
    """What flagging the pairs below ``threshold`` finds; ``flagged``: how many these are."""

    threshold: float
    flagged: int
    precision: Estimate
    recall: Estimate


@dataclass(frozen=True, eq=False)
class AuditResult:
    """Figures of an audit.

    - ``drawn``, ``labelled``, ``mismatched``: pairs of the sample, those with a label, and labels that say so
    - ``noise_rate``: share of mismatched pairs among all that have a score
    - ``at_threshold``, ``ladder``: at the run's threshold, and at others
    - ``auroc``, ``ap``: of low correspondence, weighted; NaN where the labels are all alike
    - ``calibration``, ``log_loss``: the map chosen; kind -> weighted log loss of labels that were left out, nats
    - ``ece_before``, ``ece_after``, ``ece_chance``: expected calibration error of the correspondence; of the calibrated
      probability, each label left out in its turn; and what that would be by chance if it were calibrated perfectly
    - ``even_odds``: correspondence at which the calibrated probability passes 1/2; None where it never does
    - ``probability`` (N,) float32: calibrated probability of being matched, NaN where quarantined
    """

    drawn: int
    labelled: int
    mismatched: int
    noise_rate: Estimate
    at_threshold: ThresholdEstimate
    ladder: tuple[ThresholdEstimate, ...]
    auroc: float
    ap: float
    calibration: str
    log_loss: dict[str, float]
    ece_before: float
    ece_after: float
    ece_chance: float
    even_odds: float | None
    probability: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the N probabilities; NaN is None."""
        return dict(plain({k: v for k, v in self.__dict__.items() if k != "probability"}))

    def __str__(self) -> str:
        def share(x: float) -> str:
            return f"{x:.3f}" if np.isfinite(x) else "-"

        return "\n".join([
            f"labels          {self.labelled:,} of {self.drawn:,} drawn, {self.mismatched:,} of them mismatched",
            f"noise rate      {self.noise_rate}",
            f"AUROC, AP       {share(self.auroc)}, {share(self.ap)}",
            "",
            threshold_table([self.at_threshold, *self.ladder], mark=self.at_threshold.threshold),
            "",
            f"calibration     {self.calibration}"
            + ("" if self.even_odds is None else f"; as likely matched as not at correspondence {self.even_odds:.3g}"),
            f"its error       {share(self.ece_after)} cross-validated (chance alone: {share(self.ece_chance)}), "
            f"{share(self.ece_before)} before",
        ])  # fmt: skip


def threshold_table(rows: Sequence[ThresholdEstimate], mark: float) -> str:
    """Aligned columns, by threshold; the row of the threshold ``mark`` has an asterisk."""
    lines = [f"{'threshold':>10}{'flagged':>12}   {'precision  95 % interval':<26}recall  95 % interval"]
    for r in sorted(rows, key=lambda r: r.threshold):
        sign = "*" if r.threshold == mark else " "
        lines.append(f"{r.threshold:>9.3g}{sign}{r.flagged:>12,}   {r.precision!s:<26}{r.recall!s:<24}".rstrip())
    return "\n".join([*lines, "* the threshold of the run"])


def _targets(matched: np.ndarray) -> np.ndarray:
    """Platt's, instead of hard labels, so that no hundred labels give a probability of 0 or 1."""
    positive = int(matched.sum())
    return np.where(matched, (positive + 1) / (positive + 2), 1 / (len(matched) - positive + 2))


def fit_isotonic(score: np.ndarray, matched: np.ndarray, weight: np.ndarray) -> Calibrator:
    """The increasing step function of least weighted squares, through the centres of its steps (Oron and Flournoy,
    2017), of k labels; ``score`` (k,), ``matched`` (k,) bool, ``weight`` (k,): the pairs that each stands for.
    """
    from sklearn.isotonic import isotonic_regression

    s, at = np.unique(score, return_inverse=True)  # equal scores have one probability
    w = np.bincount(at, weights=weight)
    t = np.bincount(at, weights=weight * _targets(matched)) / w
    fitted = isotonic_regression(t, sample_weight=w)
    step = np.concatenate([[0], np.cumsum(np.diff(fitted) > 1e-12)])
    mass = np.bincount(step, weights=w)
    centres, heights = np.bincount(step, weights=w * s) / mass, np.bincount(step, weights=w * fitted) / mass
    return lambda score: np.interp(score, centres, heights)


def fit_logistic(score: np.ndarray, matched: np.ndarray, weight: np.ndarray) -> Calibrator:
    """1 / (1 + exp(-(a logit(s) + b))), a >= 0, by weighted maximum likelihood (Platt, 1999)."""
    x, t = logit(np.clip(score, CLIP, 1 - CLIP)), _targets(matched)
    w = weight * len(weight) / weight.sum()

    def loss(c: np.ndarray) -> tuple[float, np.ndarray]:
        z = c[0] * x + c[1]
        wrong = w * (expit(z) - t)
        value = float((w * (np.logaddexp(0, z) - t * z)).sum() + 0.5 * RIDGE * (c @ c))
        return value, np.array([wrong @ x, wrong.sum()]) + RIDGE * c

    a, b = minimize(loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(0, None), (None, None)]).x
    return lambda s: np.asarray(expit(a * logit(np.clip(s, CLIP, 1 - CLIP)) + b))


FITS = {"isotonic": fit_isotonic, "logistic": fit_logistic}


def calibrate(
    score: np.ndarray, matched: np.ndarray, weight: np.ndarray
) -> tuple[str, Calibrator, np.ndarray, dict[str, float]]:
    """From scores to the probability of being matched, learnt from k labels; arguments as :func:`fit_isotonic`.

    Each label is predicted by the maps fitted to all others, and the lower weighted log loss wins. Returns its name,
    the map, what it said of each label that was left out (k,), 1/2 of an only one, and name -> log loss, nats.
    """
    from sklearn.metrics import log_loss

    left_out = {name: np.full(len(score), 0.5) for name in FITS}
    for i in range(len(score) if len(score) > 1 else 0):
        rest = np.arange(len(score)) != i
        for name, fit in FITS.items():
            left_out[name][i] = fit(score[rest], matched[rest], weight[rest])(score[i : i + 1])[0]
    losses = {name: log_loss(matched, p, sample_weight=weight, labels=[False, True]) for name, p in left_out.items()}
    chosen = min(losses, key=losses.__getitem__)
    return chosen, FITS[chosen](score, matched, weight), left_out[chosen], losses


def calibration_error(
    probability: np.ndarray, matched: np.ndarray, weight: np.ndarray | None = None, *, bins: int = 10
) -> float:
    """Expected calibration error (Naeini et al., 2015): mean distance of share ``matched`` (k,), bool or in [0, 1], and
    mean ``probability`` (k,), over bins of equal ``weight`` (k,); pairs of equal probability are in one bin.
    """
    w = np.ones(len(probability)) if weight is None else np.asarray(weight, dtype=np.float64)
    at = np.unique(probability, return_inverse=True)[1]
    mass = np.bincount(at, weights=w)
    middle = (np.cumsum(mass) - mass / 2) / mass.sum()
    bin_of = np.minimum((middle * bins).astype(int), bins - 1)[at]
    gap = np.bincount(bin_of, weights=w * (np.asarray(matched, dtype=np.float64) - probability), minlength=bins)
    return float(np.abs(gap).sum() / w.sum())


def evaluate_audit(sample: AuditSample, correspondence: ArrayLike, *, threshold: float) -> AuditResult:
    """Judge a run by the labels of an audit.

    - ``sample``: with labels; see :func:`cleanpairs.audit.read_labels`
    - ``correspondence`` (N,) float in [0, 1]: of all pairs, NaN where quarantined: those that the sample was drawn from
    - ``threshold`` in [0, 1]: the run's

    Raises ConfigError: the threshold is not in [0, 1]; DataError: no label, or a sample of other pairs.
    """
    y = np.asarray(correspondence, dtype=np.float64).ravel()
    if not 0 <= threshold <= 1:
        raise ConfigError(f"thresholds must be in [0, 1], found {threshold}")
    if len(sample) and (sample.pair_id.min() < 0 or sample.pair_id.max() >= len(y)):
        raise DataError(f"the audit names pairs up to {sample.pair_id.max()}, the run has {len(y)}")
    if not np.allclose(y[sample.pair_id], sample.correspondence, atol=1e-6):  # NaN is never close
        raise DataError("the audit was drawn from other scores than these: draw another one")
    use = sample.labelled
    if not use.any():
        raise DataError("no pair of the audit is labelled yet: fill the column `matched` with 1 or 0")
    # whom nobody labelled is taken to be like the labelled ones of the same stratum
    given = AuditSample.of(sample.pair_id[use], sample.edges, y, sample.matched[use])
    score, matched, weight = given.correspondence, given.matched == 1, given.weight
    kind, calibrated, left_out, losses = calibrate(score, matched, weight)
    probability = np.full(len(y), np.nan, dtype=np.float32)
    known = np.isfinite(y)
    probability[known] = calibrated(y[known])
    auroc = ap = float("nan")
    if matched.any() and not matched.all():
        from sklearn.metrics import average_precision_score, roc_auc_score

        auroc = float(roc_auc_score(~matched, -score, sample_weight=weight))
        ap = float(average_precision_score(~matched, -score, sample_weight=weight))
    # calibration errors of labels that are drawn from the probabilities themselves
    drawn = np.random.default_rng(0).random((CHANCE_DRAWS, len(score))) < left_out
    chance = [calibration_error(left_out, one, weight, bins=ECE_BINS) for one in drawn]
    lower, upper = y[probability < 0.5], y[probability >= 0.5]
    ladder = [at_threshold(given, y, t) for t in sorted(set(LADDER) - {threshold})]
    return AuditResult(
        drawn=len(sample),
        labelled=len(matched),
        mismatched=int((~matched).sum()),
        noise_rate=noise_estimate(given, y),
        at_threshold=at_threshold(given, y, threshold),
        ladder=tuple(t for t in ladder if t.flagged),
        auroc=auroc,
        ap=ap,
        calibration=kind,
        log_loss=losses,
        ece_before=calibration_error(score, matched, weight, bins=ECE_BINS),
        ece_after=calibration_error(left_out, matched, weight, bins=ECE_BINS),
        ece_chance=float(np.mean(chance)),
        even_odds=float((lower.max() + upper.min()) / 2) if len(lower) and len(upper) else None,
        probability=probability,
    )


def _cells(
    sample: AuditSample, correspondence: np.ndarray, threshold: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the C cells that hold pairs: how many (C,), how many wrong ones were drawn (DRAWS, C), and whether the cell
    lies below the threshold (C,) bool.
    """
    known = correspondence[np.isfinite(correspondence)]
    many = 2 * (len(sample.edges) - 1)
    size = np.bincount(2 * stratum_of(known, sample.edges) + (known < threshold), minlength=many)
    cell = 2 * sample.stratum + (sample.correspondence < threshold)
    count = np.bincount(cell, minlength=many)
    wrong = np.bincount(cell, weights=sample.matched == 0, minlength=many)
    prior = 1 / max(1, int((count > 0).sum()))
    use = np.flatnonzero(size)  # most strata lie on one side
    a, b = wrong[use] + prior, count[use] - wrong[use] + prior
    drawn = np.random.default_rng(0).beta(a, b, size=(DRAWS, len(use)))
    return size[use], drawn * size[use], use % 2 == 1


def at_threshold(sample: AuditSample, correspondence: np.ndarray, threshold: float) -> ThresholdEstimate:
    """Precision and recall of "below the threshold is mismatched" among all pairs, of ``correspondence`` (N,), NaN
    where quarantined; of a sample whose pairs are all labelled. Precision is 1/2, with the widest interval, where none
    of the flagged pairs is labelled.
    """
    size, drawn, under = _cells(sample, correspondence, threshold)
    wrong, below = sample.matched == 0, sample.correspondence < threshold
    hit, flagged, total = (float(sample.weight[some].sum()) for some in (wrong & below, below, wrong))
    drawn_hit, n_flagged = drawn[:, under].sum(axis=1), int(size[under].sum())
    precision = recall = UNDETERMINED
    if n_flagged:
        precision = with_interval(hit / flagged if flagged else 0.5, drawn_hit / n_flagged)
    if total:
        recall = with_interval(hit / total, drawn_hit / np.maximum(drawn.sum(axis=1), 1e-300))
    return ThresholdEstimate(float(threshold), n_flagged, precision, recall)


def noise_estimate(sample: AuditSample, correspondence: np.ndarray) -> Estimate:
    """Share of mismatched pairs among all that have a score; arguments as :func:`at_threshold`."""
    size, drawn, _ = _cells(sample, correspondence, 0.0)
    share = sample.weight[sample.matched == 0].sum() / sample.weight.sum()
    return with_interval(float(share), drawn.sum(axis=1) / size.sum())


def mismatched_share(correspondence: np.ndarray, chosen: np.ndarray, calibration: Calibration | None) -> Estimate:
    """The share of mismatched pairs among some, as the run's calibration has it, for the report and the page alike.

    Parameters
    ----------
    correspondence : ndarray of float, shape (N,)
    chosen : ndarray of bool, shape (N,)
    calibration : Calibration, optional

    Returns
    -------
    Estimate
        Undetermined without a calibration, and of no pair.
    """
    if calibration is None or not chosen.any():
        return UNDETERMINED
    return calibration.shares(correspondence[chosen], [int(chosen.sum())])[0]


@dataclass(frozen=True)
class ExpectedQuality:
    """``noise_rate`` and, at each threshold, precision and recall as the probabilities let expect them."""

    threshold: float
    noise_rate: Estimate
    at_thresholds: tuple[ThresholdEstimate, ...]

    def __str__(self) -> str:
        return (
            f"expected noise rate   {self.noise_rate}\n\n{threshold_table(self.at_thresholds, mark=self.threshold)}\n\n"
            "expected from the calibrated scores alone; `cleanpairs audit --n 100` measures it with labels"
        )


def expected_quality(
    correspondence: ArrayLike, calibration: Calibration | None, *, threshold: float = 0.5
) -> ExpectedQuality:
    """Precision and recall to expect at several thresholds, the run's among them, before anybody has labelled anything.

    With p_i the calibrated probability that pair i is mismatched (:mod:`cleanpairs.correspondence.calibration`),
    precision(t) is the mean of p_i below t, recall(t) the sum of p_i below t by that of all; with its intervals.

    ``correspondence`` (N,) float in [0, 1]: P(matched), NaN left out; ``calibration``: of the fitted method.
    Raises ConfigError: the threshold is not in [0, 1]; DataError: a value is outside [0, 1]; RefusedError: the scores
    are not calibrated, or their noise rate is undetermined.
    """
    y = np.asarray(correspondence, dtype=np.float64).ravel()
    y = y[~np.isnan(y)]
    if calibration is None or not len(y):
        raise RefusedError(
            f"of the {len(y):,} scores nothing can be expected: the method gives no calibrated probabilities, or its "
            "noise rate is undetermined; `cleanpairs audit --n 100` draws pairs to label"
        )
    if not 0 <= y.min() <= y.max() <= 1:
        raise DataError("the correspondence must be in [0, 1]")
    if not 0 <= threshold <= 1:
        raise ConfigError(f"thresholds must be in [0, 1], found {threshold:g}")
    rows = []
    for t in sorted({float(threshold), *LADDER}):
        below = y < t
        if below.any():
            precision, recall = calibration.below(y, below)
            rows.append(ThresholdEstimate(t, int(below.sum()), precision, recall))
    return ExpectedQuality(float(threshold), calibration.shares(y, [len(y)])[0], tuple(rows))
