"""mLSTM: the matrix memory of xLSTM, with exponential input gates."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from zoo.blocks import ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import group_norm, silu, silu_gate
from zoo.ops.attention import gated_rank
from zoo.ops.mlstm import mlstm
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.time import valid_positions
from zoo.validate import require_positive


class MLSTMState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, d_inner)
    C: Tensor  # (batch, n_heads, d_head, d_head), keys first, divided by exp(m)
    n: Tensor  # (batch, n_heads, d_head), divided by exp(m)
    m: Tensor  # (batch, n_heads)


class MLSTM(SequenceMixer):
    """Linear attention with a normaliser, a scalar forget gate and an exponential input gate per head.

        u, z = W_u x, W_z x                                        d_inner = expand d_model channels each
        q, k = B_q s, B_k s / sqrt(d_head), v = B_v u              s = silu(conv(u)), B: blocks of d_block channels
        i_t = exp(w_i . (q, k, v) + b_i), f_t = sigmoid(w_f . (q, k, v) + b_f)
        C_t = f_t C_{t-1} + i_t k_t v_t^T, n_t = f_t n_{t-1} + i_t k_t
        y   = out_proj(silu(z) * (GroupNorm(C_t^T q_t / max(|n_t . q_t|, 1)) + skip * s))

    The gates read k before its division by sqrt(d_head). C and n are stored divided by exp(m_t), with m_t = max(log f_t
    + m_{t-1}, log i_t) and m_0 = 0, so that input gates of any size stay in range.

    Coefficients. q, k, i and f (rescaled by exp(m)), 1 / max(|n . q|, 1), 1/std, the sigmoid factor of s in the skip,
    silu(z). The offset is the image of the convolution's bias through the skip.

    State. n_heads (d_head^2 + d_head + 1) numbers, at least float32, with d_head = d_inner / n_heads, and the
    convolution's last d_conv - 1 inputs of d_inner channels. It does not grow.

    Interaction rank. The recurrence itself: n_heads, since the normaliser is one number per head. The gate acts on
    channels, and the normed memory readout and the skip are different maps of u: 2 d_inner, at most d_model^2.

    Source. Beck et al. 2405.04517, section 2.3; NX-AI/xlstm, commit 032a6fb, xlstm/blocks/mlstm/layer.py, cell.py and
    backends.py. As there, 1e-6 is added to the denominator after the division by exp(m). We do not offer their option
    of rounding d_inner up to a multiple of 64.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        expand: d_inner = expand * d_model.
        d_conv: width of the causal convolution; 1 sees only the current position.
        d_block: width of the diagonal blocks of the maps to queries, keys and values.

    Raises:
        ValueError: non-positive sizes; n_heads or d_block that does not divide d_inner; heads of one channel.
    """

    def __init__(self, d_model: int, n_heads: int = 2, expand: int = 2, d_conv: int = 4, d_block: int = 4) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, expand=expand, d_conv=d_conv, d_block=d_block)
        self.n_heads, self.d_inner = n_heads, expand * d_model
        for name, size in (("n_heads", n_heads), ("d_block", d_block)):
            if self.d_inner % size:
                raise ValueError(f"d_inner={self.d_inner} (expand * d_model) is not divisible by {name}={size}")
        self.d_head = self.d_inner // n_heads
        if self.d_head < 2:
            raise ValueError(
                f"the norm of a head needs two channels or more: n_heads={n_heads}, d_inner={self.d_inner}"
            )
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=False)
        self.conv = ShortConv(self.d_inner, d_conv, bias=True)
        self.q_blocks, self.k_blocks, self.v_blocks = (
            nn.Parameter(torch.empty(self.d_inner // d_block, d_block, d_block)) for _ in range(3)
        )
        self.gate_proj = nn.Linear(3 * self.d_inner, 2 * n_heads)
        self.norm_weight = nn.Parameter(torch.empty(self.d_inner))
        self.skip = nn.Parameter(torch.empty(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.conv.reset_parameters()
        for weight in (self.in_proj.weight, self.q_blocks, self.k_blocks, self.v_blocks):
            nn.init.normal_(weight, std=(2 / (5 * self.d_model)) ** 0.5)
        nn.init.normal_(self.out_proj.weight, std=2 / self.d_model**0.5)
        nn.init.zeros_(self.gate_proj.weight)
        with torch.no_grad():
            self.gate_proj.bias[: self.n_heads].normal_(std=0.1)
            self.gate_proj.bias[self.n_heads :].copy_(torch.linspace(3, 6, self.n_heads))
        nn.init.ones_(self.norm_weight)
        nn.init.ones_(self.skip)

    def rank_law(self, seq_len: int) -> int:
        # The gate acts on channels, for two maps of each: the normed readout, and the skip.
        return gated_rank(seq_len, self.d_inner, self.n_heads, self.conv.weight.shape[1])

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> MLSTMState:
        rows, given = (batch_size, self.n_heads), {"dtype": accumulator(dtype), "device": device}
        C, n = torch.zeros(*rows, self.d_head, self.d_head, **given), torch.zeros(*rows, self.d_head, **given)
        return MLSTMState(self.conv.empty_state(batch_size, dtype, device), C, n, torch.zeros(*rows, **given))

    def mix(self, x: Tensor, state: MLSTMState, lengths: Tensor | None) -> tuple[Tensor, MLSTMState]:
        u, z = self.in_proj(x).chunk(2, dim=2)
        convolved, conv = self.conv.mix(u, state.conv, lengths)
        s = F.silu(convolved)
        parts = _blockwise(s, self.q_blocks), _blockwise(s, self.k_blocks), _blockwise(u, self.v_blocks)
        gates = rearrange(self.gate_proj(torch.cat(parts, dim=2)).to(state.C.dtype), "batch seq gate -> batch gate seq")
        log_input, logit = gates.chunk(2, dim=1)
        log_forget = F.logsigmoid(logit)
        if lengths is not None:
            padding = ~valid_positions(lengths, x.shape[1]).unsqueeze(1)  # writes nothing and forgets nothing
            log_input, log_forget = log_input.masked_fill(padding, -torch.inf), log_forget.masked_fill(padding, 0.0)
        q, k, v = (
            rearrange(t.to(state.C.dtype), "batch seq (head d) -> batch head seq d", head=self.n_heads) for t in parts
        )
        memory = (state.C, state.n, state.m)
        y, *memory = mlstm(coefficient(q), k * self.d_head**-0.5, v, log_input, log_forget, *memory)
        y = rearrange(y, "batch head seq d -> batch seq (head d)").to(x.dtype)
        y = group_norm(y, self.n_heads, self.norm_weight) + self.skip * silu(convolved)
        return self.out_proj(silu_gate(z, y)), MLSTMState(conv, *memory)


def _blockwise(
    x: Float[Tensor, "batch seq channels"], weight: Float[Tensor, "blocks d_block d_block"]
) -> Float[Tensor, "batch seq channels"]:
    """Multiply by a block-diagonal matrix, one block per group of d_block channels."""
    return torch.einsum("bsni,noi->bsno", x.unflatten(2, (len(weight), -1)), weight).flatten(2)
