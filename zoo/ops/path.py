"""Logits of attention whose keys are moved by Householder-like maps on their way to the query."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from zoo.ops.precision import full_precision
from zoo.ops.transforms import whole_in_export

CHUNK = 64


@whole_in_export(
    "(Tensor q, Tensor k, Tensor w, Tensor beta, Tensor cache) -> (Tensor, Tensor)",
    lambda q, k, w, beta, cache: (
        cache.new_empty(*q.shape[:3], cache.shape[2] + k.shape[2]),
        cache.new_empty(*k.shape[:2], cache.shape[2] + k.shape[2], k.shape[3]),
    ),
)
def path_logits(
    q: Float[Tensor, "batch n_heads seq d_head"],
    k: Float[Tensor, "batch n_kv_heads seq d_head"],
    w: Float[Tensor, "batch n_kv_heads seq d_head"],
    beta: Float[Tensor, "batch n_kv_heads seq"],
    cache: Float[Tensor, "batch n_kv_heads past d_head"],
) -> tuple[Float[Tensor, "batch n_heads seq slots"], Float[Tensor, "batch n_kv_heads slots d_head"]]:
    """q_i^T H_i H_{i-1} ... H_{j+1} k_j with H_t = I - beta_t w_t w_t^T (Yang et al. 2505.16381, section 2).

    Position t takes c_tj = beta_t w_t . (H_{t-1} ... H_{j+1} k_j) of w_t out of every key j before it. With K the keys
    as they stand before a chunk and, of the chunk's own, as they come,

        (I + tril(beta W W^T, -1)) C = beta W K^T, zero for a key's own position and those before it,
        logits = Q K^T - tril(Q W^T) C,      keys after the chunk = K - C^T W,

    so that one triangular solve per chunk replaces its product of maps (the WY form), and the keys that go from
    chunk to chunk are the whole state. Entries above the diagonal are no logits.

    Args:
        q: queries; groups of heads share the heads of k and w.
        k: keys.
        w: directions, of length one or shorter.
        beta: 0 to 2; zero moves no key, 2 reflects.
        cache: keys before the first position, moved by all positions so far; its dtype is the one computed in.

    Returns:
        The logits for the cached slots and the chunk's, and the keys of all of them, moved by all positions.
    """
    seq_len, n_slots, keys = k.shape[2], cache.shape[2] + k.shape[2], cache
    with full_precision(q.device):
        q, k, w, beta = (t.to(cache.dtype) for t in (q, k, w, beta.unsqueeze(3)))
        q = q.unflatten(1, (k.shape[1], q.shape[1] // k.shape[1]))
        logits = []
        for first in range(0, seq_len, CHUNK):
            past, here = keys.shape[2], slice(first, first + CHUNK)
            q_c, w_c = q[:, :, :, here], w[:, :, here]
            keys = torch.cat((keys, k[:, :, here]), dim=2)
            scaled = beta[:, :, here] * w_c
            taken = torch.linalg.solve_triangular(
                (scaled @ w_c.mT).tril(-1), (scaled @ keys.mT).tril(past - 1), upper=False, unitriangular=True
            )
            read = q_c @ keys.mT.unsqueeze(2) - (q_c @ w_c.mT.unsqueeze(2)).tril() @ taken.unsqueeze(2)
            logits.append(F.pad(read, (0, n_slots - keys.shape[2])))
            keys = keys - taken.mT @ w_c
    return torch.cat(logits, dim=3).flatten(1, 2), keys
