"""Nine languages: tokens are sane, equal texts are grouped whatever their form, and a small fit learns from each."""

import itertools
import json
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cleanpairs import InfoNCE
from cleanpairs.data.text import text_groups
from cleanpairs.encoders.tokenizer import KINDS, Tokenizer, characters, words
from tests.encoders.conftest import NOUNS
from tests.helpers import reloaded


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


def test_one_text_in_two_forms_is_one_group_and_the_same_tokens() -> None:
    for one, other in (
        ("Straße", "STRASSE"),
        ("café", "cafe\u0301"),
        ("ＦＵＬＬ　ｗｉｄｔｈ", "full width"),
        ("ｶﾒﾗ", "カメラ"),
        ("한국", unicodedata.normalize("NFD", "한국")),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        ("ﻗﻄﺔ", "قطة"),
        ("\u201cA  cat\u201d, asleep \u2026\n", "a cat asleep"),
        ("T-shirt", "t shirt"),
        ("猫。", "猫"),
        ("¿un gato?", "un gato"),
    ):
        first, second = text_groups([one, other])
        assert first == second and words(one) == words(other) and characters(one) == characters(other)


def test_what_differs_by_a_mark_or_a_script_stays_apart() -> None:
    for one, other in (("ねこ", "ネコ"), ("कि", "की"), ("ปลา", "ปล่า"), ("猫", "貓"), ("بيت", "بنت"), ("mas", "más")):
        first, second = text_groups([one, other])
        assert first != second and words(one) != words(other) and characters(one) != characters(other)


def corpus(language: str, n: int, seed: int) -> pd.DataFrame:
    """A vector is the sum of its three nouns' vectors, a caption those nouns; without spaces where none are written."""
    rng = np.random.default_rng(seed)
    vectors = np.random.default_rng(7).normal(size=(40, 16))
    chosen = [rng.choice(40, 3, replace=False) for _ in range(n)]
    between = "" if language in ("zh", "ja", "th") else " "
    return pd.DataFrame(
        {
            "image_features": [vectors[row].sum(0).astype(np.float32) for row in chosen],
            "caption": [between.join(NOUNS[k][language] for k in row) for row in chosen],
        }
    )


@pytest.mark.parametrize(("language", "tokenizer"), [("zh", "words"), ("th", "subword")])
def test_a_small_fit_learns_from_captions_of_other_languages(language: str, tokenizer: str, tmp_path: Path) -> None:
    model = InfoNCE(
        tokenizer=tokenizer, backbone="mlp", epochs=12, batch_size=32, dim=32, dim_word=32, lr=0.01, device="cpu",
        image_drop=0.0,
    ).fit(corpus(language, 400, 0))  # fmt: skip
    test = corpus(language, 100, 1)
    recall = model.evaluate(test)
    assert recall.i2t_r10 > 40 and recall.t2i_r10 > 40  # per cent; by chance 10
    assert reloaded(model, tmp_path, test).tokenizer_.words.to_dict() == model.tokenizer_.words.to_dict()
