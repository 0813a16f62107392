"""The commands end to end: exit codes, messages, JSON, signals."""

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.cli import COMMANDS, cli
from cleanpairs.cli.options import Share, Whole
from cleanpairs.commands.run import Run
from cleanpairs.data import source
from tests.conftest import Command, assert_refused, code_of
from tests.helpers import csv_rows
from tests.helpers import write_corpus as write_words

N, WRONG = 150, 30
SMALL = (
    "--method crcl --batch-size 16 --device cpu --seed 1 --set epochs=2 --set dim=16 --set dim_word=8 "
    "--set refine_epochs=[3] --set freeze=1 --set label_epochs=auto --set eval_group_size=16 "
    "--set lr=0.01 --set tau=0.1 --set threshold=0.2"
).split()


def write_corpus(path: Path, n: int = N, wrong: int = WRONG) -> Path:
    return write_words(path, n, wrong, truth=wrong > 0, extra=list(range(n)))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "data.parquet", n=48, wrong=0)


# -- usage ----------------------------------------------------------------------------------------------------------


def test_help_of_all_commands_and_of_each(command: Command) -> None:
    assert command("--version").out.startswith("cleanpairs, version ")
    for name in COMMANDS:
        done = command(name, "--help")
        assert done.code == 0 and "Usage:" in done.out and "\n  --json  " in done.out, name


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ("fit", 2, ["DATA"]),
        ("fit nowhere.parquet", 3, ["nowhere.parquet"]),
        ("fit data.parquet --column text=captoin", 3, ["captoin", "did you mean 'caption'", "extra"]),
        ("fit --resume", 3, ["runs/latest", "cleanpairs fit"]),
        ("score a b c --out s.parquet", 2, ["give RUN, DATA"]),
        ("score --out s.parquet", 2, ["give the DATA"]),
        (f"fit data.parquet --set random_state={10**20}", 2, ["random_state", str(10**20)]),
        ("corrupt data.parquet --noise nan --out n.parquet", 2, ["--noise", "'nan' is no number from 0 to 1"]),
    ],
)
def test_misuse(command: Command, data: Path, argv: str, code: int, words: list[str]) -> None:
    done = command(*argv.split())
    assert (done.code, done.out) == (code, "") and all(word in done.err for word in words), done.err
    assert {p.name for p in Path().iterdir()} <= {"cache", data.name}  # nothing was left behind


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_number_is_one_that_the_libraries_take(name: str) -> None:
    for param in cli.get_command(click.Context(cli), name).params:
        kind = param.type
        if not isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
            continue
        assert isinstance(kind, Whole | Share), f"declare --{param.name} by cleanpairs.cli.options.option"
        for value in ("nan", "inf", "1e400", *([str(10**20), str(-(10**20)), "-1"] if isinstance(kind, Whole) else [])):
            with pytest.raises(click.BadParameter):
                kind.convert(value, param, None)


