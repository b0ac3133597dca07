"""sLSTM: an LSTM with exponential gates and block-diagonal recurrent matrices, one block per head."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import ShortConv
from zoo.contract import SequenceMixer
from zoo.ops.activation import rms_norm
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.recurrent import recurrent_rank
from zoo.ops.slstm import slstm_scan
from zoo.ops.time import valid_positions
from zoo.validate import head_width, require_positive

GATES = ("i", "f", "z", "o")


class SLSTMState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, d_model)
    h: Tensor  # (batch, n_heads, d_head), at least float32
    c: Tensor  # as h, divided by exp(m)
    n: Tensor  # as h, divided by exp(m)
    m: Tensor  # as h; minus infinity before the first position


class SLSTM(SequenceMixer):
    """The sLSTM layer of xLSTM: exponential gates, a normaliser, and memory mixing within each head.

        x'       = silu(conv(x))
        log i, f = W_i x' + R_i h_{t-1} + b_i,  W_f x' + R_f h_{t-1} + b_f         W, R block-diagonal, a block per head
        z, o     = W_z x + R_z h_{t-1} + b_z,   W_o x + R_o h_{t-1} + b_o
        c_t      = sigmoid(f) c_{t-1} + i tanh(z),   n_t = sigmoid(f) n_{t-1} + i
        h_t      = sigmoid(o) c_t / n_t
        y        = weight * LayerNorm(h), each head normed separately

    c and n are stored divided by exp(m), with m_t = max(log i, log sigmoid(f) + m_{t-1}); h does not depend on m. R
    starts at zero, W normal with variance 2 / (5 d_model), and b_f falls within a head from 5 to -7 as 5 - 12 s^0.3,
    with s from 0 to 1; the other biases start at zero. Positions are computed one after the other.

    Coefficients. i, sigmoid(f), tanh(z) / z, sigmoid(o) / n, 1 / the norm's standard deviation. The convolution affects
    only the gates. The bias of z makes the offset c.

    State. h, c, n and m, 4 d_model numbers, at least float32, and the convolution's last d_conv - 1 inputs. It does not
    grow with the sequence.

    Interaction rank. n_heads * d_head * (d_head - 1) for generic input and weights: the products of gates and dense R
    fill a head's d_head^2 maps, and the norm subtracts the mean over the head. At initialisation, with R zero, every
    channel has one map: d_model.

    Source. Beck et al. 2405.04517, section 2.2. As in NX-AI/xlstm, commit 032a6fb, xlstm/blocks/slstm/layer.py and
    src/vanilla/slstm.py, at the first block of a stack; their layer's fgate computes our i, and its igate our f.

    Not here. The projections, norm and residual of the block around the layer; biases of f that change over the depth.

    Args:
        d_model: width of input, h and output.
        n_heads: blocks of W and R.
        d_conv: width of the causal convolution; 1 sees only the current position.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, heads of one channel.
    """

    undecayed = ("bias", "recurrent", "norm_weight")

    def __init__(self, d_model: int, n_heads: int = 2, d_conv: int = 4) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_conv=d_conv)
        self.n_heads, self.d_head = n_heads, head_width(d_model, n_heads, None)
        if self.d_head == 1:
            raise ValueError(f"the norm of a head needs two channels or more: n_heads={n_heads}, d_model={d_model}")
        self.conv = ShortConv(d_model, d_conv, bias=True)
        self.weight = nn.Parameter(torch.empty(len(GATES), n_heads, self.d_head, self.d_head))
        self.recurrent = nn.Parameter(torch.empty(len(GATES), n_heads, self.d_head, self.d_head))
        self.bias = nn.Parameter(torch.empty(len(GATES), n_heads, self.d_head))
        self.norm_weight = nn.Parameter(torch.empty(n_heads, self.d_head))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.conv.reset_parameters()
        nn.init.normal_(self.weight, std=(2 / (5 * self.d_model)) ** 0.5)
        nn.init.zeros_(self.recurrent)
        nn.init.zeros_(self.bias)
        nn.init.ones_(self.norm_weight)
        with torch.no_grad():
            self.bias[GATES.index("f")] = 5 - 12 * torch.linspace(0, 1, self.d_head) ** 0.3

    def rank_law(self, seq_len: int) -> int:
        return recurrent_rank(seq_len, self.d_model, self.n_heads * self.d_head * (self.d_head - 1))

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> SLSTMState:
        h = torch.zeros(batch_size, self.n_heads, self.d_head, dtype=accumulator(dtype), device=device)
        conv = self.conv.empty_state(batch_size, dtype, device)
        return SLSTMState(conv, h, h.clone(), h.clone(), torch.full_like(h, -torch.inf))

    def mix(self, x: Tensor, state: SLSTMState, lengths: Tensor | None) -> tuple[Tensor, SLSTMState]:
        convolved, conv = self.conv.mix(x, state.conv, lengths)
        wide = state.h.dtype
        inputs = torch.stack((F.silu(convolved), x), dim=2).to(wide)
        inputs = rearrange(inputs, "batch seq kind (head d) -> batch seq kind head d", head=self.n_heads)
        maps = rearrange(self.weight.to(wide), "(kind gate) head out d -> kind gate head out d", kind=2)  # i, f; z, o
        u = torch.einsum("bskhi,kghoi->bhskgo", inputs, maps).flatten(3, 4)
        u = u + rearrange(self.bias.to(wide), "gate head d -> head 1 gate d")
        valid = None if lengths is None else valid_positions(lengths, x.shape[1])
        h, cell = slstm_scan(u, self.recurrent.to(wide), (state.h, state.c, state.n, state.m), valid)
        h = rearrange(h, "batch head seq d -> batch seq head d")
        y = rms_norm(h - h.mean(3, keepdim=True), self.norm_weight.to(wide))
        return y.flatten(2).to(x.dtype), SLSTMState(conv, *cell)
