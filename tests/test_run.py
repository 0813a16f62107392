"""The run directory: made, found, linked, read; damage is named."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from cleanpairs.errors import ConfigError, DataError, OutputError, OutputExistsError, RefusedError
from cleanpairs.exporting import resolve_threshold
from cleanpairs.run import Run, default_run_path, write_scores


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``runs/latest`` is looked for in the working directory."""
    monkeypatch.chdir(tmp_path)


def test_a_new_run_is_the_latest(tmp_path: Path) -> None:
    first, second = Run.create(tmp_path / "a"), Run.create(tmp_path / "runs" / "b")
    assert os.readlink(tmp_path / "runs" / "latest") == "b"
    assert first.path.is_dir() and second.path.is_dir()
    with pytest.raises(OutputExistsError, match=r"--overwrite.*--resume"):
        Run.create(tmp_path / "a")
    Run.create(tmp_path / "a", resume=True)
    assert os.readlink(tmp_path / "runs" / "latest") == os.path.join("..", "a")
    Run.create(tmp_path / "c", latest=False)
    assert os.readlink(tmp_path / "runs" / "latest") == os.path.join("..", "a")


def test_a_run_that_is_to_be_replaced_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    old = Run.create(tmp_path / "a")
    old.write_info({"x": 1})
    failed = Run.create(tmp_path / "a", overwrite=True)
    failed.restore_replaced()
    assert Run.open(tmp_path / "a").info == {"x": 1}
    new = Run.create(tmp_path / "a", overwrite=True)
    new.write_info({"x": 2})
    new.forget_replaced()
    assert Run.open(tmp_path / "a").info == {"x": 2}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "runs"]


def test_a_complete_run_outlives_any_number_of_killed_replacements(tmp_path: Path) -> None:
    """A kill leaves the half-made run in place of the old one, which is set aside: the next fit must not delete it."""
    old = Run.create(tmp_path / "a")
    old.write_info({"status": "complete", "x": 1})
    for status in ("running", "interrupted", None):
        killed = Run.create(tmp_path / "a", overwrite=True)  # and neither forgotten nor restored
        if status is not None:
            killed.write_info({"status": status})
    with pytest.raises(OutputExistsError, match="--overwrite"):
        Run.create(tmp_path / "a")
    with pytest.raises(DataError, match=r"\.replaced-a, move it back"):
        Run.open(tmp_path / "a")
    last = Run.create(tmp_path / "a", overwrite=True)
    last.restore_replaced()
    assert Run.open(tmp_path / "a").info == {"status": "complete", "x": 1}

    new = Run.create(tmp_path / "a", overwrite=True)
    new.write_info({"status": "complete", "x": 2})  # killed before the old one was forgotten: the new one counts
    third = Run.create(tmp_path / "a", overwrite=True)
    third.restore_replaced()
    assert Run.open(tmp_path / "a").info == {"status": "complete", "x": 2}


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_killed_between_setting_aside_and_beginning_the_run_comes_back(
    tmp_path: Path, options: dict[str, bool]
) -> None:
    Run.create(tmp_path / "a").write_info({"status": "complete", "x": 1})
    (tmp_path / "a").rename(tmp_path / ".replaced-a")
    if not options:
        with pytest.raises(OutputExistsError, match="--overwrite"):
            Run.create(tmp_path / "a")
    else:
        Run.create(tmp_path / "a", **options).restore_replaced()
    assert Run.open(tmp_path / "a").info == {"status": "complete", "x": 1}
    assert not (tmp_path / ".replaced-a").exists()


def test_a_run_that_has_learnt_nothing_is_discarded_with_its_link(tmp_path: Path) -> None:
    Run.create(tmp_path / "runs" / "first").write_info({"x": 1})
    empty = Run.create(tmp_path / "runs" / "second")
    empty.write_info({"x": 2})
    empty.discard_empty()
    assert not empty.path.exists() and os.readlink(tmp_path / "runs" / "latest") == "first"
    begun = Run.create(tmp_path / "runs" / "third")
    (begun.path / "checkpoints").mkdir()
    (begun.path / "checkpoints" / "last.safetensors").touch()
    begun.discard_empty()
    assert begun.path.exists() and os.readlink(tmp_path / "runs" / "latest") == "third"
    unlinked = Run.create(tmp_path / "other", latest=False)
    unlinked.discard_empty()
    assert not unlinked.path.exists() and os.readlink(tmp_path / "runs" / "latest") == "third"


