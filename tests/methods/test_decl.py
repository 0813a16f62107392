"""DECL: the expected probability by hand, weights by the split, and what it finds."""

import math

import numpy as np
import pytest
import torch

from cleanpairs import DECL
from cleanpairs.core.errors import ConfigError
from cleanpairs.methods.decl import EvidentialLoss, expected_probability
from cleanpairs.methods.splitting import scaled
from tests.methods.conftest import begun


@pytest.mark.parametrize("excluding", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7])
def test_expected_probability_by_hand(n: int, excluding: bool) -> None:
    g = torch.Generator().manual_seed(n)
    S = torch.rand(n, n, generator=g, dtype=torch.float64) * 2 - 1
    out = (torch.rand(n, n, generator=g) < 0.4).fill_diagonal_(False)
    got = expected_probability(S, 0.2, out if excluding else None)
    alpha = [[math.exp(math.tanh(s) / 0.2) + 1 for s in row] for row in S.tolist()]
    for i in range(n):
        row = sum(alpha[i][j] for j in range(n) if not (excluding and out[i, j]))
        column = sum(alpha[j][i] for j in range(n) if not (excluding and out[j, i]))
        assert float(got[i]) == pytest.approx((alpha[i][i] / row + alpha[i][i] / column) / 2)
    assert n > 1 or got.tolist() == [1.0]


def test_what_is_split_is_what_is_not_expected() -> None:
    procedure, view = begun(DECL, 30, evidence_tau=0.2)
    encoded = view.encoded(0)
    S = torch.from_numpy(encoded.images.vectors @ encoded.texts.vectors.T)
    surprise = 1 - expected_probability(S, 0.2).numpy()
    np.testing.assert_allclose(procedure.losses(view, 0), scaled(surprise), atol=1e-3)


def test_every_pair_once_an_epoch_weighed_by_its_posterior() -> None:
    procedure, view = begun(DECL, 30, evidence_tau=0.2, kl_weight=0.01)
    procedure.w[0] = np.random.default_rng(1).random(30)
    procedure.split_known = True
    batches = procedure.batches(view, 0)
    assert sorted(np.concatenate([b[0] for b in batches]).tolist()) == list(range(30))
    f = view.forward(0, np.arange(9), seed=1)
    each = EvidentialLoss(tau=0.2, kl_weight=0.01)(f.similarity(), torch.ones(9))
    w = torch.from_numpy(procedure.w[0][f.rows])
    torch.testing.assert_close(procedure.loss(view, 0, (np.arange(9),), 1), (w * each).sum() / w.sum())
    procedure.w[0] = 0
    assert float(procedure.loss(view, 0, (np.arange(9),), 1).detach()) == 0


@pytest.mark.parametrize("tau", [0.0, -0.1, 0.012, float("nan")])
def test_a_temperature_that_leaves_float32_is_refused(tau: float) -> None:
    with pytest.raises(ConfigError, match=r"evidence_tau of decl must be .*0\.0125, found"):
        DECL(evidence_tau=tau).validate()
