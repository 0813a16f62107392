"""Mixtures of 1,000,000 losses, and recall@K of 5,000 captions and 1,000 images, one thread, against the usual ways.

    python benchmarks/bench_all.py --only split

GMM      scikit-learn's GaussianMixture with the papers' settings, fit and posterior.
BMM      EM with weighted moment matching value by value (Arazo et al., 2019), densities by scipy, the same number of
         iterations and start by a cut at the mean.
recall   of each image and each caption the sorted row (``np.argsort(row)[::-1]``) and a search in it. Twice: of given
         similarities (NCR, CRCL, L2RM: i2t and t2i); of embeddings, theirs row by row (VSE++:
         ``np.dot(image, captions.T)`` for each image, in both directions).

CPU seconds, the minimum of interleaved rounds.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import torch
from scipy.stats import beta as beta_distribution
from side_by_side import Machine, Row, take_turns
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from cleanpairs.correspondence.mixture import EDGE, split_in_two
from cleanpairs.scoring.evaluate import Recall, recall, recall_of_similarity

ITERATIONS = 10  # of both beta mixtures


def scikit_learn(x: np.ndarray, max_iter: int = 10, tol: float = 1e-2) -> np.ndarray:
    """Posterior of the high component; the papers' settings by default."""
    model = GaussianMixture(2, max_iter=max_iter, tol=tol, reg_covar=5e-4, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x[:, None])
    return np.asarray(model.predict_proba(x[:, None])[:, model.means_.argmax()])


def moments(x: np.ndarray, share: np.ndarray) -> tuple[float, float]:
    mean = (share * x).sum() / share.sum()
    variance = (share * (x - mean) ** 2).sum() / share.sum()
    common = mean * (1 - mean) / variance - 1
    return mean * common, (1 - mean) * common


def beta_by_scipy(x: np.ndarray) -> np.ndarray:
    """The published loop: two densities a value and iteration."""
    x = np.clip(x, EDGE, 1 - EDGE)
    resp = (x >= x.mean()).astype(np.float64)
    for _ in range(ITERATIONS):
        weight = resp.mean()
        low = (1 - weight) * beta_distribution.pdf(x, *moments(x, 1 - resp))
        high = weight * beta_distribution.pdf(x, *moments(x, resp))
        resp = high / (low + high)
    return np.asarray(resp)


