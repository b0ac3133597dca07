"""PaTH attention: each position between key and query multiplies the key by a Householder-like map."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from zoo.cores import core
from zoo.ops.attention import attend_by, forgetting_bias, forgotten_since, query_blocks, recomputed, recomputes
from zoo.ops.precision import Product, chunk_product, full_precision
from zoo.ops.transforms import compiling, on_cpu, whole_in_export

CHUNK, _MOST_CHUNKS = 64, 16


@core("v", "batch head seq value")
@whole_in_export(
    "(Tensor q, Tensor k, Tensor v, Tensor w, Tensor beta, Tensor cache, Tensor cached, Tensor? log_forget, "
    "Tensor? forgotten) -> (Tensor, Tensor)",
    lambda q, k, v, w, beta, cache, cached, log_forget, forgotten: (
        v.new_empty(*q.shape[:3], v.shape[3]),
        cache.new_empty(*k.shape[:2], cache.shape[2] + k.shape[2], k.shape[3]),
    ),
)
def path_attend(
    q: Float[Tensor, "batch n_heads seq d_head"],
    k: Float[Tensor, "batch n_kv_heads seq d_head"],
    v: Float[Tensor, "batch n_kv_heads slots d_value"],
    w: Float[Tensor, "batch n_kv_heads seq d_head"],
    beta: Float[Tensor, "batch n_kv_heads seq"],
    cache: Float[Tensor, "batch n_kv_heads past d_head"],
    cached: Int[Tensor, " batch"],
    log_forget: Float[Tensor, "batch n_heads seq"] | None = None,
    forgotten: Float[Tensor, "batch n_heads past"] | None = None,
) -> tuple[Float[Tensor, "batch n_heads seq d_value"], Float[Tensor, "batch n_kv_heads slots d_head"]]:
    """softmax_j((q_i^T H_i ... H_{j+1} k_j + log f_{j+1} + ... + log f_i) / sqrt(d_head)) v_j, H as in `path_logits`.

    For long sequences (`is_long`), the backward pass recomputes the matrix over pairs of positions instead of keeping
    it. On the CPU, queries are then processed in blocks, so the whole matrix never exists. The keys of earlier blocks
    are stored as they are at the end of their own block, and each later block moves them up to its start, block by
    block.

    Args:
        q, k, w, beta, cache: as in `path_logits`.
        v, cached: as in `attend`.
        log_forget, forgotten: as in `forgetting_attend`; None for no gate.

    Returns:
        One output per query and head, and the keys of all slots, moved by all positions.
    """
    past, product = cache.shape[2], chunk_product(cache)
    blocks = query_blocks(q) if on_cpu(q) else [(0, int(q.shape[2]))]
    block = partial(_block, product, past, cached)
    outputs, after = [], cache
    with full_precision(q.device):
        q, k, w, beta = (t.to(cache.dtype) for t in (q, k, w, beta))
        ends = _block_ends(k, w, beta, len(blocks) - 1, blocks[0][1])
        # The last block, which has the most keys, comes first: smaller ones then fit into the memory that it frees.
        for n, (first, last) in reversed([*enumerate(blocks)]):
            given = [t[:, :, first:last] for t in (q, k, w, beta)]
            given += [v[:, :, : past + last], None if log_forget is None else log_forget[:, :, :last], forgotten]
            given += [cache, *(t[:, :n] for t in ends)]
            y, moved = recomputed(block, *given) if n or recomputes(given[0]) else block(*given)
            outputs.append(y)
            after = moved if last == q.shape[2] else after
    return torch.cat(outputs[::-1], dim=2), after


def _block(
    product: Product,
    past: int,
    cached: Tensor,
    q: Tensor,
    k: Tensor,
    w: Tensor,
    beta: Tensor,
    v: Tensor,
    gate: Tensor | None,
    forgotten: Tensor | None,
    *keys: Tensor,
) -> tuple[Tensor, Tensor]:
    """`path_attend` of one block of queries; `keys` are the earlier ones, as `_moved_up` takes them."""
    first = v.shape[2] - past - q.shape[2]
    logits, after = path_logits(product, q, k, w, beta, _moved_up(*keys))
    if gate is not None and forgotten is not None:
        since = forgotten_since(gate[:, :, :first], forgotten)
        logits = logits + forgetting_bias(gate[:, :, first:], since)
    return attend_by(logits * int(q.shape[3]) ** -0.5, v, cached + first), after


def _block_ends(k: Tensor, w: Tensor, beta: Tensor, n_blocks: int, size: int) -> tuple[Tensor, Tensor]:
    """Return, for each of the first blocks, its map of earlier keys (k^T -> k^T map) and its own keys at its end."""
    d_head = k.shape[3]
    if not n_blocks:
        return k.new_empty(len(k), 0, k.shape[1], d_head, d_head), k.new_empty(len(k), 0, k.shape[1], size, d_head)
    # Blocks become rows of the batch. The rows of the identity, moved like keys, are the map.
    k, w, beta = (
        t[:, :, : n_blocks * size].unflatten(2, (n_blocks, size)).transpose(1, 2).flatten(0, 1) for t in (k, w, beta)
    )
    identity = torch.eye(d_head, dtype=k.dtype, device=k.device).expand(*k.shape[:2], d_head, d_head)
    *_, (*_, keys) = _chunks(k, w, beta, identity)
    maps, own = keys.unflatten(0, (-1, n_blocks)).split((d_head, size), dim=3)
    return maps, own


def _moved_up(cache: Tensor, maps: Tensor, own: Tensor) -> Tensor:
    """Return the cache and the keys of the blocks, all moved to the end of the last block."""
    if maps.shape[1] == 0:
        return cache
    onwards = [torch.eye(maps.shape[3], dtype=maps.dtype, device=maps.device).expand_as(maps[:, 0])]
    for over in maps.unbind(1)[::-1]:
        onwards.append(over @ onwards[-1])
    keys = own @ torch.stack(onwards[-2::-1], dim=1)
    return torch.cat((cache @ onwards[-1], keys.transpose(1, 2).flatten(2, 3)), dim=2)


def path_logits(
    product: Product,
    q: Float[Tensor, "batch n_heads seq d_head"],
    k: Float[Tensor, "batch n_kv_heads seq d_head"],
    w: Float[Tensor, "batch n_kv_heads seq d_head"],
    beta: Float[Tensor, "batch n_kv_heads seq"],
    cache: Float[Tensor, "batch n_kv_heads past d_head"],
) -> tuple[Float[Tensor, "batch n_heads seq slots"], Float[Tensor, "batch n_kv_heads slots d_head"]]:
    """q_i^T H_i H_{i-1} ... H_{j+1} k_j with H_t = I - beta_t w_t w_t^T (Yang et al. 2505.16381, section 2).

    Position t subtracts c_tj w_t with c_tj = beta_t w_t . (H_{t-1} ... H_{j+1} k_j) from every earlier key j. With K
    the earlier keys as they are before a chunk, followed by the chunk's own keys,

        (I + tril(beta W W^T, -1)) C = beta W K^T, zero for a key's own position and those before it,
        logits = Q K^T - tril(Q W^T) C,      keys after the chunk = K - C^T W,

    so one triangular solve per chunk replaces its product of maps (the WY form), and the keys that go from chunk to
    chunk are the whole state. Entries above the diagonal are not logits.

    Args:
        product: `chunk_product` of the cache; the moving of keys is not rounded.
        q: queries; groups of heads share the heads of k and w.
        k: keys.
        w: directions, of length one or shorter.
        beta: 0 to 2; 0 moves no key, 2 reflects.
        cache: keys before the first position, moved by all positions so far; the computation uses its dtype.

    Returns:
        The logits for the cached slots and the chunk's, and the keys of all of them, moved by all positions.
    """
    with full_precision(q.device):
        q, k, w, beta = (t.to(cache.dtype) for t in (q, k, w, beta))
        q = q.unflatten(1, (k.shape[1], q.shape[1] // k.shape[1]))
        chunks = _one_by_one if on_cpu(k) and not compiling() else _in_pairs
        logits, after = chunks(product, q, k, w, beta, cache)
    return logits.flatten(1, 2), after


def _one_by_one(
    product: Product, q: Tensor, k: Tensor, w: Tensor, beta: Tensor, cache: Tensor
) -> tuple[Tensor, Tensor]:
    """`path_logits`, chunk after chunk; q is (batch, n_kv_heads, group, seq, d_head)."""
    n_slots, logits, after = cache.shape[2] + k.shape[2], [], cache
    for here, keys, taken, after in _chunks(k, w, beta, cache):  # noqa: B007 (the last one is returned)
        q_c, w_c = q[:, :, :, here], w[:, :, here]
        along = product(q_c, w_c.mT.unsqueeze(2)).tril()
        read = product(q_c, keys.mT.unsqueeze(2)) - product(along, taken.unsqueeze(2))
        logits.append(F.pad(read, (0, n_slots - keys.shape[2])))
    return torch.cat(logits, dim=3), after


def _in_pairs(product: Product, q: Tensor, k: Tensor, w: Tensor, beta: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
    """`_one_by_one` in a number of operations that is bounded for any length.

    All chunks are computed at once: their own logits, their keys moved to their end, their queries moved to their
    start, and their maps, by which later chunks move these keys. Then neighbours are joined, in log2(chunks) steps:
    queries of the right chunk meet keys of the left one at their common border, and both move on to the ends of the
    joint chunk.
    """
    past, seq_len, d_head = cache.shape[2], k.shape[2], k.shape[3]
    n_chunks = 1 << (min(_MOST_CHUNKS, -(-seq_len // CHUNK)) - 1).bit_length()
    size = -(-seq_len // n_chunks)
    more = n_chunks * size - seq_len
    q, k, w = (F.pad(t, (0, 0, 0, more)).unflatten(-2, (n_chunks, size)) for t in (q, k, w))
    scaled = F.pad(beta, (0, more)).unflatten(2, (n_chunks, size)).unsqueeze(4) * w
    wanted = torch.cat(((scaled @ k.mT).tril(-1), scaled), dim=4)
    solved = torch.linalg.solve_triangular((scaled @ w.mT).tril(-1), wanted, upper=False, unitriangular=True)
    taken, through = solved.split((size, d_head), dim=4)
    keys = k - taken.mT @ w
    maps = torch.eye(d_head, dtype=k.dtype, device=k.device) - through.mT @ w
    weights = product(q, w.mT.unsqueeze(2)).tril()
    logits = product(q, k.mT.unsqueeze(2)) - product(weights, taken.unsqueeze(2))
    queries = q - weights @ through.unsqueeze(2)
    while maps.shape[2] > 1:
        (k_left, k_right), (m_left, m_right) = ((t[:, :, ::2], t[:, :, 1::2]) for t in (keys, maps))
        (q_left, q_right), (own_left, own_right) = ((t[:, :, :, ::2], t[:, :, :, 1::2]) for t in (queries, logits))
        met = torch.cat((product(q_right, k_left.mT.unsqueeze(2)), own_right), dim=5)
        logits = torch.cat((F.pad(own_left, (0, own_left.shape[5])), met), dim=4)
        keys = torch.cat((k_left @ m_right, k_right), dim=3)
        queries = torch.cat((q_left, q_right @ m_left.mT.unsqueeze(2)), dim=4)
        maps = m_left @ m_right
    logits = torch.cat((product(queries.squeeze(3), cache.mT.unsqueeze(2)), logits.squeeze(3)), dim=4)
    after = torch.cat((cache @ maps.squeeze(2), keys.squeeze(2)), dim=2)
    return logits[:, :, :, :seq_len, : past + seq_len], after[:, :, : past + seq_len]


def _chunks(k: Tensor, w: Tensor, beta: Tensor, keys: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Yield per chunk: its positions, the keys before it and its own, C of `path_logits`, and the keys after it."""
    for first in range(0, k.shape[2], CHUNK):
        past, here = keys.shape[2], slice(first, first + CHUNK)
        w_c, keys = w[:, :, here], torch.cat((keys, k[:, :, here]), dim=2)
        scaled = beta[:, :, here].unsqueeze(3) * w_c
        taken = torch.linalg.solve_triangular(
            (scaled @ w_c.mT).tril(-1), (scaled @ keys.mT).tril(past - 1), upper=False, unitriangular=True
        )
        after = keys - taken.mT @ w_c
        yield here, keys, taken, after
        keys = after
