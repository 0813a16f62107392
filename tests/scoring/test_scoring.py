"""Group probability and the bank against a direct computation; embeddings do not depend on the batch."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs.encoders.backbone import VSEInf
from cleanpairs.encoders.tokenizer import Tokenizer
from cleanpairs.ops.matching import duplicate_mask, matching_probability
from cleanpairs.scoring import Bank, Encoded, embed_images, embed_texts, in_groups, trusted_rows
from cleanpairs.scoring import Embeddings as Rows
from tests.helpers import unit

TAU = 0.2


def rows(rng: np.random.Generator, n: int) -> np.ndarray:
    return unit(rng.normal(size=(n, 6)))


def sizes(n: int, groups: int) -> np.ndarray:
    """n content hashes out of a few values."""
    return np.random.default_rng(n + groups).integers(0, groups, n)


def group_probability(zi: np.ndarray, zt: np.ndarray, gi: np.ndarray, gt: np.ndarray, **settings: Any) -> np.ndarray:
    encoded, tau = Encoded(Rows(zi), Rows(zt)), settings.pop("tau")
    groups = (gi, gt) if settings.pop("exclude", True) else None
    return in_groups(lambda S, m: matching_probability(S, tau, m), encoded, np.arange(len(zi)), groups, **settings)


@pytest.mark.parametrize("exclude", [False, True])
def test_one_group_is_the_matching_probability(exclude: bool) -> None:
    rng = np.random.default_rng(0)
    zi, zt, gi, gt = rows(rng, 12), rows(rng, 12), sizes(12, 8), sizes(12, 9)
    got = group_probability(zi, zt, gi, gt, tau=TAU, group_size=12, rounds=1, exclude=exclude)
    mask = duplicate_mask(torch.from_numpy(gi), torch.from_numpy(gt)) if exclude else None
    assert not exclude or mask is not None
    want = matching_probability(torch.from_numpy(zi) @ torch.from_numpy(zt).T, TAU, mask)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-5)


def test_rounds_are_averaged_over_groups_that_cover_all() -> None:
    rng = np.random.default_rng(1)
    zi, zt = rows(rng, 23), rows(rng, 23)
    ids = np.arange(23)
    got = group_probability(zi, zt, ids, ids, tau=TAU, group_size=6, rounds=3, seed=5)
    want = np.zeros(23)
    order_of = np.random.default_rng(5)
    for _ in range(3):
        for at in np.array_split(order_of.permutation(23), round(23 / 6)):
            want[at] += matching_probability(torch.from_numpy(zi[at]) @ torch.from_numpy(zt[at]).T, TAU).numpy() / 3
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few_pairs(n: int) -> None:
    rng = np.random.default_rng(2)
    ids = np.arange(n)
    p = group_probability(rows(rng, n), rows(rng, n), ids, ids, tau=TAU)
    assert p.shape == (n,) and p.dtype == np.float32
    assert ((p >= 0) & (p <= 1)).all()
    if n == 1:
        assert p[0] == 1.0  # nothing to be told from


def a_bank(rng: np.random.Generator, n: int = 20, group_size: int = 5) -> Bank:
    ids = np.arange(n)
    return Bank(Rows(rows(rng, n)), Rows(rows(rng, n)), 100 + ids, 200 + ids, TAU, group_size)


def direct(bank: Bank, zi: np.ndarray, zt: np.ndarray, gi: int, gt: int) -> float:
    """The pair put into each group of the bank in turn, its duplicates taken out; in float64, term by term."""
    own = math.exp(float(zi.astype(np.float64) @ zt) / TAU)
    values = []
    for start in range(0, len(bank), bank.group_size):
        row = column = own
        for j in range(start, min(start + bank.group_size, len(bank))):
            if bank.image_group[j] == gi or bank.text_group[j] == gt:
                continue
            row += math.exp(float(zi.astype(np.float64) @ bank.texts.vectors[j]) / TAU)
            column += math.exp(float(bank.images.vectors[j].astype(np.float64) @ zt) / TAU)
        values.append((own / row + own / column) / 2)
    return float(np.mean(values))


def probes(bank: Bank, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Strangers, a pair of the bank itself, its image with another text, its text with another image, a wrong pair."""
    zi, zt = rows(rng, 9), rows(rng, 9)
    gi, gt = np.arange(9), np.arange(50, 59)
    zi[1], zt[1], gi[1], gt[1] = bank.images.vectors[3], bank.texts.vectors[3], bank.image_group[3], bank.text_group[3]
    zi[2], gi[2] = bank.images.vectors[3], bank.image_group[3]
    zt[3], gt[3] = bank.texts.vectors[3], bank.text_group[3]
    zi[4], zt[4], gi[4], gt[4] = (
        bank.images.vectors[0], bank.texts.vectors[17], bank.image_group[0], bank.text_group[17],
    )  # fmt: skip
    zi[5], zt[5], gi[5], gt[5] = bank.images.vectors[6], bank.texts.vectors[7], bank.image_group[6], bank.text_group[7]
    return zi, zt, gi, gt


