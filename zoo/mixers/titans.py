"""Titans' long-term memory, linear: gradient steps with momentum and weight decay, one step per position."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm, ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import sigmoid_gate
from zoo.ops.delta_rule import delta_inputs
from zoo.ops.momentum import momentum_delta_rule
from zoo.ops.precision import Device, DType, accumulator
from zoo.validate import head_width, require_positive

_FIRST_DECAY_LOGIT = -4.6  # logit of a decay of 1/100


class TitansState(NamedTuple):
    conv: Tensor  # (batch, d_conv - 1, 3 * n_heads * d_head)
    S: Tensor  # (batch, n_heads, d_head, d_head), the memory, keys first
    Z: Tensor  # (batch, n_heads, d_head, d_head), its last step
    carried = ("S", "Z")


class Titans(SequenceMixer):
    """Linear memory trained at test time: one gradient step per position, with momentum and weight decay.

        q, k, v = silu(conv(W x)), q and k scaled to length one
        theta_t, eta_t, alpha_t = sigmoid(W_r x_t + c)                      step, momentum, decay per head
        Z_t = eta_t Z_{t-1} + theta_t k_t (v_t - S_{t-1}^T k_t)^T
        S_t = (1 - alpha_t) S_{t-1} + Z_t
        y   = out_proj(sigmoid(W_g x) RMSNorm(S_t^T q_t / sqrt(d_head)))

    Z is a gradient descent step on |S^T k - v|^2 / 2 plus a share of the step before it, so a surprising value
    continues to be written at later positions. Without momentum and decay this is the delta rule, `delta_net`.

    Momentum can overshoot. Under a key that repeats, the memory oscillates about the value and converges for every step
    size up to one. If keys change, no bound on S is known.

    Coefficients. q, k, theta, eta, alpha, the sigmoid factor of v, 1/rms, the output gate's sigmoid. The offset
    is zero.

    State. Twice n_heads x d_head x d_head numbers, at least float32, and the convolution's last d_conv - 1 inputs of 3
    n_heads d_head channels. It does not grow.

    Interaction rank. The recurrence itself: n_heads. Momentum doubles the state but adds no operator: a value enters
    memory and momentum under the same key, so a pair of positions still has one number per head. Convolution, SiLU and
    gate act on the channels of the values: min(n_heads * d_head, d_model^2) for generic input.

    Source. Behrouz et al. 2501.00663, sections 3.1 and 4.4, with a memory of one layer and a gradient for each
    position; lucidrains/titans-pytorch, commit cc016eb, titans_pytorch/neural_memory.py. Three departures: the memory
    starts at zero, while that code learns its start; the gate is per channel, while that code has one per head; step
    size and momentum start at 1/2 and the decay at 1/100, which the paper leaves open.

    Not here. Memories of several layers, whose gradient is not linear in the memory, and the paper's persistent tokens
    and combinations with attention (`hybrid` and `parallel_hybrid` combine mixers).

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head; default d_model / n_heads.
        d_conv: width of the causal convolution; 1 sees only the current position.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model.
    """

    def __init__(self, d_model: int, n_heads: int = 2, d_head: int | None = None, d_conv: int = 4) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, d_conv=d_conv)
        self.n_heads = n_heads
        self.d_head = head_width(d_model, n_heads, d_head)
        n_inner = n_heads * self.d_head
        self.qkv_proj = nn.Linear(d_model, 3 * n_inner, bias=False)
        self.conv = ShortConv(3 * n_inner, d_conv)
        self.rate_proj = nn.Linear(d_model, 3 * n_heads)
        self.gate_proj = nn.Linear(d_model, n_inner, bias=False)
        self.norm = RMSNorm(self.d_head)
        self.out_proj = nn.Linear(n_inner, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.zeros_(self.rate_proj.bias)
        nn.init.constant_(self.rate_proj.bias[2 * self.n_heads :], _FIRST_DECAY_LOGIT)

    def rank_law(self, seq_len: int) -> int:
        # The recurrence has one per head; convolution, SiLU and gate act on each channel of its values.
        return self.n_heads * self.d_head

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> TitansState:
        shape = (batch_size, self.n_heads, self.d_head, self.d_head)
        S, Z = (torch.zeros(shape, dtype=accumulator(dtype), device=device) for _ in range(2))
        return TitansState(self.conv.empty_state(batch_size, dtype, device), S, Z)

    def mix(self, x: Tensor, state: TitansState, lengths: Tensor | None) -> tuple[Tensor, TitansState]:
        wide = state.S.dtype
        qkv, conv = self.conv.mix(self.qkv_proj(x), state.conv, lengths)
        q, k, v = rearrange(qkv.to(wide), "batch seq (part head d) -> part batch head seq d", part=3, d=self.d_head)
        q, k, v = delta_inputs(q, k, v, wide)
        rates = rearrange(self.rate_proj(x).to(wide), "batch seq (rate head) -> rate batch head seq", rate=3)
        step, momentum, decay = rates.unbind(0)
        step, log_momentum = coefficient(torch.sigmoid(step)), coefficient(F.logsigmoid(momentum))
        log_keep = coefficient(F.logsigmoid(-decay))
        y, S, Z = momentum_delta_rule(q, k, v, step, log_keep, log_momentum, state.S, state.Z, lengths)
        y = self.norm(y.transpose(1, 2)).flatten(2).to(x.dtype)
        return self.out_proj(sigmoid_gate(self.gate_proj(x), y)), TitansState(conv, S, Z)
