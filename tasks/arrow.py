"""Arrays to Arrow tables and back: one (nested) list of fixed size per example, so both ways are bulk copies."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tasks.base import Arrays


def to_table(arrays: Arrays) -> pa.Table:
    """The arrays as a table with one row per example."""
    return pa.table({name: _lists(array) for name, array in arrays.items()})


def from_table(table: pa.Table) -> Arrays:
    """The arrays that `to_table` was given, copied: they outlive the file that the table is mapped from."""
    return {name: _array(table.column(name)) for name in table.column_names}


def _lists(array: np.ndarray) -> pa.Array:
    values = pa.array(array.reshape(-1))
    for width in reversed(array.shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, width)
    return values


def _array(column: pa.ChunkedArray) -> np.ndarray:
    values, shape = column.combine_chunks(), [len(column)]
    while isinstance(values.type, pa.FixedSizeListType):
        shape.append(values.type.list_size)
        values = values.flatten()
    return values.to_numpy(zero_copy_only=False).reshape(shape).copy()
