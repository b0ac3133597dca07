"""Lightning attention: linear attention with a fixed decay per head and SiLU instead of a softmax."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import sigmoid_gate, silu
from zoo.ops.attention import alibi_slopes
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.retention import retention
from zoo.validate import head_width, require_positive


class LightningAttentionState(NamedTuple):
    S: Tensor  # (batch, n_heads, d_head, d_head), keys first
    carried = ("S",)


class LightningAttention(SequenceMixer):
    """Linear attention with SiLU and a fixed decay per head: the linear layers of MiniMax-01.

        q, k, v = silu(W x)
        S_t = exp(-slope_scale slope_h) S_{t-1} + k_t v_t^T        slope_h: ALiBi's, 2^(-8 h / n_heads), h = 1, 2, ...
        y   = out_proj(sigmoid(W_g x) RMSNorm(S_t^T q_t))          one norm over all heads

    MiniMax-01 multiplies the slopes of layer l = 0, 1, ... by 1 - l / (n_layers - 1), and every eighth layer is softmax
    attention. For both, use `hybrid` with a pattern such as `[lightning_attention, {name: lightning_attention,
    slope_scale: 0.5}, attention]`.

    Coefficients. q, k, the sigmoid factor of v, 1/rms, the sigmoid of the gate. The offset is zero.

    State. n_heads x d_head x d_head numbers, at least float32. It does not grow.

    Interaction rank. The recurrence itself: n_heads. The SiLU of the values and the gate act on channels: n_heads *
    d_head, at most d_model^2.

    Source. MiniMax-01 (2501.08313, section 2.2), after TransNormerLLM (2307.14995); transformers'
    MiniMaxLightningAttention. If n_heads is not a power of two, the slopes follow ALiBi's authors, while transformers
    keeps 2^(-8 h / n_heads). transformers adds 1e-5 to that factor of the slopes; here slope_scale is the whole factor.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head; default d_model / n_heads.
        slope_scale: factor of the slopes; with 0 a head forgets nothing.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, a negative slope_scale.
    """

    def __init__(self, d_model: int, n_heads: int = 2, d_head: int | None = None, slope_scale: float = 1.0) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head)
        if not 0 <= slope_scale < float("inf"):
            raise ValueError(f"slope_scale must be a finite number of at least 0, got {slope_scale}")
        self.n_heads, self.slope_scale = n_heads, slope_scale
        self.d_head = head_width(d_model, n_heads, d_head)
        d_inner = n_heads * self.d_head
        self.qkv_proj = nn.Linear(d_model, 3 * d_inner, bias=False)
        self.gate_proj = nn.Linear(d_model, d_inner, bias=False)
        self.norm = RMSNorm(d_inner, eps=1e-6)
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def rank_law(self, seq_len: int) -> int:
        # The recurrence has one per head; SiLU and gate act on each channel of its values.
        return self.n_heads * self.d_head

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> LightningAttentionState:
        shape = (batch_size, self.n_heads, self.d_head, self.d_head)
        return LightningAttentionState(torch.zeros(shape, dtype=accumulator(dtype), device=device))

    def mix(
        self, x: Tensor, state: LightningAttentionState, lengths: Tensor | None
    ) -> tuple[Tensor, LightningAttentionState]:
        qkv = self.qkv_proj(x).to(state.S.dtype)
        q, k, v = rearrange(qkv, "batch seq (part head d) -> part batch head seq d", part=3, head=self.n_heads)
        slopes = self.slope_scale * alibi_slopes(self.n_heads).to(state.S)
        y, S = retention(coefficient(F.silu(q)), coefficient(F.silu(k)), silu(v), slopes, state.S, lengths)
        y = self.norm(rearrange(y, "batch head seq d -> batch seq (head d)")).to(x.dtype)
        return self.out_proj(sigmoid_gate(self.gate_proj(x), y)), LightningAttentionState(S)
