"""RCL: which epochs make the soft correspondence, and what it finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cleanpairs import RCL
from cleanpairs.methods.rcl import ComplementaryLoss
from tests.methods.conftest import corpus

SMALL: dict[str, Any] = {
    "backbone": "mlp", "dim": 32, "dim_word": 16, "batch_size": 16, "eval_group_size": 32, "lr": 5e-3, "tau": 0.1,
    "epochs": 8, "dropout": 0.1, "image_drop": 0.0, "text_drop": 0.1, "device": "cpu",
}  # fmt: skip


def fitted(**changes: Any) -> np.ndarray:
    model = RCL(**{**SMALL, "epochs": 3, "lr_update": 3, **changes}).fit(corpus(60, 10))
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


@pytest.mark.parametrize("kind", ["log", "tan", "gce", "exp"])
def test_every_kind_of_the_objective_can_be_asked_for(kind: str) -> None:
    RCL(kind=kind).validate()


def test_the_papers_settings() -> None:
    paper = RCL.paper(kind="tan")
    assert (paper.backbone, paper.epochs, paper.lr_update, paper.tau) == ("sgr", 30, 15, 0.05)
    assert (paper.label_epochs, paper.exclude_duplicates, paper.kind) == (None, False, "tan")
