"""``cleanpairs explain`` and ``cleanpairs worst`` on a run of 96 pairs of four topics, a sixth of them mismatched."""

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from cleanpairs import CRCL, load_pairs
from cleanpairs.commands.run import Run, write_scores
from cleanpairs.core import RefusedError, percent
from cleanpairs.review.log import DecisionLog
from tests.conftest import Command, assert_refused
from tests.helpers import assert_raises, csv_rows, write_csv_rows, write_table

N = 96
TRUST = "--trust-stored-paths"
TOPICS = ("sand waves sea surf", "stove pan cook plate", "trees moss path deer", "cars lights bus shops")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run; the first 16 pairs are mismatched, and have the lowest correspondence, as a good method would say."""
    folder, rng, wrong = tmp_path_factory.mktemp("explain"), np.random.default_rng(0), np.arange(N) < 16
    topic = rng.integers(0, 4, N)
    captions = [" ".join(rng.choice(TOPICS[t].split(), 3, replace=False)) for t in (topic + wrong) % 4]
    captions[20] = "=SUM(A1) \x1b[31m sea"
    vectors = np.eye(4)[topic].repeat(4, axis=1) + 0.2 * rng.normal(size=(N, 16))
    table = {"key": [f"k{i:03d}" for i in range(N)], "caption": captions, "image_features": list(vectors.astype("f4"))}
    pairs = load_pairs(write_table(folder / "data.parquet", table))
    model = CRCL(backbone="mlp", epochs=3, refine_epochs=(), batch_size=16, eval_group_size=16, device="cpu").fit(pairs)
    y = np.where(wrong, np.linspace(0.01, 0.04, N), 0.9).astype(np.float32)
    run = Run.create(folder / "run", latest=False)
    given = {"data": str(folder / "data.parquet"), "options": {}, "fingerprint": pairs.source.fingerprint}
    run.write_info({"method": "crcl", "input": given, "result": {"threshold": float(model.threshold_)}})
    write_scores(run.path / "scores.parquet", pairs.keys, y, float(model.threshold_), {})
    model.save_pretrained(run.path / "model")
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


def test_the_worst_are_explained_by_words_and_neighbours(command: Command, output_of: Any, run: Path) -> None:
    found = json.loads(output_of("explain", run, "--n", 16, "--json", TRUST))
    assert sorted(e["pair_id"] for e in found) == list(range(16)) and all(e["flagged"] for e in found)
    assert all(len(e["similar_images"]) == len(e["similar_captions"]) == 3 for e in found)
    assert all(n["pair_id"] >= 16 for e in found for n in (*e["similar_images"], *e["similar_captions"]))
    out = output_of("explain", run, "k003", "50", "--neighbours", 2, TRUST)
    assert out.startswith("pair 3, key k003: correspondence 0.01") and "pair 50, key k050" in out
    assert_refused(command("explain", run, "nobody", TRUST), 2, "no pair has the key 'nobody'")
    assert command("explain", run, "96", TRUST)[0] == 2


def test_keys_of_several_pairs_and_keys_that_are_numbers(command: Command, run: Path, monkeypatch: Any) -> None:
    """The others are told; the numbers of pairs can be named all the same."""
    pairs = load_pairs(json.loads((run / "run.json").read_text())["input"]["data"])
    monkeypatch.setattr(Run, "load_input", lambda self: replace(pairs, keys=["same", "k001"] * (N // 2)))
    code, out, err = command("explain", run, "same", "--limit", 1, TRUST)
    assert code == 0 and out.startswith("pair 0, key same") and "48 pairs have the key 'same': pair 0 is taken" in err
    monkeypatch.setattr(Run, "load_input", lambda self: replace(pairs, keys=[str(N + 10 - i) for i in range(N)]))
    code, out, err = command("explain", run, "40", TRUST)
    assert code == 0 and out.startswith("pair 66, key 40:") and "pair_id:40 takes pair 40" in err
    for name in ("explain", "neighbours"):
        code, out, err = command(name, run, "pair_id:40", TRUST)
        assert code == 0 and out.startswith("pair 40, key 66:") and not err
    assert command("explain", run, "5", TRUST)[1].startswith("pair 5, key 101:")  # nobody's key
    assert_refused(command("explain", run, "pair_id:k", TRUST), 2, "no pair has the key 'pair_id:k'")
    assert "pair 0, key 106:" in command("worst", run, "--n", 1, TRUST)[1]


def test_neighbours_that_are_not_trusted_are_marked(command: Command, output_of: Any, run: Path) -> None:
    (found,) = json.loads(output_of("neighbours", run, "k003", "--n", 50, "--json", TRUST))
    for near in (found["similar_images"], found["similar_captions"]):
        assert len(near) == 50 and 3 not in [n["pair_id"] for n in near]
        assert {n["trusted"] for n in near} == {True, False}
        assert all(n["trusted"] == (n["pair_id"] >= 16) for n in near)
        assert near == sorted(near, key=lambda n: -n["similarity"])
    assert command("neighbours", run, TRUST).code == 2


def test_the_run_is_the_latest_where_none_is_named(command: Command, run: Path) -> None:
    Path("runs").mkdir()
    Path("runs/latest").symlink_to(run)
    assert command("explain", "k003", TRUST)[1].startswith("pair 3, key k003")
    assert command("worst", "--n", 1, TRUST)[1].startswith("doubtful:\n    1  0.010  pair 0")
    assert_refused(command("explain", "runs/typo", "k003", TRUST), 2, "'runs/typo', nor is it a run")


def test_the_list_of_fit_is_read(command: Command, run: Path) -> None:
    """Without the model, where nobody has spoilt it. It is the list that the model would give."""
    told = ("worst", run, "--n", 7, TRUST, "--json")
    listed = command(*told).out
    assert command("worst", run, "--n", 200, "--out", "listed.csv", TRUST).code == 0
    Path("listed.csv").rename(run / "issues.csv")
    model = (run / "model").rename(run / "away")
    assert command(*told).out == listed
    model.rename(run / "model")
    data = Path(Run.open(run).info["input"]["data"])
    away = data.rename(data.with_name("away"))
    try:
        _, out, err = command("worst", run, "--n", 7, TRUST)
        assert "k000" in out and err == "the data is not there: this is the list of the fit\n"
        assert_refused(command("worst", run, "--n", 300, TRUST), 3, "put it back")
    finally:
        away.rename(data)
    (run / "issues.csv").write_text("spoilt")
    assert json.loads(command(*told).out) == json.loads(listed)


def test_the_list_goes_to_a_spreadsheet(command: Command, output_of: Any, run: Path) -> None:
    out = output_of("worst", run, "--n", 90, "--out", "issues.csv", TRUST)
    assert out.startswith("doubtful:\n    1  0.010  pair 0, key k000") and "\x1b" not in out
    rows = csv_rows("issues.csv")
    worst = [row for row in rows if row["issue"] == "doubtful"]
    assert [int(row["pair_id"]) for row in worst[:16]] == list(range(16)) and all(row["why"] for row in worst)
    assert all(row["caption"][:1] != "=" for row in rows)
    assert command("worst", run, "--out", "issues.csv", TRUST)[0] == 5
    few = json.loads(output_of("worst", run, "--n", 3, "--json", TRUST))
    assert len([row for row in few if row["issue"] == "doubtful"]) == 3


# -- ``cleanpairs score`` in partitions: killed half-way it goes on; engines by name; what cannot be is said ----------


@pytest.fixture
def score(command: Command, made: Path, run: Path) -> Command:
    """``cleanpairs score`` of the pairs of the run."""
    return partial(command, "score", run, made / "data.parquet", "--out", "scores.parquet")


def test_engines_that_cannot_be(score: Command) -> None:
    assert_refused(score("--engine", "spark"), 2, "unknown engine 'spark' (known: local, ray)")
    assert_refused(score("--engine", "local=auto"), 2, "use 'ray'")
    assert not Path("scores.parquet").exists()


@pytest.mark.parametrize(("words", "code"), [("sand sea surf", 0), ("sand sea two new", 0), ("一条 狗 跑", 7)])
def test_captions_of_unknown_words(command: Command, made: Path, run: Path, words: str, code: int) -> None:
    pq.write_table(pq.read_table(made / "data.parquet").set_column(1, "caption", [[words] * N]), "other.parquet")
    done = command("score", run, "other.parquet", "--out", "scores.parquet")
    assert done.code == code
    assert ("warning: the model does not know 50 % of the words" in done.err) == (words == "sand sea two new")
    if code:
        assert "100 % of the words of other.parquet are unknown" in done.err and not Path("scores.parquet").exists()
        assert command("score", run, "other.parquet", "--out", "scores.parquet", "--set", "max_unknown=1").code == 0


def test_other_data_is_read_by_the_columns_of_the_fit(command: Command, made: Path, run: Path) -> None:
    path, table = run / "run.json", pq.read_table(made / "data.parquet")
    path.write_text(path.read_text().replace('"options": {}', '"options": {"text_column": "title"}'))
    pq.write_table(table.append_column("title", table["caption"]).set_column(1, "caption", [["?"] * N]), "new.parquet")
    for name, *out in (("score", "--out", "score.parquet"), ("rematch", "--out", "plan.parquet"), ("evaluate",)):
        done = command(name, run, "new.parquet", *out)
        assert done.code == 0 and "columns as in the fit: text=title" in done.err
    done = command("score", run, made / "data.parquet", "--out", "old.parquet")
    assert done.code == 0 and "threshold: that of the fit" in done.out
    assert "columns of the fit (text=title) cannot be read" in done.err
    assert pq.read_table("old.parquet") == pq.read_table("score.parquet")


def test_a_threshold_that_does_not_hold_for_other_pairs_is_told(score: Command, run: Path) -> None:
    config = json.loads((run / "model" / "config.json").read_text())
    config["state"]["threshold_"] = 1.0  # of a model that knows its own pairs by heart
    (run / "model" / "config.json").write_text(json.dumps(config))
    for flagged, told in ((0, True), (N, False)):
        (run / "run.json").write_text(json.dumps({"status": "complete", "result": {"pairs": N, "flagged": flagged}}))
        code, _, err = score("--overwrite")
        assert code == 0 and told == bool(err)
        assert ("100 % of these pairs are below the threshold of the fit, and" in err) == told and "fit on" not in err


# -- ``cleanpairs review`` and the page of ``cleanpairs audit``: decisions become a plan, and labels a result ---------


def opened(run: Path) -> DecisionLog:
    return DecisionLog(run / "review" / "decisions.jsonl", Run.open(run).info["input"]["fingerprint"], N)


def test_decisions_become_a_plan_and_stay_with_the_run(command: Command, output_of: Any, run: Path) -> None:
    log = opened(run)
    for i in range(16):
        log.decide([i], "keep" if i % 4 == 0 else "drop")
    log.decide([30], "recaption", caption="by hand")
    written = json.loads(output_of("review", run, "--write", "--json", TRUST))
    assert written["decided"] == 17
    output_of("export", "--plan", written["plan"], "--repaired", "out.parquet", "--json", TRUST)
    log.decide([31], "keep")
    assert json.loads(output_of("review", run, "--write", "--json", TRUST))["decided"] == 18  # reviewing goes on
    assert_refused(command("fit", "out.parquet", "--out", run, "--overwrite"), 5, "decisions.jsonl")
    assert opened(run).decided() == log.decided()


def test_answers_of_a_csv_count_now_and_in_a_new_fit(command: Command, output_of: Any, run: Path) -> None:
    """Pairs 12 to 15 score lowest, and belong: people know better than the scores."""
    y = Run.open(run).fitted_scores().correspondence
    rows = [f"{i},{int(i >= 12)},k{i:03d}" for i in [*range(16), *range(20, 50)]]
    calibrate = ("review", run, "--calibrate", "--labels", "answers.csv", TRUST)
    for n, text in ((10, "10 answers so far: from 20 on they count"), (46, "46, that the caption does not belong: 12")):
        Path("answers.csv").write_text("\n".join(["pair_id,matched,key", *rows[:n]]))
        assert text in output_of(*calibrate)
    answered = (opened := Run.open(run)).answered()
    assert answered is not None and answered.noise_rate.low < 12 / N < answered.noise_rate.high
    assert (opened.fitted_scores().correspondence == y).all()
    below = opened.scores().correspondence < answered.threshold
    assert below.tolist() == [i < 12 for i in range(N)] == opened.scores().table["is_mismatch"].to_pylist()
    exported = output_of("export", run, "--out", "out.parquet", "--repairs", "none", "--json", TRUST)
    assert json.loads(exported)["kept"] == N - 12
    np.save("truth.npy", np.arange(N) < 12)
    assert json.loads(output_of("evaluate", run, "--truth", "truth.npy", "--json", TRUST))["f1"] == 1
    output_of("report", run, TRUST)
    page = Path("report.html").read_text(encoding="utf-8")
    assert percent(answered.noise_rate.value) in page and "Answer twenty more questions, for narrower" in page
    output_of("audit", run, TRUST)
    labels = [row | {"matched": str(int(int(row["pair_id"]) >= 12))} for row in csv_rows(run / "audit" / "labels.csv")]
    out = output_of("audit", run, "--labels", write_csv_rows(Path("labels.csv"), labels), TRUST)
    assert "the scores of the fit, without the answers" in out
    model = opened.estimator(fitted=True).calibrate("answers.csv")
    np.testing.assert_array_equal(model.correspondence_, answered.correspondence)
    assert model.calibrate("answers.csv").threshold_ == answered.threshold == model.threshold_
    cut, other, limit = model.threshold_for(max_wrong=0.5), model.correspondence_**0.5, model.threshold_for
    assert cut.kept == N - 12 and "% are mismatched  (95 %" in str(cut)  # what is known to be wrong is never kept
    assert_raises(RefusedError, "of the best 30 pairs is 0.0", limit, max_wrong=0.001)
    assert_raises(RefusedError, "no probabilities of their data", limit, max_wrong=0.5, correspondence=other)
    assert limit(keep=0.5, correspondence=other).kept >= N // 2
    fit = "--method infonce --epochs 1 --batch-size 16 --drop caption_length=14 --out other --json".split()
    of, old = opened.info["input"], {"name": "1", "pairs": [20], "action": "drop", "drawn": True, "time": "1999"}
    DecisionLog("z/review/decisions.jsonl", of["fingerprint"], N)._append(old)  # in the newest file
    told, labels = json.loads(output_of("fit", of["data"], *fit)), Run.open("other").decision_log(N).labels()
    assert 20 < told["answers"] == len(labels) < 46 and labels[20]  # of no quarantined pair, and the last about each
    Path("answers.csv").write_text("pair_id,matched\n96,1")
    assert command(*calibrate).code == 3 and command("review", run, "--calibrate", "--write", TRUST).code == 2
    assert command("review", run, "--labels", "answers.csv", TRUST).code == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["review", "audit --page"])
def test_it_serves_until_ctrl_c_and_ends_with_the_result(run: Path, monkeypatch: Any, name: str) -> None:
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    command = [sys.executable, "-m", "cleanpairs", *name.split(), run, TRUST]
    # A shell's job in the background ignores Ctrl-C, and so would its children.
    default = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, text=True, cwd=run.parent, preexec_fn=default, **pipes)
    address = process.stdout.readline().split()[1]

    def ask(path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(address + path, data), timeout=900) as answer:
            return json.loads(answer.read())

    first, typed, *_, last = ask("queue")["pairs"]
    assert ("similar_images" in ask(f"question/{first}")) == (name == "review")
    ask("decide", {"pair": first, "action": "drop"})
    assert ("plan.parquet" if name == "review" else f"1 of {N} drawn") in ask("write", {})["text"]
    ask("decide", {"pair": last, "action": "keep"})
    csv, decided = run / "audit" / "labels.csv", {first, last}
    if name != "review":  # somebody types into the CSV while the page is open
        csv.write_text(csv.read_text("utf-8-sig").replace(f"\n{typed},,", f"\n{typed},1,"), "utf-8")
        decided |= {typed}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0 and set(opened(run).decided()) == decided
    assert "xdg-open" not in err  # what should open a browser and finds no screen complains
    if name == "review":
        assert out.startswith("2 pairs decided -> ") and (run / "review" / "plan.parquet").exists()
    else:
        assert f"3 of {N} drawn" in out and (run / "audit" / "result.json").exists()
        labels = {int(row["pair_id"]): row["matched"] for row in csv_rows(csv) if row["matched"]}
        assert labels == {first: "0", typed: "1", last: "1"}


def test_a_pair_of_displaced_rows_says_so(output_of: Any, run: Path) -> None:
    blocks = [{"pair_id": 3, "last": 5, "why": "Rows 3 to 5."}, {"pair_id": 7, "why": "of an older run"}]
    blocks += [{"pair_id": 90, "last": 10**15, "why": "forged"}]
    opened = Run(run)
    opened.write_info({**opened.info, "result": {**opened.info["result"], "displaced": blocks}})
    found = json.loads(output_of("explain", run, "3", "5", "6", "7", "--json", TRUST))
    assert [e["displaced"] for e in found] == ["Rows 3 to 5.", "Rows 3 to 5.", "", ""]
    assert output_of("explain", run, "3", "6", TRUST).count("  displaced  Rows 3 to 5.\n") == 1
