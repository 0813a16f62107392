"""PC2's terms against torch and loops, and values of its public code on fixed logits."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cleanpairs.methods.pc2 import negative_batch_entropy, oscillation, pseudo_classification


def logits(n: int, classes: int = 5, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, classes, generator=g, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("n", [1, 2, 7])
def test_classification_against_a_loop(n: int) -> None:
    image, text = logits(n), logits(n, seed=1)
    ours = pseudo_classification(image, text)
    slow = []
    for i in range(n):
        row = text[i].tolist()
        slow.append(torch.log(torch.stack([torch.exp(v) for v in image[i]]).sum()) - image[i, row.index(max(row))])
    torch.testing.assert_close(ours, torch.stack(slow))
    w = torch.linspace(0.5, 2.0, n, dtype=torch.float64)
    (got,) = torch.autograd.grad((w * ours).sum(), image, retain_graph=True)
    (want,) = torch.autograd.grad((w * torch.stack(slow)).sum(), image)
    torch.testing.assert_close(got, want)
    with pytest.raises(RuntimeError, match="not have been used"):  # the text's class is a target, nothing learns it
        torch.autograd.grad(ours.sum(), text)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_entropy_against_a_loop(n: int) -> None:
    x = logits(n)
    ours = negative_batch_entropy(x)
    p = [torch.exp(x[i]) / torch.exp(x[i]).sum() for i in range(n)]
    mean = sum(p[1:], start=p[0]) / n
    slow = torch.stack([v * torch.log(v) for v in mean]).sum()
    torch.testing.assert_close(ours, slow)
    for a, b in zip(torch.autograd.grad(ours, x), torch.autograd.grad(slow, x), strict=True):
        torch.testing.assert_close(a, b)


def test_oscillation_against_a_loop() -> None:
    previous, current = logits(6).detach().softmax(dim=1), logits(6, seed=1).detach().softmax(dim=1)
    want = [sum(a * math.log(a / b) for a, b in zip(p, c, strict=True))
            for p, c in zip(previous.tolist(), current.tolist(), strict=True)]  # fmt: skip
    assert oscillation(previous, current).tolist() == pytest.approx(want)
    assert oscillation(previous, current).tolist() != pytest.approx(oscillation(current, previous).tolist())
    assert oscillation(previous, previous).tolist() == [0.0] * 6
    a, b = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    got = oscillation(a, b).tolist()
    assert math.isfinite(got[0]) and got[0] > 10 and got[1] == 0
    assert oscillation(a[:0], b[:0]).shape == (0,)
