"""Several processes that train one model: who is here, and what they tell each other.

``torchrun``, ``accelerate launch`` and their kin start the processes and say in the environment who each one is (RANK,
WORLD_SIZE, LOCAL_RANK, MASTER_ADDR). With one process everything here does nothing, and imports nothing.

What is told is tensors, and bytes that are text or safetensors: nothing that could run.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from cleanpairs.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE = timedelta(days=1)  # the first process may encode many images while the others wait
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def asked_for() -> int:
    """Processes that the launcher started, by the environment; 1 without a launcher.

    Raises ConfigError: the environment speaks of several processes and holds no number of one.
    """
    if any(name not in os.environ for name in VARIABLES):
        return 1
    try:
        return max(1, int(os.environ["WORLD_SIZE"]))
    except ValueError as error:
        raise ConfigError(f"WORLD_SIZE must be a whole number, found {os.environ['WORLD_SIZE']!r}") from error


def rank_by_environment() -> int:
    """Number of this process by the environment, from 0; for what happens before they know each other."""
    value = os.environ.get("RANK", "")
    return int(value) if asked_for() > 1 and value.isdigit() else 0


@contextmanager
def process_group(device: str = "cpu") -> Iterator[None]:
    """While entered, the processes of the launcher know each other; nothing happens with one, or where they do.

    ``device`` {"cpu", "cuda"}: where they train: tensors on a GPU go by NCCL, those in memory by Gloo.
    """
    if asked_for() == 1 or world_size() > 1:
        yield
        return
    import torch

    # Before there is a group: its functions take the one that there is at their import as the default of a parameter,
    # so it would never end, and its threads would run into the end of the interpreter, which aborts the process.
    import torch.distributed.nn
    from torch import distributed

    if device == "cuda":
        torch.cuda.set_device(local_device(device))
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _group() -> Any:
    """torch.distributed, if the processes know each other; None else, without importing it."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed


def world_size() -> int:
    """Processes that train together."""
    group = _group()
    return 1 if group is None else int(group.get_world_size())


def rank() -> int:
    """Number of this one, from 0."""
    group = _group()
    return 0 if group is None else int(group.get_rank())


def is_first() -> bool:
    """Whether this is the process that writes and reports."""
    return rank() == 0


def local_device(device: str) -> str:
    """``cuda`` as the GPU of this process, by its number on its machine."""
    if device != "cuda" or asked_for() == 1:
        return device
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0'))}"


def together() -> None:
    """Wait for each other."""
    any_of(False)


@contextmanager
def first_goes_ahead() -> Iterator[None]:
    """While the first process is within, the others wait: what it caches on disk they need not make again."""
    if not is_first():
        together()
    try:
        yield
    finally:
        if is_first():
            together()


def any_of(flag: bool) -> bool:
    """Whether it holds for any process."""
    group = _group()
    if group is None:
        return flag
    import torch

    box = torch.tensor([int(flag)])  # on the CPU: NCCL would need to know which GPU
    group.all_reduce(box)
    return bool(box.item())


def all_same(text: str) -> bool:
    """Whether all processes have the same text."""
    return not any_of(of_first(text) != text)


def of_first(value: Any) -> Any:
    """What the first process has: a value as JSON has them, or a dict of such and of arrays."""
    group = _group()
    if group is None:
        return value
    import torch
    from safetensors.numpy import load, save

    packed = b""
    if is_first():
        inner = value if isinstance(value, dict) else {"": value}
        arrays = {f"array.{k}": np.ascontiguousarray(v) for k, v in inner.items() if isinstance(v, np.ndarray)}
        plain = json.dumps({k: v for k, v in inner.items() if not isinstance(v, np.ndarray)}).encode()
        packed = save({"plain": np.frombuffer(plain, dtype=np.uint8), **arrays})
    size = torch.tensor([len(packed)])
    group.broadcast(size, 0)
    box = (
        torch.frombuffer(bytearray(packed), dtype=torch.uint8) if packed else torch.empty(int(size), dtype=torch.uint8)
    )
    group.broadcast(box, 0)
    found = load(box.numpy().tobytes())
    told: dict[str, Any] = json.loads(found.pop("plain").tobytes())
    told |= {k.removeprefix("array."): v for k, v in found.items()}
    return told if isinstance(value, dict) else told[""]


def gather_rows(x: "Tensor", most: int) -> "Tensor":
    """Rows of all processes: (world, most, ...) of ``x`` (n, ...) with n <= most, padded by zeros. No gradient."""
    group = _group()
    padded = x.new_zeros(most, *x.shape[1:])
    padded[: len(x)] = x.detach()
    if group is None:
        return padded[None]
    out = x.new_zeros(group.get_world_size(), *padded.shape)
    group.all_gather(list(out.unbind(0)), padded)
    return out
