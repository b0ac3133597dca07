"""Linear time-invariant state space models with diagonal dynamics, one per channel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Complex, Float, Int
from torch import Tensor

from zoo.cores import core
from zoo.ops.carry import decayed_states
from zoo.ops.diagonal import powers
from zoo.ops.precision import full_precision
from zoo.ops.ranks import spread, spread_by
from zoo.ops.time import right_align
from zoo.ops.toeplitz import causal_toeplitz
from zoo.ops.transforms import whole_in_export

CHUNK = 32


@core("x", "batch seq channel")
@whole_in_export(
    "(Tensor x, Tensor log_decay, Tensor gain, Tensor C, Tensor state, Tensor? lengths) -> (Tensor, Tensor)",
    lambda x, log_decay, gain, C, state, lengths: (state.real.new_empty(x.shape), state.new_empty(state.shape)),
)
def channel_ssm(
    x: Float[Tensor, "batch seq channels"],
    log_decay: Complex[Tensor, "channels d_state"],
    gain: Complex[Tensor, "channels d_state"],
    C: Complex[Tensor, "channels d_state"],
    state: Complex[Tensor, "batch channels d_state"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch seq channels"], Complex[Tensor, "batch channels d_state"]]:
    """h_t = exp(log_decay) h_{t-1} + gain x_t, y_t = Re(C . h_t), for each channel separately.

    Within a chunk this is a convolution with Re(sum C gain exp(tau log_decay)); between chunks the state is carried
    (the two views of Gu et al. 2111.00396, section 2). The states of single positions are never computed. All chunks
    are computed at once, in real matrix products: complex numbers are stored as pairs of real ones.

    Args:
        x: input.
        log_decay: logarithm of the decays, real part at most zero for a stable recurrence.
        gain: factor of the input in each state.
        C: weight of each state in the output.
        state: h before the first position; its dtype sets the precision of the computation.
        lengths: valid positions of each row; x is zero beyond them.

    Returns:
        Outputs, and h after the last valid position of each row.
    """
    batch, seq_len, channels = x.shape
    if seq_len == 1 and lengths is None:
        with full_precision(x.device):
            state = torch.addcmul(gain * x.to(gain.real.dtype).mT, log_decay.exp(), state)
            return (state * C).real.sum(2).unsqueeze(1), state
    if entering := spread():
        with spread_by(None):
            written = channel_ssm(x, log_decay, gain, C, torch.zeros_like(state))[1]
            state = entering(torch.mul, (seq_len * log_decay).exp(), written)
            return channel_ssm(x, log_decay, gain, C, state, lengths)
    size = min(CHUNK, seq_len)
    n_chunks = -(-seq_len // size)
    with full_precision(x.device):
        decays = powers(log_decay, size + 1)  # (channels, size + 1, d_state)
        writing = _pairs(gain.unsqueeze(1) * decays[:, :-1].flip(1))  # (channels, size, 2 d_state)
        reading = _pairs((C.unsqueeze(1) * decays).conj())  # Re(c h) is the dot product of the pairs of c* and h
        kernel = (reading[:, :-1] @ _pairs(gain).unsqueeze(2)).squeeze(2)
        chunks = F.pad(x.to(kernel.dtype), (0, 0, 0, -seq_len % size)).unflatten(1, (n_chunks, size))
        inputs = rearrange(chunks, "batch chunk t channel -> channel (batch chunk) t")
        written = _numbers(inputs @ writing).unflatten(1, (batch, n_chunks))
        decay = decays[:, -1].view(channels, 1, 1, -1, 1).expand(-1, -1, n_chunks, -1, -1)
        entering, final = decayed_states(state.transpose(0, 1).unsqueeze(3), decay, written.unsqueeze(4))
        entering = entering.squeeze(4)  # (channels, batch, chunks, d_state)
        carried = _pairs(entering.flatten(1, 2)) @ reading[:, 1:].mT
        y = torch.baddbmm(carried, inputs, causal_toeplitz(kernel).mT).unflatten(1, (batch, n_chunks))
        y = rearrange(y, "channel batch chunk t -> batch (chunk t) channel")[:, :seq_len]
        if lengths is None and seq_len % size == 0:
            return y, final.squeeze(3).transpose(0, 1)
        # Rows end inside a chunk: the final state is the entering state, decayed, plus that chunk's own positions.
        lengths = x.new_full((batch,), seq_len, dtype=torch.long) if lengths is None else lengths
        row, last = torch.arange(batch, device=x.device), (lengths - 1).clamp(min=0) // size
        rest = lengths - last * size
        own = rearrange(right_align(chunks[row, last], rest), "batch t channel -> channel batch t") @ writing
        before = torch.exp(rest.view(-1, 1) * log_decay.unsqueeze(1)) * entering[:, row, last]
        return y, (before + _numbers(own)).transpose(0, 1)


def _pairs(t: Complex[Tensor, "*batch n"]) -> Float[Tensor, "*batch two_n"]:
    """Return the real and imaginary part of each number, side by side."""
    return torch.view_as_real(t.resolve_conj()).flatten(-2)


def _numbers(t: Float[Tensor, "*batch two_n"]) -> Complex[Tensor, "*batch n"]:
    """Return the complex numbers of which `t` holds the `_pairs`."""
    return torch.view_as_complex(t.unflatten(-1, (-1, 2)))
