"""Write labels and facts at positions that may differ between rows; all other positions have no label."""

from __future__ import annotations

import numpy as np

from tasks.spec import IGNORED

LAST = np.array([-1])
"""Index of the last position of every row."""


def labels_at(positions: np.ndarray, values: np.ndarray, seq_len: int) -> np.ndarray:
    """Return labels, int64 (n, seq_len): `values` (n, k) at `positions`; -100 elsewhere. Both broadcast to (n, k)."""
    return _scattered(IGNORED, np.int64, positions, values, seq_len)


def fact_at(positions: np.ndarray, values: np.ndarray, seq_len: int) -> np.ndarray:
    """Return a fact, int32 (n, seq_len): `values` (n, k) at `positions`; -1 elsewhere. Both broadcast to (n, k)."""
    return _scattered(-1, np.int32, positions, values, seq_len)


def _scattered(nothing: int, dtype: type, positions: np.ndarray, values: np.ndarray, seq_len: int) -> np.ndarray:
    positions, values = np.broadcast_arrays(positions, values)
    array = np.full((len(positions), seq_len), nothing, dtype)
    np.put_along_axis(array, positions, values, axis=1)
    return array
