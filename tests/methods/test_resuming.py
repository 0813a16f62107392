"""A fit of a method with a procedure of its own, cut in the middle of an epoch, goes on to the same bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs.core.registry import METHODS
from tests.methods.conftest import SMALL, corpus


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("l2rm", {}),
        ("ncr", {}),
        ("mscn", {"meta": corpus(20, 0, 11), "meta_every": 2}),
        ("pc2", {"classes": 8}),
        ("repair", {"memory": 20, "neighbours": 4}),
    ],
)
def test_cut_in_the_middle_of_an_epoch_it_goes_on_to_the_same_bit(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Behind the split, within the first network's part. Of one method also in the warm-up and at the last step."""
    method, pairs, steps, stop = METHODS.load(name), corpus(40, 10), 0, -1
    settings = {**SMALL, "epochs": 3, "warmup": 1, "batch_size": 8, **changes}

    def count(done: int, total: int, loss: float) -> None:
        nonlocal steps
        steps += 1
        if steps == stop:
            os.kill(os.getpid(), signal.SIGINT)

    whole = method(**settings).fit(pairs, on_step=count)
    for at in (8, steps - 3, steps) if name == "ncr" else (steps // 2 + 1,):
        steps, stop = 0, at
        with pytest.raises(KeyboardInterrupt):
            method(**settings).fit(pairs, run_dir=tmp_path / str(at), on_step=count)
        resumed = method(**settings).fit(pairs, run_dir=tmp_path / str(at), resume=True)
        np.testing.assert_array_equal(resumed.correspondence_, whole.correspondence_)
        for key, value in whole.model_.state_dict().items():
            assert torch.equal(resumed.model_.state_dict()[key], value), (at, key)
