"""Softmax attention whose queries and keys are normed and whose output is gated."""

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
    """Causal softmax attention with an output gate, normed queries and keys, and rope on a part of a head.

        q, k  = rope(RMSNorm(W_q x)), rope(RMSNorm(W_k x))         per head; rope on the first d_rope channels
        a_ij  = softmax over j <= i of (q_i . k_j / sqrt(d_head))
        y_i   = out_proj(sigmoid(W_g x_i) * sum_{j <= i} a_ij W_v x_j)

    gate channel has a number for each channel of each head, gate head one for each head. n_kv_heads shares keys and
    values between groups of query heads. Weights of the norms start at one. It has no highway input: normed queries and
    keys bound the logits, so that no needle takes all of the attention.

    Coefficients. 1/rms, queries and keys, the gate. The values are linear, so that the offset is zero.

    State. Keys and values of every position so far, 2 n_kv_heads d_head numbers per position, and the number of
    positions of each row. It grows with the sequence.

    Interaction rank. gate head: n_heads, as without a gate. gate channel: n_heads * d_head for generic input, since
    each value channel is scaled by itself: a softmax head then is as many operators as it has channels. Where heads
    share values, a shared channel has d_model operators at most.

    Source. Qiu et al. 2505.06708, the gate where they find it best. With gate channel as the attention layers of
    Qwen3-Next (transformers 5.23.0, models/qwen3_next/modeling_qwen3_next.py).

    Args:
        d_model: width of input and output.
        n_heads: query heads.
        d_head: width of a head; default d_model / n_heads.
        n_kv_heads: key and value heads, shared by groups of query heads; default n_heads.
        gate: one number per head, or one per channel.
        d_rope: channels of a head that rope turns, an even number; 0 for none, a quarter of d_head and at least 2 when
            absent.
        rope_base: base of rope's wavelengths; larger turns slower.
        norm_eps: epsilon of the norms of queries and keys.

    Raises:
        ValueError: sizes that are not positive, heads that do not divide, an unknown gate, a d_rope that is odd or does
            not fit into a head, a rope_base of at most 1.
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
        if self.gate == "head":  # as without a gate: it scales a head's rows, which no longer sum to one
            return self.n_kv_heads * min(shared, self.d_model * self.d_head)
        # Each value channel has a map of rank one, its column of out_proj times its row of W_v; heads that share the
        # row have d_model columns at most. In row i the weights of all heads are vectors of i positions.
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
