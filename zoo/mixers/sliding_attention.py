"""Sliding-window softmax attention, with a state of fixed size."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.attention import alibi_slopes, grow_cache, settle_cache, shared_values_rank, softmax_freedom
from zoo.ops.precision import Device, DType
from zoo.ops.rope import require_pairs, rotate, turned_channels
from zoo.ops.sliding import sliding_attend
from zoo.ops.time import without_rest
from zoo.validate import head_width, require_choice, require_positive, shared_heads

Position = Literal["none", "rope", "alibi"]


class SlidingState(NamedTuple):
    keys: Tensor  # (batch, n_kv_heads, window - 1, d_head), right-aligned; rotated with position rope
    values: Tensor  # (batch, n_kv_heads, window - 1, d_head)
    seen: Tensor  # (batch,) positions so far


class SlidingAttention(SequenceMixer):
    """Softmax attention of each position over the last `window` positions, including itself.

        y_i = sum_h W_O^h sum_{i - window < j <= i} softmax_j(q_i . k_j / sqrt(d_head) + bias) W_V^h x_j

    A block of `window` queries attends to its own slots and the window - 1 before it, so time is linear in the
    sequence.

    Coefficients. Queries and keys; W_ij is zero from lag window on. With out_bias, the output's bias is the offset.

    State. window - 1 keys and values per key and value head, 2 (window - 1) n_kv_heads d_head numbers in the dtype of
    the activations, and the number of positions so far. It does not grow.

    Interaction rank. n_heads: each W_ij is a combination of the maps W_O^h W_V^h. Heads that share keys and values
    still have one map each, up to d_model d_head per group. With window 1 all weights are one: rank 1.

    Source. Beltagy et al. 2004.05150, the causal half of their window; RoPE of Su et al. 2104.09864, ALiBi of Press et
    al. 2108.12409.

    Args:
        d_model: width of input and output.
        n_heads: query heads.
        d_head: width of a head; default d_model / n_heads.
        n_kv_heads: key and value heads, shared by groups of query heads; default n_heads.
        window: positions that a query attends to.
        position: position encoding: rope (Su et al. 2104.09864), alibi with learned slopes (Press et al. 2108.12409),
            or none.
        rope_base: base of the RoPE wavelengths; larger values rotate more slowly.
        d_rope: rotary channels, the first ones of each head; default all.
        out_bias: add a bias after the output projection, as in Griffin (De et al. 2402.19427).

    Raises:
        ValueError: non-positive sizes, head counts that do not divide evenly, an odd d_head with rope, a d_rope that is
            odd, too wide or used without rope, an unknown position.
    """

    undecayed = ("slopes",)

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        d_head: int | None = None,
        n_kv_heads: int | None = None,
        window: int = 64,
        position: Position = "none",
        rope_base: float = 1e4,
        d_rope: int | None = None,
        out_bias: bool = False,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, n_kv_heads=n_kv_heads, window=window)
        require_choice("position", position, Position)
        self.n_heads, self.window, self.position = n_heads, window, position
        self.d_head = head_width(d_model, n_heads, d_head)
        self.n_kv_heads = shared_heads(n_heads, n_kv_heads)
        if position == "rope":
            require_pairs(self.d_head)
        elif d_rope is not None:
            raise ValueError(f"d_rope needs position rope, got {position!r}")
        self.d_rope, self.rope_base = turned_channels(d_rope, self.d_head, rope_base), rope_base
        self.widths = (n_heads * self.d_head, self.n_kv_heads * self.d_head, self.n_kv_heads * self.d_head)
        self.qkv_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.out_proj = nn.Linear(self.widths[0], d_model, bias=out_bias)
        self.slopes = nn.Parameter(torch.empty(n_heads)) if position == "alibi" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.slopes is not None:
            with torch.no_grad():
                self.slopes.copy_(alibi_slopes(self.n_heads))

    def rank_law(self, seq_len: int) -> int:
        free = softmax_freedom(seq_len, self.window, normalized=True)
        return shared_values_rank(self.n_heads, self.n_kv_heads, self.d_model, self.d_head, free)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> SlidingState:
        slots = torch.zeros(batch_size, self.n_kv_heads, self.window - 1, self.d_head, dtype=dtype, device=device)
        return SlidingState(slots, slots.clone(), torch.zeros(batch_size, dtype=torch.int64, device=device))

    def mix(self, x: Tensor, state: SlidingState, lengths: Tensor | None) -> tuple[Tensor, SlidingState]:
        seq_len = x.shape[1]
        heads = rearrange(self.qkv_proj(x), "batch seq (head d) -> batch head seq d", d=self.d_head)
        q, k, v = heads.split((self.n_heads, self.n_kv_heads, self.n_kv_heads), dim=1)
        if self.position == "rope":
            positions = state.seen.unsqueeze(1) + torch.arange(seq_len, device=x.device)
            q, k = (rotate(t, positions, self.rope_base, d_rope=self.d_rope) for t in (q, k))
        q, k = coefficient(q), coefficient(k)
        keys, values = grow_cache(state.keys, k), grow_cache(state.values, v)
        y = sliding_attend(q, keys, values, state.seen.clamp(max=self.window - 1), self.slopes)
        settled = (settle_cache(cache, lengths, seq_len) for cache in (keys, values))
        keys, values = (without_rest(cache[:, :, seq_len:], cache) for cache in settled)
        seen = state.seen + (seq_len if lengths is None else lengths)
        return self.out_proj(rearrange(y, "batch head seq d -> batch seq (head d)")), SlidingState(keys, values, seen)
