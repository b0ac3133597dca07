"""Arrays to Arrow tables and back: one fixed-size list per example, so both ways are bulk copies."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.base import Arrays
from tasks.spec import TaskSpec


@dataclass(frozen=True)
class Column:
    """How one array is kept.

    Attributes:
        dtype: of its numbers.
        shape: of one example.
    """

    dtype: str
    shape: list[int]

    @classmethod
    def of(cls, name: str, array: np.ndarray, spec: TaskSpec) -> Column:
        """The column for the array `name`; tokens and labels take the smallest integers that hold them."""
        dtype = array.dtype
        if name in ("inputs", "labels") and dtype.kind == "i":
            top = max(spec.vocab_size or 0, spec.n_outputs) - 1
            dtype = next(np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64) if top <= np.iinfo(t).max)
        return cls(dtype.name, list(array.shape[1:]))

    @property
    def width(self) -> int:
        """Numbers per example."""
        return math.prod(self.shape)


def to_table(arrays: Arrays, layout: dict[str, Column]) -> pa.Table:
    """The arrays as a table with one row per example."""
    columns = {}
    for name, column in layout.items():
        values = pa.array(arrays[name].astype(column.dtype, copy=False).reshape(-1))
        columns[name] = pa.FixedSizeListArray.from_arrays(values, column.width)
    return pa.table(columns)


def read_arrays(path: Path, layout: dict[str, Column]) -> Arrays:
    """The arrays in an Arrow stream file, each chunk copied once from the memory map.

    Raises:
        OSError: the file is missing, or is not an Arrow stream with these columns.
    """
    try:
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_stream(source).read_all()
            return {name: _column_array(table.column(name), column) for name, column in layout.items()}
    except (pa.ArrowException, KeyError) as error:
        raise OSError(f"not the Arrow stream of this split: {error}") from error


def _column_array(column: pa.ChunkedArray, kept: Column) -> np.ndarray:
    array = np.empty((len(column), *kept.shape), dtype=kept.dtype)
    start = 0
    for chunk in column.chunks:
        stop = start + len(chunk)
        array[start:stop] = chunk.flatten().to_numpy().reshape(-1, *kept.shape)
        start = stop
    return array
