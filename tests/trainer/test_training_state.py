"""A checkpoint that is damaged is an error of the data, whatever of it is damaged."""

import json
from pathlib import Path
from typing import Any

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


def test_without_a_validation_no_weights_are_the_best(tmp_path: Path) -> None:
    state = Checkpoint(tmp_path, "f")
    state.save(TrainingState(Position(1, 2, 3), {}, {}, {}, None, None, [], None))
    found = state.load()
    assert found is not None and found.best is None


@pytest.mark.parametrize(
    "head",
    [*({k: v for k, v in HEAD.items() if k != name} for name in HEAD), [], 3, HEAD | {"position": 1},
     HEAD | {"position": [1]}, HEAD | {"plain": []}, HEAD | {"history": None}],
)  # fmt: skip
def test_a_head_that_lacks_something_or_has_other_types(tmp_path: Path, head: Any) -> None:
    assert checkpoint(tmp_path, HEAD).load() is not None
    with pytest.raises(DataError, match="cannot be read"):
        checkpoint(tmp_path, head).load()
