"""Verify: what is whole passes, and every kind of damage is found and named."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import ClipScore, Pairs, RepairPlan, export_pairs, load_pairs
from cleanpairs.commands.run import SCORES_SCHEMA, write_scores
from cleanpairs.core import DataError, jsonable
from cleanpairs.data.arrays import read_tensors, write_tensors
from cleanpairs.ops.columns import with_columns
from cleanpairs.verification import Verification, kind_of, verify_path
from tests.helpers import assert_raises, edit_exported, fit_beside, plan_of, write_corpus, write_table

N = 24


def plan_for(pairs: Any, acts: list[str]) -> RepairPlan:
    """A plan by hand, as a review leaves it: a repaired pair takes the caption, or the image, of the next one."""
    return plan_of(pairs, acts, threshold=0.5, reason=["decided in a review" if a == "keep" else None for a in acts])


def export(folder: Path, n: int = N, lists: bool = False) -> Path:
    texts = [f"caption {i} {'word ' * 20}" for i in range(n)]
    captions = [[text, text + " again"] for text in texts] if lists else texts
    pairs = load_pairs(write_corpus(folder / "in.parquet", n, caption=captions))
    cycle = ["keep", "rematch_text", "drop", "keep", "drop" if lists else "rematch_image"]
    actions = [cycle[i % len(cycle)] if n > 1 else "keep" for i in range(len(pairs))]
    out = folder / "out.parquet"
    export_pairs(pairs, plan_for(pairs, actions), out, dropped=folder / "dropped.parquet")
    return out


def text_of(found: Verification) -> str:
    return "\n".join(map(str, found.problems))


# -- exports ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, N])
@pytest.mark.parametrize("lists", [False, True])
def test_an_export_is_whole(tmp_path: Path, n: int, lists: bool) -> None:
    for path in (export(tmp_path, n, lists), tmp_path / "out.parquet.manifest.json"):
        found = verify_path(path)
        assert found.kind == "export" and found.ok, text_of(found)
        assert len(found.checked) == 10  # the manifest; hash and pages of three files; counts, note, ledger
    json.dumps(jsonable(found))


@pytest.mark.parametrize("format", ["datasets", "webdataset"])
def test_an_export_as_a_directory_is_whole_and_a_file_more_in_it_is_not(tmp_path: Path, format: str) -> None:
    images, out = [b"\xff\xd8\xff" + bytes([i]) for i in range(4)], tmp_path / "out"
    pairs = load_pairs(write_table(tmp_path / "in.parquet", {"image": images, "caption": list("abcd")}))
    export_pairs(pairs, plan_for(pairs, ["keep", "rematch_text", "drop", "keep"]), out, format=format)
    found = verify_path(out)
    assert found.kind == "export" and found.ok, text_of(found)
    (out / "extra.parquet").write_bytes(b"x")
    assert "extra.parquet: is in the directory, and not in out.manifest.json" in text_of(verify_path(out))


def test_a_damaged_page_is_named_by_row_group_and_column(tmp_path: Path) -> None:
    out = export(tmp_path)
    column = pq.read_metadata(out).row_group(0).column(2)
    assert column.path_in_schema == "caption"
    whole = bytearray(out.read_bytes())
    start = column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset
    whole[start + 100] ^= 0xFF  # in the dictionary page, behind its header
    out.write_bytes(whole)
    for file in (out, shutil.copy(out, tmp_path / "alone.parquet")):
        found = verify_path(file)
        assert ("SHA-256" in text_of(found)) == (file == out)
        assert {p.place for p in found.problems if "column" in p.place} == {"row group 0, column 'caption'"}


def put(table: pa.Table, name: str, row: int, value: Any) -> pa.Table:
    values = [value if i == row else old for i, old in enumerate(table[name].to_pylist())]
    return with_columns(table, {name: pa.array(values, table.schema.field(name).type)})


LEDGER = "out.parquet.ledger.parquet"


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        (LEDGER, lambda t: t.slice(0, len(t) - 1), ["the ledger counts 23, and the manifest 24"]),
        (LEDGER, lambda t: put(t, "pair_id", 3, 2), ["column 'pair_id'"]),
        (LEDGER, lambda t: put(t, "action", 0, "drop"), ["'keep'", "'drop'"]),
        (LEDGER, lambda t: put(t, "action", 0, "eaten"), ["'eaten'"]),
        (LEDGER, lambda t: put(t, "out_row", 3, 7), ["column 'out_row'"]),
        (LEDGER, lambda t: put(t, "out_row", 0, None), ["row 0, column 'out_row'"]),
        (LEDGER, lambda t: t.drop_columns(["reason"]), ["column 'reason'", "missing"]),
        (LEDGER, lambda t: put(t, "row", 3, 2), ["the input, of 24 rows", "column 'row'"]),
        (LEDGER, lambda t: t.replace_schema_metadata(None), ["is no ledger that can undo"]),
        ("out.parquet", lambda t: t.slice(1), ["does not lead in order through"]),
        ("dropped.parquet", lambda t: t.slice(1), ["dropped file counts"]),
    ],
)
def test_rows_that_do_not_add_up_are_found(tmp_path: Path, file: str, change: Any, words: list[str]) -> None:
    out = export(tmp_path)
    edit_exported(tmp_path / file, change)
    told = text_of(verify_path(out))
    assert "SHA-256" not in told and all(word in told for word in words), told


def test_a_missing_file_a_cut_one_and_a_broken_manifest(tmp_path: Path) -> None:
    out = export(tmp_path)
    manifest = tmp_path / "out.parquet.manifest.json"
    whole = manifest.read_text()
    (tmp_path / "dropped.parquet").unlink()
    assert "dropped.parquet: is missing" in text_of(verify_path(out))
    out.write_bytes(out.read_bytes()[:-9])
    assert "cut or edited" in text_of(verify_path(out)) and "out.parquet, footer" in text_of(verify_path(out))
    out.unlink()
    assert "out.parquet: is missing" in text_of(verify_path(out))
    for text in ("", "{}", '{"files": 3, "counts": {}}', whole.replace('"sha256": "', '"sha256": 0, "x": "')):
        manifest.write_text(text)
        assert "manifest.json" in text_of(verify_path(out)), text
    manifest.write_text(whole.replace('"kept": ', '"kept": 1'))
    assert "the counts add up to" in text_of(verify_path(out))


# -- Parquet by itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 200])
def test_a_parquet_file_and_a_directory_of_them(tmp_path: Path, n: int) -> None:
    files = [write_corpus(tmp_path / f"{k}.parquet", n) for k in range(2)]
    assert verify_path(files[0]).ok
    found = verify_path(tmp_path)
    assert found.kind == "directory" and found.ok and len(found.checked) == 2
    files[1].write_bytes(files[1].read_bytes()[: files[1].stat().st_size // 2])
    assert [(Path(p.file).name, p.place) for p in verify_path(tmp_path).problems] == [("1.parquet", "footer")]


def test_paths_that_hold_nothing_to_verify(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("words")
    (tmp_path / "empty").mkdir()
    for name in ("text.txt", "empty", "nowhere"):
        assert_raises(DataError, name, kind_of, tmp_path / name)


# -- scores -----------------------------------------------------------------------------------------------------------


def scores(path: Path, n: int = 6) -> Path:
    value = np.array([np.nan, *np.linspace(0.2, 1, 5)], np.float32)[:n]
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
        assert found.ok and "a scores table" in found.checked[-1], text_of(found)
    write_table(path, put(pq.read_table(path), name, row, value).cast(SCORES_SCHEMA))
    assert not verify_path(path).ok


# -- runs and models --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fitted")
    sizes, how = ("dim=8", "dim_word=4", "batch_size=8"), {"method": "infonce", "epochs": 1, "device": "cpu", "seed": 0}
    fit_beside(write_corpus(folder / "data.parquet", N), *sizes, **how)
    return folder / "run"


@pytest.fixture
def run(fitted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fitted, tmp_path / "run"))


def test_a_run_and_its_model_are_whole(run: Path) -> None:
    found = verify_path(run)
    assert found.kind == "run" and found.ok and not found.notes, text_of(found)
    noted = json.loads((run / "run.json").read_text())["files"]
    assert {"scores.parquet", "recipe.yaml", "metrics.jsonl", "model/model.safetensors"} <= set(noted)
    image, noise = np.random.default_rng(1).normal(size=(2, 120, 1)).astype(np.float32)
    vague = ClipScore().fit(Pairs.from_arrays(image_vectors=image, text_vectors=image + noise / 2))
    for folder in (run / "model", vague.save_pretrained(run / "vague")):
        model = verify_path(folder)
        assert np.isnan(vague.noise_rate_) and model.kind == "model" and model.ok and "loads" in model.checked[-1]


def test_every_flipped_byte_of_every_file_of_a_run_is_found(run: Path) -> None:
    for name in json.loads((run / "run.json").read_text())["files"]:
        whole = (run / name).read_bytes()
        for at in np.linspace(0, len(whole) - 1, 3).astype(int).tolist():
            (run / name).write_bytes(whole[:at] + bytes([whole[at] ^ 0x04]) + whole[at + 1 :])
            found = verify_path(run)
            assert not found.ok and name in text_of(found), (name, at)
        (run / name).write_bytes(whole)
    assert verify_path(run).ok


@pytest.mark.parametrize("name", ["scores.parquet", "recipe.yaml", "model", "model/config.json"])
def test_a_file_that_a_complete_run_lacks(run: Path, name: str) -> None:
    (run / name).rename(run.parent / "away")
    assert name.split("/")[-1] in text_of(verify_path(run))


def without_hashes(run: Path, **changes: Any) -> None:
    info = {key: value for key, value in json.loads((run / "run.json").read_text()).items() if key != "files"}
    (run / "run.json").write_text(json.dumps(info | changes))


def test_an_earlier_run_without_hashes_is_checked_by_what_it_says(run: Path) -> None:
    without_hashes(run)
    assert verify_path(run).ok
    file = run / "model" / "model.safetensors"
    weights, _ = read_tensors(file)
    name = next(n for n, w in weights.items() if w.dtype == np.float32)
    weights[name].ravel()[0] = np.nan
    write_tensors(weights, file)
    assert f"tensor {name!r}" in text_of(verify_path(run))
    scores(run / "scores.parquet")
    assert "6 rows, and the run 24 pairs" in text_of(verify_path(run))
    (run / "model" / "weights.pt").write_bytes(b"x")
    assert "may run code" in text_of(verify_path(run))


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
    assert "run.json" in text_of(verify_path(run))
