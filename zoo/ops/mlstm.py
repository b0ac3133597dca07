"""The matrix memory of xLSTM: linear attention with exponential input gates, rescaled in log space to stay in range."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from zoo.coefficient import coefficient
from zoo.cores import core
from zoo.ops.dplr import dplr, dplr_step
from zoo.ops.precision import widest
from zoo.ops.time import without_rest
from zoo.ops.transforms import loops_suffice

_EPS = 1e-6
_LARGEST = 80.0  # exp(80) is finite in float32
_FORGOTTEN = -1e6  # lower limit of log_forget, so that its sums are finite


@core("v", "batch head seq value")
def mlstm(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    v: Float[Tensor, "batch heads seq d_value"],
    log_input: Float[Tensor, "batch heads seq"],
    log_forget: Float[Tensor, "batch heads seq"],
    memory: Float[Tensor, "batch heads d_key d_value"],
    normaliser: Float[Tensor, "batch heads d_key"],
    largest: Float[Tensor, "batch heads"],
) -> tuple[
    Float[Tensor, "batch heads seq d_value"],
    Float[Tensor, "batch heads d_key d_value"],
    Float[Tensor, "batch heads d_key"],
    Float[Tensor, "batch heads"],
]:
    """C_t = f_t C_{t-1} + i_t k_t v_t^T, n_t = f_t n_{t-1} + i_t k_t, h_t = C_t^T q_t / max(|n_t . q_t|, 1).

    Beck et al. 2405.04517, eqs. 19 to 27. i_t = exp(log_input_t) may have any size, so C and n are stored divided by
    exp(m_t), where m_t = max(log f_t + m_{t-1}, log i_t). The decays f_t exp(m_{t-1} - m_t) and inputs exp(log i_t -
    m_t) are then at most one, and the recurrence is an instance of `dplr`. As in the authors' code, the denominator is
    max(|n_t . q_t|, exp(-m_t)) + 1e-6, with n divided by exp(m_t). Its reciprocal and the two gates are coefficients.

    Args:
        q, k: queries and keys; one of them includes the factor 1 / sqrt(d_key).
        v: values.
        log_input: log(i); minus infinity if nothing is written.
        log_forget: log(f), at most zero.
        memory, normaliser, largest: C, n and m before the first position; the computation uses their dtype.

    Returns:
        h, and C, n and m after the last position.
    """
    if q.shape[2] == 1 and not torch.is_grad_enabled() and loops_suffice(memory):
        from zoo.ops import steps_numba

        return steps_numba.mlstm(q, k, v, log_input, log_forget, memory, normaliser, largest, _EPS, _LARGEST)
    if q.shape[2] == 1:  # a decoding step: joining normaliser and memory would copy both
        kept = log_forget + largest.unsqueeze(2)
        m = torch.maximum(kept, log_input)
        decay, k = coefficient(torch.exp(kept - m)), coefficient(k * torch.exp(log_input - m).unsqueeze(3))
        y, memory = dplr_step(q, k, v, decay.unsqueeze(3), None, None, memory)
        normaliser = torch.addcmul(k.squeeze(2), decay, normaliser)
        along = (q * normaliser.unsqueeze(2)).sum(3, keepdim=True)
    else:
        m = running_maximum(log_input, log_forget, largest)
        before = torch.cat((largest.unsqueeze(2), m), dim=2)[:, :, :-1]
        log_decay = coefficient(log_forget + (before - m)).unsqueeze(3)
        k = coefficient(k * torch.exp(log_input - m).unsqueeze(3))
        # The normaliser is the same sum for a value channel that is always one.
        state = torch.cat((memory, normaliser.unsqueeze(3)), dim=3)
        y, state = dplr(q, k, F.pad(v, (0, 1), value=1.0), log_decay, None, None, state)
        y, along = y.split((v.shape[3], 1), dim=3)
        memory, normaliser = state[..., :-1], state[..., -1]
    floor = torch.exp((-m).clamp(max=_LARGEST)).unsqueeze(3)
    y = y * coefficient((torch.maximum(along.abs(), floor) + _EPS).reciprocal())
    return y, memory, normaliser, without_rest(m.select(2, -1), m)


def running_maximum(
    log_input: Float[Tensor, "*batch seq"], log_forget: Float[Tensor, "*batch seq"], before: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch seq"]:
    """m_t = max(log_forget_t + m_{t-1}, log_input_t) from m_0 = before.

    With F the running sum of log_forget, m_t = F_t + max_{j <= t} (log_input_j - F_j). It is computed in the device's
    widest dtype, so that the sum costs m no digits.
    """
    wide = widest(log_forget.device)
    forgotten = log_forget.clamp(min=_FORGOTTEN).to(wide).cumsum(-1)
    start = torch.cat((before.unsqueeze(-1), log_input - forgotten), -1)
    return (forgotten + start.cummax(-1).values[..., 1:]).to(log_input.dtype)
