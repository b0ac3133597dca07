"""Multi-head latent attention: softmax attention that caches one small latent vector per position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.blocks import RMSNorm
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.modules import read_weight
from zoo.ops.attention import attend, grow_cache, settle_cache, softmax_freedom
from zoo.ops.precision import Device, DType
from zoo.ops.rope import complete_scaling, rotate, turned_channels
from zoo.validate import head_width, require_choice, require_positive

NORM_EPS = 1e-6
Position = Literal["rope", "none"]


class LatentState(NamedTuple):
    latents: Tensor  # (batch, 1, slots, d_latent + d_rope), right-aligned: normed latents, then rotated rope keys
    seen: Tensor  # (batch,) positions so far


class LatentAttention(SequenceMixer):
    """Causal softmax attention that caches one small latent vector per position instead of its keys and values.

        c_j    = RMSNorm(W_c x_j)                                   d_latent numbers for all heads
        k_j^h  = (W_K^h c_j, rope(W_r x_j))                         the rope key is shared by the heads
        q_i^h  = (W_Q^h x_i, rope(W_R^h x_i))                       with d_query, RMSNorm(W_q x_i) in place of x_i
        y_i    = sum_h W_O^h sum_{j <= i} softmax_j(q_i^h . k_j^h / sqrt(d_head + d_rope)) W_V^h c_j

    Keys and values are computed from the cached latents. A chunk that continues a state and has at most d_head
    positions attends in the latent space instead: it maps its queries there, W_K^hT q, and maps the mixed latents to
    values afterwards. The latents are then the keys and values of all heads, and no key or value of a past position is
    computed again.

    Coefficients. Queries and keys; 1/rms of both norms. The values are linear, so the offset is zero.

    State. The normed latent and the rotated rope key of all positions so far, d_latent + d_rope numbers per position
    for any number of heads, and the length of each row so far. It grows with the sequence.

    Interaction rank. n_heads, although the cache holds one vector per position: the maps W_O^h W_V^h W_c differ between
    heads. All heads read the input through W_c, so the rank is at most d_model d_latent. The norm scales each source
    position, and so only a head's number for the pair.

    Source. DeepSeek-V2 2405.04434, section 2.1; DeepSeek-V3 2412.19437. As DeepseekV3Attention of transformers 5.23.0,
    models/deepseek_v3/modeling_deepseek_v3.py, whose RoPE pairs neighbouring channels: the same layer up to the order
    of channels. position none leaves the shared channels unrotated, as Kimi Linear does (2510.26692).

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of the unrotated part of queries and keys, and of values; default d_model / n_heads.
        d_latent: width of the latents; default half of d_model.
        d_rope: rotary channels of queries and of the shared key, an even number; 0 for none; default half of d_head, at
            least 2.
        d_query: width of a normed latent from which queries are computed; default none, queries are computed from x.
        rope_base: base of the RoPE wavelengths; larger values rotate more slowly.
        rope_scaling: as in `attention`, except type dynamic, which would need cached keys to be rotated again.
        position: rope, or none to leave the shared channels unrotated.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, a latent wider than d_model, an odd
            d_rope, a rope_base of at most 1, rope_scaling of type dynamic or without rope.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        d_head: int | None = None,
        d_latent: int | None = None,
        d_rope: int | None = None,
        d_query: int | None = None,
        rope_base: float = 1e4,
        rope_scaling: Mapping[str, Any] | None = None,
        position: Position = "rope",
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, d_latent=d_latent, d_query=d_query)
        for name, width in (("d_latent", d_latent), ("d_query", d_query)):
            if width is not None and width > d_model:
                raise ValueError(f"{name} must be at most d_model={d_model}, got {width}")
        self.n_heads, self.d_query, self.rope_base = n_heads, d_query, rope_base
        self.d_head = head_width(d_model, n_heads, d_head)
        self.d_latent = d_latent or max(1, d_model // 2)
        self.d_rope = max(2, self.d_head // 4 * 2) if d_rope is None else d_rope
        if isinstance(d_rope, bool) or not isinstance(self.d_rope, int) or self.d_rope < 0 or self.d_rope % 2:
            raise ValueError(f"d_rope must be an even number of at least 0, got {d_rope!r}")
        turned_channels(self.d_rope, self.d_rope, rope_base)
        require_choice("position", position, Position)
        self.position = position
        self.rope_scaling = None if rope_scaling is None else complete_scaling(rope_scaling, self.d_rope)
        if self.rope_scaling is not None and (position == "none" or self.rope_scaling["rope_type"] == "dynamic"):
            raise ValueError(f"rope_scaling needs position rope and a type other than dynamic, got {rope_scaling}")
        self.query_down = None if d_query is None else nn.Linear(d_model, d_query, bias=False)
        self.query_norm = None if d_query is None else RMSNorm(d_query, NORM_EPS)
        self.query_proj = nn.Linear(d_query or d_model, n_heads * (self.d_head + self.d_rope), bias=False)
        self.latent_proj = nn.Linear(d_model, self.d_latent + self.d_rope, bias=False)
        self.latent_norm = RMSNorm(self.d_latent, NORM_EPS)
        self.kv_proj = nn.Linear(self.d_latent, 2 * n_heads * self.d_head, bias=False)
        self.out_proj = nn.Linear(n_heads * self.d_head, d_model, bias=False)
        self.reset_parameters()

    def rank_law(self, seq_len: int) -> int:
        free = softmax_freedom(seq_len, seq_len, normalized=True)
        return min(self.n_heads, self.d_model * self.d_latent, free)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> LatentState:
        latents = torch.zeros(batch_size, 1, 0, self.d_latent + self.d_rope, dtype=dtype, device=device)
        return LatentState(latents, torch.zeros(batch_size, dtype=torch.int64, device=device))

    def mix(self, x: Tensor, state: LatentState, lengths: Tensor | None) -> tuple[Tensor, LatentState]:
        seq_len, past = x.shape[1], state.latents.shape[2]
        positions = state.seen.unsqueeze(1) + torch.arange(seq_len, device=x.device)
        q, c, *rope = self._project(x, self._query_input(x))
        q_rope, k_rope = self._turn(positions, *rope)
        latents = grow_cache(state.latents, torch.cat((c, k_rope), dim=3))
        if past and seq_len <= self.d_head:
            q = coefficient(self._into_latents(q, q_rope))
            y = self._out_of_latents(attend(q, coefficient(latents), latents, state.seen))
        else:
            q, k, v = self._heads(q, q_rope, latents)
            y = attend(q, k, v, state.seen)[..., : self.d_head]
        seen = state.seen + (seq_len if lengths is None else lengths)
        y = self.out_proj(rearrange(y, "batch head seq d -> batch seq (head d)"))
        return y, LatentState(settle_cache(latents, lengths, seq_len), seen)

    def _query_input(self, x: Tensor) -> Tensor:
        """Return the input of the query projection: x, or its normed latent if d_query is set."""
        if self.query_down is None or self.query_norm is None:
            return x
        return self.query_norm(self.query_down(x))

    def _project(self, x: Tensor, query_input: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return queries, normed latents, and the channels of queries and keys that RoPE will rotate."""
        q = rearrange(self.query_proj(query_input), "batch seq (head d) -> batch head seq d", head=self.n_heads)
        q, q_rope = q.split((self.d_head, self.d_rope), dim=3)
        c, k_rope = self.latent_proj(x).unsqueeze(1).split((self.d_latent, self.d_rope), dim=3)
        return q, self.latent_norm(c), q_rope, k_rope

    def _turn(self, positions: Tensor, *heads: Tensor) -> tuple[Tensor, ...]:
        """Rotate the channels of all heads in one call; return them unchanged without RoPE."""
        if self.position == "none" or not self.d_rope:
            return heads
        turned = rotate(torch.cat(heads, dim=1), positions, self.rope_base, self.rope_scaling)
        return turned.split([t.shape[1] for t in heads], dim=1)

    def _heads(self, q: Tensor, q_rope: Tensor, latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the queries, keys and values of each head, with values padded to the width of the keys."""
        c, k_rope = latents.split((self.d_latent, self.d_rope), dim=3)
        kv = rearrange(self.kv_proj(c), "batch 1 slot (head d) -> batch head slot d", head=self.n_heads)
        k, v = kv.split(self.d_head, dim=3)
        k = torch.cat((k, k_rope.expand(-1, self.n_heads, -1, -1)), dim=3)
        v = F.pad(v, (0, self.d_rope))  # torch's fused kernel needs values as wide as the keys
        return coefficient(torch.cat((q, q_rope), dim=3)), coefficient(k), v

    def _into_latents(self, q: Tensor, q_rope: Tensor) -> Tensor:
        """Map queries into the latent space, where the cached latents are the keys and values of all heads."""
        q = torch.cat((q @ self._latent_maps(q)[0], q_rope), dim=3)
        return q * (q.shape[3] / (self.d_head + self.d_rope)) ** 0.5  # attend divides by the root of the wider width

    def _out_of_latents(self, mixed: Tensor) -> Tensor:
        """Map mixed latents to values."""
        return mixed[..., : self.d_latent] @ self._latent_maps(mixed)[1].mT

    def _latent_maps(self, like: Tensor) -> Tensor:
        return rearrange(
            read_weight(self.kv_proj), "(head part d) latent -> part head d latent", part=2, head=self.n_heads
        ).to(like.dtype)
