"""Initial step sizes dt and decay rates A of selective state space models and gated delta rules."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

_FLOOR = 1e-4
_RATE_MAX = 16


def draw_dt_bias(count: int, dt_min: float, dt_max: float) -> Float[Tensor, " count"]:
    """Draw biases b with softplus(b) log-uniform in [dt_min, dt_max] and >= 1e-4 (Gu and Dao 2312.00752, section 3.6).

    They are drawn from torch's generator.
    """
    span = math.log(dt_max) - math.log(dt_min)
    dt = torch.exp(torch.rand(count) * span + math.log(dt_min)).clamp(min=_FLOOR)
    return dt + torch.log(-torch.expm1(-dt))  # inverse softplus


def draw_A_log(count: int) -> Float[Tensor, " count"]:
    """Draw log A, with A uniform in (0, 16] as in gated delta nets (2412.06464).

    They are drawn from torch's generator. Zero is excluded, since it has no logarithm.
    """
    return (_RATE_MAX * (1 - torch.rand(count))).log()
