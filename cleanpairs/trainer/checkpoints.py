"""The state of a training on disk: one safetensors file, with plain JSON in its metadata. Nothing in it can run.

What is not in it is derived: all random numbers come from (seed, stage, epoch, step), see :mod:`cleanpairs.trainer`.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import check_regular, reading
from cleanpairs.data.arrays import write_tensors
from cleanpairs.data.atomic import staged_file

GROUPS = ("model", "optimizer", "best", "labels", "partial")  # fields that are tables by name


class Position(NamedTuple):
    """Where to go on: ``step`` batches of ``epoch`` of ``stage`` are done (stage and epoch from 1)."""

    stage: int
    epoch: int
    step: int


@dataclass(frozen=True)
class TrainingState:
    """What a training goes on from; ``optimizer``: of :func:`moments`."""

    position: Position
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    labels: dict[str, Any]
    best: dict[str, Tensor] | None
    best_rsum: float | None
    history: list[dict[str, Any]]
    partial: dict[str, Any] | None

    def load_optimizer(self, optimizer: Any, network: int = 0) -> None:
        """Put the moments of one network back into ``optimizer``; DataError where its weights are others."""
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in self.optimizer.items():
            owner, number, key = name.split(".", 2)
            if int(owner) == network:
                state.setdefault(int(number), {})[key] = value
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        for at, found in state.items():
            if at >= len(weights) or any(m.dim() and m.shape != weights[at].shape for m in found.values()):
                raise DataError(
                    "the checkpoint is of a network with other weights, as of another version of cleanpairs; "
                    "start again with --overwrite"
                )
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def moments(optimizers: Sequence[Any]) -> dict[str, Tensor]:
    """What optimisers know of each weight: ``<network>.<parameter number>.<name>``."""
    return {
        f"{network}.{number}.{name}": torch.as_tensor(value)
        for network, optimizer in enumerate(optimizers)
        for number, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }


class Checkpoint:
    """The file ``last.safetensors`` in ``directory``.

    ``fingerprint``: of the input and the settings; a checkpoint of another one is refused on loading.
    """

    def __init__(self, directory: str | Path, fingerprint: str) -> None:
        self.path = Path(directory) / "last.safetensors"
        self.fingerprint = fingerprint

    def save(self, state: TrainingState) -> None:
        """Replace the file, atomically."""
        tensors: dict[str, Tensor] = {}
        plain: dict[str, Any] = {}
        for group in GROUPS:
            for key, value in (getattr(state, group) or {}).items():
                if isinstance(value, np.ndarray | Tensor):
                    tensors[f"{group}.{key}"] = torch.as_tensor(value).detach().cpu().contiguous().clone()
                else:
                    plain[f"{group}.{key}"] = value
        head = {
            "fingerprint": self.fingerprint,
            "position": state.position,
            "best_rsum": state.best_rsum,
            "history": state.history,
            "plain": plain,
            "partial": state.partial is not None,
        }
        with staged_file(self.path, overwrite=True) as path:
            write_tensors(tensors, path, metadata={"state": json.dumps(head)})

    def load(self) -> TrainingState | None:
        """The saved state, or None when there is none.

        Raises DataError: the file is damaged, or belongs to other data or settings.
        """
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return None
        errors = SafetensorError, KeyError, TypeError, ValueError
        with reading(f"the checkpoint {self.path}", "read (start again with --overwrite)", *errors):
            check_regular(self.path)
            with safe_open(self.path, framework="pt") as f:
                head = json.loads((f.metadata() or {})["state"])
                tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118 - not a dict
            fingerprint, position = head["fingerprint"], Position(*head["position"])
            best_rsum, history, plain, partly = (head[k] for k in ("best_rsum", "history", "plain", "partial"))
            if not (isinstance(history, list) and isinstance(plain, dict)):
                raise TypeError("its history and its labels are not what was written")
        if fingerprint != self.fingerprint:
            raise DataError(
                f"the checkpoint {self.path} belongs to other data or settings; resume with the same ones, "
                "or start again with --overwrite"
            )
        found: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
        for name, value in {**tensors, **plain}.items():
            group, _, key = name.partition(".")
            of_method = group in ("labels", "partial") and isinstance(value, Tensor)
            found.setdefault(group, {})[key] = value.numpy() if of_method else value
        best, partial = found["best"] or None, found["partial"] if partly else None
        return TrainingState(
            position, found["model"], found["optimizer"], found["labels"], best, best_rsum, history, partial
        )
