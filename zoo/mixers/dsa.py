"""DeepSeek sparse attention: latent attention to the few positions that a cheap index selects."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.compiler import is_exporting

from zoo.coefficient import active, coefficient
from zoo.mixers.mla import LatentAttention
from zoo.ops.attention import attend, grow_cache, settle_cache, softmax_freedom
from zoo.ops.indexer import attend_to_best, divergence_from_all
from zoo.ops.precision import Device, DType
from zoo.ops.time import valid_positions
from zoo.validate import require_positive


class SparseLatentState(NamedTuple):
    latents: Tensor  # (batch, 1, slots, d_latent + d_rope), right-aligned: normed latents, then rotated rope keys
    index_keys: Tensor  # (batch, 1, slots, d_index), right-aligned
    seen: Tensor  # (batch,) positions so far


class SparseLatentAttention(LatentAttention):
    """Latent attention: each query attends to the top_k positions of highest index, the same in all heads.

        a_in, b_j, w_i = rope(W_a^n x_i), rope(LayerNorm(W_b x_j)), W_w x_i      n = 1, ..., n_index_heads
        I_ij   = sum_n w_in relu(a_in . b_j) / sqrt(n_index_heads d_index)
        S_i    = the top_k positions j <= i with the highest I_ij                among equals, the latest
        y_i    = sum_h W_O^h sum_{j in S_i} softmax_j(q_i^h . k_j^h / sqrt(d_head + d_rope)) W_V^h c_j

    c, q and k are as in `mla`; with d_query, the a_in are computed from the normed latent of the queries. A sequence of
    at most top_k positions is attended to in full, and the layer equals `mla`. Otherwise queries attend in the latent
    space, where a position is one vector for all heads.

    The softmax takes time linear in the length. The index takes n_index_heads d_index products per pair of positions,
    so its time is quadratic. On a CPU at d_model 256, a forward pass without gradients takes as long as `attention` at
    4,096 positions and three quarters of its time at 8,192. A training step takes 1.6 and 1.15 times as long as
    `attention` at these lengths: the backward pass gathers the selected positions again, and the index is trained.
    torch's fused attention in `mla` is faster at 4,096.

    Training. The selection has no gradient, so the output trains everything but the index. The index has its own loss,
    `own_loss`: the mean over positions i of KL(p_i || softmax(I_i)) over S_i, where the target p_i is the mean of the
    heads' weights. The target and the input of the index are detached. `SequenceModule` adds `own_loss` to the training
    loss and logs it as `train/own_loss`; a custom training loop must add `layer.own_loss` itself. During learning rate
    warm-up (`warmup_steps`), `SequenceModule` sets `layer.warming_up`: training then attends to all positions, and the
    divergence covers all of them, so the first selection is not random. DeepSeek-V3.2 has the same two stages, but its
    first stage trains the index alone.

    Coefficients. Queries and keys; a, b and w, which determine the selection; 1/rms of the norms. The values are
    linear, so the offset is zero.

    State. The normed latent, the rotated rope key and the index key b of all positions so far, d_latent + d_rope +
    d_index numbers per position, and the length of each row so far. It grows with the sequence.

    Interaction rank. n_heads, as in `mla`: the selection sets some of a head's numbers to zero and does not change its
    map. With top_k 1, every head has weight 1 at the same position, and the rank is 1.

    Source. DeepSeek-V3.2 2512.02556, section 2.1. As DeepseekV32Attention of transformers 5.23.0,
    models/deepseek_v32/modeling_deepseek_v32.py, which does not specify the order of positions with equal index and
    does not train the index.

    Not here. The Hadamard transform and the 8-bit numbers of the authors' index kernel.

    Args:
        d_model: width of input and output.
        n_heads: heads.
        d_head: width of the unrotated part of queries and keys, and of values; default d_model / n_heads.
        d_latent: width of the latents; default half of d_model.
        d_rope: rotary channels of queries, of the shared key and of the index, an even number; 0 for none; default half
            of d_head, at least 2.
        d_query: width of a normed latent from which queries are computed; default none, queries are computed from x.
        rope_base: base of the RoPE wavelengths; larger values rotate more slowly.
        n_index_heads: heads of the index.
        d_index: width of the index queries and keys, at least d_rope; default the larger of d_head / 2 and d_rope.
        top_k: positions that a query attends to.

    Raises:
        ValueError: non-positive sizes, n_heads that does not divide d_model, a latent wider than d_model, an odd
            d_rope, a d_index below d_rope, a rope_base of at most 1.
    """

    apart = (
        "index_query_proj.weight",
        "index_key_proj.weight",
        "index_norm.weight",
        "index_norm.bias",
        "index_weight_proj.weight",
    )

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        d_head: int | None = None,
        d_latent: int | None = None,
        d_rope: int | None = None,
        d_query: int | None = None,
        rope_base: float = 1e4,
        n_index_heads: int = 2,
        d_index: int | None = None,
        top_k: int = 64,
    ) -> None:
        require_positive(n_index_heads=n_index_heads, d_index=d_index, top_k=top_k)
        super().__init__(d_model, n_heads, d_head, d_latent, d_rope, d_query, rope_base)
        self.n_index_heads, self.top_k = n_index_heads, top_k
        self.d_index = d_index or max(self.d_head // 2, self.d_rope, 1)
        if self.d_index < self.d_rope:
            raise ValueError(f"d_index must be at least d_rope={self.d_rope}, got {d_index}")
        self.index_query_proj = nn.Linear(d_query or d_model, n_index_heads * self.d_index, bias=False)
        self.index_key_proj = nn.Linear(d_model, self.d_index, bias=False)
        self.index_norm = nn.LayerNorm(self.d_index, eps=1e-6)
        self.index_weight_proj = nn.Linear(d_model, n_index_heads, bias=False)
        self.reset_parameters()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"own_loss": None}  # a tensor with a graph cannot be copied

    def rank_law(self, seq_len: int) -> int:
        free = softmax_freedom(seq_len, self.top_k, normalized=True)
        return min(self.n_heads, self.d_model * self.d_latent, free)

    def require_choice(self, seq_len: int) -> None:
        if self.top_k > seq_len:
            raise ValueError(f"top_k={self.top_k} is more than the {seq_len} positions of a sequence")

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> Any:  # a SparseLatentState
        latents, seen = super().empty_state(batch_size, dtype, device)
        return SparseLatentState(latents, latents.new_zeros(batch_size, 1, 0, self.d_index), seen)

    def mix(self, x: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        seq_len = x.shape[1]
        positions = state.seen.unsqueeze(1) + torch.arange(seq_len, device=x.device)
        query_input = self._query_input(x)
        q, c, q_rope, k_rope = self._project(x, query_input)
        a = rearrange(self.index_query_proj(query_input.detach()), "batch seq (n d) -> batch n seq d", d=self.d_index)
        b = self.index_norm(self.index_key_proj(x.detach())).unsqueeze(1).to(a.dtype)
        w = self.index_weight_proj(x.detach()) * (self.n_index_heads * self.d_index) ** -0.5
        (a_rope, a), (b_rope, b) = (t.split((self.d_rope, self.d_index - self.d_rope), dim=3) for t in (a, b))
        q_rope, k_rope, a_rope, b_rope = self._turn(positions, q_rope, k_rope, a_rope, b_rope)
        latents = grow_cache(state.latents, torch.cat((c, k_rope), dim=3))
        index_keys = grow_cache(state.index_keys, torch.cat((b_rope, b), dim=3))
        a = torch.cat((a_rope, a), dim=3).transpose(1, 2)
        a, b, w = (coefficient(t) for t in (a, index_keys.squeeze(1), w))
        learns = self.training and torch.is_grad_enabled() and not active()
        if not is_exporting() and (self.top_k >= latents.shape[2] or (self.training and self.warming_up)):
            q, k, v = self._heads(q, q_rope, latents)
            y = attend(q, k, v, state.seen)[..., : self.d_head]
            divergence = divergence_from_all(q, k, a, b, w, state.seen) if learns else None
        else:
            q, k = coefficient(self._into_latents(q, q_rope)), coefficient(latents)
            y, divergence = attend_to_best(q, k, latents, a, b, w, state.seen, self.top_k, compare=learns)
            y = self._out_of_latents(y)
        self.own_loss = _mean_of_valid(divergence, lengths) if learns and divergence is not None else None
        index_keys = index_keys if learns else index_keys.detach()  # the own loss of later chunks trains them too
        latents, index_keys = (settle_cache(cache, lengths, seq_len) for cache in (latents, index_keys))
        seen = state.seen + (seq_len if lengths is None else lengths)
        y = self.out_proj(rearrange(y, "batch head seq d -> batch seq (head d)"))
        return y, SparseLatentState(latents, index_keys, seen)


def _mean_of_valid(t: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the mean over the valid positions of all rows."""
    if lengths is None:
        return t.mean()
    valid = valid_positions(lengths, t.shape[1])
    return (t * valid).sum() / valid.sum().clamp(min=1)
