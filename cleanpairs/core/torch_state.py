"""What torch keeps for the whole process or thread: a fit neither takes it from its caller, nor leaves it changed."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

_one = threading.RLock()
_callers: list[torch.dtype] = []  # the default type as it was, once for each who computes in float32 now


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from torch's generator, begun at ``seed``, as the only thread of ours. Then it is as it was.

    Notes
    -----
    A process has one such generator. What other threads of the caller draw from it meanwhile, nothing can hold back.
    """
    with _one, _float32():
        before = torch.get_rng_state()
        try:
            torch.default_generator.manual_seed(seed)  # torch.manual_seed formats a stack on a machine without a GPU
            if torch.cuda.is_initialized():
                torch.cuda.manual_seed_all(seed)
            yield
        finally:
            torch.set_rng_state(before)


@contextmanager
def own_modes() -> Iterator[None]:
    """Compute on the CPU, in float32 and with gradients, unless the code within says otherwise."""
    with _float32(), torch.inference_mode(False), torch.enable_grad(), ExitStack() as modes:
        for device in ("cpu", "cuda"):
            modes.enter_context(torch.autocast(device, enabled=False))
        if torch.get_default_device().type != "cpu":  # this mode costs time in every call
            modes.enter_context(torch.device("cpu"))
        yield


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode. Then each of its parts is in the mode that it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


@contextmanager
def _float32() -> Iterator[None]:
    with _one:  # the type is the process's: the last thread that needs it gives it back
        _callers.append(_callers[0] if _callers else torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        with _one:
            before = _callers.pop()
            if not _callers:
                torch.set_default_dtype(before)
