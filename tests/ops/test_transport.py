"""Partial transport, dense and sparse: against POT, its constraints, and the problems that break solvers."""

from typing import Any

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cleanpairs.core.errors import DataError
from cleanpairs.ops.sparse_transport import sparse_transport
from cleanpairs.ops.transport import partial_transport
from tests.helpers import assert_raises

TIGHT: dict[str, Any] = {"tol": 1e-10, "max_iter": 20_000}


def random_cost(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(shape))


def diagonal(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.bool)


def by_pot(cost: Tensor, mass: float, reg: float, forbidden: Tensor | None = None, xi: float = 0.3) -> np.ndarray:
    """L2RM's appendix B: a virtual row and column at cost xi, the corner and what is forbidden out of reach."""
    n, m = cost.shape
    C = np.full((n + 1, m + 1), xi)
    C[:n, :m] = cost.numpy()
    out_of_reach = 1e4 * reg
    C[n, m] = out_of_reach
    if forbidden is not None:
        C[:n, :m][forbidden.numpy()] = out_of_reach
    p, q = np.append(np.full(n, 1 / n), 1 - mass), np.append(np.full(m, 1 / m), 1 - mass)
    return ot.sinkhorn(p, q, C, reg, method="sinkhorn", stopThr=1e-13, numItermax=20_000, warn=False)[:n, :m]


