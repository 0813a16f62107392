"""``cleanpairs rematch`` and ``export --plan``: review, edit, apply."""

import errno
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.repair.plan import RepairPlan
from tests.conftest import assert_refused, code_of
from tests.helpers import corpus, plan_of, write_corpus
from tests.repair.test_chat import answered, completion, lines_of, seen_by
from tests.repair.test_endpoint import good, serving
from tests.repair.test_recaption import COLOURS, png

PLAUSIBLE = ("rematch", "--repairs", "plausible")
N, WRONG = 120, 30


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with data.parquet and a run of it."""
    home = tmp_path_factory.mktemp("rematch")
    write_corpus(home / "data.parquet", N, WRONG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        argv = [
            "fit", "data.parquet", "--backbone", "mlp", "--out", "run", "--epochs", "12", "--batch-size", "16",
            "--quiet", "--method", "crcl", "--device", "cpu",
            "--set", "dim=32", "--set", "dropout=0.1", "--set", "refine_epochs=[4]", "--set", "lr=0.005", "--set",
            "eval_group_size=32", "--set", "tau=0.1",
        ]  # fmt: skip
        assert code_of(*argv) == 0
    return home


@pytest.fixture
def command(fitted: Path, monkeypatch: pytest.MonkeyPatch, in_process: Callable[..., Any]) -> Callable[..., Any]:
    monkeypatch.chdir(fitted)
    return in_process


def test_what_a_format_cannot_hold_is_refused_at_once(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("cleanpairs.commands.rematch.rematch_run", lambda *given, **named: pytest.fail("it planned"))
    export = ("export", "run", "--repaired")
    assert_refused(command(*export, tmp_path / "ids.npy"), 2, "lists the column 'uid'", "name the output *.parquet")
    assert_refused(command(*export, tmp_path / "tars", "--format", "webdataset"), 2, "webdataset holds images")
    assert not list(tmp_path.iterdir())


def test_out_is_repaired_and_a_plan_needs_no_run(command: Callable[..., Any], tmp_path: Path) -> None:
    outs = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for out, named in zip(outs, ("--out", "--repaired"), strict=True):
        code, _, err = command("export", "run", named, out)
        assert code == 0, err
    assert outs[0].read_bytes() == outs[1].read_bytes()
    out = tmp_path / "c.parquet"
    assert_refused(command("export", "run", "--plan", "p.parquet", "--out", out), 2, "RUN: --plan has decided that")
    assert_refused(command("export", "nowhere", "--repaired", out), 3, "nowhere")


def test_a_run_that_can_only_be_read_is_exported(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make, run = tempfile.mkdtemp, shutil.copytree("run", tmp_path / "run")
    (run / "plan.parquet").unlink(missing_ok=True)
    before = sorted(run.rglob("*"))

    def refused(**options: Any) -> str:
        if options["dir"] == run:
            raise OSError(errno.EROFS, "Read-only file system", str(run))
        return make(**options)

    monkeypatch.setattr("cleanpairs.data.atomic.tempfile.mkdtemp", refused)
    code, _, err = command("export", run, "--out", tmp_path / "out.parquet")
    assert code == 0 and len(pq.read_table(tmp_path / "out.parquet")) > 0, err
    assert sorted(run.rglob("*")) == before


@pytest.mark.parametrize("argv", [("export", "run"), ("rematch", "run"), ("score", "run", "data.parquet")])
def test_an_interrupted_command_says_how_to_go_on(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, argv: tuple[str, ...]
) -> None:
    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cleanpairs.data.source.digest_of", stopped)
    done = command(*argv, "--out", tmp_path / "out.parquet")
    assert_refused(done, 130, "no output was changed. The same command begins again")
    assert not list(tmp_path.iterdir())


def test_search_and_writing_show_how_far_they_are(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEANPAIRS_PROGRESS", "1")
    code, _, planned = command(*PLAUSIBLE, "run", "--out", tmp_path / "plan.parquet")
    assert code == 0 and "search 1:" in planned and "search 2:" in planned and "rows/s" in planned, planned
    code, _, written = command("export", "--plan", tmp_path / "plan.parquet", "--out", tmp_path / "out.parquet")
    assert code == 0 and "writing" in written and f"{N}/{N} [" in written and "search" not in written, written


def test_data_that_was_moved_is_asked_for_in_whole(command: Callable[..., Any], fitted: Path, tmp_path: Path) -> None:
    (fitted / "data.parquet").rename(tmp_path / "moved.parquet")
    try:
        code, _, err = command("export", "run", "--out", tmp_path / "out.parquet")
        assert code == 3 and "data.parquet; the run run was fitted on it: put it back" in err, err
        assert command("rematch", "run", tmp_path / "moved.parquet", "--out", tmp_path / "plan.parquet")[0] == 0
    finally:
        (tmp_path / "moved.parquet").rename(fitted / "data.parquet")


def test_other_data_than_the_runs(command: Callable[..., Any], output_of: Any, tmp_path: Path) -> None:
    other = write_corpus(tmp_path / "other.parquet", N, WRONG, seed=5)
    plan_file = tmp_path / "plan.parquet"
    out = output_of(*PLAUSIBLE, "run", other, "--out", plan_file, "--threshold", "0.3")
    assert "new caption" in out and f"cleanpairs export --plan {plan_file}" in out
    settings = RepairPlan.load(plan_file).settings
    assert settings["data"] == str(other)
    searches = settings["searches"]
    assert {note["index"] for note in searches} == {"flat"} and {note["recall"] for note in searches} == {1.0}
    assert "search: " not in out, "an exact search is nothing to tell of"
    output_of("export", "--plan", plan_file, "--repaired", tmp_path / "out.parquet")
    write_corpus(other, N, WRONG, seed=6)
    assert_refused(command("export", "--plan", plan_file, "--repaired", tmp_path / "again.parquet"), 3, "fingerprint")


def test_what_cannot_be(command: Callable[..., Any], tmp_path: Path) -> None:
    plan_file = tmp_path / "plan.parquet"
    assert command(*PLAUSIBLE, "--out", plan_file)[0] == 0
    assert_refused(command(*PLAUSIBLE, "--out", plan_file), 5, "--overwrite")
    code, out, _ = command(*PLAUSIBLE, "--out", plan_file, "--overwrite", "--json")
    counts = json.loads(out)
    assert code == 0 and counts["pairs"] == N == sum(v for k, v in counts.items() if k != "pairs")
    out, made = ("--repaired", tmp_path / "o.parquet"), tmp_path / "made.parquet"
    done = command("export", "--plan", plan_file, *out, "--set", "max_reuse=2")
    assert_refused(done, 2, "--set: --plan has decided", "rematch")
    assert command(*PLAUSIBLE, "a", "b", "c", "--out", tmp_path / "x.parquet")[0] == 2
    assert_refused(command(*PLAUSIBLE, "--out", tmp_path / "x.parquet", "--set", "strategy=best"), 2, "half-replace")
    assert_refused(command("export", "--plan", "data.parquet", *out), 3, "no repair plan")
    plan_of(corpus(30)).save(made)  # by Python, which names no data
    assert_refused(command("export", "--plan", made, *out), 3, "does not name its data")


def test_a_purity_or_a_share_that_is_asked_for(command: Callable[..., Any], fitted: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(fitted / "run", tmp_path / "run"))
    argv = ["export", run, "--repaired", tmp_path / "out.parquet", "--overwrite"]
    code, out, err = command(*argv, "--keep", "0.5")
    assert code == 0 and "60 of 120 pairs" in out and "undetermined" in out, err
    assert_refused(command(*argv, "--max-wrong", "0.1"), 7, "no calibrated probabilities", "--keep")
    assert_refused(command(*argv, "--max-wrong", "0.1", "--threshold", "0.5"), 2, "exclude each other")
    other = (*PLAUSIBLE, run, "data.parquet", "--out", tmp_path / "p.parquet")
    for cut in (["--max-wrong", "0.1"], ["--keep", "0.5"], ["--threshold", "auto"]):
        assert_refused(command(*other, *cut), 2, cut[0], "leave DATA out")
    config = json.loads((run / "model" / "config.json").read_text())
    config["calibration"] = {"theta": [-3.0, 1.0, 3.0], "draws": [[-3.0, 1.0, 3.0], [-2.9, 1.0, 3.1]]}
    (run / "model" / "config.json").write_text(json.dumps(config))
    code, out, err = command(*argv, "--max-wrong", "0.3")
    assert code == 0 and "% fit no better than captions of other images  (95 %" in out and "are not kept" in out, err
    assert_refused(command(*argv, "--max-wrong", "0.000001"), 7, "of no 30 pairs")


def test_an_edited_plan_of_a_run_is_never_replaced(command: Callable[..., Any], fitted: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "mine", tmp_path / "out.parquet"
    shutil.copytree(fitted / "run", run)
    export = ("export", run, "--repaired", out, "--threshold", "0.5")
    assert command(*export)[0] == 0 and command(*export, "--overwrite", "--threshold", "0.4")[0] == 0
    written = (run / "plan.parquet").read_bytes()
    assert command(*export)[0] == 5  # an export that is refused leaves the plan of the one before
    assert (run / "plan.parquet").read_bytes() == written
    table = pq.read_table(run / "plan.parquet")
    pq.write_table(table, run / "plan.parquet")  # as a program leaves it that has changed a row
    edited, old = (run / "plan.parquet").read_bytes(), out.read_bytes()
    assert_refused(command(*export, "--overwrite"), 5, f"--plan {run / 'plan.parquet'}")
    assert_refused(command("fit", fitted / "data.parquet", "--out", run, "--overwrite"), 5, "plan.parquet")
    assert (run / "plan.parquet").read_bytes() == edited and out.read_bytes() == old
    assert command("export", "--plan", run / "plan.parquet", "--repaired", out, "--overwrite")[0] == 0


@pytest.mark.parametrize("beside", [".manifest.json", ".ledger.parquet", ".parts/part-00000.parquet"])
def test_files_beside_an_output_that_are_somebody_elses_stay(
    beside: str, command: Callable[..., Any], fitted: Path, tmp_path: Path
) -> None:
    plan = beside.startswith(".parts")
    out = tmp_path / "out.parquet"
    theirs = Path(f"{out}{beside}")
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("mine")
    argv = [*PLAUSIBLE, "--workers", "2", fitted / "run", "--out", out]
    argv = argv if plan else ["export", fitted / "run", "--repaired", out]
    for more in ([], ["--overwrite"]):
        assert_refused(command(*argv, *more), 5, theirs.parent.name, "away, or name another output")
    assert theirs.read_text() == "mine" and not out.exists()


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with coloured squares, of which a fourth have other captions, and a run of them."""
    home = tmp_path_factory.mktemp("squares")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        names = [list(COLOURS)[i % 3] for i in range(40)]
        pictures = [png(name, 16 + i) for i, name in enumerate(names)]
        captions = [f"a {name} square" if i % 4 else f"some {i} words" for i, name in enumerate(names)]
        pq.write_table(pa.table({"image": pictures, "caption": captions}), "data.parquet")
        sets = ["image_size=32", "dim=8", "refine_epochs=[1]", "freeze=1", "eval_group_size=8"]
        fit = ["fit", "data.parquet", "--method", "crcl", "--backbone", "mlp", "--epochs", "1", "--batch-size", "8"]
        argv = [*fit, "--out", "run", "--device", "cpu", "--quiet", *(w for s in sets for w in ("--set", s))]
        assert code_of(*argv) == 0
    return home


