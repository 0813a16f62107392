"""The run directory: made, found, linked, read; damage is named."""

import errno
import itertools
import json
import math
import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cleanpairs import ClipScore, load_pairs
from cleanpairs.commands.fit import _result, fit_run, result_table
from cleanpairs.commands.rematch import chosen_cut
from cleanpairs.commands.run import LATEST, PLAN, Run, default_run_path, mistyped, write_scores
from cleanpairs.core.errors import ConfigError, DataError, OutputError, OutputExistsError, RefusedError
from cleanpairs.core.recipe import Recipe
from cleanpairs.data.guard import same_file
from cleanpairs.repair.plan import PLAN_SCHEMA, RepairPlan
from tests.helpers import assert_raises, cone, fit_beside, unit, vector_column, write_corpus, write_table


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``runs/latest`` is looked for in the working directory."""
    monkeypatch.chdir(tmp_path)


def test_a_new_run_is_the_latest(tmp_path: Path) -> None:
    first, second = Run.create(tmp_path / "a"), Run.create(tmp_path / "runs" / "b")
    assert os.readlink(tmp_path / "runs" / "latest") == "b"
    assert first.path.is_dir() and second.path.is_dir()
    first.write_info({"status": "complete"})
    assert_raises(OutputExistsError, r"--overwrite.*--resume", Run.create, tmp_path / "a")
    Run.create(tmp_path / "a", resume=True)
    assert os.readlink(tmp_path / "runs" / "latest") == os.path.join("..", "a")
    Run.create(tmp_path / "c", latest=False)
    assert os.readlink(tmp_path / "runs" / "latest") == os.path.join("..", "a")


def test_a_complete_run_outlives_any_number_of_killed_replacements(tmp_path: Path) -> None:
    """A kill leaves the half-made run in place of the old one, which is set aside: the next fit must not delete it."""
    Run.create(tmp_path / "a").write_info({"status": "complete", "x": 1})
    for status in ("running", "interrupted", None):
        killed = Run.create(tmp_path / "a", overwrite=True)  # and neither forgotten nor restored
        if status is not None:
            killed.write_info({"status": status})
    assert_raises(OutputExistsError, "--overwrite", Run.create, tmp_path / "a")
    assert_raises(DataError, r"\.replaced-a, move it back", Run.open, tmp_path / "a")
    Run.create(tmp_path / "a", overwrite=True).restore_replaced()
    assert Run.open(tmp_path / "a").info == {"status": "complete", "x": 1}

    new = Run.create(tmp_path / "a", overwrite=True)
    new.write_info({"status": "complete", "x": 2})  # killed before the old one was forgotten: the new one counts
    Run.create(tmp_path / "a", overwrite=True).restore_replaced()
    assert Run.open(tmp_path / "a").info == {"status": "complete", "x": 2}


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_what_a_kill_leaves_of_a_fit_that_has_just_begun_is_no_output(tmp_path: Path, options: dict[str, bool]) -> None:
    lefts = ("", ".cleanpairs-run.json-abcdefgh", "run.json")
    for k, (left, status) in enumerate(itertools.product(lefts, ("running", "interrupted"))):
        path = tmp_path / f"run{k}"
        path.mkdir()
        if left:
            (path / left).write_text(json.dumps({"status": status}))
        Run.check_resumable(path)
        Run.create(path, **options).write_info({"status": "complete"})
        assert Run.open(path).info == {"status": "complete"} and not (tmp_path / f".replaced-run{k}").exists()
        assert_raises(OutputExistsError, "--overwrite", Run.create, path)


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_a_run_set_aside_by_a_killed_fit_comes_back(tmp_path: Path, options: dict[str, bool]) -> None:
    Run.create(tmp_path / "a").write_info({"status": "complete", "x": 1})
    (tmp_path / "a").rename(tmp_path / ".replaced-a")
    if not options:
        assert_raises(OutputExistsError, "--overwrite", Run.create, tmp_path / "a")
    else:
        Run.create(tmp_path / "a", **options).restore_replaced()
    assert Run.open(tmp_path / "a").info == {"status": "complete", "x": 1}
    assert not (tmp_path / ".replaced-a").exists()


def test_a_run_that_has_learnt_nothing_is_discarded_with_its_link(tmp_path: Path) -> None:
    Run.create(tmp_path / "a").discard_empty()  # the first of all leaves no link
    assert not (tmp_path / "a").exists() and list((tmp_path / "runs").iterdir()) == []
    Run.create(tmp_path / "runs" / "first").write_info({"x": 1})
    empty = Run.create(tmp_path / "runs" / "second")
    empty.write_info({"x": 2})
    empty.discard_empty()
    assert not empty.path.exists() and os.readlink(tmp_path / "runs" / "latest") == "first"
    begun = Run.create(tmp_path / "runs" / "third")
    (begun.path / "checkpoints").mkdir()
    (begun.path / "checkpoints" / "last.safetensors").touch()
    begun.discard_empty()
    unlinked = Run.create(tmp_path / "other", latest=False)
    unlinked.discard_empty()
    assert begun.path.exists() and not unlinked.path.exists()
    assert os.readlink(tmp_path / "runs" / "latest") == "third"


@pytest.mark.parametrize("how", ["a file called runs", "a directory in the link's place", "a link that stays"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_no_run_is_lost_where_the_link_cannot_be_made(tmp_path: Path, how: str, overwrite: bool) -> None:
    if overwrite:
        Run.create(tmp_path / "a", latest=False).write_info({"status": "complete"})
    if how == "a file called runs":
        (tmp_path / "runs").write_text("mine")
    elif how == "a directory in the link's place":
        (tmp_path / "runs" / "latest" / "mine").mkdir(parents=True)
    else:  # the name of the new link is taken by what cannot be removed: as a directory that cannot be written is
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "latest").symlink_to("older")
        (tmp_path / "runs" / f".latest-{os.getpid()}" / "mine").mkdir(parents=True)
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    if how == "a link that stays":  # it would go on pointing to the older run
        assert_raises(OutputError, "runs/latest points to older", Run.create, tmp_path / "a", overwrite=overwrite)
        assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before
        return
    run = Run.create(tmp_path / "a", overwrite=overwrite)
    run.write_info({"status": "complete"})
    run.forget_replaced()
    assert Run.open(tmp_path / "a").info == {"status": "complete"} and not same_file(LATEST, tmp_path / "a")
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.name not in ("a", "run.json")) == [
        p for p in before if p.name not in ("a", "run.json")
    ]


@pytest.mark.parametrize("call", ["mkdir", "replace"])
def test_the_old_run_returns_if_the_new_one_cannot_begin(tmp_path: Path, monkeypatch: Any, call: str) -> None:
    Run.create(tmp_path / "a").write_info({"status": "complete", "x": 1})
    found = getattr(Path, call)

    def fail(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == "a" or self.name.startswith(".latest-"):
            raise OSError(errno.EROFS, "Read-only file system", str(self))
        return found(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, call, fail)
        assert_raises(OutputError, "Read-only", Run.create, tmp_path / "a", overwrite=True)
    assert Run.open(None).info == {"status": "complete", "x": 1}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "runs"]
    assert [p.name for p in (tmp_path / "runs").iterdir()] == ["latest"]


def test_labels_and_edited_plans_stay(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a")
    run.write_info({"status": "complete"})
    (run.path / "audit").mkdir()
    labels = run.path / "audit" / "labels.csv"
    labels.write_text("pair_id,matched,key,stratum\n0,,k0,s\n1,1,k1,s\n")
    assert_raises(OutputExistsError, "1 label given by hand", Run.create, tmp_path / "a", overwrite=True)
    labels.write_text("pair_id;matched;key;stratum\n0;;k0;s\n")
    write_scores(run.path / PLAN, ["k0"], np.ones(1, np.float32), 0.5, {})  # a table that no plan is
    assert_raises(OutputExistsError, "--plan", Run.create, tmp_path / "a", overwrite=True)
    assert labels.exists() and (run.path / PLAN).exists() and not (tmp_path / ".replaced-a").exists()


def test_only_a_run_is_overwritten(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a")
    run.write_info({"x": 1})
    (run.path / "mine").write_text("mine")
    with pytest.raises(OutputExistsError, match="'mine', which is no part of what would be written"):
        Run.create(tmp_path / "a", overwrite=True)
    (run.path / "mine").unlink()
    Run.create(tmp_path / "a", overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    assert_raises(OutputExistsError, "no run directory", Run.create, tmp_path / "other", overwrite=True)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert_raises(OutputExistsError, "symbolic link", Run.create, tmp_path / "link", overwrite=True)
    (tmp_path / "file").write_text("x")
    assert_raises((OutputError, OutputExistsError), "file", Run.create, tmp_path / "file" / "run")


def test_open_says_what_is_missing(tmp_path: Path) -> None:
    assert_raises(DataError, r"runs/latest.*cleanpairs fit", Run.open, None)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for name, says in (("x", "there is nothing of that name"), ("folder", "holds no run.json"), ("file", "is a file")):
        assert_raises(DataError, f"{name} is no run directory: .*{says}$", Run.open, name)
    run = Run.create(tmp_path / "runs" / "a")
    run.write_info({"status": "running"})
    assert_raises(DataError, "of that name; runs here: runs/a, runs/latest", Run.open, "x")
    opened = Run.open(None)
    assert opened.path == (tmp_path / "runs" / "a").resolve() and opened.info == {"status": "running"}
    assert_raises(DataError, r"did not finish.*--resume", opened.model)
    assert_raises(DataError, "did not finish", opened.scores)
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
    assert_raises(DataError, r"scores\.parquet", run.scores)


def test_default_path_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda form: "20260131-120000")
    path = default_run_path("crcl", "some/where/data.parquet")
    assert path == Path("runs/20260131-120000-crcl-data")
    path.mkdir(parents=True)
    assert default_run_path("crcl", "data.parquet").name == "20260131-120000-crcl-data-2"
    assert default_run_path("crcl", "shards/*.parquet").parent == Path("runs")
    assert default_run_path("crcl", "dir/").name.endswith("crcl-dir")
    assert default_run_path("crcl", "https://a.org/b.parquet?X-Sig=1.2").name.endswith("crcl-b")
    assert_raises(ConfigError, "--out", default_run_path, "crcl", "a\x07b.parquet")


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Of 40 pairs of vectors, for which nothing is trained."""
    rows = unit(np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32))
    vectors = dict.fromkeys(("image_features", "text_features"), vector_column(rows))
    write_table(tmp_path / "data.parquet", {"caption": [f"text {i}" for i in range(40)], **vectors})
    given = {"train": str(tmp_path / "data.parquet"), "method": "clip-score", "text_encoder": "features"}
    return Recipe.resolve(None, overrides=[], options=given)


