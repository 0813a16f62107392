"""Verify: what is whole passes, and every kind of damage is found and named."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import RepairPlan, export_pairs, load_pairs
from cleanpairs.commands.run import SCORES_SCHEMA, write_scores
from cleanpairs.core.errors import DataError
from cleanpairs.core.plain import plain
from cleanpairs.ops.columns import with_columns
from cleanpairs.verification import Verification, kind_of, verify_path
from tests.helpers import assert_raises, edit_exported, fit_beside, plan_of, vector_column, write_table

N = 24


def plan_for(pairs: Any, actions: list[str]) -> RepairPlan:
    """A plan by hand: a repaired pair takes the caption, or the image, of the next one."""
    actions = [a if len(pairs) > 1 else "keep" for a in actions]
    reasons = ["decided in a review" if a == "keep" else None for a in actions]  # as a review leaves it
    return plan_of(pairs, actions, threshold=0.5, reason=reasons)


def corpus(path: Path, n: int = N, lists: bool = False) -> Path:
    captions = [f"caption {i} {'word ' * 20}" for i in range(n)]
    texts = {"caption": pa.array(captions, pa.string())}
    if lists:
        texts = {"captions": pa.array([[c, c + " again"] for c in captions], pa.list_(pa.string()))}
    keys = pa.array([f"k{i}" for i in range(n)], pa.string())
    features = vector_column(np.random.default_rng(0).normal(size=(n, 8)).astype(np.float32))
    return write_table(path, {"key": keys, "image_features": features, **texts})


def export(folder: Path, n: int = N, lists: bool = False, out: str = "out.parquet", **options: Any) -> Path:
    pairs = load_pairs(corpus(folder / "in.parquet", n, lists))
    cycle = ["keep", "rematch_text", "drop", "keep", "drop" if lists else "rematch_image"]
    plan = plan_for(pairs, [cycle[i % len(cycle)] for i in range(len(pairs))])
    export_pairs(pairs, plan, folder / out, dropped=folder / "dropped.parquet", **options)
    return folder / out


def said(found: Verification) -> str:
    return "\n".join(map(str, found.problems))


# -- exports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, N])
@pytest.mark.parametrize("lists", [False, True])
def test_an_export_is_whole(tmp_path: Path, n: int, lists: bool) -> None:
    for path in (export(tmp_path, n, lists), tmp_path / "out.parquet.manifest.json"):
        found = verify_path(path)
        assert found.kind == "export" and found.ok, said(found)
        assert len(found.checked) == 10  # the manifest; hash and pages of three files; counts, note, ledger
    json.dumps(plain(found))


@pytest.mark.parametrize("format", ["datasets", "webdataset"])
def test_an_export_as_a_directory_is_whole_and_a_file_more_in_it_is_not(tmp_path: Path, format: str) -> None:
    images, out = [b"\xff\xd8\xff" + bytes([i]) for i in range(4)], tmp_path / "out"
    pairs = load_pairs(write_table(tmp_path / "in.parquet", {"image": images, "caption": list("abcd")}))
    export_pairs(pairs, plan_for(pairs, ["keep", "rematch_text", "drop", "keep"]), out, format=format)
    found = verify_path(out)
    assert found.kind == "export" and found.ok, said(found)
    (out / "extra.parquet").write_bytes(b"x")
    assert "extra.parquet: is in the directory, and not in out.manifest.json" in said(verify_path(out))


def test_a_damaged_page_is_named_by_row_group_and_column(tmp_path: Path) -> None:
    out = export(tmp_path)
    path = tmp_path / "out.parquet"
    column = pq.read_metadata(path).row_group(0).column(2)
    assert column.path_in_schema == "caption"
    whole = bytearray(path.read_bytes())
    start = column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset
    whole[start + 100] ^= 0xFF  # in the dictionary page, behind its header
    path.write_bytes(whole)
    for file in (out, shutil.copy(path, tmp_path / "alone.parquet")):
        found = verify_path(file)
        places = [p.place for p in found.problems]
        assert ("SHA-256" in said(found)) == (file == out)
        assert "row group 0, column 'caption'" in places
        assert not [p for p in places if "column" in p and "caption" not in p]


def put(table: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = value
    return with_columns(table, {name: pa.array(values, table.schema.field(name).type)})


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("out.parquet.ledger.parquet", lambda t: t.slice(0, len(t) - 1), ["lines for 24 pairs"]),
        ("out.parquet.ledger.parquet", lambda t: put(t, "pair_id", 3, 2), ["column 'pair_id'"]),
        ("out.parquet.ledger.parquet", lambda t: put(t, "action", 0, "drop"), ["'keep'", "'drop'"]),
        ("out.parquet.ledger.parquet", lambda t: put(t, "action", 0, "eaten"), ["'eaten'"]),
        ("out.parquet.ledger.parquet", lambda t: put(t, "out_row", 3, 7), ["column 'out_row'"]),
        ("out.parquet.ledger.parquet", lambda t: put(t, "out_row", 0, None), ["row 0, column 'out_row'"]),
        ("out.parquet.ledger.parquet", lambda t: t.drop_columns(["reason"]), ["column 'reason'", "missing"]),
        ("out.parquet.ledger.parquet", lambda t: put(t, "row", 3, 2), ["24 rows of the input", "column 'row'"]),
        ("out.parquet.ledger.parquet", lambda t: t.replace_schema_metadata(None), ["is no ledger that can undo"]),
        ("out.parquet", lambda t: t.slice(1), ["does not lead through"]),
        ("dropped.parquet", lambda t: t.slice(1), ["dropped file has"]),
    ],
)
def test_rows_that_do_not_add_up_are_found(tmp_path: Path, file: str, change: Any, words: list[str]) -> None:
    out = export(tmp_path)
    edit_exported(tmp_path / file, change)
    found = verify_path(out)
    assert "SHA-256" not in said(found)
    assert all(word in said(found) for word in words), said(found)


def test_a_missing_file_a_cut_one_and_a_broken_manifest(tmp_path: Path) -> None:
    out = export(tmp_path)
    manifest = tmp_path / "out.parquet.manifest.json"
    whole = manifest.read_text()
    (tmp_path / "dropped.parquet").unlink()
    assert "dropped.parquet: is missing" in said(verify_path(out))
    out.write_bytes(out.read_bytes()[:-9])
    assert "cut or edited" in said(verify_path(out)) and "out.parquet, footer" in said(verify_path(out))
    out.unlink()
    assert "out.parquet: is missing" in said(verify_path(out))
    for text in ("", "{", "{}", '{"files": 3, "counts": {}}', whole.replace('"sha256": "', '"sha256": 0, "x": "')):
        manifest.write_text(text)
        found = verify_path(out)
        assert not found.ok and "manifest.json" in said(found), text
    manifest.write_text(whole.replace('"kept": ', '"kept": 1'))
    assert "the counts add up to" in said(verify_path(out))


# -- Parquet by itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 200])
def test_a_parquet_file_and_a_directory_of_them(tmp_path: Path, n: int) -> None:
    (tmp_path / "many").mkdir()
    for k in range(2):
        corpus(tmp_path / "many" / f"{k}.parquet", n)
    assert verify_path(tmp_path / "many" / "0.parquet").ok
    found = verify_path(tmp_path / "many")
    assert found.kind == "directory" and found.ok and len(found.checked) == 2
    file = tmp_path / "many" / "1.parquet"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    found = verify_path(tmp_path / "many")
    assert [Path(p.file).name for p in found.problems] == ["1.parquet"] and found.problems[0].place == "footer"


def test_paths_that_hold_nothing_to_verify(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("words")
    (tmp_path / "empty").mkdir()
    for name in ("text.txt", "empty", "nowhere"):
        assert_raises(DataError, name, kind_of, tmp_path / name)


# -- scores -----------------------------------------------------------------------------------------------------------


def scores(path: Path, n: int = 6) -> Path:
    value = np.linspace(0, 1, n, dtype=np.float32)
    value[:1] = np.nan
    write_scores(path, [f"k{i}" for i in range(n)], value, 0.5, {0: "no image"} if n else {})
    return path


@pytest.mark.parametrize(
    ("name", "row", "value"),
    [("pair_id", 2, 7), ("correspondence", 1, 1.5), ("correspondence", 1, float("nan")), ("correspondence", 1, None),
     ("correspondence", 0, 0.5), ("reason", 3, "bad"), ("reason", 0, None), ("is_mismatch", 4, None)],
)  # fmt: skip
def test_a_scores_table_that_contradicts_itself(tmp_path: Path, name: str, row: int, value: Any) -> None:
    for n in (0, 1, 6):
        path = scores(tmp_path / "s.parquet", n)
        found = verify_path(path)
        assert found.ok and "a scores table" in found.checked[-1], said(found)
    write_table(path, put(pq.read_table(path), name, row, value).cast(SCORES_SCHEMA))
    assert not verify_path(path).ok


# -- runs and models --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fitted")
    sizes, how = ("dim=8", "dim_word=4", "batch_size=8"), {"method": "infonce", "epochs": 1, "device": "cpu", "seed": 0}
    fit_beside(corpus(folder / "data.parquet"), *sizes, **how)
    return folder / "run"


@pytest.fixture
def run(fitted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fitted, tmp_path / "run"))


def test_a_run_and_its_model_are_whole(run: Path) -> None:
    found = verify_path(run)
    assert found.kind == "run" and found.ok, said(found)
    assert not found.notes
    noted = json.loads((run / "run.json").read_text())["files"]
    assert {"scores.parquet", "recipe.yaml", "metrics.jsonl", "model/model.safetensors"} <= set(noted)
    model = verify_path(run / "model")
    assert model.kind == "model" and model.ok and "loads" in model.checked[-1]


def test_every_flipped_byte_of_every_file_of_a_run_is_found(run: Path) -> None:
    for name in json.loads((run / "run.json").read_text())["files"]:
        whole = (run / name).read_bytes()
        for at in np.linspace(0, len(whole) - 1, 3).astype(int).tolist():
            (run / name).write_bytes(whole[:at] + bytes([whole[at] ^ 0x04]) + whole[at + 1 :])
            found = verify_path(run)
            assert not found.ok and name in said(found), (name, at)
        (run / name).write_bytes(whole)
    assert verify_path(run).ok


@pytest.mark.parametrize(
    "name", ["scores.parquet", "model", "recipe.yaml", "metrics.jsonl", "model/config.json", "model/bank.safetensors"]
)
def test_a_file_that_a_complete_run_lacks(run: Path, name: str) -> None:
    path = run / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    assert name.split("/")[-1] in said(verify_path(run))


def without_hashes(run: Path, **changes: Any) -> None:
    info = json.loads((run / "run.json").read_text())
    del info["files"]
    (run / "run.json").write_text(json.dumps(info | changes))


def test_an_earlier_run_without_hashes_is_checked_by_what_it_says(run: Path) -> None:
    without_hashes(run)
    assert verify_path(run).ok
    scores(run / "scores.parquet")
    assert "6 rows, and the run 24 pairs" in said(verify_path(run))
    (run / "model" / "weights.pt").write_bytes(b"x")
    assert "may run code" in said(verify_path(run))


def test_weights_that_are_not_finite_are_named(run: Path) -> None:
    from cleanpairs.data.arrays import read_tensors, write_tensors

    without_hashes(run)
    file = run / "model" / "model.safetensors"
    weights, _ = read_tensors(file)
    name = next(n for n, w in weights.items() if w.dtype == np.float32)
    weights[name].ravel()[0] = np.nan
    write_tensors(weights, file)
    assert f"tensor {name!r}" in said(verify_path(run))


def test_an_unfinished_run_is_not_wrong(run: Path) -> None:
    without_hashes(run, status="interrupted")
    for name in ("scores.parquet", "metrics.jsonl"):
        (run / name).unlink()
    shutil.rmtree(run / "model")
    found = verify_path(run)
    assert found.ok and "--resume" in found.notes[0]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"status": "done"}'])
def test_a_broken_run_json(run: Path, text: str) -> None:
    (run / "run.json").write_text(text)
    assert "run.json" in said(verify_path(run))
