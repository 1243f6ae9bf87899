"""Sizes of the rows of Arrow arrays, computed without converting a value to Python."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

ITEM_BYTES: Final = 2
"""Bytes for a value without a length, such as a number: the least that it takes as JSON."""

Sizes = NDArray[np.int64]


def batch_sizes(batch: pa.RecordBatch) -> Sizes:
    """Return the bytes of each row [n] of a batch."""
    return sum((row_sizes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))


def row_sizes(array: pa.Array) -> Sizes:
    """Return the bytes of each row [n]: of text its UTF-8, of lists and structs the sum of their values.

    The values of a dictionary count in every row that refers to them.
    """
    kind: Any = array.type
    if isinstance(array, pa.ExtensionArray):
        return row_sizes(array.storage)
    if pa.types.is_dictionary(kind):
        return _lengths_of_codes(array)
    if _has_offsets(kind):
        return _differences(_offsets(array))
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        return row_sizes(array.cast(pa.large_binary()))
    if pa.types.is_struct(kind):
        fields = (row_sizes(array.field(i)) for i in range(kind.num_fields))
        return sum(fields, np.zeros(len(array), np.int64))
    if pa.types.is_fixed_size_list(kind):
        items = row_sizes(array.values)[array.offset * kind.list_size :][: len(array) * kind.list_size]
        return (items + ITEM_BYTES).reshape(len(array), kind.list_size).sum(axis=1)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        ends = np.concatenate([[0], np.cumsum(row_sizes(array.values) + ITEM_BYTES)])
        return _differences(ends[array.offsets.to_numpy()])
    return np.full(len(array), ITEM_BYTES, np.int64)


def _has_offsets(kind: Any) -> bool:
    is_type = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(check(kind) for check in is_type)


def _offsets(array: pa.Array) -> NDArray[Any]:
    """The position of each value [n + 1] of a text or binary array in its buffer; nothing is copied."""
    if len(array) == 0:
        return np.zeros(1, np.int64)
    is_large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    width = np.dtype(np.int64 if is_large else np.int32)
    count, skipped = len(array) + 1, array.offset * width.itemsize
    return np.frombuffer(array.buffers()[1], width, count, skipped)


def _differences(positions: NDArray[Any]) -> Sizes:
    return positions[1:].astype(np.int64) - positions[:-1]


def _lengths_of_codes(array: Any) -> Sizes:
    """The length of the value that each code [n] of a dictionary array stands for; only the codes' values are read."""
    values = array.dictionary
    if not _has_offsets(values.type) or len(values) == 0:
        return np.full(len(array), ITEM_BYTES, np.int64)
    codes, offsets = array.indices.fill_null(0).to_numpy(), _offsets(values)
    is_valid = array.indices.is_valid().to_numpy(zero_copy_only=False)
    return np.where(is_valid, offsets[codes + 1].astype(np.int64) - offsets[codes], 0)
