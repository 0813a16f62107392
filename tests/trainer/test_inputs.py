"""Inputs made ahead are those made in time."""

from concurrent.futures import ThreadPoolExecutor
from threading import current_thread
from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs.core.errors import ConfigError
from cleanpairs.encoders.mlp import MLP
from cleanpairs.encoders.tokenizer import Tokenizer
from cleanpairs.objectives import InfoNCELoss
from cleanpairs.trainer import Averaged, SingleNetwork, Trained, Trainer, TrainingData, TrainingSettings, TrainingStage
from cleanpairs.trainer.context import EpochContext, on_device


def train(captions_of: np.ndarray | None = None, stored: Any = np.float32, **settings: Any) -> Trained:
    rng = np.random.default_rng(0)
    captions = [" ".join(rng.choice(list("abcdefgh"), rng.integers(1, 6), replace=False)) for _ in range(22)]
    tokenizer = Tokenizer.fit(captions)
    ids = np.arange(22)
    images = rng.normal(size=(22, 3, 8)).astype(stored)
    data = TrainingData(images, tokenizer.encode(captions), ids, ids, ids)
    known = TrainingSettings(**{"batch_size": 8, "seed": 1, "bucket": 2, **settings})
    procedure = SingleNetwork(InfoNCELoss(tau=0.1), Averaged(22))
    procedure.captions = captions_of
    return Trainer(known).fit(data, [TrainingStage(2)], procedure, lambda: MLP(len(tokenizer), 8, dim=8, dim_word=4))


def assert_same(a: Trained, b: Trained) -> None:
    for (name, x), y in zip(a.model.state_dict().items(), b.model.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


@pytest.mark.parametrize(("micro", "captions_of"), [(None, None), (3, np.roll(np.arange(22), 1))])
def test_inputs_made_ahead_are_those_made_in_time(
    micro: int | None, captions_of: np.ndarray | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train(captions_of, micro_batch=micro)
    original, make = EpochContext.__init__, EpochContext.inputs
    made: list[str] = []

    def ahead(self: EpochContext, *args: Any) -> None:
        original(self, *args)
        self.prefetching = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ahead")

    def noted(self: EpochContext, *args: Any) -> Any:
        made.append(current_thread().name)
        return make(self, *args)

    monkeypatch.setattr(EpochContext, "__init__", ahead)
    monkeypatch.setattr(EpochContext, "inputs", noted)
    assert_same(train(captions_of, micro_batch=micro), plain)
    in_time = [name for name in made if not name.startswith("ahead")]
    assert (len(made), len(in_time)) == (6, 2)  # two epochs of three batches: all but the first of each


@pytest.mark.parametrize(("micro", "stored"), [(None, np.float16), (3, np.float32)])
def test_images_that_stay_on_the_device_are_those_of_the_batches(
    stored: Any, micro: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = train(micro_batch=micro, stored=stored)
    monkeypatch.setattr("cleanpairs.trainer.loop.on_device", lambda images, device: torch.from_numpy(images))
    assert_same(train(micro_batch=micro, stored=stored), plain)


@pytest.mark.gpu
@pytest.mark.parametrize("stored", [np.float32, np.float16, np.uint8])
def test_images_go_to_a_gpu_that_has_the_memory(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    images, device = np.arange(3000 * 4).reshape(3000, 4).astype(stored), torch.device("cuda")
    held = on_device(images, device)
    assert held is not None and held.device.type == "cuda"
    np.testing.assert_array_equal(held.cpu().numpy(), images)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda of: (images.nbytes, images.nbytes))
    assert on_device(images, device) is None


def test_a_method_that_needs_the_whole_graph_is_refused_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SingleNetwork, "needs_whole_graph", True)
    assert len(train().history) == 2
    with pytest.raises(ConfigError, match="without micro_batch"):
        train(micro_batch=4)
