"""Values written at positions that differ from row to row; all other positions have no label."""

from __future__ import annotations

import numpy as np

from tasks.spec import IGNORED


def labels_at(positions: np.ndarray, values: np.ndarray, seq_len: int) -> np.ndarray:
    """Return labels, int64 (n, seq_len): `values`, broadcast to `positions` (n, k), at those; -100 elsewhere."""
    return _scattered(np.full((len(positions), seq_len), IGNORED, dtype=np.int64), positions, values)


def fact_at(positions: np.ndarray, values: np.ndarray, seq_len: int) -> np.ndarray:
    """Return a fact, int32 (n, seq_len): `values`, broadcast to `positions` (n, k), at those; -1 elsewhere."""
    return _scattered(np.full((len(positions), seq_len), -1, dtype=np.int32), positions, values)


def _scattered(array: np.ndarray, positions: np.ndarray, values: np.ndarray) -> np.ndarray:
    np.put_along_axis(array, positions, np.broadcast_to(values, positions.shape), axis=1)
    return array
