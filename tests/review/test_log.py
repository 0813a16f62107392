"""The log of decisions: what was answered is there, whatever happens to the process."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from cleanpairs.core.errors import DataError, OutputError
from cleanpairs.review.log import DecisionLog
from tests.helpers import assert_raises

WRITER = """
import sys
from cleanpairs.review.log import DecisionLog
log = DecisionLog(sys.argv[1], "data", 1000)
for i in range(100_000):
    print(log.decide([i % 1000], "recaption", caption="a caption of some length " * 9).name, flush=True)
"""


def opened(path: Path) -> DecisionLog:
    return DecisionLog(path, "data", 1000)


def test_the_last_decision_holds_and_undo_brings_back_the_one_before(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    log.decide([3], "keep", drawn=True)
    made = log.decide([3, 4], "drop")
    assert log.decided()[3].action == "drop" and log.decided()[4].pairs == (3, 4)
    label = log.of(3, drawn=True)
    assert label is not None and label.action == "keep" and log.of(4, drawn=True) is None
    assert log.undo(made.name) == made and log.undo(made.name) is None and log.undo("nothing") is None
    assert {i: made.action for i, made in log.decided().items()} == {3: "keep"}
    assert len(log.about(3)) == 2  # both stay in the log
    older = log.decide([6], "keep")
    log.decide([6], "drop")
    assert log.undo(older.name) == older and log.decided()[6].action == "drop"  # the later one still holds
    with log.path.open("a") as file:
        file.write('{"name": "x", "pairs": [5], "action": "keep", "asked": true, "drawn": true}\n')
    assert opened(log.path).labels() == {3: True, 5: True}  # fields that it does not know are left out
    with patch("os.fsync", wraps=os.fsync) as synced:
        log.label({3: True, 5: False, **dict.fromkeys(range(7, 200))})
    assert synced.call_count == 1 and opened(log.path).labels() == log.labels() and log.labels()[199] is None


def test_half_a_line_spoils_nothing_but_itself(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = opened(path)
    log.decide([1], "keep")
    log.decide([2], "drop")
    whole = path.read_bytes()
    for cut in range(1, len(whole.rstrip().rpartition(b"\n")[2]), 7):
        path.write_bytes(whole.rstrip()[:-cut])
        again = opened(path)
        assert set(again.decided()) == {1}
        again.decide([3], "keep")
        assert set(again.decided()) == {1, 3} and again.damaged == 1
        assert set(opened(path).decided()) == {1, 3}


def test_what_is_no_log_of_these_pairs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    opened(path).close()
    assert_raises(DataError, "about other data", DecisionLog, path, "other", 1000)
    for line in ('{"pairs": [1000], "name": "x", "action": "keep"}', '{"pairs": [1]}', '"text"', "[1]"):
        opened(path).close()
        with path.open("a") as file:
            file.write(line + "\n")
        assert_raises(DataError, r"no decision|no log", opened, path)
        path.unlink()
    path.write_text('{"pairs": [1], "name": "x", "action": "quarantine"}\n')
    assert_raises(DataError, "no decision", opened, path)
    os.mkfifo(tmp_path / "fifo")
    assert_raises(OutputError, "no regular file", opened, tmp_path / "fifo")
    assert_raises(OutputError, "cannot be written", opened, tmp_path / "log" / "log")


def test_its_descriptor_is_closed_once_and_where_it_is_refused(tmp_path: Path) -> None:
    """A second close would close what got the number since; a log of other data would stay open."""
    path = tmp_path / "decisions.jsonl"
    log = opened(path)
    log.close()
    with path.open() as other:  # gets the number
        log.close()
        assert other.readline()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DataError) as kept:  # its frames would keep a file object, but not a number
        DecisionLog(path, "other", 1000)
    assert len(os.listdir("/proc/self/fd")) == before and kept


def test_killed_while_several_write_nothing_that_was_answered_is_lost(tmp_path: Path) -> None:
    """Three processes write to one log; each is killed (-9) after another number of answers, while it writes on."""
    path, answered = tmp_path / "log", []
    opened(path).close()
    argv = [sys.executable, "-c", WRITER, path]
    writers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for writer, enough in zip(writers, (1, 17, 134), strict=True):
        answered += [writer.stdout.readline().strip() for _ in range(enough)]
        writer.kill()
        answered += [line.strip() for line in writer.stdout if line.endswith("\n")]
        writer.wait()
        writer.stdout.close()
    log = opened(path)
    assert len(answered) >= 152 and set(answered) <= {made.name for i in range(1_000) for made in log.about(i)}
    assert log.damaged <= 3
    log.decide([999], "keep")
    assert opened(path).decided()[999].action == "keep"
    path.unlink()
    assert_raises(OutputError, "file was deleted", log.decide, [998], "keep")
