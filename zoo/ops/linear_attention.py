"""Causal attention without softmax, in chunks, with a state."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.ops.chunked import into_chunks
from zoo.ops.precision import full_precision

CHUNK = 64


def linear_attention(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    v: Float[Tensor, "batch value_heads seq d_value"],
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """y_i = S_i^T q_i with S_i = S_{i-1} + k_i v_i^T (Katharopoulos et al. 2006.16236, eqs. 9 to 11, no normaliser).

    Within a chunk the masked quadratic form, between chunks the cumulative state: time linear in seq. All of it is
    computed in the type of the state, under autocast too.

    Args:
        q, k: queries and keys, feature maps applied.
        v: values, shared between heads where their dimension is one.
        state: S before the first position.

    Returns:
        Outputs, and S after the last position.
    """
    seq_len = q.shape[2]
    with full_precision(q.device):
        q, k, v = (into_chunks(t.to(state.dtype), min(CHUNK, seq_len)) for t in (q, k, v))
        written = k.transpose(-1, -2) @ v
        entering = torch.cat((state.unsqueeze(2), written), dim=2).cumsum(2)
        within = (q @ k.transpose(-1, -2)).tril() @ v
        y = within + q @ entering[:, :, :-1]
    return y.flatten(2, 3)[:, :, :seq_len], entering[:, :, -1]
