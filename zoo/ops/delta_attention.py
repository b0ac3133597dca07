"""DeltaFormer's attention: a query's readout of earlier positions is subtracted from the value at its own position."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from zoo.cores import core
from zoo.ops.attention import is_long, lag_matrix, query_blocks, recomputed, recomputes
from zoo.ops.precision import DType, Product, full_precision, product_of, rounded_type
from zoo.ops.transforms import compiling, on_cpu, one_operation, whole_in_export


@core("v", "batch head seq value")
@whole_in_export(
    "(Tensor q, Tensor k, Tensor v, Tensor beta, Tensor cache, Tensor cached) -> (Tensor, Tensor)",
    lambda q, k, v, beta, cache, cached: (v.new_empty(v.shape), cache.new_empty(v.shape)),
)
def delta_attend(
    q: Float[Tensor, "batch n_heads seq d_head"],
    k: Float[Tensor, "batch n_heads slots d_head"],
    v: Float[Tensor, "batch n_heads seq d_value"],
    beta: Float[Tensor, "batch n_heads seq"],
    cache: Float[Tensor, "batch n_heads past d_value"],
    cached: Int[Tensor, " batch"],
) -> tuple[Float[Tensor, "batch n_heads seq d_value"], Float[Tensor, "batch n_heads seq d_value"]]:
    """u_t = v_t - beta_t sum_{j < t} p_tj u_j, y_t = sum_{j <= t} a_tj u_j (Zhong et al. 2505.19488, DeltaFormer).

    p_t is the softmax of l_tj = q_t . k_j / sqrt(d_head) over j < t, a_t the softmax over j <= t. One matrix P of
    weights serves both, and a triangular solve replaces the loop over positions: with r = P u,

        (I + diag(beta) P) u = v,      y_t = u_t + sigmoid(log sum_{j < t} exp(l_tj) - l_tt) (r_t - u_t).

    For long sequences (`is_long`), the backward pass recomputes the matrix over pairs of positions instead of keeping
    it. On the CPU, queries are then processed in blocks, so the whole matrix never exists; on other devices there is
    one block. Compiled code with a long sequence is differentiable only once.

    Args:
        q: queries of the chunk.
        k: keys of the cached slots, then the chunk's.
        v: values of the chunk.
        beta: share of the readout that is subtracted; outside [-1, 1], u may grow exponentially.
        cache: u of the cached slots; the computation uses its dtype.
        cached: filled slots of each row before the chunk; they are the rightmost ones.

    Returns:
        One output per query and head, and u of the chunk.
    """
    kind, dtype = rounded_type(cache), v.dtype
    with full_precision(q.device):
        q, k, v, beta = (t.to(cache.dtype) for t in (q, k, v, beta))
        blockwise = _long_delta_attention if compiling() and on_cpu(q) and is_long(q) else _by_blocks
        y, u = blockwise(kind, q, k, v, beta, cache, cached)
    return y.to(dtype), u


def _by_blocks(
    kind: DType, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, cache: Tensor, cached: Tensor
) -> tuple[Tensor, Tensor]:
    block, past = partial(_block, product_of(kind), cached), cache.shape[2]
    outputs, stored = [], [cache]
    for first, last in query_blocks(q) if on_cpu(q) else [(0, int(q.shape[2]))]:
        given = q[:, :, first:last], k[:, :, : past + last], v[:, :, first:last], beta[:, :, first:last], *stored
        y, u = recomputed(block, *given) if first or recomputes(given[0]) else block(*given)
        outputs.append(y)
        stored.append(u)
    return torch.cat(outputs, dim=2), torch.cat(stored[1:], dim=2)


_long_delta_attention = one_operation(
    "(ScalarType? kind, Tensor q, Tensor k, Tensor v, Tensor beta, Tensor cache, Tensor cached) -> (Tensor, Tensor)",
    lambda kind, q, k, v, beta, cache, cached: (v.new_empty(v.shape), v.new_empty(v.shape)),
)(_by_blocks)


def _block(
    product: Product, cached: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, cache: Tensor, *stored: Tensor
) -> tuple[Tensor, Tensor]:
    """`delta_attend` of one block of queries; `stored` is u of the earlier blocks of the chunk."""
    before, seq_len = torch.cat((cache, *stored), dim=2) if stored else cache, q.shape[2]
    past = before.shape[2]
    lag = lag_matrix(seq_len, past + seq_len, q.device)
    empty = torch.arange(past + seq_len, device=q.device) < cache.shape[2] - cached.view(-1, 1, 1, 1)
    q = q * int(q.shape[3]) ** -0.5
    logits = product(q, k.mT).masked_fill((lag <= 0) | empty, -torch.inf)
    largest = logits.detach().amax(3, keepdim=True).clamp(min=torch.finfo(q.dtype).min)
    weights = (logits - largest).exp()
    total = weights.sum(3, keepdim=True).clamp(min=1.0)  # at least one, unless there is no earlier position
    earlier, own = weights.split((past, seq_len), dim=3)
    read, share = product(earlier, before), beta.unsqueeze(3) / total
    u = torch.linalg.solve_triangular(share * own, v - share * read, upper=False, unitriangular=True)
    read = (read + product(own, u)) / total
    of_own = (q * k[:, :, past:]).sum(3, keepdim=True)
    return torch.lerp(u, read, torch.sigmoid(largest + total.log() - of_own)), u
