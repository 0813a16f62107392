"""Whether images and captions depend on each other: a plain double loop, and what the test must not see."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from cleanpairs.correspondence import independence as module
from cleanpairs.correspondence.independence import (
    bag_of_tokens,
    by_image,
    image_vectors,
    independence_test,
    mean_of,
    standardised,
)
from cleanpairs.encoders.tokenizer import Tokenizer


def dependent(n: int, seed: int = 0, topics: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of both sides that share a topic, with noise of their own."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(0, topics, n)
    images = rng.normal(size=(topics, 24))[topic] + rng.normal(size=(n, 24))
    texts = rng.normal(size=(topics, 30))[topic] + rng.normal(size=(n, 30))
    return images, texts


def corrupted(texts: np.ndarray, share: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(texts))[: int(share * len(texts))]
    out = texts.copy()
    out[rows] = texts[rng.permutation(rows)]
    return out


def test_dependence_is_seen_and_fades_with_the_wrong_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    images, texts = dependent(600)
    found = [independence_test(images, corrupted(texts, share)) for share in (0, 0.3, 0.6, 1.0)]
    assert [f.dependent for f in found] == [True, True, True, False]
    assert found[0].z > found[1].z > found[2].z > module.LEAST_Z
    assert {f.n for f in found} == {600}
    monkeypatch.setattr(module, "BLOCK", 50)
    monkeypatch.setattr(module, "BLOCKS", 3)
    some = independence_test(images, texts)  # of a large corpus, a few blocks
    assert some.n == 150 and some.dependent


def test_permuted_pairs_are_not_taken_for_dependent() -> None:
    drawn = [dependent(120, seed) for seed in range(40)]
    z = np.array([independence_test(i, corrupted(t, 1.0, k), seed=k).z for k, (i, t) in enumerate(drawn)])
    assert z.mean() == pytest.approx(0, abs=0.6) and z.std() == pytest.approx(1, abs=0.4)
    assert (z >= module.LEAST_Z).mean() <= 0.05


def test_few_and_equal_rows_are_independent() -> None:
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 3, 20):
        same, drawn, zeros = np.ones((n, 4)), rng.normal(size=(n, 4)), np.zeros((n, 4))
        for images, texts in ((same, drawn), (drawn, same), (zeros, zeros)):
            found = independence_test(images, texts)
            assert not found.dependent and np.isfinite(found.z) and str(found)


def test_an_image_takes_part_once_with_its_captions_and_a_text_once() -> None:
    rng = np.random.default_rng(0)
    images, texts = rng.integers(0, 40, 300), rng.integers(0, 200, 300)
    groups = by_image(images, texts, most=300)
    rows = np.concatenate(groups)
    assert len(np.unique(texts[rows])) == len(rows) > 100
    assert all(len(np.unique(images[group])) == 1 <= len(group) <= 8 for group in groups)
    assert len({images[group[0]] for group in groups}) == len(groups)
    assert len(by_image(images, texts, most=5)) == 5
    assert by_image(images[:0], texts[:0], most=5) == []


def test_the_mean_of_an_images_captions() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 4))
    x[5] = 0
    counts = np.array([2, 1, 3])
    unit = x / np.where(np.linalg.norm(x, axis=1) > 0, np.linalg.norm(x, axis=1), 1)[:, None]
    want = np.stack([unit[:2].sum(0), unit[2], unit[3:].sum(0)])
    np.testing.assert_allclose(mean_of(x, counts), want, rtol=1e-5)
    np.testing.assert_allclose(mean_of(csr_array(x), counts).toarray(), want, rtol=1e-5)


def test_several_captions_tell_more_and_stay_together_where_they_are_wrong() -> None:
    """Five captions of an image are alike, and all are permuted by images: no dependence, though rows agree."""
    images, texts = dependent(150)
    five = np.repeat(texts, 5, axis=0) + 1.5 * np.random.default_rng(1).normal(size=(750, 30))
    group, text_group = np.repeat(np.arange(150), 5), np.arange(750)
    found = {}
    for name, order in (("right", np.arange(150)), ("wrong", np.random.default_rng(2).permutation(150))):
        groups = by_image(order[group], text_group, most=1000)
        shown = order[group][[rows[0] for rows in groups]]
        found[name] = independence_test(images[shown], mean_of(five[np.concatenate(groups)], np.full(150, 5)))
    assert found["right"].z > independence_test(images, five[::5]).z > module.LEAST_Z
    assert not found["wrong"].dependent


def test_vectors_of_regions_of_pixels_and_of_tokens() -> None:
    rng = np.random.default_rng(0)
    regions = rng.normal(size=(600, 3, 5)).astype(np.float16)
    rows = rng.permutation(600)[:300]
    plain = regions[rows].astype(np.float64).mean(axis=1)
    np.testing.assert_allclose(
        image_vectors(regions, rows), (plain - plain.mean(0)) / plain.std(0), rtol=1e-2, atol=1e-2
    )
    pixels = rng.integers(0, 256, (10, 3, 16, 17), dtype=np.uint8)
    assert image_vectors(pixels, np.arange(10)).shape == (10, 3 * 64)
    assert not standardised(np.full((5, 2), 7.7)).any()
    table = Tokenizer.fit(["a red cat", "a cat", "dog"]).encode(["a red cat", "a a cat", "dog"])
    ids, offsets = table.ids.copy(), table.offsets.copy()
    bag = bag_of_tokens(table.ids, table.offsets).toarray()
    # The captions stay as they are: two words of one caption in this order, a word twice.
    assert table.ids.tolist() == ids.tolist() and table.offsets.tolist() == offsets.tolist()
    assert (bag > 0).sum(axis=1).tolist() == [3, 2, 1]
    assert bag.max() == pytest.approx(np.log(4))
