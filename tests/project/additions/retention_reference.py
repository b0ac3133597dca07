"""Additions to tests/reference.py: retention as a loop over positions, in NumPy float64."""

from __future__ import annotations

import numpy as np

from tests.reference import REFERENCES, Array, Parameters, rms_norm, silu


def retention(p: Parameters, x: Array, n_heads: int = 2, d_head: int | None = None) -> Array:
    d_head = d_head or x.shape[1] // n_heads
    q, k, v = ((x @ w.T).reshape(len(x), n_heads, d_head) for w in np.split(p["qkv_proj.weight"], 3))
    y = np.empty((len(x), n_heads, d_head))
    for h in range(n_heads):
        S = np.zeros((d_head, d_head))
        for t in range(len(x)):
            S = (1 - 2.0 ** (-5 - h)) * S + np.outer(k[t, h], v[t, h])
            y[t, h] = rms_norm(q[t, h] @ S / np.sqrt(d_head), p["norm.weight"])
    return (silu(x @ p["gate_proj.weight"].T) * y.reshape(len(x), -1)) @ p["out_proj.weight"].T


REFERENCES["retention"] = retention