def test_a_launcher_that_sets_no_numbers(command: Command, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "a", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert_refused(command("inspect", "nowhere.parquet"), 3, "no such input")  # it needs no launcher
    assert_refused(command("fit", data, "--out", "run", "--set", "epochs=1"), 2, "RANK is 'a'")


# -- the main job ---------------------------------------------------------------------------------------------------


def test_end_to_end(command: Command, output_of: Any, tmp_path: Path) -> None:
    before = (data := write_corpus(tmp_path / "data.parquet")).read_bytes()
    out = output_of("fit", data, "--out", "run", "--json", "--set", "backbone=vse_inf", *SMALL, "--set", "epochs=8")
    assert len(out.splitlines()) == 1
    fit = json.loads(out)  # exactly one object, and nothing beside it
    assert (fit["pairs"], fit["quarantined"], fit["method"], fit["epochs"]) == (sum(fit["histogram"]), 0, "crcl", 11)
    run = Path("run")
    left = "checkpoints issues.csv metrics.jsonl model recipe.yaml run.json scores.parquet"
    assert sorted(p.name for p in run.iterdir()) == left.split()
    assert os.readlink("runs/latest") == "../run"
    info = json.loads((run / "run.json").read_text())
    assert info["status"] == "complete" and info["seed"] == 1 and info["result"]["pairs"] == N
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(m["stage"], m["epoch"]) for m in metrics] == [(1, e) for e in (1, 2, 3)] + [(2, e) for e in range(1, 9)]
    table = pq.read_table(run / "scores.parquet")
    assert table["pair_id"].to_pylist() == list(range(N)) and table["key"].to_pylist()[3] == "k3"
    y = table["correspondence"].to_numpy()
    assert ((y >= 0) & (y <= 1)).all()
    assert table["is_mismatch"].to_pylist() == (y < fit["threshold"]).tolist()
    assert fit["flagged"] == int((y < fit["threshold"]).sum())
    why = table["why"].to_pylist()
    assert {i for i in range(N) if why[i]} == set(np.argsort(y, kind="stable")[: fit["flagged"] + 100].tolist())
    first = csv_rows(run / "issues.csv")[0]
    worst = int(np.argmin(y))
    assert (first["issue"], int(first["pair_id"]), first["why"]) == ("doubtful", worst, why[worst])
    assert fit["worst"].startswith(f"pair {worst}, key k{worst}, correspondence ")
    assert fit["issues"]["doubtful"] == N

    out = output_of("evaluate", "run", data, "--json")
    assert output_of("evaluate", "run", "--json") == out  # of the run's own data
    assert_refused(command("score", "run", "--out", "s.parquet"), 2, "scores of the pairs of a fit")
    figures = json.loads(out)
    assert list(figures) == "i2t_r1 i2t_r5 i2t_r10 t2i_r1 t2i_r5 t2i_r10 rsum auroc ap precision recall f1".split()
    assert figures["auroc"] > 0.9  # the labels of the run, on its own training data
    assert figures["rsum"] == pytest.approx(sum(v for k, v in figures.items() if "_r" in k), abs=1e-3)
    parts = json.loads(output_of("evaluate", "run", data, "--folds", "4", "--json"))
    assert parts["rsum"] > figures["rsum"] and parts["auroc"] == figures["auroc"]

    counts = json.loads(output_of("score", "run", data, "--out", "scores.parquet", "--json"))
    scores = pq.read_table("scores.parquet")
    assert counts["pairs"] == len(scores) == N
    assert counts["flagged"] == sum(scores["is_mismatch"].to_pylist())

    argv = "--repairs plausible --repaired out.parquet --ledger ledger.parquet --dropped d.parquet --json".split()
    summary = json.loads(output_of("export", "run", *argv, "--set", "min_repair_score=0.1"))
    assert summary["pairs"] == N and summary["rematched_text"] + summary["rematched_image"] > 0
    ledger = pq.read_table("ledger.parquet")
    assert ledger["why"].to_pylist() == why and set(ledger["action"].to_pylist()) > {"keep"}
    repaired = pq.read_table("out.parquet")
    assert len(repaired) == summary["rows"] and {"extra", "correspondence", "action"} <= set(repaired.schema.names)

    output_of("report", "run", "--out", "report.html")
    assert why[worst] in Path("report.html").read_text(encoding="utf-8")
    assert command("verify", "run").code == command("verify", "out.parquet").code == 0

    assert_refused(command("score", "run", data, "--out", "scores.parquet"), 5, "--overwrite")
    assert command("score", "run", data, "--out", "scores.parquet", "--overwrite").code == 0
    assert data.read_bytes() == before


@pytest.mark.parametrize(
    ("how", "most"), [("--repairs none", 6), ("--threshold 0.6 --repairs plausible --set min_repair_score=0", 7)]
)
def test_an_export_opens_its_parquet_few_times(command: Command, monkeypatch: Any, how: str, most: int) -> None:
    """The input for its footer, the pairs, what donors lend and the rows; the scores; and two outputs to count them."""
    write_corpus(Path("data.parquet"), n=400, wrong=0)
    small = "--method infonce --epochs 1 --device cpu --seed 0 --quiet --set dim=8 --set dim_word=4 --out run"
    assert command("fit", "data.parquet", *small.split()).code == 0
    opened: list[str] = []
    hashed: list[str] = []
    begin, digest = pq.ParquetFile.__init__, hashlib.file_digest

    def note(file: object) -> None:
        opened.extend([] if isinstance(file, io.BytesIO) else [str(file)])  # what is in memory is no file

    monkeypatch.setattr(source, "SETTLED", -10.0)  # the data has been written just now
    monkeypatch.setattr(pq.ParquetFile, "__init__", lambda *a, **k: note(a[1]) or begin(*a, **k))
    monkeypatch.setattr(hashlib, "file_digest", lambda file, *a: hashed.append(str(file.name)) or digest(file, *a))
    done = command("export", "run", "--out", "out.parquet", *how.split())
    assert done.code == 0 and (" 0 with a new caption" not in done.out) == (most > 6), done.err
    assert len(opened) <= most and [Path(name).name for name in hashed].count("data.parquet") == 1
    assert not [name for name in opened if "plan" in name] and Path("run/plan.parquet").is_file()
    assert command("verify", "run").code == command("verify", "out.parquet").code == 0


