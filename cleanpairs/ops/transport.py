r"""Partial entropic optimal transport between two uniform measures, with forbidden entries, by POT.

For costs C (n, m), a mass rho in (0, 1] and an entropic regularisation lambda > 0,

    minimise    sum_ij pi_ij C_ij - lambda (H(pi) + H(s) + H(t)),    H(p) = -sum p log p
    subject to  sum_j pi_ij + s_i = 1/n,    sum_i pi_ij + t_j = 1/m,    sum_ij pi_ij = rho,
                pi, s, t >= 0,    pi_ij = 0 where forbidden

s is what a row keeps and t what a column lacks: no row gives more than 1/n, no column takes more than 1/m. The slacks
are a virtual column and a virtual row, which makes it a balanced problem (Chapel, Alaya and Gasso, NeurIPS 2020), as in
L2RM (CVPR 2024, appendix B):

    C^ = [[C, xi], [xi, infinity]],    p^ = (1/n, ..., 1/n, 1 - rho),    q^ = (1/m, ..., 1/m, 1 - rho)

Its solution does not depend on xi, since the masses of pi, s and t are all fixed: here xi = min C. POT solves it by
Sinkhorn's iterations on logarithms (`ot.bregman.sinkhorn_log`), in float64.
"""

import math

import torch
from torch import Tensor

from cleanpairs.core import DataError


@torch.no_grad()
def partial_transport(
    cost: Tensor,
    *,
    mass: float = 0.1,
    reg: float = 0.01,
    forbidden: Tensor | None = None,
    tol: float = 1e-3,
    max_iter: int = 1000,
) -> Tensor:
    """Move ``mass`` from the rows to the columns of a cost matrix. No gradient. The module says what is solved.

    Parameters
    ----------
    cost : Tensor (n, m)
        Costs of any sign, floating point type and device. Forbidden ones are finite, too.

    mass : float
        Share rho in (0, 1] that is moved.

    reg : float
        Regularisation lambda, above 0, in units of the cost.

    forbidden : Tensor of bool
        Entries that carry nothing. Broadcast to the shape of ``cost``.

    tol : float
        Largest violation of the marginals, as a fraction of the mass.

    max_iter : int
        Iterations at most.

    Returns
    -------
    Tensor (n, m)
        Masses >= 0, 0 where forbidden. No row sums to more than 1/n, no column to more than 1/m. Less than ``mass`` is
        moved where too much is forbidden. On the device of ``cost`` and in its type, float32 for half precision.

    Raises
    ------
    DataError
        Some costs are not finite.
    """
    if not cost.isfinite().all():
        at = (~cost.isfinite()).nonzero()[0].tolist()
        raise DataError(f"cost must be finite; entry {at} is {cost[tuple(at)].item()}: bar entries by `forbidden`")
    import ot

    dtype = cost.dtype if cost.dtype in (torch.float32, torch.float64) else torch.float32
    n, m = cost.shape
    barred = torch.zeros((), dtype=torch.bool) if forbidden is None else forbidden
    barred = barred.to(cost.device).expand(cost.shape)
    # Rows and columns without a partner carry nothing.
    possible = min(float((~barred).any(dim=side).double().mean()) for side in (0, 1)) if cost.numel() else 0.0
    if not possible:
        return cost.new_zeros(cost.shape, dtype=dtype)
    shifted = cost.double()
    shifted = (shifted - shifted[~barred].min()).clamp(0, 700 * reg).masked_fill(barred, torch.inf)
    extended = torch.nn.functional.pad(shifted, (0, 1, 0, 1))
    extended[n, m] = torch.inf
    p, q = (torch.full((k + 1,), 1 / k, dtype=torch.float64, device=cost.device) for k in (n, m))
    p[n] = q[m] = max(1 - min(possible, mass), 1e-30)  # where there is no slack its logarithm is finite
    start = torch.zeros_like(p)  # the virtual row's scaling such that about the mass is moved at once
    start[n] = torch.logsumexp(-shifted.flatten() / reg, 0) - math.log(m) + (q[m] / (1 - q[m])).log()
    # POT compares the L2 norm of the columns' violation.
    limits = {"stopThr": tol * mass / (m + 1) ** 0.5, "numItermax": max_iter}
    solved = ot.bregman.sinkhorn_log(p, q, extended, reg, warn=False, warmstart=(start, torch.zeros_like(q)), **limits)
    plan: Tensor = (solved * (q / solved.sum(dim=0)).clamp(max=1))[:n, :m]  # the rows are exact
    return plan.to(dtype)
