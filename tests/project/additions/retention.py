"""Retention: linear attention with a fixed decay per head."""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import silu_gate
from zoo.ops.dplr import dplr
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.time import without_padding
from zoo.validate import head_width, require_positive


class RetentionState(NamedTuple):
    S: Tensor  # (batch, n_heads, d_head, d_head), keys first


class Retention(SequenceMixer):
    """Linear attention with a fixed decay per head.

        S_t = gamma_h S_{t-1} + k_t v_t^T                          gamma_h = 1 - 2^(-5-h), h = 0 ... n_heads - 1
        y   = out_proj(silu(W_g x) RMSNorm(S_t^T q_t / sqrt(d_head)))

    Coefficients. q, k, 1/rms, silu of the gate; the decays are constants. The offset is zero.

    State. n_heads x d_head x d_head numbers, at least float32. It does not grow.

    Interaction rank. n_heads for the recurrence; n_heads * d_head, at most d_model^2, with the gate on channels.

    Source. Sun et al. 2307.08621, without the rotation of queries and keys.

    Args:
        d_model: width of input and output.
        n_heads: number of heads.
        d_head: width of a head; default d_model / n_heads.

    Raises:
        ValueError: sizes that are not positive, heads that do not divide.
    """

    def __init__(self, d_model: int, n_heads: int = 2, d_head: int | None = None) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head)
        self.n_heads = n_heads
        self.d_head = head_width(d_model, n_heads, d_head)
        self.qkv_proj = nn.Linear(d_model, 3 * n_heads * self.d_head, bias=False)
        self.gate_proj = nn.Linear(d_model, n_heads * self.d_head, bias=False)
        self.norm = RMSNorm(self.d_head)
        self.out_proj = nn.Linear(n_heads * self.d_head, d_model, bias=False)

    def rank_law(self, seq_len: int) -> int:
        return self.n_heads * self.d_head

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> RetentionState:
        shape = (batch_size, self.n_heads, self.d_head, self.d_head)
        return RetentionState(torch.zeros(shape, dtype=accumulator(dtype), device=device))

    def mix(self, x: Tensor, state: RetentionState, lengths: Tensor | None) -> tuple[Tensor, RetentionState]:
        q, k, v = rearrange(self.qkv_proj(x), "batch seq (qkv head d) -> qkv batch head seq d", qkv=3, d=self.d_head)
        head = torch.arange(self.n_heads, device=x.device, dtype=state.S.dtype)
        log_decay = torch.log1p(-torch.exp2(-5 - head)).view(1, -1, 1, 1).expand(len(x), -1, x.shape[1], -1)
        k, log_decay = without_padding(lengths, k, log_decay)  # padding writes nothing and forgets nothing
        q, k = coefficient(q * self.d_head**-0.5), coefficient(k)
        y, S = dplr(q, k, v, log_decay, None, None, state.S)
        y = rearrange(self.norm(y), "batch head seq d -> batch seq (head d)").to(x.dtype)
        return self.out_proj(silu_gate(self.gate_proj(x), y)), RetentionState(S)
