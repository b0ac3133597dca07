"""FoX: softmax attention with a forget gate."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.attention import (
    forgetting_attend,
    forgotten_since,
    grow_cache,
    settle_cache,
    shared_values_rank,
    softmax_freedom,
)
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.time import without_padding
from zoo.validate import head_width, require_positive, shared_heads


class ForgettingAttentionState(NamedTuple):
    keys: Tensor  # (batch, n_kv_heads, slots, d_head), right-aligned
    values: Tensor  # (batch, n_kv_heads, slots, d_head)
    forgotten: Tensor  # (batch, n_heads, slots, 1) sum of log f over the positions after the slot, at least float32
    seen: Tensor  # (batch,) positions so far


class ForgettingAttention(SequenceMixer):
    """Causal softmax attention with a forget gate: log f of each position lowers the logits of all earlier ones.

        f_t   = sigmoid(w_f x_t + b_f), a number for each head
        a_ij  = softmax over j <= i of (q_i . k_j / sqrt(d_head) + log f_{j+1} + ... + log f_i)
        y_i   = out_proj(sum_{j <= i} a_ij W_v x_j)

    A position with f near zero hides everything before it from later positions. There is no other position encoding.
    n_kv_heads shares keys and values between groups of query heads; every query head has its own gate.

    The sums of log f form a matrix over pairs of positions that needs a gradient, which torch's fused softmax attention
    does not provide: at 1,024 positions on a CPU, training runs at less than half the speed of `gated_delta_net`.
    Memory is linear in the length, since the backward pass recomputes blocks of queries. On CUDA, long sequences use
    torch's FlexAttention, whose gradient of log f is a sum in no fixed order.

    Coefficients. Queries and keys, log f. The values are linear, so the offset is zero.

    State. Keys and values of all positions so far, 2 n_kv_heads d_head numbers per position; for each of them the sum
    of log f since then, n_heads numbers; the length of each row so far. It grows with the sequence. The sums run back
    from the end, so that sums over recent positions are small and keep their digits.

    Interaction rank. n_heads: the gates between two positions change a head's number for the pair, but not its map
    W_O^h W_V^h.

    Source. Lin et al. 2503.02130, section 3. As in flash-linear-attention, commit bc3b101,
    fla/layers/forgetting_attn.py with its defaults.

    Not here. The norms of queries and keys and the output gate of their "Pro" block.

    Args:
        d_model: width of input and output.
        n_heads: query heads.
        d_head: width of a head; default d_model / n_heads.
        n_kv_heads: key and value heads, shared by groups of query heads; default n_heads.

    Raises:
        ValueError: non-positive sizes, head counts that do not divide evenly.
    """

    def __init__(
        self, d_model: int, n_heads: int = 4, d_head: int | None = None, n_kv_heads: int | None = None
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, n_kv_heads=n_kv_heads)
        self.n_heads = n_heads
        self.d_head = head_width(d_model, n_heads, d_head)
        self.n_kv_heads = shared_heads(n_heads, n_kv_heads)
        self.widths = (n_heads * self.d_head, self.n_kv_heads * self.d_head, self.n_kv_heads * self.d_head)
        self.qkv_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.forget_proj = nn.Linear(d_model, n_heads)
        self.out_proj = nn.Linear(self.widths[0], d_model, bias=False)
        self.reset_parameters()

    def rank_law(self, seq_len: int) -> int:
        free = softmax_freedom(seq_len, seq_len, normalized=True)
        return shared_values_rank(self.n_heads, self.n_kv_heads, self.d_model, self.d_head, free)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> ForgettingAttentionState:
        slots = torch.zeros(batch_size, self.n_kv_heads, 0, self.d_head, dtype=dtype, device=device)
        forgotten = torch.zeros(batch_size, self.n_heads, 0, 1, dtype=accumulator(dtype), device=device)
        seen = torch.zeros(batch_size, dtype=torch.int64, device=device)
        return ForgettingAttentionState(slots, slots.clone(), forgotten, seen)

    def mix(
        self, x: Tensor, state: ForgettingAttentionState, lengths: Tensor | None
    ) -> tuple[Tensor, ForgettingAttentionState]:
        seq_len = x.shape[1]
        parts = self.qkv_proj(x).split(self.widths, dim=2)
        q, k, v = (rearrange(t, "batch seq (head d) -> batch head seq d", d=self.d_head) for t in parts)
        log_forget = F.logsigmoid(self.forget_proj(x).to(state.forgotten.dtype)).transpose(1, 2)
        (log_forget,) = without_padding(lengths, log_forget)
        q, k, log_forget = coefficient(q), coefficient(k), coefficient(log_forget)
        keys, values = grow_cache(state.keys, k), grow_cache(state.values, v)
        forgotten = state.forgotten.squeeze(3)
        y = forgetting_attend(q, keys, values, state.seen, log_forget, forgotten)
        grown = keys, values, forgotten_since(log_forget, forgotten).unsqueeze(3)
        keys, values, forgotten = (settle_cache(cache, lengths, seq_len) for cache in grown)
        seen = state.seen + (seq_len if lengths is None else lengths)
        y = self.out_proj(rearrange(y, "batch head seq d -> batch seq (head d)"))
        return y, ForgettingAttentionState(keys, values, forgotten, seen)
