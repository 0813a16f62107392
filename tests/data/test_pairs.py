"""Pairs: built from arrays, selected from, with other captions, with their truth."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cleanpairs import Pairs, load_pairs
from cleanpairs.core.errors import DataError
from cleanpairs.data.noise import load_truth
from cleanpairs.data.text import normalise_text, text_groups
from cleanpairs.encoders.tokenizer import UNKNOWN, Tokenizer, characters, words
from tests.helpers import assert_raises, picture, write_table, write_tar


def some() -> Pairs:
    features = np.arange(12, dtype=np.float32).reshape(3, 4)
    return Pairs.from_arrays(list("abcdef"), features=features, image_index=[0, 0, 1, 1, 2, 2], keys=list("uvwxyz"))


def test_from_arrays() -> None:
    pairs = some()
    assert pairs.images.array().shape == (3, 1, 4) and pairs.images.kind == "features"
    np.testing.assert_array_equal(pairs.pair_image_group, pairs.image_group[[0, 0, 1, 1, 2, 2]])
    assert pairs.images.read([0, 2]) == [None, None]
    assert [(s, len(c)) for s, c in pairs.images.iter_encoded(2)] == [(0, 2), (2, 1)]
    images = Pairs.from_arrays(["a", "b", "A.", "d"], images=[b"x", None, b"x", b""])
    assert images.text_group[0] == images.text_group[2] != images.text_group[1]
    assert images.image_group[0] == images.image_group[2] and len(set(images.image_group.tolist())) == 3
    assert set(images.reasons) == {1, 3} and repr(images) == "Pairs(4 pairs of 4 images (bytes), 2 quarantined)"
    features = np.array([[1.0, np.nan], [1.0, 2.0]])
    array = Pairs.from_arrays(["a", "b"], features=features).images.array()
    assert not array[0].any() and np.isnan(features[0, 1])  # the caller's array stays
    given: Any = pd.Series(["a dog", None, float("nan"), "", pd.NA], index=[3, 3, 5, 6, 7])
    pairs = Pairs.from_arrays(given, image_vectors=np.eye(5, dtype=np.float32))
    assert pairs.captions == ["a dog", "", "", "", ""] and set(pairs.reasons) == {1, 2, 3, 4}
    pairs = Pairs.from_arrays(["a \ud83d dog"], image_vectors=np.eye(1, dtype=np.float32), keys=["\udc00"])
    assert pairs.captions == ["a ? dog"] and pairs.keys == ["?"]  # halves of characters are no text, as of JSON


def test_pairs_that_differ_in_anything_that_is_scored_have_another_fingerprint() -> None:
    images, vectors = np.eye(3), np.arange(6.0).reshape(3, 2)
    given: dict[str, Any] = {"features": images, "text_vectors": vectors, "precomputed_scores": {"a": [0.1, 0.2, 0.3]}}
    changes: list[dict[str, Any]] = [
        {}, {"features": images[::-1]}, {"text_vectors": vectors[::-1]}, {"text_vectors": None},
        {"precomputed_scores": {"a": [0.3, 0.2, 0.1]}}, {"precomputed_scores": {"b": [0.1, 0.2, 0.3]}},
    ]  # fmt: skip
    made = [Pairs.from_arrays(list("xyz"), **given | change).source.fingerprint for change in changes]
    assert len(set(made)) == len(made)
    assert made[0] == Pairs.from_arrays(list("xyz"), **given).source.fingerprint


def test_arrays_that_do_not_fit() -> None:
    x, images = np.zeros((2, 3)), [b"1", b"2"]
    for bad, message in (
        ({}, "image"), ({"features": x, "images": images}, "image"), ({"features": np.zeros(2)}, "features"),
        ({"features": np.zeros((2, 3), int)}, "features"), ({"features": np.zeros((1, 3))}, "image"),
        ({"features": x, "image_index": [0, 2]}, "image"), ({"features": x, "image_index": [0, -1]}, "image"),
        ({"features": x, "keys": ["k"]}, "key"), ({"features": np.zeros((2, 0))}, "no numbers"),
        ({"images": images, "precomputed_scores": {"similarity": [0.1]}}, "scores 'similarity': 2 and 1"),
        ({"images": images, "text_vectors": np.zeros((3, 4), np.float32)}, "text vectors"),
        ({"features": torch.ones(2, 3, requires_grad=True)}, "detach"),
        ({"features": x, "image_index": [0.5, 1]}, "image_index .* not all whole"),
        ({"features": x, "precomputed_scores": {"a": ["x", "y"]}}, "scores 'a' .* they are <U1"),
        ({"images": [*images, b"3"]}, "each caption needs an image: 2 and 3 were given"),
        ({"images": [Image.new("L", (2, 2))] * 2}, "load_pairs"),
        ({"captions": ["a", 5], "images": images}, "caption 1 is 5"),
        ({"captions": "ab", "images": images}, "captions are a list, found the text 'ab'"),
        ({"image_vectors": np.zeros(2)}, r"image_vectors .* must be floats .* found float64 \(2,\)"),
        ({"image_vectors": x, "features": x}, "either image_vectors"),
    ):  # fmt: skip
        assert_raises(DataError, message, Pairs.from_arrays, **{"captions": ["a", "b"]} | bad)
    for shape in ((0, 3), (0, 2, 3), (0, 0)):
        pairs = Pairs.from_arrays([], features=np.zeros(shape, np.float32))
        assert len(pairs) == len(pairs.images) == 0 and pairs.image_group.shape == pairs.pair_image_group.shape == (0,)
        assert list(pairs.images.iter_encoded(4)) == []


def test_select_keeps_pairs_whole() -> None:
    pairs = some()
    pairs.reasons[4] = "bad"
    for at in ([4, 1], np.array([4, 1]), np.array([4, 1], np.int32)):
        chosen = pairs.select(at)
        assert chosen.captions == ["e", "b"] and chosen.keys == ["y", "v"] and chosen.reasons == {0: "bad"}
        np.testing.assert_array_equal(chosen.pair_image_group, pairs.pair_image_group[[4, 1]])
        np.testing.assert_array_equal(chosen.text_group, pairs.text_group[[4, 1]])
    assert pairs.select(np.arange(6) % 2 == 0).captions == ["a", "c", "e"]
    for rows, message in (
        ([-1], "0 to 5"), ([6], "0 to 5"), ([0.5], "not all whole"), (["a"], "<U1"), (1, r"\(k,\)"),
        ([True, True], "mask of 6 pairs"),
    ):  # fmt: skip
        assert_raises(DataError, message, pairs.select, np.array(rows))
    assert len(pairs.select([])) == 0 and len(pairs.select([]).select([])) == 0
    prints = {p.source.fingerprint for p in (pairs, pairs.select([0, 1]), pairs.select([1, 0]), pairs.select([0]))}
    assert len(prints) == 4 and pairs.select([1, 0]).source.fingerprint in prints


def test_reasons_go_with_the_captions_and_stay_with_the_images() -> None:
    pairs = Pairs.from_arrays(["", "b", "c", " "], images=[b"1", None, b"3", None])
    assert set(pairs.reasons) == {0, 1, 3} and "image" in pairs.reasons[3]
    moved = pairs.with_captions(["c", " ", "", "b"])
    assert pairs.captions[1] == "b" and moved.source.fingerprint != pairs.source.fingerprint
    assert set(moved.reasons) == {1, 2, 3} and "empty" in moved.reasons[2]
    assert all("image" in moved.reasons[i] for i in (1, 3)) and set(pairs.reasons) == {0, 1, 3}
    other = Pairs.from_arrays(["", ""], features=np.array([[np.nan], [1.0]])).with_captions(["a", "b"])
    assert set(other.reasons) == {0} and "finite" in other.reasons[0]
    assert_raises(DataError, "2 and 1 were given", other.with_captions, ["a"])


def test_truth_from_a_file(tmp_path: Path) -> None:
    pairs, mask, path = some(), [True, False, False, True, False, False], tmp_path / "a.npy"
    assert_raises(DataError, "true_mismatch", pairs.true_mismatch_mask)
    for cells, wanted in ((mask, mask), ([mask[:2], mask[2:]], mask), ([*mask[:5], None], [*mask[:5], None])):
        table = write_table(tmp_path / "a.parquet", {"true_mismatch": cells})
        assert load_truth(table, pairs).tolist() == wanted
    for array, wanted in ((mask, mask), ([1, 0, 4, 3, 2, 5], [False, False, True, False, True, False])):
        np.save(path, array)
        assert load_truth(path, pairs).tolist() == wanted
    for name, column in (("other", [1]), ("true_mismatch", ["False"] * 6)):
        assert_raises(DataError, r"a\.parquet", load_truth, write_table(table, {name: column}), pairs)
    for array in (mask[:5], np.arange(1, 7)):
        np.save(path, array)
        assert_raises(DataError, r"a\.npy", load_truth, path, pairs)
    (tmp_path / "text.parquet").write_text("no")
    for name in ("text.parquet", "missing.npy", "missing.parquet"):
        assert_raises(DataError, name, load_truth, tmp_path / name, pairs)


def test_other_captions_have_no_given_score_and_the_vectors_of_the_pair_that_they_are_of() -> None:
    scores, vectors = {"similarity": [0.1, 0.2, np.nan, 0.4, 0.5, 0.6]}, np.arange(12, dtype=np.float32).reshape(6, 2)
    known = {"features": np.eye(6, dtype=np.float32), "text_vectors": vectors, "precomputed_scores": scores}
    pairs = Pairs.from_arrays(list("abcdef"), **known)
    some = pairs.select(np.array([4, 2]))
    np.testing.assert_array_equal(some.precomputed_scores["similarity"], np.array([0.5, np.nan], np.float32))
    np.testing.assert_array_equal(some.text_vectors, [[8, 9], [4, 5]])
    swapped = pairs.with_captions(list("bacdef"), of=np.array([1, 0, 2, 3, 4, 5]))
    np.testing.assert_array_equal(np.isnan(swapped.precomputed_scores["similarity"]), [1, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(swapped.text_vectors, vectors[[1, 0, 2, 3, 4, 5]])
    assert pairs.with_captions(list("bacdef")).text_vectors is None
    assert pairs.with_captions(list("abcdef")).text_vectors is pairs.text_vectors
    assert not np.isnan(pairs.precomputed_scores["similarity"][[0, 1]]).any()


# -- What is done to all captions at once is what is done to each -----------------------------------------------------


ASCII = st.text(st.characters(max_codepoint=127), max_size=30)
WORDY = st.text("aB _-'.,!#+\t\n\x00\x1c9", max_size=14)
ANY = st.text(max_size=12) | st.text("aé 猫ß\u0301.\ud800", max_size=8)  # a lone surrogate, too
TEXTS = st.lists(ASCII | WORDY, max_size=12)
MIXED = st.lists(ASCII | WORDY | ANY, max_size=12)
VOCABULARY = ["a", "b", "ab", "9", "#", "_", "+", "a_b", "猫", "ss", "é", "aa"]


@settings(max_examples=100, deadline=None)
@given(TEXTS | MIXED, st.sampled_from(["words", "characters"]), st.sampled_from([1, 2, 64]))
def test_numbers_are_those_of_each_caption(captions: list[str], kind: str, most: int) -> None:
    split = {"words": words, "characters": characters}[kind]
    tokenizer = Tokenizer(VOCABULARY, most, kind)
    number = {token: k + 1 for k, token in enumerate(VOCABULARY)}
    cut = most * (4 if kind == "characters" else 1)
    want = [[number.get(t, UNKNOWN) for t in split(c)[:cut]] or [UNKNOWN] for c in captions]
    table = tokenizer.encode(captions)
    assert [table.ids[a:b].tolist() for a, b in zip(table.offsets[:-1], table.offsets[1:], strict=True)] == want
    assert table.ids.dtype == table.offsets.dtype == np.int64


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_a_column_is_as_its_list_sliced_and_with_nulls(kind: pa.DataType) -> None:
    column = pa.array(["A cat.", "", None, "été", "...", "  two  Words\t", "A cat"], pa.string()).cast(kind)
    for part in (column, column[2:], column[1:5], column[:0], column[6:]):
        np.testing.assert_array_equal(text_groups(part), text_groups([c or "" for c in part.to_pylist()]))
    for one, other in (("...", "?"), ("C#", "C"), ("50 %", "50"), ("4.5", "45"), ("\U0001f408", "\U0001f415")):
        assert normalise_text(one) != normalise_text(other) and normalise_text(one)


@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_pairs_go_to_another_process(kind: str, tmp_path: Path) -> None:
    images = [picture(i) for i in range(3)]
    members = [(f"{i}.{ending}", content) for i in range(3) for ending, content in (("png", images[i]), ("txt", b"a"))]
    pairs = {
        "parquet": lambda: load_pairs({"image": images, "caption": ["a", "b", "c"]}),
        "tar": lambda: load_pairs(write_tar(tmp_path / "0.tar", members)),
    }[kind]()
    back = pickle.loads(pickle.dumps(pairs))
    assert back.captions == pairs.captions and back.images.read([2]) == images[2:]
    assert [read for _, read in back.images.iter_encoded(3)] == [images]
