"""Linear attention whose state forgets by a vector of decays on the key side."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.ops.chunked import decayed_states, into_chunks
from zoo.ops.precision import full_precision

CHUNK = 32  # a power of two


def gated_linear_attention(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    v: Float[Tensor, "batch heads seq d_value"],
    log_decay: Float[Tensor, "batch heads seq d_key"],
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """S_t = diag(exp(log_decay_t)) S_{t-1} + k_t v_t^T, y_t = S_t^T q_t (Yang et al. 2312.06635, eq. 3).

    Within a chunk by halves, between chunks the state. For each pair of positions in two neighbouring blocks of equal
    size the query carries the decays since its block began and the key those until its block ends: one matrix product
    for all pairs of the two blocks, which are one block then. So the T^2 d_key decays of a chunk's pairs are never
    made, and each is a product of decays: nothing is divided by one.

    Args:
        q, k, v: queries, keys and values.
        log_decay: logarithms of the decays, at most zero for a stable recurrence.
        state: S before the first position; its dtype is the one computed in.

    Returns:
        Outputs, and S after the last position.
    """
    seq_len, size = q.shape[2], 1
    while size < min(CHUNK, seq_len):
        size *= 2
    with full_precision(q.device):
        q, k, v, step = (into_chunks(t.to(state.dtype), size) for t in (q, k, v, log_decay))
        scores, q, k, over_chunk = _scores(q, k, step.exp())
        entering, final = decayed_states(state, over_chunk.transpose(3, 4), k.transpose(3, 4) @ v)
        y = scores @ v + q @ entering
    return y.flatten(2, 3)[:, :, :seq_len], final


def _scores(q: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query-key products with the decays between the two positions, (batch, heads, chunks, size, size).

    Returns:
        They, q with the decays since the chunk's start, k with those until its end, and the decays of the whole chunk.
    """
    scores = (q * k).sum(4, keepdim=True).unsqueeze(5)
    # From here on (batch, heads, chunks, blocks, positions of a block, d_key); at first a block is one position.
    q, k, over = (q * decay).unsqueeze(4), k.unsqueeze(4), decay.unsqueeze(4)
    while q.shape[3] > 1:
        first_k, later_q = k[:, :, :, ::2], q[:, :, :, 1::2]
        across = later_q @ first_k.transpose(4, 5)
        upper = torch.cat((scores[:, :, :, ::2], torch.zeros_like(across)), dim=5)
        scores = torch.cat((upper, torch.cat((across, scores[:, :, :, 1::2]), dim=5)), dim=4)
        first, later = over[:, :, :, ::2], over[:, :, :, 1::2]
        one = torch.ones_like(first)
        q, k = (
            (t.unflatten(3, (first.shape[3], 2)) * torch.stack(factors, dim=4)).flatten(4, 5)
            for t, factors in ((q, (one, first)), (k, (later, one)))
        )
        over = first * later
    return scores.squeeze(3), q.squeeze(3), k.squeeze(3), over.squeeze(3)
