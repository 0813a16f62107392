"""How files are damaged: the same number gives the same bytes; a child that dies, hangs or fails is counted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from faults import mutation

from cleanpairs.core.errors import DataError

DATA = bytes(range(256)) * 8


def test_a_mutation_is_known_by_its_number() -> None:
    made = [mutation.mutate(DATA, k) for k in range(120)]
    assert made == [mutation.mutate(DATA, k) for k in range(120)]
    assert sum(m != DATA for m in made) > 110 and len(set(made)) > 110


@pytest.mark.parametrize("n", [1, 2, 9])
def test_of_files_of_a_few_bytes(n: int) -> None:
    assert all(len(mutation.mutate(DATA[:n], k)) <= n for k in range(60))


def _write(path: Path) -> None:
    path.write_bytes(DATA)


def _read(data: bytes, work: Path) -> None:
    """By its number, as it was noted: good, refused, a bug, a death, a hang."""
    if data == DATA:
        return  # the file before it was damaged, which has to be read
    kind = _read.calls % 5  # type: ignore[attr-defined]
    _read.calls += 1  # type: ignore[attr-defined]
    if kind == 1:
        raise DataError("refused")
    if kind == 2:
        raise KeyError("bug")
    if kind == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == 4:
        signal.pause()


def test_every_end_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _read.calls = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(mutation, "HANG", 1)
    monkeypatch.setitem(mutation.KINDS, "some", (_write, _read))
    found = mutation.mutate_many("some", 4, tmp_path)
    assert (found.tried, found.read, found.refused, sum(found.bugs.values())) == (4, 1, 1, 1)
    assert found.deaths == ["SIGSEGV at 3"] and not found.hangs and not found.ok
    _read.calls = 4  # type: ignore[attr-defined]
    found = mutation.mutate_many("some", 1, tmp_path)
    assert found.hangs == [0] and not found.deaths
