"""A checkpoint that is damaged is an error of the data, whatever of it is damaged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cleanpairs.core.errors import DataError
from cleanpairs.data.arrays import write_tensors
from cleanpairs.trainer.loop import Checkpoint, Position, TrainingState

HEAD: dict[str, Any] = {
    "fingerprint": "f", "position": [1, 2, 3], "best_rsum": None, "history": [], "plain": {}, "partial": False,
}  # fmt: skip


def checkpoint(folder: Path, head: Any) -> Checkpoint:
    write_tensors({"model.w": torch.ones(2)}, folder / "last.safetensors", {"state": json.dumps(head)})
    return Checkpoint(folder, "f")


def test_it_is_read_back(tmp_path: Path) -> None:
    state = Checkpoint(tmp_path, "f")
    assert state.load() is None
    layer = torch.nn.Linear(2, 2)
    labels = {"y": np.arange(3), "k": 5}
    state.save(TrainingState(Position(1, 2, 3), layer.state_dict(), {}, labels, None, 1.5, [{"epoch": 1}], None))
    found = state.load()
    assert found is not None and found.position == Position(1, 2, 3) and found.best_rsum == 1.5
    assert torch.equal(found.model["weight"], layer.weight) and found.labels["y"].tolist() == [0, 1, 2]
    assert (found.labels["k"], found.partial, found.best, found.history) == (5, None, None, [{"epoch": 1}])


@pytest.mark.parametrize(
    "head",
    [*({k: v for k, v in HEAD.items() if k != name} for name in HEAD), [], 3, HEAD | {"position": 1},
     HEAD | {"position": [1]}, HEAD | {"plain": []}, HEAD | {"history": None}],
)  # fmt: skip
def test_a_head_that_lacks_something_or_has_other_types(tmp_path: Path, head: Any) -> None:
    assert checkpoint(tmp_path, HEAD).load() is not None
    with pytest.raises(DataError, match="cannot be read"):
        checkpoint(tmp_path, head).load()
