r"""The over-relaxed iteration of transport.py for one problem on a CPU: vectors and numbers instead of batches.

A training batch has one problem of some hundred rows, for which a product with the kernel takes 3 us and every further
call of numpy one: what a batch of problems needs (masks of those that are done, an omega for each) would be most of the
time.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["ADAPT_EVERY", "EVERY", "OMEGA", "OMEGA_MAX", "better_omega", "iterate_one"]

EVERY = 2  # iterations between two looks at the error: on a GPU a look is a wait
ADAPT_EVERY = 12  # iterations between two estimates of the best omega
OMEGA, OMEGA_MAX = 1.53, 1.9  # 22 iterations where 1.5 takes 26 and as many elsewhere, at a tenth of the tolerance


def iterate_one(
    K: np.ndarray, p: np.ndarray, q: np.ndarray, log_v: np.ndarray, tol: float, max_iter: int
) -> tuple[np.ndarray, np.ndarray, float, int]:
    """As `_iterate` of transport.py, of a kernel K (n, m) float64 and its marginals p (n,) and q (m,).

    Returns
    -------
    tuple
        The best log u (n,) and log v (m,) seen, their error, and the iterations.
    """
    K_t, log_p, log_q = K.T, np.log(p), np.log(q)
    exp, log = np.exp, np.log

    def column_error(log_u: np.ndarray, log_v: np.ndarray) -> float:
        return float(np.abs(exp(log_v) * (K_t @ exp(log_u)) - q).sum())

    log_u = log_p - log(K @ exp(log_v))
    best_u, best_v = log_u, log_v
    log_v = log_q - log(K_t @ exp(log_u))
    best = before = math.inf
    omega, iteration = OMEGA, 1
    while iteration < max_iter:
        iteration += 1
        target = log_p - log(K @ exp(log_v))
        if iteration % EVERY == 0 or iteration == max_iter:
            error = float(np.abs(exp(log_u - target) - 1) @ p)
            if error < best:
                best_u, best_v, best = target, log_v, error
            if best <= tol and column_error(best_u, best_v) <= tol:
                break
            if iteration % ADAPT_EVERY == 0:
                if error <= min(10 * before, 1e300):
                    omega = better_omega(omega, error, before)
                else:  # NaN too: it does not contract here
                    log_u, log_v, omega = best_u, best_v, 1.0
                    target = log_p - log(K @ exp(log_v))
                before = error
        log_u = log_u + omega * (target - log_u)
        log_v = log_v + omega * (log_q - log(K_t @ exp(log_u)) - log_v)
    return best_u, np.minimum(best_v, log_q - log(K_t @ exp(best_u))), column_error(best_u, best_v), iteration


def better_omega(omega: float, error: float, before: float) -> float:
    """The best omega for the contraction seen in ``ADAPT_EVERY`` iterations; as `_best_omega` of transport.py says."""
    rate = (error / before) ** (1 / ADAPT_EVERY) if before > 0 else 0.0
    if not (omega > 1 and omega - 1 < rate < 1):
        return omega
    theta = (rate + omega - 1) ** 2 / (rate * omega**2)
    return max(omega, min(2 / (1 + math.sqrt(max(1 - theta, 0.0))), OMEGA_MAX))
