"""DeepSeek sparse attention: softmax attention to the few positions that a cheap index scores highest.

Slots are right-aligned, as in `zoo.ops.attention`. On the CPU, queries are processed in blocks that the backward pass
recomputes, so memory is linear in the sequence. Elsewhere the index is computed in two blocks.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Bool, Float, Int
from torch import Tensor

from zoo.cores import core
from zoo.ops.attention import query_blocks, recomputed
from zoo.ops.precision import accumulator, full_precision, linear_dtype
from zoo.ops.transforms import on_cpu, whole_in_export

_BETWEEN_TIES = 1e-30  # a slot's advantage over the slot before it


@core("v", "batch head seq value")
@whole_in_export(
    "(Tensor q, Tensor k, Tensor v, Tensor index_q, Tensor index_k, Tensor index_w, Tensor cached, int top_k, "
    "bool compare=False) -> (Tensor, Tensor)",
    lambda q, k, v, index_q, *_: (q.new_empty(*q.shape[:3], v.shape[3]), index_q.new_empty(q.shape[0], q.shape[2])),
)
def attend_to_best(
    q: Float[Tensor, "batch n_heads seq d_key"],
    k: Float[Tensor, "batch 1 slots d_key"],
    v: Float[Tensor, "batch 1 slots d_value"],
    index_q: Float[Tensor, "batch seq n_index d_index"],
    index_k: Float[Tensor, "batch slots d_index"],
    index_w: Float[Tensor, "batch seq n_index"],
    cached: Int[Tensor, " batch"],
    top_k: int,
    compare: bool = False,
) -> tuple[Float[Tensor, "batch n_heads seq d_value"], Float[Tensor, "batch seq"]]:
    """softmax_j(q_i . k_j / sqrt(d_key)) v_j over the top_k positions j <= i with the highest index (DeepSeek-V3.2).

    The index is I_ij = sum_n w_in relu(q_in . k_j). Among positions with equal index, later ones come first.

    Args:
        q: queries of the chunk.
        k, v: cached slots, then the chunk's, shared by all heads. Pass one tensor if they are the same.
        index_q, index_k, index_w: queries, keys and weights of the index.
        cached: filled slots of each row before the chunk; they are the rightmost ones.
        top_k: positions of a query, at most the slots; all if there are fewer.
        compare: also compute the second result.

    Returns:
        One output per query and head; and per query the divergence of the index' softmax from the mean of the heads'
        weights over the chosen positions, which is differentiable in the index only, and zero without `compare`.
    """
    seq_len, past, same, narrow = q.shape[2], k.shape[2] - q.shape[2], v is k, linear_dtype(q)
    q, k, v = q.to(narrow), k.squeeze(1).to(narrow), v.squeeze(1).to(narrow)
    index_q, index_k, index_w = (t.to(accumulator(q.dtype)) for t in (index_q, index_k, index_w))
    first, slot, query = _bounds(cached, past, seq_len)
    later = slot * _BETWEEN_TIES
    with full_precision(q.device):
        blocks, chosen, found = _blocks(q), [], []
        with torch.no_grad():
            for i, j in blocks:
                n = past + (j if on_cpu(q) else seq_len)
                index = _index(index_q[:, i:j], index_k[:, :n], index_w[:, i:j])
                index += later[:n].to(index.dtype)
                index.masked_fill_(_unseen(slot[:n], query[i:j], first), -torch.inf)
                chosen.append(index.topk(min(top_k, n), dim=2, sorted=False).indices)
        if not on_cpu(q):  # fewer kernels
            chosen, blocks = [torch.cat(chosen, dim=1)], [(0, seq_len)]
        for slots, (i, j) in zip(chosen, blocks, strict=True):
            block = partial(_attend_to_chosen, slots, _unseen(slots, query[i:j], first), compare)
            given = q[:, :, i:j], k, None if same else v, index_q[:, i:j], index_k, index_w[:, i:j]
            found.append(recomputed(block, *given) if len(blocks) > 1 else block(*given))
    outputs, divergences = zip(*found, strict=True)
    return torch.cat(outputs, dim=2), torch.cat(divergences, dim=1)


def divergence_from_all(
    q: Float[Tensor, "batch n_heads seq d_key"],
    k: Float[Tensor, "batch n_heads slots d_key"],
    index_q: Float[Tensor, "batch seq n_index d_index"],
    index_k: Float[Tensor, "batch slots d_index"],
    index_w: Float[Tensor, "batch seq n_index"],
    cached: Int[Tensor, " batch"],
) -> Float[Tensor, "batch seq"]:
    """Return the divergence of `attend_to_best` over all positions, for heads with separate keys."""
    past, found = k.shape[2] - q.shape[2], []
    q, k = q.to(linear_dtype(q)), k.to(linear_dtype(q))
    index_q, index_k, index_w = (t.to(accumulator(q.dtype)) for t in (index_q, index_k, index_w))
    first, slot, query = _bounds(cached, past, q.shape[2])
    with full_precision(q.device):
        for i, j in _blocks(q):
            n = past + j
            unseen = _unseen(slot[:n], query[i:j], first)
            with torch.no_grad():
                logits = (q[:, :, i:j] @ k[:, :, :n].mT) * int(q.shape[3]) ** -0.5
                weights = _softmax(logits, unseen.unsqueeze(-3)).mean(1)
            block = partial(_divergence_to_all, weights, unseen)
            given = index_q[:, i:j], index_k[:, :n], index_w[:, i:j]
            found.append(recomputed(block, *given) if j - i < q.shape[2] else block(*given))
    return torch.cat(found, dim=1)


def _blocks(q: Tensor) -> list[tuple[int, int]]:
    """Return the blocks of queries; off the CPU at most two, so that the number of kernels is bounded."""
    blocks, seq_len = query_blocks(q), q.shape[2]
    if on_cpu(q) or len(blocks) == 1:
        return blocks
    return [(0, seq_len // 2), (seq_len // 2, seq_len)]


def _bounds(cached: Tensor, past: int, seq_len: int) -> tuple[Tensor | None, Tensor, Tensor]:
    """Return each row's first slot (None if all rows start at 0), all slots, and each query's last visible slot."""
    slot = torch.arange(past + seq_len, device=cached.device)
    return (past - cached).view(-1, 1, 1) if past else None, slot, slot[past:].unsqueeze(1)


def _unseen(slots: Tensor, query: Tensor, first: Tensor | None) -> Bool[Tensor, "*rows seq slots"]:
    later = slots > query
    return later if first is None else later | (slots < first)


def _index(q: Tensor, k: Tensor, w: Tensor) -> Float[Tensor, "batch seq slots"]:
    """I_ij = sum_n w_in relu(q_in . k_j), with k for all slots, or for the slots of each query."""
    rows = "batch slot d" if k.ndim == 3 else "batch seq slot d"
    similar = einsum(q, k, f"batch seq n d, {rows} -> batch seq n slot")
    similar = similar.relu() if similar.requires_grad else similar.relu_()
    return (w.unsqueeze(2) @ similar).squeeze(2)


def _attend_to_chosen(
    chosen: Tensor, unseen: Tensor, compare: bool, q: Tensor, k: Tensor, v: Tensor | None, *index: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the outputs and the divergences of a block of queries."""
    if len(k) > 1:
        chosen = chosen + torch.arange(0, k.shape[0] * k.shape[1], k.shape[1], device=k.device).view(-1, 1, 1)
    # Embeddings, since their gradient adds whole rows, while the gradient of indexing adds one number at a time.
    keys = F.embedding(chosen, k.flatten(0, 1))
    values = keys if v is None else F.embedding(chosen, v.flatten(0, 1))
    # Keys on the left, so that their gradient has the layout of the values' gradient, to which it is added.
    logits = (keys @ q.permute(0, 2, 3, 1)).mT * int(q.shape[3]) ** -0.5
    weights = _softmax(logits, unseen.unsqueeze(2))
    y = (weights.to(q.dtype) @ values).transpose(1, 2)
    if not compare:
        return y, weights.new_zeros(q.shape[0], q.shape[2])
    index_q, index_k, index_w = index
    scores = _index(index_q, F.embedding(chosen, index_k.flatten(0, 1)), index_w)
    return y, _divergence(weights.detach().mean(2), scores, unseen)


def _divergence_to_all(weights: Tensor, unseen: Tensor, *index: Tensor) -> Tensor:
    return _divergence(weights, _index(*index), unseen)


def _divergence(weights: Tensor, index: Tensor, unseen: Tensor) -> Float[Tensor, "batch seq"]:
    """sum_j p_j (log p_j - log softmax(index)_j), where p are the weights."""
    logs = index.masked_fill(unseen, torch.finfo(index.dtype).min).log_softmax(2)
    return (torch.xlogy(weights, weights) - weights * logs).sum(2)


def _softmax(logits: Tensor, unseen: Tensor) -> Tensor:
    return logits.to(accumulator(logits.dtype)).masked_fill(unseen, -torch.inf).softmax(-1)
