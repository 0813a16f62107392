"""Sparse partial transport: its constraints, POT on the dense problem, limits, and what cannot be solved."""

import numpy as np
import ot
import pytest

from cleanpairs.core.errors import DataError
from cleanpairs.ops.sparse_transport import sparse_transport
from tests.helpers import assert_raises


def problem(n: int, m: int, share: float, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    row, column = np.nonzero(rng.random((n, m)) < share)
    return {
        "row": row, "column": column, "cost": rng.random(len(row)), "row_mass": rng.uniform(0.5, 3, n),
        "column_mass": rng.uniform(0.5, 2, m),
    }  # fmt: skip


def dense_oracle(p: dict[str, np.ndarray], stay: float, reg: float) -> np.ndarray:
    """(n + 1, m + 1) by POT: where there is no edge the cost is so high that nothing goes."""
    a, b = p["row_mass"], p["column_mass"]
    C = np.full((len(a) + 1, len(b) + 1), 50.0)
    C[p["row"], p["column"]] = p["cost"]
    C[:-1, -1] = C[-1, :-1] = stay / 2
    C[-1, -1] = 0
    first, second = np.append(a, b.sum()), np.append(b, a.sum())
    plan: np.ndarray = ot.sinkhorn(first, second, C, reg, method="sinkhorn_log", stopThr=1e-12, numItermax=20_000)
    return plan


@pytest.mark.parametrize(
    ("relaxation", "stay", "reg", "shift"),
    [(1.0, 0.2, 0.5, 0.0), (1.8, 0.7, 0.1, -3.0), (1.0, 1.5, 0.05, 100.0), (1.8, 0.2, 0.05, 0.0), (1.8, 1.5, 0.5, 0.0)],
)
def test_equals_pot_on_the_dense_problem(relaxation: float, stay: float, reg: float, shift: float) -> None:
    """Costs may be of any level."""
    p = problem(12, 9, 0.4)
    want = dense_oracle(p, stay, reg)
    moved = {**p, "cost": p["cost"] + shift, "stay_cost": stay + shift}
    got = sparse_transport(**moved, reg=reg, tol=1e-10, max_iter=20_000, relaxation=relaxation)
    assert got.converged
    np.testing.assert_allclose(got.mass, want[p["row"], p["column"]], atol=1e-6)
    np.testing.assert_allclose(got.row_left, want[:-1, -1], atol=1e-6)
    np.testing.assert_allclose(got.column_left, want[-1, :-1], atol=1e-6)


@pytest.mark.parametrize("reg", [1.0, 0.1, 0.01, 0.003, 0.0005])
def test_masses_add_up(reg: float) -> None:
    p = problem(40, 30, 0.2, seed=3)
    got = sparse_transport(**p, stay_cost=0.6, reg=reg, tol=1e-4, max_iter=5000)
    assert np.isfinite(got.mass).all() and (got.mass >= 0).all()
    assert got.row_left.min() >= 0 and got.column_left.min() >= 0
    total = p["row_mass"].sum() + p["column_mass"].sum()
    rows = np.bincount(p["row"], got.mass, 40) + got.row_left - p["row_mass"]
    columns = np.bincount(p["column"], got.mass, 30) + got.column_left - p["column_mass"]
    assert np.abs(rows).sum() + np.abs(columns).sum() <= 2 * got.error * total + 1e-9
    if reg >= 0.01:
        assert got.converged and got.error <= 1e-4


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 3), (3, 0), (2, 2)])
def test_no_edges_and_nobody(n: int, m: int) -> None:
    none = np.zeros(0)
    plan = sparse_transport(none, none, none, np.ones(n), np.ones(m), stay_cost=0.5, reg=0.1, max_iter=2000)
    assert plan.mass.shape == (0,) and plan.converged
    np.testing.assert_allclose(plan.row_left, np.ones(n), atol=0.01)
    np.testing.assert_allclose(plan.column_left, np.ones(m), atol=0.01)


def test_costs_that_are_no_numbers_are_refused() -> None:
    p = problem(12, 9, 0.4)
    p["cost"][1] = np.nan
    assert_raises(DataError, "not finite", sparse_transport, **p, stay_cost=0.5, reg=0.1)
