"""Published implementations of three SSM ops, to compare ours with; all return the same outputs, without a state.

The layouts are those of a block's tensors:

- the selective scan of Mamba: x, dt (batch, seq, d_inner), A (d_inner, d_state), B, C (batch, seq, d_state);
- SSD of Mamba-2: x (batch, seq, heads, d_head), dt (batch, seq, heads), A (heads), B, C (batch, seq, groups, d_state);
- a bank of diagonal SSMs, one per channel: x (batch, seq, channels), the rest (channels, d_state) and complex.

dt is positive and A negative. `SCANS`, `SSDS` and `BANKS` list the implementations, ours first;
tests/project/test_peers.py checks that their outputs agree. The forms in this file are written from the papers;
mamba.py and transformers (extra `bench`) run as installed, in their path without CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.extras import require_extra
from zoo.ops.channel_ssm import channel_ssm
from zoo.ops.diagonal import zero_order_hold
from zoo.ops.scan import selective_scan
from zoo.ops.ssd import ssd

Form = Callable[..., Tensor]


def generator() -> torch.Generator:
    """Return a generator with a fixed seed, for the inputs of one measurement."""
    return torch.Generator().manual_seed(0)


def transformers_model(name: str) -> Any:
    """Import the module of a transformers model (extra `bench`).

    Raises:
        MissingExtraError: transformers is not installed; the message gives the command that installs it.
    """
    return require_extra(f"transformers.models.{name}.modeling_{name}", "bench")


# The selective scan: h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t, y_t = C_t . h_t (Gu and Dao 2312.00752, algorithm 2).


def zoo_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """`zoo.ops.selective_scan` with its automatic backend."""
    return selective_scan(x, dt, A, B, C)[0]


def loop_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Loop over time that is efficient under autograd: only the recurrence is in the loop.

    Steps come from one `unbind`. Indexing them would make the backward pass quadratic, because each index allocates a
    gradient of the full size.
    """
    decay = torch.exp(dt.unsqueeze(3) * A)
    written = (dt * x).unsqueeze(3) * B.unsqueeze(2)
    h, states = torch.zeros_like(written[:, 0]), []
    for a, u in zip(decay.unbind(1), written.unbind(1), strict=True):
        h = torch.addcmul(u, a, h)
        states.append(h)
    return (torch.stack(states, dim=1) @ C.unsqueeze(3)).squeeze(3)


def mambapy_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """mamba.py (PyPI `mambapy`): Blelloch's scan over all decays and inputs, which are materialised."""
    pscan = require_extra("mambapy.pscan", "bench").pscan
    decay = torch.exp(dt.unsqueeze(3) * A)
    states = pscan(decay, dt.unsqueeze(3) * B.unsqueeze(2) * x.unsqueeze(3))
    return (states @ C.unsqueeze(3)).squeeze(3)


def transformers_scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """Run the path of transformers' Mamba without CUDA: a Python loop over time that indexes its step."""
    scan = transformers_model("mamba").mamba_selective_scan
    return scan(*(t.transpose(1, 2) for t in (x, dt)), A, *(t.transpose(1, 2) for t in (B, C))).transpose(1, 2)


# SSD: S_t = exp(dt_t A) S_{t-1} + dt_t B_t x_t^T, y_t = S_t^T C_t per head.


