"""The state of a training on disk: one safetensors file, with plain JSON in its metadata. Nothing in it can run.

What is not in it is derived: all random numbers come from (seed, stage, epoch, step), see :mod:`cleanpairs.trainer`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cleanpairs.core.errors import DataError
from cleanpairs.core.regular import check_regular
from cleanpairs.data.arrays import write_tensors
from cleanpairs.data.atomic import staged_file


@dataclass(frozen=True)
class Position:
    """Where to go on: ``step`` batches of ``epoch`` of ``stage`` are done (stage and epoch from 1)."""

    stage: int
    epoch: int
    step: int


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was read."""

    position: Position
    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]  # "<network>.<parameter number>.<name>"
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
        for at, moments in state.items():
            if at >= len(weights) or any(m.dim() and m.shape != weights[at].shape for m in moments.values()):
                raise DataError(
                    "the checkpoint is of a network with other weights, as of another version of cleanpairs; "
                    "start again with --overwrite"
                )
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})


class Checkpoint:
    """The file ``last.safetensors`` in ``directory``.

    ``fingerprint``: of the input and the settings; a checkpoint of another one is refused on loading.
    """

    def __init__(self, directory: str | Path, fingerprint: str) -> None:
        self.path = Path(directory) / "last.safetensors"
        self.fingerprint = fingerprint

    def save(
        self,
        *,
        position: Position,
        model: dict[str, Tensor],
        optimizers: Sequence[Any],
        labels: dict[str, Any],
        best: dict[str, Tensor] | None,
        best_rsum: float | None,
        history: list[dict[str, Any]],
        partial: dict[str, Any] | None,
    ) -> None:
        """Replace the file, atomically."""
        tensors: dict[str, Tensor] = {f"model.{k}": v for k, v in model.items()}
        for network, optimizer in enumerate(optimizers):
            for number, state in optimizer.state_dict()["state"].items():
                tensors.update({f"optimizer.{network}.{number}.{k}": torch.as_tensor(v) for k, v in state.items()})
        if best is not None:
            tensors.update({f"best.{k}": v for k, v in best.items()})
        plain: dict[str, Any] = {}
        for prefix, group in (("labels", labels), ("partial", partial or {})):
            for key, value in group.items():
                if isinstance(value, np.ndarray):
                    tensors[f"{prefix}.{key}"] = torch.from_numpy(np.ascontiguousarray(value))
                else:
                    plain[f"{prefix}.{key}"] = value
        head = {
            "fingerprint": self.fingerprint,
            "position": [position.stage, position.epoch, position.step],
            "best_rsum": best_rsum,
            "history": history,
            "plain": plain,
            "partial": partial is not None,
        }
        contiguous = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
        with staged_file(self.path, overwrite=True) as path:
            write_tensors(contiguous, path, metadata={"state": json.dumps(head)})

    def load(self) -> Restored | None:
        """The saved state, or None when there is none.

        Raises DataError: the file is damaged, or belongs to other data or settings.
        """
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return None
        try:
            check_regular(self.path)
            with safe_open(self.path, framework="pt") as f:
                head = json.loads((f.metadata() or {})["state"])
                tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118 - not a dict
            fingerprint, position = head["fingerprint"], Position(*head["position"])
            best_rsum, history, plain, partly = (head[k] for k in ("best_rsum", "history", "plain", "partial"))
            if not (isinstance(history, list) and isinstance(plain, dict)):
                raise TypeError("its history and its labels are not what was written")
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
            raise DataError(
                f"the checkpoint {self.path} cannot be read ({error}); start again with --overwrite"
            ) from error
        if fingerprint != self.fingerprint:
            raise DataError(
                f"the checkpoint {self.path} belongs to other data or settings; resume with the same ones, "
                "or start again with --overwrite"
            )

        found: dict[str, dict[str, Any]] = {name: {} for name in ("model", "optimizer", "best", "labels", "partial")}
        for name, value in {**tensors, **plain}.items():
            prefix, _, rest = name.partition(".")
            of_method = prefix in ("labels", "partial") and isinstance(value, Tensor)
            found.setdefault(prefix, {})[rest] = value.numpy() if of_method else value
        partial = found["partial"] if partly else None
        return Restored(
            position, found["model"], found["optimizer"], found["labels"], found["best"] or None, best_rsum, history,
            partial,
        )  # fmt: skip
