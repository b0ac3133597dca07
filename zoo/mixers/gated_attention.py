"""Softmax attention with normed queries and keys, partial RoPE and an output gate."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.attention import attend, grow_cache, settle_cache
from zoo.ops.precision import Device, DType
from zoo.ops.rope import rotate, turned_channels
from zoo.validate import head_width, require_choice, require_positive, shared_heads

Gate = Literal["head", "channel"]


class GatedAttentionState(NamedTuple):
    keys: Tensor  # (batch, n_kv_heads, slots, d_head), right-aligned, normed and rotated
    values: Tensor  # (batch, n_kv_heads, slots, d_head)
    seen: Tensor  # (batch,) positions so far


class GatedAttention(SequenceMixer):
    """Causal softmax attention with an output gate, normed queries and keys, and RoPE on part of each head.

        q, k  = rope(RMSNorm(W_q x)), rope(RMSNorm(W_k x))         per head; rope on the first d_rope channels
        a_ij  = softmax over j <= i of (q_i . k_j / sqrt(d_head))
        y_i   = out_proj(sigmoid(W_g x_i) * sum_{j <= i} a_ij W_v x_j)

    With gate channel, W_g x_i has one number per channel of each head; with gate head, one per head. n_kv_heads shares
    keys and values between groups of query heads. The norms' weights start at one. There is no highway input: normed
    queries and keys bound the logits, so no needle can take all of the attention.

    Coefficients. 1/rms, queries and keys, the gate. The values are linear, so the offset is zero.

    State. Keys and values of all positions so far, 2 n_kv_heads d_head numbers per position, and the length of each row
    so far. It grows with the sequence.

    Interaction rank. gate head: n_heads, as without a gate. gate channel: n_heads * d_head for generic input, since the
    gate scales each value channel separately, so that a softmax head spans one operator per channel. If heads share
    values, a shared channel spans at most d_model operators.

    Source. Qiu et al. 2505.06708, with the gate at the position they find best. gate channel is the attention layer of
    Qwen3-Next (transformers 5.23.0, models/qwen3_next/modeling_qwen3_next.py).

    Args:
        d_model: width of input and output.
        n_heads: query heads.
        d_head: width of a head; default d_model / n_heads.
        n_kv_heads: key and value heads, shared by groups of query heads; default n_heads.
        gate: one number per head, or one per channel.
        d_rope: rotary channels, the first ones of each head, an even number; 0 for none; default a quarter of d_head,
            at least 2.
        rope_base: base of the RoPE wavelengths; larger values rotate more slowly.
        norm_eps: epsilon of the norms of queries and keys.

    Raises:
        ValueError: non-positive sizes, head counts that do not divide evenly, an unknown gate, a d_rope that is odd or
            exceeds d_head, a rope_base of at most 1.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 2,
        d_head: int | None = None,
        n_kv_heads: int | None = None,
        gate: Gate = "channel",
        d_rope: int | None = None,
        rope_base: float = 1e4,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, n_kv_heads=n_kv_heads)
        require_choice("gate", gate, Gate)
        self.n_heads, self.gate = n_heads, gate
        self.d_head = head_width(d_model, n_heads, d_head)
        self.n_kv_heads = shared_heads(n_heads, n_kv_heads)
        d_rope = max(2, self.d_head // 8 * 2) if d_rope is None else d_rope
        self.d_rope = turned_channels(d_rope, self.d_head, rope_base)
        self.rope_base = rope_base
        self.widths = (n_heads * self.d_head, self.n_kv_heads * self.d_head, self.n_kv_heads * self.d_head)
        self.qkv_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.q_norm, self.k_norm = RMSNorm(self.d_head, norm_eps), RMSNorm(self.d_head, norm_eps)
        self.gate_proj = nn.Linear(d_model, n_heads if gate == "head" else self.widths[0], bias=False)
        self.out_proj = nn.Linear(self.widths[0], d_model, bias=False)
        self.reset_parameters()

    def rank_law(self, seq_len: int) -> int:
        shared = self.n_heads // self.n_kv_heads
        if self.gate == "head":  # as without a gate: it only scales a head's rows
            return self.n_kv_heads * min(shared, self.d_model * self.d_head)
        # Each value channel has a map of rank one, its column of out_proj times its row of W_v. Heads that share a row
        # of W_v span at most d_model such maps. In row i, the weights of all heads are vectors over i positions.
        weights = sum(min(i, self.n_heads) for i in range(1, seq_len + 1))
        return min(self.n_kv_heads * self.d_head * min(shared, self.d_model), weights)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> GatedAttentionState:
        slots = torch.zeros(batch_size, self.n_kv_heads, 0, self.d_head, dtype=dtype, device=device)
        return GatedAttentionState(slots, slots.clone(), torch.zeros(batch_size, dtype=torch.int64, device=device))

    def mix(self, x: Tensor, state: GatedAttentionState, lengths: Tensor | None) -> tuple[Tensor, GatedAttentionState]:
        seq_len = x.shape[1]
        parts = self.qkv_proj(x).split(self.widths, dim=2)
        q, k, v = (rearrange(t, "batch seq (head d) -> batch head seq d", d=self.d_head) for t in parts)
        positions = state.seen.unsqueeze(1) + torch.arange(seq_len, device=x.device)
        q, k = (
            coefficient(rotate(norm(t), positions, self.rope_base, d_rope=self.d_rope))
            for t, norm in ((q, self.q_norm), (k, self.k_norm))
        )
        keys, values = grow_cache(state.keys, k), grow_cache(state.values, v)
        y = attend(q, keys, values, state.seen)
        gate = rearrange(self.gate_proj(x), "batch seq (head d) -> batch head seq d", head=self.n_heads)
        y = coefficient(torch.sigmoid(gate)) * y
        keys, values = (settle_cache(cache, lengths, seq_len) for cache in (keys, values))
        seen = state.seen + (seq_len if lengths is None else lengths)
        return self.out_proj(rearrange(y, "batch head seq d -> batch seq (head d)")), GatedAttentionState(
            keys, values, seen
        )