def zoo_ssd(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """`zoo.ops.ssd`, including the operations of the block around it."""
    x, dt, B, C = (t.transpose(1, 2) for t in (x, dt, B, C))
    empty = x.new_zeros(len(x), x.shape[1], B.shape[3], x.shape[3])
    return ssd(C, B, dt.unsqueeze(3) * x, A.unsqueeze(1) * dt, empty)[0].transpose(1, 2)


def minimal_ssd(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, size: int = 64) -> Tensor:
    """Compute SSD by the four einsums of the paper: diagonal blocks, chunk states, their recurrence, and outputs.

    Dao and Gu 2405.21060, listing 1: every einsum over all heads at once, B and C repeated for each head of a group.
    Blocks have `size` positions, which must divide the length of the sequence.
    """
    per_group = x.shape[2] // B.shape[2]
    u = (x * dt.unsqueeze(3)).unflatten(1, (-1, size))
    B, C = (t.repeat_interleave(per_group, 2).unflatten(1, (-1, size)) for t in (B, C))
    step = (A * dt).unflatten(1, (-1, size)).permute(0, 3, 1, 2)  # (batch, heads, chunks, size)
    total = step.cumsum(3)
    diagonal = torch.einsum("bcihn,bcjhn,bhcij,bcjhp->bcihp", C, B, _decay_matrix(step), u)
    states = torch.einsum("bcjhn,bhcj,bcjhp->bchpn", B, torch.exp(total[..., -1:] - total), u)
    states = torch.cat((torch.zeros_like(states[:, :1]), states), dim=1)
    between = _decay_matrix(F.pad(total[..., -1], (1, 0)))
    entering = torch.einsum("bhdc,bchpn->bdhpn", between, states)[:, :-1]
    carried = torch.einsum("bcihn,bchpn,bhci->bcihp", C, entering, total.exp())
    return (diagonal + carried).flatten(1, 2)


def _decay_matrix(step: Tensor) -> Tensor:
    """Return exp(step_{j+1} + ... + step_i) at (i, j), zero above the diagonal; the paper's stable `segsum`."""
    size = step.shape[-1]
    lower = torch.ones(size, size, dtype=torch.bool, device=step.device).tril()
    sums = step.unsqueeze(-1).expand(*step.shape, size).masked_fill(~lower.tril(-1), 0.0).cumsum(-2)
    return sums.masked_fill(~lower, float("-inf")).exp()


def transformers_ssd(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, size: int = 256) -> Tensor:
    """Run the path of transformers' Mamba-2 without CUDA, with the chunk size of its default configuration."""
    scan = transformers_model("mamba2").mamba2_chunk_scan
    return scan(x, dt, A, B, C, chunk_size=size)


# A bank of diagonal SSMs: h_t = exp(log_decay) h_{t-1} + gain x_t, y_t = Re(C . h_t) per channel.


def zoo_bank(x: Tensor, log_decay: Tensor, gain: Tensor, C: Tensor) -> Tensor:
    """`zoo.ops.channel_ssm` from the empty state."""
    return channel_ssm(x, log_decay, gain, C, log_decay.new_zeros(len(x), *log_decay.shape))[0]


def vandermonde_bank(x: Tensor, log_decay: Tensor, gain: Tensor, C: Tensor) -> Tensor:
    """Compute the kernel by a full Vandermonde matrix, channels x d_state x seq, then convolve by FFT.

    Gu et al. 2206.11893, section 3.3 and the standalone S4D layer published with it.
    """
    seq_len = x.shape[1]
    lag = torch.arange(seq_len, device=x.device)
    kernel = torch.einsum("hn,hnl->hl", C * gain, torch.exp(log_decay.unsqueeze(2) * lag)).real
    spectrum = torch.fft.rfft(x.transpose(1, 2), n=2 * seq_len) * torch.fft.rfft(kernel, n=2 * seq_len)
    return torch.fft.irfft(spectrum, n=2 * seq_len)[..., :seq_len].transpose(1, 2)


SCANS: dict[str, Form] = {
    "zoo": zoo_scan,
    "loop over unbind": loop_scan,
    "mamba.py": mambapy_scan,
    "transformers": transformers_scan,
}
SSDS: dict[str, Form] = {"zoo": zoo_ssd, "minimal form": minimal_ssd, "transformers": transformers_ssd}
BANKS: dict[str, Form] = {"zoo": zoo_bank, "Vandermonde in full": vandermonde_bank}


def scan_inputs(
    batch: int, seq_len: int, d_inner: int, d_state: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """Draw x, dt, A, B, C as at the initialisation of Mamba: dt log-uniform in [1e-3, 1e-1], A_n = -n."""
    x = torch.randn(batch, seq_len, d_inner, generator=generator, dtype=dtype)
    A = -torch.arange(1.0, d_state + 1).to(dtype).expand(d_inner, d_state).contiguous()
    B, C = (torch.randn(batch, seq_len, d_state, generator=generator, dtype=dtype) for _ in range(2))
    return x, _steps(x.shape, generator, dtype), A, B, C


def ssd_inputs(
    batch: int,
    seq_len: int,
    heads: int,
    d_head: int,
    d_state: int,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    """Draw x, dt, A, B, C as Mamba-2 initialises them: dt log-uniform in [1e-3, 1e-1], A in [-16, -1]; one group."""
    x = torch.randn(batch, seq_len, heads, d_head, generator=generator, dtype=dtype)
    A = -torch.linspace(1, 16, heads, dtype=dtype)
    B, C = (torch.randn(batch, seq_len, 1, d_state, generator=generator, dtype=dtype) for _ in range(2))
    return x, _steps(x.shape[:3], generator, dtype), A, B, C


def bank_inputs(
    batch: int,
    seq_len: int,
    channels: int,
    d_state: int,
    generator: torch.Generator,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    """Draw x, log_decay, gain, C as at the initialisation of S4D-Lin, with `d_state` poles per channel."""
    dt = _steps((channels, 1), generator, dtype)
    A = torch.complex(torch.full((d_state,), -0.5, dtype=dtype), torch.pi * torch.arange(d_state, dtype=dtype))
    log_decay, gain = zero_order_hold(A.expand(channels, -1), dt)
    C = torch.randn(channels, d_state, generator=generator, dtype=dtype.to_complex())
    x = torch.randn(batch, seq_len, channels, generator=generator, dtype=dtype)
    return x, log_decay, gain, C


def _steps(shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    return 1e-3 * 100 ** torch.rand(shape, generator=generator, dtype=dtype)
