r"""Partial entropic optimal transport over the edges of a sparse bipartite graph: a joint choice of partners.

Rows i of mass a_i (images), columns j of mass b_j (captions), edges (i, j) of cost C_ij, and the price xi of an edge
that is just as good as none:

    minimise    sum_E pi_ij C_ij + xi / 2 (sum_i s_i + sum_j t_j) - lambda (H(pi) + H(s) + H(t) + H(r))
    subject to  sum_j pi_ij + s_i = a_i,    sum_i pi_ij + t_j = b_j,    sum_i s_i + r = B,    sum_j t_j + r = A

with A, B the sums of a, b and H(p) = -sum p log p. s is the mass that stays with a row and t with a column, so that
nobody must take what does not fit; r is what is left of the slack node. That is balanced transport with one more row
and column (Chapel, Alaya and Gasso, NeurIPS 2020; the dustbin of Sarlin et al., SuperGlue, CVPR 2020, with a fixed
price), and of its dense form ``ot.sinkhorn`` is the oracle of the tests. Sinkhorn's scaling, an edge list for a kernel:

    u_i = a_i / (sum_j K_ij v_j + v_0),    u_0 = B / (sum_j v_j + v_0),    K = exp((xi - C) / lambda)
    v_j = b_j / (sum_i K_ij u_i + u_0),    v_0 = A / (sum_i u_i + u_0)

The scalings u and v are what a nearest neighbour lacks: a caption that is near to everything gets a small v_j and no
longer wins everywhere (hubs), and an image whose neighbours are all wanted elsewhere keeps its mass.

An iteration is two sparse matrix-vector products; memory some 24 bytes an edge. A few bring the plan near; the last
digits take thousands where lambda is far below the differences of the costs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from cleanpairs.core.errors import DataError
from cleanpairs.ops.scratch import is_mapped, release

EVERY = 5  # iterations between two looks at the error
LEAP = (1e-6, 1e6)  # ratios beyond which a step is the plain one
DEEPEST = 650.0  # lambda at the least: exp(-DEEPEST) times any sum of masses is a normal float64
_BLOCK = 1 << 20  # edges
TINY = np.finfo(np.float64).tiny


@dataclass(frozen=True)
class SparsePlan:
    """What each edge carries."""

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

    - ``row``, ``column`` (E,) int: ends of each edge, in [0, n) and [0, m); in order of the rows, no edge twice
    - ``cost`` (E,) float: finite; of any sign and scale. Mapped from a file, it is overwritten with the masses
    - ``row_mass``, ``column_mass`` (n,), (m,) float: at least 0
    - ``stay_cost``: xi: an edge that costs more is worse than none
    - ``reg``: lambda > 0. Costs of more than 650 lambda above the row's cheapest edge are as good as forbidden
    - ``tol``: largest violation of the marginals, as a fraction of all mass, after ``max_iter`` iterations at most
    - ``relaxation`` in [1, 2): power of a step over the plain one's, while the error falls; 1.8 halves the iterations

    Raises DataError: costs that are not finite.
    """
    row, column = (x if x.dtype == np.int32 else x.astype(np.int64) for x in (np.asarray(row), np.asarray(column)))
    given = np.asarray(cost, dtype=np.float64)
    a, b = (np.asarray(x, dtype=np.float64) for x in (row_mass, column_mass))
    n, m = len(a), len(b)
    if not a.sum() or not b.sum():
        return SparsePlan(np.zeros(len(given)), a.copy(), b.copy(), 0, 0.0, True)
    value = given if is_mapped(given) else given.copy()
    least, start = _to_kernel(value, row, n, stay_cost, reg)
    K = _Kernel(value, column, start, m)
    k = np.exp(np.maximum(least / reg, -DEEPEST))  # (n,) kernel of staying, in the row's scale
    A, B = float(a.sum()), float(b.sum())
    v, v_0 = np.ones(m), 1.0
    error, iteration, power = np.inf, 0, 1.0
    for iteration in range(1, max_iter + 1):
        # Both products of a block while it is in the cache: u_i needs no more than its row.
        u, sums = K.scale_rows(a, v, k * v_0)
        u_0 = B / (float(v.sum()) + v_0)
        reached, stays = sums + u_0, float(k @ u) + u_0
        if iteration % EVERY == 0 or iteration == max_iter:  # rows are exact here: columns carry all the error
            before, error = error, (float(np.abs(v * reached - b).sum()) + abs(v_0 * stays - A)) / (A + B)
            if error <= tol:
                break
            power = relaxation if error < before else 1.0
        v = _relaxed(v, b / reached, power)
        v_0 *= (A / stays / v_0) ** power
    for s in _blocks(len(value)):
        value[s] *= u[row[s]] * v[column[s]]
        release(value, row, column)
    return SparsePlan(value, u * k * v_0, u_0 * v, iteration, error, bool(error <= tol))


