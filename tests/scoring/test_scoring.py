"""Group probability and the bank against a direct computation; embeddings do not depend on the batch."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs.encoders.backbone import VSEInf
from cleanpairs.encoders.tokenizer import Tokenizer
from cleanpairs.ops.matching import duplicate_mask, matching_probability
from cleanpairs.scoring import Bank, Embeddings, Encoded, embed_images, embed_texts, in_groups, trusted_rows
from tests.helpers import unit

TAU = 0.2


def rows(rng: np.random.Generator, n: int) -> Embeddings:
    return Embeddings(unit(rng.normal(size=(n, 6))))


def group_probability(images: Embeddings, texts: Embeddings, groups: Any = None, **settings: Any) -> np.ndarray:
    encoded, at = Encoded(images, texts), np.arange(len(images.vectors))
    return in_groups(lambda S, m: matching_probability(S, TAU, m), encoded, at, groups, **settings)


def test_one_group_is_the_matching_probability() -> None:
    rng = np.random.default_rng(0)
    images, texts = rows(rng, 12), rows(rng, 12)
    groups = rng.integers(0, 8, 12), rng.integers(0, 9, 12)
    S = torch.from_numpy(images.vectors @ texts.vectors.T)
    for excluded, mask in ((None, None), (groups, duplicate_mask(*map(torch.from_numpy, groups)))):
        got = group_probability(images, texts, excluded, group_size=12, rounds=1)
        want = matching_probability(S, TAU, mask)
        np.testing.assert_allclose(got, want.numpy(), rtol=1e-5)


def test_rounds_are_averaged_over_groups_that_cover_all() -> None:
    rng = np.random.default_rng(1)
    images, texts = rows(rng, 23), rows(rng, 23)
    got = group_probability(images, texts, group_size=6, rounds=3, seed=5)
    want, order_of = np.zeros(23), np.random.default_rng(5)
    for _ in range(3):
        for at in np.array_split(order_of.permutation(23), round(23 / 6)):
            S = torch.from_numpy(images.vectors[at] @ texts.vectors[at].T)
            want[at] += matching_probability(S, TAU).numpy() / 3
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_few_pairs(n: int) -> None:
    rng = np.random.default_rng(2)
    p = group_probability(rows(rng, n), rows(rng, n), (np.arange(n), np.arange(n)))
    assert p.shape == (n,) and p.dtype == np.float32
    assert ((p >= 0) & (p <= 1)).all()
    assert n != 1 or p[0] == 1.0  # nothing to be told from


def a_bank(rng: np.random.Generator, n: int = 20, group_size: int = 5) -> Bank:
    ids = np.arange(n)
    return Bank(rows(rng, n), rows(rng, n), 100 + ids, 200 + ids, TAU, group_size)


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
    """Strangers, a pair of the bank itself, its image with another text, its text with another image, wrong pairs."""
    zi, zt = (rows(rng, 9).vectors for _ in range(2))
    gi, gt = np.arange(9), np.arange(50, 59)
    for at, known in ((1, 3), (2, 3), (4, 0), (5, 6)):
        zi[at], gi[at] = bank.images.vectors[known], bank.image_group[known]
    for at, known in ((1, 3), (3, 3), (4, 17), (5, 7)):
        zt[at], gt[at] = bank.texts.vectors[known], bank.text_group[known]
    return zi, zt, gi, gt


def test_bank_is_the_direct_computation_of_pairs_and_of_edges() -> None:
    rng = np.random.default_rng(4)
    bank = a_bank(rng, 22, 5)  # the last group is a small one
    zi, zt, gi, gt = probes(bank, rng)
    given = Embeddings(zi), Embeddings(zt), gi, gt
    edges = rng.integers(0, 9, (2, 60))
    own = bank(*given)
    assert own.dtype == np.float32
    for got, pairs in ((own, zip(range(9), range(9), strict=True)), (bank(*given, *edges), edges.T)):
        np.testing.assert_allclose(got, [direct(bank, zi[a], zt[b], gi[a], gt[b]) for a, b in pairs], rtol=2e-5)


def test_an_empty_bank_no_pairs_and_extreme_similarities() -> None:
    rng = np.random.default_rng(7)
    none, no_ids = rows(rng, 0), np.empty(0, np.int64)
    empty = Bank(none, none, no_ids, no_ids, TAU, 5)
    assert empty(rows(rng, 3), rows(rng, 3), np.arange(3), np.arange(3)).tolist() == [1.0] * 3
    assert a_bank(rng)(none, none, no_ids, no_ids).shape == (0,)
    eye, ids = np.eye(3, dtype=np.float32), np.arange(3)
    bank = Bank(Embeddings(eye), Embeddings(-eye), ids, ids, 1e-3, 2)
    z = np.array([[1, 0, 0], [-1, 0, 0]], np.float32)
    p = bank(Embeddings(z), Embeddings(z[::-1].copy()), np.array([7, 8]), np.array([7, 8]))
    assert np.isfinite(p).all() and ((p >= 0) & (p <= 1)).all()


def test_choose_takes_trusted_pairs_once_each() -> None:
    rng = np.random.default_rng(8)
    gi, gt, y = rng.integers(0, 60, 300), rng.integers(0, 80, 300), rng.random(300)
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
    np.testing.assert_allclose(np.linalg.norm([z_image, z_text], axis=2), 1, rtol=1e-5)
    for batch_size in (1, 5):
        np.testing.assert_allclose(embed_images(model, images, batch_size=batch_size).vectors, z_image, atol=1e-6)
        np.testing.assert_allclose(embed_texts(model, tokens, batch_size=batch_size).vectors, z_text, atol=1e-6)
    assert embed_texts(model, tokenizer.encode([])).vectors.shape == (0, 16)
    assert embed_images(model, images[:0]).vectors.shape == (0, 16)
