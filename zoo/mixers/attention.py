"""Causal softmax attention, with optional grouped heads, position encodings, sinks and convolution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from zoo.blocks import RMSNorm, ShortConv
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.attention import (
    alibi_slopes,
    attend,
    grow_cache,
    lag_matrix,
    settle_cache,
    shared_values_rank,
    softmax_freedom,
)
from zoo.ops.precision import Device, DType, widest
from zoo.ops.rope import complete_scaling, gain, require_pairs, rotate, turned_channels
from zoo.validate import head_width, require_choice, require_distance, require_positive, shared_heads

Position = Literal["none", "rope", "alibi", "relative"]
Sink = Literal["none", "constant", "position", "bos"]
QKNorm = Literal["none", "head", "all"]


class AttentionState(NamedTuple):
    keys: Tensor  # (batch, n_kv_heads, slots, d_head), right-aligned; rotated unless rope_scaling is dynamic
    values: Tensor  # (batch, n_kv_heads, slots, d_head)
    seen: Tensor  # (batch,) positions so far: the slots that the row fills
    conv: Any  # (batch, d_conv - 1, channels), or () without convolution


class Attention(SequenceMixer):
    """Causal softmax attention with n_heads heads.

        q, k, v = W_q x, W_k x, W_v x                              then a convolution, if d_conv is set
        q, k    = RMSNorm(q), RMSNorm(k)                           if qk_norm is set
        a_ij    = softmax over j <= i and the sink of (q_i . k_j / sqrt(d_head) + bias(i - j))
        y_i     = sum_h W_O^h sum_{j <= i} a_ij^h v_j^h

    n_kv_heads shares keys and values between groups of query heads. The ALiBi slopes are learned and start at the
    published values. If n_heads is not a power of two, these are the slopes of the next lower power of two, followed by
    every second slope of the next higher one.

    With rope_scaling of type dynamic, the RoPE frequencies depend on the sequence length once it exceeds the trained
    length; up to that length nothing is scaled. Beyond it, `forward` is not causal. A stream rotates all cached keys
    for the length at the end of each chunk, so a chunk's outputs equal `forward` on the sequence so far. Earlier
    outputs are not revised.

    Coefficients. Queries and keys after norm and rotation, and 1/rms of the norms. The values and their convolution are
    linear, so the offset is zero.

    State. Keys and values of all positions so far, 2 n_kv_heads d_head numbers per position, right-aligned in ragged
    batches; the length of each row so far; the convolution's last d_conv - 1 inputs. It grows with the sequence.

    Interaction rank. n_heads: each W_ij is a combination of the n_heads maps W_O^h W_V^h, and grouped heads count as
    query heads. With a value convolution up to n_heads * d_conv.

    Source. Vaswani et al. 1706.03762; RoPE of Su et al. 2104.09864, ALiBi of Press et al. 2108.12409.

    Args:
        d_model: width of input and output.
        n_heads: query heads.
        d_head: width of a head; default d_model / n_heads.
        n_kv_heads: key and value heads, shared by groups of query heads; default n_heads.
        position: position encoding: rope (Su et al. 2104.09864), alibi with learned slopes (Press et al. 2108.12409),
            relative (a learned bias per head and lag, up to max_seq_len), or none.
        sink: extra key with value zero and a learned logit per head: constant; position (one logit per position, up to
            max_seq_len); bos (placed before the first token, subject to the alibi or relative bias); or none.
        d_conv: width of a causal depthwise convolution on queries, keys and values; 0 for none.
        max_seq_len: longest sequence, for position relative and sink position.
        rope_base: base of the RoPE wavelengths; larger values rotate more slowly.
        rope_scaling: extension of RoPE beyond the trained length, `{"rope_type": ..., "factor": ...}` with the fields
            of a transformers config; types linear, llama3, yarn and dynamic (`zoo.ops.rope`). With dynamic, `forward`
            is not causal beyond the trained length.
        d_rope: rotary channels, the first ones of each head; default all.
        qk_norm: RMSNorm of queries and keys before RoPE (Henry et al. 2010.04245, in the form of Qwen3 and OLMo 2):
            head (each head separately, with shared weights), all (all heads together), or none.
        norm_eps: epsilon of these norms.
        d_out: width of the output; default d_model.

    Raises:
        ValueError: head counts that do not divide evenly, an odd d_head with rope, a d_rope that is odd, too wide or
            used without rope, an unknown choice, a bos sink without alibi or relative, a rope_scaling without rope, for
            only part of a head, or with unknown, missing or invalid fields.
    """

    undecayed = ("slopes", "relative_bias", "sink_logit")

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        d_head: int | None = None,
        n_kv_heads: int | None = None,
        position: Position = "none",
        sink: Sink = "none",
        d_conv: int = 0,
        max_seq_len: int = 2048,
        rope_base: float = 1e4,
        rope_scaling: Mapping[str, Any] | None = None,
        d_rope: int | None = None,
        qk_norm: QKNorm = "none",
        norm_eps: float = 1e-6,
        d_out: int | None = None,
    ) -> None:
        super().__init__(d_model, d_out)
        require_positive(n_heads=n_heads, d_head=d_head, n_kv_heads=n_kv_heads, max_seq_len=max_seq_len)
        require_choice("position", position, Position)
        require_choice("sink", sink, Sink)
        require_choice("qk_norm", qk_norm, QKNorm)
        self.n_heads = n_heads
        self.d_head = head_width(d_model, n_heads, d_head)
        self.n_kv_heads = shared_heads(n_heads, n_kv_heads)
        if position == "rope":
            require_pairs(self.d_head)
        elif rope_scaling is not None or d_rope is not None:
            raise ValueError(f"rope_scaling and d_rope need position rope, got {position!r}")
        self.d_rope = turned_channels(d_rope, self.d_head, rope_base)
        if rope_scaling is not None and self.d_rope < self.d_head:
            raise ValueError(f"rope_scaling needs d_rope = d_head = {self.d_head}, got {d_rope}")
        if sink == "bos" and position not in ("alibi", "relative"):
            raise ValueError(f"sink 'bos' needs position alibi or relative, got {position!r}; use 'constant' instead")
        self.position, self.sink, self.max_seq_len, self.rope_base = position, sink, max_seq_len, rope_base
        self.rope_scaling = None if rope_scaling is None else complete_scaling(rope_scaling, self.d_head)
        widths = (n_heads * self.d_head, self.n_kv_heads * self.d_head, self.n_kv_heads * self.d_head)
        self.widths = widths
        self.qkv_proj = nn.Linear(d_model, sum(widths), bias=False)
        self.conv = ShortConv(sum(widths), d_conv) if d_conv else None
        self.q_norm = self.k_norm = None
        if qk_norm != "none":
            sizes = (self.d_head, self.d_head) if qk_norm == "head" else widths[:2]
            self.q_norm, self.k_norm = (RMSNorm(size, norm_eps) for size in sizes)
        self.out_proj = nn.Linear(widths[0], self.d_out, bias=False)
        sinks = {"constant": (n_heads, 1), "position": (n_heads, max_seq_len), "bos": (n_heads, 1)}
        self.slopes = nn.Parameter(torch.empty(n_heads)) if position == "alibi" else None
        self.relative_bias = nn.Parameter(torch.empty(n_heads, max_seq_len + 1)) if position == "relative" else None
        self.sink_logit = nn.Parameter(torch.empty(sinks[sink])) if sink != "none" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            if self.slopes is not None:
                self.slopes.copy_(alibi_slopes(self.n_heads))
            for zero in (self.relative_bias, self.sink_logit):
                if zero is not None:
                    zero.zero_()

    def rank_law(self, seq_len: int) -> int:
        # With a convolution, a head has one operator per tap, and its rows need not sum to one.
        taps = 1 if self.conv is None else min(self.conv.weight.shape[1], self.d_head)
        # Heads that share values have maps W_O^h D_t W_V with the same W_V: they span at most d_model * d_head.
        free = softmax_freedom(seq_len, seq_len, normalized=self.conv is None and self.sink == "none")
        return shared_values_rank(self.n_heads * taps, self.n_kv_heads, self.d_model, self.d_head, free)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> AttentionState:
        slots = torch.zeros(batch_size, self.n_kv_heads, 0, self.d_head, dtype=dtype, device=device)
        seen = torch.zeros(batch_size, dtype=torch.int64, device=device)
        conv = () if self.conv is None else self.conv.empty_state(batch_size, dtype, device)
        return AttentionState(slots, slots.clone(), seen, conv)

    def mix(self, x: Tensor, state: AttentionState, lengths: Tensor | None) -> tuple[Tensor, AttentionState]:
        return self.mix_projected(self.qkv_proj(x), state, lengths)

    def mix_projected(
        self, qkv: Float[Tensor, "batch seq widths"], state: AttentionState, lengths: Tensor | None
    ) -> tuple[Tensor, AttentionState]:
        """Continue `mix` from the output of qkv_proj."""
        seq_len, past, conv = qkv.shape[1], state.keys.shape[2], state.conv
        self._check_length(past + seq_len)
        if self.conv is not None:
            qkv, conv = self.conv.mix(qkv, conv, lengths)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = qkv.split(self.widths, dim=2)
            q, k = (
                norm(t.unflatten(2, (-1, len(norm.weight)))).flatten(2)
                for t, norm in ((q, self.q_norm), (k, self.k_norm))
            )
            qkv = torch.cat((q, k, v), dim=2)
        heads = rearrange(qkv, "batch seq (head d) -> batch head seq d", d=self.d_head)
        q, k, v = heads.split((self.n_heads, self.n_kv_heads, self.n_kv_heads), dim=1)
        positions = state.seen.unsqueeze(1) + torch.arange(seq_len, device=qkv.device)
        seen = state.seen + (seq_len if lengths is None else lengths)
        if self.position == "rope":
            q = self._rotate(q, positions, seen)
            k = k if self._caches_unrotated else self._rotate(k, positions, seen)
        q, k = coefficient(q), coefficient(k)
        keys, values = grow_cache(state.keys, k), grow_cache(state.values, v)
        rotated = keys
        if self._caches_unrotated:
            slots = positions[:, :1] + torch.arange(-past, seq_len, device=qkv.device)
            rotated = self._rotate(keys, slots, seen)
        lag = lag_matrix(seq_len, past + seq_len, qkv.device).clamp(min=0)
        y = attend(q, rotated, values, state.seen, self._bias(lag), self._sink(positions))
        keys, values = (settle_cache(cache, lengths, seq_len) for cache in (keys, values))
        return self.out_proj(rearrange(y, "batch head seq d -> batch seq (head d)")), AttentionState(
            keys, values, seen, conv
        )

    @property
    def _caches_unrotated(self) -> bool:
        """Whether frequencies depend on the sequence length, so that each call rotates the cached keys again."""
        return self.rope_scaling is not None and self.rope_scaling["rope_type"] == "dynamic"

    def _rotate(self, t: Tensor, positions: Tensor, total: Tensor) -> Tensor:
        return rotate(t, positions, self.rope_base, self.rope_scaling, total, self.d_rope)

    @torch.no_grad()
    def highway_input(
        self, seq_len: int, distance: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, "seq d_model"] | None:
        """Return an input whose needle, `distance` before the end, takes all of the last query's attention.

        It does so in every head. The last query is random. At slot j the heads' content logits are R_j x_j, linear in
        x_j, with one row of R_j per head. The needle is the least-norm x_j whose logits beat every other slot and the
        sink, biases included, by 20 + log(seq_len). The other tokens are random with R_j x_j = 0. The needle has weight
        1 - 2e-9, and its gradient does not depend on the distance.

        Args:
            seq_len: length of the input.
            distance: distance of the needle from the last position, at least 1.
            generator: source of the random tokens, on the CPU; default seed 0.

        Returns:
            The input, in the dtype and on the device of the weights. None if no needle can serve every head: more heads
            than d_model, queries or keys that are normed or rank-deficient, or a convolution before them.

        Raises:
            ValueError: a distance outside 1..seq_len - 1, or seq_len beyond max_seq_len if that applies.
        """
        require_distance(seq_len, distance)
        self._check_length(seq_len)
        if self.conv is not None or self.q_norm is not None or self.n_heads > self.d_model:
            return None
        weight = self.qkv_proj.weight
        weight = weight.to(widest(weight.device))
        source = torch.Generator().manual_seed(0) if generator is None else generator
        x = torch.randn(seq_len, self.d_model, generator=source, dtype=torch.float64).to(weight)
        positions = torch.arange(seq_len, device=weight.device).unsqueeze(0)
        query_maps, key_maps, _ = (
            rearrange(t, "(head d) d_model -> head d d_model", d=self.d_head) for t in weight.split(self.widths)
        )
        q = (query_maps @ x[-1]).view(1, self.n_heads, 1, self.d_head)
        q = q.expand(-1, -1, seq_len, -1)
        if self.position == "rope":  # rotated by the lag to each key
            total = torch.full((1,), seq_len, device=weight.device)
            q = self._rotate(q, positions.flip(1), total) * gain(self.rope_scaling)
        key_maps = key_maps.repeat_interleave(self.n_heads // self.n_kv_heads, dim=0)
        to_logits = torch.einsum("hjc,hcd->jhd", q[0], key_maps) / self.d_head**0.5
        basis, triangle = torch.linalg.qr(to_logits.mT)  # (slot, d_model, head), (slot, head, head)
        x[:-1] -= torch.einsum("jdh,jeh,je->jd", basis[:-1], basis[:-1], x[:-1])
        bias, sink = self._bias(positions[0].flip(0)), self._sink(positions[:, -1:])
        rivals = to_logits.new_zeros(self.n_heads, seq_len) if bias is None else bias.to(weight.dtype)
        needle = seq_len - 1 - distance
        wanted = 20 + math.log(seq_len) - rivals[:, needle]
        rivals = rivals.index_fill(1, positions[0, needle], -torch.inf)
        rivals[:, -1] += to_logits[-1] @ x[-1]
        strongest = rivals.amax(1)
        if sink is not None:
            strongest = torch.maximum(strongest, sink[0, :, 0].to(weight.dtype))
        wanted = wanted + strongest
        x[needle] = (
            basis[needle] @ torch.linalg.solve_triangular(triangle[needle].mT, wanted[:, None], upper=False)[:, 0]
        )
        if not torch.allclose(to_logits[needle] @ x[needle], wanted, rtol=1e-6):
            return None
        return x.to(self.qkv_proj.weight.dtype)

    def _bias(self, lag: Tensor) -> Tensor | None:
        """Return the position bias of the logits at each lag, (n_heads, *lag.shape); None without a bias."""
        if self.slopes is not None:
            return -self.slopes.view(-1, *(1,) * lag.ndim) * lag
        if self.relative_bias is not None:
            return self.relative_bias[:, lag]
        return None

    def _sink(self, positions: Tensor) -> Tensor | None:
        """Return the logit of the sink, (1 or batch, n_heads, 1 or seq); None without a sink."""
        if self.sink_logit is None:
            return None
        if self.sink == "position":
            return self.sink_logit[:, positions].transpose(0, 1)
        logit = self.sink_logit.unsqueeze(0)
        bias = self._bias(positions + 1) if self.sink == "bos" else None
        return logit if bias is None else logit + bias.transpose(0, 1)

    def _check_length(self, n_slots: int) -> None:
        if (self.relative_bias is not None or self.sink == "position") and n_slots > self.max_seq_len:
            raise ValueError(f"sequence of {n_slots} positions exceeds max_seq_len={self.max_seq_len}")
