r"""Neighbours' agreement: whether a pair's caption is like the captions of images that are like its image. Untrained.

Each pair asks the others, in the spaces of frozen vectors x (images) and t (captions), unit vectors both:

    c_i = sum_j K_ij w_j t_j / sum_j K_ij w_j      K_ij = exp((x_i . x_j - 1) / tau), K_ii = 0
    a_i = c_i . t_i - mean_j (t_j . t_i)

w_j is the probability that pair j is right, all 1 at first; the other direction (captions ask, images answer) is the
same, and the two are added, each in units of its control's deviation. Another caption of the same image is a neighbour
at distance 0. No network is trained on the pairs, so none can have learned a wrong one by heart.

The control is the same question about pairs that are known to be wrong: image i with the caption of a random j. It
has the distribution of a wrong pair's agreement, and that gives the noise rate and the posterior without a label:

    pi = mean_t  F_own(t) / F_control(t)   over t between the .25 and the .5 quantile of the control (Storey, JRSS B
                                           2002: where right pairs have next to no mass, the ratio of the two tails is
                                           the share of wrong ones)
    P(wrong | a) = pi f_control(a) / f_own(a),  made monotone in a

New posteriors are averaged with the old ones and asked again, a few times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from sklearn.isotonic import IsotonicRegression

__all__ = ["Agreement", "neighbours_agreement", "posterior", "wrong_share"]

TAU = 0.1  # of the kernel; .03 asks fewer neighbours and finds less (docs/log.md)
ROUNDS = 3
BANK = 16_384  # pairs that answer, besides those of the same image or text
BLOCK = 1024
BINS = 40
LEAST = 1e-12
LOW, HIGH = 0.25, 0.5  # quantiles of the control between which the tails are compared


@dataclass(frozen=True)
class Agreement:
    """Of N pairs.

    ``own`` (N,): agreement, in units of the control's deviation; ``control`` (K,): that of random wrong pairs;
    ``wrong`` in [0, 1]: the estimated share of wrong pairs; ``right`` (N,) in [0, 1]: the probability of being right.
    """

    own: np.ndarray
    control: np.ndarray
    wrong: float
    right: np.ndarray


def neighbours_agreement(
    images: np.ndarray,
    texts: np.ndarray,
    image_group: np.ndarray,
    text_group: np.ndarray,
    *,
    tau: float = TAU,
    rounds: int = ROUNDS,
    bank: int = BANK,
    seed: int = 0,
) -> Agreement:
    """Agreement of N pairs; see the module's head.

    Parameters
    ----------
    images, texts : (N, D), (N, d) float32
        Unit vectors of each pair's image and caption; zeros say nothing.
    image_group, text_group : (N,) int64
        Equal numbers are the same image, the same text.
    bank : int
        A random sample of so many pairs answers where there are more; time is that of N * bank dot products.
    """
    n = len(images)
    rng = np.random.default_rng(seed)
    nothing = Agreement(np.zeros(n), np.zeros(0), 0.0, np.ones(n))
    if n < 2 * BINS:
        return nothing
    asked = np.sort(rng.permutation(n)[:bank])
    other = _others(rng.permutation(n), image_group)
    apart = np.flatnonzero((image_group != image_group[other]) & (text_group != text_group[other]))
    if len(apart) < 2 * BINS:  # nearly all rows are alike
        return nothing
    heard = np.zeros(n, bool)
    heard[asked] = True
    right = np.ones(n)
    for _ in range(max(1, rounds)):
        own, control = np.zeros(n), np.zeros(len(apart))
        for x, t, group in ((images, texts, image_group), (texts, images, text_group)):
            weight = right.astype(np.float32)
            said, mass = _answers(x, t, group, asked, weight, tau)
            level = t @ t.mean(axis=0)
            of = np.einsum("ij,ij->i", said, t) / np.maximum(mass, LEAST) - level
            # Image i asks about the caption of j, or the caption of j about image i; what is shown does not answer.
            asking, shown = (apart, other[apart]) if x is images else (other[apart], apart)
            itself = np.exp((np.einsum("ij,ij->i", x[asking], x[shown]) - 1) / np.float32(tau)) * weight[shown]
            itself[~heard[shown]] = 0
            against = np.einsum("ij,ij->i", said[asking], t[shown]) - itself * np.einsum("ij,ij->i", t[shown], t[shown])
            against = against / np.maximum(mass[asking] - itself, LEAST) - level[shown]
            scale = max(float(against.std()), 1e-12)
            own += of / scale
            control += against / scale
        wrong = wrong_share(own, control)
        right = (right + 1 - posterior(own, control, wrong)) / 2
    return Agreement(own, control, wrong, 1 - posterior(own, control, wrong))


def _others(order: np.ndarray, group: np.ndarray) -> np.ndarray:
    """A random other row for each row: the next one in a random order."""
    other = np.empty(len(order), np.int64)
    other[order] = np.roll(order, -1)
    return other


def _answers(
    x: np.ndarray, t: np.ndarray, group: np.ndarray, asked: np.ndarray, weight: np.ndarray, tau: float
) -> tuple[np.ndarray, np.ndarray]:
    """Sums (N, d) float32 over the neighbours in ``x`` of what they are in ``t``, without the pair itself, and of their
    weights (N,).
    """
    n = len(x)
    place = np.full(n, -1)
    place[asked] = np.arange(len(asked))
    # Those of the same image that are not among the asked answer all the same.
    unasked = np.where(place < 0, weight, 0).astype(np.float32)
    number = np.unique(group, return_inverse=True)[1]
    member = csr_array((unasked, (number, np.arange(n))), shape=(int(number.max()) + 1, n))
    kin, kin_weight = member @ t, np.asarray(member.sum(axis=1)).ravel()
    out, mass = np.empty((n, t.shape[1]), np.float32), np.empty(n, np.float32)
    bank, said, trust = x[asked], t[asked], weight[asked]
    for start in range(0, n, BLOCK):
        rows = np.arange(start, min(start + BLOCK, n))
        K = np.exp((x[rows] @ bank.T - 1) / np.float32(tau)) * trust  # (b, bank)
        mine = np.flatnonzero(place[rows] >= 0)
        K[mine, place[rows[mine]]] = 0
        self_weight = unasked[rows]
        out[rows] = K @ said + kin[number[rows]] - self_weight[:, None] * t[rows]
        mass[rows] = K.sum(axis=1) + kin_weight[number[rows]] - self_weight
    return out, mass


def wrong_share(own: np.ndarray, control: np.ndarray) -> float:
    """pi in [0, 1]: the mean ratio of the lower tails of N agreements and of those of K random wrong pairs."""
    if not len(control):
        return 0.0
    cuts = np.quantile(control, np.linspace(LOW, HIGH, 30))
    below = np.searchsorted(np.sort(own), cuts, side="right") / len(own)
    level = np.searchsorted(np.sort(control), cuts, side="right") / len(control)
    return float(np.clip((below / level).mean(), 0, 1))


def posterior(own: np.ndarray, control: np.ndarray, wrong: float) -> np.ndarray:
    """P(wrong) (N,) in [0, 1] of each agreement: the ratio of the two densities, falling, between the bins' middles."""
    if not len(control):
        return np.zeros(len(own))
    edges = np.unique(np.quantile(np.concatenate([own, control]), np.linspace(0, 1, BINS + 1)))
    if len(edges) < 3:
        return np.full(len(own), wrong)
    mine = np.histogram(own, edges)[0] / len(own)
    theirs = np.histogram(control, edges)[0] / len(control)
    ratio = np.clip(wrong * theirs / np.maximum(mine, 1e-9), 0, 1)
    fallen = IsotonicRegression(increasing=False).fit_transform(np.arange(len(ratio)), ratio, sample_weight=mine + 1e-9)
    middle = (edges[1:] + edges[:-1]) / 2
    return np.asarray(np.interp(own, middle, fallen))
