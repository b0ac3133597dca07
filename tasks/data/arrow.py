"""Convert arrays to Arrow tables and columns to arrays, in bulk; an example is a (nested) list of fixed size."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tasks.base import Arrays


def to_table(arrays: Arrays) -> pa.Table:
    """Return the arrays as a table with one row per example."""
    return pa.table({name: _lists(array) for name, array in arrays.items()})


def read_column(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray | None]:
    """Copy a column into an array, short rows padded by zeros; also return the rows' lengths, None if all are equal.

    Raises:
        ValueError: a null that is not among floats, lists of several lengths within a row.
    """
    values, lengths = _array(column.combine_chunks())
    return values.copy(), lengths


def _lists(array: np.ndarray) -> pa.Array:
    values = pa.array(array.reshape(-1))
    for width in reversed(array.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, width)
    return values


def _array(values: pa.Array) -> tuple[np.ndarray, np.ndarray | None]:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if values.null_count and not pa.types.is_floating(values.type):
        raise ValueError(f"{values.null_count} values are null")
    if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type) or _is_fixed(values.type)):
        return values.to_numpy(zero_copy_only=False), None
    inner, ragged = _array(values.flatten())
    if ragged is not None:
        raise ValueError("the lists within a row are of several lengths")
    if _is_fixed(values.type):
        return inner.reshape(len(values), values.type.list_size, *inner.shape[1:]), None
    lengths = values.value_lengths().to_numpy(zero_copy_only=False)
    shape = (len(values), int(lengths.max(initial=0)), *inner.shape[1:])
    if (lengths == shape[1]).all():
        return inner.reshape(shape), None
    filled = np.zeros(shape, inner.dtype)
    filled[np.arange(shape[1]) < lengths[:, None]] = inner
    return filled, lengths


def _is_fixed(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.FixedSizeListType)
