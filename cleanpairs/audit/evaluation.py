"""What a labelled audit says about a run: figures with intervals. And what calibrated probabilities let expect without
a label.

At a threshold t every stratum of the sample falls into two cells, below t and not, of N_c pairs. With w_i the pairs for
which the labelled pair i stands, y_i = 1 where it is mismatched, and p_c the mean of y_i in cell c, or in its stratum
where no pair of the cell is labelled,

    precision = sum_{i below t} w_i y_i / sum_{i below t} w_i
    recall    = sum_{c below t} N_c p_c / sum_c N_c p_c
    noise     = sum_i w_i y_i / sum_i w_i

Intervals: the share of wrong pairs in cell c, of whose n_c labels k_c are wrong, is drawn twice, from

    Beta(k_c, n_c - k_c + 1 / C) at least, and Beta(k_c + 1 / C, n_c - k_c) at most,

apart in every one of the C cells that hold labels. So many of the N_c - n_c pairs without a label are wrong, up to a
binomial deviation. The ends of an interval are quantiles of 1,000 such figures, the low one by the least shares and the
high one by the most. For the recall the kept cells go the other way. In simulated audits it holds the truth in 97 % on
average, and in 87 % at the hardest. Jeffreys' 1/2 a cell, which piles up wrong pairs that nobody saw, in 50 %.

Sources: W. G. Cochran, Sampling Techniques, 3rd edition, 1977, chapters 5 and 6 (weights, ratio estimates).
C. J. Clopper and E. S. Pearson, Biometrika 26, 1934, and A. Agresti and D. B. Hitchcock, Statistical Methods and
Applications 14, 2005 (Beta intervals of proportions).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cleanpairs.audit.sample import AuditSample, stratum_of
from cleanpairs.core import DataError, RefusedError, check_number, jsonable
from cleanpairs.correspondence.calibration import UNDETERMINED, Calibration, Estimate, with_interval
from cleanpairs.data.arrays import check_correspondence

LADDER = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class ThresholdEstimate:
    """What flagging the pairs below ``threshold`` finds. ``flagged``: how many these are."""

    threshold: float
    flagged: int
    precision: Estimate
    recall: Estimate


@dataclass(frozen=True, eq=False)
class AuditResult:
    """Figures of an audit.

    Attributes
    ----------
    drawn, labelled, mismatched : int
        Pairs of the sample, those with a label, and those with the label "mismatched".

    noise_rate : Estimate
        Share of mismatched pairs among all that have a score.

    at_threshold : ThresholdEstimate
        Figures at the threshold.

    ladder : tuple of ThresholdEstimate
        Figures at other thresholds.

    auroc, ap : float
        How well a low correspondence finds mismatched pairs, weighted. NaN where the labels are all alike.
    """

    drawn: int
    labelled: int
    mismatched: int
    noise_rate: Estimate
    at_threshold: ThresholdEstimate
    ladder: tuple[ThresholdEstimate, ...]
    auroc: float
    ap: float

    def to_dict(self) -> dict[str, Any]:
        """For JSON. NaN is None."""
        return dict(jsonable(self))

    def __str__(self) -> str:
        def share(x: float) -> str:
            return f"{x:.3f}" if np.isfinite(x) else "-"

        return "\n".join([
            f"labels          {self.labelled:,} of {self.drawn:,} drawn, {self.mismatched:,} of them mismatched",
            f"noise rate      {self.noise_rate}",
            f"AUROC, AP       {share(self.auroc)}, {share(self.ap)}",
            "",
            threshold_table([self.at_threshold, *self.ladder], mark=self.at_threshold.threshold),
        ])  # fmt: skip


def threshold_table(rows: Sequence[ThresholdEstimate], mark: float) -> str:
    """Aligned columns, by threshold. The row of the threshold ``mark`` has an asterisk."""
    lines = [f"{'threshold':>10}{'flagged':>12}   {'precision  95 % interval':<26}recall  95 % interval"]
    for r in sorted(rows, key=lambda r: r.threshold):
        sign = "*" if r.threshold == mark else " "
        lines.append(f"{r.threshold:>9.3g}{sign}{r.flagged:>12,}   {r.precision!s:<26}{r.recall!s:<24}".rstrip())
    return "\n".join([*lines, "* the threshold"])


def evaluate_audit(sample: AuditSample, correspondence: ArrayLike, *, threshold: float) -> AuditResult:
    """Judge a run by the labels of an audit.

    Parameters
    ----------
    sample : AuditSample
        With labels. See :func:`cleanpairs.audit.read_labels`.
    correspondence : array_like of float in [0, 1], shape (N,)
        Correspondence of all pairs that the sample was drawn from. NaN where quarantined.
    threshold : float in [0, 1]
        The run's.

    Returns
    -------
    AuditResult
        Noise rate, precision and recall, each with a 95 % interval.

    Raises
    ------
    ConfigError
        The threshold is not in [0, 1].
    DataError
        There is no label, or the sample is of other pairs.
    """
    y = np.asarray(correspondence, dtype=np.float64).ravel()
    check_number("an audit", "threshold", threshold, least=0, most=1)
    if len(sample) and (sample.pair_id.min() < 0 or sample.pair_id.max() >= len(y)):
        raise DataError(f"the audit names pairs up to {sample.pair_id.max()}, the run has {len(y)}")
    if not np.allclose(y[sample.pair_id], sample.correspondence, atol=1e-6):  # NaN is never close
        raise DataError("the audit was drawn from other scores than these: draw another one")
    use = sample.labelled
    if not use.any():
        raise DataError("no pair of the audit is labelled yet: fill the column `matched` with 1 or 0")
    # an unlabelled pair is taken to be like the labelled ones of its stratum
    given = AuditSample.of(sample.pair_id[use], sample.edges, y, sample.matched[use])
    score, matched, weight = given.correspondence, given.matched == 1, given.weight
    auroc = ap = float("nan")
    if matched.any() and not matched.all():
        from sklearn.metrics import average_precision_score, roc_auc_score

        auroc = float(roc_auc_score(~matched, -score, sample_weight=weight))
        ap = float(average_precision_score(~matched, -score, sample_weight=weight))
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
    )


def _cells(
    sample: AuditSample, correspondence: np.ndarray, threshold: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of the C cells that hold pairs: how many (C,), how many wrong ones by the labels (C,), how many were drawn at
    least and at most (1000, C), and whether the cell lies below the threshold (C,) bool.
    """
    scores = correspondence[np.isfinite(correspondence)]
    many = 2 * (len(sample.edges) - 1)
    size = np.bincount(2 * stratum_of(scores, sample.edges) + (scores < threshold), minlength=many)
    cell = 2 * sample.stratum + (sample.correspondence < threshold)
    count = np.bincount(cell, minlength=many)
    wrong = np.bincount(cell, weights=sample.matched == 0, minlength=many)
    prior = 1 / max(1, int((count > 0).sum()))
    of_stratum = (x.reshape(-1, 2).sum(axis=1).repeat(2) for x in (wrong, np.maximum(count, 1e-6)))
    share = np.where(count > 0, wrong / np.maximum(count, 1), np.divide(*of_stratum))
    use = np.flatnonzero(size)  # most strata lie on one side
    a, b, n = np.maximum(wrong[use], 1e-6), np.maximum(count[use] - wrong[use], 1e-6), size[use]
    rng, shapes = np.random.default_rng(0), ((a, b + prior), (a + prior, b))
    least, most = (wrong[use] + rng.binomial(n - count[use], rng.beta(x, y, (1_000, len(n)))) for x, y in shapes)
    return n, share[use] * n, least, most, use % 2 == 1


