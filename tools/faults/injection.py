"""A fault at a system call: SIGKILL, EIO, ENOSPC or a signal at each write, sync and rename of a command."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from faults.cases import Case, State, age, copy, input_state, leftovers, state_of, unfinished
from faults.forked import Outcome, run_command

__all__ = ["FAULTS", "Point", "Tally", "Trial", "points_of", "strace_works", "try_case"]

FAULTS = {
    "SIGKILL": "signal=SIGKILL",
    "EIO": "error=EIO",
    "ENOSPC": "error=ENOSPC",
    "SIGINT": "signal=SIGINT",
    "SIGTERM": "signal=SIGTERM",
    "SIGHUP": "signal=SIGHUP",
}
ALIKE = (("SIGKILL",), ("EIO", "ENOSPC"), ("SIGINT", "SIGTERM", "SIGHUP"))  # those of one group may take turns
CODES = {"SIGKILL": -9, "EIO": 4, "ENOSPC": 4, "SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
_CALL = re.compile(r"^(\d+) +(\w+)\((.*)")


@dataclass(frozen=True)
class Point:
    """The ``number``-th ``call`` of the main thread; ``what`` file it is about."""

    call: str
    number: int
    what: str


@dataclass(frozen=True)
class Trial:
    """What a fault did: no ``problems`` where the command survived it; ``resumed`` identically, or not, or None."""

    case: str
    fault: str
    point: Point
    code: int
    problems: tuple[str, ...]
    resumed: bool | None


@dataclass
class Tally:
    """Of one command: tries and survivals by fault, resume points, and what went wrong."""

    tried: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    identical: int = 0
    failures: list[Trial] = field(default_factory=list)
    calls: int = 0

    def add(self, trial: Trial) -> None:
        """Count it."""
        self.tried[trial.fault] += 1
        self.survived[trial.fault] += not trial.problems
        if trial.resumed is not None:
            self.resumed += 1
            self.identical += trial.resumed
        if trial.problems:
            self.failures.append(trial)


def strace_works(scratch: Path) -> str:
    """Why strace cannot trace a child of ours; an empty text where it can."""
    if shutil.which("strace") is None:
        return "strace is not installed (apt-get install strace)"
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        run_command(["--version"], scratch, inject=[])
    except RuntimeError as error:
        return str(error)
    return ""


def points_of(outcome: Outcome, work: Path) -> list[Point]:
    """The traced calls that touch files below ``work``, of the main thread, in order."""
    seen: Counter[str] = Counter()
    main: str | None = None
    found = []
    for line in outcome.trace.splitlines():
        match = _CALL.match(line)
        if match is None:
            continue
        thread, call, rest = match.groups()
        main = main or thread
        if thread != main:
            continue
        seen[call] += 1
        if str(work) in rest and f"{work}/.tmp/" not in rest:
            what = rest.split(str(work) + "/", 1)[-1]
            found.append(Point(call, seen[call], re.split(r'[">,]', what)[0]))
    return found


def spread(points: list[Point], most: int) -> list[Point]:
    """At most ``most`` of each call, evenly; all of them when 0."""
    if most <= 0:
        return points
    kept = []
    for call in dict.fromkeys(p.call for p in points):
        of_call = [p for p in points if p.call == call]
        step = max(1.0, len(of_call) / most)
        kept += [of_call[int(k * step)] for k in range(min(most, len(of_call)))]
    return kept


def try_case(case: Case, base: Path, scratch: Path, *, most: int, signals: int, turns: bool = False) -> Tally:
    """Try faults at the points of a command.

    Parameters
    ----------
    most : int
        Points of each system call for SIGKILL, EIO and ENOSPC; all of them when 0.
    signals : int
        The same for SIGINT, SIGTERM and SIGHUP.
    turns : bool
        Whether faults that are alike take turns: each point then gets a kill, an error and a signal, one of each.
    """
    work = scratch / "work"
    old, tally = state_of(base, case), Tally()
    copy(base, work)
    traced = run_command(case.argv, work, inject=[])
    if traced.code != 0:
        raise RuntimeError(f"{case.name} fails without a fault: {traced.err}")
    new = state_of(work, case)
    if any(new[name] == old[name] for name in new):
        raise RuntimeError(f"{case.name}: the new output equals the old one, nothing would be seen")
    copy(base, work)
    run_command(case.argv, work)
    if state_of(work, case) != new:
        raise RuntimeError(f"{case.name} does not give the same output twice")
    points = points_of(traced, work)
    tally.calls = len(points)
    for group in ALIKE:
        chosen = spread(points, signals if "SIGINT" in group else most)
        for k, fault in enumerate(group):
            for point in chosen[k :: len(group)] if turns else chosen:
                trial = _try(case, base, work, fault, point, old, new)
                if trial is not None:
                    tally.add(trial)
    return tally


def _try(case: Case, base: Path, work: Path, fault: str, point: Point, old: State, new: State) -> Trial | None:
    copy(base, work)
    before = input_state(work, case)
    outcome = run_command(case.argv, work, inject=[f"{point.call}:{FAULTS[fault]}:when={point.number}"])
    state = state_of(work, case)
    problems = _judge(case, work, fault, outcome, state, old, new)
    if outcome.code == 0 and fault == "SIGKILL" and "killed by SIGKILL" not in outcome.trace:
        return None  # the point was not reached
    if input_state(work, case) != before:
        problems.append("the input has changed")
    resumed = None
    again = case.argv
    if outcome.code != 0 and case.resume and unfinished(work / case.outputs[0], case):
        again, resumed = case.resume, False
    if outcome.code != 0:
        age(work)
        recovered = run_command(again, work)
        after = state_of(work, case)
        if recovered.code != 0:
            problems.append(
                f"`{' '.join(again)}` afterwards ends with {recovered.code}: {recovered.err.strip()[-200:]}"
            )
        elif after != new:
            problems.append(f"`{' '.join(again)}` afterwards gives another output: {_differs(after, new)}")
        else:
            resumed = resumed if resumed is None else True
        if leftovers(work):
            staging = [p for p in leftovers(work) if not p.startswith(".tmp")]
            if staging:
                problems.append(f"left for good: {', '.join(staging)}")
    return Trial(case.name, fault, point, outcome.code, tuple(problems), resumed)


def _judge(case: Case, work: Path, fault: str, outcome: Outcome, state: State, old: State, new: State) -> list[str]:
    problems = []
    if outcome.hung:
        problems.append("it hung")
    if outcome.code not in (CODES[fault], 0):
        problems.append(f"exit code {outcome.code}, not {CODES[fault]}: {outcome.err.strip()[-200:]}")
    elif outcome.code == 0 and state != new:
        problems.append(f"exit code 0, but the output is not the new one: {_differs(state, new)}")
    if not outcome.clean:
        problems.append(f"a traceback: {outcome.err.strip()[-200:]}")
    if fault in ("EIO", "ENOSPC") and outcome.code == 4 and "Error [output]" not in outcome.err:
        problems.append(f"exit code 4 without its message: {outcome.err.strip()[-200:]}")
    neither = [name for name in state if state[name] not in (old[name], new[name])]
    if neither:
        problems.append(f"neither old nor new: {', '.join(neither)}")
    elif state not in (old, new) and case.verified:
        verified = run_command(["verify", case.verified], work)
        if verified.code != 3:
            problems.append(f"old and new files together, and verify does not notice: {_differs(state, new)}")
    elif state not in (old, new):
        problems.append(f"old and new files together: {_differs(state, new)}")
    if fault != "SIGKILL" and leftovers(work):
        problems.append(f"left behind: {', '.join(leftovers(work))[:200]}")
    return problems


def _differs(found: State, wanted: State) -> str:
    return ", ".join(name for name in found if found[name] != wanted[name])
