"""Torch's state of the process or thread: a fit does not depend on the caller's, and leaves it as it was."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

_lock = threading.RLock()
_defaults: list[torch.dtype] = []  # the default type as it was, once for each who computes in float32 now


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators within the block, for one thread of ours at a time. Then restore their states.

    Notes
    -----
    A process has one for each device. Other threads of the caller can still draw from them meanwhile.
    """
    with _lock, _float32():
        gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else range(0)
        with torch.random.fork_rng(gpus, device_type="cuda"):
            torch.default_generator.manual_seed(seed)  # torch.manual_seed formats a stack on a machine without a GPU
            if gpus:
                torch.cuda.manual_seed_all(seed)
            yield


@contextmanager
def default_modes() -> Iterator[None]:
    """Compute on the CPU, in float32 and with gradients, unless the code within says otherwise."""
    with _float32(), torch.inference_mode(False), torch.enable_grad(), ExitStack() as modes:
        for device in ("cpu", "cuda"):
            modes.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":  # this mode costs time in every call
            modes.enter_context(torch.device("cpu"))
        yield


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode within the block. Then restore the mode of each of its parts."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def _float32() -> Iterator[None]:
    with _lock:  # the type is the process's: the last thread that needs it gives it back
        _defaults.append(_defaults[0] if _defaults else torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        with _lock:
            before = _defaults.pop()
            if not _defaults:
                torch.set_default_dtype(before)
