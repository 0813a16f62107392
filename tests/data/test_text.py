"""What is done to all captions at once is what is done to each."""

from __future__ import annotations

import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleanpairs.data.text import _SEPARATORS, content_hash, normalise_text, text_groups
from cleanpairs.encoders.tokenizer import UNKNOWN, Tokenizer, characters, words

ASCII = st.text(st.characters(max_codepoint=127), max_size=30)
WORDY = st.text("aB _-'.,!#+\t\n\x00\x1c9", max_size=14)
ANY = st.text(max_size=12) | st.text("aé 猫ß\u0301.\ud800", max_size=8)  # a lone surrogate, too
TEXTS = st.lists(ASCII | WORDY, max_size=12)
MIXED = st.lists(ASCII | WORDY | ANY, max_size=12)
VOCABULARY = ["a", "b", "ab", "9", "#", "_", "+", "a_b", "猫", "ss", "é", "aa"]


def normal_form(text: str) -> str:
    """Of the whole caption at once."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(_SEPARATORS.sub(" ", folded).split()) or " ".join(folded.split())


def groups_of_each(captions: list[str]) -> np.ndarray:
    return np.array([content_hash(normal_form(c).encode("utf-8", "surrogatepass")) for c in captions], np.int64)


@settings(max_examples=100, deadline=None)
@given(TEXTS | MIXED)
def test_groups_are_those_of_each_caption(captions: list[str]) -> None:
    np.testing.assert_array_equal(text_groups(captions), groups_of_each(captions))


@settings(max_examples=100, deadline=None)
@given(TEXTS | MIXED, st.sampled_from(["words", "characters"]), st.sampled_from([1, 2, 64]))
def test_numbers_are_those_of_each_caption(captions: list[str], kind: str, most: int) -> None:
    split = {"words": words, "characters": characters}[kind]
    tokenizer = Tokenizer(VOCABULARY, most, kind)
    number = {token: k + 1 for k, token in enumerate(VOCABULARY)}
    cut = most * (4 if kind == "characters" else 1)
    want = [[number.get(t, UNKNOWN) for t in split(c)[:cut]] or [UNKNOWN] for c in captions]
    table = tokenizer.encode(captions)
    got = [table.ids[a:b].tolist() for a, b in zip(table.offsets[:-1], table.offsets[1:], strict=True)]
    assert got == want
    assert table.ids.dtype == table.offsets.dtype == np.int64


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_a_column_is_as_its_list_sliced_and_with_nulls(kind: pa.DataType) -> None:
    captions = ["A cat.", "", None, "été", "...", "  two  Words\t", "A cat"]
    column = pa.array(captions, pa.string()).cast(kind)
    for part in (column, column[2:], column[1:5], column[:0], column[6:]):
        plain = [c or "" for c in part.to_pylist()]
        np.testing.assert_array_equal(text_groups(part), groups_of_each(plain))


def test_every_character_beside_every_kind_of_blank() -> None:
    """The normal form of what stands between blanks is that of the whole, and so are the tokens."""
    swept = 0
    for code in [*range(0x3100), *range(0xA000, 0xD800, 7), *range(0xF900, 0x10000), *range(0x1F300, 0x1FB00)]:
        c = chr(code)
        text = f"a{c} {c}b\u3000\u0301{c}\x1c{c}{c}"
        assert normalise_text(text) == normal_form(text), hex(code)
        table = Tokenizer(["a", "b", c.casefold()]).encode([text])
        want = [{"a": 1, "b": 2, c.casefold(): 3}.get(token, UNKNOWN) for token in words(text)] or [UNKNOWN]
        assert table.ids.tolist() == want, hex(code)
        swept += 1
    assert swept > 15_000


def test_equal_captions_have_equal_groups_out_of_generators() -> None:
    captions = [f"Caption {i % 7}!" for i in range(10_000)]
    groups = text_groups(c for c in captions)
    np.testing.assert_array_equal(groups, np.tile(groups[:7], 2_000)[: len(captions)])
    assert len(np.unique(groups)) == 7
    table = Tokenizer(["caption"]).encode(captions)
    assert len(table) == len(captions) and (table.lengths == 2).all() and table.ids.reshape(-1, 2)[:, 0].min() == 1
