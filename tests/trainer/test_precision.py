"""The precision of training: half of it only where that pays, and never on a CPU unless it is asked for."""

import pytest
import torch

from cleanpairs import CRCL


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
def test_half_precision_is_for_gpus(
    monkeypatch: pytest.MonkeyPatch, given: str, device: str | None, wanted: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device is not None)
    assert CRCL(precision=given, **{"device": device} if device else {})._resolved_precision() == wanted
