"""Cells of Arrow columns: the lengths of lists, and text that can be read."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


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
