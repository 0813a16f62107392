"""Partial transport and rank correlation against what a user would write: seconds, ratios and errors.

    python benchmarks/bench_all.py --only ops

One thread, CPU seconds; contestants take turns, and the fastest of their turns counts.

*Transport*: 128 x 128, the diagonal forbidden, mass 0.1, costs relu(1 - S) of random unit vectors. The peer is L2RM's
appendix B: the augmented problem with its xi and A, Sinkhorn on logarithms, M_ij = (-C^_ij + f_i + g_j) / lambda
masked, f <- f + lambda (log p^ - LSE_j M), g likewise, 1,000 iterations at most, until sum |f - f_before| < 1e-3;
float32. Plan error: |plan - exact|_1 / mass, exact = POT's `sinkhorn_log` on the augmented problem in float64 at 1e-12.

*Ranks*: a bank of 4,096; the peers are `scipy.stats.rankdata` a row, and a loop of Euclidean distances and
`scipy.stats.spearmanr` a row (on a sample of the rows, scaled).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial

import numpy as np
import ot
import torch
from scipy import stats
from side_by_side import Machine, Row, take_turns
from torch import Tensor

from cleanpairs.ops import ranks as of_torch
from cleanpairs.ops.transport import partial_transport

MASS = 0.1


def augmented(cost: Tensor, xi: float) -> tuple[Tensor, Tensor, Tensor]:
    """Appendix B: C^ (n + 1, n + 1), the mask (True: allowed), the marginal (n + 1,)."""
    n = len(cost)
    C = cost.new_full((n + 1, n + 1), xi)
    C[:n, :n] = cost
    C[n, n] = 2 * xi + cost.max() + 1
    allowed = torch.ones(n + 1, n + 1, dtype=torch.bool)
    allowed[:n, :n].fill_diagonal_(False)
    p = cost.new_full((n + 1,), 1 / n)
    p[n] = 1 - MASS
    return C, allowed, p


def papers_solver(cost: Tensor, reg: float, xi: float = 1.0) -> Tensor:
    n = len(cost)
    C, allowed, p = augmented(cost, xi)
    log_p, barred = p.log(), ~allowed
    f, g = torch.zeros_like(p), torch.zeros_like(p)

    def modified() -> Tensor:
        return ((-C + f[:, None] + g[None, :]) / reg).masked_fill(barred, -torch.inf)

    for _ in range(1000):
        before = f
        f = f + reg * (log_p - modified().logsumexp(dim=1))
        g = g + reg * (log_p - modified().logsumexp(dim=0))
        if (f - before).abs().sum() < 1e-3:
            break
    return modified().exp()[:n, :n]


def ours(cost: Tensor, reg: float) -> Tensor:
    diagonal = torch.eye(len(cost), dtype=torch.bool)
    return partial_transport(cost, mass=MASS, reg=reg, forbidden=diagonal)


def exact_plan(cost: Tensor, reg: float) -> np.ndarray:
    """By POT, on logarithms, to 1e-12; large ones without, which float64 holds since the least cost is 0, to 1e-9."""
    n = len(cost)
    how = ("sinkhorn_log", 1e-12) if n < 1000 else ("sinkhorn", 1e-9)
    C, allowed, p = (x.numpy() for x in augmented(cost.double(), xi=0.0))
    C = np.where(allowed, C - cost.min().item(), 1e4)
    C[n, :n] = C[:n, n] = 0
    C[n, n] = 1e4
    plan = ot.sinkhorn(p, p, C, reg, method=how[0], stopThr=how[1], numItermax=20_000, warn=False)
    return np.asarray(plan)[:n, :n]


def unit(rng: np.random.Generator, *shape: int) -> np.ndarray:
    x = rng.standard_normal(shape, dtype=np.float32)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def average_ranks(x: np.ndarray) -> np.ndarray:
    return of_torch.average_ranks(torch.from_numpy(x)).numpy()


def rank_correlation(*arrays: np.ndarray) -> np.ndarray:
    return of_torch.rank_correlation(*map(torch.from_numpy, arrays)).numpy()


def row_loop(images: np.ndarray, texts: np.ndarray, bank_image: np.ndarray, bank_text: np.ndarray) -> np.ndarray:
    out = np.empty(len(images))
    for i, (image, text) in enumerate(zip(images, texts, strict=True)):
        d_image, d_text = np.linalg.norm(bank_image - image, axis=1), np.linalg.norm(bank_text - text, axis=1)
        out[i] = stats.spearmanr(d_image, d_text).statistic
    return out


def transport_rows(machine: Machine) -> Iterator[Row]:
    for size, dim, reg in ((128, 16, 0.07), (128, 16, 0.01), (128, 256, 0.07), (128, 256, 0.01), (2048, 256, 0.01)):
        generator = torch.Generator().manual_seed(0)
        z = torch.nn.functional.normalize(torch.randn(2, size, dim, generator=generator), dim=2)
        cost = (1 - z[0] @ z[1].T).relu()
        exact = exact_plan(cost, reg)
        contestants = {"ours": partial(ours, cost, reg), "paper": partial(papers_solver, cost, reg)}
        timed = take_turns(contestants, 1 if size > 1000 else 8)
        error = {k: np.abs(plan.double().numpy() - exact).sum() / MASS for k, plan in timed.result.items()}
        yield Row(
            "partial transport", f"{size:,} x {size:,}, {dim}-d, lambda {reg}", timed.seconds["ours"],
            "L2RM's appendix B", timed.seconds["paper"], 15.0, machine.floor(moved=8.0 * size * size),
            f"plan error {error['ours']:.0e}, baseline's {error['paper']:.0e}", 5 * error["ours"] <= error["paper"],
        )  # fmt: skip


def rank_rows(machine: Machine, rows: int, bank: int, dim: int) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    x, few = rng.standard_normal((2000, bank), dtype=np.float32), 400
    timed = take_turns(
        {"ours": lambda: average_ranks(x), "scipy": lambda: np.stack([stats.rankdata(row) for row in x[:few]])}, 4
    )
    same = np.array_equal(timed.result["ours"][:few], timed.result["scipy"])
    yield Row(
        "ranks", f"{len(x):,} rows of {bank:,}", timed.seconds["ours"], "scipy.stats.rankdata a row",
        timed.seconds["scipy"] * len(x) / few, 8.0, machine.floor(moved=2 * x.nbytes),
        "equal" if same else "differ", same,
    )  # fmt: skip
    few = 50
    for kind, captions in (("five captions an image", 5), ("images distinct", 1)):
        images = np.repeat(unit(rng, -(-bank // captions), dim), captions, axis=0)[:bank]
        pool = (unit(rng, rows, dim), unit(rng, rows, dim), images, unit(rng, bank, dim))
        some = (pool[0][:few], pool[1][:few], *pool[2:])
        timed = take_turns({"ours": partial(rank_correlation, *pool), "loop": partial(row_loop, *some)}, 2)
        off = np.abs(timed.result["ours"][:few] - timed.result["loop"]).max()
        scale = 100_000 / rows  # it works in blocks of rows
        yield Row(
            "rank correlation", f"100,000 x bank {bank:,}, {dim}-d, {kind}", timed.seconds["ours"] * scale,
            "loop: distances, spearmanr", timed.seconds["loop"] * 100_000 / few, 35.0,
            machine.floor(2.0 * 100_000 * bank * dim * (1 + 1 / captions)),
            f"scaled from {rows:,} rows; differs by {off:.0e}",
        )  # fmt: skip


def rows(machine: Machine) -> Iterator[Row]:
    """Those of the suite (bench_all.py)."""
    warnings.simplefilter("ignore")
    yield from rank_rows(machine, 4000, 4096, 1024)
    yield from transport_rows(machine)
