"""Scores as trained methods leave them, with their truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cleanpairs.audit import AuditSample

Corpus = tuple[np.ndarray, np.ndarray]


def _corpus(n: int = 6_000, noise: float = 0.4, seed: int = 0) -> Corpus:
    """(N,) float32 scores, (N,) bool wrong: wrong pairs near 0, right ones high with a long flat lower tail."""
    rng = np.random.default_rng(seed)
    wrong = rng.random(n) < noise
    y = np.where(wrong, rng.beta(0.5, 9, n), rng.beta(5, 2, n))
    stray = rng.random(n) < np.where(wrong, 0.06, 0.12)
    y[stray] = rng.random(int(stray.sum()))
    return y.astype(np.float32), wrong


def _labelled(sample: AuditSample, wrong: np.ndarray) -> AuditSample:
    return replace(sample, matched=(~wrong[sample.pair_id]).astype(float))


@pytest.fixture
def corpus() -> Callable[..., Corpus]:
    return _corpus


@pytest.fixture
def labelled() -> Callable[[AuditSample, np.ndarray], AuditSample]:
    return _labelled
