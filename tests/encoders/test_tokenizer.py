"""Tokenizers: words of many scripts, subwords, packing against torch's; and equal texts in nine languages."""

import itertools
import json
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from cleanpairs import InfoNCE
from cleanpairs.core.errors import DataError
from cleanpairs.data.text import text_groups
from cleanpairs.encoders import tokenizer as tokenizer_module
from cleanpairs.encoders.tokenizer import KINDS, START, Tokenizer, TokenTable, characters, pack, pieces_of, words
from tests.encoders.conftest import NOUNS
from tests.helpers import assert_raises, reloaded, sentences

WORDS_OF = {
    "A red CAT, sitting on 2 mats.": "a red cat sitting on 2 mats", "café Straße": "café strasse", " .,;:!? ": "",
    "红色的猫": "红 色 的 猫", "猫が好き": "猫 が 好 き", "빨간 고양이": "빨간 고양이", "C++ 50% €3": "c + + 50 % € 3",
    "ที่นี่": "ที่ นี่",  # a Thai letter keeps its vowel and tone marks
    "हिन्दी बिल्ली": "हिन्दी बिल्ली", "قِطّة، كلب؟": "قِطّة كلب",  # vowel signs belong to the word
    "“Don’t” – now…": "don t now", "&quot;Salt&nbsp;&amp; pepper&#8217;s&quot;": "salt & pepper s",
    "แมว\u200bนก": "แ ม ว น ก",  # a zero-width space parts words and is none
    "👩\u200d🚀 👍🏽 ❤️": "👩\u200d🚀 👍🏽 ❤️",  # an emoji with all that belongs to it
}  # fmt: skip


def test_words() -> None:
    assert {text: words(text) for text in WORDS_OF} == {text: told.split() for text, told in WORDS_OF.items()}


def test_vocabulary_is_by_frequency_then_spelling(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.fit(["b a a", "c a b", "d"])
    assert tokenizer.vocabulary == ["a", "b", "c", "d"] and len(tokenizer) == 5
    assert Tokenizer.fit(["b a a", "c a b", "d"], min_count=2).vocabulary == ["a", "b"]
    monkeypatch.setattr(tokenizer_module, "MAX_TOKENS", 1)
    assert Tokenizer.fit(["b a a", "c a b", "d"]).vocabulary == ["a"]


def test_encoding_knows_the_unknown_the_empty_and_the_long() -> None:
    table = Tokenizer(["cat", "red"], max_length=3).encode(["Red cat", "blue cat", "", "red " * 9])
    assert table.ids.tolist() == [2, 1, 0, 1, 0, 2, 2, 2] and table.offsets.tolist() == [0, 2, 4, 5, 8]
    assert table.lengths.tolist() == [2, 2, 1, 3] and len(table) == 4


def table_of(lengths: list[int]) -> TokenTable:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return TokenTable(np.arange(1, offsets[-1] + 1), offsets)


def test_packing_is_torchs() -> None:
    table, rows = table_of([3, 1, 4, 4, 2, 6]), np.array([4, 0, 2, 5, 1, 3, 0])
    packed, order = pack(table, rows)
    want = pack_sequence([torch.from_numpy(table.ids[slice(*table.offsets[row : row + 2])]) for row in rows[order]])
    assert torch.equal(packed.ids, want.data) and torch.equal(packed.batch_sizes, want.batch_sizes)
    lengths = table.lengths[rows[order]].tolist()
    assert packed.lengths.tolist() == lengths == sorted(lengths, reverse=True)


def test_dropping_keeps_order_and_at_least_one() -> None:
    table, rows = table_of([1, 2, 5, 9] * 50), np.arange(200)
    packed, order = pack(table, rows, drop=0.95, rng=np.random.default_rng(0))
    sequences = [kept.tolist() for kept in unpack_sequence(PackedSequence(packed.ids, packed.batch_sizes))]
    for kept, row in zip(sequences, rows[order], strict=True):
        own = table.ids[table.offsets[row] : table.offsets[row + 1]].tolist()
        assert len(kept) >= 1 and set(kept) <= set(own) and kept == sorted(kept)
    assert packed.lengths.tolist() == [len(s) for s in sequences]
    assert 0.2 < len(packed.ids) / len(table.ids) < 0.35  # the forced ones are about a quarter, 5 % of the rest


# -- subwords ---------------------------------------------------------------------------------------------------------


CAPTIONS = [
    "a red cat on a mat", "two red cats", "a tomcat and a cat", "the cat sat on the mat",
    "红色的猫", "白色的猫", "大熊猫和猫", "แมวสีแดง", "แมวดำ",
    "ねこが好き", "いぬが好き", "빨간 고양이", "고양이 두 마리", "🚀 and 🚀",
]  # fmt: skip


def learned(captions: list[str], **settings: Any) -> Tokenizer:
    return Tokenizer.fit(captions, kind="subword", **settings)


def tokens(tokenizer: Tokenizer, caption: str) -> list[str]:
    return [["?", *tokenizer.vocabulary][k] for k in tokenizer.encode([caption]).ids]


def test_frequent_words_are_one_piece_and_word_ends_are_not_words() -> None:
    tokenizer = learned(CAPTIONS * 3)
    assert tokens(tokenizer, "a red cat") == [START + "a", START + "red", START + "cat"]
    assert START + "cat" not in tokens(tokenizer, "tomcat")
    assert "猫" in tokens(tokenizer, "猫") and tokens(tokenizer, "虎猫")[1:] == ["猫"]  # the same where it stands
    assert tokens(tokenizer, "ねこが好き") == ["ねこが好き"]


def test_unknown_empty_and_long_captions() -> None:
    tokenizer = learned(CAPTIONS, max_length=5)
    table = tokenizer.encode(["", " . ", "Ж", "cat " * 9, "大熊猫" * 9])
    assert table.lengths.tolist() == [1, 1, 2, 5, 5]
    assert table.ids[:2].tolist() == [0, 0]
    assert tokens(tokenizer, "Ж") == [START, "?"]


def test_the_limit_holds_and_the_rarest_letters_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "MAX_PIECES", 20)
    tokenizer = learned(CAPTIONS * 2)
    assert len(tokenizer.vocabulary) <= 20
    letters = Counter(c for caption in CAPTIONS for piece in pieces_of(caption) for c in piece)
    alphabet = {token for token in tokenizer.vocabulary if len(token) == 1}
    assert alphabet == set(sorted(letters, key=lambda c: (-letters[c], c))[:10])


