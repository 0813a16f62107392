"""GSC: its loss and its labels against loops of numpy, and the order of the two networks."""

import numpy as np
import pytest
import torch

from cleanpairs import GSC
from cleanpairs.methods.gsc import geometric_loss, structure_consistency
from cleanpairs.objectives import InfoNCELoss
from cleanpairs.ops.matching import matching_probability
from cleanpairs.trainer import BatchOutput
from tests.methods.conftest import begun, probabilities_of_both


def within(f: BatchOutput) -> list[torch.Tensor]:
    """V and U (B, B) of a batch: unit vectors of its images, and of its texts, by those of the same side."""
    vectors = (f.model.vector(side).detach() for side in (f.images, f.texts))
    return [z @ z.T for z in vectors]


def case(n: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, n, 4))
    unit_a, unit_b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    return unit_a @ unit_a.T, unit_b @ unit_b.T, rng.random(n)


@pytest.mark.parametrize("pair", [None, (1, 3)])
def test_the_geometric_loss_against_a_loop(pair: tuple[int, int] | None) -> None:
    V, U, y = case()
    n = len(y)
    excluded = np.zeros((n, n), bool)
    if pair:
        excluded[pair], excluded[pair[::-1]] = True, True
    expected = []
    for i in range(n):
        G = [sum(y[k] * V[i, k] * y[k] * U[j, k] for k in range(n)) for j in range(n)]
        total = sum(np.exp(G[j]) for j in range(n) if not excluded[i, j])
        expected.append(-y[i] * np.log(np.exp(G[i]) / total))
    got = geometric_loss(
        torch.from_numpy(V), torch.from_numpy(U), torch.from_numpy(y), torch.from_numpy(excluded) if pair else None
    )
    np.testing.assert_allclose(got, expected, rtol=1e-10)


def test_the_consistency_against_a_loop() -> None:
    V, U, y = case()
    expected = []
    for v, u in zip(V * y, U * y, strict=True):
        expected.append(sum(v * u) / np.sqrt(sum(v * v) * sum(u * u)))
    np.testing.assert_allclose(structure_consistency(*(torch.from_numpy(x) for x in (V, U, y))), expected, rtol=1e-10)
    assert float(structure_consistency(*(torch.from_numpy(x) for x in (V, V, y))).min()) == pytest.approx(1)


def test_labels_are_the_lower_of_two_running_means_and_those_of_the_other_network() -> None:
    procedure, view = begun(GSC, 30, beta=0.7)
    w = np.random.default_rng(1).random((2, 30)).astype(np.float32)
    procedure.w = w
    p = probabilities_of_both(view)
    assert np.abs(p[0] - p[1]).max() > 0.01  # the networks differ
    value = procedure.judge(view)
    a, b = 0.7 * w + 0.3, 0.7 * np.stack(p) + 0.3  # both were 1
    for k in range(2):
        np.testing.assert_allclose(procedure.y[1 - k], np.minimum(a[k], b[k]), rtol=1e-4)
    np.testing.assert_allclose(value, (a + b).mean(axis=0) / 2, rtol=1e-4)
    procedure.judge(view)
    np.testing.assert_allclose(procedure.a, 0.7 * w + 0.3 * a, rtol=1e-4)
    np.testing.assert_allclose(procedure.b, 0.7 * np.stack(p) + 0.3 * b, rtol=1e-4)


def test_what_is_split_is_the_consistency_of_the_whole_group() -> None:
    procedure, view = begun(GSC, 30, networks=1)
    procedure.y = np.random.default_rng(1).random((1, 30)).astype(np.float32)
    encoded = view.encoded(0)
    V, U = (x.vectors @ x.vectors.T for x in (encoded.images, encoded.texts))
    c = structure_consistency(*(torch.from_numpy(x) for x in (V, U, procedure.y[0]))).numpy()
    np.testing.assert_allclose(procedure.losses(view, 0), (c.max() - c) / (c.max() - c.min()), atol=1e-5)


@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_the_loss_of_a_batch(gamma: float) -> None:
    procedure, view = begun(GSC, 30, gamma=gamma, tau=0.1)
    procedure.y = np.random.default_rng(1).random((2, 30)).astype(np.float32)
    f = view.forward(1, np.arange(8), seed=4)
    y = torch.from_numpy(procedure.y[1][f.rows])
    expected = InfoNCELoss(tau=0.1)(f.similarity(), y, f.excluded)
    expected = expected + gamma * geometric_loss(*within(f), y, f.excluded)
    torch.testing.assert_close(procedure.loss(view, 1, (np.arange(8),), 4), expected.mean())


def test_figures_of_the_training_batches() -> None:
    """``label_pass="batch"``: c and p are those of the batch that a pair was trained in."""
    procedure, view = begun(GSC, 30, label_pass="batch", networks=1)
    for rows in (np.arange(16), np.arange(16, 30)):
        procedure.loss(view, 0, (rows,), 4)
        f = view.forward(0, rows, seed=4)
        np.testing.assert_allclose(procedure.p[0, f.rows], matching_probability(f.similarity(), 0.07), rtol=1e-5)
        c = structure_consistency(*within(f), torch.ones(len(rows)))
        np.testing.assert_allclose(procedure.c[0, f.rows], c, rtol=1e-5)
