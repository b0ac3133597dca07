"""Linear time-invariant recurrences with diagonal dynamics: discretisation and scan."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Complex, Float, Inexact
from torch import Tensor

from zoo.ops.carry import decayed_states
from zoo.ops.chunked import into_chunks
from zoo.ops.ranks import spread, spread_by
from zoo.ops.toeplitz import causal_toeplitz
from zoo.ops.transforms import whole_in_export

CHUNK = 32
LEAST_STIFFNESS, MOST_SINE = 1e-24, 1 - 1e-6
"""Bounds of an oscillator: at stiffness 0 both poles are 1, at sine 1 both are -1, and its two modes coincide."""


def zero_order_hold(
    A: Inexact[Tensor, "*channels d_state"], dt: Inexact[Tensor, "*channels #d_state"]
) -> tuple[Inexact[Tensor, "*channels d_state"], Inexact[Tensor, "*channels d_state"]]:
    """Discretise h' = A h + u: log-decay dt A and input gain (exp(dt A) - 1) / A (Gu et al. 2206.11893, eq. 3).

    The gain is dt (1 + z/2 + ...) with z = dt A, computed with expm1 so that it is accurate for small dt.
    """
    z = dt * A
    return z, torch.expm1(z) / A


def ring_gain(log_decay: Inexact[Tensor, " d_state"]) -> Inexact[Tensor, " d_state"]:
    """sqrt(1 - |lambda|^2): white input keeps unit variance in every state (Orvieto et al. 2303.06349, eq. 7)."""
    return torch.sqrt(-torch.expm1(2 * log_decay.real))


def oscillators(
    A: Float[Tensor, " d_state"], dt: Float[Tensor, " d_state"], *, symplectic: bool
) -> tuple[Complex[Tensor, " d_state"], Complex[Tensor, " d_state"], Float[Tensor, " d_state"]]:
    """Discretise h'' = -A h + u as one complex recurrence s_t = lambda s_{t-1} + gain u_t with h = scale Im s.

    With h' = z, the implicit scheme is z_t = z_{t-1} + dt (u_t - A h_t) and the symplectic one z_t = z_{t-1} + dt (u_t
    - A h_{t-1}), both with h_t = h_{t-1} + dt z_t (Rusch and Rus 2410.03943, eq. 3 and 5). With w = sqrt(A), the
    implicit scheme rotates z + i w h by arctan(dt w) and shrinks it; the symplectic one has the angle theta with
    sin(theta / 2) = dt w / 2. Their impulse responses are dt Im(lambda^(lag + 1)) / w and dt^2 sin((lag + 1) theta) /
    sin(theta).

    Args:
        A: stiffness; clamped to at least `LEAST_STIFFNESS`, and to the stable range of the symplectic scheme.
        dt: step sizes.
        symplectic: use the symplectic scheme instead of the implicit one.

    Returns:
        log lambda, gain and scale.
    """
    z = dt * A.clamp(min=LEAST_STIFFNESS).sqrt()
    if symplectic:
        half = torch.asin((z / 2).clamp(max=MOST_SINE))
        log_decay, scale = torch.complex(torch.zeros_like(z), 2 * half), dt / (2 * half).sin()
    else:
        log_decay, scale = torch.complex(-torch.log1p(z.square()) / 2, torch.atan(z)), dt / z
    return log_decay, dt * log_decay.exp(), scale


def hippo_modes(d_state: int) -> tuple[Float[Tensor, " poles"], Complex[Tensor, "d_state poles"]]:
    """Return frequencies > 0 (ascending) and unit eigenvectors V of HiPPO-LegS's normal part: half of its modes.

    S = A + P P^T with A_nm = -sqrt((2n + 1)(2m + 1)) below the diagonal and -(n + 1) on it, P_n = sqrt(n + 1/2) (Gu et
    al. 2111.00396, section 3; Smith et al. 2208.04933, appendix B). S is -1/2 on the diagonal and skew-symmetric off
    it, so S V = V diag(-1/2 + i frequency); the conjugates are the other half. Both are float64.
    """
    n = torch.arange(d_state, dtype=torch.float64, device="cpu")
    below = -torch.outer(n + 0.5, n + 0.5).sqrt().tril(-1)
    frequency, vectors = torch.linalg.eigh(-1j * (below - below.mT))
    return frequency[d_state // 2 :], vectors[:, d_state // 2 :]


def powers(log_decay: Inexact[Tensor, "*channels d_state"], size: int) -> Inexact[Tensor, "*channels size d_state"]:
    """exp(lag log_decay) for lags 0 to size - 1, each computed directly.

    Complex powers come from modulus and angle: on a CPU this takes a third of the time of torch's complex exponential.
    """
    z = torch.arange(size, device=log_decay.device).unsqueeze(1) * log_decay.unsqueeze(-2)
    return torch.polar(z.real.exp(), z.imag) if z.is_complex() else z.exp()


@whole_in_export(
    "(Tensor u, Tensor log_decay, Tensor state) -> Tensor", lambda u, log_decay, state: u.new_empty(u.shape)
)
def diagonal_scan(
    u: Inexact[Tensor, "batch seq d_state"],
    log_decay: Inexact[Tensor, " d_state"],
    state: Inexact[Tensor, "batch d_state"],
) -> Inexact[Tensor, "batch seq d_state"]:
    """h_t = exp(log_decay) h_{t-1} + u_t for all t: a Toeplitz product within all chunks at once, a carry between them.

    Powers of the decay are exp(t log_decay), so nothing is divided by a decay and no roundoff accumulates.

    Args:
        u: input of each state, real or complex.
        log_decay: logarithm of the decay, real or complex as u; real part at most zero for a stable recurrence.
        state: h before the first position.

    Returns:
        h at every position; the last is the next state.
    """
    batch, seq_len, _ = u.shape
    if seq_len == 1:
        return torch.addcmul(u, log_decay.exp(), state.unsqueeze(1))
    if entering := spread():
        with spread_by(None):
            h = diagonal_scan(u, log_decay, torch.zeros_like(state))
        decays = powers(log_decay, seq_len + 1)[1:]
        state = entering(torch.mul, decays[-1], h[:, -1])
        return torch.addcmul(h, decays, state.unsqueeze(1))
    size = min(CHUNK, seq_len)
    decays = powers(log_decay, size + 1)
    chunks = into_chunks(u.unsqueeze(1), size).squeeze(1)  # (batch, chunks, size, d_state)
    within = causal_toeplitz(decays[:-1].t()) @ rearrange(chunks, "batch chunk t state -> state t (batch chunk)")
    within = rearrange(within.unflatten(2, (batch, chunks.shape[1])), "state t batch chunk -> batch chunk t state")
    over_chunk = decays[-1].view(1, 1, 1, -1, 1).expand(-1, -1, chunks.shape[1], -1, -1)
    entering, _ = decayed_states(state.unsqueeze(1).unsqueeze(3), over_chunk, within[:, None, :, -1, :, None])
    h = within + decays[1:] * entering.movedim(4, 3).squeeze(1)
    return rearrange(h, "batch chunk t state -> batch (chunk t) state")[:, :seq_len]
