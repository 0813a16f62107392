"""``cleanpairs rematch`` and ``export --plan``: review, edit, apply."""

import errno
import json
import os
import shutil
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.commands.run import Run
from cleanpairs.repair.plan import RepairPlan
from tests.conftest import Command, assert_refused, code_of
from tests.helpers import corpus, plan_of, write_corpus
from tests.repair.test_chat import answered, completion, lines_of, seen_by
from tests.repair.test_endpoint import good, serving
from tests.repair.test_recaption import COLOURS, png

PLAUSIBLE = ("rematch", "--repairs", "plausible")
N, WRONG = 120, 30


def fit_in(home: Path, settings: str) -> Path:
    """The directory, with a run of its data.parquet."""
    fit = "fit data.parquet --out run --quiet --method crcl --device cpu --backbone mlp".split()
    with chdir(home):
        assert code_of(*fit, *(word for setting in settings.split() for word in ("--set", setting))) == 0
    return home


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with data.parquet and a run of it."""
    home = tmp_path_factory.mktemp("rematch")
    write_corpus(home / "data.parquet", N, WRONG)
    settings = "epochs=12 batch_size=16 dim=32 dropout=0.1 refine_epochs=[4] lr=0.005 eval_group_size=32 tau=0.1"
    return fit_in(home, settings)


@pytest.fixture
def command(fitted: Path, monkeypatch: pytest.MonkeyPatch, in_process: Command) -> Command:
    monkeypatch.chdir(fitted)
    return in_process


def test_what_a_format_cannot_hold_is_refused_at_once(command: Command, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr("cleanpairs.commands.rematch.rematch_run", lambda *given, **named: pytest.fail("it planned"))
    export = ("export", "run", "--repaired")
    assert_refused(command(*export, tmp_path / "ids.npy"), 2, "lists the column 'uid'", "name the output *.parquet")
    assert_refused(command(*export, tmp_path / "tars", "--format", "webdataset"), 2, "webdataset holds images")
    assert not list(tmp_path.iterdir())


def test_a_run_that_can_only_be_read_is_exported(command: Command, monkeypatch: Any, tmp_path: Path) -> None:
    make, run = tempfile.mkdtemp, shutil.copytree("run", tmp_path / "run")
    (run / "plan.parquet").unlink(missing_ok=True)
    Run.open(run).decision_log(N).label(dict.fromkeys(range(20), True))
    before = sorted(run.rglob("*"))

    def refused(**options: Any) -> str:
        if options["dir"] == run:
            raise OSError(errno.EROFS, "Read-only file system", str(run))
        return make(**options)

    monkeypatch.setattr("cleanpairs.data.atomic.tempfile.mkdtemp", refused)
    monkeypatch.setattr("os.O_CREAT", os.O_CREAT | os.O_EXCL)  # no file that is there can be written
    assert command("export", run, "--out", tmp_path / "out.parquet").code == command("worst", run).code == 0
    assert len(pq.read_table(tmp_path / "out.parquet")) > 0 and sorted(run.rglob("*")) == before


@pytest.mark.parametrize("argv", ["export run", "rematch run", "score run data.parquet"])
def test_what_an_interrupted_command_says(command: Command, monkeypatch: Any, tmp_path: Path, argv: str) -> None:
    monkeypatch.setattr("cleanpairs.data.source.digest_of", Mock(side_effect=KeyboardInterrupt))
    done = command(*argv.split(), "--out", tmp_path / "out.parquet")
    assert_refused(done, 130, "no output was changed. The same command begins again")
    assert not list(tmp_path.iterdir())


def test_data_that_was_moved_is_asked_for_in_whole(command: Command, fitted: Path, tmp_path: Path) -> None:
    moved = (fitted / "data.parquet").rename(tmp_path / "moved.parquet")
    try:
        done = command("export", "run", "--out", tmp_path / "out.parquet")
        assert_refused(done, 3, "data.parquet; the run run was fitted on it: put it back", "as DATA to rematch, ")
        assert command("rematch", "run", moved, "--out", tmp_path / "plan.parquet").code == 0
    finally:
        moved.rename(fitted / "data.parquet")


def test_other_data_than_the_runs(command: Command, output_of: Any, tmp_path: Path) -> None:
    other = write_corpus(tmp_path / "other.parquet", N, WRONG, seed=5)
    plan_file = tmp_path / "plan.parquet"
    output_of(*PLAUSIBLE, "run", other, "--out", plan_file, "--threshold", "0.3", "--dedup")
    settings = RepairPlan.load(plan_file).settings
    assert settings["data"] == str(other) and settings["dedup"] is True
    assert {(note["index"], note["recall"]) for note in settings["searches"]} == {("flat", 1.0)}
    output_of("export", "--plan", plan_file, "--repaired", tmp_path / "out.parquet")
    write_corpus(other, N, WRONG, seed=6)
    assert_refused(command("export", "--plan", plan_file, "--repaired", tmp_path / "again.parquet"), 3, "fingerprint")


def test_what_cannot_be(command: Command, tmp_path: Path) -> None:
    plan_file, made = tmp_path / "plan.parquet", tmp_path / "made.parquet"
    plan = (*PLAUSIBLE, "--out", plan_file)
    assert command(*plan).code == 0
    assert_refused(command(*plan), 5, "--overwrite")
    code, out, _ = command(*plan, "--overwrite", "--json")
    counts = json.loads(out)
    assert code == 0 and counts.pop("pairs") == N == sum(counts.values())
    out = ("--repaired", tmp_path / "o.parquet")
    done = command("export", "--plan", plan_file, *out, "--set", "max_reuse=2", "--dedup")
    assert_refused(done, 2, "--dedup, --set: --plan has decided", "rematch")
    assert command(*plan, "a", "b", "c").code == 2
    assert_refused(command(*plan, "--set", "strategy=best"), 2, "half-replace")
    assert_refused(command("export", "run", "--plan", plan_file, *out), 2, "leave RUN out")
    assert_refused(command("export", "nowhere", *out), 3, "nowhere")
    assert_refused(command("export", "--plan", "data.parquet", *out), 3, "no repair plan")
    plan_of(corpus(30)).save(made)  # by Python, which names no data
    assert_refused(command("export", "--plan", made, *out), 3, "does not name its data")


def test_a_purity_or_a_share_that_is_asked_for(command: Command, fitted: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(fitted / "run", tmp_path / "run"))
    argv = ["export", run, "--repaired", tmp_path / "out.parquet", "--overwrite"]
    code, out, err = command(*argv, "--keep", "0.5")
    assert code == 0 and "60 of 120 pairs" in out and "undetermined" in out, err
    assert_refused(command(*argv, "--max-wrong", "0.1"), 7, "no calibrated probabilities", f"review {run} --cal")
    assert_refused(command(*argv, "--max-wrong", "0.1", "--threshold", "0.5"), 2, "exclude each other")
    other = (*PLAUSIBLE, run, "data.parquet", "--out", tmp_path / "p.parquet")
    for cut in (["--max-wrong", "0.1"], ["--keep", "0.5"], ["--threshold", "auto"]):
        assert_refused(command(*other, *cut), 2, cut[0], "leave DATA out")
    config = json.loads((run / "model" / "config.json").read_text())
    for clean, cuts in (([-30.0, 1.0, 3.0], 1), ([-3.0, 1.0, 3.0], 0)):  # of a clean run all cuts keep as many
        config["calibration"] = {"theta": clean, "draws": [clean, [clean[0] + 0.1, 1.0, 3.1]]}
        (run / "model" / "config.json").write_text(json.dumps(config))
        command("report", run, "--out", tmp_path / "report.html", "--overwrite")
        assert (tmp_path / "report.html").read_text().count("--max-wrong") == cuts
    code, out, err = command(*argv, "--max-wrong", "0.3")
    assert code == 0 and "% fit no better than captions of other images  (95 %" in out and "are not kept" in out, err
    assert_refused(command(*argv, "--max-wrong", "0.000001"), 7, "best 30 pairs")


def test_an_edited_plan_of_a_run_is_never_replaced(command: Command, fitted: Path, tmp_path: Path) -> None:
    run, out = Path(shutil.copytree(fitted / "run", tmp_path / "mine")), tmp_path / "out.parquet"
    plan, export = run / "plan.parquet", ("export", run, "--repaired", out, "--threshold", "0.5")
    assert command(*export).code == command(*export, "--overwrite", "--threshold", "0.4").code == 0
    written = plan.read_bytes()
    # An export that is refused leaves the plan of the one before.
    assert command(*export).code == 5 and plan.read_bytes() == written
    pq.write_table(pq.read_table(plan), plan)  # as a program leaves it that has changed a row
    edited, old = plan.read_bytes(), out.read_bytes()
    assert_refused(command(*export, "--overwrite"), 5, f"--plan {plan}")
    assert_refused(command("fit", fitted / "data.parquet", "--out", run, "--overwrite"), 5, "plan.parquet")
    assert plan.read_bytes() == edited and out.read_bytes() == old
    assert command("export", "--plan", plan, "--repaired", out, "--overwrite").code == 0


@pytest.mark.parametrize("beside", [".manifest.json", ".ledger.parquet", ".parts/part-00000.parquet"])
def test_files_of_others_beside_an_output_stay(beside: str, command: Command, fitted: Path, tmp_path: Path) -> None:
    out, theirs = tmp_path / "out.parquet", tmp_path / f"out.parquet{beside}"
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("mine")
    argv = [*PLAUSIBLE, "--workers", "2"] if beside.startswith(".parts") else ["export"]
    for more in ([], ["--overwrite"]):
        done = command(*argv, fitted / "run", "--out", out, *more)
        assert_refused(done, 5, theirs.parent.name, "away, or name another output")
    assert theirs.read_text() == "mine" and not out.exists()


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with coloured squares, of which a fourth have other captions, and a run of them."""
    home = tmp_path_factory.mktemp("squares")
    names = [list(COLOURS)[i % 3] for i in range(40)]
    pictures = [png(name, 16 + i) for i, name in enumerate(names)]
    captions = [f"a {name} square" if i % 4 else f"some {i} words" for i, name in enumerate(names)]
    pq.write_table(pa.table({"image": pictures, "caption": captions}), home / "data.parquet")
    return fit_in(home, "epochs=1 batch_size=8 image_size=32 dim=8 refine_epochs=[1] freeze=1 eval_group_size=8")


