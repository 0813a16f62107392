"""Vectors of both sides that the data brings: taken without an option, with captions or without, from end to end."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs import ClipScore, InfoNCE, apply_noise, corrupt, inject_noise
from cleanpairs.commands.score import score_stream
from cleanpairs.core.errors import ConfigError, DataError, OutputExistsError, RefusedError
from cleanpairs.data import Pairs, iter_tables, load_pairs, refuse_changed_input
from tests.helpers import assert_not_loaded, assert_raises, embedding_folder, picture, write_table

N, D = 120, 8


def vectors(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(N, D) of images, and of captions that are near them."""
    rng = np.random.default_rng(seed)
    image = rng.normal(size=(N, D)).astype(np.float32)
    return image, (image + 0.3 * rng.normal(size=(N, D))).astype(np.float32)


def table(**more: Any) -> pa.Table:
    """Rows with a uid and vectors of both sides, without captions."""
    image, text = vectors()
    kind = pa.list_(pa.float32(), D)
    columns = {"image_emb": pa.array(list(image), kind), "text_emb": pa.array(list(text), kind)}
    return pa.table({"uid": [f"{i:032x}" for i in range(N)], **columns, **more})


def test_pairs_without_captions() -> None:
    image, text = vectors()
    text[3], text[5, 0] = text[2], np.nan
    image = np.ma.array(image, np.float64)
    image[7, 0], image[8, 0] = 1e300, np.ma.masked
    pairs = Pairs.from_arrays(image_vectors=image, text_vectors=text, keys=[f"k{i}" for i in range(N)])
    assert not pairs.has_captions and pairs.keys[7] == "k7"
    assert pairs.reasons == {5: "its text vector is not finite"} | dict.fromkeys((7, 8), "its vector is not finite")
    assert pairs.text_group[2] == pairs.text_group[3] and len(np.unique(pairs.text_group)) == N - 1
    np.testing.assert_array_equal(pairs.select(np.array([9, 4])).text_vectors, text[[9, 4]])
    assert_raises(DataError, "image_vectors", Pairs.from_arrays, text_vectors=text)
    assert_raises(DataError, "vectors of both sides", Pairs.from_arrays, image_vectors=image)


@pytest.mark.parametrize("value", [0.0, 1e-30])
def test_zeros_are_set_aside_and_vectors_that_are_all_the_same_are_refused(value: float, tmp_path: Path) -> None:
    """Of columns with two more of the usual names."""
    image, text = vectors()
    image[6], text[6], text[8] = value, np.nan, value
    for name, array in (("image", image), ("text", text)):
        np.save(tmp_path / f"{name}.npy", array)
    for pairs in (
        Pairs.from_arrays(image_vectors=image, text_vectors=text),
        load_pairs(write_table(tmp_path / "a.parquet", {"Image_Vector": list(image), "caption_embedding": list(text)})),
        load_pairs(tmp_path / "image.npy", text_vectors=tmp_path / "text.npy"),
    ):
        assert pairs.reasons == {6: "its vector is zero", 8: "its text vector is zero"}
        assert np.isfinite(pairs.text_vectors).all()
    for side, method in itertools.product(("image", "text"), (InfoNCE, ClipScore)):
        given = dict(zip(("image", "text"), vectors(), strict=True))
        given[side][:] = given[side][3]
        pairs = Pairs.from_arrays(image_vectors=given["image"], text_vectors=given["text"])
        words = f"the {side} vectors of the {N} usable pairs are the same"
        assert_raises(RefusedError, words, method(text_encoder="features", device="cpu").fit, pairs)


@pytest.mark.parametrize(("spoil", "told"), [
    (lambda x: x[:, :6], "img_emb_0.npy has (8,), img_emb_1.npy has (6,)"),
    (lambda x: x[:-1], "img_emb_1.npy with 59 vectors does not go with"),
    (lambda x: np.array(["a", {}], object), "img_emb_1.npy cannot be read as an array"),
    (lambda x: x[:, None], "img_emb_1.npy must hold floats"),
    (lambda x: np.where(np.arange(60)[:, None] == 7, np.nan, x.astype(np.float16)), "its vector is not finite"),
])  # fmt: skip
def test_a_spoilt_part_is_named_or_its_row_is_quarantined(tmp_path: Path, spoil: Any, told: str) -> None:
    image, text = vectors()
    table = pa.table({"caption": [f"caption {i}" for i in range(N)]})
    folder = embedding_folder(tmp_path / "folder", image, text, table, cuts=[60])
    part = folder / "img_emb" / "img_emb_1.npy"
    np.save(part, spoil(np.load(part)), allow_pickle=True)
    if told == "its vector is not finite":
        assert load_pairs(folder).reasons == {67: told}
    else:
        assert_not_loaded(re.escape(told), folder)


