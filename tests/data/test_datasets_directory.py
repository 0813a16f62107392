"""Directories that `datasets` itself wrote, and names on its hub."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest

from cleanpairs.core.errors import DataError
from cleanpairs.data import iter_tables, load_pairs
from cleanpairs.data.formats.datasets_directory import cached_files
from tests.helpers import picture


@pytest.fixture(autouse=True)
def quiet() -> None:
    datasets.disable_progress_bars()


def dataset(n: int, first: int = 0) -> datasets.Dataset:
    features = datasets.Features(
        {"image": datasets.Image(), "caption": datasets.Value("string"), "label": datasets.ClassLabel(names=["a", "b"])}
    )
    rows = {
        "image": [{"bytes": picture(first + i), "path": None} for i in range(n)],
        "caption": [f"caption {first + i}" for i in range(n)],
        "label": [i % 2 for i in range(n)],
    }
    return datasets.Dataset.from_dict(rows, features=features)


def test_save_to_disk_of_a_dataset(tmp_path: Path) -> None:
    dataset(7).save_to_disk(tmp_path / "saved", num_shards=3)
    pairs = load_pairs(tmp_path / "saved")
    assert pairs.source.kind == "datasets" and len(pairs.source.paths) == 3 and pairs.reasons == {}
    assert pairs.captions == [f"caption {i}" for i in range(7)]
    assert pairs.images.read([6, 0, 3]) == [picture(6), picture(0), picture(3)]
    assert [x for _, chunk in pairs.images.iter_encoded(4) for x in chunk] == [picture(i) for i in range(7)]
    table = pa.Table.from_batches(iter_tables(pairs.source, 2))
    assert table.column_names == ["image", "caption", "label"] and len(table) == 7
    again = datasets.load_from_disk(str(tmp_path / "saved"))
    assert again["caption"][:] == pairs.captions and table["label"].to_pylist() == again["label"][:]
    assert len(load_pairs(tmp_path / "saved", limit=4)) == 4


def test_a_dictionary_of_splits(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": dataset(3), "test": dataset(2, 10)}).save_to_disk(tmp_path / "saved")
    assert load_pairs(tmp_path / "saved").captions == ["caption 0", "caption 1", "caption 2"]
    assert load_pairs(tmp_path / "saved", split="test").captions == ["caption 10", "caption 11"]
    with pytest.raises(DataError, match=r"no split 'dev' \(splits: train, test\)"):
        load_pairs(tmp_path / "saved", split="dev")
    datasets.DatasetDict({"validation": dataset(3), "test": dataset(2, 10)}).save_to_disk(tmp_path / "none")
    with pytest.raises(DataError, match=r"no split 'train' \(splits: validation, test\); name one with --split"):
        load_pairs(tmp_path / "none")
    with pytest.raises(DataError, match="has no splits; leave --split"):
        load_pairs(tmp_path / "saved" / "train", split="train")


def test_lists_of_captions_and_images_by_path(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for i in range(3):
        (tmp_path / "images" / f"{i}.png").write_bytes(picture(i))
    outside = tmp_path / "outside.png"
    outside.write_bytes(picture(9))
    features = datasets.Features({"image": datasets.Image(), "captions": datasets.List(datasets.Value("string"))})
    paths = [str(tmp_path / "images" / "0.png"), str(tmp_path / "images" / "1.png"), str(outside)]
    rows = {"image": [{"bytes": None, "path": p} for p in paths], "captions": [["a", "b"], ["c"], ["d"]]}
    table = datasets.Dataset.from_dict(rows, features=features).data.table  # save_to_disk would put the bytes in
    file = tmp_path / "in.arrow"
    with pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table)
    pairs = load_pairs(file, image_root=tmp_path / "images")
    assert pairs.source.explicit_lists and pairs.captions == list("abcd") and pairs.row.tolist() == [0, 0, 1, 2]
    assert pairs.images.read([0, 1, 2]) == [picture(0), picture(1), None]
    assert list(pairs.reasons) == [3] and "leaves the image root" in pairs.reasons[3]
    (tmp_path / "images" / "in.arrow").write_bytes(file.read_bytes())
    assert set(load_pairs(tmp_path / "images" / "in.arrow").reasons) == {3}  # by default its own folder is the root


def test_arrays_of_datasets_are_vectors(tmp_path: Path) -> None:
    features = datasets.Features({"caption": datasets.Value("string"), "features": datasets.Array2D((2, 3), "float32")})
    vectors = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    made = datasets.Dataset.from_dict({"caption": ["a", "b"], "features": vectors}, features=features)
    made.save_to_disk(tmp_path / "saved")
    pairs = load_pairs(tmp_path / "saved")
    np.testing.assert_array_equal(pairs.images.array(), vectors)


def test_one_arrow_file_of_a_cache(tmp_path: Path) -> None:
    dataset(3).to_parquet(tmp_path / "in.parquet")
    cached = datasets.Dataset.from_parquet(str(tmp_path / "in.parquet"), cache_dir=str(tmp_path / "cache"))
    (path,) = cached_files(cached, "hf://owner/name")
    assert load_pairs(path).captions == ["caption 0", "caption 1", "caption 2"]
    with pytest.raises(DataError, match="save_to_disk"):
        cached_files(cached.select([2, 0]), "hf://owner/name")


def test_a_stream_cut_short_is_noticed(tmp_path: Path) -> None:
    dataset(40).save_to_disk(tmp_path / "saved")
    (path,) = (tmp_path / "saved").glob("*.arrow")
    whole = path.read_bytes()
    for keep in (len(whole) - 8, len(whole) // 2, 3, 0):
        path.write_bytes(whole[:keep])
        with pytest.raises(DataError, match=r"arrow is cut short"):
            load_pairs(tmp_path / "saved")


def test_damaged_directories(tmp_path: Path) -> None:
    dataset(2).save_to_disk(tmp_path / "saved")
    state = tmp_path / "saved" / "state.json"
    note = json.loads(state.read_text())
    (tmp_path / "elsewhere.arrow").write_bytes(b"")
    state.write_text(json.dumps({**note, "_data_files": [{"filename": "../elsewhere.arrow"}]}))
    with pytest.raises(DataError, match="leaves"):
        load_pairs(tmp_path / "saved")
    state.write_text(json.dumps({**note, "_data_files": [{"filename": "data-00009.arrow"}]}))
    with pytest.raises(DataError, match=r"data-00009\.arrow is missing"):
        load_pairs(tmp_path / "saved")
    for text in ("{", "[]", "{}"):
        state.write_text(text)
        with pytest.raises(DataError, match=r"state\.json"):
            load_pairs(tmp_path / "saved")


def test_the_hub_is_asked_only_when_the_name_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where `make demo` has left nothing
    with pytest.raises(DataError, match=r"no such input: owner/name.*hf://owner/name"):
        load_pairs("owner/name")
    with pytest.raises(DataError, match=r"no such input: demo/noisy\.parquet$"):
        load_pairs("demo/noisy.parquet")
    with pytest.raises(DataError, match="write hf://owner/name"):
        load_pairs("hf://name")
    code = "from cleanpairs import load_pairs; load_pairs('hf://owner/no-such-dataset')"
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "DataError" in last and "hf auth login" in last and "save_to_disk" in last and "without a network" in last
