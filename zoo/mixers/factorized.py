"""The theory's factorized class as a mixer: a sum over heads of scalar coefficients times shared value maps."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.dplr import dplr
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.time import right_align, without_padding
from zoo.ops.toeplitz import toeplitz_mix
from zoo.validate import require_choice, require_positive

Kernel = Literal["toeplitz", "bilinear"]


class ToeplitzState(NamedTuple):
    inputs: Tensor  # (batch, slots, d_model), right-aligned, zero in front


class BilinearState(NamedTuple):
    outer: Tensor  # (batch, n_heads, d_head, d_model): sum of k_j x_j^T
    carried = ("outer",)


class Factorized(SequenceMixer):
    """The explicit factorized class: scalar coefficients per head times shared value maps.

        y_i = sum_h V_h sum_{j <= i} f_h(i, j) x_j

    With kernel toeplitz, f_h(i, j) is a free number per head and lag. With kernel bilinear it is q_h(x_i) . k_h(x_j),
    with q and k of width d_head. Nothing is normalised.

    Coefficients. q and k (bilinear); none (toeplitz). The offset is zero.

    State. toeplitz: the inputs so far, d_model numbers per position, at most max_seq_len positions. bilinear: the sum
    of k_j x_j^T, n_heads d_head d_model numbers, at least float32.

    Interaction rank. n_heads, at most d_out * d_model, and at most seq_len for toeplitz. The head-count theorem is
    about this class: to equal a map of interaction rank k it needs n_heads >= k, and n_heads = k is enough.

    Source. Ghodsi 2512.15115.

    Args:
        d_model: width of the input.
        n_heads: value maps V_h.
        d_out: width of the output; default d_model.
        kernel: form of the scalar coefficients, toeplitz or bilinear.
        d_head: width of q and k, the rank of the bilinear form; default d_model / n_heads, at least one.
        max_seq_len: lags of the Toeplitz kernel, and so the longest sequence.

    Raises:
        ValueError: non-positive sizes, an unknown kernel; a sequence beyond max_seq_len (toeplitz).
    """

    undecayed = ("coefficients",)

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        d_out: int | None = None,
        kernel: Kernel = "toeplitz",
        d_head: int | None = None,
        max_seq_len: int = 1024,
    ) -> None:
        super().__init__(d_model, d_out)
        require_positive(n_heads=n_heads, d_head=d_head, max_seq_len=max_seq_len)
        require_choice("kernel", kernel, Kernel)
        self.n_heads, self.kernel, self.max_seq_len = n_heads, kernel, max_seq_len
        self.d_head = d_head or max(1, d_model // n_heads)
        self.value_maps = nn.Parameter(torch.empty(n_heads, self.d_out, d_model))
        toeplitz = kernel == "toeplitz"
        self.coefficients = nn.Parameter(torch.empty(n_heads, max_seq_len)) if toeplitz else None
        self.qk_proj = None if toeplitz else nn.Linear(d_model, 2 * n_heads * self.d_head, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.value_maps, std=self.d_model**-0.5)
        if self.coefficients is not None:
            nn.init.normal_(self.coefficients, std=self.n_heads**-0.5 / 4)
        if self.qk_proj is not None:
            self.qk_proj.reset_parameters()

    def rank_law(self, seq_len: int) -> int:
        return min(self.n_heads, seq_len) if self.kernel == "toeplitz" else self.n_heads

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> ToeplitzState | BilinearState:
        if self.kernel == "toeplitz":
            return ToeplitzState(torch.zeros(batch_size, 0, self.d_model, dtype=dtype, device=device))
        shape = (batch_size, self.n_heads, self.d_head, self.d_model)
        return BilinearState(torch.zeros(shape, dtype=accumulator(dtype), device=device))

    def mix(
        self, x: Tensor, state: ToeplitzState | BilinearState, lengths: Tensor | None
    ) -> tuple[Tensor, ToeplitzState | BilinearState]:
        if isinstance(state, ToeplitzState):
            gathered, state = self._mix_lags(x, state, lengths)
        else:
            gathered, state = self._mix_pairs(x, state, lengths)
        return torch.einsum("hbnd,hpd->bnp", gathered, self.value_maps.to(gathered.dtype)), state

    def _mix_lags(self, x: Tensor, state: ToeplitzState, lengths: Tensor | None) -> tuple[Tensor, ToeplitzState]:
        inputs = torch.cat((state.inputs.to(x.dtype), x), dim=1)
        seq_len, slots = x.shape[1], inputs.shape[1]
        if slots > self.max_seq_len:
            raise ValueError(f"sequence of {slots} positions exceeds max_seq_len={self.max_seq_len}")
        assert self.coefficients is not None
        gathered = toeplitz_mix(self.coefficients, inputs, seq_len)
        if lengths is not None:
            inputs = right_align(inputs, lengths + state.inputs.shape[1])
        return gathered, ToeplitzState(inputs)

    def _mix_pairs(self, x: Tensor, state: BilinearState, lengths: Tensor | None) -> tuple[Tensor, BilinearState]:
        assert self.qk_proj is not None
        q, k = rearrange(self.qk_proj(x), "batch seq (part head d) -> part batch head seq d", part=2, d=self.d_head)
        (k,) = without_padding(lengths, k)
        q, k = coefficient(q), coefficient(k)
        y, outer = dplr(q, k, x.unsqueeze(1), None, None, None, state.outer)
        return y.to(x.dtype).transpose(0, 1), BilinearState(outer)
