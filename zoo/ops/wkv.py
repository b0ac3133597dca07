"""RWKV-4's recurrence: averages of values with decaying exponential weights, per channel, rescaled in log space."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from zoo.coefficient import coefficient
from zoo.cores import core
from zoo.ops.linear_recurrence import linear_recurrence
from zoo.ops.mlstm import running_maximum


@core("v", "batch seq channel")
def wkv(
    k: Float[Tensor, "batch seq channels"],
    v: Float[Tensor, "batch seq channels"],
    log_decay: Float[Tensor, " channels"],
    bonus: Float[Tensor, " channels"],
    numerator: Float[Tensor, "batch channels"],
    denominator: Float[Tensor, "batch channels"],
    largest: Float[Tensor, "batch channels"],
    valid: Bool[Tensor, "batch seq"] | None = None,
) -> tuple[
    Float[Tensor, "batch seq channels"],
    Float[Tensor, "batch channels"],
    Float[Tensor, "batch channels"],
    Float[Tensor, "batch channels"],
]:
    """y_t = sum_{j <= t} w_tj v_j / sum_{j <= t} w_tj.

    The weights are w_tj = exp((t - 1 - j) log_decay + k_j) for j < t, and w_tt = exp(bonus + k_t).

    Peng et al. 2305.13048, eq. 16. Both sums are linear recurrences, stored divided by exp(m_t) with m_t =
    max(log_decay + m_{t-1}, k_t), so that no exponential exceeds one.

    Args:
        k: logarithms of the weights, of any size.
        v: values.
        log_decay: logarithm of the decay per step, at most zero.
        bonus: added to the key of the current position.
        numerator, denominator, largest: both sums and m before the first position; the computation uses their dtype.
        valid: positions that write and decay; the others keep the sums.

    Returns:
        y, and both sums and m after the last position.
    """
    write, steps = k, log_decay.expand_as(k)
    if valid is not None:
        moves = valid.unsqueeze(2)
        write, steps = write.where(moves, -torch.inf), steps.where(moves, 0.0)
    if k.shape[1] == 1:  # a decoding step
        m = torch.maximum(steps + largest.unsqueeze(1), write)
        end = m[:, 0]
    else:
        with torch.no_grad():  # m cancels in y; only the state needs its gradient
            m = running_maximum(write.mT, steps.mT, largest).mT
        end = _last_maximum(write, steps, largest, m)
    before = torch.cat((largest.unsqueeze(1), m), dim=1)[:, :-1]
    decay, weight = coefficient(torch.exp(steps + (before - m))), coefficient(torch.exp(write - m))
    sums = torch.cat((numerator, denominator), dim=1)
    after, last = linear_recurrence(decay, torch.cat((weight * v, weight), dim=2), sums)
    past, total = torch.cat((sums.unsqueeze(1), after), dim=1)[:, :-1].chunk(2, dim=2)
    kept, here = _in_range(before, bonus + k)
    scale = (kept * total + here).reciprocal()
    y = coefficient(kept * scale) * past + coefficient(here * scale) * v
    numerator, denominator = (last * torch.exp(m[:, -1] - end).repeat(1, 2)).chunk(2, dim=1)
    return y, numerator, denominator, end


def _in_range(*exponents: Tensor) -> tuple[Tensor, ...]:
    """Return the exponentials divided by the larger one, which cancels in y."""
    top = torch.maximum(*exponents).detach()
    return tuple(torch.exp(each - top) for each in exponents)


def _last_maximum(write: Tensor, steps: Tensor, largest: Tensor, m: Tensor) -> Tensor:
    """Return the last m, (batch, channels), with its gradient; m itself is computed without one."""
    since = steps.sum(1, keepdim=True) - steps.cumsum(1)
    found = torch.maximum(largest + steps.sum(1), (write + since).amax(1))
    return m[:, -1] + (found - found.detach())
