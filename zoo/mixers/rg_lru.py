"""Griffin's recurrent block: a short convolution, then a real-gated linear recurrent unit (RG-LRU)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import gelu_gate
from zoo.ops.linear_recurrence import linear_recurrence
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.time import valid_positions
from zoo.validate import require_positive, require_range

SHARPNESS = 8.0  # c of eq. 3
NEARLY_ONE = -1e-30  # the largest log a for which sqrt(1 - a^2) has a derivative in float32
CONV_VARIANCE = 0.01  # initial variance of the convolution's weights, times d_conv


class RGLRUState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, d_inner)
    h: Tensor  # (batch, d_inner), at least float32
    seen: Tensor  # (batch,) positions so far
    carried = ("h",)


class RGLRU(SequenceMixer):
    """The recurrent block of Griffin: a real-gated linear recurrent unit after a short convolution, gated by GELU.

        u    = conv(W_x x + b_x) + b
        r, i = sigmoid(A_r u + b_r), sigmoid(A_i u + b_i)          A block-diagonal, n_heads blocks
        a    = exp(-8 r softplus(rate))
        h_t  = a_t h_{t-1} + sqrt(1 - a_t^2) i_t u_t               per channel; at the first position h = i u
        y    = out_proj(gelu(W_y x + b_y) h)

    GELU is the tanh approximation. Weights start normal with variance 1 / fan-in (0.01 / d_conv for the convolution),
    biases start at zero, and exp(-softplus(rate)) is uniform by area between r_min and r_max. The scan runs in chunks.

    Coefficients. a, sqrt(1 - a^2) i, the GELU. Biases make the offset c.

    State. h, d_inner numbers, at least float32, the convolution's last d_conv - 1 inputs, and the length of each row so
    far, since the first position is special. It does not grow with the sequence.

    Interaction rank. d_inner for generic input, up to d_model^2: convolution, recurrence and gates act on channels, and
    each channel has a map of rank one.

    Source. De et al. 2402.19427, sections 2.3 and 2.4. As in google-deepmind/recurrentgemma, commit 2efa84d,
    recurrentgemma/torch/modules.py and layers.py. They bound the derivative of the square root by 1000, because 1 - a^2
    rounds to zero for a near one. Here 1 - a^2 is computed as -expm1(2 log a) and needs no bound, so gradients differ
    if 1 - a^2 is below 2.5e-7.

    Args:
        d_model: width of input and output.
        d_inner: width of h; default d_model.
        n_heads: diagonal blocks of the two gates' maps.
        d_conv: width of the causal convolution; 1 sees only the current position.
        r_min, r_max: initial range of exp(-softplus(rate)), which is the decay at r = 1/8.

    Raises:
        ValueError: non-positive sizes, an n_heads that does not divide d_inner, an empty range, an r_max of 1 or more.
    """

    undecayed = ("rate", "gate_bias")

    def __init__(
        self,
        d_model: int,
        d_inner: int | None = None,
        n_heads: int = 2,
        d_conv: int = 4,
        r_min: float = 0.9,
        r_max: float = 0.999,
    ) -> None:
        super().__init__(d_model)
        require_positive(d_inner=d_inner, n_heads=n_heads, d_conv=d_conv)
        require_range(r_min=r_min, r_max=r_max)
        if r_max >= 1:
            raise ValueError(f"r_max must be below 1 for a stable recurrence, got {r_max}")
        self.d_inner, self.n_heads, self.r_min, self.r_max = d_inner or d_model, n_heads, r_min, r_max
        if self.d_inner % n_heads:
            raise ValueError(f"d_inner={self.d_inner} is not divisible by n_heads={n_heads}")
        self.d_head = self.d_inner // n_heads
        self.in_proj = nn.Linear(d_model, 2 * self.d_inner)
        self.conv = ShortConv(self.d_inner, d_conv, bias=True)
        self.gate_weight = nn.Parameter(torch.empty(2, n_heads, self.d_head, self.d_head))
        self.gate_bias = nn.Parameter(torch.empty(2, self.d_inner))
        self.rate = nn.Parameter(torch.empty(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        d_conv = self.conv.weight.shape[1]
        scales = (
            (self.in_proj.weight, self.d_model**-0.5),
            (self.conv.weight, (CONV_VARIANCE / d_conv) ** 0.5),
            (self.gate_weight, self.d_head**-0.5),
            (self.out_proj.weight, self.d_inner**-0.5),
        )
        for weight, std in scales:
            nn.init.normal_(weight, std=std)
        for bias in (self.in_proj.bias, self.conv.bias, self.gate_bias, self.out_proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)
        with torch.no_grad():
            rate = -0.5 * self.rate.uniform_(self.r_min**2, self.r_max**2).log()
            self.rate.copy_(rate.expm1().log())

    def rank_law(self, seq_len: int) -> int:
        # Each channel has one map, a column of out_proj times a row of W_x: convolution and recurrence keep it.
        return self.d_inner

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> RGLRUState:
        h = torch.zeros(batch_size, self.d_inner, dtype=accumulator(dtype), device=device)
        seen = torch.zeros(batch_size, dtype=torch.int64, device=device)
        return RGLRUState(self.conv.empty_state(batch_size, dtype, device), h, seen)

    def mix(self, x: Tensor, state: RGLRUState, lengths: Tensor | None) -> tuple[Tensor, RGLRUState]:
        seq_len = x.shape[1]
        gate, u = self.in_proj(x).chunk(2, dim=2)
        u, conv = self.conv.mix(u, state.conv, lengths)
        decay, gain = self._gates(u.to(state.h.dtype), state.seen)
        valid = None if lengths is None else valid_positions(lengths, seq_len)
        h, last = linear_recurrence(decay, gain * u.to(state.h.dtype), state.h, valid)
        return self.out_proj(gelu_gate(gate, h.to(x.dtype))), RGLRUState(
            conv, last, state.seen + (seq_len if lengths is None else lengths)
        )

    def _gates(self, u: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return a and the factor of u in the recurrence, each (batch, seq, d_inner), in u's dtype."""
        blocks = rearrange(u, "batch seq (head i) -> batch seq head i", head=self.n_heads)
        maps = torch.einsum("bshi,ghij->gbshj", blocks, self.gate_weight.to(u.dtype)).flatten(3)
        inputs, forgets = torch.sigmoid(maps + self.gate_bias.to(u.dtype)[:, None, None]).unbind(0)
        log_decay = -SHARPNESS * forgets * F.softplus(self.rate.to(u.dtype))
        first = seen.unsqueeze(1) + torch.arange(u.shape[1], device=u.device) == 0
        below_one = log_decay.clamp(max=NEARLY_ONE)
        gain = torch.sqrt(-torch.expm1(2 * below_one)).masked_fill(first.unsqueeze(2), 1.0)
        return coefficient(log_decay.exp()), coefficient(gain * inputs)
