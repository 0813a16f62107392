"""COCO's captions and Karpathy's splits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cleanpairs.core.errors import DataError
from cleanpairs.data import iter_tables, load_pairs
from tests.helpers import picture


def write_images(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate(names):
        (folder / name).write_bytes(picture(i))


def write_coco(root: Path, n: int = 3) -> Path:
    """COCO's own layout: ``annotations/captions_val2017.json`` beside ``val2017/``."""
    names = [f"{i:012d}.jpg" for i in range(n)]
    write_images(root / "val2017", names)
    content = {
        "info": {"year": 2017},
        "licenses": [],
        "images": [{"license": 4, "file_name": name, "id": 100 + i, "height": 8} for i, name in enumerate(names)],
        "annotations": [
            {"image_id": 100 + i, "id": 10 * i + k, "caption": f"caption {k} of {i}"}
            for k in range(2)
            for i in reversed(range(n))
        ],
    }
    (root / "annotations").mkdir()
    path = root / "annotations" / "captions_val2017.json"
    path.write_text(json.dumps(content))
    return path


def write_karpathy(root: Path, flickr: bool = False) -> Path:
    splits = ["train", "restval", "test", "train", "val"]
    images: list[dict[str, Any]] = []
    for i, split in enumerate(splits):
        sentences = [{"tokens": ["a"], "raw": f"caption {k} of {i}", "imgid": i, "sentid": 5 * i + k} for k in range(2)]
        image = {"sentids": [5 * i, 5 * i + 1], "imgid": i, "sentences": sentences, "split": split}
        folder = {} if flickr else {"filepath": "val2014", "cocoid": 1000 + i}
        images.append({**image, "filename": f"{i}.jpg", **folder})
    write_images(root if flickr else root / "val2014", [f"{i}.jpg" for i in range(5)])
    path = root / ("dataset_flickr30k.json" if flickr else "dataset_coco.json")
    path.write_text(json.dumps({"images": images, "dataset": "coco"}))
    return path


def test_coco(tmp_path: Path) -> None:
    path = write_coco(tmp_path)
    pairs = load_pairs(path)
    assert pairs.source.kind == "coco" and pairs.source.image_root == str(tmp_path / "val2017") and pairs.reasons == {}
    assert pairs.captions == [f"caption {k} of {i}" for i in range(3) for k in range(2)]
    assert pairs.row.tolist() == [0, 0, 1, 1, 2, 2] and pairs.keys[::2] == ["100", "101", "102"]
    assert pairs.images.read([2, 0]) == [picture(2), picture(0)]
    table = pa.Table.from_batches(iter_tables(pairs.source, 2))
    assert table["image"][1].as_py() == {"bytes": picture(1), "path": "000000000001.jpg"}
    assert table["captions"][1].as_py() == ["caption 0 of 1", "caption 1 of 1"]
    assert len(load_pairs(path, limit=1)) == 2


def test_the_image_root_may_be_elsewhere(tmp_path: Path) -> None:
    path = write_coco(tmp_path)
    (tmp_path / "val2017").rename(tmp_path / "pictures")
    with pytest.raises(DataError, match=r"none of the first 3 images .*000000000000\.jpg.*--image-root"):
        load_pairs(path)
    assert load_pairs(path, image_root=tmp_path / "pictures").reasons == {}


def test_images_without_file_or_captions_are_set_aside(tmp_path: Path) -> None:
    path = write_coco(tmp_path)
    (tmp_path / "val2017" / "000000000001.jpg").unlink()
    content = json.loads(path.read_text())
    content["images"] += [{"id": 7, "file_name": "000000000000.jpg"}, {"id": 8, "file_name": "../a/x"}, {"id": 9}]
    content["annotations"] += [{"image_id": 8, "caption": "a"}, {"image_id": 9, "caption": "b"}]
    path.write_text(json.dumps(content))
    reasons = load_pairs(path).reasons
    assert list(reasons) == [2, 3, 6, 7, 8]
    assert "missing" in reasons[2] and reasons[6] == "there is no caption" and reasons[8] == "there is no image"
    assert "leaves the image root" in reasons[7]


@pytest.mark.parametrize("flickr", [False, True])
def test_karpathy(tmp_path: Path, flickr: bool) -> None:
    path = write_karpathy(tmp_path, flickr)
    keys = ["0", "0", "3", "3"] if flickr else ["1000", "1000", "1003", "1003"]
    pairs = load_pairs(path)
    assert pairs.captions == [f"caption {k} of {i}" for i in (0, 3) for k in range(2)] and pairs.keys == keys
    assert pairs.images.read([0, 1]) == [picture(0), picture(3)] and pairs.reasons == {}
    assert [load_pairs(path, split=s).row.max() + 1 for s in ("val", "test", "train+restval")] == [1, 1, 3]
    prints = {load_pairs(path, split=s).source.fingerprint for s in ("val", "test", "train", "train+restval")}
    assert len(prints) == 4
    with pytest.raises(DataError, match=r"no split 'dev' \(splits: train, restval, test, val\)"):
        load_pairs(path, split="dev")
    with pytest.raises(DataError, match="no splits"):
        load_pairs(write_coco(tmp_path / "other"), split="train")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read as JSON"),
        ('{"a": 1}', "no list of objects.*COCO's captions have 'images'"),
        ('{"images": [1]}', "no list of objects, one for each pair"),
        ('{"images": [{"id": 1}]}', "no column of captions"),
        ('{"images": [{"id": 1}], "annotations": [{"image_id": 1, "bbox": []}]}', r"annotation 0: it has no caption"),
        ('{"images": [{"id": 1}], "annotations": [{"image_id": 2, "caption": "a"}]}', r"no image with the id 2"),
        ('{"images": [{"id": 1}], "annotations": [{"image_id": [], "caption": "a"}]}', r"no image with the id \[\]"),
        ('{"images": [{"id": []}], "annotations": []}', "no image with an id"),
        ('{"images": [{"id": 1}, {"id": 1}], "annotations": []}', "several images with the id 1"),
    ],
)
def test_other_json(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=words):
        load_pairs(tmp_path / "a.json")
