"""Sliding-window softmax attention in blocks: time linear in the sequence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from zoo.cores import core
from zoo.ops.transforms import whole_in_export

_SMALLEST_BLOCK = 16


@core("v", "batch head seq value")
@whole_in_export(
    "(Tensor q, Tensor k, Tensor v, Tensor held, Tensor? slopes) -> Tensor",
    lambda q, k, v, held, slopes: q.new_empty(q.shape),
)
def sliding_attend(
    q: Float[Tensor, "batch n_heads seq d_head"],
    k: Float[Tensor, "batch n_kv_heads slots d_head"],
    v: Float[Tensor, "batch n_kv_heads slots d_head"],
    held: Int[Tensor, " batch"],
    slopes: Float[Tensor, " n_heads"] | None = None,
) -> Float[Tensor, "batch n_heads seq d_head"]:
    """softmax_j(q_i . k_j / sqrt(d_head) - slope (i - j)) v_j over the last `window` positions j, including i.

    A block of queries attends to its own slots and the window - 1 before it, so a block is one call of SDPA with a
    banded mask, and all blocks form one batch.

    Args:
        q: queries of the chunk.
        k, v: the window - 1 = slots - seq slots before the chunk, right-aligned per row, then the chunk's. Heads of q
            share them in groups (Ainslie et al. 2305.13245).
        held: filled slots of each row before the chunk; larger numbers count as all of them.
        slopes: ALiBi slopes (Press et al. 2108.12409); default none.

    Returns:
        One output per query and head.
    """
    seq_len = q.shape[2]
    past = k.shape[2] - seq_len
    block = min(seq_len, max(past + 1, _SMALLEST_BLOCK))
    n_blocks = -(-seq_len // block)
    if missing := n_blocks * block - seq_len:  # a pad of zero width would copy
        q, k, v = (F.pad(t, (0, 0, 0, missing)) for t in (q, k, v))
    q = q.unflatten(2, (n_blocks, block)).transpose(1, 2)
    # (batch, n_blocks, n_kv_heads, past + block, d_head): overlapping windows of the slots
    k, v = (
        rearrange(t.unfold(2, past + block, block), "batch head block d slot -> batch block head slot d")
        for t in (k, v)
    )

    query, last = (torch.arange(n, n + block, device=q.device).unsqueeze(1) for n in (0, past))
    slot = torch.arange(past + block, device=q.device)
    first = torch.arange(past, past - n_blocks * block, -block, device=q.device).view(-1, 1, 1, 1)
    first = torch.maximum(query, first - held.view(-1, 1, 1, 1, 1))
    unseen = (slot < first) | (slot > last)  # (batch, n_blocks, 1, block, past + block)
    bias = torch.zeros((), dtype=q.dtype, device=q.device)
    if slopes is not None:
        bias = slopes.to(q.dtype).view(-1, 1, 1) * (slot - last)
    mask = bias.masked_fill(unseen, -torch.inf)
    grouped = bool(k.shape[2] != q.shape[2])  # torch.jit.trace compares shapes as tensors
    q, k, v, mask = (t.flatten(0, 1) for t in (q, k, v, mask))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
    y = rearrange(y.unflatten(0, (-1, n_blocks)), "batch block head query d -> batch head (block query) d")
    return y[:, :, :seq_len]
