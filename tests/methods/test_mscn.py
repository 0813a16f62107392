"""MSCN: the meta gradient against a backward pass through a backward pass, and the meta set that it needs."""

from dataclasses import replace
from pathlib import Path
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
from tests.helpers import assert_raises
from tests.methods.conftest import SMALL, WORDS, corpus, parts, similarities, view_of

# -- the meta gradient ----------------------------------------------------------------------------------------------


def along(losses: Any, at: dict[str, Tensor], v: dict[str, Tensor]) -> Tensor:
    """Derivative (n,) of losses along v, by a backward pass through a backward pass."""
    return torch.func.vjp(lambda u: torch.func.vjp(losses, at)[1](u)[0], torch.zeros(12))[1](v)[0]


# -- in the loop ----------------------------------------------------------------------------------------------------


def started(*, odd: bool = False, **settings: Any) -> tuple[Any, EpochContext]:
    """``odd``: every third caption is a word longer, every fourth one shorter."""
    method = MSCN(meta=corpus(24, 0, 11), backbone="mlp", **{"meta_every": 1, **settings})
    method._begin()
    method._load_encoders(None)
    pairs, ids = corpus(40, 0), np.arange(40)
    method.tokenizer_ = Captions(Tokenizer(WORDS))
    data = TrainingData(pairs.images.array(), method.tokenizer_.encode(pairs.captions), ids, ids, ids)
    strategy = method._make_strategy(data)
    strategy.split_known = True
    view = view_of(strategy, 40)
    if odd:
        words = [[*c.split(), *["word1"] * (i % 3 == 0)] for i, c in enumerate(pairs.captions)]
        captions = [" ".join(told[i % 4 == 0 :]) for i, told in enumerate(words)]
        view.data = replace(data, tokens=method.tokenizer_.encode(captions))
    return strategy, view


def gradients(loss: Tensor, module: nn.Module) -> Tensor:
    found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, retain_graph=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(module.parameters(), found)])  # noqa: B905


@pytest.mark.parametrize("text_drop", [0.0, 0.5])
def test_slopes_are_the_derivatives_along_the_meta_gradient(text_drop: float) -> None:
    """Against autograd, on the backbone itself; their scale is a mean magnitude of one.

    Captions are of unlike lengths and lose words in training: packing then changes the order of the pairs.
    """
    strategy, view = started(lookahead=1e-2, margin=4.0, odd=True)  # every hinge is open
    model: Any = view.networks[0].model
    model.text_drop = text_drop
    clean, noisy = parts(view, np.arange(10), np.arange(24, 36))
    loss = strategy.pair_loss(clean, torch.ones(len(clean.rows)))
    slope = strategy.slopes(view, 0, loss, noisy, 3)
    assert slope is not None and slope.shape == (12,) and float(slope.abs().mean()) == pytest.approx(1, rel=1e-4)
    assert model.training  # as it was

    start = {k: p.detach() for k, p in model.named_parameters()}
    grad = dict(zip(start, torch.autograd.grad(loss, list(model.parameters()), retain_graph=True), strict=True))
    length = [torch.cat([p.flatten() for p in table.values()]).norm() for table in (start, grad)]
    ahead = {k: (p - 1e-2 * length[0] / length[1] * grad[k]).requires_grad_() for k, p in start.items()}
    model.eval()
    meta = strategy.smooth_loss(view, model, ahead, strategy.meta_inputs(view, 3)).mean()
    v = dict(zip(ahead, torch.autograd.grad(meta, list(ahead.values())), strict=True))
    rows = strategy.inputs(view, view.data, noisy.rows)
    S = similarities(view)[noisy.rows][:, noisy.rows].numpy()
    of_others = [(np.delete(S[i], i), np.delete(S[:, i], i)) for i in range(12)]  # the losses are in the pairs' order
    by_pair = [sum((4 - S[i, i] + side).mean() for side in sides) for i, sides in enumerate(of_others)]
    np.testing.assert_allclose(strategy.smooth_loss(view, model, start, rows).numpy(), by_pair, rtol=1e-4)
    want = -along(lambda p: strategy.smooth_loss(view, model, p, rows), start, v)
    want = want / want.abs().mean()  # a kink of the ReLU may lie within the difference's step
    assert float((slope - want).abs().max()) < 0.1 * float(want.abs().max())


def test_the_backbone_learns_from_weighed_pairs_and_the_weights_from_the_meta_set_alone() -> None:
    strategy, view = started(meta_every=10**12)  # without the second-order step
    clean, noisy = parts(view, np.arange(10), np.arange(24, 36))
    model, head = view.networks[0].model, view.networks[0].head
    loss = strategy.split_loss(view, 0, clean, noisy)
    s = strategy.vectors(noisy.model, noisy.images, noisy.texts)
    assert s.shape == (12, 9) and not s.requires_grad
    torch.testing.assert_close(s[:, -1], noisy.similarity().diagonal())
    torch.testing.assert_close(s[:, :-1].sum(1), s[:, -1] * 8**0.5)
    each = strategy.pair_objective(noisy.similarity(), torch.ones(12), noisy.excluded)
    expected = strategy.pair_loss(clean, torch.ones(10)) + (head(s).detach() * each).mean()
    torch.testing.assert_close(gradients(loss, model), gradients(expected, model), rtol=1e-4, atol=1e-6)
    assert not gradients(strategy.recognition(view, 0, 7), model).any()
    recognised = gradients(strategy.recognition(view, 0, step_seed(view.seed(0, 29), int(clean.rows[0]))), head)
    for taught in (loss, strategy.split_loss(view, 0, clean, None), strategy.warm_loss(view, 0, clean)):
        torch.testing.assert_close(gradients(taught, head), recognised)


