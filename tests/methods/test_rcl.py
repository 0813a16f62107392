"""RCL: which epochs make the soft correspondence, and what it finds."""

from __future__ import annotations

from typing import Any

import numpy as np

from cleanpairs import RCL
from cleanpairs.methods.rcl import ComplementaryLoss
from tests.methods.conftest import SMALL, corpus


def fitted(**changes: Any) -> np.ndarray:
    model = RCL(**{**SMALL, "dropout": 0.1, "epochs": 3, "lr_update": 3, **changes}).fit(corpus(60, 10))
    return np.asarray(model.correspondence_)


def test_the_correspondence_is_the_mean_over_start_to_horizon() -> None:
    """The labels are not looked at, so that all these trainings are one."""
    p = [fitted(start=k, label_epochs=k) for k in (1, 2, 3)]
    assert not np.allclose(p[0], p[2])
    np.testing.assert_allclose(fitted(start=1, label_epochs=3), np.mean(p, axis=0), rtol=1e-5)
    np.testing.assert_allclose(fitted(start=2, label_epochs=None), np.mean(p[1:], axis=0), rtol=1e-5)
    np.testing.assert_array_equal(fitted(start=1, label_epochs=1), p[0])
    np.testing.assert_array_equal(fitted(start=9, label_epochs=None), p[2])  # a training that ends before the start


def test_the_objective_is_the_one_asked_for() -> None:
    procedure = RCL(tau=0.2, kind="gce")._procedure(range(5))  # type: ignore[arg-type]
    assert procedure.objective == ComplementaryLoss(tau=0.2, kind="gce")
    assert procedure.labels().tolist() == [1.0] * 5