def _between(value: float, least: np.ndarray, most: np.ndarray) -> Estimate:
    return Estimate(value, with_interval(value, least).low, with_interval(value, most).high)


def at_threshold(sample: AuditSample, correspondence: np.ndarray, threshold: float) -> ThresholdEstimate:
    """Precision and recall of "below the threshold is mismatched" among all pairs, of ``correspondence`` (N,), NaN
    where quarantined. Of a sample whose pairs are all labelled. Precision is 1/2, with the widest interval, where none
    of the flagged pairs is labelled.
    """
    size, found, least, most, under = _cells(sample, correspondence, threshold)
    wrong, below = sample.matched == 0, sample.correspondence < threshold
    hit, flagged = (float(sample.weight[some].sum()) for some in (wrong & below, below))
    few, many = (drawn[:, under].sum(axis=1) for drawn in (least, most))
    few_missed, many_missed = (drawn[:, ~under].sum(axis=1) for drawn in (least, most))
    precision, recall, n_flagged = UNDETERMINED, UNDETERMINED, int(size[under].sum())
    if n_flagged:
        precision = _between(hit / flagged if flagged else 0.5, few / n_flagged, many / n_flagged)
    if wrong.any():
        shares = (hits / np.maximum(hits + missed, 1e-300) for hits, missed in ((few, many_missed), (many, few_missed)))
        recall = _between(float(found[under].sum() / found.sum()), *shares)
    return ThresholdEstimate(float(threshold), n_flagged, precision, recall)


