"""The delta rule: before a value is written under a key, the value stored there is erased."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from zoo.coefficient import coefficient
from zoo.cores import core
from zoo.ops.activation import fused, silu
from zoo.ops.dplr import dplr
from zoo.ops.precision import full_precision, rounded_type
from zoo.ops.time import without_padding

_EPS = 1e-6
_LEAST_LOG_DECAY, _LEAST_IN_FLOAT16 = -60.0, -11.0  # their reciprocals must be finite


def unit_length(t: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """t / sqrt(|t|^2 + 1e-6)."""
    if fused(t):
        d = t.shape[-1]
        with full_precision(t.device):  # the kernel computes in float32
            return F.rms_norm(t.contiguous(), (d,), None, _EPS / d) * d**-0.5
    return t * torch.rsqrt((t * t).sum(-1, keepdim=True) + _EPS)


def delta_inputs(
    q: Float[Tensor, "*q d_key"], k: Float[Tensor, "*k d_key"], v: Float[Tensor, "*v d_value"], dtype: torch.dtype
) -> tuple[Float[Tensor, "*q d_key"], Float[Tensor, "*k d_key"], Float[Tensor, "*v d_value"]]:
    """Apply SiLU to all three; scale queries and keys to length one, then divide queries by sqrt(d_key).

    Queries and keys are coefficients. Results are in `dtype` on the CPU and while coefficients are requested; otherwise
    in the inputs' dtype, computed in float32. In bfloat16, a length is one up to the rounding of its components.
    """
    if not fused(q):
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    q, k = (unit_length(F.silu(t)) for t in (q, k))
    return coefficient(q * q.shape[-1] ** -0.5), coefficient(k), silu(v)


def delta_strengths(
    beta: Float[Tensor, "batch seq steps_heads"],
    dt: Float[Tensor, "batch seq heads"],
    beta_max: float,
    A_log: Float[Tensor, " heads"],
    dt_bias: Float[Tensor, " heads"],
    lengths: Int[Tensor, " batch"] | None,
) -> tuple[Float[Tensor, "batch heads seq steps"], Float[Tensor, "batch heads seq"]]:
    """beta_max sigmoid(beta) and -exp(A_log) softplus(dt + dt_bias): writing strengths and log-decays (2412.06464).

    Args:
        beta: logits of the strengths; the heads of the first step, then of the second, and so on.
        dt: logits of the step sizes.
        beta_max: upper end of the strengths.
        A_log, dt_bias: parameters of each head.
        lengths: valid positions of each row; beyond them nothing is written and nothing decays.

    Returns:
        Both, as coefficients, in dt's dtype.
    """
    strength = rearrange(beta_max * torch.sigmoid(beta), "b s (step head) -> b head s step", head=dt.shape[2])
    # Contiguous: torch.compile gets the strides of softplus's gradient wrong if its layout is not the input's.
    dt = dt.transpose(1, 2).contiguous()
    log_decay = -A_log.to(dt.dtype).exp().unsqueeze(1) * F.softplus(dt + dt_bias.unsqueeze(1))
    strength, log_decay = without_padding(lengths, strength.contiguous(), log_decay)
    return coefficient(strength), coefficient(log_decay)


def require_stable(beta_max: float) -> None:
    """Raise ValueError unless I - beta k k^T lengthens no vector for any beta up to `beta_max`."""
    if not 0 < beta_max <= 2:
        raise ValueError(f"beta_max must lie in (0, 2] for a stable recurrence, got {beta_max}")


@core("v", "batch head seq value")
def delta_rule(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    v: Float[Tensor, "batch heads seq d_value"],
    beta: Float[Tensor, "batch heads seq"],
    log_decay: Float[Tensor, "batch heads seq"] | None,
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """S_t = a_t (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, y_t = S_t^T q_t, with a_t = exp(log_decay_t).

    Yang et al. 2406.06484, eq. 4 and section 3.2; with the decay 2412.06464, eq. 10 (there S is transposed). With S_0
    the state that enters a chunk, g_t = a_1 ... a_t and G_tj = a_{j+1} ... a_t,

        S_t = g_t S_0 + sum_{j <= t} G_tj k_j u_j^T,      (I + L) u = beta (v - g k S_0),
        L_tj = beta_t G_tj k_t . k_j for j < t,

    so one triangular solve per chunk replaces its product of reflections (the WY form). Both halves of a step use the
    key beta_t k_t, so that values need no factor.

    Args:
        q, k: queries and keys, keys of length one or shorter.
        v: values.
        beta: writing strengths, 0 to 2; 0 leaves the state as it is, 1 replaces the value under the key, and above 1
            the eigenvalue 1 - beta |k|^2 can be negative.
        log_decay: logarithm of the decay; default none.
        state: S before the first position; the computation uses its dtype.

    Returns:
        Outputs, and S after the last position.
    """
    key = beta.unsqueeze(3) * k
    return dplr(q, key, v, None if log_decay is None else log_decay.unsqueeze(3), key, k, state)


@core("v", "batch head seq part value", "batch head seq value")
def delta_product(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq steps d_key"],
    v: Float[Tensor, "batch heads seq steps d_value"],
    beta: Float[Tensor, "batch heads seq steps"],
    log_decay: Float[Tensor, "batch heads seq"] | None,
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """Take several steps of `delta_rule` per position (Siems et al. 2502.10297, section 3).

    The decay acts before a position's first step, and the query reads after its last.

    Args:
        q: queries, one per position.
        k, v, beta: keys, values and writing strengths, one per step of each position; see `delta_rule`.
        log_decay: logarithm of the decay; default none.
        state: S before the first position; the computation uses its dtype.

    Returns:
        Outputs, and S after the last position.
    """
    steps = k.shape[3]
    if steps == 1:
        k, v, beta = k.squeeze(3), v.squeeze(3), beta.squeeze(3)
        return delta_rule(q, k, v, beta, log_decay, state)
    if log_decay is not None:
        log_decay = F.pad(log_decay.unsqueeze(3), (0, steps - 1)).flatten(2)
    q, k, v = (
        rearrange(t, "batch head seq step d -> batch head (seq step) d")
        for t in (F.pad(q.unsqueeze(3), (0, 0, steps - 1, 0)), k, v)
    )
    y, state = delta_rule(q, k, v, rearrange(beta, "batch head seq step -> batch head (seq step)"), log_decay, state)
    return y[:, :, steps - 1 :: steps], state


@core("v", "batch head seq value")
def relaxed_delta_rule(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    v: Float[Tensor, "batch heads seq d_value"],
    log_decay: Float[Tensor, "batch heads seq d_key"],
    kappa: Float[Tensor, "batch heads seq d_key"],
    rate: Float[Tensor, "batch heads seq d_key"],
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """S_t = (diag(a_t) - (rate_t * kappa_t) kappa_t^T) S_{t-1} + k_t v_t^T (RWKV-7, Peng et al. 2503.14456, eq. 17).

    Decay and erasure both act on S_{t-1}, while the other delta rules erase from the decayed state. So `dplr` reads the
    state along kappa / a, which needs decays that stay away from zero.

    Args:
        q, k, v: queries, keys and values; y_t = S_t^T q_t.
        log_decay: log(a), at least about -1.
        kappa: the direction that is erased, of length one.
        rate: share of it that is erased, per key channel.
        state: S before the first position; the computation uses its dtype.

    Returns:
        Outputs, and S after the last position.
    """
    return dplr(q, k, v, log_decay, rate * kappa, kappa * torch.exp(-log_decay), state)


@core("v", "batch head seq value")
def fed_back_delta_rule(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    v: Float[Tensor, "batch heads seq d_value"],
    beta: Float[Tensor, "batch heads seq"],
    log_decay: Float[Tensor, "batch heads seq"],
    share: Float[Tensor, "heads 1 1"],
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """S_t = (a_t - share beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T, a scalar plus low rank (Hu et al. 2506.02475).

    As in `relaxed_delta_rule`, decay and erasure both act on S_{t-1}. Decays may be arbitrarily small: below exp(-60),
    or exp(-11) if products round their operands to float16, the decayed state is negligible and they are clamped.

    Args:
        q, k, v: queries, keys of length one or shorter, and values; y_t = S_t^T q_t.
        beta: writing strengths.
        log_decay: log(a), at most zero.
        share: share of the value stored under a key that is erased at beta 1.
        state: S before the first position; the computation uses its dtype.

    Returns:
        Outputs, and S after the last position.
    """
    least = _LEAST_IN_FLOAT16 if rounded_type(state) == torch.float16 else _LEAST_LOG_DECAY
    log_decay, key = log_decay.clamp(min=least).unsqueeze(3), beta.unsqueeze(3) * k
    return dplr(q, key, v, log_decay, key, share * k * torch.exp(-log_decay), state)
