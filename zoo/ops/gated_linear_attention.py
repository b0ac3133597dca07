"""Linear attention whose state forgets by a vector of decays on the key side."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.ops.chunked import decayed_states, into_chunks, segment_sums
from zoo.ops.precision import full_precision

CHUNK = 16  # the decays between the positions of a chunk are CHUNK^2 numbers for each key channel


def gated_linear_attention(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    v: Float[Tensor, "batch heads seq d_value"],
    log_decay: Float[Tensor, "batch heads seq d_key"],
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """S_t = diag(exp(log_decay_t)) S_{t-1} + k_t v_t^T, y_t = S_t^T q_t (Yang et al. 2312.06635, eq. 3).

    Within a chunk each pair of positions has its own decays, so that nothing is divided by one; between chunks the
    state.

    Args:
        q, k, v: queries, keys and values.
        log_decay: logarithms of the decays, at most zero for a stable recurrence.
        state: S before the first position; its dtype is the one computed in.

    Returns:
        Outputs, and S after the last position.
    """
    seq_len = q.shape[2]
    size = min(CHUNK, seq_len)
    with full_precision(q.device):
        q, k, v, step = (into_chunks(t.to(state.dtype), size) for t in (q, k, v, log_decay))
        decay = segment_sums(step.transpose(3, 4)).exp()  # (batch, heads, chunks, d_key, size, size)
        since_start = step.cumsum(3).exp()
        until_end = decay[..., -1, :].transpose(3, 4)
        scores = torch.einsum("bhcid,bhcjd,bhcdij->bhcij", q, k, decay)
        written = (k * until_end).transpose(3, 4) @ v
        entering, final = decayed_states(state, since_start[:, :, :, -1].unsqueeze(4), written)
        y = scores @ v + (q * since_start) @ entering
    return y.flatten(2, 3)[:, :, :seq_len], final
