"""Arrays in files: ``.npy`` to be mapped, tensors as safetensors, with errors of the disk as OSError."""

import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cleanpairs.core import DataError
from cleanpairs.core.regular import AnyPath, cached_by_file, check_regular, reading


def as_array(what: str, values: Any, dtype: type | None = None) -> np.ndarray:
    """``values`` as an array. Floats of 16 to 64 bits stay so, in this machine's byte order, and are NaN
    where they are masked. Where they are to be float, int or bool, no value may change.

    Raises DataError, which calls them ``what``: text is no number, 0.5 is no int, and 2 and NaN are no bool.
    """
    with reading(what, "taken as numbers", ValueError, TypeError, RuntimeError), np.errstate(invalid="ignore"):
        masked = np.ma.isMaskedArray(values) and values.dtype.kind == "f"
        array = np.asarray(values.filled(np.nan) if masked else values)
        if array.dtype == object:  # vectors of pandas, and numbers of which some are missing
            array = np.array(array.tolist())
        if array.dtype.kind == "f":
            array = array.astype(f"f{min(array.itemsize, 8)}", copy=False)  # torch takes no others
        if dtype is None or (dtype is float and array.dtype.kind == "f"):
            return array
        if array.size and array.dtype.kind not in {float: "biufO", int: "iuf", bool: "biuf"}[dtype]:
            raise TypeError(f"they are {array.dtype}")
        cast: np.ndarray = array.astype(dtype)
        if dtype is not float and not np.array_equal(cast, array):
            raise ValueError(f"they are not all {'True or False' if dtype is bool else 'whole'}")
        return cast


def check_correspondence(y: np.ndarray) -> None:
    """Raise DataError where a correspondence (n,) is outside [0, 1]. NaN is that of a quarantined pair."""
    if np.any((y < 0) | (y > 1)):
        raise DataError(f"the correspondence must be in [0, 1], found {np.nanmin(y):.3g} to {np.nanmax(y):.3g}")


def as_truths(values: Any) -> tuple[np.ndarray, np.ndarray]:
    """``values`` as bool, and where they are unknown: masked, or missing in a Series. DataError: they are no bool."""
    if not hasattr(values, "isna"):
        return as_array("truths", values, bool), np.ma.getmaskarray(values)
    unknown = np.asarray(values.isna())
    return as_array("truths", np.where(unknown, False, values), bool), unknown


def read_npy(path: AnyPath) -> np.ndarray:
    """The array of a ``.npy`` file, memory-mapped, not to be written. Raises DataError: it cannot be read as one."""
    with reading(path, "read as an array", Exception):  # a damaged header raises tokenize's errors, too
        check_regular(path)
        array = np.lib.format.open_memmap(path, mode="r")
    return np.asarray(array) if array.size == 0 else array


@cached_by_file(1 << 14)
def read_vectors(path: str, regions: bool = False) -> np.ndarray:
    """As :func:`read_npy`, floats (n, D), or (n, R, D) where ``regions`` may be. DataError otherwise."""
    array = read_npy(path)
    if array.ndim not in (2, 3)[: 1 + regions] or array.dtype.kind != "f" or array.itemsize > 8 or 0 in array.shape[1:]:
        shape = "(n, D) or (n, R, D)" if regions else "(n, D)"
        raise DataError(f"{path} must hold floats of 16, 32 or 64 bits, {shape}; found {array.dtype} {array.shape}")
    return array


def write_tensors(tensors: Mapping[str, Any], path: str | Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write ``tensors``, arrays or torch tensors, all of one kind, with a checksum in the file's metadata.

    Raises OSError, where safetensors has its own.
    """
    from safetensors import SafetensorError

    if all(isinstance(value, np.ndarray) for value in tensors.values()):
        from safetensors.numpy import save_file
    else:
        from safetensors.torch import save_file  # type: ignore[assignment]
    metadata = dict(metadata or {})
    try:
        save_file(dict(tensors), path, metadata=metadata | {"checksum": _checksum(tensors, metadata)})
    except SafetensorError as error:
        match = re.search(r"os error (\d+)", str(error))  # Rust's form of an error of the system
        if match is None:
            raise
        number = int(match[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def read_tensors(path: str | Path, framework: str = "np") -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors and the metadata that :func:`write_tensors` wrote.

    Raises SafetensorError or ValueError: the file is damaged.
    """
    from safetensors import safe_open

    check_regular(path)
    with safe_open(path, framework=framework) as file:
        metadata = dict(file.metadata() or {})
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    if metadata.pop("checksum", None) != _checksum(tensors, metadata):
        raise ValueError("its checksum is not that of its content")
    return tensors, metadata


def _checksum(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    """CRC-32 of metadata, and of the tensors' names, types, shapes and bytes."""
    checksum = zlib.crc32(repr(sorted(metadata.items())).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        kind = str(tensor.dtype).removeprefix("torch.")
        checksum = zlib.crc32(f"{name} {kind} {tuple(tensor.shape)}".encode(), checksum)
        if isinstance(tensor, np.ndarray):
            content = tensor.reshape(-1).view(np.uint8)
        else:
            from torch import uint8

            content = tensor.detach().cpu().reshape(-1).view(uint8).numpy()
        checksum = zlib.crc32(content.data, checksum)
    return f"{checksum:08x}"
