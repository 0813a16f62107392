"""SAF, SGR, SGRAF: all pairs at once are what one caption at a time gives, in value and gradient."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, normalize

from cleanpairs.encoders import sgraf
from cleanpairs.encoders.base import Local
from cleanpairs.encoders.sgraf import SAF, SGR, SGRAF
from cleanpairs.encoders.tokenizer import Tokenizer, pack

WORDS = [f"w{k}" for k in range(12)]


def model_of(kind: type, **changes: Any) -> Any:
    torch.manual_seed(0)
    return kind(len(WORDS) + 1, 6, **{"dim": 8, "dim_word": 5, "dim_sim": 4, **changes}).double().eval()


def states(model: Any, n_image: int = 4, lengths: tuple[int, ...] = (5, 3, 3, 1), keep: bool = True) -> Any:
    g = torch.Generator().manual_seed(1)
    images = torch.randn(n_image, 3, 6, generator=g, dtype=torch.float64)
    kept = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 1], [1, 1, 0]], dtype=torch.bool)[:n_image] if keep else None
    table = Tokenizer(WORDS).encode([" ".join(WORDS[k : k + length]) for k, length in enumerate(lengths)])
    tokens, _ = pack(table, np.arange(len(lengths)))
    regions, words = model.encode_images(images, kept), model.encode_texts(tokens)
    return Local(regions.parts.double(), regions.lengths), Local(words.parts.double(), words.lengths)


def self_attend(module: Any, parts: Tensor) -> Tensor:
    """One set (L, D), no padding: (D,)."""
    common = module.local(parts) * module.whole(parts.mean(dim=0)[None])[0]
    weight = module.weigh(common).squeeze(-1).softmax(dim=0)
    return normalize(weight @ parts, dim=0)


def one_pair(model: Any, regions: Tensor, words: Tensor) -> Tensor:
    """The definition, for one image (R, D) and one caption (L, D) without padding."""
    compare = model.compare
    s = leaky_relu(words @ regions.T, 0.1)  # (L, R)
    a = (9 * s / s.norm(dim=0, keepdim=True).clamp_min(1e-8)).softmax(dim=1)
    context = normalize(a @ regions, dim=1)
    local = normalize(compare.local((context - words) ** 2), dim=1)
    v, t = self_attend(compare.image_attention, regions), self_attend(compare.text_attention, words)
    x = torch.cat([normalize(compare.whole((v - t) ** 2), dim=0)[None], local])  # (L + 1, S)
    r = compare.reasoning
    if isinstance(model, SGR):
        for query, key, graph in zip(r.query, r.key, r.graph, strict=True):
            x = graph((query(x) @ key(x).T).softmax(dim=1) @ x).relu()
        return torch.sigmoid(r.score(x[0])).squeeze()
    weight = torch.sigmoid(r.attention(x)).squeeze(-1)
    kept = normalize((weight / weight.sum()) @ x, dim=0)
    return torch.sigmoid(r.score(kept)).squeeze()


def caption_by_caption(model: Any, images: Local, texts: Local) -> Tensor:
    regions, words = (
        [part[: int(n)] for part, n in zip(state.parts, state.lengths, strict=True)] for state in (images, texts)
    )
    return torch.stack([torch.stack([one_pair(model, r, w) for w in words]) for r in regions])


@pytest.mark.parametrize("block", [1, 1 << 24], ids=["a-caption-a-block", "one-block"])
@pytest.mark.parametrize("keep_bytes", [0, 1 << 30], ids=["recomputed", "kept"])
@pytest.mark.parametrize("kind", [SAF, SGR])
def test_all_pairs_are_the_pairs_one_by_one(kind: Any, keep_bytes: int, block: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(sgraf.LocalSimilarity, "block_bytes", block)
    monkeypatch.setattr(sgraf.LocalSimilarity, "keep_bytes", keep_bytes)
    model = model_of(kind)
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    gradients = []
    values = []
    for compute in (kind.similarity, caption_by_caption):
        model.zero_grad()
        S = compute(model, *states(model))
        (S * weight).sum().backward()
        values.append(S.detach())
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(values[0], values[1])
    assert bool((values[0] > 0).all()) and bool((values[0] < 1).all())
    assert gradients[0].keys() >= gradients[1].keys() and len(gradients[1]) > 10
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], gradient, msg=lambda text, n=name: f"{n}: {text}")  # type: ignore[misc]


@pytest.mark.parametrize("kind", [SAF, SGR])
def test_the_mean_region_has_a_batch_norm_and_the_mean_word_none(kind: type) -> None:
    """As published: linear, batch norm over the images, tanh; statistics of training serve in evaluation."""
    model = model_of(kind)
    images, _ = states(model, keep=False)
    linear, norm, _, dropout = model.compare.image_attention.whole
    dropout.p = 0.0
    assert len(model.compare.text_attention.whole) == 3
    mean = linear(images.parts.mean(dim=1)).detach()
    norm.weight.data.uniform_(0.5, 2)
    norm.bias.data.uniform_(-1, 1)
    model.train()
    got = model.compare.image_attention.whole(images.parts.mean(dim=1))
    z = (mean - mean.mean(dim=0)) / (mean.var(dim=0, unbiased=False) + norm.eps).sqrt()
    torch.testing.assert_close(got, torch.tanh(z * norm.weight + norm.bias))
    torch.testing.assert_close(norm.running_mean, 0.1 * mean.mean(dim=0))
    model.eval()
    z = (mean - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    torch.testing.assert_close(
        model.compare.image_attention.whole(images.parts.mean(dim=1)), torch.tanh(z * norm.weight + norm.bias)
    )


@pytest.mark.parametrize("kind", [SAF, SGR, SGRAF])
def test_one_image_and_one_caption_of_one_word(kind: type) -> None:
    """In training too: nothing needs a second row, the batch norm neither."""
    model = model_of(kind).train()
    images, texts = states(model, n_image=1, lengths=(1,), keep=False)
    S = model.similarity(images, texts)
    S.sum().backward()
    assert S.shape == (1, 1) and bool(torch.isfinite(S).all())
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)
    assert model.similarity(Local(images.parts[:0], images.lengths[:0]), texts).shape == (0, 1)
    assert model.similarity(images, Local(texts.parts[:0], texts.lengths[:0])).shape == (1, 0)


@pytest.mark.parametrize("kind", [SAF, SGR])
def test_regions_that_cancel_out_give_numbers(kind: type) -> None:
    """Opposite regions of equal weight: the context has no direction, in float32 only that of its rounding."""
    model = model_of(kind).float()
    v = normalize(torch.randn(3, 8, generator=torch.Generator().manual_seed(5)), dim=-1)
    words = torch.linalg.qr(v.T, mode="complete").Q.T[3:6]  # (3, 8), at right angles to all regions
    regions = torch.stack([v, -v], dim=1).requires_grad_()  # (3, 2, 8)
    S = model.similarity(Local(regions, torch.tensor([2, 2, 2])), Local(words[None], torch.tensor([3])))
    S.sum().backward()
    assert bool(S.isfinite().all()) and regions.grad is not None and bool(regions.grad.isfinite().all())
