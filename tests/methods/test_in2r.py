"""IN2R: the refiner and both losses against numpy, what is remembered, and going on after a cut."""

from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs import IN2R
from cleanpairs.methods.in2r import GraphRefiner
from cleanpairs.objectives import InfoNCEWithRCE
from tests.helpers import unit
from tests.methods.conftest import begun


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def nce(M: np.ndarray, tau: float) -> np.ndarray:
    """Half the sum of cross entropies and reverse ones, both ways (n,)."""
    total, one_hot = np.zeros(len(M)), np.clip(np.eye(len(M)), 1e-7, 1 - 1e-7)
    for logits in (M / tau, M.T / tau):
        R = softmax(logits)
        total += -np.log(R.diagonal()) - (R * np.log(one_hot)).sum(axis=1)
    return total / 2


def test_the_refiner_against_numpy() -> None:
    torch.manual_seed(0)
    refiner = GraphRefiner(8).double().eval()
    assert refiner.attention.num_heads == 4
    X = np.random.default_rng(1).normal(size=(3, 5, 8))
    a = refiner.attention
    W, b = a.in_proj_weight.detach().numpy(), a.in_proj_bias.detach().numpy()
    expected = []
    for x in X:
        q, k, v = np.split(x @ W.T + b, 3, axis=1)
        heads = []
        for h in range(4):
            at = slice(2 * h, 2 * h + 2)
            heads.append(softmax(q[:, at] @ k[:, at].T / np.sqrt(2)) @ v[:, at])
        mixed = np.concatenate(heads, axis=1) @ a.out_proj.weight.detach().numpy().T + a.out_proj.bias.detach().numpy()
        z = x + mixed
        z = (z - z.mean(axis=1, keepdims=True)) / np.sqrt(z.var(axis=1, keepdims=True) + 1e-5)
        expected.append(unit(z.mean(axis=0)))
    np.testing.assert_allclose(refiner(torch.from_numpy(X)).detach(), expected, rtol=1e-6)
    assert GraphRefiner(6).attention.num_heads == 2


def after_the_split(n: int = 30, **settings: Any) -> tuple[Any, Any]:
    procedure, view = begun(IN2R, n, **settings)
    procedure.w = np.random.default_rng(1).random((2, n)).astype(np.float32)
    procedure.split_known = True
    return procedure, view


def test_the_noisy_loss_against_numpy() -> None:
    procedure, view = after_the_split(neighbours=3, tau=0.2, noisy_weight=0.7, within_weight=0.0)
    encoded, network = view.encoded(0), view.networks[0]
    images, texts = (np.array(x.vectors) for x in (encoded.images, encoded.texts))
    remembered = np.arange(10, 20)
    procedure.memories[0].push(torch.from_numpy(images[remembered]), torch.from_numpy(texts[remembered]), remembered)
    clean, noisy = np.arange(20, 28), np.arange(6)
    procedure.w[:, clean] = 0.51  # below the clean pairs' mean: the memory stays as it is
    network.head.eval()
    got = procedure.loss(view, 0, (clean, clean, noisy), 4).item()
    assert procedure.memories[0].entries().rows.tolist() == remembered.tolist()
    expected = nce(images[clean] @ texts[clean].T, 0.2).mean()
    for z, same, partners, refiner in (
        (images, images, texts, network.head[0]),
        (texts, texts, images, network.head[1]),
    ):
        targets = []
        for i in noisy:
            near = sorted(remembered, key=lambda j: -z[i] @ same[j])[:3]
            targets.append(refiner(torch.from_numpy(partners[near])[None])[0].detach().numpy())
        expected += 0.7 * nce(z[noisy] @ np.array(targets).T, 0.2).mean()
    assert got == pytest.approx(expected, rel=1e-4)


def test_gradients_reach_the_towers_and_both_refiners() -> None:
    procedure, view = after_the_split(neighbours=3)
    procedure.remember(0, view.forward(0, np.arange(30), seed=1))
    assert len(procedure.memories[0]) >= 3
    procedure.loss(view, 0, (np.arange(8), np.arange(8), np.arange(8, 16)), 4).backward()
    for name, p in view.networks[0].named_parameters():
        if "in_proj" in name or "linear.weight" in name:
            assert p.grad is not None and p.grad.abs().max() > 0, name


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_clean_loss_pairs_both_passes_row_by_row(reduction: str) -> None:
    """Words are dropped anew in the second pass, which packs the pairs in another order."""
    procedure, view = after_the_split(noisy_weight=0.0, clean_loss="triplet", within_weight=2.0, reduction=reduction)
    view.networks[0].model.text_drop = 0.5
    rows = np.arange(12)
    f = view.forward(0, rows, rows, np.arange(12, 16), seed=3)
    first, again = ({int(r): k for k, r in enumerate(f.rows) if f.source[k] == s} for s in range(2))
    assert list(first) != list(again)
    z, t = f.images.detach().numpy(), f.texts.detach().numpy()
    a, b = [first[int(r)] for r in rows], [again[int(r)] for r in rows]

    def hardest(S: np.ndarray, margin: float) -> np.ndarray:
        hinge = margin - S.diagonal()[:, None] + np.stack([S, S.T])
        hinge[:, np.arange(12), np.arange(12)] = 0
        return np.asarray(np.maximum(hinge, 0).max(axis=2).sum(axis=0))

    expected = hardest(z[a] @ t[a].T, 0.2) + 2 * (hardest(z[a] @ z[b].T, 0.3) + hardest(t[a] @ t[b].T, 0.3))
    got = procedure.loss(view, 0, (rows, rows, np.arange(12, 16)), 3).item()
    assert got == pytest.approx(float(getattr(expected, reduction)()), rel=1e-4)


def test_what_is_remembered_is_the_surest_part_of_what_the_other_network_calls_clean() -> None:
    procedure, view = after_the_split()
    f = view.forward(0, np.arange(30), seed=4)
    procedure.remember(0, f)
    other = procedure.w[1]
    sure = np.flatnonzero(other >= other[other > 0.5].mean())
    assert 0 < len(sure) < (other > 0.5).sum()
    bank = procedure.memories[0].entries()
    assert sorted(bank.rows.tolist()) == sure.tolist() and not len(procedure.memories[1])
    torch.testing.assert_close(bank.texts, f.texts.detach()[[f.rows.tolist().index(r) for r in bank.rows.tolist()]])


def test_batches_hold_the_clean_pairs_twice() -> None:
    procedure, view = after_the_split()
    for batch in procedure.batches(view, 0):
        assert len(batch) == 3 and batch[0] is batch[1]
        assert (procedure.w[1][batch[0]] > 0.5).all() and (procedure.w[1][batch[2]] <= 0.5).all()


def test_the_warm_up_is_nce_between_and_within_the_modalities() -> None:
    procedure, view = begun(IN2R, 30, tau=0.2, within_weight=1.0)
    rows = np.arange(8)
    f = view.forward(0, rows, rows, seed=3)
    first, again = f.select(f.source == 0), f.select(f.source == 1)
    assert first.rows.tolist() == again.rows.tolist()  # nothing is dropped
    z, t = first.images.detach().numpy(), first.texts.detach().numpy()
    expected = nce(z @ t.T, 0.2) + nce(z @ z.T, 0.2) + nce(t @ t.T, 0.2)
    assert procedure.loss(view, 0, (rows, rows), 3).item() == pytest.approx(expected.mean(), rel=1e-4)
    ones = torch.ones(8)
    np.testing.assert_allclose(InfoNCEWithRCE(tau=0.2)(torch.from_numpy(z @ t.T), ones), nce(z @ t.T, 0.2), rtol=1e-4)