@pytest.mark.parametrize("cuts", [(), (60,)])
def test_named_columns_come_before_the_vectors_of_a_folder(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    image, text = vectors()
    encoded = [picture(k) for k in range(N)]
    rows = pa.table({"caption": [f"caption {i}" for i in range(N)], "other": list(2 * text), "photo": encoded})
    folder = embedding_folder(tmp_path / "folder", image, text, rows, cuts)
    np.testing.assert_array_equal(load_pairs(folder, text_vectors="other").text_vectors, 2 * text)
    found = load_pairs(folder, image_column="photo")
    assert found.images.kind == "bytes" and found.images.read([N - 1]) == encoded[-1:]


def test_noise_moves_the_vectors_with_their_captions() -> None:
    image, text = vectors()
    text[5, 0] = np.inf
    same = ["the same caption"] * N  # says nothing about whose vector it is
    for captions in (None, same):
        pairs = Pairs.from_arrays(captions, image_vectors=image, text_vectors=text)
        noise = inject_noise(pairs, 0.5, seed=1)
        noisy = apply_noise(pairs, noise)
        assert noisy.text_vectors is not None
        want = np.where(np.arange(N)[:, None] == 5, 0, text)[noise.permutation]
        np.testing.assert_array_equal(noisy.text_vectors, want)
        assert list(noisy.reasons) == np.flatnonzero(noise.permutation == 5).tolist()
    assert inject_noise(Pairs.from_arrays(image_vectors=image, text_vectors=text), 0.5).mismatched.mean() > 0.4


@pytest.mark.parametrize("kind", ["captions", "vectors alone", "folder"])
def test_corrupt_keeps_the_vectors_of_captions(tmp_path: Path, kind: str) -> None:
    image, text = vectors()
    more = {"caption": [f"caption {i}" for i in range(N)]} if kind == "captions" else {}
    data, rows = tmp_path / "in.parquet", table(similarity=np.linspace(0, 1, N), **more)
    if kind == "folder":
        embedding_folder(data, image, text, rows.select(["uid", "similarity"]))
    else:
        write_table(data, rows)
    noise = corrupt(data, 0.4, out=tmp_path / "b.parquet")
    pairs = load_pairs(tmp_path / "b.parquet")
    assert pairs.text_vectors is not None and noise.mismatched.sum() > 30
    np.testing.assert_array_equal(pairs.text_vectors, text[noise.permutation])
    known = np.isfinite(pairs.precomputed_scores["similarity"])
    np.testing.assert_array_equal(known, ~noise.moved)  # that of the old caption


def arrays(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Loose arrays, whole and in parts that are cut in different places, and captions, one a line."""
    image, text = vectors()
    (folder / "captions.txt").write_text("".join(f"caption {i}\n" for i in range(N)), encoding="utf-8")
    np.save(folder / "image.npy", image)
    np.save(folder / "text.npy", text.astype(np.float16))
    for part, (first, last) in enumerate([(0, 20), (20, 30), (30, N)]):
        np.save(folder / f"image_{part + 9}_of_12.npy", image[first:last])  # 10 is behind 9, and not before
    np.save(folder / "text_0.npy", text[:70])
    np.save(folder / "text_1.npy", text[70:])
    return image, text


def test_loose_arrays(tmp_path: Path) -> None:
    image, text = arrays(tmp_path)
    table_of = write_table(tmp_path / "rows.parquet", {"uid": table()["uid"], "caption": ["a b"] * N})
    whole = load_pairs(tmp_path / "image.npy", text_vectors=tmp_path / "text.npy")
    parts = load_pairs(tmp_path / "image_*.npy", text_vectors=tmp_path / "{text_0,text_1}.npy")
    lines = load_pairs(tmp_path / "image.npy", captions=tmp_path / "captions.txt")
    rows = load_pairs(tmp_path / "image_*.npy", text_vectors=tmp_path / "text_*.npy", captions=table_of)
    for pairs, of_captions in ((whole, text.astype(np.float16)), (parts, text), (lines, None), (rows, text)):
        np.testing.assert_array_equal(pairs.images.array()[:, 0], image)
        np.testing.assert_array_equal(pairs.text_vectors, of_captions)
    assert whole.keys == [str(i) for i in range(N)] and not whole.has_captions and not whole.reasons
    assert lines.captions == [f"caption {i}" for i in range(N)]
    assert rows.keys == table()["uid"].to_pylist() and set(rows.captions) == {"a b"}


def test_a_text_file_of_captions_is_kept_and_its_changes_are_noticed(tmp_path: Path) -> None:
    arrays(tmp_path)
    image, captions = tmp_path / "image.npy", tmp_path / "captions.txt"
    lines = load_pairs(image, captions=captions)
    out = {"captions": captions, "out": captions, "overwrite": True}
    assert_raises(OutputExistsError, "is the input", corrupt, image, 0.5, **out)
    refuse_changed_input(lines.source)
    captions.write_text("other\n" * N, encoding="utf-8")
    assert_raises(DataError, r"captions\.txt has changed since it was read", refuse_changed_input, lines.source)


def test_arrays_that_do_not_go_together(tmp_path: Path) -> None:
    arrays(tmp_path)
    image, text, file = tmp_path / "image.npy", tmp_path / "text.npy", write_table(tmp_path / "a.parquet", table())
    assert_not_loaded(r"image\.npy has 120, .*text_1\.npy has 50", image, text_vectors=tmp_path / "text_1.npy")
    assert_not_loaded("--column text-vectors", image)
    assert_not_loaded("one a line", image, text_vectors=text, captions=tmp_path / "captions.docx")
    assert_not_loaded("no splits", image, text_vectors=text, split="test")
    assert_raises(ConfigError, r"go with arrays of vectors \(\.npy\)", load_pairs, file, captions=tmp_path / "c.txt")
    assert_not_loaded("no column 'txt_emb'", file, text_vectors="txt_emb")
    for vectors in ([0.5, 1.0], [[0.5, 1.0], [1.0, 0.5]]):
        lists = {"image_emb": [[0.5, 1.0]], "text_emb": [vectors], "captions": [["a dog", "a cat"]]}
        assert_not_loaded("a row each", lists, text_vectors="text_emb")
        with pytest.warns(UserWarning, match="'text_emb' is not read"):
            assert load_pairs(lists).text_vectors is None
    with pytest.warns(UserWarning, match="vectors of captions are not read: 'text_emb' is list"):
        load_pairs({"image_emb": [[0.5, 1.0]], "text_emb": [[1, 2]], "caption": ["a dog"]})


# -- Embedding folders as clip-retrieval leaves them ------------------------------------------------------------------


def write(folder: Path, parts: list[int], *, texts: bool = True, dtype: str = "float16") -> np.ndarray:
    """A folder with parts of these sizes; (n, D) vectors of the images, those of the captions are twice as large."""
    vectors = (np.arange(sum(parts) * D).reshape(-1, D) / 64 + 1).astype(dtype)
    columns = {"image_path": [f"{i:09d}.png" for i in range(sum(parts))]}
    columns |= {"caption": [f"caption {i}" for i in range(sum(parts))], "similarity": np.arange(sum(parts)) / 100}
    embedding_folder(folder, vectors, vectors * 2 if texts else None, pa.table(columns), cuts=[*np.cumsum(parts)[:-1]])
    return vectors


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f4"])
@pytest.mark.parametrize("sizes", [[7], [1, 2, 3, 0, 1, 1, 2, 1, 1, 1, 2, 1]])  # 10 comes after 9, not after 1
def test_parts_in_the_order_of_their_numbers(tmp_path: Path, dtype: str, sizes: list[int], monkeypatch: Any) -> None:
    """A part is opened once. A batch does not touch the parts that it has no row of, or thousands would be slow."""
    vectors = write(tmp_path / "e", sizes, dtype=dtype)
    pairs, n = load_pairs(tmp_path / "e"), sum(sizes)
    assert pairs.source.kind == "clip-retrieval" and pairs.captions == [f"caption {i}" for i in range(n)]
    array: Any = pairs.images.array()
    np.testing.assert_array_equal(array[:, 0], vectors)
    np.testing.assert_array_equal(pairs.text_vectors, vectors * 2)
    np.testing.assert_allclose(pairs.precomputed_scores["similarity"], np.arange(n, dtype=np.float32) / 100)
    while n == 7 and dtype != ">f4" and not isinstance(array, np.memmap):
        assert array is not None, "the vectors of one part were copied"
        array = array.base
    released: list[np.ndarray] = []
    monkeypatch.setattr("cleanpairs.data.formats.vectors.release", lambda *arrays: released.extend(arrays))
    monkeypatch.setattr("cleanpairs.data.arrays.read_npy", None)
    for rows in (1, 5, 100):
        table = pa.Table.from_batches(iter_tables(pairs.source, rows))
        np.testing.assert_array_equal(np.array(table["image_features"].to_pylist()), vectors)
        assert table["caption"].to_pylist() == pairs.captions
    assert len(released) <= 6 * n
    few = load_pairs(tmp_path / "e", limit=5)
    assert len(few) == len(few.images) == len(few.text_vectors) == 5


def test_images_behind_the_vectors_and_parts_that_are_missing(tmp_path: Path, output_of: Any) -> None:
    write(folder := tmp_path / "e", [1, 1], texts=False)
    (tmp_path / "000000001.png").write_bytes(picture(1))
    assert load_pairs(folder).images.read([0, 1]) == [None, None]
    assert "(--image-root DIR: those of image_path)" in output_of("inspect", folder)
    pairs = load_pairs(folder, image_root=tmp_path)
    assert pairs.images.read([0, 1]) == [None, picture(1)] and pairs.images.kind == "features"
    assert pairs.reasons == {} and pairs.text_vectors is None
    (folder / "img_emb" / "img_emb_1.npy").unlink()
    assert_not_loaded(r"img_emb has 1 parts, .*metadata has 2", folder)
    (folder / "metadata").rename(tmp_path / "elsewhere")
    assert_not_loaded(r"no such input: .*metadata", folder)


def test_which_captions_are_taken(tmp_path: Path) -> None:
    image, text = vectors()
    both = Pairs.from_arrays([f"word{i % 7} thing{i}" for i in range(N)], image_vectors=image, text_vectors=text)
    reads = InfoNCE(text_encoder="words", epochs=1, dim=8, dim_word=8, require_dependence=False).fit(both)
    assert (InfoNCE(epochs=1, dim=8).fit(both)._text_encoder, reads._text_encoder) == ("features", "words")
    assert_raises(ConfigError, "both sides", ClipScore().fit, Pairs.from_arrays(both.captions, image_vectors=image))
    bare, model = write_table(tmp_path / "bare.parquet", table()), reads.save_pretrained(tmp_path / "model")
    assert_raises(DataError, "no captions", score_stream, model, bare, tmp_path / "scores.parquet")
    for call in (InfoNCE(text_encoder="words").fit, reads.score_pairs):
        assert_raises(DataError, "no captions", call, bare)


def test_from_vectors_without_captions_to_the_list_of_ids(tmp_path: Path, monkeypatch: Any, output_of: Any) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(table(), "clean.parquet")
    output_of("corrupt", "clean.parquet", "--noise", "0.3", "--out", "data.parquet")
    assert "of the data, both sides" in output_of("fit", "data.parquet", "--method", "infonce", "--set", "epochs=2")
    output_of("score", "data.parquet", "--out", "scores.parquet")
    output_of("rematch", "--repairs", "plausible", "--out", "plan.parquet")
    output_of("export", "--plan", "plan.parquet", "--repaired", "out.parquet", "--dropped", "dropped.parquet")
    plan, given = pq.read_table("plan.parquet").to_pylist(), load_pairs("data.parquet").text_vectors
    moved = [p for p in plan if p["action"] == "rematch_text"]
    rows = {row["uid"]: row["text_emb"] for row in pq.read_table("out.parquet").to_pylist()}
    assert moved and all(np.array_equal(rows[p["key"]], given[p["donor_pair_id"]]) for p in moved)
    output_of("restore", "out.parquet", "--out", "back.parquet")
    assert pq.read_table("back.parquet").equals(pq.read_table("data.parquet"))
    output_of("report", "--out", "report.html")
    output_of("export", "--repaired", "ids.npy")
    kept = {tuple(int(p["key"][k : k + 16], 16) for k in (0, 16)) for p in plan if p["action"] == "keep"}
    assert {tuple(map(int, uid)) for uid in np.load("ids.npy")} == kept
