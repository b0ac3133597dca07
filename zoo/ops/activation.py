"""Norms and nonlinearities, each split into an input-dependent coefficient and a value.

Unless coefficients are requested, torch's fused kernels run where there is one: they read their input once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from zoo import coefficient as coefficients
from zoo.coefficient import coefficient
from zoo.ops.transforms import on_cpu


def fused(t: Tensor) -> bool:
    """Return whether torch's RMSNorm may replace a coefficient and a product: on a CPU it has no fused kernel."""
    return not on_cpu(t) and not coefficients.active()


def silu(u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """silu(u) = sigmoid(u) u (Elfwing et al. 1702.03118): the sigmoid is the coefficient, u the value."""
    return coefficient(torch.sigmoid(u)) * u if coefficients.active() else F.silu(u)


def gelu(u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """gelu(u) = Phi(u) u (Hendrycks and Gimpel 1606.08415): the normal distribution function is the coefficient."""
    return coefficient(torch.special.ndtr(u)) * u if coefficients.active() else F.gelu(u)


def silu_gate(z: Float[Tensor, "*shape"], value: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """silu(z) value: all of silu(z) is the coefficient."""
    return coefficient(F.silu(z)) * value


def gelu_gate(
    z: Float[Tensor, "*shape"], value: Float[Tensor, "*shape"], approximate: str = "tanh"
) -> Float[Tensor, "*shape"]:
    """gelu(z) value, with the tanh approximation unless `approximate` is none: all of gelu(z) is the coefficient."""
    return coefficient(F.gelu(z, approximate=approximate)) * value


def sigmoid_gate(z: Float[Tensor, "*shape"], value: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """sigmoid(z) value: the sigmoid is the coefficient."""
    return coefficient(torch.sigmoid(z)) * value


def tanh(u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """tanh(u) = tanhc(u) u: tanhc(u) is the coefficient, u the value."""
    return coefficient(tanhc(u)) * u


def tanhc(u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """tanh(u) / u, with a Taylor series around zero, so that value and gradient are exact there."""
    square = (u * u).clamp(max=1)  # where it overflowed, the gradient of the unused series would be NaN
    series = 1 - square / 3 * (1 - square * 2 / 5 * (1 - square * 17 / 42))
    small = square < 1e-4
    safe = torch.where(small, torch.ones_like(u), u)
    return torch.where(small, series, torch.tanh(safe) / safe)


def half_linear(u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """u + 1/2 for u >= 0, sigmoid(u) below (Feng et al. 2410.01201, appendix B.3): positive and continuous.

    It equals the larger of the two. Split into slope(u) u + 1/2 with the slope as the coefficient: one for u >= 0,
    (sigmoid(u) - 1/2) / u below.
    """
    if not coefficients.active():  # the same numbers in a quarter of the operations
        return torch.clamp(u + 0.5, min=torch.sigmoid(u))
    below = tanhc(u.clamp(max=0) / 2) / 4
    return coefficient(torch.where(u >= 0, torch.ones_like(u), below)) * u + 0.5


def heavy_tail(u: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """1 + u for u >= 0, 1 / (1 - u) below: positive, with slope one at zero and a slowly falling tail.

    A rate that training drives far below zero keeps a gradient; softplus would decay exponentially (state-spaces/mamba,
    commit c69aaab).
    """
    return (1 + F.relu(u)) / (1 - u.clamp(max=0))


def rms_norm(
    x: Float[Tensor, "*batch d"], weight: Float[Tensor, "*groups d"], eps: float = 1e-5
) -> Float[Tensor, "*batch d"]:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich 1910.07467, eq. 4), with the mean in at least float32."""
    if fused(x) and x.dtype == weight.dtype and weight.dim() == 1:
        return F.rms_norm(x, weight.shape, weight, eps)
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    scale = coefficient(torch.rsqrt(_mean_square(wide) + eps))
    return (wide * scale).to(x.dtype) * weight


def layer_norm(
    x: Float[Tensor, "*batch d"], weight: Float[Tensor, " d"], bias: Float[Tensor, " d"], eps: float = 1e-5
) -> Float[Tensor, "*batch d"]:
    """(x - mean) / sqrt(var + eps) * weight + bias (Ba et al. 1607.06450), split as in `group_norm`."""
    if not coefficients.active() and x.dtype == weight.dtype:
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    return group_norm(x, 1, weight, eps) + bias


def group_norm(
    x: Float[Tensor, "*batch d"], n_groups: int, weight: Float[Tensor, " d"], eps: float = 1e-5
) -> Float[Tensor, "*batch d"]:
    """(x - mean) / sqrt(var + eps) * weight, for each of n_groups parts separately (Wu and He 1803.08494).

    1 / sqrt(var + eps) is the coefficient, in at least float32; the mean is linear in x.
    """
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    wide = rearrange(wide, "... (group d) -> ... group d", group=n_groups)
    centred = wide - wide.mean(-1, keepdim=True)
    scale = coefficient(torch.rsqrt(_mean_square(centred) + eps))
    return rearrange(centred * scale, "... group d -> ... (group d)").to(x.dtype) * weight


def _mean_square(t: Float[Tensor, "*shape d"]) -> Float[Tensor, "*shape 1"]:
    if not on_cpu(t):
        return t.square().mean(-1, keepdim=True)
    # One operation more, but the gradients of square() and mean() would materialise a power and an expanded mean.
    return (t * t).sum(-1, keepdim=True) / t.shape[-1]
