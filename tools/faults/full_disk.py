"""A disk that is full: a small tmpfs on which each command finds room for less than it would write."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from faults.cases import Case, State, copy, input_state, state_of
from faults.forked import run_command

__all__ = ["FullDisk", "mount_works", "try_full_disk"]

SHARES = (0.0, 0.2, 0.5, 0.9)  # of what the command writes: so much room there is


@dataclass(frozen=True)
class FullDisk:
    """Tries on a full disk, and those that were survived; ``problems`` of the others."""

    tried: int
    survived: int
    problems: tuple[str, ...]


def mount_works(scratch: Path) -> str:
    """Why no tmpfs can be mounted here; an empty text where it can."""
    scratch.mkdir(parents=True, exist_ok=True)
    done = _mount(scratch, 2**20)
    if done:
        return done
    _unmount(scratch)
    return ""


def _mount(folder: Path, size: int) -> str:
    if shutil.which("mount") is None or os.geteuid() != 0:
        return "mounting a tmpfs takes root"
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() or ("" if done.returncode == 0 else f"mount ended with {done.returncode}")


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", str(folder)], capture_output=True, check=False)


def _size(folder: Path) -> int:
    """Bytes on a tmpfs: whole pages, and some for each name."""
    return sum(-(-p.lstat().st_size // 4096) * 4096 + 4096 for p in [folder, *folder.rglob("*")])


def try_full_disk(case: Case, base: Path, scratch: Path) -> FullDisk:
    """Run the command with too little room for what it writes, and look whether the old output is still there."""
    work, disk = scratch / "work", scratch / "disk"
    old = state_of(base, case)
    copy(base, work)
    if run_command(case.argv, work).code != 0:
        raise RuntimeError(f"{case.name} fails without a fault")
    new, needed = state_of(work, case), max(_size(work) - _size(base), 8 * 4096)
    needed += sum(_size(base / name) for name in case.outputs if (base / name).exists())  # both are there for a moment
    disk.mkdir()
    tried, survived, problems = 0, 0, []
    for share in SHARES:
        message = _mount(disk, _size(base) + 16 * 4096 + int(share * needed))
        if message:
            raise RuntimeError(message)
        try:
            inside = disk / "work"
            shutil.copytree(base, inside, symlinks=True)
            before = input_state(inside, case)
            outcome = run_command(case.argv, inside)
            state, tried = state_of(inside, case), tried + 1
            wrong = []
            if outcome.code not in (0, 4) or (outcome.code == 0 and state != new):
                wrong.append(f"exit code {outcome.code}: {outcome.err.strip()[-200:]}")
            if any(state[name] not in (old[name], new[name]) for name in state):
                wrong.append("neither old nor new")
            if len({state == old, state == new}) == 1:
                wrong.append("old and new files together")
            if not outcome.clean:
                wrong.append("a traceback")
            if input_state(inside, case) != before:
                wrong.append("the input has changed")
            if wrong:
                problems.append(f"room for {share:.0%}: {'; '.join(wrong)}")
            survived += not wrong
        finally:
            _unmount(disk)
    if wrong := _full_tmpdir(case, copy(base, work), old, new):
        problems.append(f"TMPDIR: {wrong}")
    return FullDisk(tried + 1, survived + (not wrong), tuple(problems))


def _full_tmpdir(case: Case, work: Path, old: State, new: State) -> str:
    """The same with room for the output, and none for temporary files: done without them, or TMPDIR is blamed."""
    (work / ".tmp").mkdir(exist_ok=True)
    if message := _mount(work / ".tmp", 4096):
        raise RuntimeError(message)
    try:
        done = run_command(case.argv, work)
    finally:
        _unmount(work / ".tmp")
    if done.code == 0:
        return "" if state_of(work, case) == new else "exit code 0, and not the output"
    blamed = done.code == 4 and ("TMPDIR" in done.err or ".tmp" in done.err)
    return "" if blamed and state_of(work, case) == old else f"exit code {done.code}: {done.err.strip()[-200:]}"
