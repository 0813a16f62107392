"""Other ways to look for donors than the nearest part: the papers' searches, over vectors of pairs.

See :data:`cleanpairs.repair.candidates.DonorSearch` for what they return.
"""

import numpy as np

from cleanpairs.ops.search import TopK, top_k
from cleanpairs.repair.candidates import DonorSearch


def half_replacing(z_image: np.ndarray, z_text: np.ndarray, neighbours: int = 32) -> DonorSearch:
    """Half-replacing over the trusted pairs: of those nearest in the kept part, the other part that fits it best.

    ``z_image``, ``z_text`` (N, E) float: unit vectors of the images and texts of all pairs; ``neighbours``: trusted
    pairs among which is chosen.

    Source: REPAIR (Zheng et al., 2024), eq. 10 to 13.
    """

    def search(is_image: bool, trusted: bool, asking: np.ndarray, showing: np.ndarray, k: int) -> TopK | None:
        if not trusted:
            return None
        kept, given = (z_text, z_image) if is_image else (z_image, z_text)
        near = top_k(kept[asking], kept[showing], max(k, neighbours))
        at = np.maximum(near.indices, 0)
        fit = np.einsum("qke,qe->qk", given[showing[at]], kept[asking])  # S of the half with what stays
        fit = np.where(near.indices >= 0, fit, -np.inf)
        order = np.argsort(-fit, axis=1, kind="stable")[:, :k]
        indices = np.take_along_axis(near.indices, order, 1)
        return TopK(np.take_along_axis(fit, order, 1).astype(np.float32), indices, near.note)

    return search


def pseudo_captioning(image: np.ndarray, text: np.ndarray) -> DonorSearch:
    """Pseudo-captions: the trusted pair that is most similar in the part that stays lends the other one.

    ``image``, ``text`` (N, K), (N, L) float: what similarity is asked of, as unit rows: vectors, or PC2's predicted
    pseudo-classes.

    Source: PC2 (Duan et al., 2024), section 3.3.
    """

    def search(is_image: bool, trusted: bool, asking: np.ndarray, showing: np.ndarray, k: int) -> TopK | None:
        kept = text if is_image else image
        return top_k(kept[asking], kept[showing], k) if trusted else None

    return search
