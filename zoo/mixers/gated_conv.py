"""Gated short convolution, as in LFM2."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from zoo.blocks import ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.precision import Device, DType
from zoo.validate import require_positive


class GatedConvState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, d_model) gated inputs of the convolution
    carried = ()


class GatedConv(SequenceMixer):
    """A short causal convolution between two gates that are linear in the input.

        B, C, u = W_B x, W_C x, W_u x
        y_i     = out_proj(C_i * sum_{tau < d_conv} K_tau * (B u)_{i - tau}),      K_tau a number per channel

    Coefficients. B and C; u is the value. There are no biases, so the offset is zero.

    State. The last d_conv - 1 products B u. It does not grow with the sequence.

    Interaction rank. d_model: each channel has a map of rank one, a column of out_proj times a row of W_u, and the
    gates give each channel its own coefficients. Without gates the rank would be d_conv. It is at most the number of
    pairs of positions within d_conv.

    Source. Block of LFM2, Liquid AI, 2511.23404. As in transformers 5.23.0, models/lfm2/modeling_lfm2.py, Lfm2ShortConv
    without biases.

    Args:
        d_model: width of input and output.
        d_conv: width of the causal convolution; 1 sees only the current position.

    Raises:
        ValueError: non-positive sizes.
    """

    def __init__(self, d_model: int, d_conv: int = 3) -> None:
        super().__init__(d_model)
        require_positive(d_conv=d_conv)
        self.in_proj = nn.Linear(d_model, 3 * d_model, bias=False)
        self.conv = ShortConv(d_model, d_conv)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        self.reset_parameters()

    def rank_law(self, seq_len: int) -> int:
        pairs = sum(min(i, self.conv.weight.shape[1]) for i in range(1, seq_len + 1))
        return min(self.d_model, pairs)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> GatedConvState:
        return GatedConvState(self.conv.empty_state(batch_size, dtype, device))

    def mix(self, x: Tensor, state: GatedConvState, lengths: Tensor | None) -> tuple[Tensor, GatedConvState]:
        before, after, u = self.in_proj(x).chunk(3, dim=2)
        y, conv = self.conv.mix(coefficient(before) * u, state.conv, lengths)
        return self.out_proj(coefficient(after) * y), GatedConvState(conv)
