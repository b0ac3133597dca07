"""Gated slot attention: softmax attention over a fixed number of slots that decay as they are written."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import silu
from zoo.ops.dplr import dplr
from zoo.ops.precision import Device, DType, accumulator
from zoo.ops.ssd import ssd
from zoo.ops.time import without_padding
from zoo.validate import head_width, require_positive

_TEMPERATURE = 8  # decays are sigmoids to the power 1/8, so near one at initialisation


class GatedSlotAttentionState(NamedTuple):
    keys: Tensor  # (batch, n_heads, d_head, n_slots)
    values: Tensor  # (batch, n_heads, n_slots, d_head)
    carried = ("keys", "values")


class GatedSlotAttention(SequenceMixer):
    """Softmax attention over n_slots slots instead of all positions; a slot forgets as much as is written to it.

        q, k, v = silu(W x); a_t = sigmoid(W_a x_t)^(1/8)              per head n_slots decays
        K_t = K_{t-1} diag(a_t) + k_t (1 - a_t)^T                      a key for each slot
        V_t = diag(a_t) V_{t-1} + (1 - a_t) v_t^T                      a value for each slot
        y   = out_proj(RMSNorm(silu(V_t^T softmax(K_t^T q_t))))

    These are two linear recurrences with a softmax between them. The number of slots is fixed, so the layer runs in
    linear time, and the softmax lets it select a single slot, which the query of a linear recurrence cannot. Both
    recurrences have a decay per slot: at 1,024 positions on a CPU, training runs at less than half the speed of
    `gated_delta_net`.

    Coefficients. softmax(K^T q), a, the sigmoid factors of both SiLUs on values, 1/rms. The offset is zero.

    State. Twice n_heads x d_head x n_slots numbers, at least float32. It does not grow.

    Interaction rank. Between the values and the slots' outputs: n_heads, since a head's W_ij is the number
    softmax(K_i^T q_i) . (decayed 1 - a_j) times W_O^h W_V^h, for any number of slots. The SiLUs of values and outputs
    act on channels: min(n_heads * d_head, d_model^2) for generic input.

    Source. Zhang et al. 2409.07146; flash-linear-attention, commit bc3b101, fla/layers/gsa.py and fla/ops/gsa/naive.py.
    As there, logits have no factor 1 / sqrt(d_head), and the norm is over all heads together.

    Not here. Keys shared by groups of heads, and the short convolution, which is off by default in their code.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of a head; default d_model / n_heads.
        n_slots: slots of a head; default d_head.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model.
    """

    def __init__(self, d_model: int, n_heads: int = 2, d_head: int | None = None, n_slots: int | None = None) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, n_slots=n_slots)
        self.n_heads = n_heads
        self.d_head = head_width(d_model, n_heads, d_head)
        self.n_slots = n_slots or self.d_head
        n_inner = n_heads * self.d_head
        self.qkv_proj = nn.Linear(d_model, 3 * n_inner, bias=False)
        self.decay_proj = nn.Linear(d_model, n_heads * self.n_slots, bias=False)
        self.norm = RMSNorm(n_inner)
        self.out_proj = nn.Linear(n_inner, d_model, bias=False)

    def rank_law(self, seq_len: int) -> int:
        # The recurrences have one per head; SiLU acts on each channel of values and of outputs.
        return self.n_heads * self.d_head

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> GatedSlotAttentionState:
        shape = batch_size, self.n_heads, self.d_head, self.n_slots
        keys = torch.zeros(shape, dtype=accumulator(dtype), device=device)
        return GatedSlotAttentionState(keys, keys.mT.clone())

    def mix(
        self, x: Tensor, state: GatedSlotAttentionState, lengths: Tensor | None
    ) -> tuple[Tensor, GatedSlotAttentionState]:
        wide = state.keys.dtype
        q, k, v = rearrange(
            self.qkv_proj(x).to(wide), "batch seq (part head d) -> part batch head seq d", part=3, d=self.d_head
        )
        log_decay = F.logsigmoid(self.decay_proj(x).to(wide)) / _TEMPERATURE
        log_decay = rearrange(log_decay, "batch seq (head slot) -> batch head seq slot", head=self.n_heads)
        (log_decay,) = without_padding(lengths, log_decay)  # padding writes nothing and forgets nothing
        written = -torch.expm1(log_decay)
        # `ssd` treats each slot as a head with a value of width one; the slots of a head share its queries and keys.
        logits, keys = ssd(
            F.silu(q),
            F.silu(k),
            rearrange(written, "batch head seq slot -> batch (head slot) seq 1"),
            rearrange(log_decay, "batch head seq slot -> batch (head slot) seq"),
            rearrange(state.keys, "batch head d slot -> batch (head slot) d 1"),
        )
        weights = rearrange(logits, "batch (head slot) seq 1 -> batch head seq slot", head=self.n_heads).softmax(3)
        written, log_decay, weights = coefficient(written), coefficient(log_decay), coefficient(weights)
        y, values = dplr(weights, written, silu(v), log_decay, None, None, state.values)
        y = rearrange(silu(y), "batch head seq d -> batch seq (head d)").to(x.dtype)
        keys = rearrange(keys, "batch (head slot) d 1 -> batch head d slot", head=self.n_heads)
        return self.out_proj(self.norm(y)), GatedSlotAttentionState(keys, values)
