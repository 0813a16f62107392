"""``cleanpairs bench`` end to end, and ``--noise-file`` of corrupt."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import inject_noise, load_pairs
from cleanpairs.benchmarking import bench
from cleanpairs.core.plain import percent
from tests.conftest import Command, assert_refused
from tests.helpers import write_corpus

SMALL = "--set epochs=2 --set dim=8 --set dim_word=8 --set batch_size=8 --set eval_group_size=8 --set lr=0.01".split()
CRCL = "--set refine_epochs=[1] --set freeze=1".split()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for seed, (name, n) in enumerate((("val", 12), ("test", 12), ("train", 32))):
        write_corpus(tmp_path / f"x_{name}.parquet", n, seed=seed)
    return tmp_path / "x_train.parquet"


# -- bench ----------------------------------------------------------------------------------------------------------


def test_bench_prints_the_table_and_goes_on(command: Command, data: Path) -> None:
    argv = ("bench", data, "--methods", "crcl,infonce", "--noise", "0.2,0.4", "--seeds", 1, *SMALL, *CRCL)
    code, out, err = command(*argv)
    assert code == 0, err
    head = out.splitlines()[0].split()
    assert head[:3] == ["noise", "method", "seeds"] and "rSum" in head and "AUROC" in head
    wanted = [[rate, method, "1"] for rate in ("0.2", "0.4") for method in ("crcl", "infonce")]
    assert [line.split()[:3] for line in out.splitlines()[1:6] if line] == wanted
    assert "x_test.parquet, found next to the data" in err and "[4/4] infonce" in err
    folder = Path("runs/bench-x_train")
    log = (folder / "bench.jsonl").read_text()
    code, again, err = command(*argv)
    assert code == 0 and again == out and err.count("was there") == 4
    assert (folder / "bench.jsonl").read_text() == log
    assert (folder / "table.md").read_text().startswith("# x_train.parquet\n")


def test_bench_as_json(command: Command, data: Path) -> None:
    code, out, err = command(
        "bench", data, "--methods", "infonce", "--noise", "0.4", "--seeds", 2, "--per", "image", "--limit", 20,
        "--set", "backbone=vse_inf", "--set", "device=cpu", "--out", "o", "--json", *SMALL,
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0 and err == "" and found["out"] == "o"
    assert [row["pairs"] for row in found["rows"]] == [20, 20]
    assert found["summary"][0]["rsum"] == pytest.approx(np.mean([row["rsum"] for row in found["rows"]]))


def test_bench_refuses(command: Command, data: Path) -> None:
    for option, value, code, words in (
        ("--noise", "0.2;0.4", 2, "0.2;0.4"),
        ("--kind", "shift:x", 2, "not a number"),
        ("--noise-file", "nowhere.npy", 3, "nowhere.npy"),
        ("--test", "nowhere.parquet", 3, "nowhere.parquet"),
    ):
        assert_refused(command("bench", data, "--quiet", "--methods", "crcl,infonce", option, value), code, words)


def test_bench_interrupted_keeps_what_is_measured(command: Command, data: Path, monkeypatch: Any) -> None:
    real, calls = bench.run_cell, []

    def stops(*args: Any, **options: Any) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(bench, "run_cell", stops)
    argv = ("bench", data, "--methods", "infonce", "--noise", "0.4", "--seeds", 2, "--out", "o", "--quiet", *SMALL)
    assert_refused(command(*argv), 130, "The same command resumes")
    assert len(Path("o/bench.jsonl").read_text().splitlines()) == 1
    assert command(*argv)[0] == 0 and len(calls) == 3


# -- kinds of noise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kind"), [("within:half", "within:half"), ("shift", "shift:1"), ("partial:0.7", "partial:0.7")]
)
def test_corrupt_in_other_ways(command: Command, data: Path, given: str, kind: str) -> None:
    pq.write_table(pq.read_table(data).append_column("half", pa.array([i % 2 == 0 for i in range(32)])), "d.parquet")
    argv = ("corrupt", "d.parquet", "--noise", "0.5", "--kind", given, "--seed", "7")
    code, out, err = command(*argv, "--out", "n.parquet")
    assert code == 0, err
    corrupted = pq.read_table("n.parquet")["true_mismatch"].to_pylist()
    share = np.mean(corrupted)
    now = f"32 pairs, {32 * share:.0f} of them now mismatched ({percent(share)} of the 50.0 % asked for, {kind})"
    assert out == f"{now} -> n.parquet\n"
    truth = inject_noise(load_pairs("d.parquet"), 0.5, kind=kind, seed=7).mismatched
    assert corrupted == truth.tolist() and 0.4 < share <= 0.5
    code, out, _ = command(*argv, "--out", "m.parquet", "--json")
    assert code == 0 and json.loads(out)["kind"] == kind


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--noise-file", "n.npy", "--kind", "collapse:2"], "only one of --kind, --noise-file"),
        (["--noise", "0.4", "--kind", "shift", "--per", "image"], "leave per out"),
        (["--noise", "0.4", "--kind", "within:nowhere"], "no such column"),
        (["--kind", "shift"], "either --noise or --noise-file"),
        (["--noise", "0.4", "--kind", "shift:40"], "shift:40 mismatches none of the 32 pairs"),
    ],
)
def test_corrupt_refuses(command: Command, data: Path, argv: list[str], words: str) -> None:
    assert_refused(command("corrupt", data, *argv, "--out", "n.parquet"), 2, words)
    assert not Path("n.parquet").exists()
