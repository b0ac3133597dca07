"""Gated linear attention: every key channel of the state decays at its own, input-dependent rate."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import silu_gate
from zoo.ops.attention import gated_rank
from zoo.ops.dplr import dplr
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.time import without_padding
from zoo.validate import head_width, require_positive

_TEMPERATURE = 16  # decays are sigmoids to the power 1/16, so near one at initialisation


class GatedLinearAttentionState(NamedTuple):
    S: Tensor  # (batch, n_heads, d_key, d_head)
    carried = ("S",)


class GatedLinearAttention(SequenceMixer):
    """Linear attention with an input-dependent decay for each key channel.

        alpha_t = sigmoid(W_2 W_1 x_t + b)^(1/16)                  per head d_key decays, W_1 of rank gate_rank
        S_t = diag(alpha_t) S_{t-1} + k_t v_t^T
        y   = out_proj(silu(W_g x + b_g) RMSNorm(S_t^T q_t / sqrt(d_key)))

    There is no normaliser (no division by the sum of the weights). Chunks are halved recursively, and each pair of
    halves meets in one matrix product.

    Coefficients. q, k, alpha, 1/rms, silu of the gate. The offset is zero.

    State. n_heads x d_key x d_head numbers, at least float32: d_model^2 / (2 n_heads) by default. It does not grow.

    Interaction rank. n_heads without the output gate (output_gate false): the decays act on keys, so a head's W_ij is
    one number times W_O^h W_V^h. The gate acts on channels: n_heads * d_head, at most d_model^2.

    Source. Yang et al. 2312.06635, section 4.4. Keys have half the width of values, as published. The norm of a head's
    values is RMSNorm, as in the authors' code; the paper calls it LayerNorm.

    Not here. The chunk kernels of the authors' code.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head's values; default d_model / n_heads.
        d_key: width of a head's queries and keys; default half of d_head.
        gate_rank: rank of the projection that computes the decays.
        output_gate: multiply by silu(W_g x + b_g) before out_proj.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 2,
        d_head: int | None = None,
        d_key: int | None = None,
        gate_rank: int = 16,
        output_gate: bool = True,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, d_key=d_key, gate_rank=gate_rank)
        self.n_heads = n_heads
        self.d_head = head_width(d_model, n_heads, d_head)
        self.d_key = d_key or max(1, self.d_head // 2)
        n_keys, n_values = n_heads * self.d_key, n_heads * self.d_head
        self.widths = (n_keys, n_keys, n_values)
        self.qkv_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.decay_down = nn.Linear(d_model, gate_rank, bias=False)
        self.decay_up = nn.Linear(gate_rank, n_keys)
        self.gate_proj = nn.Linear(d_model, n_values) if output_gate else None
        self.norm = RMSNorm(self.d_head)
        self.out_proj = nn.Linear(n_values, d_model, bias=False)

    def rank_law(self, seq_len: int) -> int:
        # The recurrence has one per head; the gate acts on each channel of its outputs.
        return self.n_heads if self.gate_proj is None else gated_rank(seq_len, self.n_heads * self.d_head, self.n_heads)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> GatedLinearAttentionState:
        shape = (batch_size, self.n_heads, self.d_key, self.d_head)
        return GatedLinearAttentionState(torch.zeros(shape, dtype=accumulator(dtype), device=device))

    def mix(
        self, x: Tensor, state: GatedLinearAttentionState, lengths: Tensor | None
    ) -> tuple[Tensor, GatedLinearAttentionState]:
        q, k, v = (self._heads(t) for t in self.qkv_proj(x).split(self.widths, dim=2))
        log_decay = F.logsigmoid(self._heads(self.decay_up(self.decay_down(x))).to(state.S.dtype)) / _TEMPERATURE
        k, log_decay = without_padding(lengths, k, log_decay)  # padding writes nothing and forgets nothing
        q, k, log_decay = coefficient(q * self.d_key**-0.5), coefficient(k), coefficient(log_decay)
        y, S = dplr(q, k, v, log_decay, None, None, state.S)
        y = self.norm(y.transpose(1, 2)).flatten(2).to(x.dtype)
        if self.gate_proj is not None:
            y = silu_gate(self.gate_proj(x), y)
        return self.out_proj(y), GatedLinearAttentionState(S)

    def _heads(self, t: Tensor) -> Tensor:
        return rearrange(t, "batch seq (head d) -> batch head seq d", head=self.n_heads)
