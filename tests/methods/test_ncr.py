"""NCR: rectified labels by hand, and what it finds."""

from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs import NCR
from cleanpairs.objectives import TripletLoss, prediction
from tests.methods.conftest import begun, parts, procedure_of, view_of


def test_labels_are_rectified_by_the_other_networks_split() -> None:
    n = 30
    procedure, view = begun(NCR, n)
    procedure.w = np.random.default_rng(1).random((2, n)).astype(np.float32)
    value = procedure.judge(view)
    r = []
    for k in (0, 1):
        encoded = view.encoded(k)
        r.append(prediction(torch.from_numpy(encoded.images.vectors @ encoded.texts.vectors.T)).tolist())
    assert len({round(v, 3) for v in r[0]}) > 10  # the networks say different things of the pairs
    for k in (0, 1):
        for i in range(n):
            w = float(procedure.w[1 - k, i])
            label = w + (1 - w) * r[k][i] if w > 0.5 else (r[0][i] + r[1][i]) / 2
            assert procedure.y[k, i] == pytest.approx(label, abs=1e-4)
    np.testing.assert_allclose(value, procedure.w.mean(axis=0) * procedure.y.mean(axis=0), rtol=1e-5)
    assert procedure.y.min() >= 0 and procedure.y.max() <= 1


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_the_loss_is_that_of_clean_pairs_and_the_weighted_one_of_noisy_pairs(weight: float) -> None:
    procedure, view = begun(NCR, 30, noisy_weight=weight, clean_loss="triplet")
    procedure.y = np.random.default_rng(1).random((2, 30)).astype(np.float32)
    clean, noisy = parts(view, np.arange(10), np.arange(20, 26), 1)
    hard = TripletLoss()

    def mean(part: Any) -> torch.Tensor:
        return hard(part.similarity(), torch.from_numpy(procedure.y[1][part.rows]), part.excluded).mean()

    torch.testing.assert_close(procedure.split_loss(view, 1, clean, noisy), mean(clean) + weight * mean(noisy))
    torch.testing.assert_close(procedure.split_loss(view, 1, clean, None), mean(clean))


def test_the_prediction_is_of_the_methods_own_margin() -> None:
    labels = []
    for margin in (0.2, 0.6):
        procedure = procedure_of(NCR, 30, margin=margin)
        procedure.w[:] = 0.3
        procedure.judge(view_of(procedure, 30))
        labels.append(procedure.y)
    assert np.abs(labels[0] - labels[1]).max() > 0.01