def _to_kernel(
    value: np.ndarray, row: np.ndarray, n: int, stay_cost: float, reg: float
) -> tuple[np.ndarray, np.ndarray]:
    """Put the kernel, a row's cheapest way 1, in the costs' place; each row's least cost and first edge (n + 1,)."""
    least, start = np.zeros(n), np.zeros(n + 1, np.int64)
    for s in _blocks(len(value)):
        if not np.isfinite(value[s]).all():
            raise DataError("some costs are not finite: leave such edges out")
        value[s] -= stay_cost
        lead = np.flatnonzero(np.append(True, row[s][1:] != row[s][:-1]))
        held = row[s][lead]
        least[held] = np.minimum(least[held], np.minimum.reduceat(value[s], lead))
        start[held + 1] += np.diff(lead, append=s.stop - s.start)
        release(value, row)
    np.cumsum(start, out=start)
    for s in _blocks(len(value)):  # in the place of the costs
        part = value[s]
        part -= least[row[s]]
        part /= -reg
        np.exp(np.maximum(part, -DEEPEST, out=part), out=part)
        release(value, row)
    return least, start


def _relaxed(v: np.ndarray, new: np.ndarray, power: float) -> np.ndarray:
    """``v (new / v)^power``: a longer step, to the same end; ``new`` itself where the step is a large one."""
    if power == 1:
        return new
    ratio = new / np.maximum(v, TINY)
    return np.where((ratio > LEAP[0]) & (ratio < LEAP[1]), v * np.clip(ratio, *LEAP) ** power, new)


class _Kernel:
    """The kernel (n, m) by rows, in blocks of rows of some :data:`_BLOCK` edges, which may be mapped from a file."""

    def __init__(self, value: np.ndarray, column: np.ndarray, start: np.ndarray, m: int) -> None:
        kind = np.int32 if m < 2**31 else np.int64
        self.value, self.column, self.m = value, column.astype(kind, copy=False), m
        n = len(start) - 1
        ends = np.searchsorted(start, np.arange(_BLOCK, len(value) + _BLOCK, _BLOCK), side="right") - 1
        cuts = [0, *np.unique(ends[(ends > 0) & (ends < n)]).tolist(), n]
        from scipy.sparse import csr_matrix

        self.parts: list[tuple[slice, csr_matrix]] = []
        for i, j in pairwise(cuts):
            e = slice(int(start[i]), int(start[j]))
            rows = csr_matrix((j - i, m))
            rows.indptr = (start[i : j + 1] - start[i]).astype(kind)
            rows.data, rows.indices = value[e], self.column[e]  # given to its constructor they would be copied
            self.parts.append((slice(i, j), rows))

    def scale_rows(self, a: np.ndarray, v: np.ndarray, stay: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """``u = a / (K v + stay)`` (n,), and ``K^T u`` (m,)."""
        u, sums = np.empty(len(a)), np.zeros(self.m)
        for s, K in self.parts:
            u[s] = a[s] / np.maximum(K @ v + stay[s], TINY)
            sums += K.T @ u[s]
            release(self.value, self.column)
        return u, sums


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, _BLOCK):
        yield slice(start, min(start + _BLOCK, count))
