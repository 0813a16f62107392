"""The mean of the first epochs' figures: where it begins, where it ends."""

import numpy as np
import pytest

from cleanpairs.trainer import Averaged

P = np.random.default_rng(0).random((7, 5)).astype(np.float32)


@pytest.mark.parametrize("start", [1, 2, 3])
@pytest.mark.parametrize("label_epochs", [3, 5, None])
def test_the_mean_over_start_to_horizon(start: int, label_epochs: int | None) -> None:
    labels = Averaged(5, start=start, label_epochs=label_epochs)
    for epoch, p in enumerate(P, start=1):
        labels.update(epoch, p)
        last = min(epoch, label_epochs or epoch)
        counted = P[start - 1 : last] if epoch >= start else np.ones((1, 5))
        assert labels.value().tolist() == pytest.approx(counted.astype(np.float64).mean(axis=0).tolist(), rel=1e-6)


def test_before_any_epoch_all_are_trusted_and_the_labels_stay_1() -> None:
    labels, figures = Averaged(3), np.zeros(3)
    assert labels.value().tolist() == [1.0] * 3
    labels.update(1, figures)
    figures[:] = 9
    assert labels.value().tolist() == [0.0] * 3 and labels.labels().tolist() == [1.0] * 3
    assert labels.value().dtype == labels.labels().dtype == np.float32
