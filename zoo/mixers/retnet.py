"""RetNet: linear attention with RoPE and a fixed decay per head."""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import silu_gate
from zoo.ops.attention import gated_rank
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.retention import retention, retention_rates
from zoo.ops.rope import require_pairs, rotate
from zoo.validate import head_width, require_positive


class RetNetState(NamedTuple):
    S: Tensor  # (batch, n_heads, d_head, expand * d_head), keys first
    seen: Tensor  # (batch,) positions so far
    carried = ("S",)


class RetNet(SequenceMixer):
    """Multi-scale retention: linear attention with rotary queries and keys and a fixed decay per head.

        q_t, k_t = R(t) W_q x_t, R(t) W_k x_t                      R(t): RoPE at position t
        S_t = (1 - 2^(-5-h)) S_{t-1} + k_t v_t^T                   heads h = 0, 1, ...
        y   = out_proj(silu(W_g x) RMSNorm(S_t^T q_t / sqrt(d_head)))

    The decays are not trained: per step the first head keeps 31/32 of its state, the eighth 4095/4096.

    Coefficients. q, k, 1/rms, silu of the gate. The offset is zero. Before norm and gate a head's W_ij is gamma^(i-j)
    (q_i . k_j) W_O^h W_V^h.

    State. n_heads x d_head x (expand d_head) numbers, at least float32, and the number of positions, which the rotation
    needs. It does not grow.

    Interaction rank. The recurrence itself: n_heads. The gate acts on channels: n_heads * expand * d_head, at most
    d_model^2.

    Source. Sun et al. 2307.08621, section 2; flash-linear-attention, commit bc3b101,
    fla/layers/multiscale_retention.py. As there, the norm over a head is RMSNorm instead of the paper's group norm, and
    the rotation is RoPE instead of the paper's xPos.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head's queries and keys, even; default d_model / n_heads.
        expand: ratio of a head's value width to d_head.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, an odd d_head.
    """

    def __init__(self, d_model: int, n_heads: int = 2, d_head: int | None = None, expand: int = 2) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, expand=expand)
        self.n_heads = n_heads
        self.d_head = head_width(d_model, n_heads, d_head)
        require_pairs(self.d_head)
        self.d_value = expand * self.d_head
        n_keys, n_values = n_heads * self.d_head, n_heads * self.d_value
        self.widths = (n_keys, n_keys, n_values)
        self.qkv_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.gate_proj = nn.Linear(d_model, n_values, bias=False)
        self.norm = RMSNorm(self.d_value)
        self.out_proj = nn.Linear(n_values, d_model, bias=False)

    def rank_law(self, seq_len: int) -> int:
        # The recurrence has one per head; the gate acts on each channel of its outputs.
        return gated_rank(seq_len, self.n_heads * self.d_value, self.n_heads)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> RetNetState:
        S = torch.zeros(batch_size, self.n_heads, self.d_head, self.d_value, dtype=accumulator(dtype), device=device)
        return RetNetState(S, torch.zeros(batch_size, dtype=torch.int64, device=device))

    def mix(self, x: Tensor, state: RetNetState, lengths: Tensor | None) -> tuple[Tensor, RetNetState]:
        seq_len = x.shape[1]
        q, k, v = (
            rearrange(t, "batch seq (head d) -> batch head seq d", head=self.n_heads)
            for t in self.qkv_proj(x).to(state.S.dtype).split(self.widths, dim=2)
        )
        positions = state.seen.unsqueeze(1) + torch.arange(seq_len, device=x.device)
        q, k = coefficient(rotate(q, positions) * self.d_head**-0.5), coefficient(rotate(k, positions))
        rates = retention_rates(self.n_heads, state.S.dtype, x.device)
        y, S = retention(q, k, v, rates, state.S, lengths)
        y = self.norm(y.transpose(1, 2)).flatten(2).to(x.dtype)
        seen = state.seen + (seq_len if lengths is None else lengths)
        return self.out_proj(silu_gate(self.gate_proj(x), y)), RetNetState(S, seen)
