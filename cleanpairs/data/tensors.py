"""Tensors to a safetensors file, with the disk's faults as what they are."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_OS_ERROR = re.compile(r"os error (\d+)")  # as Rust reports what the system said


def write_tensors(tensors: Mapping[str, Any], path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write ``tensors``, arrays or torch tensors, all of one kind; inside :func:`cleanpairs.data.staged_file`.

    Raises OSError: it cannot be written: a full disk, a fault of it. safetensors has an exception of its own for that.
    """
    from safetensors import SafetensorError

    try:
        if all(hasattr(value, "__array_interface__") for value in tensors.values()):
            from safetensors.numpy import save_file as save_arrays

            save_arrays(dict(tensors), path, metadata=None if metadata is None else dict(metadata))
        else:
            from safetensors.torch import save_file

            save_file(dict(tensors), path, metadata=None if metadata is None else dict(metadata))
    except SafetensorError as error:
        found = _OS_ERROR.search(str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from error
