"""Linear time-invariant teachers with a known head count."""

from __future__ import annotations

import cmath
import math

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.theory.lags import lag_operators


def balanced_teacher(
    k: int,
    d_model: int,
    seq_len: int,
    rho: float = 0.98,
    seed: int = 0,
    *,
    d_out: int | None = None,
    period: int | None = None,
) -> Float[Tensor, "seq_len d_out d_model"]:
    """Build lag operators that span exactly k dimensions, none of them negligible.

    G_tau = rho^tau sum_s f_s(tau) V_s over s = 1 ... k, with V_s orthonormal in the Frobenius product and f_s the first
    k functions of the real Fourier basis: 1, sqrt(2) cos(w_1 tau), sqrt(2) sin(w_1 tau), sqrt(2) cos(w_2 tau), ...,
    where w_m = 2 pi m / period, and cos(pi tau) without the factor. The f_s are orthonormal over one period, so the
    singular values of the stack decay slowly and the error falls in visible steps up to k heads; with random residues
    on real poles it would be negligible long before.

    The teacher is a diagonal state space model: a pole rho, and for each m a pole rho e^(i w_m) with residue
    (V_cos - i V_sin)/sqrt(2) and its conjugate; each pole takes d_model states.

    Args:
        k: dimension of the span, 1 <= k <= period and k <= d_out * d_model.
        d_model: channels of the input.
        seq_len: number of lags.
        rho: modulus of the poles, in (0, 1].
        seed: seed of the residues.
        d_out: channels of the output; default d_model.
        period: period of the slowest oscillation, in lags; default seq_len. A fixed period makes teachers of different
            lengths the same system; fewer than k lags span fewer than k dimensions.

    Returns:
        float64 (seq_len, d_out, d_model).

    Raises:
        ValueError: an option out of range.
    """
    d_out = d_model if d_out is None else d_out
    if d_model < 1 or d_out < 1:
        raise ValueError(f"balanced_teacher: d_model and d_out must be >= 1, got {d_model} and {d_out}")
    period = seq_len if period is None else period
    if not 1 <= k <= d_out * d_model or k > period:
        raise ValueError(
            "balanced_teacher: k must be >= 1, <= period (default seq_len) and <= d_out * d_model, "
            f"got k={k}, period={period}, d_out={d_out}, d_model={d_model}"
        )
    if not 0 < rho <= 1:
        raise ValueError(f"balanced_teacher: rho must lie in (0, 1], got {rho}")

    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(d_out * d_model, k, dtype=torch.float64, generator=generator)
    orthonormal = torch.linalg.qr(directions).Q.T.reshape(k, d_out, d_model)
    poles = [complex(rho)]
    residues = [orthonormal[0].to(torch.complex128)]
    for m, cosine in enumerate(range(1, k, 2), start=1):
        # An even k ends on a cosine without a sine: both poles then share one real residue.
        sine = orthonormal[cosine + 1] if cosine + 1 < k else torch.zeros(d_out, d_model, dtype=torch.float64)
        residue = torch.complex(orthonormal[cosine], -sine) / (2 if 2 * m == period else math.sqrt(2))
        pole = cmath.rect(rho, 2 * math.pi * m / period)
        poles += [pole, pole.conjugate()]
        residues += [residue, residue.conj()]

    A = torch.tensor(poles, dtype=torch.complex128).repeat_interleave(d_model)
    B = torch.eye(d_model, dtype=torch.complex128).repeat(len(poles), 1)
    C = torch.cat(residues, dim=1)
    return lag_operators(A, B, C, seq_len)
