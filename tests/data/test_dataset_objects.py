"""What `datasets` has in memory is read as its files are, and a plan gives it back with its features."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data import iter_tables, load_pairs, read_image
from cleanpairs.data.formats.datasets_directory import cached_files
from tests.helpers import assert_not_loaded, assert_raises, encoded, picture, plan_of

KINDS = {"image": datasets.Image(), "caption": datasets.Value("string")}
FEATURES = datasets.Features(KINDS | {"kind": datasets.ClassLabel(names=["cat", "dog"])})


def coloured(number: int) -> Image.Image:
    return Image.new("RGB", (8, 8), (number * 37 % 256, 9, 90))


def columns(n: int = 6) -> dict[str, list[Any]]:
    captions = [f"a picture {i}" for i in range(n)]
    return {"image": [coloured(i) for i in range(n)], "caption": captions, "kind": [i % 2 for i in range(n)]}


def made(n: int = 6, first: int = 0) -> datasets.Dataset:
    return datasets.Dataset.from_dict({name: cells[first:] for name, cells in columns(first + n).items()}, FEATURES)


def test_every_kind_of_object_is_the_same_corpus() -> None:
    dataset = made()
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
    assert_not_loaded(r"the DatasetDict has no split 'val' \(splits: test, train\); .*\(split\)", both, split="val")
    for single in (dataset, dataset.to_iterable_dataset(), rows, pd.DataFrame(columns())):
        assert_not_loaded(r"has no splits; leave .*\(split\) out", single, split="test")
    no_train = datasets.DatasetDict({"test": dataset, "val": dataset})
    assert_not_loaded(r"no split 'train' \(splits: test, val\)", no_train)
    assert_not_loaded("the data cannot be taken as a table", {"caption": ["a"], "image": [b"", b""]})


@pytest.mark.parametrize(("data", "options", "message"), [
    ([], {}, "holds no row"),
    (datasets.Dataset.from_dict({"image": [b"x"], "text": ["a"]}).with_transform(dict), {}, "has a transform"),
    ([{"image": b"x", "caption": "a"}], {"text_column": "nope"}, "the list has no column 'nope'"),
    ([{"image": b"x", "caption": "a", "more": {}}], {}, "the rows cannot be kept as Parquet: .*'more'"),
    ({"url": ["http://x/y.png"], "caption": ["a"]}, {}, "the images of the dict are URLs"),
    ({"image": [b"x"], "caption": ["a"]}, {"score_columns": ["n"]}, r"score_columns .* must be text .* \['n'\]"),
])  # fmt: skip
def test_errors_speak_of_the_object_and_of_parameters(data: Any, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load_pairs(data, **options)
    assert "cache" not in str(caught.value) and "--image" not in str(caught.value)


def test_a_named_index_of_a_frame_is_a_column() -> None:
    """As in the Parquet that pandas writes. An index without a name is none."""
    columns = {"image_features": [[0.5, k] for k in range(4)], "caption": list("abcd")}
    frame = pd.DataFrame(columns, index=pd.Index([f"k{i}" for i in range(4)], name="uid"))
    assert load_pairs(frame).keys == ["k0", "k1", "k2", "k3"]
    for other in (frame.rename_axis(None), frame.rename_axis("caption")):
        table = next(iter(iter_tables(load_pairs(other).source)))
        assert table.schema.names == ["image_features", "caption"] and table["caption"].to_pylist() == list("abcd")


@pytest.mark.parametrize("listed", [False, True])
def test_paths_in_structs_are_of_the_working_directory(listed: bool, tmp_path: Path, monkeypatch: Any) -> None:
    """Paths alone, too."""
    (tmp_path / "0.png").write_bytes(picture(0))
    cells: list[Any] = [{"bytes": None, "path": "0.png"}, {"bytes": picture(1), "path": "1.png"}]
    table = pa.table({"image": [[cell] for cell in cells] if listed else cells, "caption": ["a", "b"]})
    assert list(load_pairs(table).reasons) == [0]
    monkeypatch.chdir(tmp_path)
    pairs = load_pairs(table)
    assert not pairs.reasons and pairs.images.read([0, 1]) == [picture(0), picture(1)]
    frame = pd.DataFrame({"image": ["0.png", str(tmp_path / "0.png"), "../0.png"], "caption": ["one", "two", "three"]})
    for data in (frame, frame.assign(image=frame["image"].map(Path)), frame.to_dict("records")):
        pairs = load_pairs(data)
        assert sorted(pairs.reasons) == [2] and "leaves the image root" in pairs.reasons[2]
        assert pairs.images.read([0]) == [picture(0)]
    joined = load_pairs(table.append_column("title", [["A", "B"]]), text_column="title,caption")
    assert not joined.reasons and joined.captions == ["A. a", "B. b"]
    held = table.slice(1)  # of what names no file, the working directory is no matter
    there = load_pairs(held).source.fingerprint
    monkeypatch.chdir("/")
    assert load_pairs(held).source.fingerprint == there


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "GIF"])
def test_an_image_that_is_no_file_keeps_its_pixels(kind: str) -> None:
    """Some modes have no format, and a crop may be empty."""
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    image = Image.open(io.BytesIO(encoded(Image.fromarray(noise), kind)))
    image.load()
    odd = coloured(1).convert("HSV"), coloured(1).convert("RGBa"), coloured(1).convert("LA").convert("La")
    data = {"image": [Image.new("RGB", (0, 5)), image, *odd], "caption": list("abcde")}
    for pairs in map(load_pairs, (data, pd.DataFrame(data))):
        assert pairs.reasons == {0: "there is no image"}
        for stored, whole in zip(pairs.images.read(range(1, 5)), (image, *odd), strict=True):
            plain = whole.convert("LA" if whole.mode == "La" else "RGB").convert("RGB")
            np.testing.assert_array_equal(read_image(stored or b""), plain)


def test_what_was_drawn_in_a_picture_is_kept_and_its_file_may_be_gone(tmp_path: Path) -> None:
    for name in ("drawn.png", "gone.png", "same.jpg"):
        coloured(1).save(tmp_path / name)
    (tmp_path / "cut.png").write_bytes((tmp_path / "gone.png").read_bytes()[:-30])
    names = ("drawn.png", "gone.png", "same.jpg", "same.jpg", "cut.png")
    drawn, gone, same, closed, cut = (Image.open(tmp_path / name) for name in names)
    drawn.paste((0, 200, 0), (0, 0, 8, 8))
    gone.load()
    closed.close()
    assert_raises(OSError, "truncated", cut.load)
    (tmp_path / "gone.png").unlink()
    images = [drawn, gone, same, closed, cut]
    data: dict[str, Any] = {"image": [*images, None], "caption": list("abcdef")}
    frames = [pd.DataFrame(data), pd.DataFrame(data | {"image": [*images, np.nan]})]
    for pairs in map(load_pairs, (data, *frames, frames[0].to_dict("records"))):
        contents = pairs.images.read(range(5))
        pixels = [Image.open(io.BytesIO(c or b"")).convert("RGB").getpixel((0, 0)) for c in contents[:2]]
        assert pixels == [(0, 200, 0), (37, 9, 90)] and pairs.reasons == {5: "there is no image"}
        assert contents[2:] == [(tmp_path / name).read_bytes() for name in names[2:]]
    same.close(), cut.close()


def test_files_are_embedded_and_urls_are_not_fetched(tmp_path: Path) -> None:
    coloured(1).save(tmp_path / "1.png")
    features = datasets.Features(KINDS)
    paths = ["https://a:b@example.invalid/1.png?X=1", *(str(tmp_path / name) for name in ("1.png", "gone.png", ""))]
    rows = {"image": [{"path": path, "bytes": None} for path in paths], "caption": list("abcd")}
    listed = datasets.Features({"image": datasets.List(datasets.Image()), "caption": datasets.Value("string")})
    in_lists = datasets.Dataset.from_dict(rows | {"image": [[cell] for cell in rows["image"]]}, listed)
    for data in (datasets.Dataset.from_dict(rows, features), in_lists):
        pairs = load_pairs(data, image_root=tmp_path)
        assert pairs.images.read([1]) == [(tmp_path / "1.png").read_bytes()]
        assert sorted(pairs.reasons) == [0, 2, 3] and "'https://example.invalid/1.png' is a URL" in pairs.reasons[0]
        assert "gone.png' is missing" in pairs.reasons[2]


def test_a_plan_of_a_slice_takes_the_slices_own_rows() -> None:
    """From slices of nested lists pyarrow takes the values of other rows."""
    boxes = [[[i + 0.25, i + 0.5]] * 3 for i in range(60)]
    features = datasets.Features({
        "caption": datasets.Value("string"), "image_features": datasets.List(datasets.Value("float32")),
        "boxes": datasets.List(datasets.List(datasets.Value("float32"), length=2), length=3),
    })  # fmt: skip
    rows = {"caption": [f"row {i}" for i in range(60)], "image_features": [[float(i), 1.0] for i in range(60)]}
    dataset = datasets.Dataset.from_dict(rows | {"boxes": boxes}, features).select(range(7, 57))
    cleaned = plan_of(load_pairs(dataset), ["drop"] * 10 + ["keep"] * 40, [None] * 50).apply(dataset)
    assert cleaned["boxes"] == boxes[17:57] and cleaned["caption"] == rows["caption"][17:57]


def test_truth_scores_and_vectors_follow_a_plan() -> None:
    """As they follow where pairs or a file are repaired; the captions of 0 and 1 had changed places."""
    donors, plain = [None, 0, 5, None, None, None], made()
    plan = plan_of(load_pairs(plain), ["keep", "rematch_text", "rematch_image", "drop", "keep", "keep"], donors)
    cleaned = plan.apply(plain)
    assert isinstance(cleaned, datasets.Dataset) and cleaned.features == plain.features
    assert cleaned["caption"] == [f"a picture {i}" for i in (0, 0, 2, 4, 5)] and cleaned["kind"] == [0, 1, 0, 0, 1]
    assert [np.asarray(image)[0, 0, 0] for image in cleaned["image"]] == [i * 37 for i in (0, 1, 5, 4, 5)]
    assert_raises(DataError, "fingerprint", plan.apply, plain.select([1, 0, 2, 3, 4, 5]))
    more = {"key": [f"k{i}" for i in range(6)], "true_mismatch": [i < 2 for i in range(6)], "similarity": [0.5] * 6}
    more |= {"true_key": ["k1", "k0", "k2", "k3", "k4", "k5"], "text_features": [[float(i), 1.0] for i in range(6)]}
    dataset = plain
    for name, values in more.items():
        dataset = dataset.add_column(name, values).cast_column("key", datasets.Value("string_view"))  # as of polars
    plan = plan_of(load_pairs(dataset), "recaption rematch_text rematch_image drop keep keep".split(), donors)
    cleaned, pairs = plan.apply(dataset), plan.apply(load_pairs(dataset))
    assert cleaned["true_mismatch"] == [False, False, True, False, False] == pairs.true_mismatch.tolist()
    assert cleaned["true_key"] == ["", "k1", "k2", "k4", "k5"] == pairs.true_key
    assert cleaned["similarity"] == [None, None, None, 0.5, 0.5]
    assert_raises(ConfigError, "not to IterableDataset", plan.apply, dataset.to_iterable_dataset())
    assert cleaned["text_features"] == [None, [0, 1], [2, 1], [4, 1], [5, 1]]


# -- Directories that `datasets` itself wrote, and names on its hub ---------------------------------------------------


def test_save_to_disk_of_a_dataset(tmp_path: Path) -> None:
    saved, captions = tmp_path / "saved", columns(7)["caption"]
    made(7).save_to_disk(saved, num_shards=3)
    pairs, given = load_pairs(saved), load_pairs(made(7))
    assert pairs.source.kind == "datasets" and len(pairs.source.paths) == 3 and pairs.reasons == {}
    assert pairs.captions == captions and pairs.images.read([6, 0, 3]) == given.images.read([6, 0, 3])
    assert [x for _, chunk in pairs.images.iter_encoded(4) for x in chunk] == given.images.read(range(7))
    table = pa.Table.from_batches(iter_tables(pairs.source, 2))
    assert table.column_names == ["image", "caption", "kind"] and len(table) == 7
    again = datasets.load_from_disk(str(saved))
    assert again["caption"][:] == pairs.captions and table["kind"].to_pylist() == again["kind"][:]
    assert len(load_pairs(saved, limit=4)) == 4
    datasets.DatasetDict({"train": made(3), "test": made(2, 5)}).save_to_disk(tmp_path / "splits")
    assert load_pairs(tmp_path / "splits").captions == captions[:3]
    assert load_pairs(tmp_path / "splits", split="test").captions == captions[5:]
    assert_not_loaded("has no splits; leave --split", saved, split="train")
    made(3).to_parquet(tmp_path / "in.parquet")
    cached = datasets.Dataset.from_parquet(str(tmp_path / "in.parquet"), cache_dir=str(tmp_path / "cache"))
    assert load_pairs(*cached_files(cached, "hf://owner/name")).captions == captions[:3]
    assert_raises(DataError, "save_to_disk", cached_files, cached.select([2, 0]), "hf://owner/name")
    spelled = datasets.Dataset.from_dict({"image": [b"a", b"b"], "caption": ['["a", "b"]', "c"]})
    spelled.save_to_disk(tmp_path / "spelled")
    assert load_pairs(tmp_path / "spelled", limit=2).captions == load_pairs(spelled).captions == ["a", "b", "c"]


def test_arrays_of_datasets_are_vectors(tmp_path: Path) -> None:
    features = datasets.Features({"caption": datasets.Value("string"), "features": datasets.Array2D((2, 3), "float32")})
    vectors = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    datasets.Dataset.from_dict({"caption": ["a", "b"], "features": vectors}, features).save_to_disk(tmp_path / "saved")
    np.testing.assert_array_equal(load_pairs(tmp_path / "saved").images.array(), vectors)


def test_damaged_directories(tmp_path: Path) -> None:
    made(40).save_to_disk(tmp_path / "saved")
    whole = (path := next((tmp_path / "saved").glob("*.arrow"))).read_bytes()
    for keep in (len(whole) - 8, len(whole) // 2, 3, 0):
        path.write_bytes(whole[:keep])
        assert_not_loaded(r"arrow is cut short", tmp_path / "saved")
    note = json.loads((state := tmp_path / "saved" / "state.json").read_text())
    (tmp_path / "elsewhere.arrow").write_bytes(b"")
    for name, words in (("../elsewhere.arrow", "leaves"), ("data-00009.arrow", r"data-00009\.arrow is missing")):
        state.write_text(json.dumps({**note, "_data_files": [{"filename": name}]}))
        assert_not_loaded(words, tmp_path / "saved")
    for text in ("{", "[]", "{}"):
        state.write_text(text)
        assert_not_loaded(r"state\.json", tmp_path / "saved")


def test_the_hub_is_asked_only_when_the_name_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where `make demo` has left nothing
    assert_not_loaded(r"no such input: owner/name.*hf://owner/name", "owner/name")
    assert_not_loaded(r"no such input: demo/noisy\.parquet$", "demo/noisy.parquet")
    assert_not_loaded("write hf://owner/name", "hf://name")


# -- Lance datasets are read by row and in batches; a damaged one is named --------------------------------------------


@pytest.fixture
def lance_folder(tmp_path: Path) -> Path:
    """12 pairs in three fragments of two versions."""
    lance = pytest.importorskip("lance", reason="pylance is not installed")
    for k in range(3):
        images = [{"bytes": picture(i), "path": None} for i in range(4 * k, 4 * k + 4)]
        table = pa.table({"caption": [f"text {i}" for i in range(4 * k, 4 * k + 4)], "image": images})
        lance.write_dataset(table, tmp_path / "pairs.lance", mode="append" if k else "create")
    return tmp_path / "pairs.lance"


def test_rows_of_lance_in_order_and_images_in_any(lance_folder: Path) -> None:
    pairs = load_pairs(lance_folder)
    assert pairs.captions == [f"text {i}" for i in range(12)] and pairs.source.kind == "lance"
    assert pairs.images.read([9, 0, 9]) == [picture(9), picture(0), picture(9)]
    assert load_pairs(lance_folder, limit=5).captions == pairs.captions[:5]
    sys.modules["lance"].dataset(lance_folder).delete("caption = 'text 3'")
    sys.modules["lance"].dataset(lance_folder).update({"caption": """'["a", "b"]'"""}, "caption like 'text 1_'")
    fewer = load_pairs(lance_folder)
    assert fewer.captions[9:] == ["a", "b"] * 2 and fewer.source.fingerprint != pairs.source.fingerprint
    assert pairs.images.read([3, 11]) == [picture(3), picture(11)]  # as they were


def test_a_damaged_lance_dataset_and_a_missing_package(lance_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in (lance_folder / "data").iterdir():
        file.write_bytes(file.read_bytes()[:40])
    assert_not_loaded(r"pairs\.lance cannot be read as Lance", lance_folder)
    monkeypatch.setitem(sys.modules, "lance", None)
    assert_raises(ConfigError, r"cleanpairs\[lance\]", load_pairs, lance_folder)
