"""Softmax attention over a right-aligned cache, with an optional sink, in one call of torch's SDPA.

The slots are `past` cached ones, then the `seq` ones of the chunk. Keys and values are right-aligned per row, so the
lag between query i and slot j is past + i - j in every row, even of a ragged batch.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from functools import cache, lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from zoo.cores import core
from zoo.ops.chunked import running_sum, segment_sums
from zoo.ops.precision import full_precision, widest
from zoo.ops.time import right_align
from zoo.ops.transforms import (
    compiling,
    followed,
    in_a_mode,
    kernels_suffice,
    one_operation,
    transformed,
    whole_in_export,
)

QUERIES = 256  # size of a block of queries
_TILE = 128  # block size of FlexAttention's mask


@core("v", "batch head seq value")
def attend(
    q: Float[Tensor, "batch n_heads seq d_head"],
    k: Float[Tensor, "batch n_kv_heads slots d_head"],
    v: Float[Tensor, "batch n_kv_heads slots d_value"],
    cached: Int[Tensor, " batch"],
    bias: Float[Tensor, "*batch n_heads seq slots"] | None = None,
    sink: Float[Tensor, "rows n_heads queries"] | None = None,
) -> Float[Tensor, "batch n_heads seq d_value"]:
    """softmax(q k^T / sqrt(d_head) + bias) v, causal (Vaswani et al. 1706.03762, eq. 1).

    Args:
        q: queries of the chunk.
        k, v: cached slots, then the chunk's. Heads of q share them in groups (Ainslie et al. 2305.13245).
        cached: filled slots of each row before the chunk; they are the rightmost ones.
        bias: added to the logits, for all rows of the batch or per row.
        sink: logit of an extra key whose value is zero; rows is 1 or batch, queries is 1 or seq.

    Returns:
        One output per query and head.
    """
    past, seq_len = k.shape[2] - q.shape[2], q.shape[2]
    d_head, d_value = int(q.shape[3]), int(v.shape[3])  # sizes are tensors under torch.jit.trace
    # The fused kernels accept no mask that needs a gradient, and need equal widths. So the sink is a key in front, and
    # its logit is a channel of the queries.
    width = max(d_value, d_head if sink is None else d_head + 8 - d_head % 8)
    q, k, v = (F.pad(t, (0, width - t.shape[3])) if t.shape[3] < width else t for t in (q, k, v))
    if sink is not None:
        channel = (torch.arange(width, device=q.device) == d_head).to(q.dtype)
        q = q + (sink.expand(q.shape[0], -1, seq_len).unsqueeze(3) * d_head**0.5).to(q.dtype) * channel
        k = torch.cat((channel.expand(*k.shape[:2], 1, width), k), dim=2)
        v = F.pad(v, (0, 0, 1, 0))
    grouped = bool(k.shape[1] != q.shape[1])
    kernel = partial(F.scaled_dot_product_attention, scale=d_head**-0.5, enable_gqa=grouped)
    extra = 0 if sink is None else 1
    if past == 0 and bias is None:  # with a sink, a query in front keeps the mask causal
        y = kernel(F.pad(q, (0, 0, extra, 0)) if extra else q, k, v, is_causal=True)[:, :, extra:]
    else:
        mask = F.pad(_visible(cached, past, seq_len), (extra, 0), value=True)
        if bias is not None:
            logits = F.pad(bias.to(q.dtype), (extra, 0))
            mask = logits.expand(*q.shape[:3], -1).masked_fill(~mask, -torch.inf)
        # Inside vmap torch does not notice that the bias needs a gradient, and would use a kernel without one.
        plain = sdpa_kernel(SDPBackend.MATH) if bias is not None and transformed() else nullcontext()
        with plain:
            y = kernel(q, k, v, attn_mask=mask)
    return y[..., :d_value]


def attend_by(
    logits: Float[Tensor, "batch n_heads seq slots"],
    v: Float[Tensor, "batch n_kv_heads slots d_value"],
    cached: Int[Tensor, " batch"],
) -> Float[Tensor, "batch n_heads seq d_value"]:
    """softmax(logits) v, causal, for logits that are not products of queries and keys; v and cached as in `attend`."""
    visible = _visible(cached, v.shape[2] - logits.shape[2], logits.shape[2])
    weights = logits.masked_fill(~visible, -torch.inf).softmax(3).to(v.dtype)
    grouped = weights.unflatten(1, (v.shape[1], logits.shape[1] // v.shape[1]))
    return rearrange(grouped @ v.unsqueeze(2), "batch kv_head group seq d -> batch (kv_head group) seq d")


_FORGETTING = (
    "(Tensor q, Tensor k, Tensor v, Tensor cached, Tensor log_forget, Tensor forgotten) -> Tensor",
    lambda q, k, v, cached, log_forget, forgotten: q.new_empty(*q.shape[:3], v.shape[3]),
)


@core("v", "batch head seq value")
@whole_in_export(*_FORGETTING)
def forgetting_attend(
    q: Float[Tensor, "batch n_heads seq d_head"],
    k: Float[Tensor, "batch n_kv_heads slots d_head"],
    v: Float[Tensor, "batch n_kv_heads slots d_value"],
    cached: Int[Tensor, " batch"],
    log_forget: Float[Tensor, "batch n_heads seq"],
    forgotten: Float[Tensor, "batch n_heads past"],
) -> Float[Tensor, "batch n_heads seq d_value"]:
    """`attend` with the bias log f_{j+1} + ... + log f_i at (i, j) (Lin et al. 2503.02130, section 3).

    For long sequences (`is_long`), no matrix over all pairs of positions is kept: the backward pass recomputes one
    block of queries at a time. On CUDA, torch's FlexAttention runs instead, which sums the gradients of log f in no
    fixed order. FlexAttention and all compiled code are differentiable once only.

    Args:
        q, k, v, cached: as in `attend`.
        log_forget: log f of the chunk's positions; zero at positions that forget nothing.
        forgotten: sum over the positions between each cached slot and the chunk.

    Returns:
        One output per query and head.
    """
    given = q, k, v, cached, log_forget, forgotten
    with full_precision(q.device):
        if not is_long(q):
            return _by_blocks(*given)
        # One operation only if compiled: its backward pass runs the forward pass again.
        return (_one_operation if compiling() or log_forget.is_meta else _long_forgetting)(*given)


def _long_forgetting(*given: Tensor) -> Tensor:
    return (_by_flex_attention if kernels_suffice(given[4]) else _by_blocks)(*given)


_one_operation = one_operation(*_FORGETTING)(_long_forgetting)


def _by_blocks(q: Tensor, k: Tensor, v: Tensor, cached: Tensor, log_forget: Tensor, forgotten: Tensor) -> Tensor:
    past, outputs = k.shape[2] - q.shape[2], []
    block = partial(_forgetting_block, cached)
    for first, last in query_blocks(q):
        slots = past + last
        given = q[:, :, first:last], k[:, :, :slots], v[:, :, :slots], log_forget[:, :, :last], forgotten
        outputs.append(recomputed(block, *given) if first else block(*given))
    return torch.cat(outputs, dim=2)


def _by_flex_attention(
    q: Tensor, k: Tensor, v: Tensor, cached: Tensor, log_forget: Tensor, forgotten: Tensor
) -> Tensor:
    seq_len, slots, d_head, d_value = q.shape[2], k.shape[2], int(q.shape[3]), int(v.shape[3])
    # The bias at (i, j) is the sum up to i minus the sum up to j, each in two float32 parts with the digits of float64.
    # The first sum is the same for all slots and changes no weight, so only the second one needs a gradient.
    total = torch.cat((-forgotten.to(widest(q.device)), running_sum(log_forget)), dim=2)
    until = total.float()
    rest = (total - until).float().detach()
    until_query, rest_query = (t[:, :, -seq_len:].detach().clone() for t in (until, rest))
    reach = torch.arange(slots - seq_len, slots, device=q.device)
    start = slots - seq_len - cached

    def forgetting(score: Tensor, row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        bias = until_query[row, head, i] - until[row, head, j]
        return score + (bias + (rest_query[row, head, i] - rest[row, head, j]))

    def visible(row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= reach[i]) & (j >= start[row])

    # A mask made during the capture of a CUDA graph, or under a mode that fakes tensors, must not be reused.
    uncached = in_a_mode() or (q.is_cuda and torch.cuda.is_current_stream_capturing())
    mask = copy((_tiles.__wrapped__ if uncached else _tiles)(seq_len, slots, q.device))
    mask.mask_mod = visible
    q, k, v = (F.pad(t, (0, max(0, 16 - t.shape[3]))) for t in (q, k, v))  # the kernel needs 16 channels or more
    grouped = bool(k.shape[1] != q.shape[1])
    y = _flex_attention()(q, k, v, forgetting, mask, scale=d_head**-0.5, enable_gqa=grouped)
    return y[..., :d_value]


@lru_cache(maxsize=8)
@torch.inference_mode(False)  # training may reuse a mask made in validation
def _tiles(seq_len: int, slots: int, device: torch.device) -> Any:
    """Return FlexAttention's mask in which a tile of queries attends to the tiles of slots up to its last query."""
    from torch.nn.attention.flex_attention import BlockMask

    ends = torch.arange(_TILE, seq_len + _TILE, _TILE, dtype=torch.int32, device=device).clamp(max=seq_len)
    tiles = torch.arange(-(-slots // _TILE), dtype=torch.int32, device=device).repeat(1, 1, len(ends), 1)
    counts = (ends + (slots - seq_len + _TILE - 1)) // _TILE
    return BlockMask.from_kv_blocks(counts.view(1, 1, -1), tiles, BLOCK_SIZE=_TILE, seq_lengths=(seq_len, slots))


@cache
def _flex_attention() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _forgetting_block(cached: Tensor, q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor, forgotten: Tensor) -> Tensor:
    """`forgetting_attend` of one block of queries: the last positions of `log_forget`."""
    first = log_forget.shape[2] - q.shape[2]
    bias = forgetting_bias(log_forget[:, :, first:], forgotten_since(log_forget[:, :, :first], forgotten))
    return attend(q, k, v, cached + first, bias)


def forgetting_bias(
    log_forget: Float[Tensor, "batch n_heads seq"], forgotten: Float[Tensor, "batch n_heads past"]
) -> Float[Tensor, "batch n_heads seq slots"]:
    """log f_{j+1} + ... + log f_i at (i, j), including cached slots; arguments as in `forgetting_attend`."""
    so_far = log_forget.cumsum(2)
    return torch.cat((forgotten.unsqueeze(2) + so_far.unsqueeze(3), segment_sums(log_forget)), dim=3)


def forgotten_since(
    log_forget: Float[Tensor, "batch n_heads seq"], forgotten: Float[Tensor, "batch n_heads past"]
) -> Float[Tensor, "batch n_heads slots"]:
    """Return the sum of log f over the positions after each slot, cached ones and the chunk's.

    The sums run back from the end, so that sums over recent slots are small and keep their digits.
    """
    from_end = F.pad(log_forget.flip(2).cumsum(2), (1, 0)).flip(2)
    return torch.cat((forgotten + from_end[:, :, :1], from_end[:, :, 1:]), dim=2)


def query_blocks(q: Float[Tensor, "batch n_heads seq d_head"]) -> list[tuple[int, int]]:
    """Return (first, last), last exclusive, of each block of queries whose weights are computed together.

    Blocks have a fixed size, so that memory is linear in the sequence. Short sequences, and compiled or mapped code,
    have a single block.
    """
    seq_len = q.shape[2]
    size = QUERIES if is_long(q) and not followed() else seq_len
    return [(first, min(first + size, seq_len)) for first in range(0, seq_len, size)]


def is_long(q: Float[Tensor, "batch n_heads seq d_head"]) -> bool:
    """Return whether the sequence is too long to keep the weights of all queries."""
    return q.shape[2] > 2 * QUERIES


def recomputes(q: Float[Tensor, "batch n_heads seq d_head"]) -> bool:
    """Return whether the backward pass recomputes the weights of these queries."""
    return is_long(q) and not followed()


def recomputed(block: Callable[..., Any], *given: Tensor | None) -> Any:
    """Return `block(*given)`, a tensor or a tuple, without autocast; the backward pass reruns it from `given`.

    `torch.utils.checkpoint` does the same, but its first call imports the compiler, which takes five seconds.
    """
    return _Recomputed.apply(block, *given)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: Callable[..., Any], *given: Tensor | None) -> Any:
        ctx.block = block
        ctx.save_for_backward(*given)
        ctx.set_materialize_grads(False)
        return block(*given)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        again, saved = torch.is_grad_enabled(), ctx.saved_tensors  # again: this backward pass is differentiated too
        with torch.enable_grad(), full_precision(saved[0].device):
            given = [None if t is None else t.view_as(t) for t in saved]
            outputs = ctx.block(*given)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        wanted = [t for t, needed in zip(given, ctx.needs_input_grad[1:], strict=True) if needed and t is not None]
        with torch.enable_grad():  # a sum: for several outputs torch would import sympy, which takes a second
            parts = [(y * grad).sum() for y, grad in zip(outputs, grads, strict=True) if grad is not None]
            total = torch.stack(parts).sum()
        found = iter(torch.autograd.grad(total, wanted, create_graph=again, allow_unused=True))
        return None, *(next(found) if needed else None for needed in ctx.needs_input_grad[1:])


def _visible(cached: Tensor, past: int, seq_len: int) -> Bool[Tensor, "batch 1 seq slots"]:
    """Return the causal mask, aligned to the lower right, without the slots that a row does not fill."""
    slot = torch.arange(past + seq_len, device=cached.device)
    query = torch.arange(seq_len, device=cached.device).unsqueeze(1)
    return (slot <= past + query) & (slot >= past - cached.view(-1, 1, 1, 1))


def grow_cache(
    cache: Float[Tensor, "batch heads past d_head"], new: Float[Tensor, "batch heads seq d_head"]
) -> Float[Tensor, "batch heads slots d_head"]:
    """Return the cached slots followed by the chunk's."""
    return torch.cat((cache.to(new.dtype), new), dim=2)


def settle_cache(
    cache: Float[Tensor, "batch heads slots d_head"], lengths: Int[Tensor, " batch"] | None, seq_len: int
) -> Float[Tensor, "batch heads slots d_head"]:
    """Return the next cache: each row drops the chunk's slots beyond its length."""
    if lengths is None:
        return cache
    past = cache.shape[2] - seq_len
    return right_align(cache.transpose(1, 2), past + lengths).transpose(1, 2)


def lag_matrix(seq_len: int, n_slots: int, device: torch.device) -> Int[Tensor, "seq slots"]:
    """Return the lag between query i and slot j; negative in the future."""
    query = torch.arange(n_slots - seq_len, n_slots, device=device)
    return query.unsqueeze(1) - torch.arange(n_slots, device=device)


def alibi_slopes(n_heads: int) -> Float[Tensor, " n_heads"]:
    """2^(-8 h / H), h = 1..H, if H is a power of two (Press et al. 2108.12409, section 3).

    Otherwise the slopes of the next lower power of two, then every second slope of the next higher one, as in the
    authors' code.
    """
    below = 1 << (n_heads.bit_length() - 1)
    slopes = 2.0 ** (-8.0 * torch.arange(1, below + 1) / below)
    between = 2.0 ** (-4.0 * (2 * torch.arange(n_heads - below) + 1) / below)
    return torch.cat((slopes, between))


def softmax_freedom(seq_len: int, window: int, *, normalized: bool) -> int:
    """Count the free numbers in a head's causal weights over the last `window` positions.

    There is one number per pair of positions. If every row sums to one (`normalized`: no sink), seq_len - 1 fewer are
    free.
    """
    window = min(window, seq_len)
    pairs = window * (window + 1) // 2 + (seq_len - window) * window
    return pairs - (seq_len - 1) * normalized


def gated_rank(seq_len: int, n_channels: int, *per_row: int) -> int:
    """Count the operators of weighted sums whose outputs a gate scales channel by channel.

    Each channel has its own map. The gate at position i scales all weights of row i alike, so row i spans one operator
    per vector of weights, at most i. All rows together span at most n_channels operators per map of the values.

    >>> [gated_rank(n, 16, 2) for n in (1, 5, 9)], gated_rank(8, 16, 4, 2)
    ([1, 9, 16], 31)

    Args:
        seq_len: number of positions.
        n_channels: gated channels.
        per_row: vectors of weights in a row, for each map of the values: one per head, or one per tap of a convolution.
    """
    rows = range(1, seq_len + 1)
    together = sum(min(sum(per_row), i) for i in rows)
    return min(together, sum(min(n_channels, sum(min(n, i) for i in rows)) for n in per_row))


def shared_values_rank(n_heads: int, n_kv_heads: int, d_model: int, d_head: int, free: int) -> int:
    """Count the operators of heads that share values in groups: a group has one value map, of d_head channels.

    Args:
        n_heads: maps of weights, divided evenly among the value heads.
        n_kv_heads: value heads.
        d_model, d_head: width of the layer and of a head.
        free: free numbers in a head's weights (`softmax_freedom`).
    """
    return min(n_kv_heads * min(n_heads // n_kv_heads, d_model * d_head), free)
