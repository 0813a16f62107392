"""GPO and the sorted pooling against their definition; BiGRU against torch's padded GRU."""

import math

import pytest
import torch
from torch import Tensor, nn

from cleanpairs.encoders.towers import GPO, BiGRU


def defined(pool: GPO, x: Tensor) -> Tensor:
    """Section 4 of the paper for one set (L, E): explicit loops."""
    L, E = x.shape
    pe = torch.zeros(L, pool.d_pe, dtype=x.dtype)
    for k in range(L):
        for i in range(0, pool.d_pe, 2):
            angle = k / 10000 ** (i / pool.d_pe)
            pe[k, i], pe[k, i + 1] = math.sin(angle), math.cos(angle)
    out, _ = pool.gru(pe[None])
    half = out.shape[-1] // 2
    scores = pool.linear((out[0, :, :half] + out[0, :, half:]) / 2)[:, 0] / 0.1
    theta = [torch.exp(s) / torch.exp(scores).sum() for s in scores]
    pooled = []
    for e in range(E):
        values = sorted((x[k, e] for k in range(L)), key=lambda v: -float(v.detach()))
        pooled.append(sum(t * v for t, v in zip(theta, values, strict=True)))
    return torch.stack(pooled)  # type: ignore[arg-type]


@pytest.fixture
def pool() -> GPO:
    torch.manual_seed(3)
    return GPO(d_pe=8, d_hidden=6).double()


@pytest.mark.parametrize("L", [1, 2, 7])
def test_definition_without_lengths(pool: GPO, L: int) -> None:
    x = torch.randn(3, L, 5, dtype=torch.float64)
    want = torch.stack([defined(pool, s) for s in x])
    torch.testing.assert_close(pool(x), want, rtol=1e-6, atol=1e-7)  # the encoding itself is float32


def test_value_and_gradient_are_those_of_the_definition_with_lengths_in_any_order(pool: GPO) -> None:
    lengths = torch.tensor([2, 7, 1, 7, 4])
    x = torch.randn(5, 7, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, 3, dtype=torch.float64)
    inputs = [x, *pool.parameters()]
    value = pool(x, lengths)
    got = torch.autograd.grad((value * weight).sum(), inputs)
    want_value = torch.stack([defined(pool, s[: int(n)]) for s, n in zip(x, lengths, strict=True)])
    torch.testing.assert_close(value, want_value, rtol=1e-6, atol=1e-7)
    want = torch.autograd.grad((want_value * weight).sum(), inputs)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
    assert bool((got[0][0, 2:] == 0).all())


def test_bigru_is_a_padded_gru_of_each_sequence() -> None:
    torch.manual_seed(0)
    gru = BiGRU(5, 4)
    sequences = [torch.randn(n, 5) for n in (6, 3, 3, 1)]
    packed = nn.utils.rnn.pack_sequence(sequences)
    out = gru(packed.data, packed.batch_sizes)
    unpacked = nn.utils.rnn.unpack_sequence(nn.utils.rnn.PackedSequence(out, packed.batch_sizes))
    for found, sequence in zip(unpacked, sequences, strict=True):
        alone, _ = gru.rnn(sequence[:, None])  # (L, 1, 2 H), no packing
        want = (alone[:, 0, :4] + alone[:, 0, 4:]) / 2
        torch.testing.assert_close(found, want)
