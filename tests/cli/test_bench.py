"""``cleanpairs bench`` end to end, and ``--noise-file`` of corrupt."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import inject_noise, load_pairs
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
    argv = ("bench", data, "--methods", "crcl,infonce", "--noise", "0.01,0.2,0.4", "--seeds", 1, *SMALL, *CRCL)
    code, out, err = command(*argv)
    assert code == 0, err
    wanted = [[rate, method, "1"] for rate in ("0.01", "0.2", "0.4") for method in ("crcl", "infonce")]
    assert [line.split()[:3] for line in out.splitlines()[1:8] if line] == wanted
    assert "x_test.parquet, found next to the data" in err and "[6/6] infonce" in err
    assert "noise 0.01 seed 0: rSum" in err and err.count("no pair is mismatched") == 2  # of 32 pairs
    folder = Path("runs/bench-x_train")
    log = (folder / "bench.jsonl").read_text()
    code, again, err = command(*argv)
    assert code == 0 and again == out and err.count("was there") == 6
    assert (folder / "bench.jsonl").read_text() == log


def test_bench_as_json(command: Command, data: Path) -> None:
    how = "--methods infonce --noise 0.4 --seeds 2 --per image --limit 20 --out o --json"
    sets = "--set backbone=vse_inf --set device=cpu"
    code, out, err = command("bench", data, *how.split(), *sets.split(), *SMALL)
    found = json.loads(out)
    assert code == 0 and err == "" and found["out"] == "o"
    assert [row["pairs"] for row in found["rows"]] == [20, 20]
    assert found["summary"][0]["rsum"] == pytest.approx(np.mean([row["rsum"] for row in found["rows"]]))


@pytest.mark.parametrize(("argv", "code", "words"), [
    ("bench --quiet --methods crcl --noise 0.2;0.4", 2, "0.2;0.4"),
    ("bench --quiet --methods crcl --noise-file nowhere.npy", 3, "nowhere.npy"),
    ("corrupt --noise-file n.npy --kind collapse:2", 2, "only one of --kind, --noise-file"),
    ("corrupt --noise 0.4 --kind shift:40", 2, "shift:40 mismatches none of 32 pairs"),
])  # fmt: skip
def test_refusals(command: Command, data: Path, argv: str, code: int, words: str) -> None:
    name, *options = argv.split()
    assert_refused(command(name, data, *options, "--out", "n.parquet"), code, words)
    assert not Path("n.parquet").exists()


# -- kinds of noise -------------------------------------------------------------------------------------------------


def test_corrupt_in_other_ways(command: Command, data: Path) -> None:
    pq.write_table(pq.read_table(data).append_column("half", pa.array([i % 2 == 0 for i in range(32)])), "d.parquet")
    for given, kind in (("within:half", "within:half"), ("shift", "shift:1")):
        argv = ("corrupt", "d.parquet", "--noise", "0.5", "--kind", given, "--seed", "7", "--overwrite")
        out = command(*argv, "--out", "n.parquet").out
        corrupted = pq.read_table("n.parquet")["true_mismatch"].to_pylist()
        share = np.mean(corrupted)
        now = f"32 pairs, {32 * share:.0f} of them now mismatched ({percent(share)} of the 50.0 % asked for, {kind})"
        assert out == f"{now} -> n.parquet\n" and 0.4 < share <= 0.5
        assert corrupted == inject_noise(load_pairs("d.parquet"), 0.5, kind=kind, seed=7).mismatched.tolist()
        assert json.loads(command(*argv, "--out", "m.parquet", "--json").out)["kind"] == kind
