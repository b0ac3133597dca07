"""minGRU and minLSTM: recurrent networks whose gates do not depend on the state, so that the recurrence is linear."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.contract import SequenceMixer
from zoo.ops.linear_recurrence import min_gru
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.time import valid_positions
from zoo.validate import require_choice, require_positive

Cell = Literal["gru", "lstm"]


class MinimalRecurrenceState(NamedTuple):
    h: Tensor  # (batch, d_inner), at least float32
    carried = ("h",)


class MinimalRecurrence(SequenceMixer):
    """Recurrent networks whose gates do not depend on the state: one linear recurrence per channel.

        h_t = a_t h_{t-1} + (1 - a_t) g(W_h x_t),     g(u) = u + 1/2 for u >= 0, sigmoid(u) below
        y_t = out_proj(h_t)
        cell gru:   1 - a = sigmoid(W_z x_t)                                             (min_gru)
        cell lstm:  a = f / (f + i),  f = sigmoid(W_f x_t),  i = sigmoid(W_i x_t)        (min_lstm)

    g keeps h positive. f / (f + i) equals sigmoid(log f - log i), so the cells differ only in the shape of their gate.
    Sequences are computed in chunks; a decoding step interpolates between h and g(W_h x), as the published code does.

    Coefficients. a and 1 - a, and the slope (g(u) - 1/2) / u. The constant 1/2 does not depend on the value: it makes
    the offset c, which is large relative to the output of small weights.

    State. h, d_inner numbers, at least float32. It does not grow with the sequence.

    Interaction rank. d_inner for generic input, up to d_model^2: each channel has a map of rank one, a column of
    out_proj times a row of W_h. The mixers gru and lstm, whose gates depend on the state through a matrix, reach
    min(d_inner, d_model)^2.

    Source. Feng et al. 2410.01201, appendix B. As in lucidrains/minGRU-pytorch, commit 38b26e1,
    minGRU_pytorch/minGRU.py and minLSTM.py, without biases. Their output projection exists only if d_inner differs from
    d_model; ours always does.

    Args:
        d_model: width of input and output.
        d_inner: width of h; default d_model.
        cell: gates of minGRU (gru) or of minLSTM (lstm).

    Raises:
        ValueError: non-positive sizes, an unknown cell.
    """

    def __init__(self, d_model: int, d_inner: int | None = None, cell: Cell = "gru") -> None:
        super().__init__(d_model)
        require_positive(d_inner=d_inner)
        require_choice("cell", cell, Cell)
        self.d_inner, self.cell = d_inner or d_model, cell
        self.in_proj = nn.Linear(d_model, {"gru": 2, "lstm": 3}[cell] * self.d_inner, bias=False)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)
        self.reset_parameters()

    def rank_law(self, seq_len: int) -> int:
        # Each channel has one map: a column of out_proj times a row of W_h.
        return self.d_inner

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> MinimalRecurrenceState:
        return MinimalRecurrenceState(torch.zeros(batch_size, self.d_inner, dtype=accumulator(dtype), device=device))

    def mix(
        self, x: Tensor, state: MinimalRecurrenceState, lengths: Tensor | None
    ) -> tuple[Tensor, MinimalRecurrenceState]:
        u, *gates = self.in_proj(x).to(state.h.dtype).chunk(2 if self.cell == "gru" else 3, dim=2)
        logit = gates[0] if self.cell == "gru" else F.logsigmoid(gates[1]) - F.logsigmoid(gates[0])
        valid = None if lengths is None else valid_positions(lengths, x.shape[1])
        h, last = min_gru(logit, u, state.h, valid)
        return self.out_proj(h.to(x.dtype)), MinimalRecurrenceState(last)
