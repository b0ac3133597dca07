"""Linear attention: a feature map instead of the softmax."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.dplr import dplr
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.time import without_padding
from zoo.validate import head_width, require_choice, require_positive

FeatureMap = Literal["elu", "identity"]
_EPS = 1e-6


class LinearAttentionState(NamedTuple):
    outer: Tensor  # (batch, n_heads, d_head, d_head + 1): sum of phi(k_j) [v_j, 1]^T
    carried = ("outer",)


class LinearAttention(SequenceMixer):
    """Attention with a feature map instead of the softmax.

        S_i = S_{i-1} + phi(k_i) v_i^T                             per head
        z_i = sum_{j <= i} phi(q_i) . phi(k_j) + 1e-6
        y_i = sum_h W_O^h S_i^T phi(q_i) / z_i

    Without normalize, z is one.

    Coefficients. phi(q), phi(k), 1/z. The offset is zero.

    State. S and the sum of phi(k), n_heads d_head (d_head + 1) numbers, at least float32. It does not grow.

    Interaction rank. n_heads, for any width of the state: a head is one operator times a scalar.

    Source. Katharopoulos et al. 2006.16236, equation 9.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head; default d_model / n_heads.
        feature_map: elu (elu(u) + 1, positive) or identity.
        normalize: divide by z; needs a positive feature map.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, an unknown feature map, identity with
            normalize.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        d_head: int | None = None,
        feature_map: FeatureMap = "elu",
        normalize: bool = True,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head)
        require_choice("feature_map", feature_map, FeatureMap)
        if normalize and feature_map == "identity":
            raise ValueError("normalize needs a positive feature map: choose feature_map=elu or normalize=False")
        self.n_heads, self.feature_map, self.normalize = n_heads, feature_map, normalize
        self.d_head = head_width(d_model, n_heads, d_head)
        self.qkv_proj = nn.Linear(d_model, 3 * n_heads * self.d_head, bias=False)
        self.out_proj = nn.Linear(n_heads * self.d_head, d_model, bias=False)

    def rank_law(self, seq_len: int) -> int:
        return self.n_heads

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> LinearAttentionState:
        shape = (batch_size, self.n_heads, self.d_head, self.d_head + self.normalize)
        return LinearAttentionState(torch.zeros(shape, dtype=accumulator(dtype), device=device))

    def mix(
        self, x: Tensor, state: LinearAttentionState, lengths: Tensor | None
    ) -> tuple[Tensor, LinearAttentionState]:
        q, k, v = rearrange(self.qkv_proj(x), "batch seq (part head d) -> part batch head seq d", part=3, d=self.d_head)
        if self.feature_map == "elu":
            q, k = _elu_plus_one(q), _elu_plus_one(k)
        (k,) = without_padding(lengths, k)
        q, k = coefficient(q), coefficient(k)
        # The normaliser is the same sum for a value channel that is always one.
        value = F.pad(v, (0, 1), value=1.0) if self.normalize else v
        y, outer = dplr(q, k, value, None, None, None, state.outer)
        if self.normalize:
            y = y[..., :-1] * coefficient(1 / (y[..., -1:] + _EPS))
        return self.out_proj(rearrange(y.to(v.dtype), "batch head seq d -> batch seq (head d)")), LinearAttentionState(
            outer
        )


def _elu_plus_one(t: Tensor) -> Tensor:
    """Compute elu(t) + 1 without the sum, in which exp(t) of a very negative t would be rounded away."""
    return F.relu(t) + t.clamp(max=0).exp().to(t.dtype)  # float32 under autocast on CUDA
