"""A directory of files: killed between two of them, the old one is there, whole, and the next export clears up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cleanpairs.export import diff_export, export_pairs
from cleanpairs.export.formats import FORMATS

CODE = """
import os, signal, sys
from cleanpairs.data import load_pairs
from cleanpairs.export import export_pairs, {module} as module
from cleanpairs.repair.plan import RepairPlan

whole, calls = module.{name}, []

def killed(*args, **kwargs):
    calls.append(1)
    if len(calls) == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
    return whole(*args, **kwargs)

module.{name} = killed
data, plan, out, kind, shard = sys.argv[1:]
size = int(shard) or None
export_pairs(load_pairs(data), RepairPlan.load(plan), out, format=kind, shard_size=size, overwrite=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "module", "name", "at"),
    [
        ("webdataset", "webdataset_format", "ParquetSink", 3),  # the third shard begins
        ("datasets", "writing", "write_manifest", 1),  # all are written, none published
    ],
)
def test_the_old_directory_stays(
    kind: str, module: str, name: str, at: int, make_pairs: Any, make_plan: Any, tmp_path: Path
) -> None:
    pairs = make_pairs(8)
    plan = make_plan(pairs)
    plan.save(tmp_path / "plan.parquet")
    out = tmp_path / "out"
    export_pairs(pairs, plan, out, format=kind)
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    code = CODE.format(module=module, name=name, at=at)
    shard = "2" if kind == "webdataset" else "0"
    argv = [sys.executable, "-c", code, pairs.source.paths[0], str(tmp_path / "plan.parquet"), str(out), kind, shard]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before
    assert diff_export(out).pairs == 8  # the manifest beside it is the old one too
    left = [p for p in tmp_path.iterdir() if p.name.startswith(".cleanpairs-")]
    assert left, "the kill came too late to test anything"
    export_pairs(pairs, plan, out, format=kind, overwrite=True)
    assert FORMATS.load(kind).count(out) == 8
    assert [p for p in tmp_path.iterdir() if p.name.startswith(".cleanpairs-")] == []
