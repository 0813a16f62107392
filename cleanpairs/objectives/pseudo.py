r"""Pseudo-classification of PC2 (Duan et al., ACM MM 2024): eq. 2, 3, 6 to 8.

p_i, q_i: class probabilities of pair i's image and text under one classifier with K classes.
"""

import torch
from torch import Tensor


def pseudo_classification(logits_image: Tensor, logits_text: Tensor) -> Tensor:
    """Eq. 2: cross entropy of the image's prediction with the class of the text, (B,); logits (B, K)."""
    return torch.nn.functional.cross_entropy(logits_image, logits_text.argmax(dim=1), reduction="none")


def negative_batch_entropy(logits: Tensor) -> Tensor:
    """Eq. 3, negated: -H(mean_i p_i), a scalar in [-log K, 0]; the lower, the more evenly the classes are used."""
    mean = logits.softmax(dim=1).mean(dim=0)  # (K,)
    return (mean * mean.clamp_min(1e-12).log()).sum()


def oscillation(previous: Tensor, current: Tensor) -> Tensor:
    """Eq. 7: KL(previous || current) of class probabilities (N, K): (N,) >= 0."""
    tiny = 1e-12
    return (previous * (previous.clamp_min(tiny).log() - current.clamp_min(tiny).log())).sum(dim=1).clamp_min(0)


def pseudo_caption(p_noisy: Tensor, p_clean: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 4: for each noisy prediction (n, K) the clean one (m, K) of highest cosine similarity, which lends its
    caption: (n,) int64, and that similarity (n,) in [0, 1]; m >= 1.
    """
    unit = torch.nn.functional.normalize
    best = (unit(p_noisy, dim=1) @ unit(p_clean, dim=1).T).max(dim=1)
    return best.indices, best.values.clamp(0, 1)
