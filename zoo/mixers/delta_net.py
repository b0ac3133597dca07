"""DeltaNet: linear attention that overwrites the value stored under a key."""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm, ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.delta_rule import delta_inputs, delta_rule, require_stable
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.time import without_padding
from zoo.validate import head_width, require_positive


class DeltaNetState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, 3 * n_heads * d_head)
    S: Tensor  # (batch, n_heads, d_head, d_head), keys first
    carried = ("S",)


class DeltaNet(SequenceMixer):
    """Linear attention that erases the value stored under a key before writing a new one: the delta rule.

        q, k, v = silu(conv(W x)), q and k scaled to length one; beta_t = beta_max sigmoid(w x_t)
        S_t = (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T    per head
        y   = out_proj(RMSNorm(S_t^T q_t / sqrt(d_head)))

    beta_max 1 is the published layer and the constructor's default; `configs/mixer/delta_net.yaml` trains with 2. The
    eigenvalue 1 - beta then reaches -1, a reflection (Grazzi et al. 2411.12537), which tracking a state such as parity
    requires. Within a chunk, the product of these maps takes one triangular solve (WY form).

    Coefficients. q, k, beta, the sigmoid factor of v, 1/rms. The offset is zero.

    State. n_heads x d_head x d_head numbers, at least float32, and the convolution's last d_conv - 1 inputs of 3
    n_heads d_head channels. It does not grow.

    Interaction rank. The recurrence itself: n_heads, since the delta rule acts on keys. The convolution's taps and the
    SiLU of the values act on channels: min(n_heads * d_head, d_model^2) for generic input.

    Source. Yang et al. 2406.06484. The factor 1 / sqrt(d_head) is not in the paper, but in the authors' code
    (flash-linear-attention) and its successors. The norm cancels it except for epsilon: a head with a small readout
    outputs less with the factor.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head; default d_model / n_heads.
        d_conv: width of the causal convolution; 1 sees only the current position.
        beta_max: upper end of beta. Beyond 1, the eigenvalue 1 - beta can be negative, down to -1 at 2; tracking a
            state by reflections needs that (Grazzi et al. 2411.12537).

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, beta_max outside (0, 2].
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 2,
        d_head: int | None = None,
        d_conv: int = 4,
        beta_max: float = 1.0,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, d_conv=d_conv)
        require_stable(beta_max)
        self.n_heads, self.beta_max = n_heads, beta_max
        self.d_head = head_width(d_model, n_heads, d_head)
        n_inner = n_heads * self.d_head
        self.qkv_proj = nn.Linear(d_model, 3 * n_inner, bias=False)
        self.conv = ShortConv(3 * n_inner, d_conv)
        self.beta_proj = nn.Linear(d_model, n_heads, bias=False)
        self.norm = RMSNorm(self.d_head)
        self.out_proj = nn.Linear(n_inner, d_model, bias=False)

    def rank_law(self, seq_len: int) -> int:
        # The recurrence has one per head; convolution and SiLU act on each channel of its values.
        return self.n_heads * self.d_head

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> DeltaNetState:
        S = torch.zeros(batch_size, self.n_heads, self.d_head, self.d_head, dtype=accumulator(dtype), device=device)
        return DeltaNetState(self.conv.empty_state(batch_size, dtype, device), S)

    def mix(self, x: Tensor, state: DeltaNetState, lengths: Tensor | None) -> tuple[Tensor, DeltaNetState]:
        qkv, conv = self.conv.mix(self.qkv_proj(x), state.conv, lengths)
        q, k, v = rearrange(qkv, "batch seq (part head d) -> part batch seq head d", part=3, d=self.d_head)
        q, k, v = (t.transpose(1, 2) for t in delta_inputs(q, k, v, state.S.dtype))
        beta = self.beta_max * torch.sigmoid(self.beta_proj(x).to(state.S.dtype))
        (beta,) = without_padding(lengths, beta.transpose(1, 2))  # padding writes nothing
        y, S = delta_rule(q, k, v, coefficient(beta), None, state.S)
        y = self.norm(y.transpose(1, 2)).flatten(2).to(x.dtype)
        return self.out_proj(y), DeltaNetState(conv, S)