def test_what_filters_drop_is_in_the_ledger_with_its_reason(command: Command, data: Path) -> None:
    table = pq.read_table(data)
    captions = table["caption"].to_pylist()
    captions[30:33] = ["слово да слово", "a cafÃ© in town", "short"]
    pq.write_table(table.set_column(table.column_names.index("caption"), "caption", pa.array(captions)), data)
    found = json.loads(command("inspect", data, "--filters", "--json").out)["filters"]
    assert {f["filter"]: f["pairs"] for f in found if f["pairs"]} == {"caption_length": 1, "mojibake": 1, "language": 1}
    assert "typo" in command("fit", data, "--drop", "typo").err
    assert command("fit", data, "--out", "run", *SMALL, "--drop", "all").code == 0
    assert command("export", "run", "--repaired", "out.parquet", "--trust-stored-paths").code == 0
    ledger = pq.read_table("out.parquet.ledger.parquet").to_pylist()
    aside = {line["pair_id"]: line["reason"].split(":")[0] for line in ledger if line["action"] == "quarantine"}
    assert aside == {30: "filter language", 31: "filter mojibake", 32: "filter caption_length"}
    assert not {30, 31, 32} & {line["source_pair_id"] for line in ledger}
    assert [r["pair_id"] for r in csv_rows("run/issues.csv") if r["issue"] == "uninformative"] == "30 31 32".split()
    assert "quarantined: the column reason of s.parquet\n" in command("score", "run", data, "--out", "s.parquet").out
    assert pq.read_table("s.parquet")["reason"].to_pylist()[30].startswith("filter language")


