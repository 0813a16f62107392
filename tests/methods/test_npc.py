"""NPC: the weights by hand, a step that is taken back to the bit, the bank, and the loss."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs import NPC
from cleanpairs.methods.npc import negative_weight
from cleanpairs.objectives import InfoNCELoss
from tests.methods.conftest import begun, procedure_of


def test_weights_by_hand() -> None:
    before = torch.tensor([[2.0, 1.0, 1.0, 0.5], [1.0, 1.0, 3.0, 0.5]])
    after = torch.tensor([[1.0, 1.0, 4.0, 1.0], [1.0, 1.0, 4.0, 2.0]])
    # r: (2 + 1) / 2, 1, (1/4 + 3/4) / 2, (1/2 + 1/4) / 2
    np.testing.assert_allclose(negative_weight(before, after), [1.0, 1.0, math.tanh(0.5), math.tanh(0.375)], rtol=1e-5)


def with_bank(n: int = 30, **settings: Any) -> tuple[Any, Any]:
    procedure, view = begun(NPC, n, **settings)
    procedure.w[0] = np.where(np.arange(n) % 3 == 0, 0.95, 0.85)
    procedure.judge(view)
    procedure.split_known = True
    return procedure, view


def test_the_bank_is_the_nearest_trusted_pair_by_image_and_by_text_and_is_built_once() -> None:
    procedure, view = with_bank()
    encoded = view.encoded(0)
    bank = np.arange(0, 30, 3)
    for k, z in enumerate((encoded.images.vectors, encoded.texts.vectors)):
        expected = [bank[np.argmin([np.linalg.norm(z[i] - z[j]) for j in bank])] for i in range(30)]
        assert procedure.nearest[k].tolist() == expected
    assert (procedure.nearest[:, bank] == bank).all()  # a trusted pair is its own neighbour, as in the paper
    before = procedure.nearest.copy()
    procedure.w[0] = 0.95
    procedure.judge(view)
    assert (procedure.nearest == before).all()


def test_the_step_is_adamws_and_is_taken_back() -> None:
    procedure, view = with_bank(lr=0.01, weight_decay=0.1)
    model, rows = view.networks[0].model, np.arange(8)
    banks = procedure.nearest[:, rows]
    kept = {k: v.clone() for k, v in model.state_dict().items()}
    weight = procedure.tried(view, rows, banks, seed=5)
    for name, value in model.state_dict().items():
        assert torch.equal(value, kept[name]), name

    def losses() -> torch.Tensor:
        encoded = view.encoded(0)
        found = []
        for at in banks:
            S = torch.from_numpy(encoded.images.vectors[at] @ encoded.texts.vectors[at].T)
            same = torch.from_numpy((at[:, None] == at) & ~np.eye(8, dtype=bool))
            found.append(InfoNCELoss(tau=0.07)(S, torch.ones(8), same))
        return torch.stack(found)

    before = losses()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    f = view.forward(0, rows, seed=5)
    (2 * InfoNCELoss(tau=0.07)(f.similarity(), torch.ones(8), f.excluded).mean()).backward()
    optimizer.step()
    view.changed()
    expected = negative_weight(before, losses())
    assert expected.min() < 1 and not torch.equal(before, losses())
    np.testing.assert_allclose(weight, expected, rtol=1e-3)


def test_the_loss_weighs_the_batch_and_adds_both_banks() -> None:
    procedure, view = with_bank(lr=0.05)
    rows = np.arange(10)
    got = procedure.loss(view, 0, (rows,), 7)
    got.backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in view.networks[0].parameters())
    weight = procedure.tried(view, rows, procedure.nearest[:, rows], 7)
    assert len(set(weight.tolist())) > 2 and weight.max() <= 1
    np.testing.assert_array_equal(procedure.weight[rows], weight)
    assert (procedure.weight[10:] == 1).all()
    total, objective = 0.0, InfoNCELoss(tau=0.07)
    for k, at in enumerate((rows, *procedure.nearest[:, rows])):
        f = view.forward(0, at, seed=7)
        each = objective(f.similarity(), torch.ones(len(at)), f.excluded)
        w = dict(zip(rows.tolist(), weight.tolist(), strict=True)) if k == 0 else dict.fromkeys(range(30), 1.0)
        total += sum(x.item() * w[int(row)] for x, row in zip(each, f.rows, strict=True)) / len(at)
    assert got.item() == pytest.approx(total, rel=1e-4)


def test_without_a_warm_up_the_bank_is_built_before_the_first_epoch_whose_labels_count() -> None:
    procedure, view = begun(NPC, 30, warmup=0, label_epochs=1)
    view.epoch = 1
    procedure.start_epoch(view)
    assert procedure.split_known and len(np.unique(procedure.value())) > 1
    late = procedure_of(NPC, 30, warmup=2)
    late.start_epoch(view)
    assert not late.split_known
