"""What a labelled audit says about a run: figures with intervals, and a calibrated probability for every pair; and
what calibrated probabilities let expect without a label.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from cleanpairs.audit.calibration import calibrate, calibration_error
from cleanpairs.audit.estimate import Estimate, ThresholdEstimate, at_threshold, noise_estimate, response_weights
from cleanpairs.audit.sample import AuditSample
from cleanpairs.core.errors import ConfigError, DataError, RefusedError
from cleanpairs.core.plain import plain
from cleanpairs.correspondence.calibration import Calibration

LADDER = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
ECE_BINS = 5  # of a sample: with more of them, chance is most of what is measured
CHANCE_DRAWS = 200


@dataclass(frozen=True, eq=False)
class AuditResult:
    """Figures of an audit.

    - ``drawn``, ``labelled``, ``mismatched``: pairs of the sample, those with a label, and labels that say so
    - ``noise_rate``: share of mismatched pairs among all that have a score
    - ``at_threshold``, ``ladder``: at the run's threshold, and at others
    - ``auroc``, ``ap``: of low correspondence as a sign of a mismatched pair, weighted; NaN where the labels are all
      alike
    - ``log_loss``: kind -> weighted log loss of labels that were left out, nats
    - ``ece_before``, ``ece_after``, ``ece_chance``: expected calibration error of the correspondence taken for a
      probability; of the calibrated probability, each label left out in its turn; and what the latter would be by
      chance if it were calibrated perfectly
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
        found: dict[str, Any] = plain({k: v for k, v in self.__dict__.items() if k != "probability"})
        return found

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
    by_threshold = {r.threshold: r for r in rows}
    lines = [f"{'threshold':>10}{'flagged':>12}   {'precision  95 % interval':<26}recall  95 % interval"]
    for t in sorted(by_threshold):
        r = by_threshold[t]
        sign = "*" if t == mark else " "
        lines.append(f"{t:>9.3g}{sign}{r.flagged:>12,}   {r.precision!s:<26}{r.recall!s:<24}".rstrip())
    return "\n".join([*lines, "* the threshold of the run"])


def evaluate_audit(
    sample: AuditSample,
    correspondence: ArrayLike,
    *,
    threshold: float,
    thresholds: Sequence[float] = LADDER,
    calibration: str = "auto",
    seed: int = 0,
) -> AuditResult:
    """Judge a run by the labels of an audit.

    - ``sample``: with labels; see :func:`cleanpairs.audit.read_labels`
    - ``correspondence`` (N,) float in [0, 1]: of all pairs, NaN where quarantined: those that the sample was drawn from
    - ``threshold``, ``thresholds`` in [0, 1]: the run's, and those of the ladder
    - ``calibration`` {"auto", "isotonic", "logistic"}

    Raises ConfigError: a threshold or ``calibration`` is not allowed; DataError: no label, or a sample of other pairs.
    """
    y = np.asarray(correspondence, dtype=np.float64).ravel()
    bad = [t for t in (threshold, *thresholds) if not 0 <= t <= 1]
    if bad:
        raise ConfigError(f"thresholds must be in [0, 1], found {bad[0]}")
    if len(sample) and (sample.pair_id.min() < 0 or sample.pair_id.max() >= len(y)):
        raise DataError(f"the audit names pairs up to {sample.pair_id.max()}, the run has {len(y)}")
    if not np.allclose(y[sample.pair_id], sample.correspondence, atol=1e-6):  # NaN is never close
        raise DataError("the audit was drawn from other scores than these: draw another one")
    noise = noise_estimate(sample, y, seed=seed)
    weight = response_weights(sample, y)[sample.labelled]
    score, matched = sample.correspondence[sample.labelled], sample.matched[sample.labelled] == 1
    fitted = calibrate(score, matched, weight, kind=calibration)
    probability = np.full(len(y), np.nan, dtype=np.float32)
    known = np.isfinite(y)
    probability[known] = fitted.probability(y[known])
    auroc = ap = float("nan")
    if matched.any() and not matched.all():
        from sklearn.metrics import average_precision_score, roc_auc_score

        auroc = float(roc_auc_score(~matched, -score, sample_weight=weight))
        ap = float(average_precision_score(~matched, -score, sample_weight=weight))
    ladder = [at_threshold(sample, y, t, seed=seed) for t in sorted(set(thresholds) - {threshold})]
    return AuditResult(
        drawn=len(sample),
        labelled=len(matched),
        mismatched=int((~matched).sum()),
        noise_rate=noise,
        at_threshold=at_threshold(sample, y, threshold, seed=seed),
        ladder=tuple(t for t in ladder if t.flagged),
        auroc=auroc,
        ap=ap,
        calibration=fitted.kind,
        log_loss=fitted.log_loss,
        ece_before=calibration_error(score, matched, weight, bins=ECE_BINS),
        ece_after=calibration_error(fitted.left_out, matched, weight, bins=ECE_BINS),
        ece_chance=_chance(fitted.left_out, weight, seed),
        even_odds=_even_odds(y[known], probability[known]),
        probability=probability,
    )


def _chance(probability: np.ndarray, weight: np.ndarray, seed: int) -> float:
    """Mean calibration error of labels that are drawn from the probabilities themselves."""
    drawn = np.random.default_rng(seed).random((CHANCE_DRAWS, len(probability))) < probability
    return float(np.mean([calibration_error(probability, d, weight, bins=ECE_BINS) for d in drawn]))


def _even_odds(y: np.ndarray, probability: np.ndarray) -> float | None:
    lower, upper = y[probability < 0.5], y[probability >= 0.5]
    return float((lower.max() + upper.min()) / 2) if len(lower) and len(upper) else None


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
    correspondence: ArrayLike,
    calibration: Calibration | None,
    *,
    threshold: float = 0.5,
    thresholds: Sequence[float] = LADDER,
) -> ExpectedQuality:
    """Precision and recall to expect at several thresholds, the run's among them, before anybody has labelled anything.

    With p_i the calibrated probability that pair i is mismatched (:mod:`cleanpairs.correspondence.calibration`),

        precision(t) = mean of p_i below t,    recall(t) = sum of p_i below t / sum of all

    with the intervals of the calibration's bootstrap, and the chance by which so many pairs hold more or fewer
    mismatched ones. Scores that nobody has calibrated let expect nothing: only labels show what they are worth.

    ``correspondence`` (N,) float in [0, 1]: P(matched), NaN left out; ``calibration``: of the fitted method.
    Raises ConfigError: a threshold is not in [0, 1]; DataError: a value is outside [0, 1]; RefusedError: the scores are
    not calibrated, or their noise rate is undetermined.
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
    chosen = np.array(sorted({float(threshold), *map(float, thresholds)}))
    if chosen[0] < 0 or chosen[-1] > 1:
        raise ConfigError(f"thresholds must be in [0, 1], found {chosen[0] if chosen[0] < 0 else chosen[-1]:g}")
    rows = []
    for t in chosen:
        below = y < t
        if below.any():
            precision, recall = calibration.below(y, below)
            rows.append(ThresholdEstimate(float(t), int(below.sum()), precision, recall))
    return ExpectedQuality(float(threshold), calibration.shares(y, [len(y)])[0], tuple(rows))
