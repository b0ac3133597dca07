"""Causal depthwise convolution with a short kernel, or with an implicit kernel as long as the sequence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from zoo.blocks import ShortConv
from zoo.contract import SequenceMixer
from zoo.modules import read_weight, reset_submodules
from zoo.ops.precision import Device, DType, accumulator, full_precision
from zoo.ops.time import right_align
from zoo.ops.toeplitz import long_conv
from zoo.validate import require_choice, require_positive

Kernel = Literal["short", "implicit"]
_OMEGA = 10.0  # frequency of the filter's sine activations, as published for language
FASTEST, SLOWEST = -math.log(1e-2) / 0.3, -math.log(1e-2) / 1.5  # rates of decay to 1 % at 0.3 or 1.5 of max_seq_len


class ConvState(NamedTuple):
    inputs: Tensor  # (batch, slots, d_model) projected inputs, right-aligned: d_conv - 1 of them, or all so far


class LagFilter(nn.Module):
    """A kernel as long as the sequence: layers of these widths on the lag and on sines and cosines of the lag.

    Subclasses define `forward(n_lags)`, which returns the kernel.
    """

    @property
    def undecayed(self) -> list[str]:
        """All parameters: Hyena's authors train the filter network without weight decay (safari, HyenaFilter)."""
        return [name for name, _ in self.named_parameters()]

    def __init__(self, widths: Sequence[int], n_frequencies: int, max_seq_len: int) -> None:
        super().__init__()
        self.n_frequencies, self.max_seq_len = n_frequencies, max_seq_len
        pairs = itertools.pairwise((1 + 2 * n_frequencies, *widths))
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairs)

    def convolve(self, u: Tensor, past: Tensor, D: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Convolve past inputs and u with the kernel; return the outputs at u's positions plus D u, and all inputs.

        Raises:
            ValueError: more inputs than max_seq_len.
        """
        inputs = torch.cat((past.to(u.dtype), u), dim=1)
        if inputs.shape[1] > self.max_seq_len:
            raise ValueError(f"sequence of {inputs.shape[1]} positions exceeds max_seq_len={self.max_seq_len}")
        with full_precision(u.device):
            kernel = self(inputs.shape[1])
            y = long_conv(inputs.to(kernel.dtype), kernel, u.shape[1]).to(u.dtype) + D.to(u.dtype) * u
        return y, inputs if lengths is None else right_align(inputs, lengths + past.shape[1])


class ImplicitFilter(LagFilter):
    """The implicit kernel of `Conv`, a function of the lag, in at least float32."""

    def __init__(self, channels: int, d_filter: int, n_frequencies: int, max_seq_len: int) -> None:
        super().__init__((d_filter, d_filter, channels), n_frequencies, max_seq_len)
        self.log_rate = nn.Parameter(torch.empty(channels))

    def reset_parameters(self) -> None:
        reset_submodules(self)
        with torch.no_grad():
            rate = torch.linspace(FASTEST, SLOWEST, len(self.log_rate), dtype=torch.float64)
            self.log_rate.copy_(rate.log())

    def forward(self, n_lags: int) -> Float[Tensor, "channels n_lags"]:
        """Return the kernel at lags 0 to n_lags - 1."""
        wide = accumulator(self.log_rate.dtype)
        u = torch.arange(n_lags, device=self.log_rate.device, dtype=wide).unsqueeze(1) / self.max_seq_len
        angle = 2 * math.pi * u * torch.arange(1, self.n_frequencies + 1, device=u.device, dtype=wide)
        features = torch.cat((u, angle.cos(), angle.sin()), dim=1)
        for number, layer in enumerate(cast(list[nn.Linear], self.layers)):
            features = features if number == 0 else torch.sin(_OMEGA * features)
            features = nn.functional.linear(features, read_weight(layer).to(wide), layer.bias.to(wide))
        rate = self.log_rate.to(wide).exp()
        return (features * (2 * rate / self.max_seq_len).sqrt() * torch.exp(-rate * u)).t()


class Conv(SequenceMixer):
    """Causal depthwise convolution between two linear projections.

        y_i = W_out sum_{tau <= i} K_tau * (W_in x)_{i - tau}

    With kernel short, K has d_conv free taps per channel. With kernel implicit, K is a function of the lag and as long
    as the sequence; at u = tau / max_seq_len

        K_tau = sqrt(2 r / max_seq_len) exp(-r u) f(u), plus D at tau = 0

    f is a network with two hidden sine layers on u and n_frequencies sines and cosines of u. r starts between 3.1 and
    15.4, so that a channel decays to 1 % within 0.3 to 1.5 of max_seq_len. The sum is a blocked Toeplitz product,
    quadratic in the sequence: a Fourier transform would leak roundoff from future positions into past ones. A sequence
    beyond max_seq_len raises.

    Coefficients. None: the layer is linear and time-invariant, W_ij = W_out diag(K_{i-j}) W_in. No offset.

    State. short: the last d_conv - 1 projected inputs, (d_conv - 1) d_model numbers. implicit: all projected inputs so
    far, d_model numbers per position. Both are in the dtype of the activations.

    Interaction rank. short: min(seq_len, d_conv, d_model). implicit: min(seq_len, d_model), since diagonal matrices
    have d_model directions; a smooth filter measures lower.

    Source. The implicit kernel is Hyena's (Poli et al. 2302.10866, section 3.3), except for the square root, which
    makes the kernel's energy independent of its length.

    Args:
        d_model: width of input and output.
        kernel: short or implicit (Poli et al. 2302.10866).
        d_conv: taps (short).
        d_filter: hidden width of the filter network (implicit).
        n_frequencies: sine-cosine pairs of the lag that the filter network takes as input (implicit).
        max_seq_len: longest sequence, and the unit of the lag (implicit).

    Raises:
        ValueError: non-positive sizes, an unknown kernel; a sequence beyond max_seq_len (implicit).
    """

    undecayed = ("D",)

    def __init__(
        self,
        d_model: int,
        kernel: Kernel = "short",
        d_conv: int = 4,
        d_filter: int = 16,
        n_frequencies: int = 8,
        max_seq_len: int = 1024,
    ) -> None:
        super().__init__(d_model)
        require_positive(d_conv=d_conv, d_filter=d_filter, n_frequencies=n_frequencies, max_seq_len=max_seq_len)
        require_choice("kernel", kernel, Kernel)
        self.kernel, self.max_seq_len = kernel, max_seq_len
        self.in_proj = nn.Linear(d_model, d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
        short = kernel == "short"
        self.conv = ShortConv(d_model, d_conv) if short else None
        self.filter = None if short else ImplicitFilter(d_model, d_filter, n_frequencies, max_seq_len)
        self.D = None if short else nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.D is not None:
            nn.init.ones_(self.D)

    def rank_law(self, seq_len: int) -> int:
        # Each W_ij is diagonal between the projections, with one tap per channel and lag.
        return min(self.d_model, seq_len if self.conv is None else min(seq_len, self.conv.weight.shape[1]))

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> ConvState:
        if self.conv is not None:
            return ConvState(self.conv.empty_state(batch_size, dtype, device))
        return ConvState(torch.zeros(batch_size, 0, self.d_model, dtype=dtype, device=device))

    def mix(self, x: Tensor, state: ConvState, lengths: Tensor | None) -> tuple[Tensor, ConvState]:
        u = self.in_proj(x)
        if self.conv is not None:
            y, inputs = self.conv.mix(u, state.inputs, lengths)
        else:
            assert self.filter is not None
            assert self.D is not None
            y, inputs = self.filter.convolve(u, state.inputs, self.D, lengths)
        return self.out_proj(y), ConvState(inputs)
