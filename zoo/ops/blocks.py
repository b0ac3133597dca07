"""Softmax attention over blocks of positions that each query selects: time linear in the length, except the selection.

Keys and values are ordered by position (`by_position`), so that block b begins at position b * block_size in every row
of a ragged batch.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from zoo.cores import core
from zoo.ops.chunked import into_chunks
from zoo.ops.precision import accumulator
from zoo.ops.transforms import on_cpu, transformed, whole_in_export

_TILE = 64


def by_position(
    cache: Float[Tensor, "batch heads slots d_head"], cached: Int[Tensor, " batch"], seq_len: int
) -> Float[Tensor, "batch heads slots d_head"]:
    """Order right-aligned slots by position: slot j holds position j, and empty slots come last.

    Args:
        cache: cached slots, then the chunk's.
        cached: filled slots of each row before the chunk.
        seq_len: slots of the chunk.
    """
    n_slots = cache.shape[2]
    past = n_slots - seq_len
    if past == 0:
        return cache
    slot = torch.arange(n_slots, device=cache.device) + (past - cached).unsqueeze(1)
    return cache.gather(2, slot.clamp(max=n_slots - 1)[:, None, :, None].expand_as(cache))


@core("v", "batch head seq value")
@whole_in_export(
    "(Tensor q, Tensor k, Tensor v, Tensor positions, int block_size, int top_k) -> Tensor",
    lambda q, k, v, positions, block_size, top_k: q.new_empty(q.shape),
)
def attend_to_best_blocks(
    q: Float[Tensor, "batch n_heads seq d_head"],
    k: Float[Tensor, "batch n_kv_heads slots d_head"],
    v: Float[Tensor, "batch n_kv_heads slots d_head"],
    positions: Int[Tensor, "batch seq"],
    block_size: int,
    top_k: int,
) -> Float[Tensor, "batch n_heads seq d_head"]:
    """Attend to the own block and to the top_k - 1 before it whose mean key fits best (Lu et al. 2502.13189, eq. 5-7).

    Args:
        q: queries of the chunk.
        k, v: keys and values by position. Heads of q share them in groups, but select blocks separately.
        positions: position of each query in its row.
        block_size: positions of a block.
        top_k: blocks of a query; all if there are fewer.

    Returns:
        One output per query and head.
    """
    k, v = into_chunks(k, block_size), into_chunks(v, block_size)
    means = _for_each_head(k.detach().mean(3), q.shape[1])
    block, own = torch.arange(means.shape[2], device=q.device), (positions // block_size)[:, None, :, None]
    scores = (q.detach() @ means.mT).masked_fill(block >= own, -torch.inf).masked_fill(block == own, torch.inf)
    chosen = scores.topk(min(top_k, scores.shape[3]), dim=3).indices
    return attend_to_blocks(q * int(q.shape[3]) ** -0.5, k, v, positions, chosen)


@core("v", "batch head seq value")
@whole_in_export(
    "(Tensor q, Tensor k, Tensor v, Tensor gates, Tensor positions, int block_size, int top_k) -> Tensor",
    lambda q, k, v, gates, positions, block_size, top_k: q.new_empty(q.shape),
)
def attend_to_means_and_blocks(
    q: Float[Tensor, "batch n_heads seq d_head"],
    k: Float[Tensor, "batch n_kv_heads slots d_head"],
    v: Float[Tensor, "batch n_kv_heads slots d_head"],
    gates: Float[Tensor, "batch n_heads seq 2"],
    positions: Int[Tensor, "batch seq"],
    block_size: int,
    top_k: int,
) -> Float[Tensor, "batch n_heads seq d_head"]:
    """Attend to the means of whole blocks, and to the blocks of largest weight (Yuan et al. 2502.11089, eq. 5-12).

    The first block, the own one and the one before it are always selected. The others have the largest weights on their
    means, averaged over the heads that share keys. A query before the end of the first block attends to no mean.

    Args:
        q: queries of the chunk.
        k, v: keys and values by position. Heads of q share them and their selection in groups.
        gates: factor of the attention to means, and of the attention to blocks.
        positions: position of each query in its row.
        block_size: positions of a block.
        top_k: blocks of a query, at least 3; all if there are fewer.

    Returns:
        The gated sum of both, one output per query and head.
    """
    n_kv_heads, n_heads, wide = k.shape[1], q.shape[1], accumulator(q.dtype)
    q, k, v = q * int(q.shape[3]) ** -0.5, into_chunks(k, block_size), into_chunks(v, block_size)
    mean_k, mean_v = (_for_each_head(t.mean(3), n_heads) for t in (k, v))
    starts = torch.arange(0, k.shape[2] * block_size, block_size, device=q.device)
    since = positions[:, None, :, None] - starts
    unfinished = since < block_size - 1
    logits = (q @ mean_k.mT).to(wide).masked_fill(unfinished, torch.finfo(wide).min)
    weights = logits.softmax(3).masked_fill(unfinished, 0)
    coarse = weights.to(v.dtype) @ mean_v
    scores = logits.detach()  # ordered as the weights
    if n_heads > n_kv_heads:
        scores = weights.detach().unflatten(1, (n_kv_heads, -1)).mean(2).masked_fill(unfinished, -torch.inf)
    always = starts * (since // (2 * block_size)) == 0  # the first block, or less than two blocks ago
    chosen = scores.masked_fill(always, torch.inf).topk(min(top_k, scores.shape[3]), dim=3).indices
    fine = attend_to_blocks(q, k, v, positions, _for_each_head(chosen, n_heads))
    return torch.addcmul(gates[..., :1] * coarse, gates[..., 1:], fine)


def _for_each_head(t: Shaped[Tensor, "batch heads *rest"], n_heads: int) -> Shaped[Tensor, "batch n_heads *rest"]:
    return t if t.shape[1] == n_heads else t.repeat_interleave(n_heads // t.shape[1], dim=1)


def attend_to_blocks(
    q: Float[Tensor, "batch n_heads seq d_head"],
    k: Float[Tensor, "batch n_kv_heads blocks block_size d_head"],
    v: Float[Tensor, "batch n_kv_heads blocks block_size d_head"],
    positions: Int[Tensor, "batch seq"],
    chosen: Int[Tensor, "batch n_heads seq top_k"],
) -> Float[Tensor, "batch n_heads seq d_head"]:
    """softmax_j(q_i . k_j) v_j over the positions j <= i of the chosen blocks.

    Pairs of a query and a block are sorted by block and packed into tiles of equal size, each with pairs of one block,
    so that a tile is a matrix product. The parts of a query's softmax are combined by their normalisers (Lu et al.
    2502.13189, algorithm 1). The number of tiles depends on shapes alone.

    Args:
        q: queries of the chunk, scaled.
        k, v: keys and values in blocks. Heads of q share them in groups.
        positions: position of each query in its row.
        chosen: distinct blocks of each query, including its own. Blocks that begin after the query are ignored.

    Returns:
        One output per query and head.
    """
    batch, n_heads, seq_len, d_head = q.shape
    n_blocks, block_size = k.shape[2:4]
    top_k, shared, wide = chosen.shape[3], n_heads // k.shape[1], accumulator(q.dtype)
    n_rows, n_pairs = batch * n_heads, batch * n_heads * seq_len * top_k
    n_groups, tile = n_rows * n_blocks, min(_TILE, seq_len)
    n_tiles = n_pairs // tile + min(n_groups, n_pairs)

    # A group is the pairs of one block. Groups and pairs are numbered across all heads and rows.
    bounds = torch.arange(n_groups + 1, device=q.device)
    groups = (chosen + bounds[:-1:n_blocks].view(batch, n_heads, 1, 1)).flatten()
    group, order = groups.sort()
    ends = torch.searchsorted(group, bounds)
    tiles = (ends[:-1] - ends[1:]) // tile  # minus the number of tiles of each group, rounded up
    shift = torch.add(ends[1:], tiles.cumsum(0), alpha=tile)  # sorted index minus place; a group's padding comes first
    place = torch.arange(n_pairs, device=q.device) - shift.index_select(0, group)
    pair = order.new_zeros(n_tiles * tile).scatter(0, place, order)
    since = torch.sub(positions[:, None, :, None], chosen, alpha=block_size).flatten().index_select(0, pair)
    later = torch.arange(block_size, device=q.device) > since.view(n_tiles, tile, 1)

    place_of_pair = place.scatter(0, order, place)
    tiled = _rows(q.flatten(0, 2), pair // top_k, place_of_pair.view(-1, top_k)).unflatten(0, (n_tiles, tile))
    block = groups.index_select(0, pair[tile - 1 :: tile])
    if shared > 1:
        block = torch.add(block % n_blocks, block // (n_blocks * shared), alpha=n_blocks)
    # An extra value channel of ones sums the weights; products on a GPU need widths in multiples of eight.
    v = F.pad(v, (0, 1 if on_cpu(q) else 8 - d_head % 8), value=1.0)
    k, v = (t.flatten(0, 2).index_select(0, block) for t in (k, v))
    logits = (tiled @ k.mT).to(wide).masked_fill_(later, torch.finfo(wide).min)
    largest = logits.detach().amax(2, keepdim=True)
    parts = logits.sub_(largest).exp_().to(v.dtype) @ v, largest
    mixed, share = (
        _rows(t.flatten(0, 1), place_of_pair, None).unflatten(0, (batch, n_heads, seq_len, top_k)) for t in parts
    )
    y = (share.softmax(3).mT @ mixed.to(wide)).squeeze(3)
    return (y[..., :d_head] / y[..., d_head : d_head + 1]).to(q.dtype)


def _rows(
    t: Float[Tensor, "rows width"], index: Int[Tensor, " places"], places: Int[Tensor, "rows times"] | None
) -> Float[Tensor, "places width"]:
    """Return t[index]. `places` lists the reads of each row that get a gradient; None if no row is read twice."""
    return t.index_select(0, index) if on_cpu(t) or transformed() else _Rows.apply(t, index, places)


class _Rows(torch.autograd.Function):
    """`index_select` whose gradient reads whole rows; torch's own adds one number at a time."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, index: Tensor, places: Tensor | None) -> Tensor:
        ctx.save_for_backward(index, places)
        ctx.shape = t.shape
        return t.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,), (index, places) = grads, ctx.saved_tensors
        if places is None:
            return grad.new_zeros(ctx.shape).index_copy(0, index, grad), None, None
        return grad.index_select(0, places.flatten()).unflatten(0, places.shape).sum(1), None, None
