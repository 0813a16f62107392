"""The threshold for a wanted purity, or a wanted share."""

from dataclasses import dataclass
from shlex import quote

import numpy as np

from cleanpairs.core import ConfigError, RefusedError, check_number, percent
from cleanpairs.correspondence.calibration import LEAST, Calibration, Estimate
from cleanpairs.data.arrays import check_correspondence


@dataclass(frozen=True)
class Cut:
    """A threshold, and what it keeps."""

    threshold: float
    kept: int
    pairs: int
    share: Estimate | None  # of mismatched pairs among the kept. None where the scores are no probabilities
    not_kept: float | None  # expected share of all matched pairs that is not kept
    counted: str = ""  # what ``share`` is of, in words

    def __str__(self) -> str:
        text = f"kept            {self.kept:,} of {self.pairs:,} pairs, correspondence from {self.threshold:.4g} on"
        if self.share is None or self.not_kept is None:
            return text + "\nmismatched      undetermined: these scores are no calibrated probabilities"
        within = f"95 % interval {percent(self.share.low)} to {percent(self.share.high)}"
        return text + (
            f"\nof the kept     {percent(self.share.value)} {self.counted}  ({within})"
            f"\ncost            {percent(self.not_kept)} of the matched pairs are not kept"
        )


def cut_at(
    y: np.ndarray, calibration: Calibration | None, method: str, *, max_wrong: float | None, keep: float | None,
    run: str = "RUN", displaced: bool = False,
) -> Cut:  # fmt: skip
    """See :meth:`cleanpairs.estimators.PairScorer.threshold_for`. ``y`` (n,) finite. ``run``: advice names it.

    ``displaced``: pairs with a score of 0 are of displaced rows, and no plan keeps them.
    """
    if (max_wrong is None) == (keep is None):
        raise ConfigError("give max_wrong or keep, and not both: the share of wrong pairs, or the share that is kept")
    if not len(y):
        raise ConfigError(
            "there are no scores to choose a threshold by: a loaded model has none; give `correspondence`, as in the "
            "run's scores.parquet"
        )
    best = -np.sort(-y)
    check_correspondence(best)
    above = int((y > 0).sum())  # 0: labelled as mismatched, or displaced
    if keep is not None:
        check_number("export", "keep", keep, above=0, most=1)
        kept = min(max(1, round(keep * len(y))), above if displaced else len(y))
    elif max_wrong is not None:
        check_number("export", "max_wrong", max_wrong, above=0, below=1)
        if calibration is None:
            raise RefusedError(
                f"max_wrong={max_wrong:g} cannot be kept: the scores of this {method} are no calibrated probabilities, "
                "or its noise rate is undetermined; keep a share instead (keep, --keep), or label some pairs "
                f"(cleanpairs review {quote(run)} --calibrate)"
            )
        kept = min(calibration.purest(y, max_wrong), above)
        if not kept:
            few = min(LEAST, len(y))
            raise RefusedError(
                f"max_wrong={max_wrong:g} cannot be kept: the mismatched share of the best {few} pairs is "
                f"{calibration.shares(y, [few])[0]}; allow more, or keep a share of the pairs instead (keep, --keep)"
            )
    threshold = float(best[kept - 1]) if kept else 1.0
    kept = int((y >= threshold).sum())
    if calibration is None or not kept:
        return Cut(threshold, kept, len(y), None, None)
    not_kept = 1 - best[:kept].sum(dtype=np.float64) / max(best.sum(dtype=np.float64), 1e-12)
    return Cut(threshold, kept, len(y), calibration.shares(y, [kept])[0], float(not_kept), calibration.counted)
