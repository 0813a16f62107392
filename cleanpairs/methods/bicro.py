"""BiCro: bidirectional cross-modal similarity consistency (Yang et al., CVPR 2023). See docs/methods/others.md."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cleanpairs.core.parameters import number
from cleanpairs.methods.splitting import Splitting, SplittingCleaner
from cleanpairs.ops.search import top_k
from cleanpairs.trainer import EpochContext


def consistency(z_image: np.ndarray, z_text: np.ndarray, a_image: np.ndarray, a_text: np.ndarray) -> np.ndarray:
    """Bidirectional similarity consistency of pairs with clean anchors (BiCro, section 3.3).

    Parameters
    ----------
    z_image, z_text : (n, d) float
        Unit vectors of the pairs.
    a_image, a_text : (m, d) float
        Unit vectors of the anchors. A pair that is one itself is compared with the nearest other anchor.

    Returns
    -------
    (n,) float
        In [0, 1].
    """

    def ratio(z: np.ndarray, partner: np.ndarray, a_z: np.ndarray, a_partner: np.ndarray) -> np.ndarray:
        found = top_k(z, a_z, 2)
        column = np.zeros(len(z), dtype=np.int64)
        if found.indices.shape[1] > 1:
            first = found.indices[:, 0]
            same = np.einsum("ij,ij->i", partner, a_partner[first]) > 1 - 1e-6
            column[(found.scores[:, 0] > 1 - 1e-6) & same] = 1
        at = np.arange(len(z))
        near = np.maximum(found.indices[at, column], 0)
        near_d = np.linalg.norm(z - a_z[near], axis=1)
        far_d = np.linalg.norm(partner - a_partner[near], axis=1)
        return np.clip((near_d + 1e-3) / (far_d + 1e-3), 0, 1)

    return (ratio(z_image, z_text, a_image, a_text) + ratio(z_text, z_image, a_text, a_image)) / 2


class _Consistent(Splitting):
    mixture = "beta"

    def judge(self, view: EpochContext) -> np.ndarray:
        values = []
        for k in range(self.networks):
            z_image, z_text = view.pair_vectors(k)
            w = self.w[k]
            y = self.estimate(z_image, z_text, w, view.seed(11, k))
            self.y[1 - k] = np.where(w > self.clean_above, 1, y)
            values.append(w * (1 + y) / 2)
        return np.asarray(np.mean(values, axis=0))

    def estimate(self, z_image: np.ndarray, z_text: np.ndarray, w: np.ndarray, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        anchors = np.flatnonzero(w >= max(self.method.anchor_above, float(np.quantile(w, 0.5))))
        if len(anchors) < 4:
            return np.zeros(self.n, dtype=np.float32)
        anchors = rng.permutation(anchors)[:8192]
        a_image, a_text = z_image[anchors], z_text[anchors]
        y = consistency(z_image, z_text, a_image, a_text)
        right = float(np.median(y[anchors]))
        queries = min(2048, max(2, len(anchors) // 4))  # against other anchors, as each would find itself
        shuffled = np.roll(a_text[:queries], 1, axis=0)
        wrong = float(np.median(consistency(a_image[:queries], shuffled, a_image[queries:], a_text[queries:])))
        if right - wrong < 1e-3:
            return np.zeros(self.n, dtype=np.float32)
        return np.clip((y - wrong) / (right - wrong), 0, 1).astype(np.float32)


@dataclass(kw_only=True, eq=False, repr=False)
class BiCro(SplittingCleaner):
    """Two networks, beta mixture, soft margins from the consistency with clean anchors.

    Parameters
    ----------
    anchor_above : float in [0, 1]
        Least clean probability of an anchor. At most half of the pairs are anchors.
    noisy_weight : float
        Weight of the noisy pairs' loss. 1 in the paper.

    Notes
    -----
    Yang et al., CVPR 2023. Equations and departures from the paper: docs/methods/others.md.
    """

    method_name: ClassVar[str] = "bicro"

    label_epochs: int | None = 3
    noisy_weight: float = number(0.1, least=0)
    anchor_above: float = number(0.5, least=0, most=1)

    _strategy = _Consistent
    _paper: ClassVar[dict[str, Any]] = {
        **SplittingCleaner._papers, "backbone": "sgraf", "warmup": 10, "epochs": 50, "noisy_weight": 1.0,
    }  # fmt: skip
