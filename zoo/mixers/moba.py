"""Mixture of block attention (MoBA): softmax attention over a few blocks of positions that each query selects."""

from __future__ import annotations

from typing import NamedTuple

import torch
from einops import rearrange
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.attention import grow_cache, settle_cache, shared_values_rank, softmax_freedom
from zoo.ops.blocks import attend_to_best_blocks, by_position
from zoo.ops.precision import Device, DType
from zoo.ops.rope import rotate, turned_channels
from zoo.validate import head_width, require_blocks, require_positive, shared_heads


class BlockAttentionState(NamedTuple):
    keys: Tensor  # (batch, n_kv_heads, slots, d_head), right-aligned, rotated
    values: Tensor  # (batch, n_kv_heads, slots, d_head)
    seen: Tensor  # (batch,) positions so far


class BlockAttention(SequenceMixer):
    """Causal softmax attention in which each query of each head attends to its own block and the best earlier ones.

        q, k   = rope(W_q x), rope(W_k x)
        s_ib   = q_i . mean of k_j over block b                   blocks of block_size positions, b before i's own
        B_i    = the own block of i, and the top_k - 1 blocks of highest s_ib
        y_i    = sum_h W_O^h sum_{j in B_i, j <= i} softmax_j(q_i . k_j / sqrt(d_head)) W_V^h x_j

    A sequence of at most top_k blocks is attended to in full. Pairs of a query and a block are sorted by block and
    computed as matrix products of equal size. The softmax takes time linear in the length, the block scores time
    proportional to length^2 / block_size. The last block may be short. On a CPU the layer takes about as long as full
    attention at 2,048 positions, and half of its time at 4,096. Keys are trained through the softmax. The selection has
    no gradient, and rounding may change it between blocks with nearly equal scores.

    Coefficients. Queries and keys, which determine the selected blocks. The values are linear, so the offset is zero.

    State. Keys and values of all positions so far, 2 n_kv_heads d_head numbers per position, and the length of each row
    so far. It grows with the sequence.

    Interaction rank. n_heads, however few blocks a query attends to: the selection sets some of a head's numbers to
    zero and does not change its map W_O^h W_V^h.

    Source. Lu et al. 2502.13189. As MoonshotAI/MoBA, commit 61e456b, moba/moba_naive.py, in a Llama layer of
    transformers. The authors decode with full attention; here a stream selects blocks as `forward` does.

    Args:
        d_model: width of input and output.
        n_heads: query heads.
        d_head: width of a head; default d_model / n_heads.
        n_kv_heads: key and value heads, shared by groups of query heads, which select blocks separately; default
            n_heads.
        block_size: positions of a block.
        top_k: blocks that a query attends to, including its own.
        d_rope: rotary channels of queries and keys, an even number; 0 for none; default all but an odd last one.
        rope_base: base of the RoPE wavelengths; larger values rotate more slowly.

    Raises:
        ValueError: non-positive sizes, head counts that do not divide evenly, a d_rope that is odd or exceeds d_head, a
            rope_base of at most 1.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        d_head: int | None = None,
        n_kv_heads: int | None = None,
        block_size: int = 64,
        top_k: int = 3,
        d_rope: int | None = None,
        rope_base: float = 1e4,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, n_kv_heads=n_kv_heads, block_size=block_size, top_k=top_k)
        self.n_heads, self.block_size, self.top_k = n_heads, block_size, top_k
        self.d_head = head_width(d_model, n_heads, d_head)
        self.n_kv_heads = shared_heads(n_heads, n_kv_heads)
        self.d_rope = turned_channels(d_rope, self.d_head, rope_base)
        self.rope_base = rope_base
        self.widths = (n_heads * self.d_head, self.n_kv_heads * self.d_head, self.n_kv_heads * self.d_head)
        self.qkv_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.out_proj = nn.Linear(self.widths[0], d_model, bias=False)
        self.reset_parameters()

    def rank_law(self, seq_len: int) -> int:
        free = softmax_freedom(seq_len, seq_len, normalized=True)
        if self.top_k == 1:  # every head attends to the own block only
            whole, rest = divmod(seq_len, self.block_size)
            pairs = whole * self.block_size * (self.block_size + 1) // 2 + rest * (rest + 1) // 2
            free = pairs - seq_len + 1
        return shared_values_rank(self.n_heads, self.n_kv_heads, self.d_model, self.d_head, free)

    def require_choice(self, seq_len: int) -> None:
        require_blocks(seq_len, self.block_size, self.top_k)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> BlockAttentionState:
        slots = torch.zeros(batch_size, self.n_kv_heads, 0, self.d_head, dtype=dtype, device=device)
        return BlockAttentionState(slots, slots.clone(), torch.zeros(batch_size, dtype=torch.int64, device=device))

    def mix(self, x: Tensor, state: BlockAttentionState, lengths: Tensor | None) -> tuple[Tensor, BlockAttentionState]:
        seq_len = x.shape[1]
        heads = rearrange(self.qkv_proj(x), "batch seq (head d) -> batch head seq d", d=self.d_head)
        qk, v = heads.split((self.n_heads + self.n_kv_heads, self.n_kv_heads), dim=1)
        positions = state.seen.unsqueeze(1) + torch.arange(seq_len, device=x.device)
        qk = coefficient(rotate(qk, positions, self.rope_base, d_rope=self.d_rope))
        q, k = qk.split((self.n_heads, self.n_kv_heads), dim=1)
        keys, values = grow_cache(state.keys, k), grow_cache(state.values, v)
        k, v = (by_position(cache, state.seen, seq_len) for cache in (keys, values))
        y = attend_to_best_blocks(q, k, v, positions, self.block_size, self.top_k)
        keys, values = (settle_cache(cache, lengths, seq_len) for cache in (keys, values))
        seen = state.seen + (seq_len if lengths is None else lengths)
        y = self.out_proj(rearrange(y, "batch head seq d -> batch seq (head d)"))
        return y, BlockAttentionState(keys, values, seen)
