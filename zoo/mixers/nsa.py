"""Native sparse attention: a gated sum of attention to block means, to the best blocks, and within a window."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.attention import grow_cache, settle_cache, shared_values_rank
from zoo.ops.blocks import attend_to_means_and_blocks, by_position
from zoo.ops.precision import Device, DType
from zoo.ops.rope import rotate, turned_channels
from zoo.ops.sliding import sliding_attend
from zoo.validate import head_width, require_blocks, require_positive, shared_heads

N_FORCED = 3  # blocks that are always selected: the first, the own one and the one before it


class NativeSparseState(NamedTuple):
    keys: Tensor  # (batch, n_kv_heads, slots, d_head), right-aligned, rotated
    values: Tensor  # (batch, n_kv_heads, slots, d_head)
    seen: Tensor  # (batch,) positions so far


class NativeSparseAttention(SequenceMixer):
    """Causal attention at three scales: block means, a few whole blocks selected through them, and a sliding window.

        q, k   = rope(W_q x), rope(W_k x)
        c_i    = softmax attention to the mean keys and mean values of all whole blocks up to i
        f_i    = softmax attention to the positions of top_k blocks up to i: the first, i's own and the one before it,
                 and those with the largest weights in c_i, on average over the heads that share keys
        w_i    = softmax attention to the last `window` positions
        y_i    = out_proj(g^c_i c_i + g^f_i f_i + g^w_i w_i)         g = sigmoid(W_g x_i), three numbers for each head

    Before the end of the first block c is zero. The last block may be short. f attends to a sequence of at most top_k
    blocks in full. Pairs of a query and a block are sorted by block and computed as matrix products of equal size, so f
    and w take time linear in the length. The time and the backward memory of c are proportional to length^2 /
    block_size. Keys are trained through the three softmaxes. The selection has no gradient, and rounding may change it
    between blocks with nearly equal scores.

    Coefficients. Queries and keys, which determine the selected blocks, and the gates. The values and their means are
    linear, so the offset is zero.

    State. Keys and values of all positions so far, 2 n_kv_heads d_head numbers per position, and the length of each row
    so far. It grows with the sequence.

    Interaction rank. n_heads, not 3 n_heads: the three branches share their values, so a head's gated sum is one number
    per pair times one map W_O^h W_V^h. With separate values for each branch it would be 3 n_heads.

    Source. Yuan et al. 2502.11089. As flash-linear-attention, commit bc3b101, fla/layers/nsa.py and
    fla/ops/nsa/naive.py: blocks are compressed by their mean, without overlap, and the branches share keys and values.

    Not here. The paper's learned compression of a block, and its separate keys and values for each branch.

    Args:
        d_model: width of input and output.
        n_heads: query heads.
        d_head: width of a head; default d_model / n_heads.
        n_kv_heads: key and value heads, shared by groups of query heads, which also share their selected blocks;
            default n_heads.
        block_size: positions of a block.
        top_k: blocks that a query attends to in full, at least 3.
        window: positions of the window.
        d_rope: rotary channels of queries and keys, an even number; 0 for none; default all but an odd last one.
        rope_base: base of the RoPE wavelengths; larger values rotate more slowly.

    Raises:
        ValueError: non-positive sizes, a top_k below 3, head counts that do not divide evenly, a d_rope that is odd or
            exceeds d_head, a rope_base of at most 1.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        d_head: int | None = None,
        n_kv_heads: int | None = None,
        block_size: int = 32,
        top_k: int = 4,
        window: int = 64,
        d_rope: int | None = None,
        rope_base: float = 1e4,
    ) -> None:
        super().__init__(d_model)
        sizes = {"n_kv_heads": n_kv_heads, "block_size": block_size, "top_k": top_k, "window": window}
        require_positive(n_heads=n_heads, d_head=d_head, **sizes)
        if top_k < N_FORCED:
            raise ValueError(f"top_k must be at least {N_FORCED}, the blocks that are always chosen, got {top_k}")
        self.n_heads, self.block_size, self.top_k, self.window = n_heads, block_size, top_k, window
        self.d_head = head_width(d_model, n_heads, d_head)
        self.n_kv_heads = shared_heads(n_heads, n_kv_heads)
        self.d_rope = turned_channels(d_rope, self.d_head, rope_base)
        self.rope_base = rope_base
        self.widths = (n_heads * self.d_head, self.n_kv_heads * self.d_head, self.n_kv_heads * self.d_head)
        self.qkv_proj = nn.Linear(d_model, sum(self.widths), bias=False)
        self.gate_proj = nn.Linear(d_model, 3 * n_heads, bias=False)
        self.out_proj = nn.Linear(self.widths[0], d_model, bias=False)
        self.reset_parameters()

    def rank_law(self, seq_len: int) -> int:
        free = seq_len * (seq_len + 1) // 2
        return shared_values_rank(self.n_heads, self.n_kv_heads, self.d_model, self.d_head, free)

    def require_choice(self, seq_len: int) -> None:
        require_blocks(seq_len, self.block_size, self.top_k)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> NativeSparseState:
        slots = torch.zeros(batch_size, self.n_kv_heads, 0, self.d_head, dtype=dtype, device=device)
        return NativeSparseState(slots, slots.clone(), torch.zeros(batch_size, dtype=torch.int64, device=device))

    def mix(self, x: Tensor, state: NativeSparseState, lengths: Tensor | None) -> tuple[Tensor, NativeSparseState]:
        seq_len, past = x.shape[1], state.keys.shape[2]
        heads = rearrange(self.qkv_proj(x), "batch seq (head d) -> batch head seq d", d=self.d_head)
        qk, v = heads.split((self.n_heads + self.n_kv_heads, self.n_kv_heads), dim=1)
        gates = rearrange(self.gate_proj(x), "batch seq (head branch) -> batch head seq branch", branch=3)
        positions = state.seen.unsqueeze(1) + torch.arange(seq_len, device=x.device)
        qk = coefficient(rotate(qk, positions, self.rope_base, d_rope=self.d_rope))
        q, k = qk.split((self.n_heads, self.n_kv_heads), dim=1)
        gates = coefficient(torch.sigmoid(gates))
        keys, values = grow_cache(state.keys, k), grow_cache(state.values, v)
        k, v = (by_position(cache, state.seen, seq_len) for cache in (keys, values))
        y = attend_to_means_and_blocks(q, k, v, gates[..., :2], positions, self.block_size, self.top_k)
        k, v = (F.pad(cache, (0, 0, self.window - 1 - past, 0)) for cache in (keys, values))  # pads, or cuts
        y = torch.addcmul(y, gates[..., 2:], sliding_attend(q, k, v, state.seen))
        keys, values = (settle_cache(cache, lengths, seq_len) for cache in (keys, values))
        seen = state.seen + (seq_len if lengths is None else lengths)
        y = self.out_proj(rearrange(y, "batch head seq d -> batch seq (head d)"))
        return y, NativeSparseState(keys, values, seen)
