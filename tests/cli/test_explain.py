"""``cleanpairs explain`` and ``cleanpairs worst`` on a run of 96 pairs of four topics, a sixth of them mismatched."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import CRCL, load_pairs
from cleanpairs.commands.run import Run, write_scores

from .conftest import Command

N = 96
TRUST = "--trust-stored-paths"
TOPICS = ("sand waves sea surf", "stove pan cook plate", "trees moss path deer", "cars lights bus shops")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run; the first 16 pairs are mismatched, and have the lowest correspondence, as a good method would say."""
    folder, rng = tmp_path_factory.mktemp("explain"), np.random.default_rng(0)
    topic = rng.integers(0, 4, N)
    shown = np.where(np.arange(N) < 16, (topic + 1) % 4, topic)
    captions = [" ".join(rng.choice(TOPICS[t].split(), 3, replace=False)) for t in shown]
    captions[20] = "=SUM(A1) \x1b[31m sea"
    vectors = np.eye(4)[topic].repeat(4, axis=1) + 0.2 * rng.normal(size=(N, 16))
    table = {"key": [f"k{i:03d}" for i in range(N)], "caption": captions, "image_features": list(vectors.astype("f4"))}
    pq.write_table(pa.table(table), folder / "data.parquet")
    pairs = load_pairs(folder / "data.parquet")
    model = CRCL(backbone="mlp", epochs=3, refine_epochs=(), batch_size=16, eval_group_size=16, device="cpu").fit(pairs)
    y = np.where(np.arange(N) < 16, np.linspace(0.01, 0.04, N), 0.9).astype(np.float32)
    run = Run.create(folder / "run", latest=False)
    given = {"data": str(folder / "data.parquet"), "options": {}, "fingerprint": pairs.source.fingerprint}
    run.write_info({"method": "crcl", "input": given, "result": {"threshold": float(model.threshold_)}})
    write_scores(run.path / "scores.parquet", pairs.keys, y, float(model.threshold_), {})
    model.save_pretrained(run.path / "model")
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path / "run"


def test_the_worst_are_explained_by_words_and_neighbours(command: Command, run: Path) -> None:
    code, out, err = command("explain", run, "--n", 16, "--json", TRUST)
    assert code == 0, err
    found = json.loads(out)
    assert sorted(e["pair_id"] for e in found) == list(range(16)) and all(e["flagged"] for e in found)
    assert all(len(e["similar_images"]) == len(e["similar_captions"]) == 3 for e in found)
    assert all(n["pair_id"] >= 16 for e in found for n in (*e["similar_images"], *e["similar_captions"]))
    code, out, err = command("explain", run, "k003", "50", "--neighbours", 2, TRUST)
    assert code == 0 and out.startswith("pair 3, key k003: correspondence 0.01") and "pair 50, key k050" in out
    assert out.count("similar images of trusted pairs:") == 2
    code, _, err = command("explain", run, "nobody", TRUST)
    assert code == 2 and "no pair has the key 'nobody'" in err
    assert command("explain", run, "96", TRUST)[0] == 2


def test_keys_of_several_pairs_and_keys_that_are_numbers(command: Command, run: Path, monkeypatch: Any) -> None:
    """The others are told; the numbers of pairs can be named all the same."""
    pairs = load_pairs(json.loads((run / "run.json").read_text())["input"]["data"])
    monkeypatch.setattr(Run, "load_input", lambda self: replace(pairs, keys=["same", "k001"] * (N // 2)))
    code, out, err = command("explain", run, "same", "--limit", 1, TRUST)
    assert code == 0 and out.startswith("pair 0, key same")
    others = "pair_id:2, pair_id:4, pair_id:6, pair_id:8, pair_id:10, ..."
    assert f"48 pairs have the key 'same': taken is pair 0; the others: {others}" in err
    monkeypatch.setattr(Run, "load_input", lambda self: replace(pairs, keys=[str(N + 10 - i) for i in range(N)]))
    code, out, err = command("explain", run, "40", TRUST)
    assert code == 0 and out.startswith("pair 66, key 40:")
    assert "40 is the key of pair 66, which is taken; pair_id:40 takes pair 40" in err
    for name in ("explain", "neighbours"):
        code, out, err = command(name, run, "pair_id:40", TRUST)
        assert code == 0 and out.startswith("pair 40, key 66:") and not err
    assert command("explain", run, "5", TRUST)[1].startswith("pair 5, key 101:")  # nobody's key
    code, _, err = command("explain", run, "pair_id:k", TRUST)
    assert code == 2 and "no pair has the key 'pair_id:k'" in err
    assert "pair 0, key 106:" in command("worst", run, "--n", 1, TRUST)[1]


def test_neighbours_of_the_whole_corpus_are_marked_where_they_are_not_trusted(command: Command, run: Path) -> None:
    code, out, err = command("neighbours", run, "k003", "--n", 50, "--json", TRUST)
    assert code == 0, err
    (found,) = json.loads(out)
    for near in (found["similar_images"], found["similar_captions"]):
        assert len(near) == 50 and 3 not in [n["pair_id"] for n in near]
        assert {n["trusted"] for n in near} == {True, False}
        assert all(n["trusted"] == (n["pair_id"] >= 16) for n in near)
        assert [n["similarity"] for n in near] == sorted([n["similarity"] for n in near], reverse=True)
    code, out, _ = command("neighbours", run, "3", TRUST)
    assert code == 0 and out.startswith("pair 3, key k003") and "similar captions:\n" in out and "why" not in out
    assert command("neighbours", run, TRUST)[0] == 2


def test_the_run_is_the_latest_where_none_is_named(command: Command, run: Path) -> None:
    Path("runs").mkdir()
    Path("runs/latest").symlink_to(run)
    assert command("explain", "k003", TRUST)[1].startswith("pair 3, key k003")
    assert command("worst", "--n", 1, TRUST)[1].startswith("doubtful:\n    1  0.010  pair 0")
    code, _, err = command("explain", "runs/typo", "k003", TRUST)
    assert code == 2 and "'runs/typo', nor is it a run" in err


def test_the_list_of_fit_is_read(command: Command, run: Path) -> None:
    """Without the model, where nobody has spoilt it. It is the list that the model would give."""
    told = ("worst", run, "--n", 7, TRUST, "--json")
    listed, model = command(*told)[1], run / "model"
    assert command("worst", run, "--n", 200, "--out", "listed.csv", TRUST)[0] == 0
    Path("listed.csv").rename(run / "issues.csv")
    model.rename(run / "away")
    _, out, err = command(*told)
    assert out == listed, err
    (run / "away").rename(model)
    (run / "issues.csv").write_text("spoilt")
    assert json.loads(command(*told)[1]) == json.loads(listed)


def test_the_list_goes_to_a_spreadsheet(command: Command, run: Path) -> None:
    code, out, err = command("worst", run, "--n", 90, "--out", "issues.csv", TRUST)
    assert code == 0, err
    assert out.startswith("doubtful:\n    1  0.010  pair 0, key k000") and "\x1b" not in out
    with Path("issues.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    worst = [row for row in rows if row["issue"] == "doubtful"]
    assert [int(row["pair_id"]) for row in worst[:16]] == list(range(16)) and all(row["why"] for row in worst)
    assert all(row["caption"][:1] != "=" for row in rows)
    assert command("worst", run, "--out", "issues.csv", TRUST)[0] == 5
    code, out, _ = command("worst", run, "--n", 3, "--json", TRUST)
    assert code == 0 and len([row for row in json.loads(out) if row["issue"] == "doubtful"]) == 3
