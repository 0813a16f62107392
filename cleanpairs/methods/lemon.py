r"""LEMoN: a pair's distance, and its distances to the neighbours of its image and of its caption. Nothing is trained.

Zhang et al., "LEMoN: Label Error Detection using Multimodal Neighbors", ICML 2025 (arXiv 2407.18941). With d = 1 less
the cosine, the pair (x, y) and the k nearest neighbours (x_j, y_j) of its image x,

    s_n = 1 / k sum_j d(y, y_j) exp(-tau_1 d(x, x_j)) exp(-tau_2 d(x_j, y_j))

and s_m likewise by the neighbours of its caption y, with both sides exchanged. The score is minus

    d(x, y) + beta s_n + gamma s_m

The defaults are those of the paper where no labels tune them. Departures: the paper leaves the threshold open. Here it
follows from the null. Copies of a pair are one neighbour. Otherwise a pair with more than k copies would have no other.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cleanpairs.core.parameters import number, whole
from cleanpairs.estimators.frozen import FrozenScorer
from cleanpairs.ops.normalised_similarity import VectorPairs, cosines
from cleanpairs.ops.search import top_k


@dataclass(kw_only=True, eq=False, repr=False)
class LEMoN(FrozenScorer):
    """Distances to multimodal neighbours.

    Parameters
    ----------
    k : int
        Neighbours of the image, and of the caption.

    beta : float
        Weight of the distances to the neighbours of the image.

    gamma : float
        Weight of the distances to the neighbours of the caption.

    tau_1 : float
        How fast a neighbour's weight falls with its distance.

    tau_2 : float
        How fast a neighbour's weight falls with the distance between its own image and caption.

    Notes
    -----
    Zhang et al., ICML 2025 (arXiv 2407.18941). The score is in the head of this module.
    """

    method_name: ClassVar[str] = "lemon"

    k: int = whole(30, 1)
    beta: float = number(5.0, least=0)
    gamma: float = number(5.0, least=0)
    tau_1: float = number(0.1, least=0)
    tau_2: float = number(5.0, least=0)

    def compare(self, pairs: VectorPairs, background: VectorPairs, null: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See :meth:`cleanpairs.estimators.FrozenScorer.compare`."""
        n, groups = len(pairs), np.stack([background.image_group, background.text_group])
        background = background.take(np.sort(np.unique(groups, axis=1, return_index=True)[1]))  # of copies the first
        image, text = np.concatenate([np.tile(np.arange(n), (2, 1)), null], axis=1)
        distance = 1 - cosines(pairs.images[image], pairs.texts[text]).astype(np.float64)
        trust = np.exp(-self.tau_2 * (1 - cosines(background.images, background.texts)))
        for queries, references, partners, reference_partners, query, partner, weight in (
            (pairs.images, background.images, pairs.texts, background.texts, image, text, self.beta),
            (pairs.texts, background.texts, pairs.images, background.images, text, image, self.gamma),
        ):
            if not n or not len(references):
                continue
            nearest = top_k(queries, references, self.k + 1)
            at = np.maximum(nearest.indices, 0)
            other = background.image_group[at] != pairs.image_group[:, None]
            other |= background.text_group[at] != pairs.text_group[:, None]
            valid = (nearest.indices >= 0) & other
            valid &= valid.cumsum(axis=1) <= self.k
            share = valid * np.exp(-self.tau_1 * (1 - nearest.scores)) * trust[at]
            share /= np.maximum(valid.sum(axis=1, keepdims=True), 1)
            mean = np.einsum("nk,nkd->nd", share, reference_partners[at], optimize=True)
            distance += weight * (share.sum(axis=1)[query] - cosines(mean[query], partners[partner]))
        return -distance[:n], -distance[n:]
