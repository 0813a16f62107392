"""Gradient cache: the loss and the gradient of the plain step, in stages; and the stages themselves."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cleanpairs.encoders.base import Local
from cleanpairs.encoders.tokenizer import Tokenizer, pack
from cleanpairs.methods.crcl import ActiveComplementaryLoss
from cleanpairs.trainer.context import Staged, pieces, take_packed


class Towers(nn.Module):
    """Vectors (B, 6) to two states of unit vectors, or of two to five parts."""

    def __init__(self, *, local: bool = False, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        self.local = local
        self.image, self.text = nn.Linear(6, 20), nn.Linear(6, 20)
        self.dropout, self.norm = nn.Dropout(dropout), nn.BatchNorm1d(20) if norm else nn.Identity()
        self.masks: list[Tensor] = []

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Any, Any]:
        image, text = self.norm(self.image(x)).sin(), self.dropout(self.text(x).cos())
        self.masks.append((text == 0).detach().clone())
        if not self.local:
            return nn.functional.normalize(image, dim=1), nn.functional.normalize(text, dim=1)
        L = int(lengths.max())
        words = text.view(-1, 5, 4)[:, :L] * (torch.arange(L) < lengths[:, None])[..., None]
        return Local(image.view(-1, 5, 4), torch.full_like(lengths, 5)), Local(words, lengths)


def loss_of(images: Any, texts: Any) -> Tensor:
    if isinstance(images, Local):
        images, texts = images.parts.sum(1), texts.parts.sum(1) / texts.lengths[:, None]
    labels = torch.linspace(0, 1, len(images), dtype=torch.float64)
    return ActiveComplementaryLoss(tau=0.2)(images @ texts.T, labels).mean()


def step(module: Towers, x: Tensor, lengths: Tensor, micro: int | None) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of a step."""
    module.zero_grad(set_to_none=True)
    staged = Staged(module)
    torch.manual_seed(7)
    loss = loss_of(*staged.states(len(x), pieces(len(x), micro), lambda at: module(x[at], lengths[at]), 7))
    loss.backward()
    staged.finish()
    return float(loss.detach()), {k: p.grad.clone() for k, p in module.named_parameters() if p.grad is not None}


def batch(n: int = 23) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 6, (n,), generator=g).sort(descending=True).values
    return torch.randn(n, 6, generator=g, dtype=torch.float64), lengths


@pytest.mark.parametrize("local", [False, True], ids=["vectors", "parts"])
@pytest.mark.parametrize(("n", "micro"), [(23, 2), (23, 8), (23, 100), (1, 2), (3, 2)])
def test_pieces_have_the_loss_and_the_gradient_of_the_whole(local: bool, n: int, micro: int) -> None:
    module = Towers(local=local).double()
    x, lengths = batch(n)
    loss, gradients = step(module, x, lengths, None)
    cached, of_pieces = step(module, x, lengths, micro)
    assert cached == pytest.approx(loss, abs=1e-10)
    torch.testing.assert_close(of_pieces, gradients, atol=1e-10, rtol=0)
    assert len(gradients) == 4 and (n == 1 or all(float(g.abs().max()) > 1e-4 for g in gradients.values()))


def test_both_passes_of_a_piece_draw_the_same_dropout() -> None:
    module, (x, lengths) = Towers(dropout=0.5).double(), batch(16)
    step(module, x, lengths, 4)
    first, second = module.masks[:4], module.masks[4:]
    assert len(second) == 4 and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1]) and 0.3 < torch.cat(first).double().mean() < 0.7


def test_running_statistics_move_once() -> None:
    module, (x, lengths) = Towers(norm=True).double(), batch(12)
    step(module, x, lengths, 4)
    assert int(module.norm.num_batches_tracked) == 3  # stages, and not twice as many


def test_packed_captions_of_a_piece_are_packed_alone() -> None:
    captions = ["a b c d", "a", "d c", "b b b", "c"]
    table = Tokenizer.fit(captions).encode(captions)
    packed, order = pack(table, np.arange(5))
    for at in (np.array([0]), np.array([1, 3]), np.array([3, 4]), np.arange(5)):
        taken = take_packed(packed, at)
        alone, same = pack(table, order[at])
        assert np.array_equal(same, np.arange(len(at)))
        assert taken.sentences is alone.sentences is None
        assert all(torch.equal(a, b) for a, b in zip(taken[:-1], alone[:-1], strict=True))
