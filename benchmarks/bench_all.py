"""Every operation beside its named baseline, its target and the machine's floor: one table (`make bench`).

    python benchmarks/bench_all.py [--only ops,search] [--json rows.jsonl]

Four minutes of one core. What the columns mean is said in side_by_side.py, what each baseline is in the head of the
script that it comes from. Exit code 1 where an operation fails; a missed target is listed, and is no failure.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from side_by_side import Machine, Row, measure, one_thread, show

# What is shown first, and the module whose function `rows` gives it.
GROUPS = {
    "training": "bench_training",
    "ops": "bench_ops",
    "split": "bench_split",
    "search": "bench_search",
    "transport": "bench_transport",
    "files": "bench_files",
}


def rows(names: list[str], machine: Machine, failed: list[str]) -> Iterator[Row]:
    """Of all groups; one that fails does not cost the others."""
    for name in names:
        began = time.process_time()
        try:
            yield from importlib.import_module(GROUPS[name]).rows(machine)
        except (Exception, SystemExit):
            traceback.print_exc()
            failed.append(name)
        print(f"  ({name}: {time.process_time() - began:.0f} s of CPU)", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(GROUPS), help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--json", type=Path, help="append the rows to this file, a line each")
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := [name for name in names if name not in GROUPS]:
        parser.error(f"--only: unknown {', '.join(unknown)} (known: {', '.join(GROUPS)})")
    one_thread()
    torch.set_num_threads(1)
    machine, failed = measure(), []
    done = show(rows(names, machine, failed), machine)
    if args.json is not None:
        with args.json.open("a", encoding="utf-8") as out:
            for row in done:
                what = asdict(row) | {"ratio": row.ratio, "reached": row.reached}
                out.write(json.dumps(what, default=lambda x: x.item()) + "\n")  # numpy's numbers
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
