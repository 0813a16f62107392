"""PC2: pseudo-captions by brute force; oscillation against the epoch before."""

from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs import PC2
from cleanpairs.correspondence.mixture import GuardedSplit, guarded_split
from cleanpairs.methods.pc2 import PseudoClassifier, oscillation
from cleanpairs.objectives import TripletLoss
from cleanpairs.trainer import EpochContext
from tests.helpers import unit
from tests.methods.conftest import SMALL, begun, corpus, parts, procedure_of


def started(n: int = 40, clean: int = 24, **settings: Any) -> tuple[Any, EpochContext]:
    """The first ``clean`` pairs are clean for both networks."""
    procedure, view = begun(PC2, n, **{"classes": 6, "class_tau": 0.3, **settings})
    procedure.w[:] = np.where(np.arange(n) < clean, 0.9, 0.1)
    procedure.y = np.random.default_rng(1).random((2, n)).astype(np.float32)
    procedure.split_known = True
    return procedure, view


# -- the classifier -------------------------------------------------------------------------------------------------


def test_the_classifier_is_a_cosine_over_its_temperature() -> None:
    torch.manual_seed(0)
    head = PseudoClassifier(8, 5, 0.2)
    z = torch.nn.functional.normalize(torch.randn(3, 8), dim=1)
    head.weight.data.mul_(3.0)  # its length means nothing
    want = z @ (head.weight / head.weight.norm(dim=1, keepdim=True)).T / 0.2
    torch.testing.assert_close(head(z), want)
    assert head(z[:0]).shape == (0, 5)


@pytest.mark.parametrize(("reduction", "pseudo_weight"), [("mean", 1.0), ("mean", 0.0), ("sum", 1.0)])
def test_the_classes_loss_by_hand_is_a_mean(reduction: str, pseudo_weight: float) -> None:
    procedure, view = started(entropy_weight=7.0, reduction=reduction, pseudo_weight=pseudo_weight)
    f = view.forward(0, np.arange(9), seed=1)
    head: Any = view.networks[0].head
    p, q = head(f.images).softmax(dim=1), head(f.texts).softmax(dim=1)
    classification = torch.stack([-p[i, int(q[i].argmax())].log() for i in range(9)]).mean()
    entropy = -sum(m * m.log() for m in p.mean(dim=0))
    torch.testing.assert_close(procedure.class_loss(view, 0, f, f), pseudo_weight * classification - 7.0 * entropy)
    a, b = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    assert 10 < oscillation(a, b)[0] < 1e3 and oscillation(a, b)[1] == 0  # finite where a class is ruled out


# -- pseudo-captions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("donor_by", "weight"), [("classes", 1.0), ("classes", 0.0), ("embeddings", 0.4)])
def test_the_clean_pair_of_most_similar_prediction_or_image_lends_its_caption(donor_by: str, weight: float) -> None:
    """Margins are by the similarity; equal captions are no negatives."""
    procedure, view = started(donor_by=donor_by, noisy_weight=weight)
    clean, noisy = parts(view, np.arange(5, 15), np.arange(26, 36))
    head: Any = view.networks[0].head
    each = [head(x.images).softmax(dim=1) if donor_by == "classes" else x.images for x in (noisy, clean)]
    p_noisy, p_clean = (unit(p.detach().numpy()) for p in each)
    similar = p_noisy @ p_clean.T
    at = similar.argmax(axis=1)
    lenders, rows = clean.select(at), clean.rows[at]
    assert len(set(at.tolist())) > 2
    expected = procedure.pair_loss(clean, clean.of(procedure.y[0])) + procedure.class_loss(view, 0, clean, clean)
    S, excluded = noisy.images @ lenders.texts.T, torch.from_numpy(rows[:, None] == rows).fill_diagonal_(False)
    expected = expected + weight * TripletLoss()(S, torch.from_numpy(similar.max(axis=1)), excluded).mean()  # eq. 5, 6
    torch.testing.assert_close(procedure.split_loss(view, 0, clean, noisy), expected, rtol=1e-4, atol=1e-5)


# -- labels ---------------------------------------------------------------------------------------------------------


