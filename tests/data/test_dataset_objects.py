"""What `datasets` has in memory is read as its files are, and a plan gives it back with its features."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data import load_pairs
from cleanpairs.repair.plan import RepairPlan
from tests.helpers import plan_of

FEATURES = datasets.Features(
    {"image": datasets.Image(), "caption": datasets.Value("string"), "kind": datasets.ClassLabel(names=["cat", "dog"])}
)


def picture(number: int) -> Image.Image:
    return Image.new("RGB", (8, 8), (number * 37 % 256, 9, 90))


def columns(n: int = 6) -> dict[str, list[Any]]:
    return {
        "image": [picture(i) for i in range(n)], "caption": [f"a picture {i}" for i in range(n)],
        "kind": [i % 2 for i in range(n)],
    }  # fmt: skip


@pytest.fixture
def dataset() -> datasets.Dataset:
    return datasets.Dataset.from_dict(columns(), features=FEATURES)


def test_every_kind_of_object_is_the_same_corpus(dataset: datasets.Dataset) -> None:
    first = load_pairs(dataset)
    assert first.captions == columns()["caption"] and not first.reasons and first.source.kind == "parquet"
    assert Image.open(io.BytesIO(first.images.read([3])[0] or b"")).getpixel((0, 0)) == (111, 9, 90)
    rows = [dict(zip(columns(), row, strict=True)) for row in zip(*columns().values(), strict=True)]
    both = datasets.DatasetDict({"test": dataset.select([0]), "train": dataset})
    for same in (dataset.to_iterable_dataset(), both, columns(), rows, pd.DataFrame(columns())):
        pairs = load_pairs(same)
        assert pairs.captions == first.captions and pairs.images.read([5]) == first.images.read([5])
    assert load_pairs(dataset).source.fingerprint == first.source.fingerprint
    assert load_pairs(both, split="test").captions == ["a picture 0"]
    assert load_pairs(dataset.select([4, 2])).captions == ["a picture 4", "a picture 2"]
    with pytest.raises(ConfigError, match=r"no split 'val' \(splits: test, train\)"):
        load_pairs(both, split="val")
    with pytest.raises(DataError, match="the data cannot be taken as a table"):
        load_pairs({"caption": ["a"], "image": [b"", b""]})


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        ({}, {}, "holds no row"),
        ([], {}, "holds no row"),
        (pd.DataFrame(columns()).head(0), {}, "holds no row"),
        ([(picture(0), "a")], {}, "a list of dicts, one for each pair, .*, not of tuple"),
        (["a.parquet", "b.parquet"], {}, "a list of dicts, .*, not of str"),
        ({"text": ["a"]}, {}, r"the dict has no column of images or vectors; name one with image_column \("),
        (pd.DataFrame({"image": [b"x"]}), {}, "the DataFrame has no column of captions; name one with text_column"),
        ([{"image": b"x", "caption": "a"}], {"text_column": "nope"}, "the list has no column 'nope'"),
        ({"url": ["http://x/y.png"], "caption": ["a"]}, {}, "the images of the dict are URLs"),
        (pa.table({"image": [b"x"]}), {"encoding": "utf-8"}, "goes with CSV, TSV and .txt, and the Table"),
    ],
)
def test_errors_speak_of_the_object_and_of_parameters(data: Any, options: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        load_pairs(data, **options)
    assert "cache" not in str(caught.value) and "--image" not in str(caught.value)


def test_image_paths_of_a_frame_are_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(1).save(tmp_path / "a.png")
    frame = pd.DataFrame({"image": ["a.png", str(tmp_path / "a.png"), "../a.png"], "caption": ["one", "two", "three"]})
    monkeypatch.chdir(tmp_path)
    for data in (frame, frame.to_dict("list")):
        pairs = load_pairs(data)
        assert sorted(pairs.reasons) == [2] and "leaves the image root" in pairs.reasons[2]
        assert pairs.images.read([0])[0] == (tmp_path / "a.png").read_bytes()


def test_files_are_embedded_and_urls_are_not_fetched(tmp_path: Path) -> None:
    picture(1).save(tmp_path / "1.png")
    features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
    local, far = (
        load_pairs(datasets.Dataset.from_dict({"image": [{"path": path, "bytes": None}], "caption": ["a"]}, features))
        for path in (str(tmp_path / "1.png"), "https://example.invalid/1.png")
    )
    assert local.images.read([0]) == [(tmp_path / "1.png").read_bytes()]
    assert "is a URL, and nothing is fetched" in far.reasons[0]


def made_plan(dataset: datasets.Dataset) -> RepairPlan:
    actions = ["keep", "rematch_text", "rematch_image", "drop", "keep", "keep"]
    return plan_of(load_pairs(dataset), actions, [None, 0, 5, None, None, None])


def test_a_plan_gives_back_a_dataset_with_its_features(dataset: datasets.Dataset) -> None:
    cleaned = made_plan(dataset).apply(dataset)
    assert isinstance(cleaned, datasets.Dataset) and cleaned.features == dataset.features
    assert cleaned["caption"] == [f"a picture {i}" for i in (0, 0, 2, 4, 5)] and cleaned["kind"] == [0, 1, 0, 0, 1]
    pixels = [np.asarray(image)[0, 0, 0] for image in cleaned["image"]]
    assert pixels == [i * 37 for i in (0, 1, 5, 4, 5)]
    with pytest.raises(DataError, match="fingerprint"):
        made_plan(dataset).apply(dataset.select([1, 0, 2, 3, 4, 5]))


def test_a_cache_without_hard_links(dataset: datasets.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*names: Any, **options: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    assert load_pairs(dataset).captions == columns()["caption"] == load_pairs(dataset).captions


def test_truth_scores_and_vectors_follow_a_plan(dataset: datasets.Dataset) -> None:
    """As they follow where pairs or a file are repaired; the captions of 0 and 1 had changed places."""
    n, mismatch = len(dataset), [True, True, False, False, False, False]
    columns = {"key": [f"k{i}" for i in range(n)], "true_mismatch": mismatch, "similarity": [0.5] * n}
    columns |= {"true_key": ["k1", "k0", "k2", "k3", "k4", "k5"], "text_features": [[float(i), 1.0] for i in range(n)]}
    for name, values in columns.items():
        dataset = dataset.add_column(name, values)
    table = made_plan(dataset).table
    actions = pa.array(["recaption", "rematch_text", "rematch_image", "drop", "keep", "keep"])
    table = table.set_column(table.column_names.index("action"), "action", actions)
    plan = RepairPlan(table, 0.1, 0.5, load_pairs(dataset).source.fingerprint)
    cleaned, pairs = plan.apply(dataset), plan.apply(load_pairs(dataset))
    assert cleaned["true_mismatch"] == [False, False, True, False, False] == pairs.true_mismatch.tolist()
    assert cleaned["true_key"] == ["", "k1", "k2", "k4", "k5"] == pairs.true_key
    assert cleaned["similarity"] == [None, None, None, 0.5, 0.5]
    with pytest.raises(ConfigError, match="not to IterableDataset"):
        plan.apply(dataset.to_iterable_dataset())
    assert cleaned["text_features"] == [None, [0, 1], [2, 1], [4, 1], [5, 1]]
