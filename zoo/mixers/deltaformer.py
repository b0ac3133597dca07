"""DeltaFormer: softmax attention that stores values by the delta rule."""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.attention import grow_cache, settle_cache, shared_values_rank, softmax_freedom
from zoo.ops.delta_attention import delta_attend
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.rope import rotate, turned_channels
from zoo.validate import head_width, require_positive


class DeltaFormerState(NamedTuple):
    keys: Tensor  # (batch, n_heads, slots, d_head), right-aligned, rotated
    values: Tensor  # (batch, n_heads, slots, d_head) u of each position, at least float32
    seen: Tensor  # (batch,) positions so far


class DeltaFormer(SequenceMixer):
    """Causal softmax attention over values from which each position has subtracted its own readout of the past.

        q, k   = rope(W_q x), rope(W_k x),   beta = W_b x + b, for each head, within [-1, 1]
        u_t    = W_v x_t - beta_t sum_{j < t} softmax_{j < t}(q_t . k_j / sqrt(d_head)) u_j
        y_t    = out_proj(sum_{j <= t} softmax_{j <= t}(q_t . k_j / sqrt(d_head)) u_j)

    `delta_net` stores a value minus the value already found under its key; here attention stores a value minus the
    value already found by its query. Each u depends on all earlier u, so this softmax layer can track states. Each
    block of positions takes one triangular solve; the remaining work equals softmax attention. A beta beyond [-1, 1]
    would let u grow exponentially along the sequence. Memory is linear in the length on a CPU and quadratic on other
    devices, for one layer at a time.

    Coefficients. Queries, keys and beta. The values are linear, so the offset is zero.

    State. Keys and u of all positions so far, 2 n_heads d_head numbers per position, u at least float32, and the length
    of each row so far. It grows with the sequence.

    Interaction rank. n_heads: with the coefficients fixed, a head's u is a matrix of numbers times its values, so a
    head keeps its one map W_O^h W_V^h.

    Source. Zhong et al. 2505.19488. As in flash-linear-attention, commit bc3b101, fla/layers/deltaformer.py with its
    defaults, the queries serve both sums, and beta, which the paper does not have, is a linear map. One departure:
    their beta is unbounded.

    Not here. Norms of queries and keys, and biases of the projections. Keys and values shared by groups of heads: u
    differs between query heads, so sharing would save nothing.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head; default d_model / n_heads.
        d_rope: rotary channels of queries and keys, an even number; 0 for none; default all but an odd last one.
        rope_base: base of the RoPE wavelengths; larger values rotate more slowly.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, a d_rope that is odd or exceeds d_head, a
            rope_base of at most 1.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        d_head: int | None = None,
        d_rope: int | None = None,
        rope_base: float = 1e4,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head)
        self.n_heads = n_heads
        self.d_head = head_width(d_model, n_heads, d_head)
        self.d_rope = turned_channels(d_rope, self.d_head, rope_base)
        self.rope_base = rope_base
        self.qkv_proj = nn.Linear(d_model, 3 * n_heads * self.d_head, bias=False)
        self.beta_proj = nn.Linear(d_model, n_heads)
        self.out_proj = nn.Linear(n_heads * self.d_head, d_model, bias=False)
        self.reset_parameters()

    def rank_law(self, seq_len: int) -> int:
        free = softmax_freedom(seq_len, seq_len, normalized=False)  # with beta, rows need not sum to one
        return shared_values_rank(self.n_heads, self.n_heads, self.d_model, self.d_head, free)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> DeltaFormerState:
        keys, values = (
            torch.empty(batch_size, self.n_heads, 0, self.d_head, dtype=kind, device=device)
            for kind in (dtype, accumulator(dtype))
        )
        return DeltaFormerState(keys, values, torch.zeros(batch_size, dtype=torch.int64, device=device))

    def mix(self, x: Tensor, state: DeltaFormerState, lengths: Tensor | None) -> tuple[Tensor, DeltaFormerState]:
        seq_len = x.shape[1]
        heads = rearrange(self.qkv_proj(x), "batch seq (head d) -> batch head seq d", d=self.d_head)
        qk, v = heads.split((2 * self.n_heads, self.n_heads), dim=1)
        positions = state.seen.unsqueeze(1) + torch.arange(seq_len, device=x.device)
        qk = coefficient(rotate(qk, positions, self.rope_base, d_rope=self.d_rope))
        q, k = qk.split(self.n_heads, dim=1)
        beta = coefficient(self.beta_proj(x).clamp(-1.0, 1.0).transpose(1, 2))
        keys = grow_cache(state.keys, k)
        y, u = delta_attend(q, keys, v, beta, state.values, state.seen)
        caches = keys, grow_cache(state.values, u)
        keys, values = (settle_cache(cache, lengths, seq_len) for cache in caches)
        seen = state.seen + (seq_len if lengths is None else lengths)
        y = self.out_proj(rearrange(y, "batch head seq d -> batch seq (head d)"))
        return y, DeltaFormerState(keys, values, seen)