def test_oscillation_is_against_the_epoch_before() -> None:
    """Half of the pairs change their class, the others stay: those have w_o near 1."""
    procedure, view = started(n=80)
    rng = np.random.default_rng(0)
    w = rng.uniform(0.05, 0.95, (2, 80)).astype(np.float32)
    procedure.w = w.copy()
    before = np.eye(6, dtype=np.float32)[rng.integers(0, 6, 80)] * 0.7 + 0.05
    now = before * (1 + 0.1 * rng.random((80, 6)).astype(np.float32))
    now[:32] = np.roll(now[:32], 1, axis=1)
    now /= now.sum(axis=1, keepdims=True)
    procedure.previous, procedure.p = np.stack([before] * 2), np.stack([now] * 2)
    value = procedure.judge(view)
    o = (before * np.log(before / now)).sum(axis=1).clip(0)
    split = guarded_split(np.clip(o / np.quantile(o, 0.99), 0, 1))
    assert split.refused is None and (split.clean[32:] > 0.5).all()
    steady = np.where(split.clean >= 0.5, split.clean, 0)
    labels = np.where(w > 0.5, w + (1 - w) * steady, w)  # of clean pairs alone
    np.testing.assert_allclose(procedure.y, labels[::-1], atol=1e-3)
    np.testing.assert_allclose(value, labels.mean(axis=0), atol=1e-3)
    clean, steady_pairs = w[::-1] > 0.5, np.arange(80) >= 32
    assert (procedure.y[clean & steady_pairs] > 0.95).all() and (procedure.y[~clean & steady_pairs] <= 0.5).all()
    procedure.p = procedure.previous  # nobody moves: that tells no pair from another
    procedure.judge(view)
    np.testing.assert_array_equal(procedure.y, w[::-1])
    procedure.method.rectify = False
    np.testing.assert_array_equal(procedure.judge(view), w.mean(axis=0))  # what it leaves is the same
    assert (procedure.y == 1).all()


def test_a_pair_that_more_likely_moves_is_not_steady_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eq. 8."""
    split = GuardedSplit(np.array([0.2, 0.49, 0.5, 0.8]), None)
    monkeypatch.setattr("cleanpairs.methods.pc2.guarded_split", lambda *args: split)
    procedure = procedure_of(PC2, 4, classes=6)
    procedure.previous, procedure.w[:] = procedure.p, 0.6
    assert procedure.judge(None).tolist() == pytest.approx([0.6, 0.6, 0.8, 0.92])
    procedure.w[:] = 0.4
    assert procedure.judge(None).tolist() == pytest.approx([0.4] * 4)  # eq. 8 is of clean pairs
    procedure.clean_above = 0.3  # one threshold tau in the paper
    assert procedure.judge(None).tolist() == pytest.approx([0.4, 0.694, 0.7, 0.88])


def test_predictions_of_every_epoch_are_kept_for_the_next_one() -> None:
    procedure, view = begun(PC2, 40, warmup=3, classes=6)
    before = None
    for view.epoch in (1, 2, 3):
        procedure.end_epoch(view)
        np.testing.assert_array_equal(procedure.previous, before)
        before = procedure.p.copy()
        assert before.shape == (2, 40, 6) and not np.allclose(before, procedure.previous if view.epoch > 1 else 0)
        np.testing.assert_allclose(before.sum(axis=2), 1, rtol=1e-5)
        for network in view.networks:
            network.head.weight.data.add_(0.3 * torch.randn_like(network.head.weight))  # type: ignore
    assert procedure.split_known


# -- use ------------------------------------------------------------------------------------------------------------


def test_rematching_looks_among_pairs_of_like_classes() -> None:
    pairs = corpus(60, 10)
    model = PC2(**{**SMALL, "epochs": 2, "warmup": 1}, classes=8).fit(pairs)
    found = model._embed(pairs)
    images, texts = found.images, found.texts
    search = model._search(pairs, images, texts)
    queries, donors = np.array([3, 8]), np.arange(20, 60)
    probabilities = []
    for vectors in (images.vectors, texts.vectors):
        z = (torch.from_numpy(unit(vectors[:, k : k + 32])) for k in (0, 32))
        p = [unit(head(x).softmax(dim=1).detach().numpy()) for head, x in zip(model._heads, z, strict=True)]
        probabilities.append(np.concatenate(p, axis=1) / np.sqrt(2))
    for is_image in (True, False):
        found = search(is_image, True, queries, donors, 5)
        p = probabilities[1 if is_image else 0]
        assert found is not None and search(is_image, False, queries, donors, 5) is None
        for q, row in enumerate(queries):
            best = sorted(float(p[row] @ p[j]) for j in donors)[::-1][:5]
            np.testing.assert_allclose(found.scores[q], best, rtol=1e-4)
            np.testing.assert_allclose([p[row] @ p[donors[j]] for j in found.indices[q]], best, rtol=1e-4)


def test_losses_are_sums_over_the_pairs_where_the_paper_sums() -> None:
    """Eq. 6 and 9: with a sum, the entropy of the batch counts as often as one pair."""
    losses = {}
    for reduction in ("mean", "sum"):
        procedure, view = started(reduction=reduction, entropy_weight=0.0, pseudo_weight=0.0)
        clean, noisy = parts(view, np.arange(8), np.arange(24, 32))
        losses[reduction] = procedure.split_loss(view, 0, clean, noisy), procedure.warm_loss(view, 0, clean)
    for mean, total in zip(losses["mean"], losses["sum"], strict=True):
        torch.testing.assert_close(total, 8 * mean)
