"""REPAIR: labels by rank correlation and half-replaced pairs, against brute force."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from cleanpairs import REPAIR
from cleanpairs.methods.repair import correspondence_of_ranks, ends_of_ranks
from cleanpairs.ops.matching import places
from cleanpairs.scoring import Embeddings
from cleanpairs.trainer import EpochContext
from tests.helpers import unit
from tests.methods.conftest import begun, corpus, parts, procedure_of


def rows(n: int, seed: int) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(n, 8)))


def vectors(n: int, seed: int) -> Tensor:
    return torch.from_numpy(rows(n, seed))


def spearman(image: np.ndarray, text: np.ndarray, images: np.ndarray, texts: np.ndarray) -> float:
    """Of one pair's distances to the memory's images and texts."""
    d = [np.linalg.norm(bank.astype(np.float64) - z, axis=1) for z, bank in ((image, images), (text, texts))]
    return float(stats.spearmanr(*d).statistic)


SIZES = {"memory": 32, "neighbours": 5}


# -- labels by ranks ------------------------------------------------------------------------------------------------


def test_correspondence_and_ends_of_ranks_by_hand() -> None:
    got = correspondence_of_ranks(np.array([-1.0, 0.0, 0.1, 0.2, 0.35, 0.5, 0.50001, 1.0]), 0.2, 0.5)
    assert got.dtype == np.float32
    assert got.tolist() == pytest.approx([0, 0, 0, 0, 0.5, 1, 1, 1], abs=1e-6)
    assert correspondence_of_ranks(np.array([0.3, 0.4]), 0.4, 0.4).tolist() == [0, 0]  # ends that meet
    assert correspondence_of_ranks(np.zeros(0), 0.0, 1.0).shape == (0,)
    c = np.random.default_rng(0).permutation(np.linspace(0.1, 0.9, 300))
    assert ends_of_ranks(c) == pytest.approx((np.sort(c)[:3].mean(), np.sort(c)[-30:].mean()))
    assert ends_of_ranks(c - 0.5)[0] == 0  # not below 0
    assert ends_of_ranks(np.array([0.3])) == pytest.approx((0.3, 0.3))
    assert ends_of_ranks(np.array([0.7, 0.3])) == pytest.approx((0.3, 0.7))


def test_a_pairs_own_entry_does_not_take_part() -> None:
    """Its distance to itself is 0 both ways, which would speak for any pair."""
    procedure = procedure_of(REPAIR, 20, **SIZES)
    images, texts = rows(20, 1), rows(20, 2)
    held = np.array([4, 9, 1, 15, 7, 12, 3, 18])
    memory = procedure.memories[0]
    pairs = torch.from_numpy(images), torch.from_numpy(texts)
    memory.push(pairs[0][held], pairs[1][held], held)
    got = procedure.correlation(memory, *pairs, np.arange(20))
    for i in range(20):
        others = held[held != i]
        assert got[i] == pytest.approx(spearman(images[i], texts[i], images[others], texts[others]), abs=1e-5)
    asked = procedure.correlation(memory, *pairs, None)
    assert asked[4] == pytest.approx(spearman(images[4], texts[4], images[held], texts[held]), abs=1e-5)
    assert asked[4] > got[4]


@pytest.mark.parametrize("held", [0, 1, 2, 6])
def test_a_memory_too_small_or_too_alike_to_rank_trusts_all(held: int) -> None:
    procedure, alike = procedure_of(REPAIR, 6, **SIZES), vectors(1, 1).repeat(6, 1)
    procedure.memories[0].push(alike[:held], vectors(held, 2), np.arange(held))
    assert procedure.correlation(procedure.memories[0], alike, vectors(6, 4), np.arange(6)).tolist() == [1.0] * 6


def test_labels_of_one_network_train_the_other() -> None:
    n = 30
    procedure, view = begun(REPAIR, n, **SIZES)
    procedure.w = np.random.default_rng(1).random((2, n)).astype(np.float32)
    value = procedure.judge(view)
    labels = []
    for k, memory in enumerate(procedure.memories):
        assert sorted(memory.entries().rows.tolist()) == np.flatnonzero(procedure.w[k] > 0.5).tolist()  # the clean ones
        images, texts = view.encoded(k).images.vectors, view.encoded(k).texts.vectors
        others = [np.setdiff1d(memory.entries().rows, [i]) for i in range(n)]
        c = np.array([spearman(images[i], texts[i], images[at], texts[at]) for i, at in enumerate(others)])
        labels.append(correspondence_of_ranks(c, *ends_of_ranks(c)))
    np.testing.assert_allclose(procedure.y[0], labels[1], atol=1e-3)
    np.testing.assert_allclose(procedure.y[1], labels[0], atol=1e-3)
    np.testing.assert_allclose(value, (np.mean(labels, axis=0) + procedure.w.mean(axis=0)) / 2, atol=1e-3)


# -- half-replacing -------------------------------------------------------------------------------------------------


def replaced_by_hand(procedure: Any, view: EpochContext, f: Any, *, image: bool) -> Tensor:
    """Eq. 10 to 13, pair by pair."""
    bank = procedure.memories[0].entries()
    images, texts = bank.images.numpy(), bank.texts.numpy()
    same, other = (texts, images) if image else (images, texts)
    kept = (f.texts if image else f.images).detach().numpy()
    nearest = [sorted(range(len(same)), key=lambda j: float(np.linalg.norm(same[j] - z))) for z in kept]
    within = procedure.method.neighbours
    chosen = [max(near[:within], key=lambda j: float(other[j] @ z)) for near, z in zip(nearest, kept, strict=True)]
    given = other[chosen]
    pairs = zip(*((given, kept) if image else (kept, given)), strict=True)
    y = [spearman(*pair, images, texts) for pair in pairs]
    labels = torch.from_numpy(correspondence_of_ranks(np.array(y), *procedure.ends[0]))
    new = torch.from_numpy(given)
    S = new @ f.texts.T if image else f.images @ new.T
    rows = bank.rows[chosen]
    excluded = torch.tensor([[a == b for b in rows] for a in rows]).fill_diagonal_(False)
    return procedure.pair_objective(S, labels, excluded).mean()


def with_memory(n: int, **settings: Any) -> tuple[Any, EpochContext]:
    procedure, view = begun(REPAIR, n, **{**SIZES, **settings})
    procedure.memories[0].push(vectors(20, 1), vectors(20, 2), np.arange(20))
    procedure.ends[0] = (0.0, 0.4)
    procedure.split_known = True
    return procedure, view


@pytest.mark.parametrize("image", [True, False])
@pytest.mark.parametrize("neighbours", [1, 5, 20, 50])
def test_the_replacement_is_the_best_of_the_nearest(neighbours: int, image: bool) -> None:
    procedure, view = with_memory(40, neighbours=neighbours)
    f = view.forward(0, np.arange(24, 38), seed=1)
    got, want = procedure.replaced(view, 0, f, image=image), replaced_by_hand(procedure, view, f, image=image)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    parameters, how = list(view.networks[0].model.parameters()), {"materialize_grads": True, "retain_graph": True}
    slopes = [torch.autograd.grad(loss, parameters, **how) for loss in (got, want)]
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-5)


def test_only_pairs_below_eta_in_both_networks_are_replaced_and_clean_ones_are_remembered() -> None:
    procedure, view = with_memory(40, eta=0.3, noisy_weight=0.2, memory=24)
    procedure.y = np.random.default_rng(1).random((2, 40)).astype(np.float32)
    procedure.w[:, 30:] = [[0.1] * 10, [0.1, 0.2, 0.4, 0.29, 0.9, 0.31, 0.0, 0.5, 0.2, 0.6]]
    clean, noisy = parts(view, np.arange(20, 29), np.arange(30, 40))
    mismatched = noisy.select(np.isin(noisy.rows, [30, 31, 33, 36, 38]))
    assert len(mismatched.rows) == 5
    expected = procedure.pair_loss(clean, clean.of(procedure.y[0]))
    for image in (True, False):
        expected = expected + 0.2 * replaced_by_hand(procedure, view, mismatched, image=image)
    torch.testing.assert_close(procedure.split_loss(view, 0, clean, noisy), expected, rtol=1e-4, atol=1e-5)
    held = procedure.memories[0].entries()
    assert sorted(held.rows.tolist()) == list(range(5, 29))  # the oldest five have made room
    at = places(held.rows, clean.rows)
    np.testing.assert_allclose(held.images[at], clean.images.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(held.texts[at], clean.texts.detach().numpy(), atol=1e-6)


def test_half_replacing_begins_behind_the_epoch_that_was_asked_for_and_a_single_pair_has_no_negative() -> None:
    procedure, view = with_memory(40, replace_after=1)
    clean, noisy = parts(view, np.arange(8), np.arange(30, 36))
    alone = procedure.pair_loss(clean, clean.of(procedure.y[0]))
    for mismatched, epoch in ((0, 2), (1, 2), (10, 1)):
        procedure.w[:, 30 : 30 + mismatched], view.epoch = 0, epoch
        torch.testing.assert_close(procedure.split_loss(view, 0, clean, noisy), alone)
    view.epoch = 2
    assert procedure.split_loss(view, 0, clean, noisy).item() > alone.item()


# -- use ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [4, 14])  # fewer and more than the neighbours
@pytest.mark.parametrize("is_image", [True, False])
def test_rematching_offers_the_other_half_of_what_is_near(is_image: bool, k: int) -> None:
    pairs, images, texts = corpus(30, 0), rows(30, 1), rows(30, 2)
    search = REPAIR(neighbours=6)._search(pairs, Embeddings(images), Embeddings(texts))
    queries, donors = np.array([3, 8, 21]), np.arange(9, 30)
    found = search(is_image, True, queries, donors, k)
    kept, given = (texts, images) if is_image else (images, texts)
    for q, row in enumerate(queries):
        near = sorted(range(len(donors)), key=lambda j: -float(kept[donors[j]] @ kept[row]))[:6]
        best = sorted(near, key=lambda j: -float(given[donors[j]] @ kept[row]))[:k]
        assert found.indices[q].tolist() == best
        np.testing.assert_allclose(found.scores[q], [given[donors[j]] @ kept[row] for j in best], rtol=1e-5)
    assert search(is_image, False, queries, donors, k) is None