def test_the_first_run_of_all_leaves_no_link_when_it_is_discarded(tmp_path: Path) -> None:
    Run.create(tmp_path / "a").discard_empty()
    assert not (tmp_path / "a").exists() and list((tmp_path / "runs").iterdir()) == []


def test_somebodys_own_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "runs" / "latest").mkdir(parents=True)
    Run.create(tmp_path / "a")
    assert not (tmp_path / "runs" / "latest").is_symlink()


def test_only_a_run_is_overwritten(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a")
    run.write_info({"x": 1})
    (run.path / "old").write_text("old")
    again = Run.create(tmp_path / "a", overwrite=True)
    assert not (again.path / "old").exists()
    (tmp_path / "other").mkdir()
    with pytest.raises(OutputExistsError, match="no run directory"):
        Run.create(tmp_path / "other", overwrite=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(OutputExistsError, match="symbolic link"):
        Run.create(tmp_path / "link", overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises((OutputError, OutputExistsError), match="file"):
        Run.create(tmp_path / "file" / "run")


def test_open_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"runs/latest.*cleanpairs fit"):
        Run.open(None)
    with pytest.raises(DataError, match=r"x is no run directory.*run\.json"):
        Run.open("x")
    run = Run.create(tmp_path / "runs" / "a")
    run.write_info({"status": "running"})
    opened = Run.open(None)
    assert opened.path == (tmp_path / "runs" / "a").resolve() and opened.info == {"status": "running"}
    with pytest.raises(DataError, match=r"did not finish.*--resume"):
        opened.model()
    with pytest.raises(DataError, match="did not finish"):
        opened.scores()
    assert opened.metrics() == []
    (opened.path / "run.json").write_text("{")
    with pytest.raises(DataError, match=r"run\.json"):
        _ = opened.info


def test_scores_round_trip_with_quarantined_pairs(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a")
    y = np.array([0.05, np.nan, 0.9, 0.1], np.float32)
    write_scores(run.path / "scores.parquet", list("abcd"), y, 0.1, {1: "no image"})
    scores = run.scores()
    np.testing.assert_array_equal(scores.correspondence, y)
    assert scores.reasons == {1: "no image"}
    assert scores.table["is_mismatch"].to_pylist() == [True, None, False, False]
    whole = (run.path / "scores.parquet").read_bytes()
    (run.path / "scores.parquet").write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"scores\.parquet"):
        run.scores()


def test_metrics_round_trip(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a")
    lines = [{"piece": 1, "epoch": 1, "loss": 0.5}, {"piece": 1, "epoch": 2, "loss": 0.25}]
    run.write_metrics(lines)
    assert run.metrics() == lines
    assert [json.loads(x) for x in (run.path / "metrics.jsonl").read_text().splitlines()] == lines


def test_default_path_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20260131-120000")
    path = default_run_path("crcl", "some/where/data.parquet")
    assert path == Path("runs/20260131-120000-crcl-data")
    path.mkdir(parents=True)
    assert default_run_path("crcl", "data.parquet").name == "20260131-120000-crcl-data-2"
    assert default_run_path("crcl", "shards/*.parquet").parent == Path("runs")
    assert default_run_path("crcl", "dir/").name.endswith("crcl-dir")
    with pytest.raises(ConfigError, match="--out"):
        default_run_path("crcl", "a\x07b.parquet")


def test_thresholds(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a")
    rng = np.random.default_rng(0)
    apart = np.concatenate([rng.beta(1, 20, 300), rng.beta(12, 4, 700), [np.nan]]).astype(np.float32)
    write_scores(run.path / "scores.parquet", [""] * 1001, apart, 0.1, {1000: "bad"})
    auto = resolve_threshold("auto", run)
    assert auto is not None and 0.1 < auto < 0.6
    assert resolve_threshold(None, run) is None
    assert [resolve_threshold(x, run) for x in (0, 0.3, 1.0)] == [0.0, 0.3, 1.0]
    for bad in (-0.1, 1.5, float("nan"), "otto"):
        with pytest.raises(ConfigError, match="threshold"):
            resolve_threshold(bad, run)
    write_scores(run.path / "scores.parquet", [""] * 50, np.full(50, 0.7, np.float32), 0.1, {}, overwrite=True)
    with pytest.raises(RefusedError, match="do not separate"):
        resolve_threshold("auto", run)
