"""Hyena of order two: a long implicit convolution between two gates."""

from __future__ import annotations

import math
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from zoo.blocks import ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.mixers.conv import FASTEST, SLOWEST, ConvState, LagFilter
from zoo.modules import read_weight, reset_submodules
from zoo.ops.precision import Device, DType, accumulator
from zoo.validate import require_positive


class HyenaState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, 3 d_model)
    past: ConvState  # all inputs of the long convolution so far


class HyenaFilter(LagFilter):
    """kernel_c(tau) = exp(-r_c u) f_c(tau), u = tau / (max_seq_len - 1), in at least float32.

    f is a network of three sine layers with learned frequencies, on u and n_frequencies cosines and sines of 2 pi b tau
    / max_seq_len, with b evenly spaced from 1e-4 to n_frequencies - 1. The rates r are fixed and evenly spaced.
    """

    def __init__(self, channels: int, d_filter: int, n_frequencies: int, max_seq_len: int) -> None:
        super().__init__((d_filter,) * 3, n_frequencies, max_seq_len)
        self.channels = channels
        self.frequency = nn.Parameter(torch.empty(d_filter))
        self.out_proj = nn.Linear(d_filter, channels, bias=False)

    def reset_parameters(self) -> None:
        reset_submodules(self)
        nn.init.ones_(self.frequency)

    def forward(self, n_lags: int) -> Float[Tensor, "channels n_lags"]:
        """Return the kernel at lags 0 to n_lags - 1."""
        device, wide = self.frequency.device, accumulator(self.frequency.dtype)
        lag = torch.arange(n_lags, device=device, dtype=wide).unsqueeze(1)
        u = lag / max(1, self.max_seq_len - 1)
        bands = torch.linspace(1e-4, self.n_frequencies - 1, self.n_frequencies, device=device, dtype=wide)
        angle = 2 * math.pi * lag / self.max_seq_len * bands
        features = torch.cat((u, angle.cos(), -angle.sin()), dim=1)
        for layer in cast(list[nn.Linear], self.layers):
            features = F.linear(features, read_weight(layer).to(wide), layer.bias.to(wide))
            features = torch.sin(self.frequency.to(wide) * features)
        rate = torch.linspace(SLOWEST, FASTEST, self.channels, device=device, dtype=wide)
        return (features @ read_weight(self.out_proj).to(wide).t() * torch.exp(-rate * u)).t()


class Hyena(SequenceMixer):
    """A short convolution, then a causal convolution as long as the sequence between two gates.

        k, q, v = conv(W x + b)                                        a short convolution of d_conv taps, with bias
        o_i     = sum_{tau <= i} K_tau * (k v)_{i - tau} + D * (k v)_i
        y_i     = out_proj(q_i * o_i)
        K_tau   = exp(-r u) f(tau),  u = tau / (max_seq_len - 1)       a number per channel

    f is a network of three sine layers with learned frequencies, on u and n_frequencies cosines and sines of the lag. r
    is fixed and evenly spaced over the channels, so that the kernel decays to 1 % within 0.3 to 1.5 of max_seq_len. The
    long convolution is a Toeplitz product, quadratic in the length, since a Fourier transform would leak roundoff from
    future positions into past ones. At 1,024 positions on a CPU, training runs at less than half the speed of
    `gated_delta_net`.

    Coefficients. k and q; v is the value. Biases make the offset c.

    State. All inputs of the long convolution so far, d_model numbers per position, and the last d_conv - 1 inputs of
    the short one, 3 d_model numbers each. It grows with the sequence.

    Interaction rank. d_model: each channel has a map of rank one, a column of out_proj times a row of W_v.

    Source. Poli et al. 2302.10866, order two. As in HazyResearch/zoology, commit d88d6f5, zoology/mixers/hyena.py,
    which also trains the cosines and sines of the lags, at a rate of 1e-5; here they are fixed.

    Args:
        d_model: width of input and output.
        d_conv: width of the short convolution; 1 sees only the current position.
        d_filter: width of the filter network.
        n_frequencies: sine-cosine pairs of the lag that the filter network takes as input.
        max_seq_len: longest sequence, and the unit of the lag.

    Raises:
        ValueError: non-positive sizes; a sequence beyond max_seq_len.
    """

    undecayed = ("D",)

    def __init__(
        self,
        d_model: int,
        d_conv: int = 3,
        d_filter: int = 64,
        n_frequencies: int = 1,
        max_seq_len: int = 1024,
    ) -> None:
        super().__init__(d_model)
        require_positive(d_conv=d_conv, d_filter=d_filter, n_frequencies=n_frequencies, max_seq_len=max_seq_len)
        self.max_seq_len = max_seq_len
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.conv = ShortConv(3 * d_model, d_conv, bias=True)
        self.filter = HyenaFilter(d_model, d_filter, n_frequencies, max_seq_len)
        self.D = nn.Parameter(torch.empty(d_model))
        self.out_proj = nn.Linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.normal_(self.D)

    def rank_law(self, seq_len: int) -> int:
        return self.d_model

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> HyenaState:
        inputs = torch.zeros(batch_size, 0, self.d_model, dtype=dtype, device=device)
        return HyenaState(self.conv.empty_state(batch_size, dtype, device), ConvState(inputs))

    def mix(self, x: Tensor, state: HyenaState, lengths: Tensor | None) -> tuple[Tensor, HyenaState]:
        convolved, conv = self.conv.mix(self.in_proj(x), state.conv, lengths)
        before, after, v = convolved.chunk(3, dim=2)
        y, inputs = self.filter.convolve(coefficient(before) * v, state.past.inputs, self.D, lengths)
        return self.out_proj(coefficient(after) * y), HyenaState(conv, ConvState(inputs))