@pytest.fixture
def on_squares(squares: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_process: Command) -> Any:
    """``in_process``, in a copy of these."""
    shutil.copytree(squares, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    return in_process


def test_captions_are_requested_and_answers_are_read(on_squares: Command) -> None:
    rematch = "rematch run --repairs none --threshold 1 --set min_repair_score=0 --overwrite --out p.parquet".split()
    model = ["--recaption-model", "tiny-vl", "--set", "body={max_tokens: 9}"]
    asking = ["--recaption-requests", "requests.jsonl"]
    code, out, err = on_squares(*rematch, *model, *asking)
    assert code == 0 and "40 pairs with 40 images" in err and "40 pairs without a usable answer" in out, err
    requests = lines_of(Path("requests.jsonl"))
    assert len(requests) == 40 and {r["body"]["max_tokens"] for r in requests} == {9}
    Path("answers.jsonl").write_text("\n".join(answered(r) for r in requests[:30]))
    code, out, err = on_squares(*rematch, *model, "--captions", "answers.jsonl")
    assert code == 0 and "30 captions answered" in out, err
    code, out, err = on_squares("export", "--plan", "p.parquet", "--out", "clean.parquet", "--json")
    counts = json.loads(out)
    assert code == 0 and 0 < counts["recaptioned"] <= 30
    assert counts["kept"] + counts["dropped"] == 40 - counts["recaptioned"]
    note = json.loads(pq.read_schema("clean.parquet.ledger.parquet").metadata[b"cleanpairs.recaption"])
    assert note["model"] == "tiny-vl" and note["body"] == {"max_tokens": 9} and "{caption}" in note["prompt"]
    assert all(caption.startswith("a ") for caption in pq.read_table("clean.parquet")["caption"].to_pylist())
    with serving(lambda k, request: good(request)) as (url, asked):
        code, out, err = on_squares(*rematch, *model, "--recaption-url", url)
        assert code == 0 and "40 captions answered, 0 pairs" in out, err
        assert len(asked) == len(lines_of(Path("p.parquet.answers.jsonl"))) == 40
        assert on_squares(*rematch, *model, "--recaption-url", url, *asking).code == 2
    assert on_squares(*rematch, *model, "--threshold", "0", "--recaption-requests", "none.jsonl").code == 0
    assert_refused(on_squares(*rematch, "--set", "max_words=3"), 2, "--recaption-requests")
    assert_refused(on_squares(*rematch, *asking), 2, "--recaption-model")
    assert lines_of(Path("none.jsonl")) == [] and len(lines_of(Path("requests.jsonl"))) == 40


def test_a_judge_gives_second_opinions(on_squares: Command) -> None:
    def judged(k: int, request: dict[str, Any]) -> Any:
        colour, text = seen_by({"body": request}).split()[1], request["messages"][0]["content"][1]["text"]
        return 200, {}, json.dumps(completion("Yes" if colour in text else "No")).encode()

    calibrate = ("review", "run", "--calibrate")
    with serving(judged) as (url, asked):
        judge = ("--judge", f"tiny-vl@{url}")
        code, out, err = on_squares(*calibrate, *judge, "--json")
        assert code == 0 and asked[0][1] == "Bearer sk-secret", err
        assert on_squares("report", "run").code == 0 and "by 40 opinions." in Path("report.html").read_text()
        figures = json.loads(out)
        assert figures["answers"] == 0 and figures["opinions"] == 40
        rows = [f"{i},{int(i % 4 > 0)}" for i in range(40) if i % 4 or i < 8]
        Path("a.csv").write_text("\n".join(["pair_id,matched", *rows]))
        assert "measured on 30" in on_squares(*calibrate, *judge, "--labels", "a.csv").out
        shutil.rmtree("run/review")
        assert on_squares(*calibrate, *judge).code == 0
    assert figures["noise_rate_interval"][0] < 0.25 < figures["noise_rate_interval"][1]
    assert "sk-secret" not in "".join(file.read_text() for file in Path("run/review").iterdir())
    Path("empty").mkdir()
    assert_refused(on_squares(*calibrate, "--judge", "empty"), 3, "config.json is missing")
    assert on_squares(*calibrate, "--judge", "@http://localhost").code == 2
    assert on_squares("review", "run", "--judge", "tiny-vl@http://localhost").code == 2
