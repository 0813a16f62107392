r"""Partial entropic optimal transport between two uniform measures, with forbidden entries.

For costs C (n, m), a mass rho in (0, 1] and an entropic regularisation lambda > 0,

    minimise    sum_ij pi_ij C_ij - lambda (H(pi) + H(s) + H(t)),    H(p) = -sum p log p
    subject to  sum_j pi_ij + s_i = 1/n,    sum_i pi_ij + t_j = 1/m,    sum_ij pi_ij = rho,
                pi, s, t >= 0,    pi_ij = 0 where forbidden

s is what a row keeps and t what a column lacks: no row gives more than 1/n, no column takes more than 1/m. The slacks
are a virtual column and a virtual row, which makes it a balanced problem (Chapel, Alaya and Gasso, NeurIPS 2020), as in
L2RM (CVPR 2024, appendix B):

    C^ = [[C, xi], [xi, infinity]],    p^ = (1/n, ..., 1/n, 1 - rho),    q^ = (1/m, ..., 1/m, 1 - rho)

Its solution depends neither on xi nor on a constant added to C, since the masses of pi, s and t are all fixed: here
xi = 0 and min C is subtracted, so that the kernel K^ = exp(-C^ / lambda) holds ones. Then pi^ = diag(u) K^ diag(v) and

    log u <- (1 - omega) log u + omega log(p^ / K^ v),    log v <- (1 - omega) log v + omega log(q^ / K^T u)

with over-relaxation omega = 1.5 (Thibault, Chizat, Dossal and Papadakis, Algorithms 2021), or 1 where that does not
contract. It runs in float64, where u, v and K^ may span hundreds of orders of magnitude: a cost that is more than 700
lambda above the least counts as if it were 700.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cleanpairs.core.errors import DataError

EVERY = 10  # iterations between two looks at the error
OMEGA = 1.5
EMPTY = 1e-30  # mass of a virtual row and column that have none (rho = 1): its logarithm is finite
UNDERFLOW = -700.0  # exp of less is not a normal float64


@dataclass(frozen=True)
class TransportPlan:
    """A plan, and how far it is from the constraints."""

    plan: Tensor  # (n, m): mass >= 0, 0 where forbidden; no row sums to more than 1/n, no column to more than 1/m
    iterations: int
    error: float  # L1 norm of the marginals' violation, slacks included, before it was cut to them, of the mass
    converged: bool  # False where ``max_iter`` was met, or too much is forbidden


@torch.no_grad()
def partial_transport(
    cost: Tensor,
    *,
    mass: float = 0.1,
    reg: float = 0.01,
    forbidden: Tensor | None = None,
    tol: float = 1e-3,
    max_iter: int = 1000,
) -> TransportPlan:
    """Move ``mass`` from the rows to the columns of a cost matrix; no gradient. The module says what is solved.

    - ``cost`` (n, m) floating point: finite, also where forbidden; of any sign and device
    - ``mass``: rho in (0, 1]; ``reg``: lambda > 0, in units of the cost
    - ``forbidden`` bool: entries that carry nothing; broadcast to the shape of ``cost``
    - ``tol``: largest violation of the marginals, as a fraction of the mass, after ``max_iter`` iterations at most

    The plan is on the device of ``cost`` and in its dtype (float32 for half precision).
    Raises DataError: for costs that are not finite.
    """
    if not cost.isfinite().all():
        at = (~cost.isfinite()).nonzero()[0].tolist()
        raise DataError(f"cost must be finite; entry {at} is {cost[tuple(at)].item()}: bar entries by `forbidden`")
    dtype = cost.dtype if cost.dtype in (torch.float32, torch.float64) else torch.float32
    n, m = cost.shape
    block = cost.double() / -reg
    barred = torch.zeros((), dtype=torch.bool) if forbidden is None else forbidden
    barred = barred.to(cost.device).expand(cost.shape)
    block = block.masked_fill(barred, -torch.inf)
    p, q = (torch.full((k + 1,), 1 / max(k, 1), dtype=torch.float64, device=cost.device) for k in (n, m))
    # Rows and columns without a partner carry nothing.
    possible = min(float((~barred).any(dim=side).double().mean()) for side in (0, 1)) if cost.numel() else 0.0
    if not possible:
        return TransportPlan(cost.new_zeros(cost.shape, dtype=dtype), 0, 0.0, False)
    p[n] = q[m] = max(1 - min(possible, mass), EMPTY)
    log_kernel = (block - block.max()).clamp_min(UNDERFLOW).masked_fill(barred, -torch.inf)
    log_kernel = torch.nn.functional.pad(log_kernel, (0, 1, 0, 1))
    log_kernel[n, m] = -torch.inf
    log_u, log_v, error, iterations = _solve(log_kernel.exp(), p.log(), q.log(), tol * mass, max_iter)
    plan = (log_kernel + log_u[:, None] + log_v).exp()[:n, :m]
    converged = error <= tol * mass and abs(float(plan.sum()) - mass) <= tol * mass
    return TransportPlan(plan.to(dtype), iterations, error / mass, converged)


def _solve(
    kernel: Tensor, log_p: Tensor, log_q: Tensor, tol: float, max_iter: int
) -> tuple[Tensor, Tensor, float, int]:
    """log u (n + 1,), log v (m + 1,) of a plan within the marginals, its L1 error and the iterations."""

    def rows(log_v: Tensor) -> Tensor:
        return (kernel @ log_v.exp()).log()

    def columns(log_u: Tensor) -> Tensor:
        return (log_u.exp() @ kernel).log()

    slack = log_q[-1].exp()
    log_v = torch.zeros_like(log_q)  # the virtual column's such that about rho is moved
    around = (kernel.sum() - (len(log_p) + len(log_q) - 2)) / (len(log_p) - 1)
    log_v[-1] = (around.clamp_min(EMPTY) * slack / (1 - slack).clamp_min(EMPTY)).log()
    q, omega, before = log_q.exp(), OMEGA, math.inf
    log_u = log_p - rows(log_v)
    best = log_u, log_v, math.inf
    for iteration in range(1, max_iter + 1):
        log_v = log_v + (omega if iteration > 1 else 1.0) * (log_q - columns(log_u) - log_v)
        target = log_p - rows(log_v)
        if iteration % EVERY == 0 or iteration == max_iter:
            error = float(((log_v + columns(target)).exp() - q).abs().sum())  # the rows of (target, log_v) are exact
            if error < best[2]:
                best = target, log_v, error
            if error <= tol:
                break
            if not error <= 10 * before:  # NaN too: it does not contract here
                omega, (log_u, log_v) = 1.0, best[:2]
                continue
            before = error
        log_u = log_u + omega * (target - log_u)
    log_u, log_v, error = best
    return log_u, torch.minimum(log_v, log_q - columns(log_u)), error, iteration