def test_min_count_asks_for_more_frequent_pieces() -> None:
    few, many = (learned(CAPTIONS, min_count=n) for n in (4, 1))
    assert len(few.merges) < len(many.merges)
    assert learned(CAPTIONS[::-1]).to_dict() == learned(CAPTIONS).to_dict()  # whatever their order


SAVED = {"kind": "subword", "vocabulary": ["a", "b"], "max_length": 5, "merges": []}
MERGES = (None, "ab", [["a"]], [["a", 1]], [["q", "zz"]])  # none of them is a list of pairs of known tokens


@pytest.mark.parametrize("changes", [*({"merges": m} for m in MERGES), {"vocabulary": "abc"}, {"max_length": "3"}])
def test_what_is_no_vocabulary_or_no_merges_is_refused(changes: dict[str, Any]) -> None:
    assert_raises(DataError, "merges" if "merges" in changes else "vocabulary", Tokenizer.from_dict, SAVED | changes)


# -- languages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_of_all_languages_at_once(kind: str) -> None:
    captions = [" ".join(row[language] for row in pair) for pair in itertools.pairwise(NOUNS) for language in NOUNS[0]]
    tokenizer = Tokenizer.fit(captions, kind=kind)
    again = Tokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict())))
    table = tokenizer.encode(captions)
    assert (table.ids > 0).all() and len(set(tokenizer.vocabulary)) == len(tokenizer.vocabulary)
    assert again.encode(captions).ids.tolist() == table.ids.tolist()
    rows = {tuple(table.ids[a:b]) for a, b in itertools.pairwise(table.offsets)}
    assert len(rows) == len(captions)  # no two captions look the same


SAME = [
    ("Straße", "STRASSE"), ("café", "cafe\u0301"), ("ＦＵＬＬ　ｗｉｄｔｈ", "full width"), ("ｶﾒﾗ", "カメラ"),
    ("한국", unicodedata.normalize("NFD", "한국")), ("ΣΊΣΥΦΟΣ", "σίσυφος"), ("ﻗﻄﺔ", "قطة"), ("T-shirt", "t shirt"),
    ("\u201cA  cat\u201d, asleep \u2026\n", "a cat asleep"), ("猫。", "猫"), ("¿un gato?", "un gato"),
]  # fmt: skip
OTHERS = [("ねこ", "ネコ"), ("कि", "की"), ("ปลา", "ปล่า"), ("猫", "貓"), ("بيت", "بنت"), ("mas", "más")]


@pytest.mark.parametrize(("one", "other"), [*SAME, *OTHERS])
def test_one_text_in_two_forms_is_one_group_with_the_same_tokens_and_others_stay_apart(one: str, other: str) -> None:
    same, (first, second) = (one, other) in SAME, text_groups([one, other])
    assert [first == second, words(one) == words(other), characters(one) == characters(other)] == [same] * 3


def corpus(language: str, n: int, seed: int) -> pd.DataFrame:
    """A vector is the sum of its three nouns' vectors, a caption those nouns; without spaces where none are written."""
    between = "" if language in ("zh", "ja", "th") else " "
    captions, features = sentences(n, seed, [row[language] for row in NOUNS])
    return pd.DataFrame({"image_features": list(features), "caption": [between.join(c.split()) for c in captions]})


@pytest.mark.parametrize(("language", "tokenizer"), [("zh", "words"), ("th", "subword")])
def test_a_small_fit_learns_from_captions_of_other_languages(language: str, tokenizer: str, tmp_path: Path) -> None:
    sizes = {"backbone": "mlp", "epochs": 8, "batch_size": 32, "dim": 32, "dim_word": 32, "lr": 0.01}
    model = InfoNCE(tokenizer=tokenizer, device="cpu", image_drop=0.0, **sizes).fit(corpus(language, 300, 0))
    test = corpus(language, 100, 1)
    recall = model.evaluate(test)
    assert recall.i2t_r10 > 40 and recall.t2i_r10 > 40  # per cent; by chance 10
    assert reloaded(model, tmp_path, test).tokenizer_.words.to_dict() == model.tokenizer_.words.to_dict()
