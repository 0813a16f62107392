"""Subwords: determinism, saving, and what is damaged."""

import json
from collections import Counter
from typing import Any

import pytest

from cleanpairs.core.errors import DataError
from cleanpairs.encoders import tokenizer as tokenizer_module
from cleanpairs.encoders.tokenizer import START, Tokenizer, pieces_of, runs

CAPTIONS = [
    "a red cat on a mat", "two red cats", "a tomcat and a cat", "the cat sat on the mat",
    "红色的猫", "白色的猫", "大熊猫和猫", "แมวสีแดง", "แมวดำ",
    "ねこが好き", "いぬが好き", "빨간 고양이", "고양이 두 마리", "🚀 and 🚀",
]  # fmt: skip


def learned(captions: list[str], **settings: Any) -> Tokenizer:
    return Tokenizer.fit(captions, kind="subword", **settings)


def tokens(tokenizer: Tokenizer, caption: str) -> list[str]:
    names = ["?", *tokenizer.vocabulary]
    return [names[k] for k in tokenizer.encode([caption]).ids]


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


@pytest.mark.parametrize("captions", [[], [""], ["cat"], ["cat", "猫"]])
def test_hardly_anything_to_learn_from(captions: list[str]) -> None:
    tokenizer = learned(captions)
    table = tokenizer.encode(["cat", "猫", ""])
    assert len(table) == 3 and table.lengths.min() >= 1 and table.ids.max() < len(tokenizer)
    assert Tokenizer.from_dict(json.loads(json.dumps(tokenizer.to_dict()))).vocabulary == tokenizer.vocabulary


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


@pytest.mark.parametrize("merges", [None, "ab", [["a"]], [["a", 1]], [["q", "zz"]]])
def test_merges_that_are_none_are_refused(merges: object) -> None:
    with pytest.raises(DataError, match="merges"):
        Tokenizer.from_dict({"kind": "subword", "vocabulary": ["a", "b"], "max_length": 5, "merges": merges})


def test_runs_are_words_and_stretches_without_spaces() -> None:
    assert runs("A tomcat 大熊猫,猫 แมว") == [
        ("a", False), ("tomcat", False), ("大熊猫", True), ("猫", True), ("แมว", True),
    ]  # fmt: skip
