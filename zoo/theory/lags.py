"""Lag operators of a linear time-invariant map, and the number of heads they need.

A causal LTI map y_i = sum_tau G_tau x_{i - tau} has interaction rank k = dim span{G_0 ... G_{n-1}}. The best sum of H
heads with input-independent coefficients, sum_h a_h(tau) V_h, is the rank-H approximation of the stack of the G_tau,
with lags weighted by sqrt(n - tau), because n - tau pairs of positions are at distance tau: a weighted Eckart-Young
theorem (head counts: Ghodsi, arXiv 2512.15115).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Num
from torch import Tensor

from zoo.validate import require_positive, require_real

RANK_RTOL = {torch.float64: 1e-10, torch.float32: 1e-5}
"""Singular values below this fraction of the largest count as zero."""

ROUNDOFF = 1e-9
"""Largest imaginary part, asymmetry or excess over the unit circle, relative, that counts as roundoff."""


def lag_operators(
    A: Num[Tensor, "d_state ..."],
    B: Num[Tensor, "d_state d_in"],
    C: Num[Tensor, "d_out d_state"],
    seq_len: int,
) -> Float[Tensor, "seq_len d_out d_in"]:
    """Return the operators G_tau = C A^tau B, for tau = 0 ... seq_len - 1 (A^0 = I, also for poles at zero).

    Args:
        A: poles (d_state,) of a diagonal system, or a matrix (d_state, d_state); its spectrum in the unit disc.
        B: input map (d_state, d_in).
        C: output map (d_out, d_state).
        seq_len: number of lags.

    Returns:
        float64 (seq_len, d_out, d_in).

    Raises:
        ValueError: shapes that do not fit, seq_len < 1, a pole outside the unit circle, or a response that is not real
            (complex poles must come in conjugate pairs).
    """
    _check_system(A, B, C, seq_len)
    dtype = torch.complex128 if A.is_complex() or B.is_complex() or C.is_complex() else torch.float64
    A, B, C = A.to(dtype), B.to(dtype), C.to(dtype)
    state, lags = B, []
    for _ in range(seq_len):
        lags.append(C @ state)
        state = A[:, None] * state if A.ndim == 1 else A @ state
    stacked = torch.stack(lags)
    if not stacked.is_complex():
        return stacked
    if stacked.imag.abs().max() > ROUNDOFF * stacked.abs().max():
        raise ValueError("lag_operators: the response is not real; complex poles must come in conjugate pairs")
    return stacked.real.contiguous()


def _check_system(A: Tensor, B: Tensor, C: Tensor, seq_len: int) -> None:
    if seq_len < 1:
        raise ValueError(f"lag_operators: seq_len must be >= 1, got {seq_len}")
    d_state = A.shape[0] if A.ndim else 0
    square = A.ndim == 1 or (A.ndim == 2 and A.shape[1] == d_state)
    if not square or B.ndim != 2 or C.ndim != 2 or B.shape[0] != d_state or C.shape[1] != d_state:
        raise ValueError(
            "lag_operators: A must be (d_state,) or (d_state, d_state), B (d_state, d_in), C (d_out, d_state), "
            f"got {tuple(A.shape)}, {tuple(B.shape)}, {tuple(C.shape)}"
        )
    for name, t in (("A", A), ("B", B), ("C", C)):
        if not t.isfinite().all():  # LAPACK may crash on NaN
            raise ValueError(f"lag_operators: {name} must be finite")
    poles = A if A.ndim == 1 else torch.linalg.eigvals(A.to(torch.complex128))
    radius = poles.abs().max().item() if d_state else 0.0
    if not radius <= 1 + ROUNDOFF:
        raise ValueError(f"lag_operators: unstable, a pole of modulus {radius:.10g} lies outside the unit circle")


def head_count(lags: Float[Tensor, "seq_len d_out d_in"], rtol: float | None = None) -> int:
    """Return the interaction rank k = dim span{G_tau}, the smallest number of heads that represent the map exactly.

    Args:
        lags: operators by lag (seq_len, d_out, d_in).
        rtol: singular values of the stack below this fraction of the largest count as zero; by default 1e-10 in
            float64, 1e-5 in float32. With many real poles, singular values cluster here: prefer `head_count_bound`.

    Raises:
        ValueError: `lags` of another shape or not finite, or rtol outside [0, 1).
    """
    check_lags("head_count", lags)
    if rtol is None:
        rtol = RANK_RTOL[lags.dtype]
    if not 0 <= rtol < 1:
        raise ValueError(f"head_count: rtol must lie in [0, 1), got {rtol}")
    sigma = torch.linalg.svdvals(scaled(lags).flatten(1))
    return int((sigma > rtol * sigma[0]).sum())


def head_count_bound(
    lags: Float[Tensor, "seq_len d_out d_in"],
    n_heads: int,
    covariance: Float[Tensor, "d_in d_in"] | None = None,
) -> float:
    """Return the smallest relative squared error of `n_heads` factorized heads with input-independent coefficients.

    Over sequences of length n = seq_len with white input, E||Y - Yhat||^2 = sum_tau (n - tau) ||G_tau - Ghat_tau||_F^2,
    so the minimum over Ghat_tau = sum_h a_h(tau) V_h is the energy of the singular values beyond the n_heads-th of the
    matrix with rows sqrt(n - tau) vec(G_tau). With input covariance S, G_tau S^(1/2) replaces G_tau.

    Args:
        lags: operators by lag (seq_len, d_out, d_in).
        n_heads: number of heads, at least 1.
        covariance: covariance (d_in, d_in) of the input vectors, which are independent and identically distributed;
            default the identity.

    Returns:
        min E||Y - Yhat||^2 / E||Y||^2, in [0, 1].

    Raises:
        ValueError: wrong shapes, lags that are not finite, n_heads that is not a positive integer, a covariance that is
            not finite, symmetric and positive semidefinite, or a map whose output is zero (its relative error is
            undefined).
    """
    check_lags("head_count_bound", lags)
    require_positive(n_heads=n_heads)
    lags = scaled(lags)
    if covariance is not None:
        lags = scaled(lags @ square_root("head_count_bound", covariance, lags.shape[2]))
    energy = torch.linalg.svdvals(weighted_rows(lags)).square()
    if not energy.sum() > 0:
        raise ValueError("head_count_bound: the map's output is zero, its relative error is undefined")
    return (energy[n_heads:].sum() / energy.sum()).item()


def weighted_rows(stack: Float[Tensor, "seq_len ..."]) -> Float[Tensor, "seq_len entries"]:
    """Return rows sqrt(n - tau) vec(stack_tau), n = seq_len: n - tau pairs of positions are at distance tau.

    The squared norm of the result is the output energy of a time-invariant map under white input.
    """
    pairs = torch.arange(len(stack), 0, -1, dtype=stack.dtype, device=stack.device)
    return pairs.sqrt()[:, None] * stack.flatten(1)


def scaled(values: Tensor) -> Tensor:
    """Return `values` in float64, divided by the largest magnitude so that squares stay in range; zeros unchanged."""
    values = values.double()
    largest = values.abs().max()
    return values / largest if largest > 0 else values


def check_lags(caller: str, lags: Tensor) -> None:
    """Raise ValueError unless `lags` is a real, finite, non-empty (seq_len, d_out, d_in)."""
    require_real(f"{caller}: lags", lags, "(seq_len, d_out, d_in)", (3,))


def square_root(caller: str, covariance: Tensor, d_in: int) -> Tensor:
    """Return the symmetric square root of a covariance up to scale, in float64; ValueError if it has none."""
    if covariance.shape != (d_in, d_in):
        raise ValueError(f"{caller}: covariance must be ({d_in}, {d_in}), got {tuple(covariance.shape)}")
    if not covariance.isfinite().all():
        raise ValueError(f"{caller}: covariance must be finite")
    covariance = scaled(covariance)
    if (covariance - covariance.mT).abs().max() > ROUNDOFF:
        raise ValueError(f"{caller}: covariance must be symmetric")
    variances, directions = torch.linalg.eigh(covariance)
    if variances[0] < -ROUNDOFF:
        raise ValueError(
            f"{caller}: covariance has a negative eigenvalue, {variances[0].item():.3g} of its largest entry"
        )
    return (directions * variances.clamp(min=0).sqrt()) @ directions.mT