def test_a_run_is_replaced_only_by_a_fit_that_can_begin(command: Command, data: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("CLEANPAIRS_PROGRESS", "1")
    assert "epoch" not in command("fit", data, "--out", "run", "--set", "output.quiet=true", *SMALL).err
    before = Path("run/scores.parquet").read_bytes()
    assert command("fit", "nowhere.parquet", "--out", "run", "--overwrite", *SMALL).code == 3
    assert command("fit", data, "--out", "run", "--overwrite", *SMALL, "--set", "beta=7").code == 2
    assert Path("run/scores.parquet").read_bytes() == before


def test_default_run_directory_and_latest(command: Command, data: Path) -> None:
    assert "forty" not in command("fit", data, *SMALL, "--limit", 19, "--out", "few").out
    assert_refused(command("review", "few", "--calibrate", "--no-browser"), 7, "from 20 on, and few has 19 pairs")
    assert command("report", "few").code == 0 and "forty" not in Path("report.html").read_text(encoding="utf-8")
    assert "forty answers" in command("fit", data, *SMALL).out
    assert command("fit", data, "--quiet", "--resume", *SMALL).code == 0  # also with DATA it is the latest run
    (run,) = [p for p in Path("runs").iterdir() if not p.is_symlink()]
    assert "crcl-data" in run.name and os.readlink("runs/latest") == run.name
    assert command("evaluate", data, "--json").code == 0  # runs/latest
    assert command("export", "--repaired", "out.parquet").err == f"runs/latest is {run}\n"


def test_corrupt_then_fit_knows_nothing_of_the_truth(command: Command) -> None:
    clean = write_corpus(Path("clean.parquet"), wrong=0)
    assert command("corrupt", clean, "--noise", "0.3", "--out", "noisy.parquet", "--seed", "3").code == 0
    hidden = pq.read_table("noisy.parquet")
    assert 0.2 < np.mean(hidden["true_mismatch"].to_pylist()) <= 0.3
    pq.write_table(hidden.drop_columns(["true_mismatch", "true_key"]), "blind.parquet")
    for name in ("noisy", "blind"):
        assert command("fit", f"{name}.parquet", "--out", f"run-{name}", "--quiet", *SMALL).code == 0
    assert pq.read_table("run-noisy/scores.parquet").equals(pq.read_table("run-blind/scores.parquet"))


# -- signals --------------------------------------------------------------------------------------------------------


def test_a_resumed_run_is_the_uninterrupted_one(command: Command, output_of: Any, data: Path, monkeypatch: Any) -> None:
    """Ctrl-C in the first stage, and a terminal that is closed in the second one."""
    run, long, write = data.parent / "stopped", [*SMALL, "--set", "epochs=4"], Run.write_metrics
    fit, resume = ["fit", data.name, "--out", run, *long], ("fit", "--resume", "--out", run)
    for number, at, again in ((signal.SIGINT, 1, []), (signal.SIGHUP, 5, ["--resume"])):

        def noted(run: Run, history: list[Any], at: int = at, number: int = number) -> None:
            write(run, history)
            if len(history) == at:
                signal.raise_signal(number)

        with monkeypatch.context() as patch:
            patch.setattr(Run, "write_metrics", noted)
            done = command(*fit, *again, "--json")
        assert_refused(done, 128 + number, "state is saved", f"cleanpairs fit --resume --out {run}")
        assert not done.out.strip() and (run / "checkpoints" / "last.safetensors").exists()
        assert (Run(run).info["status"], len(Run(run).metrics())) == ("interrupted", at)
    monkeypatch.chdir("runs")  # any directory will do
    assert_refused(command("export", run, "--repaired", "o.parquet"), 3, "--resume")  # it says how to go on
    assert_refused(command(*resume, "--set", "lr=0.5"), 3, "other data or settings")
    assert len(output_of(*resume, "--json").splitlines()) == 1
    assert command("fit", data, "--out", "whole", "--quiet", *long).code == 0
    for file in ("scores.parquet", "model/model.safetensors", "model/bank.safetensors"):
        assert (run / file).read_bytes() == Path("whole", file).read_bytes(), file
    assert [10 * m["stage"] + m["epoch"] for m in Run(run).metrics()] == [11, 12, 13, 21, 22, 23, 24]


def test_resume_without_a_run_is_refused_and_without_a_checkpoint_says_so(command: Command, data: Path) -> None:
    """It had fitted from scratch, and said nothing."""
    resume = ("fit", data, "--resume", "--out", "run", *SMALL)
    assert_refused(command(*resume), 3, "run/run.json is missing", "leave --resume out")
    Path("run").mkdir()
    for begun in ("run", "run is complete, and"):  # killed as it began, and without its checkpoint
        done = command(*resume)
        assert done.code == 0 and f"{begun} has no checkpoint: the fit begins anew\n" in done.err
        assert "run is complete\n" in command(*resume).err
        shutil.rmtree("run/checkpoints")
    before = Path("run/scores.parquet").read_bytes()
    Path("runs/latest").unlink()
    assert_refused(command(*resume, "--limit", "30"), 2, "run is complete, and of other settings: --overwrite")
    assert Path("run/scores.parquet").read_bytes() == before and not Path("runs/latest").is_symlink()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_a_destructor_ends_the_command_too(tmp_path: Path, number: int) -> None:
    """Python drops what is raised there, as in the one of a lock's file. And it notes an interrupt within exec."""
    (tmp_path / "late.py").write_text(
        "import signal, threading\nfrom cleanpairs import cli\n"
        f"class Held:\n    def __del__(self):\n        signal.raise_signal({int(number)})\n"
        "def command(name):\n    Held()\n    exec('threading.Event().wait(60)')\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job has it ignored\n"
        "cli.periodic_progress = command\ncli.main()\n"
    )
    done = subprocess.run([sys.executable, "-m", "late", "methods"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (128 + number, "", False), done.stderr


def test_a_signal_before_the_training_ends_it(data: Path, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "cleanpairs", "fit", data, "--out", "run", *SMALL, "--set", "epochs=200", "--json"]
    process = subprocess.Popen(argv, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (tmp_path / "run" / "run.json").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.terminate()
    out, err = process.communicate(timeout=900)
    assert process.returncode == 128 + signal.SIGTERM and not out.strip() and "Traceback" not in err, err


def test_an_error_has_a_traceback_if_asked(command: Command, data: Path, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.setattr("cleanpairs.commands.fit.load_pairs", lambda *a, **k: 1 / 0)
    assert_refused(command("fit", "data.parquet"), 1, "bug", "division by zero")
    for options, variable in ((["--debug"], "0"), ([], "1")):
        monkeypatch.setenv("CLEANPAIRS_DEBUG", variable)
        assert code_of(*options, "fit", "data.parquet") == 1
        assert "Traceback" in capfd.readouterr().err
