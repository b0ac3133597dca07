"""Planted heads: recall with k relations, each an orthogonal map of the value of the queried key."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tasks.base import Arrays, Task
from tasks.spec import TaskSpec


class PlantedHeads(Task):
    """Regress R_r v, where v is the value of the queried key and R_r the map of the queried relation r.

    The input channels are d_value for a value, n_keys for a one-hot key, k for a one-hot relation, and one for BOS. The
    sequence is BOS, pairs of a key and a value v ~ N(0, I), all keys different, and a query of one of these keys and a
    relation. The label at the query is R_r v.

    The maps R_1 ... R_k are orthogonal, and orthogonal to one another as vectors: R_r = U S^r V with orthogonal U, V
    drawn from map_seed and S the cyclic shift. So the operators of the task span k dimensions, all equally strong. A
    layer of H heads, y = sum_h a_h M_h v, whose weights a_h do not depend on v, has a relative squared error of at
    least 1 - H/k (Eckart-Young); `floors` returns this bound as `floor_at_heads`. Non-negative weights attain it, if
    head h serves relation h. Predicting zero has relative squared error 1.

    Source: the head-count theorem of Ghodsi, arXiv 2512.15115, for recall; the task is this project's.

    Prediction: The error of attention with H heads ends at 1 - H/k. It ends lower only if the weights depend on v and
    fall on positions with a constant value, which turns the head into a hidden layer.

        >>> task = PlantedHeads(k=1, seq_len=3, n_keys=1, d_value=1)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(np.round(example["inputs"][0], 2))  # value, key, relation, BOS
        [[ 0.    0.    0.    1.  ]
         [-0.43  1.    0.    0.  ]
         [ 0.    1.    1.    0.  ]]
        >>> print(np.round(example["labels"][0, :, 0], 2))
        [  nan   nan -0.43]

    Args:
        k: number of relations, which is the sufficient number of heads; at most d_value.
        seq_len: length of a sequence: the pairs, the query, and BOS.
        n_keys: number of keys, at least the number of pairs.
        d_value: channels of a value and of a label.
        bos: whether the sequence begins with BOS; its channel exists in either case.
        map_seed: seed of the maps, which are the same for all splits and data seeds.
    """

    def __init__(
        self, k: int = 4, seq_len: int = 6, n_keys: int = 8, d_value: int = 8, bos: bool = True, map_seed: int = 0
    ) -> None:
        self.bos = bool(bos)
        self.k = self._whole("k", k, 1)
        self.seq_len = self._whole("seq_len", seq_len, 2 + self.bos)
        self.n_keys = self._whole("n_keys", n_keys, 1)
        self.d_value = self._whole("d_value", d_value, 1)
        self.map_seed = self._whole("map_seed", map_seed, 0)
        self._demand(self.k <= self.d_value, "k must be <= d_value")
        self._demand(self.n_pairs <= self.n_keys, "seq_len - 1 - bos, the number of pairs, must be <= n_keys")

    @property
    def n_pairs(self) -> int:
        """Number of pairs of a key and a value."""
        return self.seq_len - 1 - self.bos

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.regression(self.seq_len, self.d_value + self.n_keys + self.k + 1, self.d_value, labelled=1)

    @cached_property
    def maps(self) -> np.ndarray:
        """The maps R, float64 (k, d_value, d_value)."""
        rng = np.random.default_rng(self.map_seed)
        u, v = (np.linalg.qr(each)[0] for each in rng.standard_normal((2, self.d_value, self.d_value)))
        return np.stack([np.roll(u, r, axis=1) @ v for r in range(self.k)])

    def floors(self) -> dict[str, float | dict[str, float]]:
        """Return `floor_at_heads` H, the least relative squared error with H heads, for H = 1 ... k; it is 0 at k."""
        return {"floor_at_heads": {str(heads): 1 - heads / self.k for heads in range(1, self.k + 1)}}

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        rows, pairs = np.arange(n), slice(int(self.bos), self.seq_len - 1)
        keys = rng.random((n, self.n_keys)).argsort(axis=1)[:, : self.n_pairs]
        values = rng.standard_normal((n, self.n_pairs, self.d_value), dtype=np.float32)
        asked, relation = rng.integers(self.n_pairs, size=n), rng.integers(self.k, size=n)
        inputs = np.zeros((n, self.seq_len, self.spec.d_input or 0), dtype=np.float32)
        one_hot = inputs[:, :, self.d_value :]
        inputs[:, pairs, : self.d_value] = values
        np.put_along_axis(one_hot[:, pairs], keys[:, :, None], 1, axis=2)
        one_hot[rows, -1, keys[rows, asked]] = one_hot[rows, -1, self.n_keys + relation] = 1
        one_hot[:, : int(self.bos), -1] = 1
        labels = np.full((n, self.seq_len, self.d_value), np.nan, dtype=np.float32)
        labels[:, -1] = np.einsum("nij,nj->ni", self.maps[relation], values[rows, asked].astype(np.float64))
        return {"inputs": inputs, "labels": labels}
