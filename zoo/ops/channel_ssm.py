"""A bank of linear time-invariant state space models, one for each channel, with diagonal dynamics."""

from __future__ import annotations

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from zoo.ops.precision import full_precision
from zoo.ops.time import right_align

CHUNK = 64


def channel_ssm(
    x: Float[Tensor, "batch seq channels"],
    log_decay: Complex[Tensor, "channels d_state"],
    gain: Complex[Tensor, "channels d_state"],
    C: Complex[Tensor, "channels d_state"],
    state: Complex[Tensor, "batch channels d_state"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch seq channels"], Complex[Tensor, "batch channels d_state"]]:
    """h_t = exp(log_decay) h_{t-1} + gain x_t, y_t = Re(C . h_t), each channel by itself.

    Within a chunk a convolution with Re(sum C gain exp(tau log_decay)), between chunks the state (the two views of
    Gu et al. 2111.00396, section 2): the states of single positions are never made.

    Args:
        x: input.
        log_decay: logarithm of the decays, real part at most zero for a stable recurrence.
        gain: what an input adds to each state.
        C: how each state is read.
        state: h before the first position; its precision is the one computed in.
        lengths: valid positions of each row; x is zero beyond them.

    Returns:
        Outputs, and h after the last valid position of each row.
    """
    lag = torch.arange(min(CHUNK, x.shape[1]), device=x.device)
    outputs = []
    with full_precision(x.device):
        powers = torch.exp(lag * log_decay.unsqueeze(2))  # (channels, d_state, size)
        writing = (gain.unsqueeze(2) * powers).flip(2)
        reading = (C * log_decay.exp()).unsqueeze(2) * powers
        kernel = torch.einsum("cn,cnt->ct", C * gain, powers).real
        toeplitz = kernel[:, (lag.unsqueeze(1) - lag).clamp(min=0)].tril()
        h = state
        for chunk in x.transpose(1, 2).to(kernel.dtype).split(len(lag), dim=2):
            size = chunk.shape[2]
            within = torch.einsum("cij,bcj->bci", toeplitz[:, :size, :size], chunk)
            outputs.append(within + torch.einsum("cni,bcn->bci", reading[:, :, :size], h).real)
            written = torch.einsum("cnj,bcj->bcn", writing[:, :, -size:], chunk.to(h.dtype))
            h = torch.exp(size * log_decay) * h + written
    y = torch.cat(outputs, dim=2).transpose(1, 2)
    if lengths is None:
        return y, h
    # Zeros in front add nothing to a state that starts at zero: aligned to the right, all rows end together.
    _, written = channel_ssm(right_align(x, lengths), log_decay, gain, C, torch.zeros_like(state))
    return y, torch.exp(lengths.view(-1, 1, 1) * log_decay) * state + written
