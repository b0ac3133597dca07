"""Softmax attention over blocks of positions that each query chooses: work linear in the length, but for the choice.

Keys and values come in the order of positions (`by_position`), so that block b holds positions b * block_size and on,
in every row of a ragged batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from zoo.cores import core
from zoo.ops.precision import accumulator
from zoo.ops.transforms import whole_in_export

_TILE = 64


def by_position(
    cache: Float[Tensor, "batch heads slots d_head"], cached: Int[Tensor, " batch"], seq_len: int
) -> Float[Tensor, "batch heads slots d_head"]:
    """Order right-aligned slots by position: slot j holds position j; slots that hold nothing come last.

    Args:
        cache: cached slots, then the chunk's.
        cached: how many of the slots before the chunk each row really holds.
        seq_len: slots of the chunk.
    """
    n_slots = cache.shape[2]
    past = n_slots - seq_len
    if past == 0:
        return cache
    slot = torch.arange(n_slots, device=cache.device) + (past - cached).unsqueeze(1)
    return cache.gather(2, slot.clamp(max=n_slots - 1)[:, None, :, None].expand_as(cache))


def in_blocks(
    t: Float[Tensor, "batch heads slots d_head"], block_size: int
) -> Float[Tensor, "batch heads blocks block_size d_head"]:
    """Cut slots into blocks; the last one is filled up with zeros."""
    n_blocks = -(-t.shape[2] // block_size)
    return F.pad(t, (0, 0, 0, n_blocks * block_size - t.shape[2])).unflatten(2, (n_blocks, block_size))


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
        k, v: keys and values by position. Heads of q share them in groups, and choose each for itself.
        positions: position of each query in its row.
        block_size: positions of a block.
        top_k: blocks of a query; all if there are fewer.

    Returns:
        One output a query and head.
    """
    k, v = in_blocks(k, block_size), in_blocks(v, block_size)
    means = k.detach().mean(3).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    block, own = torch.arange(means.shape[2], device=q.device), (positions // block_size)[:, None, :, None]
    scores = (q.detach() @ means.mT).masked_fill(block >= own, -torch.inf).masked_fill(block == own, torch.inf)
    return attend_to_blocks(q, k, v, positions, best_blocks(scores, top_k))


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
    """Attend to the means of whole blocks, and to the blocks that this finds (Yuan et al. 2502.11089, eq. 5-12).

    The first block, the own one and the one before it are always chosen. The others are those with the largest weights
    of the means, on average over the heads that share keys. A query before the end of the first block attends to no
    mean.

    Args:
        q: queries of the chunk.
        k, v: keys and values by position. Heads of q share them in groups, with one choice for a group.
        gates: factor of the attention to means, and of the attention to blocks.
        positions: position of each query in its row.
        block_size: positions of a block.
        top_k: blocks of a query, at least 3; all if there are fewer.

    Returns:
        One output a query and head: the sum of both, gated.
    """
    n_kv_heads, wide = k.shape[1], accumulator(q.dtype)
    shared = q.shape[1] // n_kv_heads
    k, v = in_blocks(k, block_size), in_blocks(v, block_size)
    mean_k, mean_v = (t.mean(3).repeat_interleave(shared, dim=1) for t in (k, v))
    block, position = torch.arange(mean_k.shape[2], device=q.device), positions[:, None, :, None]
    whole = block < (position + 1) // block_size
    logits = (q @ mean_k.mT).to(wide) * int(q.shape[3]) ** -0.5
    weights = logits.masked_fill(~whole, torch.finfo(wide).min).softmax(3) * whole
    coarse = weights.to(v.dtype) @ mean_v
    own = position // block_size
    scores = weights.detach().unflatten(1, (n_kv_heads, shared)).mean(2).masked_fill(~whole, -torch.inf)
    scores = scores.masked_fill((block == 0) | (block == own - 1) | (block == own), torch.inf)
    fine = attend_to_blocks(q, k, v, positions, best_blocks(scores, top_k).repeat_interleave(shared, dim=1))
    return gates[..., :1] * coarse + gates[..., 1:] * fine


def best_blocks(scores: Float[Tensor, "batch heads seq blocks"], top_k: int) -> Int[Tensor, "batch heads seq chosen"]:
    """Return the blocks of highest score for each query; the number of blocks stands for one whose score is -inf."""
    found = scores.topk(min(top_k, scores.shape[3]), dim=3)
    return found.indices.masked_fill(found.values == -torch.inf, scores.shape[3])


def attend_to_blocks(
    q: Float[Tensor, "batch n_heads seq d_head"],
    k: Float[Tensor, "batch n_kv_heads blocks block_size d_head"],
    v: Float[Tensor, "batch n_kv_heads blocks block_size d_head"],
    positions: Int[Tensor, "batch seq"],
    chosen: Int[Tensor, "batch n_heads seq top_k"],
) -> Float[Tensor, "batch n_heads seq d_head"]:
    """softmax_j(q_i . k_j / sqrt(d_head)) v_j over the positions j <= i of the chosen blocks.

    Pairs of a query and a block are sorted by block and laid out in tiles of as many queries, each tile against one
    block, so that a tile is a matrix product; the parts of a query's softmax are joined by their normalisers (Lu et al.
    2502.13189, algorithm 1). The number of tiles depends on shapes alone.

    Args:
        q: queries of the chunk.
        k, v: keys and values in blocks. Heads of q share them in groups.
        positions: position of each query in its row.
        chosen: blocks of each query, different ones, its own among them; the number of blocks for none.

    Returns:
        One output a query and head.
    """
    batch, n_heads, seq_len, d_head = q.shape
    top_k, shared, wide = chosen.shape[3], n_heads // k.shape[1], accumulator(q.dtype)
    n_blocks, block_size = k.shape[2:4]
    n_rows, n_pairs = batch * n_heads, seq_len * top_k
    tile = min(_TILE, seq_len)
    n_tiles = n_pairs // tile + min(n_blocks, n_pairs)
    size = n_tiles * tile

    row = torch.arange(n_rows, device=q.device).unsqueeze(1)
    blocks, order = chosen.reshape(n_rows, n_pairs).sort(dim=1)
    counts = blocks.new_zeros(n_rows, n_blocks + 1).scatter_add(1, blocks, torch.ones_like(blocks))
    tiles = (counts + (tile - 1)) // tile
    shift = (tiles.cumsum(1) - tiles) * tile - (counts.cumsum(1) - counts)  # from the sorted pairs to the tiles
    place = torch.arange(n_pairs, device=q.device) + shift.gather(1, blocks)
    place = place.masked_fill(blocks == n_blocks, size)  # one place more, for pairs without a block
    empty = blocks.new_zeros(n_rows, size + 1)
    query = empty.scatter(1, place, order // top_k)[:, :size]
    block = empty.scatter(1, place, blocks)[:, :size].unflatten(1, (n_tiles, tile)).amax(2)
    position = positions.repeat_interleave(n_heads, dim=0).gather(1, query).unflatten(1, (n_tiles, tile)).unsqueeze(3)
    source = (block * block_size)[:, :, None, None] + torch.arange(block_size, device=q.device)

    tiled = (
        (q * int(d_head) ** -0.5)
        .flatten(0, 2)
        .index_select(0, (row * seq_len + query).flatten())
        .unflatten(0, (n_rows, n_tiles, tile))
    )
    of_block = (row // shared * n_blocks + block).flatten()
    k, v = (t.flatten(0, 2).index_select(0, of_block).unflatten(0, (n_rows, n_tiles)) for t in (k, v))
    logits = (tiled @ k.mT).to(wide).masked_fill_(source > position, -torch.inf)
    largest = logits.detach().amax(3, keepdim=True).clamp(min=torch.finfo(wide).min)
    weights = logits.sub_(largest).exp_()
    of_pair = row * size + empty[:, :n_pairs].scatter(1, order, place.clamp(max=size - 1))
    total, mixed, largest = (
        t.flatten(0, 2).index_select(0, of_pair.flatten()).unflatten(0, (batch, n_heads, seq_len, top_k))
        for t in (weights.sum(3, keepdim=True), (weights.to(v.dtype) @ v).to(wide), largest)
    )
    largest = largest.masked_fill((chosen == n_blocks).unsqueeze(4), -torch.inf)
    share = (largest - largest.amax(3, keepdim=True)).exp()
    return ((share * mixed).sum(3) / (share * total).sum(3)).to(q.dtype)
