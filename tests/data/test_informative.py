"""What says nothing is told from what does, and takes no part in anything."""

from __future__ import annotations

import numpy as np
import pytest

from cleanpairs import CRCL
from cleanpairs.data import Pairs
from cleanpairs.data.informative import PREFIX, has_word, uninformative


@pytest.mark.parametrize(
    ("caption", "says"),
    [
        ("https://t.co/abc", False), ("#cats #dogs", False), ("@somebody www.example.org/x", False), ("", False),
        ("IMG_2041.jpg", False), ("DSC00123", False), ("2019 - 12", False), ("!!!", False),
        ("a dog https://t.co/abc", True), ("狗", True), ("dog.", True), ("#1 fan", True), ("собака", True),
    ],
)  # fmt: skip
def test_a_caption_without_addresses_hashtags_and_files_has_a_word_or_not(caption: str, says: bool) -> None:
    assert has_word(caption) is says


def corpus(n: int = 200, dim: int = 16) -> Pairs:
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 5, n)
    vectors = np.eye(dim, dtype=np.float32)[kind] + 0.3 * rng.normal(size=(n, dim)).astype(np.float32)
    captions = [f"{'cat dog horse boat tree'.split()[k]} number {i}" for i, k in enumerate(kind)]
    captions[:25] = ["photo of the day"] * 25
    captions[30:33] = ["https://t.co/x1", "#a #b", "IMG_1.png"]
    return Pairs.from_arrays(captions, image_vectors=vectors)


def test_what_most_pairs_have_is_no_reason() -> None:
    pairs = corpus()
    found = uninformative(pairs, flat=[40, 41])
    assert sorted(found) == [*range(25), 30, 31, 32, 40, 41]
    assert all(why.startswith(PREFIX) for why in found.values())
    assert {found[0], found[30], found[40]} == {
        PREFIX + "the caption is that of many images", PREFIX + "the caption has no word",
        PREFIX + "the image shows one colour",
    }  # fmt: skip
    assert not uninformative(Pairs.from_arrays(["one class", "another"] * 30, image_vectors=np.eye(60)))
    assert not uninformative(corpus(), flat=range(150)).keys() & set(range(100, 150))


def test_they_are_no_donors_and_no_repaired_partners() -> None:
    pairs = corpus()
    model = CRCL(backbone="mlp", epochs=3, refine_epochs=(1,), dim=16, batch_size=64).fit(pairs)
    said_nothing = set(uninformative(pairs))
    assert {i for i, why in model.quarantined_.items() if why.startswith(PREFIX)} == said_nothing
    assert set(np.flatnonzero(np.isnan(model.correspondence_))) == said_nothing
    flagged = np.where(np.arange(len(pairs)) % 2, 0.0, 1.0)
    wanted = {"min_repair_score": 0.0, "max_reuse": 5, "repairs": "plausible"}
    plan = model.rematch(pairs, correspondence=flagged, threshold=0.5, **wanted).table.to_pydict()
    made = [i for i, action in enumerate(plan["action"]) if action.startswith("rematch")]
    assert made and not {*made, *(plan["donor_pair_id"][i] for i in made)} & said_nothing
    assert {plan["action"][i] for i in said_nothing} == {"quarantine"}
