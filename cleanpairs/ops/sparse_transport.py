r"""Partial entropic optimal transport over the edges of a sparse bipartite graph: a joint choice of partners.

There are rows i of mass a_i (images), columns j of mass b_j (captions), and edges (i, j) of cost C_ij. An edge of the
price xi is just as good as none:

    minimise    sum_E pi_ij C_ij + xi / 2 (sum_i s_i + sum_j t_j) - lambda (H(pi) + H(s) + H(t) + H(r))
    subject to  sum_j pi_ij + s_i = a_i,    sum_i pi_ij + t_j = b_j,    sum_i s_i + r = B,    sum_j t_j + r = A

A and B are the sums of a and of b, and H(p) = -sum p log p. Mass s stays with a row and t with a column, so that nobody
must take what does not fit. The slack node keeps r. That is balanced transport with one more row and column (Chapel,
Alaya and Gasso, NeurIPS 2020). It is the dustbin of SuperGlue (Sarlin et al., CVPR 2020) with a fixed price. The tests
compare its dense form with ``ot.sinkhorn``.

It is solved by Sinkhorn's scaling, with an edge list as kernel:

    u_i = a_i / (sum_j K_ij v_j + v_0),    u_0 = B / (sum_j v_j + v_0),    K = exp((xi - C) / lambda)
    v_j = b_j / (sum_i K_ij u_i + u_0),    v_0 = A / (sum_i u_i + u_0)

The scalings u and v are what a nearest neighbour lacks. A caption that is near to everything (a hub) gets a small v_j
and no longer wins everywhere. An image whose neighbours are all wanted elsewhere keeps its mass.

An iteration is two sparse matrix-vector products, and takes some 24 bytes of memory an edge. A few bring the plan near.
The last digits take thousands where lambda is far below the differences of the costs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from cleanpairs.core import DataError


@dataclass(frozen=True)
class SparsePlan:
    """The mass that each edge carries."""

    mass: np.ndarray  # (E,) float64
    row_left: np.ndarray  # (n,): mass that stays
    column_left: np.ndarray  # (m,)
    iterations: int
    error: float  # violation of the marginals in L1, of all mass
    converged: bool  # within the tolerance


def sparse_transport(
    row: np.ndarray,
    column: np.ndarray,
    cost: np.ndarray,
    row_mass: np.ndarray,
    column_mass: np.ndarray,
    *,
    stay_cost: float,
    reg: float,
    tol: float = 1e-3,
    max_iter: int = 200,
    relaxation: float = 1.0,
) -> SparsePlan:
    """Solve the problem of the module's head.

    Parameters
    ----------
    row, column : ndarray (E,) of int
        Ends of each edge, in [0, n) and [0, m), in order of the rows, no edge twice.

    cost : ndarray (E,) of float
        Costs C: finite, of any sign and scale. A cost of more than 650 ``reg`` above the row's least forbids an edge.

    row_mass, column_mass : ndarray (n,), (m,) of float
        Masses a and b, at least 0.

    stay_cost : float
        Price xi. An edge that costs more is worse than none.

    reg : float
        Regularisation lambda, above 0.

    tol : float
        Largest violation of the marginals, as a fraction of all mass.

    max_iter : int
        Iterations at most.

    relaxation : float
        A step is the plain one to this power, in [1, 2), while the error falls. With 1.8 half the iterations do.

    Raises
    ------
    DataError
        Some costs are not finite.
    """
    row, column = np.asarray(row, dtype=np.int32), np.asarray(column, dtype=np.int32)
    value = np.array(cost, dtype=np.float64)
    a, b = (np.asarray(x, dtype=np.float64) for x in (row_mass, column_mass))
    if not a.sum() or not b.sum():
        return SparsePlan(np.zeros(len(value)), a.copy(), b.copy(), 0, 0.0, True)
    if not np.isfinite(value).all():
        raise DataError("some costs are not finite: leave such edges out")
    K, k = _kernels(value, row, column, (len(a), len(b)), stay_cost, reg)
    A, B = float(a.sum()), float(b.sum())
    v, v_0 = np.ones(len(b)), 1.0
    error, iteration, power = np.inf, 0, 1.0
    for iteration in range(1, max_iter + 1):
        u = a / np.maximum(K @ v + k * v_0, np.finfo(np.float64).tiny)
        u_0 = B / (float(v.sum()) + v_0)
        reached, stays = K.T @ u + u_0, float(k @ u) + u_0
        if iteration % 5 == 0 or iteration == max_iter:  # rows are exact: columns carry all the error
            before, error = error, (float(np.abs(v * reached - b).sum()) + abs(v_0 * stays - A)) / (A + B)
            if error <= tol:
                break
            power = relaxation if error < before else 1.0
        new = b / reached
        if power != 1:  # v (new / v)^power: a longer step, to the same end, but where the step is a large one
            ratio, least, most = new / np.maximum(v, np.finfo(np.float64).tiny), 1e-6, 1e6
            new = np.where((ratio > least) & (ratio < most), v * np.clip(ratio, least, most) ** power, new)
        v = new
        v_0 *= (A / stays / v_0) ** power
    value *= u[row] * v[column]
    return SparsePlan(value, u * k * v_0, u_0 * v, iteration, error, bool(error <= tol))


def _kernels(
    value: np.ndarray, row: np.ndarray, column: np.ndarray, shape: tuple[int, int], stay_cost: float, reg: float
) -> tuple[Any, np.ndarray]:
    """Sparse kernel (n, m) in the place of the costs ``value``, and the kernel (n,) of staying. By row, 1 at most."""
    from scipy.sparse import csr_matrix

    deepest = -650.0  # its exponential times any sum of masses is a normal float64
    start = np.searchsorted(row, np.arange(shape[0] + 1))
    least = np.zeros(shape[0])  # of staying, or of the row's cheapest edge
    value -= stay_cost
    lead = np.flatnonzero(start[:-1] < start[1:])
    if len(lead):
        least[lead] = np.minimum(0, np.minimum.reduceat(value, start[lead]))
    value -= least[row]
    value /= -reg
    np.exp(np.maximum(value, deepest, out=value), out=value)
    return csr_matrix((value, column, start), shape=shape), np.exp(np.maximum(least / reg, deepest))
