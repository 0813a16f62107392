"""MSCN: the meta gradient against a backward pass through a backward pass, and the meta set that it needs."""

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cleanpairs import MSCN, Pairs
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.encoders.tokenizer import Tokenizer
from cleanpairs.features import Captions
from cleanpairs.trainer import EpochContext, TrainingData, step_seed
from tests.methods.conftest import SMALL, WORDS, corpus, parts, view_of

# -- the meta gradient ----------------------------------------------------------------------------------------------


def along(losses: Any, at: dict[str, Tensor], v: dict[str, Tensor]) -> Tensor:
    """Derivative (n,) of losses along v, by a backward pass through a backward pass."""
    w = {k: p.clone().requires_grad_() for k, p in at.items()}
    each = losses(w)
    u = torch.ones_like(each, requires_grad=True)
    g = torch.autograd.grad(each, list(w.values()), grad_outputs=u, create_graph=True, allow_unused=True)
    total = torch.stack([(a * b).sum() for a, b in zip(g, v.values(), strict=True) if a is not None]).sum()
    return torch.autograd.grad(total, u)[0]


# -- in the loop ----------------------------------------------------------------------------------------------------


def started(n: int = 40, odd: bool = False, **settings: Any) -> tuple[Any, EpochContext]:
    """``odd``: every third caption is a word longer, every fourth one shorter."""
    method = MSCN(meta=corpus(24, 0, 11), backbone="mlp", **{"meta_every": 1, **settings})
    method._begin()
    method._load_encoders(None)
    pairs, ids = corpus(n, 0), np.arange(n)
    images = pairs.images.array()
    method.tokenizer_ = Captions(Tokenizer(WORDS))
    data = TrainingData(images, method.tokenizer_.encode(pairs.captions), ids, ids, ids)
    procedure = method._procedure(data)
    procedure.split_known = True
    view = view_of(procedure, n)
    if odd:
        captions = [c + " word1" if i % 3 == 0 else c for i, c in enumerate(pairs.captions)]
        captions = [" ".join(c.split()[1:]) if i % 4 == 0 else c for i, c in enumerate(captions)]
        view.data = replace(data, tokens=method.tokenizer_.encode(captions))
    return procedure, view


def gradients(loss: Tensor, module: nn.Module) -> Tensor:
    found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, retain_graph=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(module.parameters(), found)])  # noqa: B905


@pytest.mark.parametrize("text_drop", [0.0, 0.5])
def test_slopes_are_the_derivatives_along_the_meta_gradient(text_drop: float) -> None:
    """Against autograd, on the backbone itself; their scale is a mean magnitude of one.

    Captions are of unlike lengths and lose words in training: packing then changes the order of the pairs.
    """
    procedure, view = started(lookahead=1e-2, margin=4.0, odd=True)  # every hinge is open
    model: Any = view.networks[0].model
    model.text_drop = text_drop
    clean, noisy = parts(view, np.arange(10), np.arange(24, 36))
    loss = procedure.pair_loss(clean, torch.ones(len(clean.rows)))
    slope = procedure.slopes(view, 0, loss, noisy, 3)
    assert slope is not None and slope.shape == (12,) and float(slope.abs().mean()) == pytest.approx(1, rel=1e-4)
    assert model.training  # as it was

    start = {k: p.detach() for k, p in model.named_parameters()}
    grad = dict(zip(start, torch.autograd.grad(loss, list(model.parameters()), retain_graph=True), strict=True))
    length = [torch.cat([p.flatten() for p in table.values()]).norm() for table in (start, grad)]
    ahead = {k: (p - 1e-2 * length[0] / length[1] * grad[k]).requires_grad_() for k, p in start.items()}
    model.eval()
    meta = procedure.smooth_loss(view, model, ahead, procedure.meta_inputs(view, 3)).mean()
    v = dict(zip(ahead, torch.autograd.grad(meta, list(ahead.values())), strict=True))
    by_pair = []
    encoded = view.encoded(0)
    images, texts = encoded.images.vectors[noisy.rows], encoded.texts.vectors[noisy.rows]
    rows = procedure.inputs(view, view.data, noisy.rows)
    S = images @ texts.T
    for i in range(12):  # the losses are in the order of the pairs
        others = np.arange(12) != i
        by_pair.append(float((4 - S[i, i] + S[i, others]).mean() + (4 - S[i, i] + S[others, i]).mean()))
    np.testing.assert_allclose(procedure.smooth_loss(view, model, start, rows).numpy(), by_pair, rtol=1e-4)
    want = -along(lambda p: procedure.smooth_loss(view, model, p, rows), start, v)
    want = want / want.abs().mean()  # a kink of the ReLU may lie within the difference's step
    assert float((slope - want).abs().max()) < 0.1 * float(want.abs().max())


