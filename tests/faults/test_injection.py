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
    ("fault", "code", "state", "err", "problem"),
    [("SIGKILL", -9, NEW, "", None), ("EIO", 4, OLD, FAILED, None), ("EIO", 0, OLD, "", "not the new one"),
     ("SIGKILL", -9, {"a": "1", "b": "4"}, "", "together"), ("SIGINT", -2, OLD, "", "exit code -2"),
     ("SIGKILL", -9, {"a": "5", "b": "2"}, "", "neither old nor new: a")],
)  # fmt: skip
def test_what_has_a_problem_has_not_survived(
    tmp_path: Path, fault: str, code: int, state: dict[str, str], err: str, problem: str | None
) -> None:
    found = judge(tmp_path, fault, code, state, err)
    assert found == [] if problem is None else any(problem in one for one in found)


def test_what_is_left_behind_counts_but_not_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / ".cleanpairs-a-abcdefgh").mkdir()
    assert any("left behind" in p for p in judge(tmp_path, "EIO", 4, OLD, FAILED))
    assert judge(tmp_path, "SIGKILL", -9, OLD) == []
