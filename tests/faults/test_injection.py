"""The judge of the fault suite: what counts as survived, and what does not."""

from pathlib import Path

import pytest
from faults.cases import Case
from faults.forked import Outcome
from faults.injection import _judge

OLD, NEW = {"a": "1", "b": "2"}, {"a": "3", "b": "4"}
FAILED = "Error [output]: a cannot be written"


def judge(tmp_path: Path, fault: str, code: int, state: dict[str, str], err: str = "") -> list[str]:
    return _judge(Case("some", ("score",), ("a", "b")), tmp_path, fault, Outcome(code, "", err, ""), state, OLD, NEW)


@pytest.mark.parametrize(
    ("fault", "code", "state", "err"),
    [("SIGKILL", -9, OLD, ""), ("SIGKILL", -9, NEW, ""), ("EIO", 4, OLD, FAILED), ("ENOSPC", 0, NEW, ""),
     ("SIGINT", 130, OLD, ""), ("SIGTERM", 143, OLD, "")],
)  # fmt: skip
def test_survived(tmp_path: Path, fault: str, code: int, state: dict[str, str], err: str) -> None:
    assert judge(tmp_path, fault, code, state, err) == []


@pytest.mark.parametrize(
    ("fault", "code", "state", "err", "word"),
    [
        ("EIO", 1, OLD, "Error [bug]", "exit code 1"),
        ("EIO", 0, OLD, "", "not the new one"),
        ("EIO", 4, OLD, "", "without its message"),
        ("EIO", 4, OLD, f"Traceback (most recent call last)\n{FAILED}", "traceback"),
        ("SIGKILL", -9, {"a": "1", "b": "4"}, "", "together"),
        ("SIGKILL", -9, {"a": "5", "b": "2"}, "", "neither old nor new: a"),
        ("SIGINT", -2, OLD, "", "exit code -2"),
    ],
)
def test_not_survived(tmp_path: Path, fault: str, code: int, state: dict[str, str], err: str, word: str) -> None:
    assert any(word in problem for problem in judge(tmp_path, fault, code, state, err))


def test_what_is_left_behind_counts_but_not_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / ".cleanpairs-a-abcdefgh").mkdir()
    assert any("left behind" in p for p in judge(tmp_path, "EIO", 4, OLD, FAILED))
    assert judge(tmp_path, "SIGKILL", -9, OLD) == []
