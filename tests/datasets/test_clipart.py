"""The shipped clip art: size, schema, clean captions, no leakage between splits, features that mean something."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cleanpairs.core.errors import ConfigError
from cleanpairs.datasets import CLIPART_SPLITS, clipart_path, load_clipart

ROWS = {"train": (1800, 2100), "val": (190, 210), "test": (490, 510)}
BOILERPLATE = r"""clip\s?arts? openclipart inkscape sodipodi svg png eps unsorted https? www hash vectori[sz]ed aiga
    nicu buculei rollandin architetto ganson balin guillou \w+@\w+ \d+ \d{4} 0x\w+""".split()


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    return {split: pq.read_table(clipart_path(split)) for split in CLIPART_SPLITS}


def regions(table: pa.Table) -> np.ndarray:
    column = table["image_features"].combine_chunks()
    return column.values.values.to_numpy(zero_copy_only=False).reshape(len(table), 9, 256).astype(np.float32)


def words(caption: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", caption)


def test_all_together_is_at_most_16_mb_and_carries_its_notice() -> None:
    folder = clipart_path("train").parent
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 16e6
    notice = (folder / "NOTICE.md").read_text(encoding="utf-8")
    assert "public domain" in notice and "0.18" in notice and "openclipart-svg" in notice


@pytest.mark.parametrize("split", CLIPART_SPLITS)
def test_files_are_those_of_the_notice(split: str) -> None:
    path = clipart_path(split)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest in (path.parent / "NOTICE.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("split", CLIPART_SPLITS)
def test_schema_rows_and_pictures(split: str, tables: dict[str, pa.Table]) -> None:
    table = tables[split]
    low, high = ROWS[split]
    assert low <= len(table) <= high
    assert table.schema.names == ["key", "image", "caption", "image_features"]
    assert table.schema.field("image").type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    assert table.schema.field("image_features").type == pa.list_(pa.list_(pa.float16(), 256), 9)
    assert len(set(table["key"].to_pylist())) == len(table)
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["image"] == {"_type": "Image"}
    for row in table["image"].to_pylist():
        with Image.open(io.BytesIO(row["bytes"])) as image:
            image.load()
            assert image.format == "JPEG" and image.size == (96, 96) and image.mode == "RGB"
            assert np.asarray(image).std() > 5  # not blank


def test_the_datasets_library_opens_it(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    file = str(clipart_path("val"))
    data = datasets.load_dataset("parquet", data_files=file, split="train", cache_dir=str(tmp_path))
    assert data[0]["image"].size == (96, 96)
    assert np.asarray(data[0]["image_features"]).shape == (9, 256)


@pytest.mark.parametrize("split", CLIPART_SPLITS)
def test_captions_are_clean(split: str, tables: dict[str, pa.Table]) -> None:
    pattern = re.compile(rf"\b(?:{'|'.join(BOILERPLATE)})\b")
    for caption in tables[split]["caption"].to_pylist():
        assert not pattern.search(caption), caption
        assert caption == " ".join(caption.split()) and caption == caption.lower()
        assert caption.isprintable() and not re.search(r"[<>@:/_&]|, *,|^,|,$", caption), caption
        assert len({w for w in words(caption) if len(w) > 2}) >= 3, caption
        assert len(words(caption)) <= 25, caption
        parts = caption.split(", ")
        assert len(set(parts)) == len(parts), caption


def test_splits_share_neither_caption_nor_picture(tables: dict[str, pa.Table]) -> None:
    captions = [c for t in tables.values() for c in t["caption"].to_pylist()]
    assert len(set(captions)) == len(captions)
    miniatures = {}
    for split, table in tables.items():
        images = [Image.open(io.BytesIO(row["bytes"])) for row in table["image"].to_pylist()]
        small = [np.asarray(image.resize((16, 16), Image.Resampling.BOX), np.int16).ravel() for image in images]
        miniatures[split] = np.stack(small)  # (n, 768)
    for one, other in itertools.combinations(CLIPART_SPLITS, 2):
        nearest = min(np.abs(miniatures[other] - row).mean(axis=1).min() for row in miniatures[one])
        assert nearest > 2.0  # of 255, after JPEG; different pictures of the corpus are at least 3 apart before it


def test_no_series_dominates(tables: dict[str, pa.Table]) -> None:
    keys = [k for t in tables.values() for k in t["key"].to_pylist()]
    for series, most in [("icons/", 0.2), ("flags/", 0.08), ("stars/", 0.01), ("jigsaw/", 0.01), ("cards/", 0.05)]:
        assert sum(series in key for key in keys) <= most * len(keys), series


def test_features_are_those_of_the_stored_pictures(tables: dict[str, pa.Table]) -> None:
    """Distances between pictures, from features computed anew, are those of the stored ones (PCA keeps them)."""
    from cleanpairs.encoders.efficientnet_lite import EfficientNetLite0

    table = tables["val"].slice(0, 24)
    stored = regions(table).reshape(24, -1)
    images = [Image.open(io.BytesIO(row["bytes"])) for row in table["image"].to_pylist()]
    fresh = EfficientNetLite0().encode_images(images).reshape(24, -1)

    def distances(x: np.ndarray) -> np.ndarray:
        return np.linalg.norm(x[:, None] - x[None], axis=-1)[np.triu_indices(24, 1)]

    assert np.corrcoef(distances(stored), distances(fresh))[0, 1] > 0.95
    assert (distances(stored) <= distances(fresh) * 1.01).all()  # a projection shortens


def test_features_know_what_is_shown(tables: dict[str, pa.Table]) -> None:
    """The nearest training picture is of the same folder far more often than chance."""
    train, test = (regions(tables[s]).mean(axis=1) for s in ("train", "test"))
    folder = {s: [k.rpartition("/")[0] for k in tables[s]["key"].to_pylist()] for s in ("train", "test")}
    distance = (train**2).sum(1) - 2 * test @ train.T  # (n_test, n_train), less a constant of the row
    nearest = distance.argmin(axis=1)
    hit = np.mean([folder["test"][i] == folder["train"][j] for i, j in enumerate(nearest)])
    count = Counter(folder["train"])
    chance = np.mean([count[f] / len(train) for f in folder["test"]])
    assert hit > 0.35 and hit > 8 * chance


def test_features_match_captions_of_unseen_pictures(tables: dict[str, pa.Table]) -> None:
    """Ridge regression from features to words ranks the right test caption among the first ten of 500."""
    from sklearn.linear_model import Ridge

    captions = {s: [set(words(c)) for c in tables[s]["caption"].to_pylist()] for s in ("train", "test")}
    frequency = Counter(w for c in captions["train"] for w in c)
    column = {w: i for i, w in enumerate(sorted(w for w, n in frequency.items() if n > 2))}

    def bag(rows: list[set[str]]) -> np.ndarray:
        out = np.zeros((len(rows), len(column)), np.float32)
        for i, row in enumerate(rows):
            for word in row & column.keys():
                out[i, column[word]] = np.log(len(captions["train"]) / frequency[word])
        return out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-9)

    train, test = (regions(tables[s]).mean(axis=1) for s in ("train", "test"))
    mean, scale = train.mean(0), train.std()
    model = Ridge(alpha=300).fit((train - mean) / scale, bag(captions["train"]))
    similarity = model.predict((test - mean) / scale) @ bag(captions["test"]).T  # (500, 500)
    rank = (similarity >= similarity.diagonal()).sum(axis=0)  # of the right picture, for every caption
    assert (rank <= 10).mean() > 0.4


def test_load_clipart_gives_pairs() -> None:
    pairs = load_clipart("val")
    assert len(pairs) == 200
    assert pairs.images.kind == "features" and pairs.images.array().shape[1:] == (9, 256)
    assert not pairs.reasons
    assert len(set(pairs.image_group.tolist())) == 200


def test_unknown_split_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="'train', 'val', 'test', got 'dev'"):
        load_clipart("dev")


def test_importing_datasets_is_light() -> None:
    code = "import sys, cleanpairs.datasets; assert not {'torch', 'datasets'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
