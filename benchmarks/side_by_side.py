"""What the benchmarks share: contestants that take turns, rows of one table, and the floor that the machine sets.

A row is one operation beside its named baseline, both run in this process, on the same input. Times are CPU seconds (of
all threads, of which there is one), the minimum of interleaved rounds: the machine may be shared, so that ratios count
and lone times mean little.

    ratio = baseline / ours                    above 1: ours is faster
    floor = max(FLOPs / peak, bytes / bandwidth), both measured at the start; the column says how many times that it is

FLOPs are those of the matrix products and bytes those of the inputs and the results: what every implementation of the
operation has to do. Operations with few of either (sorting, transcendental functions) are far from it by their nature.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Machine", "Row", "Timed", "measure", "one_thread", "show", "table", "take_turns"]

TURN = 0.02  # seconds that a turn takes at least: short calls are repeated


def one_thread() -> None:
    """Begin again with one thread a process, unless that is so: the libraries read it when they are loaded."""
    if os.environ.get("OMP_NUM_THREADS") != "1":
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_NUM_THREADS": "1"})


@dataclass(frozen=True)
class Machine:
    """One thread's peak in float32 FLOP/s, and bytes/s of a copy (read and written)."""

    flops: float
    bandwidth: float

    def floor(self, flops: float = 0.0, moved: float = 0.0) -> float:
        """Seconds that so many operations and bytes take at the least."""
        return max(flops / self.flops, moved / self.bandwidth)

    def __str__(self) -> str:
        return f"{self.flops / 1e9:.0f} GFLOP/s in float32, {self.bandwidth / 1e9:.1f} GB/s copied"


def measure() -> Machine:
    """What one thread of the machine does."""
    from bench_scale import floors  # here: who only times something needs none of what that script needs

    return Machine(*floors())


@dataclass(frozen=True)
class Timed:
    """CPU seconds of each contestant's fastest call, and what its last call returned."""

    seconds: dict[str, float]
    result: dict[str, Any]


def take_turns(contestants: Mapping[str, Callable[[], Any]], rounds: int) -> Timed:
    """Each contestant's fastest call; in turns, so that all see the same machine."""
    best, result = dict.fromkeys(contestants, float("inf")), {}
    for _ in range(rounds):
        for name, call in contestants.items():
            end = time.process_time() + TURN
            while (began := time.process_time()) < end:
                result[name] = call()
                best[name] = min(best[name], time.process_time() - began)
    return Timed(best, result)


@dataclass(frozen=True)
class Row:
    """One line of the table. ``ours``, ``theirs`` and ``floor`` in seconds; ``target``: the ratio that is aimed at."""

    operation: str
    size: str
    ours: float
    baseline: str
    theirs: float
    target: float | None = None
    floor: float | None = None
    note: str = ""
    holds: bool = True  # what the target asks for beside the ratio: an error, a recall

    @property
    def ratio(self) -> float:
        """How many times as long the baseline takes."""
        return self.theirs / self.ours

    @property
    def reached(self) -> bool | None:
        """Whether the target is; None without one."""
        return None if self.target is None else bool(self.holds) and round(self.ratio, 2) >= self.target


def duration(seconds: float) -> str:
    """Three digits: 12.3 ms, 1.23 s."""
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def figure(x: float) -> str:
    """Three digits, and no powers of ten."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def table(rows: Iterable[Row]) -> str:
    """Markdown."""
    heads = "operation | size | ours | baseline | its time | ratio | target | reached | times the floor | note"
    lines = [f"| {heads} |", "|---" * 10 + "|"]
    for row in rows:
        reached = {None: "", True: "yes", False: "**no**"}[row.reached]
        lines.append(
            f"| {row.operation} | {row.size} | {duration(row.ours)} | {row.baseline} | {duration(row.theirs)} "
            f"| {figure(row.ratio)} | {'' if row.target is None else f'{row.target:g}'} | {reached} "
            f"| {'' if not row.floor else f'{figure(row.ours / row.floor)}'} | {row.note} |"
        )
    return "\n".join(lines)


def missed(rows: Iterable[Row]) -> str:
    """The targets that are not reached, a line each."""
    lines = [
        f"  {row.operation}, {row.size}: {row.ratio:.3g} of {row.target:g}{f' ({row.note})' if row.note else ''}"
        for row in rows
        if row.reached is False
    ]
    return "missed targets: none" if not lines else "missed targets:\n" + "\n".join(lines)


def show(rows: Iterable[Row], machine: Machine) -> list[Row]:
    """Print the table of rows as they come (to the error stream, a line each) and then as one."""
    done = []
    for row in rows:
        done.append(row)
        times = f"{duration(row.ours)}, {row.baseline} {duration(row.theirs)}"
        print(f"  {row.operation}, {row.size}: {times}: {figure(row.ratio)}", file=sys.stderr, flush=True)
    print(f"One thread: {machine}\n\n{table(done)}\n\n{missed(done)}", flush=True)
    return done
