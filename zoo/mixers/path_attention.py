"""PaTH: softmax attention with a data-dependent product of Householder-like maps as its position encoding."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.attention import forgotten_since, grow_cache, settle_cache, shared_values_rank, softmax_freedom
from zoo.ops.delta_rule import unit_length
from zoo.ops.path import path_attend
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.time import without_padding
from zoo.validate import head_width, require_positive, shared_heads

BETA_MAX = 2.0


class PathAttentionState(NamedTuple):
    keys: Tensor  # (batch, n_kv_heads, slots, d_head), right-aligned, moved by all positions so far, at least float32
    values: Tensor  # (batch, n_kv_heads, slots, d_head)
    forgotten: Any  # (batch, n_heads, slots, 1) sum of log f over the positions after the slot, or () without gate
    conv: Tensor  # (batch, d_conv - 1, n_kv_heads * d_head)
    seen: Tensor  # (batch,) positions so far


class PathAttention(SequenceMixer):
    """Causal softmax attention whose position encoding is a product of input-dependent maps.

        w_t   = silu(conv(W_2 W_1 x_t)), scaled to length one;  beta_t = 2 sigmoid(w_b x_t + b)
        H_t   = I - beta_t w_t w_t^T
        a_ij  = softmax over j <= i of (q_i^T H_i H_{i-1} ... H_{j+1} k_j / sqrt(d_head))
        y_i   = out_proj(sum_{j <= i} a_ij W_v x_j)

    RoPE rotates a key in proportion to its distance. Here every position between key and query moves the key along that
    position's own direction, at most by a reflection. `delta_net` has the same product of maps, which can track states;
    fixed rotations cannot. forget_gate adds (log f_{j+1} + ... + log f_i) / sqrt(d_head) to the logits, with a sigmoid
    f per query head; `forgetting_attention` adds the sum undivided. n_kv_heads shares keys, values and maps between
    groups of query heads.

    Each chunk takes one triangular solve. It also moves the earlier keys of its block, and each block moves all keys
    before it: this is more work than softmax attention and equally quadratic in the length. At 1,024 positions on a
    CPU, training runs at less than half the speed of `gated_delta_net`. On a CPU the backward pass recomputes blocks,
    so memory is linear in the length. On other devices all logits are computed at once, to keep the number of
    operations constant: memory is quadratic, for one layer at a time, or for every layer if compiled.

    Coefficients. Queries, keys, w, beta and log f. The values are linear, so the offset is zero.

    State. Keys and values of all positions so far, 2 n_kv_heads d_head numbers per position, the keys at least float32
    since each new position moves them all; the convolution's last d_conv - 1 inputs; the length of each row so far;
    with forget_gate n_heads more numbers per position. It grows with the sequence.

    Interaction rank. n_heads: the positions between two positions change a head's number for the pair, but not its map
    W_O^h W_V^h.

    Source. Yang et al. 2505.16381. As in flash-linear-attention, commit bc3b101, fla/layers/path_attn.py with its
    defaults; the gate (use_forget_gate there) is divided by sqrt(d_head) as there.

    Not here. The norms of queries and keys, and w from one full-rank map: W_2 W_1 with w_rank d_model is equivalent.

    Args:
        d_model: width of input and output.
        n_heads: query heads.
        d_head: width of a head; default d_model / n_heads.
        n_kv_heads: heads of keys, values and maps, shared by groups of query heads; default n_heads.
        w_rank: rank of the map that computes w.
        d_conv: width of the causal convolution on w; 1 sees only the current position.
        forget_gate: add a forget gate: log f of each position lowers the logits of all earlier ones.

    Raises:
        ValueError: non-positive sizes, head counts that do not divide evenly.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        d_head: int | None = None,
        n_kv_heads: int | None = None,
        w_rank: int = 32,
        d_conv: int = 3,
        forget_gate: bool = False,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, n_kv_heads=n_kv_heads, w_rank=w_rank, d_conv=d_conv)
        self.n_heads = n_heads
        self.d_head = head_width(d_model, n_heads, d_head)
        self.n_kv_heads = shared_heads(n_heads, n_kv_heads)
        self.widths = (n_heads * self.d_head, self.n_kv_heads * self.d_head, self.n_kv_heads * self.d_head)
        self.qkv_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.w_down = nn.Linear(d_model, w_rank, bias=False)
        self.w_up = nn.Linear(w_rank, self.widths[1], bias=False)
        self.conv = ShortConv(self.widths[1], d_conv)
        self.beta_proj = nn.Linear(d_model, self.n_kv_heads)
        self.forget_proj = nn.Linear(d_model, n_heads) if forget_gate else None
        self.out_proj = nn.Linear(self.widths[0], d_model, bias=False)
        self.reset_parameters()

    def rank_law(self, seq_len: int) -> int:
        free = softmax_freedom(seq_len, seq_len, normalized=True)
        return shared_values_rank(self.n_heads, self.n_kv_heads, self.d_model, self.d_head, free)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> PathAttentionState:
        wide, shape = accumulator(dtype), (batch_size, self.n_kv_heads, 0, self.d_head)
        return PathAttentionState(
            torch.zeros(shape, dtype=wide, device=device),
            torch.zeros(shape, dtype=dtype, device=device),
            () if self.forget_proj is None else torch.zeros(batch_size, self.n_heads, 0, 1, dtype=wide, device=device),
            self.conv.empty_state(batch_size, dtype, device),
            torch.zeros(batch_size, dtype=torch.int64, device=device),
        )

    def mix(self, x: Tensor, state: PathAttentionState, lengths: Tensor | None) -> tuple[Tensor, PathAttentionState]:
        seq_len = x.shape[1]
        q, k, v = (self._heads(t) for t in self.qkv_proj(x).split(self.widths, dim=2))
        w, conv = self.conv.mix(self.w_up(self.w_down(x)), state.conv, lengths)
        wide = state.keys.dtype
        w = unit_length(F.silu(w.unflatten(2, (-1, self.d_head)).to(wide))).transpose(1, 2)
        beta = BETA_MAX * torch.sigmoid(self.beta_proj(x).to(wide)).transpose(1, 2)
        (beta,) = without_padding(lengths, beta)  # padding moves no key
        q, k, w, beta = coefficient(q), coefficient(k), coefficient(w), coefficient(beta)
        log_forget = before = None
        forgotten: Any = ()
        if self.forget_proj is not None:
            log_forget = F.logsigmoid(self.forget_proj(x).to(wide)).transpose(1, 2)
            (log_forget,) = without_padding(lengths, log_forget)
            log_forget, before = coefficient(log_forget), state.forgotten.squeeze(3)
            forgotten = settle_cache(forgotten_since(log_forget, before).unsqueeze(3), lengths, seq_len)
        values = grow_cache(state.values, v)
        y, keys = path_attend(q, k, values, w, beta, state.keys, state.seen, log_forget, before)
        keys, values = (settle_cache(cache, lengths, seq_len) for cache in (keys, values))
        seen = state.seen + (seq_len if lengths is None else lengths)
        y = self.out_proj(rearrange(y, "batch head seq d -> batch seq (head d)"))
        return y, PathAttentionState(keys, values, forgotten, conv, seen)

    def _heads(self, t: Tensor) -> Tensor:
        return rearrange(t, "batch seq (head d) -> batch head seq d", d=self.d_head)
