"""Differential attention: each head's weights are the difference of two softmaxes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.attention import attend, grow_cache, settle_cache
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.rope import rotate, turned_channels
from zoo.validate import require_positive

LAMBDA_STD = 0.1


class DifferentialAttentionState(NamedTuple):
    keys: Tensor  # (batch, 2 n_heads, slots, d_head), right-aligned, rotated
    values: Tensor  # (batch, n_heads, slots, 2 d_head)
    seen: Tensor  # (batch,) positions so far


class DifferentialAttention(SequenceMixer):
    """Causal attention whose heads subtract one softmax from another, so that common attention cancels.

        q, k    = rope(W_q x), rope(W_k x)                  two of each per head, on the first d_rope channels
        a_ij^m  = softmax over j <= i of (q_i^m . k_j^m / sqrt(d_head)),  m = 1, 2
        o_i     = sum_{j <= i} (a_ij^1 - lambda a_ij^2) v_j          v of width 2 d_head
        y_i     = out_proj((1 - lambda_init) RMSNorm(o_i))           each head normed separately
        lambda  = exp(l_q1 . l_k1) - exp(l_q2 . l_k2) + lambda_init

    All heads share lambda. lambda_init = 0.8 - 0.6 exp(-0.3 depth); the layers of a stack have depths 0, 1, ... unless
    depth is given. The four vectors l start normal with standard deviation 0.1.

    Coefficients. Queries and keys, 1/rms. The values are linear and lambda does not depend on the input, so the offset
    is zero.

    State. Keys and values of all positions so far, 4 n_heads d_head numbers per position, and the length of each row so
    far. It grows with the sequence.

    Interaction rank. n_heads: the two softmax maps of a head are subtracted before they meet the values, so a head has
    one number per pair and one map, W_O^h W_V^h. The rows of a difference sum to 1 - lambda at every position, and a
    constant sequence comes out constant: the limit of a softmax without a sink (`zoo.theory.softmax_floor`) holds for
    the difference too (`zoo claims differential_floor`).

    Source. Ye et al. 2410.05258. As in microsoft/unilm, commit 3aca927, Diff-Transformer/multihead_diffattn.py, whose
    RoPE pairs neighbouring channels: the same layer up to the order of channels.

    Not here. Keys and values shared by groups of heads.

    Args:
        d_model: width of input and output.
        n_heads: heads, each with two softmaxes.
        d_head: width of queries and keys, half the width of values; default d_model / (2 n_heads).
        depth: index of the layer, from 0, which sets lambda_init.
        d_rope: rotary channels of queries and keys, an even number; 0 for none; default all but an odd last one.
        rope_base: base of the RoPE wavelengths; larger values rotate more slowly.

    Raises:
        ValueError: non-positive sizes, a 2 n_heads that does not divide d_model, a negative depth, a d_rope that is odd
            or exceeds d_head, a rope_base of at most 1.
    """

    undecayed = ("lambda_q", "lambda_k")

    def __init__(
        self,
        d_model: int,
        n_heads: int = 2,
        d_head: int | None = None,
        depth: int = 0,
        d_rope: int | None = None,
        rope_base: float = 1e4,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head)
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
            raise ValueError(f"depth must be an integer of at least 0, got {depth!r}")
        if d_head is None and d_model % (2 * n_heads):
            raise ValueError(
                f"d_model={d_model} is not divisible by twice n_heads={n_heads}; choose a divisor or give d_head"
            )
        self.n_heads, self.d_head, self.depth = n_heads, d_head or d_model // (2 * n_heads), depth
        self.d_rope = turned_channels(d_rope, self.d_head, rope_base)
        self.rope_base = rope_base
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.d_inner = 2 * n_heads * self.d_head
        self.qkv_proj = nn.Linear(d_model, 3 * self.d_inner, bias=False)
        self.lambda_q = nn.Parameter(torch.empty(2, self.d_head))
        self.lambda_k = nn.Parameter(torch.empty(2, self.d_head))
        self.norm = RMSNorm(2 * self.d_head)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.reset_parameters()

    @classmethod
    def create_layers(cls, n_layers: int, d_model: int, options: Mapping[str, Any]) -> list[SequenceMixer]:
        """Return the mixers of a stack, with depths 0, 1, ... unless the options give a depth."""
        require_positive(n_layers=n_layers)
        return [cls.create(d_model, {"depth": layer, **options}) for layer in range(n_layers)]

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for vectors in (self.lambda_q, self.lambda_k):
            nn.init.normal_(vectors, std=LAMBDA_STD)

    def rank_law(self, seq_len: int) -> int:
        return self.n_heads

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> DifferentialAttentionState:
        keys = torch.zeros(batch_size, 2 * self.n_heads, 0, self.d_head, dtype=dtype, device=device)
        values = torch.zeros(batch_size, self.n_heads, 0, 2 * self.d_head, dtype=dtype, device=device)
        return DifferentialAttentionState(keys, values, torch.zeros(batch_size, dtype=torch.int64, device=device))

    def subtracted(self) -> Tensor:
        """Return lambda, a scalar in at least float32."""
        wide = accumulator(self.lambda_q.dtype)
        first, second = (self.lambda_q.to(wide) * self.lambda_k.to(wide)).sum(1).exp().unbind(0)
        return first - second + self.lambda_init

    def mix(
        self, x: Tensor, state: DifferentialAttentionState, lengths: Tensor | None
    ) -> tuple[Tensor, DifferentialAttentionState]:
        seq_len = x.shape[1]
        q, k, v = self.qkv_proj(x).chunk(3, dim=2)
        q, k = (rearrange(t, "batch seq (head d) -> batch head seq d", d=self.d_head) for t in (q, k))
        v = rearrange(v, "batch seq (head d) -> batch head seq d", head=self.n_heads)
        positions = state.seen.unsqueeze(1) + torch.arange(seq_len, device=x.device)
        q, k = (coefficient(rotate(t, positions, self.rope_base, d_rope=self.d_rope)) for t in (q, k))
        keys, values = grow_cache(state.keys, k), grow_cache(state.values, v)
        both = attend(q, keys, values.repeat_interleave(2, dim=1), state.seen)
        first, second = both.unflatten(1, (self.n_heads, 2)).unbind(2)
        y = (1 - self.lambda_init) * self.norm(first - self.subtracted().to(x.dtype) * second)
        keys, values = (settle_cache(cache, lengths, seq_len) for cache in (keys, values))
        seen = state.seen + (seq_len if lengths is None else lengths)
        y = self.out_proj(rearrange(y, "batch head seq d -> batch seq (head d)"))
        return y, DifferentialAttentionState(keys, values, seen)
