"""NCR: noisy correspondence rectifier (Huang et al., NeurIPS 2021). See docs/methods/others.md."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cleanpairs.core.parameters import number
from cleanpairs.methods.splitting import Splitting, SplittingCleaner
from cleanpairs.objectives import prediction
from cleanpairs.trainer import EpochContext


class _Rectifying(Splitting):
    def judge(self, view: EpochContext) -> np.ndarray:
        r = np.stack([view.figure(k, lambda S, excluded: prediction(S, excluded, self.margin)) for k in range(2)])
        r = np.clip(r, 0, 1)
        for k in range(2):  # labels for network k, by the other's split
            w = self.w[1 - k]
            self.y[k] = np.where(w > self.clean_above, w + (1 - w) * r[k], r.mean(axis=0))
        return np.asarray(self.w.mean(axis=0) * self.y.mean(axis=0))


@dataclass(kw_only=True, eq=False, repr=False)
class NCR(SplittingCleaner):
    """Two networks, Gaussian co-dividing, soft margins from rectified labels.

    Parameters
    ----------
    noisy_weight : float
        Weight of the noisy pairs' loss. 1 in the paper.

    Notes
    -----
    Huang et al., NeurIPS 2021. Equations and departures from the paper: docs/methods/others.md.
    """

    method_name: ClassVar[str] = "ncr"

    label_epochs: int | None = 3
    noisy_weight: float = number(0.1, least=0)

    _strategy = _Rectifying
    _paper: ClassVar[dict[str, Any]] = {**SplittingCleaner._papers, "epochs": 45, "noisy_weight": 1.0}