def test_a_fit_whose_results_find_no_space_leaves_no_run(recipe: Recipe) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    try:
        with pytest.raises(OutputError):
            fit_run(recipe, out="run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not os.path.lexists("run") and not os.path.lexists(LATEST)


@pytest.mark.parametrize("method", ["auto", "clip-score"])
def test_a_fit_without_training_whose_issues_find_no_space_leaves_no_run(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(issues: pa.Table, staged: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(staged))

    images, texts, *_ = cone(300, 0.2)
    vectors = {"image_features": vector_column(images), "text_features": vector_column(texts)}
    data = write_table(tmp_path / "data.parquet", {"caption": [f"text {i}" for i in range(300)], **vectors})
    monkeypatch.setattr("cleanpairs.commands.fit.write_csv", full)
    assert_raises(OutputError, "No space left", fit_beside, data, method=method, streamed_from=200)
    assert not os.path.lexists("run")


def test_a_full_disk_costs_no_training_where_a_run_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The old run had come back, and the checkpoints of the new one were gone."""

    def full(issues: pa.Table, staged: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(staged))

    data = write_corpus(tmp_path / "data.parquet", 40)
    recipe = Recipe.resolve(None, overrides=["epochs=1"], options={"train": str(data), "method": "infonce", "seed": 0})
    fit_run(recipe, out="run")
    recipe = replace(recipe, output=replace(recipe.output, overwrite=True))
    with monkeypatch.context() as patch:
        patch.setattr("cleanpairs.commands.fit.write_csv", full)
        assert_raises(OutputError, "No space left", fit_run, recipe, out="run")
    assert Run(tmp_path / "run").has_checkpoint() and (tmp_path / ".replaced-run").exists()
    fit_run(recipe, out="run", resume=True)
    assert Run.open("run").info["status"] == "complete" and not (tmp_path / ".replaced-run").exists()


def test_a_name_that_another_fit_takes_while_the_data_is_read_is_not_ours(recipe: Recipe, monkeypatch: Any) -> None:
    monkeypatch.setattr("time.strftime", lambda form: "20260131-120000")

    def taken(*args: Any, **kwargs: Any) -> Any:
        Run.create("runs/20260131-120000-clip-score-data").write_info({"status": "complete"})
        return load_pairs(*args, **kwargs)

    monkeypatch.setattr("cleanpairs.commands.fit.load_pairs", taken)
    assert fit_run(recipe)["run"] == "runs/20260131-120000-clip-score-data-2"


def test_thresholds(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a")
    rng = np.random.default_rng(0)
    apart = np.concatenate([rng.beta(1, 20, 300), rng.beta(12, 4, 700), [np.nan]]).astype(np.float32)
    write_scores(run.path / "scores.parquet", [""] * 1001, apart, 0.1, {1000: "bad"})

    def resolve_threshold(threshold: float | str | None, run: Run) -> float | None:
        return chosen_cut(threshold, None, None, run)[0]

    auto = resolve_threshold("auto", run)
    assert auto is not None and 0.1 < auto < 0.6
    assert resolve_threshold(None, run) is None
    assert [resolve_threshold(x, run) for x in (0, 0.3, 1.0)] == [0.0, 0.3, 1.0]
    for bad in (-0.1, 1.5, float("nan"), "otto"):
        assert_raises(ConfigError, "threshold", resolve_threshold, bad, run)
    write_scores(run.path / "scores.parquet", [""] * 50, np.full(50, 0.7, np.float32), 0.1, {})
    assert_raises(RefusedError, "do not separate", resolve_threshold, "auto", run)


def test_the_worst_pair_is_that_of_the_lowest_score() -> None:
    fitted = ClipScore()
    fitted._begin()
    fitted.correspondence_, fitted.threshold_, fitted.noise_rate_ = np.array([0.6, 0.1], np.float32), 0.5, math.nan
    fitted.quarantined_, fitted.history_ = {}, []
    rows = [("doubtful", 0, "stands out", 0.6, ""), ("doubtful", 1, "flagged", 0.1, "")]  # as issues.csv lists them
    names = ("issue", "pair_id", "key", "score", "why")
    issues = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])
    assert _result(fitted, {}, issues)["worst"] == "pair 1, key flagged, correspondence 0.100"


def test_the_verdict_is_the_first_line_and_names_the_next_step() -> None:
    found = dict.fromkeys(("captions", "noise_rate_interval", "noise_rate_bound", "val_rsum", "worst"))
    found |= {"method": "auto", "pairs": 10, "quarantined": 0, "flagged": 1, "threshold": 0.5, "noise_rate": 0.1}
    found |= {"histogram": [1], "run": "a run", "set_aside": [], "doubtful": {}, "displaced": [], "issues": {}}
    for more, steps in (
        ({"standing_out": []}, ["review 'a run' --calibrate", "export 'a run'"]),
        ({"standing_out": [3]}, ["review 'a run' --calibrate", "review 'a run'  (look", "export 'a run'"]),
        ({"standing_out": [], "answers": 40}, ["export 'a run'"]),
    ):
        lines = result_table(found | more).splitlines()
        begin = "By 40 answers about 10.0 %" if "answers" in more else "About 10.0 % of the pairs fit no"
        assert lines[0].startswith(begin)
        assert any(line.startswith("outliers") for line in lines) == bool(more["standing_out"])
        for line, step in zip(lines[-len(steps) :], steps, strict=True):
            assert line[16:].startswith(f"cleanpairs {step}")


@pytest.mark.parametrize(
    ("listed", "told"), [(0, "no others listed"), (3, "3 repeated"), (200, "at least 200 repeated")]
)
def test_issues_are_counted_no_further_than_they_are_listed(listed: int, told: str) -> None:
    found = dict.fromkeys(("captions", "noise_rate", "noise_rate_interval", "noise_rate_bound", "val_rsum", "worst"))
    found |= {"method": "auto", "pairs": 900, "quarantined": 0, "flagged": 1, "threshold": 0.5, "histogram": [1]}
    found |= {"run": "run", "set_aside": [], "doubtful": {}, "displaced": [], "standing_out": []}
    issues = {"doubtful": 200, "repeated": listed, "displaced rows": 1}  # one block of any number of rows
    assert f"issues          {told}  (" in result_table(found | {"issues": issues})


# -- A threshold or a rate that a file holds is a number in [0, 1], or the file is refused and named ------------------


WRONG = (math.nan, math.inf, -0.1, 1.5, "0.5", True, [0.5])


@pytest.mark.parametrize("name", ["threshold", "min_repair_score"])
def test_a_plan_has_none(tmp_path: Path, name: str) -> None:
    given = {"threshold": 0.5, "min_repair_score": 0.5}
    for value in WRONG:
        assert_raises(ConfigError, name, RepairPlan, PLAN_SCHEMA.empty_table(), **given | {name: value})
        plan = RepairPlan(pa.Table.from_pylist([], PLAN_SCHEMA), **given)
        object.__setattr__(plan, name, value)
        for file in ("plan.csv", "plan.parquet"):
            plan.save(tmp_path / file, overwrite=True)
            assert_raises(DataError, file, RepairPlan.load, tmp_path / file)


def test_a_run_has_none() -> None:
    for value in WRONG:
        assert mistyped({"result": {"threshold": value}}) == ["result.threshold"]
        assert mistyped({"result": {"noise_rate": value, "threshold": 1}}) == ["result.noise_rate"]
    assert mistyped({"result": {"noise_rate": None, "threshold": 0.25}}) == []
