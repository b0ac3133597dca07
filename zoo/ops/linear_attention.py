"""Causal attention without softmax, in chunks, with a state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

CHUNK = 64


def linear_attention(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    v: Float[Tensor, "batch value_heads seq d_value"],
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """y_i = S_i^T q_i with S_i = S_{i-1} + k_i v_i^T (Katharopoulos et al. 2006.16236, eqs. 9 to 11, no normaliser).

    Within a chunk the masked quadratic form, between chunks the cumulative state: time linear in seq. The state
    accumulates in its own type, at least float32.

    Args:
        q, k: queries and keys, feature maps applied.
        v: values, shared between heads where their dimension is one.
        state: S before the first position.

    Returns:
        Outputs, and S after the last position.
    """
    seq_len = q.shape[2]
    pad = -seq_len % min(CHUNK, seq_len)
    size = min(CHUNK, seq_len)
    q, k, v = (F.pad(t.to(state.dtype), (0, 0, 0, pad)).unflatten(2, (-1, size)) for t in (q, k, v))
    written = k.transpose(-1, -2) @ v
    entering = torch.cat((state.unsqueeze(2), written), dim=2).cumsum(2)
    within = (q @ k.transpose(-1, -2)).tril() @ v
    y = within + q @ entering[:, :, :-1]
    return y.flatten(2, 3)[:, :, :seq_len], entering[:, :, -1]