@pytest.fixture
def on_squares(squares: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: Callable[..., Any]) -> Any:
    """``in_process``, in a copy of these."""
    shutil.copytree(squares, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    return in_process


def test_captions_are_requested_and_answers_are_read(on_squares: Callable[..., Any]) -> None:
    rematch = ["rematch", "run", "--repairs", "none", "--threshold", "1", "--set", "min_repair_score=0", "--overwrite"]
    model = ["--recaption-model", "tiny-vl", "--set", "body={max_tokens: 9}"]
    code, out, err = on_squares(*rematch, *model, "--out", "p.parquet", "--recaption-requests", "requests.jsonl")
    assert code == 0 and "40 pairs with 40 images" in err and "40 pairs without a usable answer" in out, err
    requests = lines_of(Path("requests.jsonl"))
    assert len(requests) == 40 and {r["body"]["max_tokens"] for r in requests} == {9}
    Path("answers.jsonl").write_text("\n".join(answered(r) for r in requests[:30]))
    code, out, err = on_squares(*rematch, *model, "--out", "p.parquet", "--captions", "answers.jsonl")
    assert code == 0 and "30 captions answered" in out, err
    code, out, err = on_squares("export", "--plan", "p.parquet", "--out", "clean.parquet", "--json")
    counts = json.loads(out)
    assert code == 0 and 0 < counts["recaptioned"] <= 30
    assert counts["kept"] + counts["dropped"] == 40 - counts["recaptioned"]
    note = json.loads(pq.read_schema("clean.parquet.ledger.parquet").metadata[b"cleanpairs.recaption"])
    assert note["model"] == "tiny-vl" and note["body"] == {"max_tokens": 9} and "{caption}" in note["prompt"]
    assert np.char.startswith(np.array(pq.read_table("clean.parquet")["caption"].to_pylist()), "a ").all()
    with serving(lambda k, request: good(request)) as (url, asked):
        for _ in range(2):  # the second time it is all known
            code, out, err = on_squares(*rematch, *model, "--out", "p.parquet", "--recaption-url", url)
            assert code == 0 and "40 captions answered, 0 pairs" in out and len(asked) == 40, err
        assert len(lines_of(Path("p.parquet.answers.jsonl"))) == 40
        more = ["--recaption-url", url, "--recaption-requests", "requests.jsonl"]
        assert on_squares(*rematch, *model, "--out", "p.parquet", *more)[0] == 2
    none = [*rematch, *model, "--threshold", "0", "--out", "p.parquet", "--recaption-requests", "none.jsonl"]
    assert on_squares(*none)[0] == 0 and lines_of(Path("none.jsonl")) == []
    assert_refused(on_squares(*rematch, "--out", "p.parquet", "--set", "max_words=3"), 2, "--recaption-requests")
    code, _, err = on_squares(*rematch, "--out", "p.parquet", "--recaption-requests", "requests.jsonl")
    assert code == 2 and "--recaption-model" in err and len(lines_of(Path("requests.jsonl"))) == 40


def test_a_judge_gives_second_opinions(on_squares: Callable[..., Any]) -> None:
    def judged(k: int, request: dict[str, Any]) -> Any:
        colour, text = seen_by({"body": request}).split()[1], request["messages"][0]["content"][1]["text"]
        return 200, {}, json.dumps(completion("Yes" if colour in text else "No")).encode()

    with serving(judged) as (url, asked):
        code, out, err = on_squares("review", "run", "--calibrate", "--judge", f"tiny-vl@{url}", "--json")
        assert code == 0 and asked[0][1] == "Bearer sk-secret", err
    figures = json.loads(out)
    assert figures["answers"] == 0 and figures["opinions"] == 40
    rows = [f"{i},{int(i % 4 > 0)}" for i in range(40) if i % 4 or i < 8]
    Path("a.csv").write_text("\n".join(["pair_id,matched", *rows]))
    with serving(judged) as (url, _):
        judge = ["--judge", f"tiny-vl@{url}", "--labels", "a.csv"]
        assert "measured on 30" in on_squares("review", "run", "--calibrate", *judge)[1]
    shutil.rmtree("run/review")
    with serving(judged) as (url, _):
        assert on_squares("review", "run", "--calibrate", "--judge", f"tiny-vl@{url}")[0] == 0
    assert figures["noise_rate_interval"][0] < 0.25 < figures["noise_rate_interval"][1]
    assert "sk-secret" not in "".join(file.read_text() for file in Path("run/review").iterdir())
    code, out, err = on_squares("explain", "run", "pair_id:0", "pair_id:1")
    assert code == 0 and "judge      0: it does not belong" in out and "judge      1: it belongs" in out, err
    assert "opinions of a judge" in on_squares("report", "run", "--out", "r.html")[1] + Path("r.html").read_text()
    Path("empty").mkdir()
    assert_refused(on_squares("review", "run", "--calibrate", "--judge", "empty"), 3, "config.json is missing")
    assert on_squares("review", "run", "--calibrate", "--judge", "@http://localhost")[0] == 2
    assert on_squares("review", "run", "--judge", "tiny-vl@http://localhost")[0] == 2
