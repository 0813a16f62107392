"""CRCL as an estimator: its stages, its presets, its precisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cleanpairs import CRCL
from cleanpairs.trainer import TrainingStage
from tests.helpers import corpus

SMALL = {"dim": 16, "dim_word": 8, "batch_size": 16, "refine_epochs": (2,), "epochs": 2, "freeze": 1, "device": "cpu"}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_trains_in_every_precision(precision: str) -> None:
    model = CRCL(**SMALL, precision=precision).fit(corpus(48))
    assert len(model.history_) == 4 and all(np.isfinite(line["loss"]) for line in model.history_)
    assert np.isfinite(model.score_pairs(corpus(48))).all()


def test_pieces_are_the_refining_ones_and_the_last_one_which_alone_decays() -> None:
    assert CRCL(refine_epochs=(3, 4), epochs=9)._stages() == [TrainingStage(3), TrainingStage(4), TrainingStage(9, 6)]
    assert CRCL(refine_epochs=(), epochs=9, lr_update=2)._stages() == [TrainingStage(9, 2)]


def test_the_papers_settings_are_those_of_its_table() -> None:
    paper = CRCL.paper(random_state=7)
    assert paper._stages() == [TrainingStage(7), TrainingStage(7), TrainingStage(7), TrainingStage(32, 15)]
    assert (paper.tau, paper.lam, paper.beta, paper.epsilon, paper.freeze) == (0.05, 5.0, 0.8, 0.1, 2)
    assert (paper.dim, paper.dim_word, paper.batch_size, paper.lr, paper.weight_decay) == (1024, 300, 128, 5e-4, 0.01)
    assert (paper.label_pass, paper.label_epochs, paper.exclude_duplicates) == ("batch", None, False)
    assert paper.random_state == 7
    for model, where, guard in ((paper, "batch", False), (CRCL(), "eval", True)):
        procedure: Any = model._procedure(range(3))  # type: ignore[arg-type]
        assert (procedure.label_pass, procedure.correspondence.guard) == (where, guard)
    labels = paper._procedure(range(3)).correspondence  # type: ignore[arg-type]
    assert labels.wants(1, 7) and labels.wants(4, 32) and not labels.wants(1, 1)


def test_mismatched_pairs_get_lower_labels() -> None:
    pairs = corpus(160)
    rng = np.random.default_rng(1)
    order = np.arange(160)
    order[:40] = rng.permutation(40)
    wrong = order != np.arange(160)
    noisy = pairs.with_captions([pairs.captions[i] for i in order])
    model = CRCL(**{**SMALL, "refine_epochs": (12,), "epochs": 12, "lr": 1e-2, "text_drop": 0.0, "dim": 32}).fit(noisy)
    assert model.correspondence_[wrong].mean() < model.correspondence_[~wrong].mean() - 0.2
