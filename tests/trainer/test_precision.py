"""The precision of training: half of it only where that pays, and never on a CPU unless it is asked for."""

from typing import Any

import pytest
import torch

from cleanpairs import CRCL, InfoNCE
from tests.helpers import corpus


@pytest.mark.parametrize(
    ("given", "device", "wanted"),
    [
        ("auto", "cpu", "fp32"),  # products in bfloat16 take twice as long on most CPUs
        ("auto", "cuda", "bf16"),
        ("fp32", "cuda", "fp32"),
        ("bf16", "cpu", "bf16"),
        ("auto", None, "fp32"),  # there is no GPU
    ],
)
def test_half_precision_is_for_gpus(monkeypatch: Any, given: str, device: str | None, wanted: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device is not None)
    assert CRCL(precision=given, **{"device": device} if device else {})._resolved_precision() == wanted


@pytest.mark.parametrize("backbone", ["mlp", "vse_inf", "sgraf"])
def test_half_precision_learns_as_full_precision_does(backbone: str) -> None:
    """The loss of each epoch is about the same: no step reads the weights of an earlier one."""
    small = {"backbone": backbone, "dim": 16, "dim_word": 8, "dim_sim": 8, "epochs": 6, "batch_size": 16, "lr": 5e-3}
    full, half = (
        [line["loss"] for line in InfoNCE(precision=precision, device="cpu", **small).fit(corpus(64)).history_]
        for precision in ("fp32", "bf16")
    )
    learned = full[0] - full[-1]
    assert learned > 0.1 and max(abs(a - b) for a, b in zip(full, half, strict=True)) < 0.1 * learned, (full, half)
