"""The run directory: made, found, linked, read; damage is named."""

import errno
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from cleanpairs import load_pairs
from cleanpairs.commands.fit import fit_run
from cleanpairs.commands.rematch import chosen_threshold
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


def test_a_new_run_is_the_latest_unless_it_is_discarded(tmp_path: Path) -> None:
    latest = tmp_path / "runs" / "latest"
    Run.create("a").discard_empty()  # the first of all leaves no link
    assert not Path("a").exists() and list(Path("runs").iterdir()) == []
    Run.create("a").write_info({"status": "complete"})
    Run.create("runs/first").write_info({"x": 1})
    assert os.readlink(latest) == "first"
    assert_raises(OutputExistsError, r"--overwrite.*--resume", Run.create, "a")
    Run.create("a", resume=True)
    unlinked = Run.create("other", latest=False)
    assert os.readlink(latest) == os.path.join("..", "a")
    empty = Run.create("runs/second")
    empty.write_info({"x": 2})
    for learnt_nothing in (empty, unlinked):
        learnt_nothing.discard_empty()
        assert not learnt_nothing.path.exists() and os.readlink(latest) == os.path.join("..", "a")
    begun = Run.create("runs/third")
    (begun.path / "checkpoints").mkdir()
    (begun.path / "checkpoints" / "last.safetensors").touch()
    begun.discard_empty()
    assert begun.path.exists() and os.readlink(latest) == "third"


def test_a_complete_run_outlives_any_number_of_killed_replacements() -> None:
    """A kill leaves the half-made run in place of the old one, which is set aside: the next fit must not delete it."""
    Run.create("a").write_info({"status": "complete", "x": 1})
    for status in ("running", "interrupted", None):
        killed = Run.create("a", overwrite=True)  # and neither forgotten nor restored
        if status is not None:
            killed.write_info({"status": status})
    assert_raises(OutputExistsError, "--overwrite", Run.create, "a")
    assert_raises(DataError, r"\.replaced-a, move it back", Run.open, "a")
    Run.create("a", overwrite=True).restore_replaced()
    assert Run.open("a").info == {"status": "complete", "x": 1}
    # killed before the old one was forgotten: the new one counts
    Run.create("a", overwrite=True).write_info({"status": "complete", "x": 2})
    Run.create("a", overwrite=True).restore_replaced()
    assert Run.open("a").info == {"status": "complete", "x": 2}


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
@pytest.mark.parametrize("left", [None, ".cleanpairs-run.json-abcdefgh", "run.json"])
def test_what_a_kill_leaves_of_a_fit_that_has_just_begun(left: str | None, options: dict[str, bool]) -> None:
    for status in ("running", "interrupted"):
        Path(status).mkdir()
        if left:
            Path(status, left).write_text(json.dumps({"status": status}))
        Run.check_resumable(Path(status))
        Run.create(status, **options).write_info({"status": "complete"})
        assert Run.open(status).info == {"status": "complete"} and not Path(f".replaced-{status}").exists()
        assert_raises(OutputExistsError, "--overwrite", Run.create, status)


@pytest.mark.parametrize("options", [{}, {"overwrite": True}, {"resume": True}])
def test_a_run_set_aside_by_a_killed_fit_comes_back(options: dict[str, bool]) -> None:
    Run.create("a").write_info({"status": "complete", "x": 1})
    Path("a").rename(".replaced-a")
    if options:
        Run.create("a", **options).restore_replaced()
    else:
        assert_raises(OutputExistsError, "--overwrite", Run.create, "a")
    assert Run.open("a").info == {"status": "complete", "x": 1} and not Path(".replaced-a").exists()


