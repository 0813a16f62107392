"""Where nothing tells wrong pairs from right ones, a fit is refused with code 7, and nothing is dropped."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cleanpairs import Pairs, apply_noise, inject_noise, load_pairs
from cleanpairs.core import METHODS, DataError, RefusedError
from tests import helpers
from tests.conftest import Command
from tests.helpers import assert_raises, picture, write_table

SMALL: dict[str, Any] = {"backbone": "mlp", "dim": 16, "dim_word": 8, "epochs": 2, "refine_epochs": (1,)}
SMALL |= {"batch_size": 32, "eval_group_size": 16}


def corpus(n: int, wrong: float = 0.0, seed: int = 0) -> Pairs:
    """Pairs, of whose captions a share ``wrong`` is permuted."""
    pairs = helpers.corpus(n, seed=seed)
    return apply_noise(pairs, inject_noise(pairs, wrong, seed=seed))


def method(name: str, **changes: Any) -> Any:
    return helpers.sized(METHODS.load(name), **SMALL | changes)


@pytest.mark.parametrize("name", ["auto", "crcl", "infonce"])
def test_pairs_in_random_order_are_refused(name: str) -> None:
    message = "nothing to tell wrong pairs from right ones by: like images"
    assert_raises(RefusedError, message, method(name).fit, corpus(200, wrong=1.0))


@pytest.mark.parametrize(
    ("kind", "order", "message"),
    [
        ("crcl", np.roll(np.arange(200), 3), "Rows 0 to 199: the caption of each image stands 3 rows down. Move the"),
        ("clip-score", np.arange(200)[::-1], "The captions fit in reversed order."),
        ("clip-score", np.random.default_rng(0).permutation(200), "Hardly any pair fits, in any order"),
        # of five rows an image: four rows away most captions are right
        ("clip-score", np.roll(np.arange(300), 5), "Rows 0 to 299: the caption of each image stands 5 rows down"),
    ],
)
def test_a_refusal_says_whether_another_order_fits(kind: str, order: np.ndarray, message: str) -> None:
    pairs = corpus(200)
    if kind == "crcl":
        pairs, model = pairs.with_captions([pairs.captions[i] for i in order], of=order), method("crcl")
    else:
        images = 60 if len(order) == 300 else 200
        vectors = np.random.default_rng(0).normal(size=(images, 16)).astype(np.float32)
        vectors = vectors.repeat(len(order) // images, axis=0)
        pairs = Pairs.from_arrays([f"caption {i}" for i in order], features=vectors, text_vectors=vectors[order])
        model = METHODS.load("clip-score")(text_encoder="features", image_encoder="features", eval_group_size=16)
    assert_raises(RefusedError, message, model.fit, pairs)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_rows_that_are_all_alike_are_refused_without_a_warning() -> None:
    pairs = corpus(200)
    same, ones, vectors = ["a red cat"] * 200, np.ones((200, 16), np.float32), pairs.images.array()[:, 0]
    for captions, images in ((same, ones), (pairs.captions, ones), (same, vectors)):
        given = Pairs.from_arrays(captions, features=images)
        assert_raises(RefusedError, "all rows are alike", method("crcl").fit, given)
    given = Pairs.from_arrays(pairs.captions, images=[picture(0)] * 40, image_index=np.repeat(np.arange(40), 5))
    assert_raises(RefusedError, "all rows are alike.*Check that the captions, and the", method("auto").fit, given)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", ["auto", "crcl"])
@pytest.mark.parametrize("what", ["vector", "text vector"])
def test_a_vector_far_larger_than_the_others_is_set_aside_alone(name: str, what: str) -> None:
    given = corpus(200)
    vectors = given.images.array()[:, 0]
    sides = {"vector": vectors.copy(), "text vector": vectors[:, ::-1].copy()}
    sides[what][7] *= np.float32(1e20)
    pairs = Pairs.from_arrays(given.captions, features=sides["vector"], text_vectors=sides["text vector"])
    model = method(name, text_encoder="features").fit(pairs)
    assert model.quarantined_ == {7: f"its {what} is more than 100 times as large as most"}
    scores = model.score_pairs(pairs)
    assert np.flatnonzero(np.isnan(scores)).tolist() == np.flatnonzero(np.isnan(model.correspondence_)).tolist() == [7]


def test_of_a_few_pairs_without_a_hint_none_is_flagged() -> None:
    for n in (2, 3, 20):
        features = np.random.default_rng(0).normal(size=(n, 8)).astype(np.float32)
        same = Pairs.from_arrays(["the same words"] * n, features=features)
        model = method("crcl").fit(same)
        assert not (model.correspondence_ < model.threshold_).any()
        assert method("crcl", threshold=0.3).fit(same).threshold_ == 0.3


def test_the_share_of_bad_rows_is_a_parameter_and_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = corpus(40)
    pairs.reasons.update(dict.fromkeys(range(12), "set aside by the test"))  # 30 %
    assert_raises(DataError, "unusable pairs: 12 of 40, more than 20 %", method("crcl").fit, pairs)
    assert method("crcl", max_bad_share=0.3).fit(pairs).quarantined_.keys() == set(range(12))
    monkeypatch.setenv("CLEANPAIRS_MAX_BAD_SHARE", "0.5")
    method("crcl").fit(pairs)
    assert_raises(DataError, "more than 10 %", method("crcl", max_bad_share=0.1).fit, pairs)
    pairs.reasons.update(dict.fromkeys(range(40), "set aside by the test"))
    assert_raises(DataError, "unusable pairs: all of 40", method("crcl", max_bad_share=1.0).fit, pairs)


def test_where_images_were_looked_for_that_are_missing(tmp_path: Path) -> None:
    data = write_table(tmp_path / "paths.parquet", {"image": ["pics/0.jpg"], "caption": ["a dog"]})
    for given, root, most in ((None, tmp_path, 0.2), ("/", "/", 1.0)):
        pairs = load_pairs(data, image_root=given)
        with pytest.raises(DataError, match=rf"'pics/0\.jpg' is missing; looked for in {root}: .*--image-root"):
            method("crcl", max_bad_share=most).fit(pairs)


def test_the_command_line_refuses_with_code_7_and_leaves_nothing_to_export(tmp_path: Path, command: Command) -> None:
    pairs = corpus(200, wrong=1.0)
    columns = {"caption": pairs.captions, "image_features": list(pairs.images.array()[:, 0])}
    write_table(tmp_path / "shuffled.parquet", columns)
    code, _, err = command(*"fit shuffled.parquet --backbone mlp --epochs 2 --out run --quiet".split())
    assert code == 7 and "Error [refused]" in err and "no pair is dropped" in err
    assert command("export", "run", "--repaired", "out.parquet").code == 3
    assert not (tmp_path / "out.parquet").exists()
