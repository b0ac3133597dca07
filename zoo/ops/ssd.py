"""State space duality: a recurrence with one scalar decay per head and step, computed by matrix products."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from zoo.ops.chunked import decayed_states, into_chunks, segment_sums
from zoo.ops.precision import full_precision

CHUNK = 64  # rows


def ssd(
    q: Float[Tensor, "batch groups rows d_key"],
    k: Float[Tensor, "batch groups rows d_key"],
    v: Float[Tensor, "batch heads rows d_value"],
    log_decay: Float[Tensor, "batch heads seq"],
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads rows d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """S_t = exp(log_decay_t) S_{t-1} + k_t v_t^T, y_t = S_t^T q_t (Dao and Gu 2405.21060, section 6).

    Within a chunk the masked quadratic form, its entries weighted by the decay between positions; between chunks the
    state. In SSD's letters q is C, k is B and v is dt x.

    Args:
        q, k: queries and keys; `groups` divides `heads`, and consecutive heads share a group.
        v: values.
        log_decay: logarithm of the decay, at most zero for a stable recurrence.
        state: S before the first position; its dtype is the one computed in.

    With rows = rank * seq the recurrence is multi-input multi-output: each step has `rank` consecutive rows, S_t sums
    all of its k v^T and answers all of its queries.

    Returns:
        Outputs, and S after the last position.
    """
    rows, seq_len = q.shape[2], log_decay.shape[2]
    rank = rows // seq_len
    size = min(max(1, CHUNK // rank), seq_len)
    per_group = v.shape[1] // q.shape[1]
    with full_precision(q.device):
        q, k, v = (into_chunks(t.to(state.dtype), size * rank) for t in (q, k, v))
        step = into_chunks(log_decay.to(state.dtype).unsqueeze(3), size).squeeze(4)
        decay = segment_sums(step).exp()  # (batch, heads, chunks, size, size)
        since_start = step.cumsum(3).exp().unsqueeze(4)
        until_end = decay[..., -1, :].unsqueeze(4)
        scores = q @ k.transpose(3, 4)
        if rank > 1:
            decay = decay.repeat_interleave(rank, 3).repeat_interleave(rank, 4)
            since_start, until_end = (t.repeat_interleave(rank, 3) for t in (since_start, until_end))
        if per_group > 1:
            q, k, scores = (t.repeat_interleave(per_group, 1) for t in (q, k, scores))
        written = k.transpose(3, 4) @ (until_end * v)
        entering, final = decayed_states(state, since_start[:, :, :, -1:], written)
        y = (scores * decay) @ v + since_start * (q @ entering)
    return y.flatten(2, 3)[:, :, :rows], final