def noise_estimate(sample: AuditSample, correspondence: np.ndarray) -> Estimate:
    """Share of mismatched pairs among all that have a score. Arguments as :func:`at_threshold`."""
    size, _, least, most, _ = _cells(sample, correspondence, 0.0)
    share = sample.weight[sample.matched == 0].sum() / sample.weight.sum()
    return _between(float(share), *(drawn.sum(axis=1) / size.sum() for drawn in (least, most)))


@dataclass(frozen=True)
class ExpectedQuality:
    """``noise_rate`` and, at each threshold, precision and recall as the probabilities let expect them."""

    threshold: float
    noise_rate: Estimate
    at_thresholds: tuple[ThresholdEstimate, ...]
    run: str = "RUN"

    def __str__(self) -> str:
        return (
            f"expected noise rate   {self.noise_rate}\n\n{threshold_table(self.at_thresholds, mark=self.threshold)}\n\n"
            "all as the probabilities let expect; "
            f"`cleanpairs audit {quote(self.run)} --n 100` measures them with labels"
        )


def expected_quality(
    correspondence: ArrayLike, calibration: Calibration | None, *, threshold: float = 0.5, run: str = "RUN"
) -> ExpectedQuality:
    """Return the precision and recall to expect at several thresholds, before anybody has labelled anything.

    Parameters
    ----------
    correspondence : array_like of float in [0, 1], shape (N,)
        P(matched). NaN is left out.
    calibration : Calibration or None
        That of the fitted method.
    threshold : float in [0, 1]
        The run's.
    run : str
        The directory that advice names.

    Returns
    -------
    ExpectedQuality
        Precision and recall at each threshold, each with a 95 % interval.

    Raises
    ------
    ConfigError
        The threshold is not in [0, 1].
    DataError
        A value is outside [0, 1].
    RefusedError
        The scores are not calibrated, or their noise rate is undetermined.

    Notes
    -----
    Let p_i be the calibrated probability that pair i is mismatched (:mod:`cleanpairs.correspondence.calibration`).
    The precision at t is the mean of p_i below t. The recall is their sum, divided by the sum over all pairs.
    """
    y = np.asarray(correspondence, dtype=np.float64).ravel()
    y = y[~np.isnan(y)]
    if calibration is None or not len(y):
        raise RefusedError(
            "the expected precision and recall are unknown: the method gives no calibrated probabilities, or the noise "
            f"rate is undetermined; forty answers to `cleanpairs review {quote(run)} --calibrate` help"
        )
    check_correspondence(y)
    check_number("an audit", "threshold", threshold, least=0, most=1)
    rows = []
    for t in sorted({float(threshold), *LADDER}):
        below = y < t
        if below.any():
            precision, recall = calibration.below(y, below)
            rows.append(ThresholdEstimate(t, int(below.sum()), precision, recall))
    return ExpectedQuality(float(threshold), calibration.shares(y, [len(y)])[0], tuple(rows), run)
