"""Run the fault suite and print its table; `make faults` writes it into docs/robustness.md.

Every figure is counted here, none is typed in. What cannot be tried on this machine is skipped, and said so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a fork keeps one thread
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from faults.cases import CASES
from faults.changes import try_changes
from faults.ends import KINDS as ENDS
from faults.ends import trials, try_trial
from faults.figures import THRESHOLDS, account, measure_memory
from faults.forked import warm
from faults.full_disk import FullDisk, mount_works, try_full_disk
from faults.injection import FAULTS, Tally, strace_works, try_case
from faults.inputs import BAD, prepare, try_bad
from faults.losses import LOSSES, prepare_losses, try_loss, try_races
from faults.mutation import KINDS, mutate_many
from faults.strangers import addresses, left_behind, modules, stored
from faults.tables import try_tables

BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="faults", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--points", type=int, default=8, help="points of each system call; 0: all of them [%(default)s]"
    )
    parser.add_argument("--signals", type=int, default=4, help="the same for SIGINT and SIGTERM [%(default)s]")
    parser.add_argument("--mutations", type=int, default=5000, help="damaged files of each kind [%(default)s]")
    parser.add_argument("--only", help="commands, with commas between")
    parser.add_argument(
        "--strangers", action="store_true", help="only what strangers may lay beside data and into files"
    )
    parser.add_argument("--quick", action="store_true", help="two minutes: 2 points, 1 signal, 200 mutations, 60 MB")
    parser.add_argument("--write", type=Path, help="put the table between the marks of this file")
    given = parser.parse_args()
    if given.quick:
        given.points, given.signals, given.mutations = 2, 1, 200
    return given


def main() -> int:
    given = arguments()
    began = time.time()
    scratch = Path(tempfile.mkdtemp(prefix="faults-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    failures: list[str] = []
    try:
        warm()
        lines = of_strangers(given, scratch, failures) if given.strangers else table(given, scratch, failures)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    lines.append(
        f"\nAt most {given.points or 'all'} points of each system call and fault ({given.signals or 'all'} of the "
        f"signals); {time.strftime('%Y-%m-%d')}, {(time.time() - began) / 60:.0f} minutes on {os.cpu_count()} CPUs."
    )
    text = "\n".join(lines)
    print(text)
    for failure in failures:
        print(f"FAILED  {failure}", file=sys.stderr)
    if given.write is not None:
        page = given.write.read_text(encoding="utf-8")
        before, rest = page.split(BEGIN)
        given.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}", encoding="utf-8")
    return 1 if failures else 0


def table(given: argparse.Namespace, scratch: Path, failures: list[str]) -> list[str]:
    strace, mount = strace_works(scratch / "probe"), mount_works(scratch / "probe")
    lines = [
        "| command | calls that write | " + " | ".join(FAULTS) + " | full disk | resumed, identical |",
        "|---|---:|" + "---:|" * (len(FAULTS) + 2),
    ]
    cases = [case for case in CASES if given.only is None or case.name in given.only.split(",")]
    for case in cases:
        tally, full = Tally(), FullDisk(0, 0, ())
        folder = scratch / case.name.replace(" ", "-")
        if not strace:
            tally = try_case(case, folder, most=given.points, signals=given.signals)
        if not mount:
            full = try_full_disk(case, folder)
        for trial in tally.failures:
            failures.append(f"{case.name}: {trial.fault} at {trial.point}: {'; '.join(trial.problems)}")
        failures += [f"{case.name}: full disk, {problem}" for problem in full.problems]
        counts = [_share(tally.survived[fault], tally.tried[fault]) for fault in FAULTS]
        resumed = _share(tally.identical, tally.resumed) if case.resume else ""
        lines.append(
            f"| {case.name} | {tally.calls} | {' | '.join(counts)} | {_share(full.survived, full.tried)} | {resumed} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    lines += [f"\nSkipped: {why}" for why in (strace, mount) if why]
    lines += ["", "| damaged files | tried | read | refused | crashed | hung | other errors |", "|---|" + "---:|" * 6]
    for kind in KINDS:
        found = mutate_many(kind, given.mutations, scratch / kind.replace(" ", "-"))
        bugs = sum(found.bugs.values())
        lines.append(
            f"| {kind} | {found.tried:,} | {found.read:,} | {found.refused:,} | {len(found.deaths)} | "
            f"{len(found.hangs)} | {bugs} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
        failures += [f"{kind}: {what}" for what in (*found.deaths, *found.hangs, *found.bugs)]
    base, handled = prepare(scratch / "inputs"), 0
    for bad in BAD:
        refused = try_bad(bad, base, scratch / "inputs")
        handled += not refused.problems
        if refused.problems:
            failures.append(f"{refused.name}: {'; '.join(refused.problems)}: {refused.said}")
    lines += [
        "",
        "| what must not be lost | tried | wrong |",
        "|---|---:|---:|",
        *losses(given, base, scratch, failures),
    ]
    print("\n".join(lines[-5:]), file=sys.stderr, flush=True)
    ends = [(kind, 0, 0) for kind in ENDS]
    for number, trial in enumerate(trials()):
        if given.quick and number % 12:
            continue
        wrong = try_trial(trial, base, scratch / "inputs")
        failures += [f"{trial.kind}: {trial.name!a}: {problem}" for problem in wrong]
        ends = [(kind, n + (kind == trial.kind), bad + (kind == trial.kind and bool(wrong))) for kind, n, bad in ends]
    accounted, memory = (
        account(scratch / "account", ("0.02",) if given.quick else THRESHOLDS),
        measure_memory(scratch / "memory", 64 if given.quick else 600),
    )
    tables = try_tables(range(20 if given.quick else 500), scratch / "tables")
    changes = try_changes(range(40 if given.quick else 1000), scratch / "changes")
    failures += [*accounted.problems, *memory.problems, *tables.problems, *changes.missed]
    lines += [
        "",
        "| | tried | wrong |",
        "|---|---:|---:|",
        f"| bad inputs: exit code, and a message that names the file | {len(BAD)} | {len(BAD) - handled} |",
        *(f"| {ENDS[kind]} | {tried} | {bad} |" for kind, tried, bad in ends),
        f"| exports whose rows do not add up | {accounted.tried} | {len(accounted.problems)} |",
        f"| random tables with vectors, lists, dictionaries and nulls, read, exported in four formats, restored and "
        f"verified: {tables.values:,} values of {tables.outputs:,} outputs | {tables.tried} | {len(tables.problems)} |",
        f"| single values changed in outputs, and not noticed by `verify`: with the manifest as it was, and with the "
        f"right hash in it | {2 * changes.tried:,} | {len(changes.missed)} |",
        f"| commands over a memory cap of 1 GiB ({memory.said}) | {memory.tried} | {len(memory.problems)} |",
        *of_strangers(given, scratch, failures),
    ]
    return lines


def of_strangers(given: argparse.Namespace, scratch: Path, failures: list[str]) -> list[str]:
    """Rows of what a stranger may have laid beside the data, or written into files."""
    figures = {
        "modules beside the data that a command runs": modules(scratch / "modules", quick=given.quick),
        "paths, URLs and names in files of a stranger that are followed": stored(scratch / "stored", quick=given.quick),
        "addresses that are not of the internet and are taken for it": addresses(2 if given.quick else 40),
        "commands killed at work, workers of which live on": left_behind(scratch / "left", quick=given.quick),
    }
    failures += [problem for figure in figures.values() for problem in figure.problems]
    return [f"| {name} ({f.said}) | {f.tried:,} | {len(f.problems)} |" for name, f in figures.items()]


def losses(given: argparse.Namespace, base: Path, scratch: Path, failures: list[str]) -> list[str]:
    """The rows of faults.losses; one trial of six where it has to be quick."""
    prepare_losses(base)
    tried: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for loss in LOSSES[:: 6 if given.quick else 1]:
        problems = try_loss(loss, base, scratch / "loss")
        tried[loss.kind] += 1
        wrong[loss.kind] += bool(problems)
        if problems:
            failures.append(f"{loss.kind}: {' '.join(loss.argv)}: {'; '.join(problems)}")
    races = 2 if given.quick else 10
    kind = "fits of one output by three processes at once"
    problems = try_races(races, base, scratch)
    failures += [f"{kind}: {problem}" for problem in problems]
    rows = [f"| {name} | {tried[name]} | {wrong[name]} |" for name in tried]
    return [*rows, f"| {kind} | {races} | {len(problems)} |"]


def _share(good: int, tried: int) -> str:
    return f"{good} of {tried}" if tried else "-"


if __name__ == "__main__":
    sys.exit(main())
