"""Words of several scripts, the vocabulary, and packing against torch's."""

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, unpack_sequence

from cleanpairs.core.errors import DataError
from cleanpairs.encoders import tokenizer as tokenizer_module
from cleanpairs.encoders.tokenizer import Tokenizer, TokenTable, pack, words
from tests.helpers import assert_raises


def test_words() -> None:
    for text, tokens in (
        ("A red CAT, sitting on 2 mats.", ["a", "red", "cat", "sitting", "on", "2", "mats"]),
        ("café Straße", ["café", "strasse"]),
        ("红色的猫", ["红", "色", "的", "猫"]),
        ("猫が好き", ["猫", "が", "好", "き"]),
        ("ที่นี่", ["ที่", "นี่"]),  # a Thai letter keeps its vowel and tone marks
        ("빨간 고양이", ["빨간", "고양이"]),
        ("हिन्दी बिल्ली", ["हिन्दी", "बिल्ली"]),  # vowel signs and virama belong to the word
        ("قِطّة حمراء", ["قِطّة", "حمراء"]),
        ("C++ 50% €3", ["c", "+", "+", "50", "%", "€", "3"]),
        ("“Don’t” – now…", ["don", "t", "now"]),  # quotes and dashes of print are no words either
        ("「人々」、カー・ジャック。", ["人", "々", "カ", "ー", "ジ", "ャ", "ッ", "ク"]),
        ("قطة، كلب؟", ["قطة", "كلب"]),
        ("แมว\u200bนก", ["แ", "ม", "ว", "น", "ก"]),  # a zero-width space parts words and is none
        ("👩\u200d🚀 👍🏽 ❤️", ["👩\u200d🚀", "👍🏽", "❤️"]),  # an emoji with all that belongs to it
        ("မြန်မာ", ["မြ", "န်", "မာ"]),
        ("&quot;Salt&nbsp;&amp; pepper&#8217;s&quot;", ["salt", "&", "pepper", "s"]),  # of a web page
        (" .,;:!? ", []),
    ):
        assert words(text) == tokens


def test_vocabulary_is_by_frequency_then_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.fit(["b a a", "c a b", "d"])
    assert tokenizer.vocabulary == ["a", "b", "c", "d"]
    assert len(tokenizer) == 5
    assert Tokenizer.fit(["b a a", "c a b", "d"], min_count=2).vocabulary == ["a", "b"]
    monkeypatch.setattr(tokenizer_module, "MAX_TOKENS", 1)
    assert Tokenizer.fit(["b a a", "c a b", "d"]).vocabulary == ["a"]


def test_encoding_knows_the_unknown_the_empty_and_the_long() -> None:
    table = Tokenizer(["cat", "red"], max_length=3).encode(["Red cat", "blue cat", "", "red " * 9])
    assert [table.ids[a:b].tolist() for a, b in zip(table.offsets, table.offsets[1:], strict=False)] == [
        [2, 1], [0, 1], [0], [2, 2, 2],
    ]  # fmt: skip
    assert table.lengths.tolist() == [2, 2, 1, 3]
    assert len(table) == 4


@pytest.mark.parametrize("data", [{}, {"vocabulary": "abc", "max_length": 3}, {"vocabulary": ["a"], "max_length": "3"}])
def test_what_is_no_vocabulary_is_refused(data: dict[str, object]) -> None:
    assert_raises(DataError, "vocabulary", Tokenizer.from_dict, data)


def table_of(lengths: list[int]) -> TokenTable:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return TokenTable(np.arange(1, offsets[-1] + 1), offsets)


def test_packing_is_torchs() -> None:
    table = table_of([3, 1, 4, 4, 2, 6])
    rows = np.array([4, 0, 2, 5, 1, 3, 0])
    packed, order = pack(table, rows)
    chosen = rows[order]
    lengths = table.lengths[chosen]
    padded = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
    for k, row in enumerate(chosen):
        padded[k, : lengths[k]] = torch.from_numpy(table.ids[table.offsets[row] : table.offsets[row + 1]])
    want = pack_padded_sequence(padded, torch.from_numpy(lengths), batch_first=True)
    assert torch.equal(packed.ids, want.data)
    assert torch.equal(packed.batch_sizes, want.batch_sizes)
    assert packed.lengths.tolist() == lengths.tolist() == sorted(lengths.tolist(), reverse=True)


def test_dropping_keeps_order_and_at_least_one() -> None:
    lengths = [1, 2, 5, 9] * 50
    table = table_of(lengths)
    rows = np.arange(len(lengths))
    packed, order = pack(table, rows, drop=0.95, rng=np.random.default_rng(0))
    sequences = [kept.tolist() for kept in unpack_sequence(PackedSequence(packed.ids, packed.batch_sizes))]
    for kept, row in zip(sequences, rows[order], strict=True):
        own = table.ids[table.offsets[row] : table.offsets[row + 1]].tolist()
        assert len(kept) >= 1
        assert set(kept) <= set(own) and kept == sorted(kept)
    assert packed.lengths.tolist() == [len(s) for s in sequences]
    share = float(packed.lengths.sum()) / sum(lengths)
    assert 0.2 < share < 0.35  # the forced ones are about a quarter, 5 % of the rest