def test_bank_is_the_direct_computation() -> None:
    rng = np.random.default_rng(4)
    bank = a_bank(rng, 22, 5)  # the last group is a small one
    zi, zt, gi, gt = probes(bank, rng)
    got = bank(Rows(zi), Rows(zt), gi, gt)
    want = [direct(bank, zi[k], zt[k], gi[k], gt[k]) for k in range(len(zi))]
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=2e-5)


def test_edges_are_the_pairs_scored_one_by_one() -> None:
    rng = np.random.default_rng(5)
    bank = a_bank(rng)
    zi, zt, gi, gt = probes(bank, rng)
    image_of, text_of = rng.integers(0, 9, 60), rng.integers(0, 9, 60)
    got = bank(Rows(zi), Rows(zt), gi, gt, image_of, text_of)
    want = [direct(bank, zi[a], zt[b], gi[a], gt[b]) for a, b in zip(image_of, text_of, strict=True)]
    np.testing.assert_allclose(got, want, rtol=2e-5)


def test_an_empty_bank_and_no_pairs() -> None:
    rng = np.random.default_rng(7)
    none, ids = Rows(rows(rng, 0)), np.empty(0, np.int64)
    empty = Bank(none, none, ids, ids, TAU, 5)
    assert empty(Rows(rows(rng, 3)), Rows(rows(rng, 3)), np.arange(3), np.arange(3)).tolist() == [1.0] * 3
    assert a_bank(rng)(none, none, ids, ids).shape == (0,)


def test_extreme_similarities_stay_finite() -> None:
    eye, ids = np.eye(3, dtype=np.float32), np.arange(3)
    bank = Bank(Rows(eye), Rows(-eye), ids, ids, 1e-3, 2)
    z = np.array([[1, 0, 0], [-1, 0, 0]], np.float32)
    p = bank(Rows(z), Rows(z[::-1].copy()), np.array([7, 8]), np.array([7, 8]))
    assert np.isfinite(p).all() and ((p >= 0) & (p <= 1)).all()


def test_choose_takes_trusted_pairs_once_each() -> None:
    rng = np.random.default_rng(8)
    n = 300
    gi, gt = rng.integers(0, 60, n), rng.integers(0, 80, n)
    y = rng.random(n)
    at = trusted_rows(gi, gt, y, group_size=7, groups=4)
    assert len(at) == len(set(gi[at])) == len(set(gt[at])) == 28
    assert (y[at] >= np.median(y)).all()
    assert len(trusted_rows(*[np.arange(1)] * 2, np.ones(1), group_size=5)) == 1


def test_embeddings_are_unit_vectors_in_the_order_given_whatever_the_batch() -> None:
    torch.manual_seed(0)
    captions = ["red cat", "a", "big blue dog on the mat", "", "cat", "red red red dog"] * 3
    tokenizer = Tokenizer.fit(captions)
    model = VSEInf(len(tokenizer), 5, dim=16, dim_word=8)
    images = np.random.default_rng(0).normal(size=(18, 4, 5)).astype(np.float32)
    tokens = tokenizer.encode(captions)
    z_image, z_text = embed_images(model, images).vectors, embed_texts(model, tokens).vectors
    np.testing.assert_allclose(np.linalg.norm(z_image, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(z_text, axis=1), 1, rtol=1e-5)
    for batch_size in (1, 5):
        np.testing.assert_allclose(embed_images(model, images, batch_size=batch_size).vectors, z_image, atol=1e-6)
        np.testing.assert_allclose(embed_texts(model, tokens, batch_size=batch_size).vectors, z_text, atol=1e-6)
    assert embed_texts(model, tokenizer.encode([])).vectors.shape == (0, 16)
    assert embed_images(model, images[:0]).vectors.shape == (0, 16)
