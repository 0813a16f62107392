"""Embedding folders as clip-retrieval leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cleanpairs.core.errors import DataError
from cleanpairs.data import iter_tables, load_pairs
from tests.helpers import embedding_folder, picture

D = 8


def write(folder: Path, parts: list[int], *, texts: bool = True, dtype: str = "float16") -> np.ndarray:
    """A folder with parts of these sizes; (n, D) vectors of the images, those of the captions are twice as large."""
    vectors = np.arange(sum(parts) * D, dtype=dtype).reshape(-1, D) / 64 + 1
    vectors, rows = vectors.astype(dtype), range(sum(parts))
    columns = {
        "image_path": pa.array([f"{i:09d}.png" for i in rows], pa.string()),
        "caption": pa.array([f"caption {i}" for i in rows], pa.string()),
        "similarity": pa.array([i / 100 for i in rows], pa.float64()),
    }
    cuts = np.cumsum(parts)[:-1].tolist()
    embedding_folder(folder, vectors, vectors * 2 if texts else None, pa.table(columns), cuts=cuts)
    return vectors


def test_one_part_stays_memory_mapped(tmp_path: Path) -> None:
    vectors = write(tmp_path / "e", [7])
    pairs = load_pairs(tmp_path / "e")
    assert pairs.source.kind == "clip-retrieval" and pairs.captions == [f"caption {i}" for i in range(7)]
    array = pairs.images.array()
    assert array is not None and array.dtype == np.float16
    np.testing.assert_array_equal(array[:, 0], vectors)
    base: Any = array
    while not isinstance(base, np.memmap):
        assert base is not None, "the vectors were copied"
        base = base.base
    assert pairs.text_vectors is not None
    np.testing.assert_array_equal(pairs.text_vectors, vectors * 2)
    np.testing.assert_allclose(pairs.precomputed_scores["similarity"], np.arange(7, dtype=np.float32) / 100)


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4"])
def test_parts_in_the_order_of_their_numbers(tmp_path: Path, dtype: str) -> None:
    sizes = [1, 2, 3, 0, 1, 1, 2, 1, 1, 1, 2, 1]  # twelve parts: 10 comes after 9, not after 1
    vectors = write(tmp_path / "e", sizes, dtype=dtype)
    pairs = load_pairs(tmp_path / "e")
    n = sum(sizes)
    assert pairs.captions == [f"caption {i}" for i in range(n)]
    np.testing.assert_array_equal(np.asarray(pairs.images.array())[:, 0], vectors)
    np.testing.assert_array_equal(pairs.text_vectors, vectors * 2)
    for rows in (1, 5, 100):
        table = pa.Table.from_batches(iter_tables(pairs.source, rows))
        np.testing.assert_array_equal(np.array(table["image_features"].to_pylist()), vectors)
        assert table["caption"].to_pylist() == pairs.captions
    few = load_pairs(tmp_path / "e", limit=5)
    assert len(few) == len(few.images) == 5 and few.text_vectors is not None and few.text_vectors.shape == (5, D)


def test_images_behind_the_vectors_where_the_root_is_given(tmp_path: Path) -> None:
    write(tmp_path / "e", [2], texts=False)
    (tmp_path / "000000001.png").write_bytes(picture(1))
    assert load_pairs(tmp_path / "e").images.read([0, 1]) == [None, None]
    pairs = load_pairs(tmp_path / "e", image_root=tmp_path)
    assert pairs.images.read([0, 1]) == [None, picture(1)] and pairs.images.kind == "features"
    assert pairs.reasons == {} and pairs.text_vectors is None


@pytest.mark.parametrize("array", [np.array(["a", {}], object), np.zeros((2, 3, 4)), np.zeros((2, D), int)])
def test_arrays_that_are_no_vectors(tmp_path: Path, array: np.ndarray) -> None:
    write(tmp_path / "e", [2])
    np.save(tmp_path / "e" / "img_emb" / "img_emb_0.npy", array, allow_pickle=True)
    with pytest.raises(DataError, match=r"img_emb_0\.npy"):
        load_pairs(tmp_path / "e")


def test_parts_that_are_missing(tmp_path: Path) -> None:
    write(tmp_path / "e", [3, 2])
    (tmp_path / "e" / "img_emb" / "img_emb_1.npy").unlink()
    with pytest.raises(DataError, match=r"img_emb has 1 parts, .*metadata has 2"):
        load_pairs(tmp_path / "e")
    (tmp_path / "e" / "metadata").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"no such input: .*metadata"):
        load_pairs(tmp_path / "e")
