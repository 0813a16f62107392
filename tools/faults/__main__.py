"""Run the fault suite and print its tables; `make faults` writes them into dev/FAULTS.md.

Every figure is counted here, none is typed in. What cannot be tried on this machine is skipped, and said so. Each part
runs in a process of its own, as many at once as there are cores; this one stays without threads, since it forks.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork keeps one thread
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults import ends, losses, strangers
from faults.cases import CASES, Case, build, prepare
from faults.changes import try_changes
from faults.figures import THRESHOLDS, Figure, account, limits, measure_memory
from faults.forked import in_children, warm
from faults.full_disk import FullDisk, mount_works, try_full_disk
from faults.injection import FAULTS, Tally, strace_works, try_case
from faults.inputs import BAD, try_bad
from faults.mutation import KINDS, mutate_many
from faults.readers import try_readers
from faults.tables import try_fits, try_tables

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
HEADS = {
    "faults": ("command", "calls that write", *FAULTS, "full disk", "resumed, identical"),
    "files": ("damaged files", "tried", "read", "refused", "crashed", "hung", "other errors"),
    "trials": ("", "tried", "wrong"),
}
QUICK = ("fit", "export")  # the commands that are tried then

Row = tuple[str, str, list[str | int], list[str]]  # table, name, cells (those of the same name are added), failures
Parts = dict[str, Callable[[Path], Iterator[Row]]]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="faults", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--points", type=int, default=8, help="points of each system call; 0: all of them [%(default)s]"
    )
    parser.add_argument("--signals", type=int, default=4, help="the same for the other signals [%(default)s]")
    parser.add_argument("--mutations", type=int, default=5000, help="damaged files of each kind [%(default)s]")
    parser.add_argument("--only", help="parts whose names begin with one of these, with commas between")
    parser.add_argument("--list", action="store_true", help="the names of the parts")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="parts at once [%(default)s]")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="two minutes: 2 points, by turns 1 error and 1 signal each, 200 mutations, 60 MB",
    )
    parser.add_argument("--write", type=Path, help="put the tables between the marks of this file")
    given = parser.parse_args()
    if given.quick:
        given.points, given.signals, given.mutations = 2, 1, 200
    return given


def main() -> int:
    given, began = arguments(), time.time()
    scratch = Path(tempfile.mkdtemp(prefix="faults-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    scratch.chmod(0o711)  # some trials are another user's
    results: dict[str, list[Row]] = {}
    parts = all_parts(given, scratch)
    if given.only is not None:
        parts = {name: part for name, part in parts.items() if name.startswith(tuple(given.only.split(",")))}
    if given.list:
        print(*parts, sep="\n")
        return 0
    try:
        warm()
        whys = strace_works(scratch / "probe"), mount_works(scratch / "probe")
        prepare(scratch / "base")
        jobs = {name: partial(run, part, scratch / name.replace(" ", "-")) for name, part in parts.items()}
        for name, rows, seconds in in_children(jobs, given.jobs, scratch):
            results[name] = rows
            wrong = [f"FAILED  {name}: {problem}" for *_, problems in rows for problem in problems]
            print(f"{name}: {seconds:.0f} s", *wrong, sep="\n", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    lines = [*tables([row for name in parts for row in results[name]]), *(f"\nSkipped: {w}" for w in whys if w)]
    lines.append(
        f"\nAt most {given.points or 'all'} points of each system call and fault ({given.signals or 'all'} of the "
        f"signals); {time.strftime('%Y-%m-%d')}, {(time.time() - began) / 60:.0f} minutes in {given.jobs} processes."
    )
    text = "\n".join(lines).strip()
    print(text)
    if given.write is not None:
        page = given.write.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        given.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    return int(any(problems for rows in results.values() for *_, problems in rows))


def run(part: Callable[[Path], Iterator[Row]], folder: Path) -> list[Row]:
    """All rows of a part, in a folder of its own, which others may look into."""
    folder.mkdir()
    try:
        return list(part(folder))
    except Exception:
        return [("trials", "parts that could not be tried", [1, 1], [traceback.format_exc()])]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tables(rows: list[Row]) -> Iterator[str]:
    """Of each table the lines; numbers of rows of one name are added."""
    for table, head in HEADS.items():
        sums: dict[str, list[str | int]] = {}
        for _, name, cells, _ in (row for row in rows if row[0] == table):
            before = sums.get(name, [type(cell)() for cell in cells])
            sums[name] = [a + b for a, b in zip(before, cells, strict=True)]  # type: ignore[operator]
        if sums:
            yield f"\n| {' | '.join(head)} |\n|---|{'---:|' * (len(head) - 1)}"
        for name, cells in sums.items():
            yield f"| {name} | {' | '.join(f'{cell:,}' if isinstance(cell, int) else cell for cell in cells)} |"


def all_parts(given: argparse.Namespace, scratch: Path) -> Parts:
    """By name; the long ones come first, so that no core is left waiting at the end."""
    base, quick = scratch / "base", given.quick
    cases = [case for case in CASES if not quick or case.name in QUICK]
    parts: Parts = {"modules": lambda folder: figure(strangers.modules(base, folder, quick=quick))}
    parts |= {f"command {case.name}": partial(of_command, given, base, case) for case in cases}
    parts |= {f"files {kind}": partial(of_files, given.mutations, kind) for kind in KINDS}
    for name, trials, attempt, some in (
        ("ends", list(ends.trials()), ends.try_trial, 24),
        ("losses", losses.LOSSES, losses.try_loss, 12),
        ("inputs", BAD, try_bad, 12),
    ):
        for k in range(1 if quick else 4):
            parts[f"{name} {k}"] = partial(of_trials, trials[k :: some if quick else 4], attempt, base)
    for count, step, what in (
        (20 if quick else 500, 50, try_tables),
        (40 if quick else 1000, 250, try_changes),
        (4 if quick else 500, 50, try_fits),
        (24 if quick else 600, 150, try_readers),
    ):
        for first in range(0, count, step):
            numbers = range(first, min(first + step, count))
            parts[f"{what.__name__[4:]} {first}"] = partial(of_numbers, what, numbers)
    parts |= {
        "races": lambda folder: figure(losses.try_races(2 if quick else 10, base, folder)),
        "stored": lambda folder: figure(strangers.stored(base, folder, quick=quick)),
        "left behind": lambda folder: figure(strangers.left_behind(base, folder, quick=quick)),
        "limits": lambda folder: figure(limits(base, folder, quick=quick)),
        "memory": lambda folder: figure(measure_memory(folder, 64 if quick else 600)),
        "account": lambda folder: figure(account(base, folder, ("0.02",) if quick else THRESHOLDS)),
    }
    return parts


def figure(found: Figure) -> Iterator[Row]:
    yield "trials", found.name, [found.tried, len(found.problems)], list(found.problems)


def of_trials(trials: Sequence[Any], attempt: Callable[..., list[str]], base: Path, folder: Path) -> Iterator[Row]:
    for trial in trials:
        problems = attempt(trial, base, folder / "work")
        yield "trials", trial.kind, [1, int(bool(problems))], [f"{trial.name!a}: {problem}" for problem in problems]


def of_numbers(attempt: Callable[[range, Path], list[Figure]], numbers: range, folder: Path) -> Iterator[Row]:
    for found in attempt(numbers, folder):
        yield from figure(found)


def of_command(given: argparse.Namespace, prepared: Path, case: Case, folder: Path) -> Iterator[Row]:
    base, tally, full = build(prepared, folder / "base", case), Tally(), FullDisk(0, 0, ())
    if not strace_works(folder / "probe"):
        tally = try_case(case, base, folder, most=given.points, signals=given.signals, turns=given.quick)
    if not mount_works(folder / "probe"):
        full = try_full_disk(case, base, folder)
    wrong = [f"{trial.fault} at {trial.point}: {'; '.join(trial.problems)}" for trial in tally.failures]
    cells = [share(tally.survived[fault], tally.tried[fault]) for fault in FAULTS]
    resumed = share(tally.identical, tally.resumed) if case.resume else ""
    cells = [tally.calls, *cells, share(full.survived, full.tried), resumed]
    yield "faults", case.name, cells, [*wrong, *(f"full disk, {problem}" for problem in full.problems)]


def share(good: int, tried: int) -> str:
    return f"{good} of {tried}" if tried else "-"


def of_files(count: int, kind: str, folder: Path) -> Iterator[Row]:
    found = mutate_many(kind, count, folder)
    wrong = [found.deaths, found.hangs, list(found.bugs)]
    cells = [found.tried, found.read, found.refused, len(found.deaths), len(found.hangs), sum(found.bugs.values())]
    yield "files", kind, cells, [str(what) for some in wrong for what in some]


if __name__ == "__main__":
    sys.exit(main())
