"""Whether images and captions depend on each other: a plain double loop, and what the test must not see."""

import numpy as np
import pytest

from cleanpairs.correspondence import independence as module
from cleanpairs.correspondence.displacement import find_displaced_rows
from cleanpairs.correspondence.independence import by_image, independence_test, mean_of
from cleanpairs.estimators.spaces import displaced_between_spaces


def dependent(n: int, seed: int = 0, topics: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of both sides that share a topic, with noise of their own."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(0, topics, n)
    images = rng.normal(size=(topics, 24))[topic] + rng.normal(size=(n, 24))
    return images, rng.normal(size=(topics, 30))[topic] + rng.normal(size=(n, 30))


def exchanged(rows: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """The rows, of which about this share change places."""
    out, some = rows.copy(), np.flatnonzero(rng.random(len(rows)) < share)
    out[some] = rows[rng.permutation(some)]
    return out


def test_dependence_is_seen_and_fades_with_the_wrong_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    images, texts = dependent(600)
    found = [independence_test(images, exchanged(texts, s, np.random.default_rng(0))) for s in (0, 0.3, 0.6, 1.0)]
    assert [f.dependent for f in found] == [True, True, True, False]
    assert found[0].z > found[1].z > found[2].z > module.LEAST_Z
    assert {f.n for f in found} == {600}
    monkeypatch.setattr(module, "BLOCK", 50)
    monkeypatch.setattr(module, "BLOCKS", 3)
    some = independence_test(images, texts)  # of a large corpus, a few blocks
    assert some.n == 150 and some.dependent


def test_permuted_few_and_equal_rows_are_not_taken_for_dependent() -> None:
    z = []
    for seed in range(40):
        images, texts = dependent(120, seed)
        z.append(independence_test(images, exchanged(texts, 1.0, np.random.default_rng(seed)), seed=seed).z)
    assert np.mean(z) == pytest.approx(0, abs=0.6) and np.std(z) == pytest.approx(1, abs=0.4)
    assert np.mean(np.array(z) >= module.LEAST_Z) <= 0.05
    for n in (0, 1, 2, 3, 20):
        same, drawn, zeros = np.ones((n, 4)), np.random.default_rng(0).normal(size=(n, 4)), np.zeros((n, 4))
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


# -- Displaced rows are found where they are, and nowhere else --------------------------------------------------------


def corpus(n: int = 600, spread: float = 1.6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of n images, and of their captions: the same with noise."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(n, 24)).astype(np.float32)
    return images, images + spread * rng.normal(size=(n, 24)).astype(np.float32)


def displaced(owner: np.ndarray, first: int, last: int, distance: int) -> np.ndarray:
    """The owners (n,) of the captions, of which those of rows ``first`` to ``last - 1`` stand ``distance`` rows on."""
    owner = owner.copy()
    owner[first:last] = np.roll(owner[first:last], distance)
    return owner


@pytest.mark.parametrize("known", [600, 200])
@pytest.mark.parametrize(
    ("distance", "length", "noise"),
    [(1, 30, 0.0), (3, 30, 0.2), (1, 30, 0.4), (-2, 100, 0.0), (1, 100, 0.2), (3, 300, 0.0), (-2, 300, 0.2)],
)
def test_a_block_is_found(distance: int, length: int, noise: float, known: int) -> None:
    """By a sample of so many rows that are ``known``."""
    images, texts = corpus()
    rng = np.random.default_rng(1)
    owner = exchanged(displaced(np.arange(len(images)), 200, 200 + length, distance), noise, rng)
    some = np.sort(rng.choice(len(owner), known, replace=False))
    found = find_displaced_rows(images, texts[owner], sample=(some, images[some], texts[owner][some]))
    place = np.argsort(owner) - np.arange(len(owner))  # how far away the caption of each image stands
    inside = np.arange(200 + max(-distance, 0), 200 + length - max(distance, 0))
    inside = inside[place[inside] == distance]
    assert np.mean(found.distance[inside] == distance) >= (0.97 if length >= 100 else 0.9)
    outside = np.r_[0 : 200 - abs(distance), 200 + length + abs(distance) : len(owner)]
    assert np.mean(found.probability[outside] > 0.5) <= 0.002
    block = max(found.blocks, key=lambda b: b.last - b.first)
    assert block.distance == distance and abs(block.first - 200) <= 5
    assert np.median(found.probability[inside]) > 0.5 and not found.probability[found.distance == 0].any()


@pytest.mark.parametrize(("spread", "last", "distance"), [(0.3, 500, -2), (1.0, 300, 1)])
def test_rows_of_a_block_without_their_own_caption_get_none(spread: float, last: int, distance: int) -> None:
    """A fifth of the block. Where pairs fit very well, a caption that fits very badly is not taken for one of them."""
    images, texts = corpus(spread=spread)
    owner = exchanged(displaced(np.arange(600), 200, last, distance), 0.2, np.random.default_rng(1))
    own = np.argsort(owner) == np.arange(600) + distance
    fits = find_displaced_rows(images, texts[owner]).probability > 0.5
    assert fits[own].mean() > 0.97 and not fits[~own].any() and (~own[200:last]).sum() > 30


def test_exchanged_files_and_a_distance_that_grows_at_each_missing_caption_are_found() -> None:
    """Captions 100, 180, 260, 340 are missing: each image behind them has its caption one row further up."""
    images, texts = corpus()
    owner = np.r_[0:100, 400:600, 300:400, 100:300]  # rows 100 to 299 and 400 to 599
    found = find_displaced_rows(images, texts[owner])
    assert {block.distance for block in found.blocks} == {300, -300}
    assert str(found.blocks[0]).endswith("the caption of each image stands 300 rows down.")
    assert np.mean(found.distance[100:300] == 300) > 0.97 and np.mean(found.distance[400:] == -300) > 0.97
    assert not found.distance[:95].any() and not found.distance[305:395].any()
    owner = displaced(np.r_[592:600, 8:592, 0:8], 8, 300, 1)  # wrong captions before a block are not displaced
    assert find_displaced_rows(images, texts[owner]).blocks[0].first >= 5
    gone, at = [100, 180, 260, 340], np.arange(596)
    found = find_displaced_rows(images[:596], texts[np.setdiff1d(np.arange(600), gone)])
    wanted, missing = -np.searchsorted(gone, at, side="right"), np.isin(at, gone)
    assert np.mean(found.distance == wanted) > 0.98 and [b.distance for b in found.blocks] == [-1, -2, -3, -4]
    assert np.mean((found.probability > 0.5)[(wanted < 0) & ~missing]) > 0.97
    assert not (found.probability[missing] > 0.5).any()  # whose caption is nowhere


def test_a_block_that_is_found_tells_where_others_are() -> None:
    """At first the longest one of four is found, then three, then all."""
    images, texts = corpus(spread=2.0, seed=2)
    rows = np.split(np.arange(600), [50, 110, 170, 230, 270, 370])
    owner = exchanged(np.concatenate([*map(np.roll, rows, (0, 1, 0, 3, 0, 2, 4))]), 0.2, np.random.default_rng(1))
    found = displaced_between_spaces(images, texts[owner], np.full(600, 0.7), np.ones(600, bool), np.arange(600))
    assert [block.distance for block in found.blocks] == [1, 3, 2, 4]


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5, 6, 7, 10, 15])
def test_nothing_is_found_where_nothing_is_displaced(seed: int) -> None:
    """Right, permuted and sorted corpora: of the last, rows beside each other are alike, and many captions are near."""
    rng = np.random.default_rng(seed)
    images, texts = corpus(spread=[0.5, 1.6, 3.0][seed % 3], seed=seed)
    owner = exchanged(np.arange(len(images)), [0.0, 0.4, 0.9, 1.0][seed % 4], rng)
    if seed % 5 == 0:  # twelve kinds, sorted; captions exchanged within a kind
        kind = np.repeat(np.arange(12), 50)
        centres = 2 * rng.normal(size=(12, 24)).astype(np.float32)
        images, texts = images + centres[kind], texts + centres[kind]
        owner = np.concatenate([k * 50 + rng.permutation(50) if rng.random() < 0.4 else k * 50 + np.arange(50)
                                for k in range(12)])  # fmt: skip
    found = find_displaced_rows(images, texts[owner])
    assert not found.blocks and not found.distance.any()


@pytest.mark.parametrize(("several", "noise", "share"), [(5, 0.5, 0.3), (3, 0.8, 0.5), (5, 0.8, 1.0)])
@pytest.mark.parametrize("side", [1, -1], ids=["images of a title", "captions of an image"])
@pytest.mark.parametrize("seed", [0, 8])
def test_rows_of_one_product_count_once(several: int, noise: float, share: float, side: int, seed: int) -> None:
    """All rows of two products that are far apart fit each other by one chance."""
    rng, row = np.random.default_rng(seed), np.repeat(np.arange(600 // several), several)
    images, texts = corpus(600 // several, noise, seed)
    texts = exchanged(texts, share, rng)
    views = images[row] + 0.5 * rng.normal(size=(600, 24)).astype(np.float32)
    assert not find_displaced_rows(*(views, texts[row])[::side]).blocks
    texts = images + noise * rng.normal(size=images.shape).astype(np.float32)
    assert find_displaced_rows(*(views, texts[displaced(row, 100, 400, 3)])[::side]).blocks


@pytest.mark.parametrize(("n", "seed"), [(200, 1), (200, 2), (400, 2), (400, 3)])
def test_captions_that_are_all_exchanged_among_ten_neighbours_are_not_displaced(n: int, seed: int) -> None:
    """At each short distance a tenth of them fits."""
    images, texts = corpus(n, spread=0.7, seed=seed)
    rng = np.random.default_rng(seed)
    owner = np.concatenate([rng.permutation(rows) for rows in np.array_split(np.arange(n), n // 10)])
    assert not find_displaced_rows(images, texts[owner]).blocks


@pytest.mark.parametrize("noise", [0.05, 0.15, 0.3])
@pytest.mark.parametrize("passes", [2, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_captions_in_place_are_not_displaced_where_images_come_back(noise: float, passes: int, seed: int) -> None:
    """All images come again, in the same order, with other captions."""
    rng, n = np.random.default_rng(seed), 2000 // passes
    kinds = rng.normal(size=(20, 24))[rng.integers(20, size=n)].astype(np.float32)
    images = np.tile(corpus(n, seed=seed)[0] + kinds, (passes, 1))
    texts = images + rng.normal(size=images.shape).astype(np.float32)
    assert not find_displaced_rows(images, exchanged(texts, noise, rng)).blocks


def test_rows_that_cannot_be_compared_do_not_end_a_block_and_few_rows_say_nothing() -> None:
    images, texts = corpus()
    usable = np.ones(600, bool)
    usable[250:255] = False
    images[250:255] = 0
    found = find_displaced_rows(images, texts[displaced(np.arange(600), 200, 300, 1)], usable=usable)
    (block,) = (block for block in found.blocks if block.last - block.first > 50)
    assert str(block) == f"Rows {block.first} to {block.last}: the caption of each image stands 1 row down."
    assert block.distance == 1 and not found.probability[250:255].any()
    usable[200:300:3] = usable[201:300:3] = False
    assert find_displaced_rows(images, texts[displaced(np.arange(600), 200, 300, 3)], usable=usable).blocks
    assert not find_displaced_rows(images[:19], texts[:19]).blocks
