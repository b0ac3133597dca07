"""The mLSTM of xLSTM 7B: capped gate logits, without the convolution, skip and up-projection of `mlstm`."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import group_norm, sigmoid_gate
from zoo.ops.attention import gated_rank
from zoo.ops.mlstm import mlstm
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.time import valid_positions
from zoo.validate import head_width, require_positive, require_positive_number


class CappedMLSTMState(NamedTuple):
    C: Tensor  # (batch, n_heads, d_key, d_head), divided by exp(m)
    n: Tensor  # (batch, n_heads, d_key), divided by exp(m)
    m: Tensor  # (batch, n_heads)


class CappedMLSTM(SequenceMixer):
    """The matrix memory of `mlstm` with bounded gate logits that are computed directly from the input.

        q, k, v, o = W_in x                                        d_key channels of q and k, d_head of v and o per head
        cap(u) = gate_cap tanh(u / gate_cap)
        i_t = exp(cap(w_i . x + b_i)), f_t = sigmoid(cap(w_f . x + b_f))
        C_t = f_t C_{t-1} + i_t k_t v_t^T, n_t = f_t n_{t-1} + i_t k_t
        y   = out_proj(sigmoid(o) * GroupNorm(C_t^T q_t / max(|n_t . q_t|, 1)))

    q is divided by sqrt(d_key). C and n are stored divided by exp(m_t), with m_t = max(log f_t + m_{t-1}, log i_t) and
    m_0 = 0.

    Coefficients. q, k, i and f (rescaled by exp(m)), 1 / max(|n . q|, 1), 1/std, sigmoid(o).

    State. n_heads (d_key d_head + d_key + 1) numbers, at least float32. It does not grow.

    Interaction rank. The recurrence itself: n_heads. The output gate acts on each value channel, so the layer spans
    n_heads d_head operators, at most d_model^2. At initialisation the gate does not depend on the input: an untrained
    layer spans n_heads.

    Source. Beck et al. 2503.13427, section 2; transformers 5.23.0, models/xlstm/modeling_xlstm.py, class xLSTMLayer. As
    there, 1e-6 is added to the denominator after the division by exp(m), and parameters start as in a model of one
    layer, except b_i. Theirs starts at -10 (input_bias -10); the denominator is then one for any input, so n learns
    nothing.

    Not here. Biases of the projections.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head's values; default d_model / n_heads.
        d_key: width of a head's queries and keys; default half of d_head.
        gate_cap: bound on the magnitude of the input and forget gate logits.
        norm_eps: epsilon of the norm.
        input_bias: initial value of b_i.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model while d_head is not given, heads of one
            channel, a cap or an epsilon that is not positive and finite.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 2,
        d_head: int | None = None,
        d_key: int | None = None,
        gate_cap: float = 15.0,
        norm_eps: float = 1e-6,
        input_bias: float = 0.0,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, d_key=d_key)
        require_positive_number(gate_cap=gate_cap, norm_eps=norm_eps)
        self.n_heads, self.d_head = n_heads, head_width(d_model, n_heads, d_head)
        if self.d_head < 2:
            raise ValueError(
                f"the norm of a head needs two channels or more, got d_head={self.d_head}: "
                f"n_heads={n_heads}, d_model={d_model}"
            )
        self.d_key = d_key or self.d_head // 2
        self.gate_cap, self.norm_eps, self.input_bias = gate_cap, norm_eps, input_bias
        keys, values = n_heads * self.d_key, n_heads * self.d_head
        self.widths = (keys, keys, values, values)
        self.in_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.gate_proj = nn.Linear(d_model, 2 * n_heads)
        self.norm_weight = nn.Parameter(torch.empty(values))
        self.out_proj = nn.Linear(values, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.in_proj.weight, std=(2 / (5 * self.d_model)) ** 0.5)
        nn.init.normal_(self.out_proj.weight, std=2 / self.d_model**0.5)
        nn.init.zeros_(self.gate_proj.weight)
        nn.init.ones_(self.norm_weight)
        with torch.no_grad():
            self.in_proj.weight[-self.widths[3] :] = 0.0
            self.gate_proj.bias[: self.n_heads] = self.input_bias
            self.gate_proj.bias[self.n_heads :].copy_(torch.linspace(3, 6, self.n_heads))

    def rank_law(self, seq_len: int) -> int:
        return gated_rank(seq_len, self.n_heads * self.d_head, self.n_heads)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> CappedMLSTMState:
        rows, given = (batch_size, self.n_heads), {"dtype": accumulator(dtype), "device": device}
        C, n = torch.zeros(*rows, self.d_key, self.d_head, **given), torch.zeros(*rows, self.d_key, **given)
        return CappedMLSTMState(C, n, torch.zeros(*rows, **given))

    def mix(self, x: Tensor, state: CappedMLSTMState, lengths: Tensor | None) -> tuple[Tensor, CappedMLSTMState]:
        wide = state.C.dtype
        *qkv, o = self.in_proj(x).split(self.widths, dim=2)
        q, k, v = (rearrange(t.to(wide), "batch seq (head d) -> batch head seq d", head=self.n_heads) for t in qkv)
        logits = rearrange(self.gate_proj(x).to(wide), "batch seq gate -> batch gate seq")
        log_input, logit = (self.gate_cap * torch.tanh(logits / self.gate_cap)).chunk(2, dim=1)
        log_forget = F.logsigmoid(logit)
        if lengths is not None:
            padding = ~valid_positions(lengths, x.shape[1]).unsqueeze(1)  # writes nothing and forgets nothing
            log_input, log_forget = log_input.masked_fill(padding, -torch.inf), log_forget.masked_fill(padding, 0.0)
        y, *memory = mlstm(coefficient(q * self.d_key**-0.5), k, v, log_input, log_forget, *state)
        y = rearrange(y, "batch head seq d -> batch seq (head d)").to(x.dtype)
        y = group_norm(y, self.n_heads, self.norm_weight, self.norm_eps)
        return self.out_proj(sigmoid_gate(o, y)), CappedMLSTMState(*memory)