@pytest.mark.parametrize("how", ["a file called runs", "a directory in the link's place", "a link that stays"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_no_run_is_lost_where_the_link_cannot_be_made(how: str, overwrite: bool) -> None:
    def left() -> list[Path]:
        return sorted(p for p in Path().rglob("*") if p.name not in ("a", "run.json"))

    if overwrite:
        Run.create("a", latest=False).write_info({"status": "complete"})
    if how == "a file called runs":
        Path("runs").write_text("mine")
    elif how == "a directory in the link's place":
        Path("runs/latest/mine").mkdir(parents=True)
    else:  # the name of the new link is taken by what cannot be removed: as a directory that cannot be written is
        Path(f"runs/.latest-{os.getpid()}/mine").mkdir(parents=True)
        LATEST.symlink_to("older")
    before = left()
    if how == "a link that stays":  # it would go on pointing to the older run
        assert_raises(OutputError, "runs/latest points to older", Run.create, "a", overwrite=overwrite)
        assert Path("a/run.json").exists() == Path("a").exists() == overwrite
    else:
        run = Run.create("a", overwrite=overwrite)
        run.write_info({"status": "complete"})
        run.forget_replaced()
        assert Run.open("a").info == {"status": "complete"} and not same_file(LATEST, "a")
    assert left() == before


@pytest.mark.parametrize("call", ["mkdir", "replace"])
def test_the_old_run_returns_if_the_new_one_cannot_begin(tmp_path: Path, monkeypatch: Any, call: str) -> None:
    Run.create("a").write_info({"status": "complete", "x": 1})
    found = getattr(Path, call)

    def fail(self: Path, *args: Any, **kwargs: Any) -> Any:
        if self.name == "a" or self.name.startswith(".latest-"):
            raise OSError(errno.EROFS, "Read-only file system", str(self))
        return found(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, call, fail)
        assert_raises(OutputError, "Read-only", Run.create, "a", overwrite=True)
    assert Run.open(None).info == {"status": "complete", "x": 1}
    left = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")}
    assert left == {"a", "a/run.json", "runs", "runs/latest"}


def test_labels_and_edited_plans_stay() -> None:
    run = Run.create("a")
    run.write_info({"status": "complete"})
    (run.path / "audit").mkdir()
    labels = run.path / "audit" / "labels.csv"
    labels.write_text("pair_id,matched,key,stratum\n0,,k0,s\n1,1,k1,s\n")
    assert_raises(OutputExistsError, "1 label given by hand", Run.create, "a", overwrite=True)
    labels.write_text("pair_id;matched;key;stratum\n0;;k0;s\n")
    write_scores(run.path / PLAN, ["k0"], np.ones(1, np.float32), 0.5, {})  # a table that no plan is
    assert_raises(OutputExistsError, "--plan", Run.create, "a", overwrite=True)
    assert labels.exists() and (run.path / PLAN).exists() and not Path(".replaced-a").exists()


def test_only_a_run_is_overwritten(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "a")
    run.write_info({"x": 1})
    (run.path / "mine").write_text("mine")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "file").write_text("x")
    for name, words in (
        ("a", "'mine', which is no part of what would be written"),
        ("other", "no run directory"),
        ("link", "symbolic link"),
        ("file/run", "file"),
    ):
        assert_raises((OutputError, OutputExistsError), words, Run.create, tmp_path / name, overwrite=True)
    (run.path / "mine").unlink()
    Run.create(tmp_path / "a", overwrite=True)


def test_open_says_what_is_missing(tmp_path: Path) -> None:
    assert_raises(DataError, r"runs/latest.*cleanpairs fit", Run.open, None)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    says = {"x": "nothing of that name", "folder": "no run.json", ".": "no run.json", "file": "is a file"}
    for name, words in says.items():
        assert_raises(DataError, f"^{tmp_path / name} is no run directory: .*{words}$", Run.open, name)
    Run.create(tmp_path / "runs" / "a").write_info({"status": "running"})
    assert_raises(DataError, "of that name; runs here: runs/a, runs/latest", Run.open, "x")
    opened = Run.open(None)
    assert opened.path == (tmp_path / "runs" / "a").resolve() and opened.info == {"status": "running"}
    assert_raises(DataError, r"did not finish.*--resume", opened.model)
    assert_raises(DataError, "did not finish", opened.scores)
    assert opened.metrics() == []
    (opened.path / "run.json").write_text("{")
    assert_raises(DataError, r"run\.json", getattr, opened, "info")


def test_scores_round_trip_with_quarantined_pairs() -> None:
    run = Run.create("a")
    file, y = run.path / "scores.parquet", np.array([0.05, np.nan, 0.9, 0.1], np.float32)
    write_scores(file, list("abcd"), y, 0.1, {1: "no image"})
    scores = run.scores()
    np.testing.assert_array_equal(scores.correspondence, y)
    assert scores.reasons == {1: "no image"}
    assert scores.table["is_mismatch"].to_pylist() == [True, None, False, False]
    file.write_bytes(file.read_bytes()[:-20])
    assert_raises(DataError, r"scores\.parquet", run.scores)


def test_default_path_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda form: "20260131-120000")
    for data, name in (
        ("some/where/data.parquet", "crcl-data"),
        ("data.parquet", "crcl-data-2"),
        ("dir/", "crcl-dir"),
        ("https://a.org/b.parquet?X-Sig=1.2", "crcl-b"),
    ):
        path = default_run_path("crcl", data)
        assert path == Path(f"runs/20260131-120000-{name}")
        path.mkdir(parents=True)
    assert default_run_path("crcl", "shards/*.parquet").parent == Path("runs")
    assert_raises(ConfigError, "--out", default_run_path, "crcl", "a\x07b.parquet")


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """Of 40 pairs of vectors, for which nothing is trained."""
    vectors = vector_column(unit(np.random.default_rng(0).normal(size=(40, 8))))
    columns = {"caption": [f"text {i}" for i in range(40)], "image_features": vectors, "text_features": vectors}
    data = str(write_table(tmp_path / "data.parquet", columns))
    return Recipe.resolve(options={"train": data, "method": "clip-score", "text_encoder": "features"})


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """There is no space for the list of issues."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "issues.csv")
    with monkeypatch.context() as patch:
        patch.setattr("cleanpairs.commands.fit.write_csv", Mock(side_effect=full))
        yield patch


@pytest.mark.usefixtures("full_disk")
def test_a_fit_whose_issues_find_no_space_leaves_no_run(recipe: Recipe, tmp_path: Path) -> None:
    assert_raises(OutputError, "No space left", fit_run, recipe, out="run")
    images, texts, *_ = cone(300, 0.2)
    vectors = {"image_features": vector_column(images), "text_features": vector_column(texts)}
    data = write_table(tmp_path / "data.parquet", {"caption": [f"text {i}" for i in range(300)], **vectors})
    assert_raises(OutputError, "No space left", fit_beside, data, streamed_from=200)
    assert not os.path.lexists("run") and not os.path.lexists(LATEST)


def test_a_full_disk_costs_no_training_where_a_run_is_replaced(full_disk: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = write_corpus(tmp_path / "data.parquet", 40)
    again = Recipe.resolve(options={"train": data, "method": "infonce", "seed": 0, "epochs": 1, "overwrite": True})
    Run.create("run").write_info({"status": "complete"})
    assert_raises(OutputError, "No space left", fit_run, again, out="run")
    full_disk.undo()
    assert Run(tmp_path / "run").has_checkpoint() and (tmp_path / ".replaced-run").exists()
    fit_run(again, out="run", resume=True)
    assert Run.open("run").info["status"] == "complete" and not (tmp_path / ".replaced-run").exists()
    assert_raises(OutputExistsError, "--overwrite", fit_run, Recipe.resolve("run/recipe.yaml"), out="run")


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
    auto, *_ = chosen_threshold("auto", None, None, run)
    assert auto is not None and 0.1 < auto < 0.6
    assert [chosen_threshold(x, None, None, run)[0] for x in (None, 0, 0.3, 1.0)] == [None, 0.0, 0.3, 1.0]
    for bad in (-0.1, 1.5, float("nan"), "otto"):
        assert_raises(ConfigError, "threshold", chosen_threshold, bad, None, None, run)
    write_scores(run.path / "scores.parquet", [""] * 50, np.full(50, 0.7, np.float32), 0.1, {})
    assert_raises(RefusedError, "do not separate", chosen_threshold, "auto", None, None, run)


# -- A threshold or a rate that a file holds is a number in [0, 1], or the file is refused and named ------------------


WRONG = (math.nan, math.inf, -0.1, 1.5, "0.5", True, [0.5])


@pytest.mark.parametrize("name", ["threshold", "min_repair_score"])
def test_a_plan_has_none(tmp_path: Path, name: str) -> None:
    given = {"threshold": 0.5, "min_repair_score": 0.5}
    for value in WRONG:
        assert_raises(ConfigError, name, RepairPlan, PLAN_SCHEMA.empty_table(), **given | {name: value})
        plan = RepairPlan(PLAN_SCHEMA.empty_table(), **given)
        object.__setattr__(plan, name, value)
        for file in ("plan.csv", "plan.parquet"):
            plan.save(tmp_path / file, overwrite=True)
            assert_raises(DataError, file, RepairPlan.load, tmp_path / file)


def test_a_run_has_none() -> None:
    for value in WRONG:
        assert mistyped({"result": {"threshold": value}}) == ["result.threshold"]
        assert mistyped({"result": {"noise_rate": value, "threshold": 1}}) == ["result.noise_rate"]
    assert mistyped({"result": {"noise_rate": None, "threshold": 0.25}}) == []
