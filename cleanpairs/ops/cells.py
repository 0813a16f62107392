"""Codes of the values of Arrow columns: 64 bits a cell, equal for equal values, whatever array they lie in.

What an export may change about a column (dictionaries, kinds of lists, a float's precision) does not change its codes.
"""

from hashlib import blake2b
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NULL = np.uint64(0x9E6B3D1F5A77C8E1)  # the code of a cell that is null
NONE = np.empty(0, np.uint64)


def codes(array: pa.Array) -> np.ndarray:
    """(n,) uint64; for numbers and times their bits, for whatever is longer 64 bits of BLAKE2b."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return codes(array.storage)
    if pa.types.is_null(kind):
        return np.full(len(array), NULL)
    if pa.types.is_dictionary(kind):
        within = np.append(codes(array.dictionary), NULL)
        at = array.indices.cast(pa.int64()).fill_null(len(within) - 1)
        return within[at.to_numpy(zero_copy_only=False)]
    if pa.types.is_struct(kind):
        parts = [codes(array.field(i)) for i in range(kind.num_fields)]
        found = list_codes(np.ravel(np.column_stack(parts)) if parts else NONE, [len(parts)] * len(array))
    elif pa.types.is_map(kind):  # without a cast, which ends the process on some slices of lists of the type null
        ends = array.offsets.to_numpy()
        parts = [codes(part.slice(ends[0], ends[-1] - ends[0])) for part in (array.keys, array.items)]
        found = list_codes(list_codes(np.ravel(np.column_stack(parts)), [2] * len(parts[0])), np.diff(ends))
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = list_lengths(array)
        bare = pa.types.is_null(kind.value_type)  # of slices of these, pyarrow does not flatten as many
        found = list_codes(np.full(lengths.sum(), NULL) if bare else codes(array.flatten()), lengths)
    elif pa.types.is_floating(kind):
        found = np.where(array.is_null(), 0, array.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.float64)
        found[np.isnan(found)] = np.nan  # of one sign and one payload
        found = found.view(np.uint64)
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        whole = array.cast(pa.uint8()) if pa.types.is_boolean(kind) else array
        found = whole.fill_null(0).to_numpy(zero_copy_only=False)
        found = found.astype(np.int64).view(np.uint64) if found.dtype != np.uint64 else found.copy()
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        narrow = pa.types.is_date32(kind) or pa.types.is_time32(kind)
        return codes(array.cast(pa.int32()) if narrow else array.cast(pa.int64()))
    else:
        cells = (NULL.tobytes() if c is None else blake2b(c, digest_size=8).digest() for c in _bytes(array))
        return np.frombuffer(b"".join(cells), np.uint64).copy()
    return np.where(array.is_null().to_numpy(zero_copy_only=False), NULL, found)


def list_codes(values: np.ndarray, lengths: np.ndarray | list[int]) -> np.ndarray:
    """The codes (n,) of lists of ``lengths`` (n,) consecutive cells, by the codes ``values`` of these."""
    ends = [0, *(np.cumsum(np.asarray(lengths, np.int64)) * 8).tolist()]
    data = memoryview(np.ascontiguousarray(values).tobytes())
    found = [blake2b(data[a:b], digest_size=8).digest() for a, b in pairwise(ends)]
    return np.frombuffer(b"".join(found), np.uint64).copy()


def list_lengths(array: pa.Array) -> np.ndarray:
    """(n,) int64, 0 where there is no list."""
    return np.asarray(pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False), np.int64)


def readable(array: pa.Array) -> pa.Array:
    """Text as a plan has it: plain strings, of whole numbers too, with what is not UTF-8 replaced."""
    return decoded(array)[0]


def decoded(array: pa.Array) -> tuple[pa.Array, list[int]]:
    """As :func:`readable`, and the rows that were not UTF-8."""
    array = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    text = array.cast(pa.string(), safe=False) if not pa.types.is_string_view(array.type) else array.cast(pa.string())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        cells = text.cast(pa.binary()).to_pylist()
        texts = [None if cell is None else cell.decode("utf-8", "replace") for cell in cells]
        spoilt = [i for i, text in enumerate(texts) if text is not None and text.encode() != cells[i]]
        return pa.array(texts, pa.string()), spoilt
    return text, []


def _bytes(array: pa.Array) -> list[bytes | None]:
    kind = array.type
    if pa.types.is_decimal(kind) or pa.types.is_string_view(kind):
        array = array.cast(pa.string())
    try:
        return list(array.cast(pa.large_binary()).to_pylist())
    except pa.ArrowNotImplementedError:  # an interval, a union
        return [None if cell is None else repr(cell).encode() for cell in array.to_pylist()]