@pytest.mark.parametrize("shape", [(6, 6), (5, 9), (1, 5), (5, 1), (24, 24)])
@pytest.mark.parametrize(("mass", "reg"), [(0.9, 0.1), (0.1, 0.01)])
def test_equals_pot_on_the_augmented_problem(shape: tuple[int, int], mass: float, reg: float) -> None:
    cost, forbidden = random_cost(*shape), diagonal(24) if shape == (24, 24) else None
    found = partial_transport(cost.clone().requires_grad_(), mass=mass, reg=reg, forbidden=forbidden, **TIGHT)
    np.testing.assert_allclose(found.numpy(), by_pot(cost, mass, reg, forbidden), atol=1e-8)  # it has no gradient


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9)), mass=st.floats(0.01, 1.0), reg=st.floats(0.003, 1.0),
    barred=st.floats(0, 0.9), shift=st.sampled_from([0.0, 1.0, -50.0, 1e4]),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 100.0]), seed=st.integers(0, 1000),
)  # fmt: skip
def test_constraints_hold_whatever_is_asked(
    shape: tuple[int, int], mass: float, reg: float, barred: float, shift: float, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    cost = torch.from_numpy(rng.random(shape) * scale + shift)
    forbidden = torch.from_numpy(rng.random(shape) < barred)
    plan = partial_transport(cost, mass=mass, reg=reg, forbidden=forbidden, max_iter=200)
    assert plan.isfinite().all() and (plan >= 0).all() and (plan[forbidden] == 0).all()
    for dim, n in enumerate(shape):
        assert (plan.sum(dim=1 - dim) <= 1 / n * (1 + 1e-9)).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_the_gpu_as_on_the_cpu() -> None:
    cost = random_cost(32, 32)
    there = partial_transport(cost.cuda(), forbidden=diagonal(32).cuda())
    assert there.device.type == "cuda"
    torch.testing.assert_close(there.cpu(), partial_transport(cost, forbidden=diagonal(32)))


@pytest.mark.parametrize("reg", [0.003, 0.01, 0.07])
@pytest.mark.parametrize(("start", "spread"), [(0, 0), (1, -0.01), (0, 1e6), (1e-10, 0)])
def test_no_nan_and_all_the_mass(start: float, spread: float, reg: float) -> None:
    """Of costs that are all equal, near 1, very different, or all clipped."""
    cost = start + spread * random_cost(16, 16).float()
    found = partial_transport(cost, reg=reg, forbidden=diagonal(16), max_iter=20_000)
    assert found.isfinite().all()
    assert float(found.sum()) == pytest.approx(0.1, rel=1e-2)


@pytest.mark.parametrize("mass", [0.1, 1.0])
def test_what_cannot_be_moved_stays(mass: float) -> None:
    assert (partial_transport(torch.zeros(1, 1), mass=mass, forbidden=diagonal(1)) == 0).all()
    two = partial_transport(torch.zeros(2, 2), mass=mass, forbidden=diagonal(2))
    torch.testing.assert_close(two, torch.tensor([[0, mass / 2], [mass / 2, 0]]))


def test_an_infeasible_problem_moves_what_is_possible() -> None:
    forbidden = torch.ones(4, 4, dtype=torch.bool)
    forbidden[0, 0] = False
    found = partial_transport(random_cost(4, 4), mass=0.6, forbidden=forbidden)
    assert float(found[0, 0]) == pytest.approx(0.25, rel=1e-2)
    hall = torch.ones(4, 4, dtype=torch.bool)  # each row and column has a partner, but three rows share one
    hall[:3, 0] = hall[3, :] = False
    found = partial_transport(random_cost(4, 4), mass=0.9, forbidden=hall)
    assert 0 < float(found.sum()) <= 0.5 * (1 + 1e-9)


def test_what_is_empty_or_cannot_be_used() -> None:
    for shape in ((0, 3), (3, 0), (0, 0)):
        assert partial_transport(torch.zeros(shape)).shape == shape
    for bad in (float("nan"), float("inf")):
        broken = random_cost(3, 3)
        broken[1, 2] = bad
        assert_raises(DataError, r"entry \[1, 2\]", partial_transport, broken)


# -- sparse -----------------------------------------------------------------------------------------------------------


def problem(n: int, m: int, share: float, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    row, column = np.nonzero(rng.random((n, m)) < share)
    return {
        "row": row, "column": column, "cost": rng.random(len(row)), "row_mass": rng.uniform(0.5, 3, n),
        "column_mass": rng.uniform(0.5, 2, m),
    }  # fmt: skip


def dense_oracle(p: dict[str, np.ndarray], price: float, reg: float) -> np.ndarray:
    """(n + 1, m + 1) by POT: where there is no edge the cost is so high that nothing goes."""
    a, b = p["row_mass"], p["column_mass"]
    C = np.full((len(a) + 1, len(b) + 1), 50.0)
    C[p["row"], p["column"]] = p["cost"]
    C[:-1, -1] = C[-1, :-1] = price / 2
    C[-1, -1] = 0
    first, second = np.append(a, b.sum()), np.append(b, a.sum())
    plan: np.ndarray = ot.sinkhorn(first, second, C, reg, method="sinkhorn_log", stopThr=1e-12, numItermax=20_000)
    return plan


@pytest.mark.parametrize(
    ("relaxation", "price", "reg", "shift"),
    [(1.0, 0.2, 0.5, 0.0), (1.8, 0.7, 0.1, -3.0), (1.0, 1.5, 0.05, 100.0), (1.8, 0.2, 0.05, 0.0), (1.8, 1.5, 0.5, 0.0)],
)
def test_sparse_equals_pot_on_the_dense_problem(relaxation: float, price: float, reg: float, shift: float) -> None:
    """Costs may be of any level."""
    p = problem(12, 9, 0.4)
    want = dense_oracle(p, price, reg)
    moved = {**p, "cost": p["cost"] + shift, "stay_cost": price + shift}
    got = sparse_transport(**moved, reg=reg, tol=1e-10, max_iter=20_000, relaxation=relaxation)
    assert got.converged
    found = np.concatenate([got.mass, got.row_left, got.column_left])
    wanted = np.concatenate([want[p["row"], p["column"]], want[:-1, -1], want[-1, :-1]])
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("reg", [1.0, 0.01, 0.003, 0.0005])
def test_sparse_masses_add_up(reg: float) -> None:
    p = problem(40, 30, 0.2, seed=3)
    got = sparse_transport(**p, stay_cost=0.6, reg=reg, tol=1e-4, max_iter=5000)
    masses = np.concatenate([got.mass, got.row_left, got.column_left])
    assert np.isfinite(masses).all() and masses.min() >= 0
    total = p["row_mass"].sum() + p["column_mass"].sum()
    rows = np.bincount(p["row"], got.mass, 40) + got.row_left - p["row_mass"]
    columns = np.bincount(p["column"], got.mass, 30) + got.column_left - p["column_mass"]
    assert np.abs(rows).sum() + np.abs(columns).sum() <= 2 * got.error * total + 1e-9
    if reg >= 0.01:
        assert got.converged and got.error <= 1e-4


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 3), (3, 0), (2, 2)])
def test_sparse_without_edges_or_anybody(n: int, m: int) -> None:
    none = np.zeros(0)
    plan = sparse_transport(none, none, none, np.ones(n), np.ones(m), stay_cost=0.5, reg=0.1, max_iter=2000)
    assert plan.mass.shape == (0,) and plan.converged
    np.testing.assert_allclose(plan.row_left, np.ones(n), atol=0.01)
    np.testing.assert_allclose(plan.column_left, np.ones(m), atol=0.01)


def test_sparse_costs_that_are_no_numbers_are_refused() -> None:
    p = problem(12, 9, 0.4)
    p["cost"][1] = np.nan
    assert_raises(DataError, "not finite", sparse_transport, **p, stay_cost=0.5, reg=0.1)
