"""Several processes that train one model: the rank of each, and what they exchange.

``torchrun`` and the like start them, and set their ranks in the environment. With one process these functions do
nothing, and import nothing. The processes exchange tensors, and bytes that are safetensors: nothing that could run.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from cleanpairs.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


def rank_by_environment() -> int | None:
    """Number of this process, from 0, by the environment. None: it is alone. Raises ConfigError: it is no number."""
    if any(name not in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")):
        return None
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if not (rank.isdecimal() and size.isdecimal()):
        raise ConfigError(f"RANK is {rank!r} and WORLD_SIZE {size!r}: give numbers, or unset both for one process")
    return int(rank) if int(size) > 1 else None


@contextmanager
def process_group(device: str = "cpu") -> Iterator[None]:
    """Connect the processes of the launcher within the block. ``device`` {"cpu", "cuda"}: where they train."""
    if rank_by_environment() is None or world_size() > 1:
        yield
        return
    import torch

    # Before there is a group: its functions take the one that there is at their import as the default of a parameter,
    # so it would never end, and its threads would run into the end of the interpreter, which aborts the process.
    import torch.distributed.nn
    from torch import distributed

    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    patience = timedelta(days=1)  # the first process may encode many images while the others wait
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=patience)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _group() -> Any:
    """torch.distributed, if the processes are connected. None else, without importing it."""
    torch = sys.modules.get("torch")
    initialised = torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed if torch is not None and initialised else None


def world_size() -> int:
    """The number of processes that train together."""
    group = _group()
    return 1 if group is None else int(group.get_world_size())


def rank() -> int:
    """The number of this process, from 0. The first one writes and reports."""
    group = _group()
    return 0 if group is None else int(group.get_rank())


@contextmanager
def main_process_first() -> Iterator[None]:
    """Let the first process run the block before the others: they find what it caches on disk."""
    if rank() > 0:
        all_reduce_max(0)
    try:
        yield
    finally:
        if rank() == 0:
            all_reduce_max(0)


def all_reduce_max(value: int) -> int:
    """The largest of the processes' values."""
    group = _group()
    if group is None:
        return value
    import torch

    buffer = torch.tensor([int(value)])  # on the CPU: NCCL would need to know which GPU
    group.all_reduce(buffer, group.ReduceOp.MAX)
    return int(buffer.item())


def broadcast(value: Any) -> Any:
    """The first process's value: one as JSON has them, or a dict of such and of arrays."""
    group = _group()
    if group is None:
        return value
    import numpy as np
    import torch
    from safetensors.numpy import load, save

    packed = b""
    if rank() == 0:
        content = value if isinstance(value, dict) else {"": value}
        arrays = {f"array.{k}": np.ascontiguousarray(v) for k, v in content.items() if isinstance(v, np.ndarray)}
        plain = json.dumps({k: v for k, v in content.items() if not isinstance(v, np.ndarray)}).encode()
        packed = save({"plain": np.frombuffer(plain, dtype=np.uint8), **arrays})
    size = all_reduce_max(len(packed))
    buffer = torch.frombuffer(bytearray(packed or size), dtype=torch.uint8)
    group.broadcast(buffer, 0)
    tensors = load(buffer.numpy().tobytes())
    values: dict[str, Any] = json.loads(tensors.pop("plain").tobytes())
    values |= {k.removeprefix("array."): v for k, v in tensors.items()}
    return values if isinstance(value, dict) else values[""]


def all_gather(own: "Tensor", n: int) -> "Tensor":
    """All rows (n, ...). Each process has every ``world``-th one in ``own``, from its number on. No gradient."""
    group = _group()
    if group is None:
        return own.detach()
    most_rows, world = -(-n // world_size()), world_size()
    rows, out = own.new_zeros(most_rows, *own.shape[1:]), own.new_empty(world, most_rows, *own.shape[1:])
    rows[: len(own)] = own.detach()
    group.all_gather(list(out.unbind(0)), rows)
    return out.transpose(0, 1).flatten(0, 1)[:n]
