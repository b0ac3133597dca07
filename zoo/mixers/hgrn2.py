"""HGRN2: gated linear attention with keys equal to one minus the decays."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.dplr import dplr
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.retention import bounded_decay
from zoo.ops.time import without_padding
from zoo.validate import head_width, require_positive


class HGRN2State(NamedTuple):
    S: Tensor  # (batch, n_heads, d_head, d_head), keys first
    carried = ("S",)


class HGRN2(SequenceMixer):
    """Gated linear attention in which a key channel writes as much as it forgets.

        a_t = b + (1 - b) sigmoid(W_a x_t)                         per head a decay for each key channel, b: lower_bound
        S_t = diag(a_t) S_{t-1} + (1 - a_t) v_t^T
        y   = out_proj(RMSNorm(S_t^T silu(W_q x_t) / sqrt(d_head)))        one norm over all heads, no gate

    For a bound per layer, use `hybrid` with a pattern such as `[hgrn2, {name: hgrn2, lower_bound: 0.5}]`.

    Coefficients. q, a, 1 - a, 1/rms. The offset is zero.

    State. n_heads x d_head x d_head numbers, at least float32. It does not grow.

    Interaction rank. n_heads, at most d_model^2: nothing acts on single channels, and the norm over all heads divides
    by one number.

    Source. Qin et al. 2404.07904, section 3; flash-linear-attention, commit bc3b101, fla/layers/hgrn2.py.

    Not here. Learned bounds. The published model learns b for all its layers jointly: per channel, the sum over the
    layers before of a softmax over depth, which starts at l / n_layers in layer l = 0, 1, ... A mixer is one layer, so
    its bound is a constant.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head; default d_model / n_heads.
        lower_bound: lower bound of the decays a.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, a lower bound outside [0, 1).
    """

    def __init__(self, d_model: int, n_heads: int = 2, d_head: int | None = None, lower_bound: float = 0.0) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head)
        if not 0 <= lower_bound < 1:
            raise ValueError(f"lower_bound must lie in [0, 1), got {lower_bound}")
        self.n_heads, self.lower_bound = n_heads, lower_bound
        self.d_head = head_width(d_model, n_heads, d_head)
        d_inner = n_heads * self.d_head
        self.in_proj = nn.Linear(d_model, 3 * d_inner, bias=False)
        self.norm = RMSNorm(d_inner)
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def rank_law(self, seq_len: int) -> int:
        return self.n_heads

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> HGRN2State:
        shape = (batch_size, self.n_heads, self.d_head, self.d_head)
        return HGRN2State(torch.zeros(shape, dtype=accumulator(dtype), device=device))

    def mix(self, x: Tensor, state: HGRN2State, lengths: Tensor | None) -> tuple[Tensor, HGRN2State]:
        parts = self.in_proj(x).to(state.S.dtype)
        q, logit, v = rearrange(parts, "batch seq (part head d) -> part batch head seq d", part=3, head=self.n_heads)
        log_decay, k = bounded_decay(logit, self.lower_bound)
        k, log_decay = without_padding(lengths, k, log_decay)  # padding writes nothing and forgets nothing
        q = coefficient(F.silu(q) * self.d_head**-0.5)
        y, S = dplr(q, coefficient(k), v, coefficient(log_decay), None, None, state.S)
        y = self.norm(rearrange(y, "batch head seq d -> batch seq (head d)")).to(x.dtype)
        return self.out_proj(y), HGRN2State(S)
