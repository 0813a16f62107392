"""A network's forward by ``torch.compile``, as long as that works."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Compiled:
    """Calls ``module`` compiled; where the compiler fails, which it does at the first call, as it is from then on.

    - ``failed``: what the compiler said
    """

    def __init__(self, module: nn.Module, backend: str = "inductor") -> None:
        self.module = module
        self.compiled: Any = torch.compile(module, dynamic=True, backend=backend)  # captions have many lengths
        self.failed: str | None = None

    def __call__(self, *args: Any) -> Any:
        """As the module."""
        if self.failed is None:
            try:
                return self.compiled(*args)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:  # whatever the compiler of this machine throws
                lines = str(error).strip().splitlines()
                said = " ".join(lines[:2]) or "it does not say why"  # torch says in the second what the backend said
                self.failed = f"{type(error).__name__}: {said}"[:200]
        return self.module(*args)
