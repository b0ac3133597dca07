"""The delta rule: before a value is written under a key, what stands there is taken away."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.ops.chunked import chunk_decays, into_chunks
from zoo.ops.precision import full_precision

CHUNK = 32
_EPS = 1e-6


def unit_length(t: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """t / sqrt(|t|^2 + 1e-6)."""
    return t * torch.rsqrt(t.square().sum(-1, keepdim=True) + _EPS)


def require_stable(beta_max: float) -> None:
    """Raise ValueError unless I - beta k k^T shrinks or keeps every vector for all beta up to `beta_max`."""
    if not 0 < beta_max <= 2:
        raise ValueError(f"beta_max must lie in (0, 2] for a stable recurrence, got {beta_max}")


def delta_rule(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    v: Float[Tensor, "batch heads seq d_value"],
    beta: Float[Tensor, "batch heads seq"],
    log_decay: Float[Tensor, "batch heads seq"] | None,
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """S_t = a_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, y_t = S_t^T q_t, with a_t = exp(log_decay_t).

    Yang et al. 2406.06484, eq. 4 and section 3.2; with the decay 2412.06464, eq. 10 (there S is transposed). With
    S_0 the state that enters a chunk, g_t = a_1 ... a_t and G_tj = a_{j+1} ... a_t,

        S_t = g_t S_0 + sum_{j <= t} G_tj k_j u_j^T,      (I + L) u = beta (v - g k S_0),
        L_tj = beta_t G_tj k_t . k_j for j < t,

    so that one triangular solve a chunk stands for its product of reflections (the WY form).

    Args:
        q, k: queries and keys, keys of length one or shorter.
        v: values.
        beta: writing strengths, 0 to 2; zero leaves the state as it is, one replaces what stands under the key, above
            one the eigenvalue 1 - beta |k|^2 is negative.
        log_decay: logarithm of the decay; none when absent.
        state: S before the first position; its dtype is the one computed in.

    Returns:
        Outputs, and S after the last position.
    """
    seq_len = q.shape[2]
    size = min(CHUNK, seq_len)
    with full_precision(q.device):
        q, k, v, beta = (into_chunks(t.to(state.dtype), size) for t in (q, k, v, beta.unsqueeze(3)))
        if log_decay is None:
            decay = torch.ones(size, size, dtype=state.dtype, device=q.device).tril()
            since_start = until_end = torch.ones(*k.shape[:4], 1, dtype=state.dtype, device=q.device)
        else:
            step = into_chunks(log_decay.to(state.dtype).unsqueeze(3), size).squeeze(4)
            decay, since_start, until_end = chunk_decays(step)
            since_start, until_end = since_start.unsqueeze(4), until_end.unsqueeze(4)
        L = (beta * decay * (k @ k.transpose(3, 4))).tril(-1)
        right = torch.cat((beta * v, beta * since_start * k), dim=4)
        solved = torch.linalg.solve_triangular(L, right, upper=False, unitriangular=True)
        u, w = solved.split((v.shape[4], k.shape[4]), dim=4)  # the chunk alone, and what S_0 takes from it
        keys = (until_end * k).transpose(3, 4)
        carry = _carry if torch.compiler.is_compiling() else _Carry.apply
        entering, u, final = carry(state, since_start[..., -1:, :], keys, w, u)
        y = (decay * (q @ k.transpose(3, 4))) @ u + since_start * (q @ entering)
    return y.flatten(2, 3)[:, :, :seq_len], final


def _carry(state: Tensor, decay: Tensor, keys: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """u_c - w_c S_c, which chunk c writes, and S_{c+1} = decay_c S_c + keys_c of it.

    Returns:
        The state that enters each chunk, what each chunk writes, and the state after the last.
    """
    entering, written = [], []
    for a, keys_c, w_c, u_c in zip(*(t.unbind(2) for t in (decay, keys, w, u)), strict=True):
        entering.append(state)
        written.append(u_c - w_c @ state)
        state = torch.addcmul(keys_c @ written[-1], a, state)
    return torch.stack(entering, dim=2), torch.stack(written, dim=2), state


class _Carry(torch.autograd.Function):
    """`_carry` with the gradients of its coefficients for all chunks at once; only the state's go chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        entering, written, final = _carry(*given)
        ctx.save_for_backward(*given[1:4], entering, written)
        return entering, written, final

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        decay, keys, w, entering, written = ctx.saved_tensors
        grad_entering, grad_written, grad = grads
        arriving, grad_u = [], []
        backwards = (t.unbind(2)[::-1] for t in (decay, keys.mT, w.mT, grad_entering, grad_written))
        for a, keys_c, w_c, from_state, from_written in zip(*backwards, strict=True):
            arriving.append(grad)
            grad_u.append(from_written + keys_c @ grad)
            grad = torch.addcmul(from_state, a, grad) - w_c @ grad_u[-1]
        arriving, grad_u = (torch.stack(t[::-1], dim=2) for t in (arriving, grad_u))
        grad_decay = (arriving * entering).sum_to_size(decay.shape) if ctx.needs_input_grad[1] else None
        return grad, grad_decay, arriving @ written.mT, -grad_u @ entering.mT, grad_u