@pytest.mark.parametrize("part", ["slopes", "recognition"])
def test_a_step_that_fails_leaves_the_model_in_training_mode(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """The step is tried again in parts where memory did not suffice."""
    procedure, view = started()
    clean, noisy = parts(view, np.arange(10), np.arange(24, 36))
    loss = procedure.pair_loss(clean, torch.ones(len(clean.rows)))
    monkeypatch.setattr(type(view.networks[0].model), "encode_texts", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        procedure.slopes(view, 0, loss, noisy, 3) if part == "slopes" else procedure.recognition(view, 0, 3)
    assert view.networks[0].model.training


def test_the_backbone_learns_from_weighed_pairs_and_the_weights_from_the_meta_set_alone() -> None:
    procedure, view = started(meta_every=10**12)  # without the second-order step
    clean, noisy = parts(view, np.arange(10), np.arange(24, 36))
    model, head = view.networks[0].model, view.networks[0].head
    loss = procedure.split_loss(view, 0, clean, noisy)
    s = procedure.vectors(noisy.model, noisy.images, noisy.texts)
    assert s.shape == (12, 9) and not s.requires_grad
    torch.testing.assert_close(s[:, -1], noisy.similarity().diagonal())
    torch.testing.assert_close(s[:, :-1].sum(1), s[:, -1] * 8**0.5)
    each = procedure.pair_objective(noisy.similarity(), torch.ones(12), noisy.excluded)
    expected = procedure.pair_loss(clean, torch.ones(10)) + (head(s).detach() * each).mean()
    torch.testing.assert_close(gradients(loss, model), gradients(expected, model), rtol=1e-4, atol=1e-6)
    assert not gradients(procedure.recognition(view, 0, 7), model).any()
    recognised = gradients(procedure.recognition(view, 0, step_seed(view.seed(0, 29), int(clean.rows[0]))), head)
    for taught in (loss, procedure.split_loss(view, 0, clean, None), procedure.warm_loss(view, 0, clean)):
        torch.testing.assert_close(gradients(taught, head), recognised)


def test_the_second_order_step_moves_the_weights_only() -> None:
    procedure, view = started(meta_every=1)
    plain, same = started(meta_every=10**12)
    (clean, noisy), (other_clean, other_noisy) = (
        parts(view, np.arange(10), np.arange(24, 36)),
        parts(same, np.arange(10), np.arange(24, 36)),
    )
    with_step = procedure.split_loss(view, 0, clean, noisy)
    without = plain.split_loss(same, 0, other_clean, other_noisy)
    for k, (a, b) in enumerate(zip(view.networks[0].children(), same.networks[0].children(), strict=True)):
        equal = torch.allclose(gradients(with_step, a), gradients(without, b), rtol=1e-4, atol=1e-7)
        assert equal == (k == 0)  # the model alike, the head not


def test_labels_are_the_corrections_weights() -> None:
    procedure, view = started()
    procedure.w = np.random.default_rng(0).random((2, 40)).astype(np.float32)
    value = procedure.judge(view)
    weights = []
    for k in (0, 1):
        encoded = view.encoded(k)
        product = encoded.images.vectors * encoded.texts.vectors
        s = np.concatenate([product * 8**0.5, product.sum(axis=1, keepdims=True)], axis=1)
        head: Any = view.networks[k].head
        weights.append(head(torch.from_numpy(s)).detach().numpy())
        np.testing.assert_allclose(procedure.y[1 - k], weights[-1], rtol=1e-4)
    np.testing.assert_allclose(value, (np.mean(weights, axis=0) + procedure.w.mean(axis=0)) / 2, rtol=1e-4)


# -- the meta set ---------------------------------------------------------------------------------------------------


def test_what_is_no_meta_set_of_the_data_is_refused() -> None:
    aside = corpus(3, 0, 11)
    aside.reasons.update(dict.fromkeys(range(2), "set aside by the test"))
    other = Pairs.from_arrays(["w1 w2", "w3"], features=np.ones((2, 5), np.float32))
    for meta, error, words in (
        (None, ConfigError, r"meta of mscn.*found None.*method\.meta=DATA"),
        (corpus(1, 0, 11), DataError, "at least 2 usable pairs, found 1"),
        (aside, DataError, "at least 2 usable pairs, found 1"),
        (other, DataError, r"meta set's images are \(1, 5\), those of the data \(1, 16\)"),
    ):
        with pytest.raises(error, match=words):
            MSCN(**SMALL, meta=meta).fit(corpus(20, 0))
