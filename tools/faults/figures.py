"""More figures: exports whose rows do not add up, commands over their cap of memory, or with few threads to start."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from faults.cases import copy
from faults.forked import in_child, run_command

__all__ = ["THRESHOLDS", "Figure", "account", "limits", "measure_memory"]

ROOM = 2**30  # bytes that a command may take beyond what it begins with: the least that --memory-cap takes
THRESHOLDS = ("0", "0.012", "0.02", "0.03", "0.05", "1")
SCORES = ("0", "0.5", "1")
FORMATS = (("out.parquet", ""), ("shards", "--format webdataset --shard-size 7"), ("stored", "--format datasets"))
FIT = (
    "--method infonce --batch-size 16 --device cpu --epochs 1 --set dim=8 --set dim_word=4 --set image_size=32 "
    "--set require_dependence=false --quiet --out run --overwrite"
)


@dataclass(frozen=True)
class Figure:
    """Of ``tried`` things, called ``name`` in the table, the ``problems``, one text each."""

    name: str
    tried: int
    problems: Sequence[str]


def account(prepared: Path, scratch: Path, thresholds: tuple[str, ...] = THRESHOLDS) -> Figure:
    """Export at many thresholds in every format, and verify each: every pair in the ledger and the files, once."""
    base = copy(prepared, scratch / "work")
    problems, tried = [], 0
    for threshold, score, (out, more) in itertools.product(thresholds, SCORES, FORMATS):
        told = f"export run --repaired {out} {more} --threshold {threshold} --set min_repair_score={score} --overwrite"
        done, tried = run_command(told.split(), base), tried + 1
        if done.code != 0:
            problems.append(f"`{told}` ends with {done.code}: {done.err.strip()[-200:]}")
            continue
        verified = run_command(["verify", out, "--quiet"], base)
        if verified.code != 0:
            problems.append(f"`{told}`: {verified.out.strip()[-300:]}")
    return Figure("exports whose rows do not add up", tried, problems)


def _large(path: str, megabytes: int) -> None:
    """One row group of vectors that no compression makes smaller."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, rows, parts = np.random.default_rng(0), 2048, []
    for k in range(megabytes // 8):
        flat = pa.array(rng.random(rows * 1024, np.float32))
        texts = pa.array([f"caption {k} {i} of words" for i in range(rows)])
        parts.append(pa.table({"image_features": pa.FixedSizeListArray.from_arrays(flat, 1024), "caption": texts}))
    table = pa.concat_tables(parts)
    pq.write_table(table, path, row_group_size=len(table), compression="none", use_dictionary=False)


def _private_memory() -> int:
    """Bytes of private memory of this process, as RLIMIT_DATA counts them: allocators reserve more than they use."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmData:"))) * 1024


def measure_memory(scratch: Path, megabytes: int = 600) -> Figure:
    """Commands on one row group of ``megabytes``, under a cap: what each holds beyond what it begins with.

    A child is a copy of this process, all of whose modules are loaded: its cap is this process's own memory and
    ``ROOM``. Without the former it would begin above its cap, where glibc ends a process that needs memory for a
    thread's variables.
    """
    in_child(_large, str(scratch / "large.parquet"), megabytes)
    cap = _private_memory() + ROOM
    idle = run_command(["--version"], scratch).peak
    problems, peaks = [], []
    for told in (
        "inspect large.parquet",
        "verify large.parquet",
        "corrupt large.parquet --noise 0.4 --out noisy.parquet",
    ):
        done = run_command(["--memory-cap", str(cap), *told.split()], scratch)
        held = done.peak - idle
        name = told.split()[0]
        ended = "" if done.code == 0 else f" (exit code {done.code})"
        peaks.append(f"{name} {held / 2**20:.0f} MiB{ended}")
        if held > ROOM or done.code not in (0, 6):
            problems.append(f"{name} held {held / 2**20:.0f} MiB and ended with {done.code}: {done.err.strip()[-200:]}")
    name = f"commands over a memory cap of 1 GiB more ({megabytes} MB in one row group: {', '.join(peaks)})"
    return Figure(name, len(peaks), problems)


def limits(base: Path, folder: Path, *, quick: bool = False) -> Figure:
    """Commands of a user who may start few threads and processes: they end well, or with 6 and a sentence."""
    work = copy(base, folder / "work")
    for path in [work, *work.rglob("*")]:
        path.chmod(0o777)
    env = {**os.environ, "CLEANPAIRS_CACHE": str(work / ".cache"), "HOME": str(work), "TMPDIR": str(work)}
    env["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    problems, tried = [], 0
    for told, openmp, most in itertools.product(
        (f"fit data.parquet {FIT}", "inspect data.parquet"),
        ("", "1")[: 1 if quick else 2],
        (2, 12) if quick else (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16),
    ):
        argv = ["bash", "-c", f"ulimit -u {most} && exec {sys.executable} -m cleanpairs {told}"]
        if os.geteuid() == 0:  # whom the limit does not hold for
            caps = [f"--{kind}-caps=+dac_override,+dac_read_search" for kind in ("inh", "ambient")]
            argv = ["setpriv", "--reuid=54321", "--clear-groups", *caps, *argv]
        done = subprocess.run(
            argv, cwd=work, env=env | {"OMP_NUM_THREADS": openmp}, capture_output=True, text=True, check=False
        )
        tried += 1
        if done.returncode != 0 and not (done.returncode == 6 and done.stderr.startswith("Error [limit]")):
            problems.append(
                f"`{told.split()[0]}`, {most} processes, OMP_NUM_THREADS={openmp}: exit code {done.returncode}: "
                f"{done.stderr.strip()[-200:]}"
            )
    return Figure("commands that may start few threads and processes, and do not say so", tried, problems)
