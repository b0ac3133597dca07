"""S4D: a diagonal state space model for each channel."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import gelu
from zoo.ops.channel_ssm import channel_ssm
from zoo.ops.diagonal import zero_order_hold
from zoo.ops.precision import Device, DType, accumulator, complex_accumulator
from zoo.validate import require_choice, require_positive, require_range

Output = Literal["glu", "none"]


class S4DState(NamedTuple):
    h: Tensor  # (batch, d_model, d_state / 2), complex
    carried = ("h",)


class S4D(SequenceMixer):
    """S4D-Lin: one linear time-invariant diagonal SSM per channel; `diagonal_ssm` has one for all channels.

        h_t = exp(dt A) h_{t-1} + (exp(dt A) - 1) / A x_t          per channel, zero-order hold
        u_t = 2 Re(C . h_t) + D x_t
        y   = sigmoid(W_g gelu(u) + b_g) (W_o gelu(u) + b_o)       output glu
        y   = u                                                    output none

    The d_state / 2 complex poles of a channel represent conjugate pairs. B is fixed at one, since the kernel depends
    only on the product of B and C; A, dt, C and D are trained.

    Coefficients. output none: none, W_ij = diag(2 Re(C lambda^(i-j) gain)), plus D at i = j. output glu: Phi(u) =
    gelu(u) / u and the sigmoid; the biases make the offset.

    State. d_model x d_state real numbers (as complex pairs), at least float32. It does not grow.

    Interaction rank. output none: d_model, since every W_ij is diagonal. output glu: up to d_model^2, since W_o is
    multiplied by the diagonal matrices of Phi(u_i) and of the sigmoid on either side.

    Source. Gu et al. 2206.11893. As published, A_n = -1/2 + i pi n, dt log-uniform in [1e-3, 1e-1], C and D normal.

    Not here. Dropout and the bidirectional kernel of the authors' code.

    Args:
        d_model: width of input and output, and number of SSMs.
        d_state: real dimension of a channel's state, d_state / 2 conjugate pairs.
        output: glu (GELU, then a gated linear map, as published) or none (only the SSMs).
        dt_min, dt_max: range of the step sizes at initialisation, log-uniform, one per channel.

    Raises:
        ValueError: non-positive sizes, an odd d_state, an unknown output, an empty range of dt.
    """

    undecayed = ("log_rate", "frequency", "log_dt", "D")
    slow = ("log_rate", "frequency", "log_dt")

    def __init__(
        self, d_model: int, d_state: int = 64, output: Output = "glu", dt_min: float = 1e-3, dt_max: float = 1e-1
    ) -> None:
        super().__init__(d_model)
        require_positive(d_state=d_state)
        require_choice("output", output, Output)
        require_range(dt_min=dt_min, dt_max=dt_max)
        if d_state % 2:
            raise ValueError(f"complex poles come in pairs: d_state must be even, got {d_state}")
        self.poles, self.dt_min, self.dt_max = d_state // 2, dt_min, dt_max
        self.log_rate = nn.Parameter(torch.empty(d_model, self.poles))
        self.frequency = nn.Parameter(torch.empty(d_model, self.poles))
        self.log_dt = nn.Parameter(torch.empty(d_model))
        self.C = nn.Parameter(torch.empty(d_model, self.poles, 2))  # pairs of reals, so that any dtype cast works
        self.D = nn.Parameter(torch.empty(d_model))
        self.out_proj = nn.Linear(d_model, 2 * d_model) if output == "glu" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.log_rate.fill_(math.log(0.5))
            self.frequency.copy_((math.pi * torch.arange(self.poles)).expand_as(self.frequency))
            self.log_dt.uniform_(math.log(self.dt_min), math.log(self.dt_max))
            self.C.normal_(std=0.5**0.5)
            self.D.normal_()
        if self.out_proj is not None:
            self.out_proj.reset_parameters()

    def dynamics(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-decay, input gain and 2 C, complex (d_model, d_state / 2) each; the 2 is for conjugate pairs."""
        log_rate, frequency, log_dt, C = (
            t.to(accumulator(t.dtype)) for t in (self.log_rate, self.frequency, self.log_dt, self.C)
        )
        A = torch.complex(-log_rate.exp(), frequency)
        log_decay, gain = zero_order_hold(A, log_dt.exp().unsqueeze(1))
        return log_decay, gain, 2 * torch.view_as_complex(C)

    def rank_law(self, seq_len: int) -> int:
        # One SSM per channel; after the output map a gate acts on channels again, the same for all pairs of a row.
        if self.out_proj is None:
            return min(self.d_model, seq_len)
        return min(self.d_model**2, sum(min(self.d_model, row) for row in range(1, seq_len + 1)))

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> S4DState:
        kind = complex_accumulator(dtype)
        return S4DState(torch.zeros(batch_size, self.d_model, self.poles, dtype=kind, device=device))

    def mix(self, x: Tensor, state: S4DState, lengths: Tensor | None) -> tuple[Tensor, S4DState]:
        u, h = channel_ssm(x, *self.dynamics(), state.h, lengths)
        u = u.to(x.dtype) + self.D * x
        if self.out_proj is None:
            return u, S4DState(h)
        value, gate = self.out_proj(gelu(u)).chunk(2, dim=2)
        return coefficient(torch.sigmoid(gate)) * value, S4DState(h)