def sorted_rows(S: np.ndarray, per_image: int) -> Recall:
    """The loop of the published evaluations; the captions of an image are neighbours."""
    m, n = S.shape
    rank_i, rank_t = np.empty(m), np.empty(n)
    for i in range(m):
        order = np.argsort(S[i])[::-1]
        rank_i[i] = min(np.where(order == t)[0][0] for t in range(per_image * i, per_image * (i + 1)))
    by_text = np.ascontiguousarray(S.T)
    for t in range(n):
        order = np.argsort(by_text[t])[::-1]
        rank_t[t] = np.where(order == t // per_image)[0][0]
    return Recall(*(100 * float((rank < k).mean()) for rank in (rank_i, rank_t) for k in (1, 5, 10)))


def sorted_products(z_image: np.ndarray, z_text: np.ndarray, per_image: int) -> Recall:
    """The same from embeddings, an image at a time."""
    m, n = len(z_image), len(z_text)
    rank_i, rank_t = np.empty(m), np.empty(n)
    for i in range(m):
        order = np.argsort(np.dot(z_image[i], z_text.T))[::-1]
        rank_i[i] = min(np.where(order == t)[0][0] for t in range(per_image * i, per_image * (i + 1)))
        for t, row in enumerate(np.dot(z_text[per_image * i : per_image * (i + 1)], z_image.T)):
            rank_t[per_image * i + t] = np.where(np.argsort(row)[::-1] == i)[0][0]
    return Recall(*(100 * float((rank < k).mean()) for rank in (rank_i, rank_t) for k in (1, 5, 10)))


def embeddings(m: int, per_image: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z_image = rng.normal(size=(m, dim)).astype(np.float32)
    z_image /= np.linalg.norm(z_image, axis=1, keepdims=True)
    owner = np.repeat(np.arange(m), per_image)
    z_text = z_image[owner] + rng.normal(scale=0.3, size=(len(owner), dim)).astype(np.float32)
    return z_image, (z_text / np.linalg.norm(z_text, axis=1, keepdims=True)).astype(np.float32), owner


def product(z_image: np.ndarray, z_text: np.ndarray) -> np.ndarray:
    return np.asarray((torch.from_numpy(z_image) @ torch.from_numpy(z_text).T).numpy())


def losses(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Values (n,) in [0, 1] of two modes, and which are of the higher one (n,) bool."""
    rng = np.random.default_rng(0)
    noisy = rng.random(n) < 0.4
    x = np.where(noisy, rng.normal(0.55, 0.15, n), rng.normal(0.2, 0.1, n))
    return (x - x.min()) / np.ptp(x), noisy


def mixture_rows(machine: Machine) -> Iterator[Row]:
    n = 1_000_000
    x, noisy = losses(n)
    floor = machine.floor(moved=2 * x.nbytes)
    timed = take_turns({"ours": lambda: split_in_two(x).high, "theirs": lambda: scikit_learn(x)}, 2)
    right = {name: float(((high > 0.5) == noisy).mean()) for name, high in timed.result.items()}
    yield Row(
        "Gaussian mixture", f"{n:,}", timed.seconds["ours"], "scikit-learn, papers' settings", timed.seconds["theirs"],
        25.0, floor, f"right {right['ours']:.4f}, baseline {right['theirs']:.4f}",
    )  # fmt: skip
    converged = take_turns({"theirs": lambda: scikit_learn(x, 1000, 1e-7)}, 1)
    low, high = split_in_two(x).means  # beyond them ours is held
    off = float(np.abs(converged.result["theirs"] - timed.result["ours"])[(x > low) & (x < high)].max())
    large, _ = losses(10 * n)
    ours = take_turns({"ours": lambda: split_in_two(large)}, 1).seconds["ours"]
    yield Row(
        "Gaussian mixture, to convergence", f"{10 * n:,}", ours, f"scikit-learn, scaled from {n:,}",
        10 * converged.seconds["theirs"], 25.0, 10 * floor, f"posteriors of {n:,} differ by {off:.0e} at most (1e-3)",
        off < 1e-3,
    )  # fmt: skip
    timed = take_turns({"ours": lambda: split_in_two(x, "beta").high, "scipy": lambda: beta_by_scipy(x)}, 2)
    right = {name: float(((high > 0.5) == noisy).mean()) for name, high in timed.result.items()}
    yield Row(
        "beta mixture", f"{n:,}", timed.seconds["ours"], "EM a value, scipy densities", timed.seconds["scipy"], 25.0,
        floor, f"right {right['ours']:.4f}, baseline {right['scipy']:.4f}",
    )  # fmt: skip


def recall_rows(machine: Machine) -> Iterator[Row]:
    m, per_image, dim = 1000, 5, 256
    z_image, z_text, owner = embeddings(m, per_image, dim)
    S = product(z_image, z_text)
    timed = take_turns(
        {
            "given": lambda: recall_of_similarity(S, owner),
            "sorted": lambda: sorted_rows(S, per_image),
            "ours": lambda: recall(z_image, z_text, owner),
            "products": lambda: sorted_products(z_image, z_text, per_image),
        },
        3,
    )
    pairs = (("recall@K of similarities", "given", "sorted", "argsort a row", machine.floor(moved=S.nbytes)),
             ("recall@K of embeddings", "ours", "products", "product and argsort a row",
              machine.floor(2.0 * S.size * dim)))  # fmt: skip
    for name, ours, theirs, baseline, floor in pairs:
        one, two = timed.result[ours].to_dict(), timed.result[theirs].to_dict()
        off = max(abs(one[k] - two[k]) for k in one)
        yield Row(
            name, f"{m:,} images, {m * per_image:,} captions", timed.seconds[ours], baseline, timed.seconds[theirs],
            15.0, floor, f"differs by {off:.2f} points", off < 0.05,
        )  # fmt: skip


def rows(machine: Machine) -> Iterator[Row]:
    """Those of the suite (bench_all.py)."""
    yield from mixture_rows(machine)
    yield from recall_rows(machine)
