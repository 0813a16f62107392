"""The research layout: splits, captions per image, mapped vectors, files that do not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cleanpairs.core.errors import ConfigError
from cleanpairs.data import fingerprint_of, iter_tables, load_pairs
from tests import helpers
from tests.helpers import assert_not_loaded, assert_raises


def research(folder: Path, images: np.ndarray, per_image: int = 1, split: str = "train") -> Path:
    captions = [f"{split} {i}.{k}" for i in range(len(images)) for k in range(per_image)]
    return helpers.research(folder, images, captions, split)


@pytest.mark.parametrize("shape", [(6, 4), (6, 3, 4)])
@pytest.mark.parametrize("per_image", [1, 5])
@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8"])
def test_splits(tmp_path: Path, shape: tuple[int, ...], per_image: int, dtype: str) -> None:
    images = np.random.default_rng(0).normal(size=shape).astype(dtype)
    folder = research(tmp_path / "data", images, per_image)
    research(folder, images[:2], per_image, "dev")
    pairs = load_pairs(folder)
    array: Any = pairs.images.array()
    assert len(pairs) == 6 * per_image and len(pairs.images) == 6 and pairs.source.kind == "precomp"
    assert pairs.image_index.tolist() == pairs.row.tolist() == np.repeat(np.arange(6), per_image).tolist()
    assert pairs.position.tolist() == list(range(per_image)) * 6
    assert pairs.captions[-1] == f"train 5.{per_image - 1}" and pairs.keys[-1] == "train-5"
    np.testing.assert_array_equal(array.reshape(shape), images)
    assert array.dtype.isnative and isinstance(array, np.memmap) == (dtype[0] == "<") == (not array.flags.writeable)
    assert load_pairs(folder, split="dev").captions[0] == "dev 0.0"

    table = pa.Table.from_batches(iter_tables(pairs.source, batch_rows=4))
    text = "caption" if per_image == 1 else "captions"
    assert table.schema.names == ["key", text, "image_features"] and table["key"].to_pylist() == pairs.keys[::per_image]
    np.testing.assert_array_equal(np.array(table["image_features"].to_pylist()).reshape(shape), images)
    again = load_pairs(table)  # as Parquet
    assert again.captions == pairs.captions and again.keys == pairs.keys
    assert fingerprint_of(pairs.source) == pairs.source.fingerprint


def test_vectors_that_are_not_finite(tmp_path: Path) -> None:
    images = np.ones((5, 2, 3), np.float16)
    images[1, 1, 2], images[4, 0, 0] = np.nan, np.inf
    pairs = load_pairs(research(tmp_path / "data", images, 2))
    assert set(pairs.reasons) == {2, 3, 8, 9} and "finite" in pairs.reasons[2]
    array = np.where(np.isin(np.arange(5), [1, 4])[:, None, None], 0, images)
    np.testing.assert_array_equal(pairs.images.array(), array)
    table = pa.Table.from_batches(iter_tables(pairs.source))  # the rows themselves stay as they are
    assert np.isnan(table["image_features"][1].as_py()[1][2])


def test_captions_with_odd_lines(tmp_path: Path) -> None:
    folder = research(tmp_path / "data", np.ones((4, 3), np.float32))
    (folder / "train_caps.txt").write_bytes("\ufeffa\r\n\nc\u2028d\x0be\nlast without newline".encode())
    pairs = load_pairs(folder)
    assert pairs.captions == ["a", "", "c\u2028d\x0be", "last without newline"] and set(pairs.reasons) == {1}


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    folder = research(tmp_path / "data", np.ones((4, 3), np.float32))
    captions, images = folder / "train_caps.txt", folder / "train_ims.npy"
    right, whole = b"a\n" * 4, images.read_bytes()

    def raw(array: np.ndarray) -> bytes:
        np.save(images, array)
        return images.read_bytes()

    counts = r"train_caps\.txt has {} captions for the 4 images"
    for text, image, words in (
        (b"a\n" * 6, whole, counts.format(6)),
        (b"", whole, counts.format(0)),
        (b"a\n\xff\xfe\nc\nd\n", whole, r"train_caps\.txt cannot be read as UTF-8: .* in position 2"),
        (right, whole[:-4], r"train_ims\.npy cannot be read"),
        (right, b"", r"train_ims\.npy cannot be read"),
        *((right, raw(np.ones(shape)), "train_ims.npy must hold floats") for shape in (4, (4, 3, 2, 2), (4, 0))),
        (right, raw(np.ones((4, 3), int)), "train_ims.npy must hold floats"),
    ):
        captions.write_bytes(text)
        images.write_bytes(image)
        assert_not_loaded(words, folder)
    images.write_bytes(whole)
    assert_not_loaded("'caption'", folder, text_column="caption")


def test_limit_and_order_of_storage(tmp_path: Path) -> None:
    images = np.asfortranarray(np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32))
    folder = research(tmp_path / "data", images, 2)
    for limit in (0, 1, 4, 5, 9):
        pairs = load_pairs(folder, limit=limit)
        assert len(pairs) == 2 * min(limit, 5)
        np.testing.assert_array_equal(pairs.images.array(), images[:limit])
        assert sum(len(b) for b in iter_tables(pairs.source, batch_rows=2)) == min(limit, 5)
    assert_raises(ConfigError, "-1", load_pairs, folder, limit=-1)


def now(folder: Path, splits: tuple[str, ...] = ("train", "dev")) -> Path:
    """The layout that NoW is published in: captions as the numbers of their tokens, by three tokenisers."""
    for split in splits:
        research(folder, np.arange(6, dtype=np.float32).reshape(3, 2), split=split)
        (folder / f"{split}_caps.txt").unlink()
        (folder / f"{split}_ids.txt").write_text("11\n12\n13\n")
        for name, lines in {"bert": ["5,17", "9,", ""], "bpe": ["1,2", "3", "4"], "jieba": ["7", "8", "9"]}.items():
            text = "".join(line + "\n" for line in lines)
            (folder / f"{split}_caps_{name}.txt").write_text(text, encoding="utf-8-sig")
    return folder


def test_tokenised_captions_are_words(tmp_path: Path) -> None:
    folder = now(tmp_path / "now")
    pairs = load_pairs(folder)
    assert pairs.captions == ["5 17", "9", ""] and pairs.reasons == {2: "the caption is empty"}
    assert load_pairs(folder, split="dev", text_column="jieba").captions == ["7", "8", "9"]
    table = pa.Table.from_batches(iter_tables(load_pairs(folder, text_column="bpe").source))
    assert table["caption"].to_pylist() == ["1 2", "3", "4"]
    assert_not_loaded("tokenised by bert, bpe, jieba: 'words' cannot be chosen", folder, text_column="words")
