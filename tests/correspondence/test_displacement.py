"""Displaced rows are found where they are, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from cleanpairs.correspondence.displacement import find_displaced_rows


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


@pytest.mark.parametrize(
    ("distance", "length", "noise"),
    [(1, 30, 0.0), (3, 30, 0.2), (-2, 100, 0.0), (1, 100, 0.2), (3, 300, 0.0), (-2, 300, 0.2)],
)
def test_a_block_is_found(distance: int, length: int, noise: float) -> None:
    images, texts = corpus()
    rng = np.random.default_rng(1)
    owner = displaced(np.arange(len(images)), 200, 200 + length, distance)
    exchanged = np.flatnonzero(rng.random(len(owner)) < noise)
    owner[exchanged] = owner[rng.permutation(exchanged)]
    found = find_displaced_rows(images, texts[owner])
    place = np.argsort(owner) - np.arange(len(owner))  # how far away each image's caption stands
    inside = np.arange(200 + max(-distance, 0), 200 + length - max(distance, 0))
    inside = inside[place[inside] == distance]
    assert np.mean(found.distance[inside] == distance) >= (0.97 if length >= 100 else 0.9)
    outside = np.r_[0 : 200 - abs(distance), 200 + length + abs(distance) : len(owner)]
    assert np.mean(found.probability[outside] > 0.5) <= 0.002
    block = max(found.blocks, key=lambda b: b.last - b.first)
    assert block.distance == distance and abs(block.first - 200) <= 5
    assert np.median(found.probability[inside]) > 0.5 and not found.probability[found.distance == 0].any()


def test_exchanged_files_and_a_distance_that_grows_at_each_missing_caption_are_found() -> None:
    """Captions 100, 180, 260, 340 are missing: each image behind them has its caption one row further up."""
    images, texts = corpus()
    owner = np.r_[0:100, 400:600, 300:400, 100:300]  # rows 100 to 299 and 400 to 599
    found = find_displaced_rows(images, texts[owner])
    assert {block.distance for block in found.blocks} == {300, -300}
    assert np.mean(found.distance[100:300] == 300) > 0.97 and np.mean(found.distance[400:] == -300) > 0.97
    assert not found.distance[:95].any() and not found.distance[305:395].any()
    gone, at = [100, 180, 260, 340], np.arange(596)
    found = find_displaced_rows(images[:596], texts[np.setdiff1d(np.arange(600), gone)])
    wanted, missing = -np.searchsorted(gone, at, side="right"), np.isin(at, gone)
    assert np.mean(found.distance == wanted) > 0.98 and [b.distance for b in found.blocks] == [-1, -2, -3, -4]
    assert np.mean((found.probability > 0.5)[(wanted < 0) & ~missing]) > 0.97
    assert not (found.probability[missing] > 0.5).any()  # whose caption is nowhere


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5, 6, 7, 10, 15])
def test_nothing_is_found_where_nothing_is_displaced(seed: int) -> None:
    """Right, permuted and sorted corpora: of the last, rows beside each other are alike, and many captions are near."""
    rng = np.random.default_rng(seed)
    images, texts = corpus(spread=[0.5, 1.6, 3.0][seed % 3], seed=seed)
    owner = np.arange(len(images))
    some = np.flatnonzero(rng.random(len(owner)) < [0.0, 0.4, 0.9, 1.0][seed % 4])
    owner[some] = rng.permutation(some)
    if seed % 5 == 0:  # twelve kinds, sorted; captions exchanged within a kind
        kind = np.repeat(np.arange(12), 50)
        centres = 2 * rng.normal(size=(12, 24)).astype(np.float32)
        images, texts = images + centres[kind], texts + centres[kind]
        owner = np.concatenate([k * 50 + rng.permutation(50) if rng.random() < 0.4 else k * 50 + np.arange(50)
                                for k in range(12)])  # fmt: skip
    found = find_displaced_rows(images, texts[owner])
    assert not found.blocks and not found.distance.any()


def test_rows_that_cannot_be_compared_do_not_end_a_block_and_few_rows_say_nothing() -> None:
    images, texts = corpus()
    usable = np.ones(600, bool)
    usable[250:255] = False
    images[250:255] = 0
    found = find_displaced_rows(images, texts[displaced(np.arange(600), 200, 300, 1)], usable=usable)
    (block,) = (block for block in found.blocks if block.last - block.first > 50)
    assert str(block) == f"Rows {block.first + 1} to {block.last + 1}: each caption belongs 1 row up."
    assert block.distance == 1 and not found.probability[250:255].any()
    assert not find_displaced_rows(images[:19], texts[:19]).blocks