def test_the_second_order_step_moves_the_weights_only() -> None:
    found = []
    for every in (1, 10**12):
        strategy, view = started(meta_every=every)
        loss = strategy.split_loss(view, 0, *parts(view, np.arange(10), np.arange(24, 36)))
        found.append([gradients(loss, module) for module in (view.networks[0].model, view.networks[0].head)])
    assert [torch.allclose(*pair, rtol=1e-4, atol=1e-7) for pair in zip(*found, strict=True)] == [True, False]


def test_pairs_of_one_image_or_caption_are_not_told_apart() -> None:
    strategy, view = started()
    ids, group = np.arange(24), np.random.default_rng(0).integers(0, (5, 9), (24, 2))
    strategy.meta = replace(strategy.meta, image_group=group[:, 0], text_group=group[:, 1])
    model, head = view.networks[0].model.eval(), view.networks[0].head
    images, tokens, order, same = inputs = strategy.meta_inputs(view, 7)
    rows = np.random.default_rng(7).permutation(24)[order]
    assert same.tolist() == [[(group[i] == group[j]).any() for j in rows] for i in rows]
    z_image, z_text = model(images, None, tokens)
    right, wrong = (head(strategy.vectors(model, z_image, z_text[i])) for i in (ids, ids - 1))
    logs = [*right.log(), *(1 - wrong).log()[~same[ids, ids - 1]]]
    assert 24 < len(logs) < 48
    torch.testing.assert_close(strategy.recognition(view, 0, 7), -torch.stack(logs).mean())
    found = strategy.smooth_loss(view, model, dict(model.named_parameters()), inputs)
    torch.testing.assert_close(found[order], strategy.smooth(z_image @ z_text.T, torch.ones(24), same))


def test_labels_are_the_corrections_weights() -> None:
    strategy, view = started()
    strategy.w = np.random.default_rng(0).random((2, 40)).astype(np.float32)
    value, weights = strategy.judge(view), []
    for k, network in enumerate(view.networks):
        product = torch.from_numpy(view.encoded(k).images.vectors * view.encoded(k).texts.vectors)
        s = torch.cat([product * 8**0.5, product.sum(dim=1, keepdim=True)], dim=1)
        weights.append(network.head(s).detach().numpy())
        np.testing.assert_allclose(strategy.y[1 - k], weights[-1], rtol=1e-4)
    np.testing.assert_allclose(value, (np.mean(weights, axis=0) + strategy.w.mean(axis=0)) / 2, rtol=1e-4)


# -- the meta set ---------------------------------------------------------------------------------------------------


def test_what_is_no_meta_set_of_the_data_is_refused(tmp_path: Path) -> None:
    aside = corpus(3, 0, 11)
    aside.reasons.update(dict.fromkeys(range(2), "set aside by the test"))
    other = Pairs.from_arrays(["w1 w2", "w3"], features=np.ones((2, 5), np.float32))
    for meta, error, words in (
        (None, ConfigError, r"meta of mscn.*found None.*method\.meta=DATA"),
        (corpus(1, 0, 11), DataError, "at least 2 usable pairs, found 1"),
        (aside, DataError, "at least 2 usable pairs, found 1"),
        (other, DataError, r"meta set's images are \(1, 5\), those of the data \(1, 16\)"),
    ):
        assert_raises(error, words, MSCN(**SMALL, meta=meta).fit, corpus(20, 0))
    MSCN(**SMALL, meta=corpus(24, 0, 11), random_state=0).fit(corpus(20, 0), run_dir=tmp_path)
    other = MSCN(**SMALL, meta=corpus(24, 0, 12), random_state=0)
    assert_raises(DataError, "other data or settings", other.fit, corpus(20, 0), run_dir=tmp_path, resume=True)


@pytest.mark.parametrize("part", ["slopes", "recognition"])
def test_a_step_that_fails_leaves_the_model_in_training_mode(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """The step is tried again in parts where memory did not suffice."""
    strategy, view = started()
    clean, noisy = parts(view, np.arange(10), np.arange(24, 36))
    loss = strategy.pair_loss(clean, torch.ones(len(clean.rows)))
    monkeypatch.setattr(type(view.networks[0].model), "encode_texts", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        strategy.slopes(view, 0, loss, noisy, 3) if part == "slopes" else strategy.recognition(view, 0, 3)
    assert view.networks[0].model.training
