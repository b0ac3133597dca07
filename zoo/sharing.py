"""Stacks whose layers share a transformer's weights (Zamba2) or one cache of keys and values (YOCO)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from zoo.blocks import ResidualBlock, RMSNorm, Stack, SwiGLU
from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.mixers.attention import Attention, AttentionState
from zoo.ops.activation import gelu_gate
from zoo.ops.attention import attend, grow_cache, settle_cache
from zoo.ops.precision import Device, DType
from zoo.ops.rope import require_pairs, rotate, turned_channels
from zoo.validate import head_width, require_positive, shared_heads


class LowRank(nn.Module):
    """Low-rank map U_p D_p x for each part p of the output; the parts are concatenated (LoRA, Hu et al. 2106.09685)."""

    def __init__(self, d_model: int, lora_rank: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.lora_rank = lora_rank
        self.down_proj = nn.Linear(d_model, len(widths) * lora_rank, bias=False)
        self.up_proj = nn.ModuleList(nn.Linear(lora_rank, width, bias=False) for width in widths)

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_out"]:
        parts = self.down_proj(x).split(self.lora_rank, dim=-1)
        return torch.cat([up(part) for up, part in zip(self.up_proj, parts, strict=True)], dim=-1)


class GELUGate(SwiGLU):
    """W_down (gelu(W_gate x) * W_up x); coefficient: gelu(W_gate x)."""

    gate = staticmethod(partial(gelu_gate, approximate="none"))


class _Transformer(nn.Module):
    """The shared weights."""

    def __init__(self, d_model: int, d_channel: int, norm_eps: float, attention: Mapping[str, Any]) -> None:
        super().__init__()
        self.input_norm = RMSNorm(2 * d_model, norm_eps)
        self.attention = Attention.create(2 * d_model, {**attention, "d_out": d_model})
        self.channel_norm = RMSNorm(d_model, norm_eps)
        self.channel = GELUGate(d_model, d_channel)


class _Reader(nn.Module):
    """The weights of one layer that uses a shared transformer: LoRA maps and the output projection."""

    def __init__(self, d_model: int, transformer: _Transformer, lora_rank: int, attention_lora_rank: int) -> None:
        super().__init__()
        widths = transformer.attention.widths
        self.qkv_lora = LowRank(2 * d_model, attention_lora_rank, widths) if attention_lora_rank else None
        width = transformer.channel.up_proj.out_features
        self.channel_lora = LowRank(d_model, lora_rank, [width]) if lora_rank else None
        self.out_proj = nn.Linear(d_model, d_model, bias=False)


class SharingState(NamedTuple):
    block: Any  # the state of the block
    attention: Any  # AttentionState of this layer's use of the transformer, () in a layer that does not use it


class SharedTransformer(SequenceMixer):
    """Blocks, some of which use a transformer with shared weights (Zamba, Glorioso et al. 2405.16712).

        x_l = block_l(x_{l-1})                                     x_0 is the input, in a model the embedding
        x_l = block_l(x_{l-1}), its mixer reads x_{l-1} + W_l T([x_{l-1}, x_0])        l in `layers`
        T(u) = W_down (gelu(W_gate v) * W_up v),  v = norm(attention(norm(u)))

    There are n_blocks copies of T with different weights, which the layers in `layers` use in turn. Not shared are W_l
    and low-rank maps added to the input projections of T (Zamba2 2411.15242). The attention is 2 * d_model wide.

    Coefficients. Those of blocks and attention, 1/rms of the norms, gelu(W_gate v).

    State. The states of the blocks, and keys and values of all positions for each layer in `layers`.

    Source. Zyphra's Zamba2 in transformers 5.23. Its attention scales logits by sqrt(2 / d_head) instead of
    sqrt(1 / d_head).

    Args:
        blocks: the layers; d_out must be d_model.
        layers: ascending indices, from 0, of the layers that use T.
        n_blocks: number of copies of T.
        d_channel: inner width of W_gate and W_up; default 4 * d_model.
        lora_rank: rank of each layer's low-rank map added to W_gate and W_up; 0 for none.
        attention_lora_rank: rank of each layer's low-rank maps added to the projections of queries, keys and values; 0
            for none.
        attention: options of the mixer `attention`, except d_out.
        norm_eps: epsilon of the norms.

    Raises:
        ValueError: layers out of range or not ascending, more n_blocks than layers, sizes that are not positive; the
            errors of the attention.
    """

    def __init__(
        self,
        blocks: Iterable[ResidualBlock],
        layers: Sequence[int],
        n_blocks: int = 1,
        d_channel: int | None = None,
        lora_rank: int = 0,
        attention_lora_rank: int = 0,
        attention: Mapping[str, Any] | None = None,
        norm_eps: float = 1e-5,
    ) -> None:
        stack = Stack(blocks)
        super().__init__(stack.d_model)
        self.blocks, self.reading = stack.layers, list(layers)
        require_positive(n_blocks=n_blocks, d_channel=d_channel)
        if "d_out" in (attention or {}):
            raise ValueError("d_out of the shared attention is d_model: leave it out")
        require_positive(lora_rank=lora_rank or None, attention_lora_rank=attention_lora_rank or None)
        if not self.reading or sorted({*self.reading} & {*range(len(self.blocks))}) != self.reading:
            raise ValueError(
                f"layers of a shared transformer must be ascending indices in 0..{len(self.blocks) - 1}, got {layers}"
            )
        if n_blocks > len(self.reading):
            raise ValueError(f"n_blocks={n_blocks} needs at least {n_blocks} layers to use them, got layers={layers}")
        width = 4 * self.d_model if d_channel is None else d_channel
        transformers = [_Transformer(self.d_model, width, norm_eps, attention or {}) for _ in range(n_blocks)]
        self.transformers = nn.ModuleList(transformers)
        self.readers = nn.ModuleList(
            _Reader(self.d_model, transformers[n % n_blocks], lora_rank, attention_lora_rank)
            for n in range(len(self.reading))
        )

    def chain(self) -> list[ResidualBlock]:
        """Return the blocks in order."""
        return cast(list[ResidualBlock], list(self.blocks))

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> tuple[SharingState, ...]:
        attention = cast(_Transformer, self.transformers[0]).attention
        return tuple(
            SharingState(
                block.empty_state(batch_size, dtype, device),
                attention.empty_state(batch_size, dtype, device) if at in self.reading else (),
            )
            for at, block in enumerate(self.chain())
        )

    def mix(
        self, x: Tensor, state: tuple[SharingState, ...], lengths: Tensor | None
    ) -> tuple[Tensor, tuple[SharingState, ...]]:
        first, after = x, []
        for at, before in enumerate(state):
            x, now = self.mix_layer(at, x, first, before, lengths)
            after.append(now)
        return x, tuple(after)

    def mix_layer(
        self,
        at: int,
        x: Float[Tensor, "batch seq d_model"],
        first: Float[Tensor, "batch seq d_model"],
        state: SharingState,
        lengths: Tensor | None,
    ) -> tuple[Tensor, SharingState]:
        """Apply layer `at` to x; `first` is the input of the first layer."""
        added, attention = None, state.attention
        if at in self.reading:
            added, attention = self._read(self.reading.index(at), torch.cat((x, first), dim=2), attention, lengths)
        x, block = self.chain()[at].mix(x, state.block, lengths, added)
        return x, SharingState(block, attention)

    def _read(self, n: int, u: Tensor, state: AttentionState, lengths: Tensor | None) -> tuple[Tensor, AttentionState]:
        """Return the shared transformer's output for the n-th of the layers that use it."""
        shared, own = cast(_Transformer, self.transformers[n % len(self.transformers)]), cast(_Reader, self.readers[n])
        u = shared.input_norm(u)
        qkv = shared.attention.qkv_proj(u)
        if own.qkv_lora is not None:
            qkv = qkv + own.qkv_lora(u)
        y, state = shared.attention.mix_projected(qkv, state, lengths)
        v = shared.channel_norm(y)
        inner = shared.channel.up_proj(v)
        if own.channel_lora is not None:
            inner = inner + own.channel_lora(v)
        return own.out_proj(shared.channel.gated(inner)), state


class CacheState(NamedTuple):
    keys: Tensor  # (batch, n_kv_heads, slots, d_head), right-aligned, rotated if there is rope
    values: Tensor  # (batch, n_kv_heads, slots, d_head)
    seen: Tensor  # (batch,) positions so far


class CacheReader(SequenceMixer):
    """Attention to a given cache of keys and values, the mixer of an upper layer of `SharedCache`.

    Its state is this cache, which already contains the current chunk; the state is returned unchanged.

    Args:
        d_model: width of input and output.
        n_heads: query heads.
        d_head: width of a head; default d_model / n_heads.
        n_kv_heads: key and value heads, shared by groups of query heads; default n_heads.
        rope_base: base of rope's wavelengths; None for no position encoding.

    Raises:
        ValueError: sizes that are not positive, heads that do not divide, an odd d_head with rope, a rope_base of at
            most 1.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        d_head: int | None = None,
        n_kv_heads: int | None = None,
        rope_base: float | None = 1e4,
    ) -> None:
        super().__init__(d_model)
        require_positive(n_heads=n_heads, d_head=d_head, n_kv_heads=n_kv_heads)
        self.n_heads, self.rope_base = n_heads, rope_base
        self.n_kv_heads, self.d_head = shared_heads(n_heads, n_kv_heads), head_width(d_model, n_heads, d_head)
        if rope_base is not None:
            require_pairs(self.d_head)
            turned_channels(None, self.d_head, rope_base)
        self.q_proj = nn.Linear(d_model, n_heads * self.d_head, bias=False)
        self.out_proj = nn.Linear(n_heads * self.d_head, d_model, bias=False)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> CacheState:
        slots = torch.zeros(batch_size, self.n_kv_heads, 0, self.d_head, dtype=dtype, device=device)
        return CacheState(slots, slots.clone(), torch.zeros(batch_size, dtype=torch.int64, device=device))

    def mix(self, x: Tensor, state: CacheState, lengths: Tensor | None) -> tuple[Tensor, CacheState]:
        q = self.turned(rearrange(self.q_proj(x), "batch seq (head d) -> batch head seq d", d=self.d_head), state.seen)
        y = attend(coefficient(q), state.keys, state.values, state.seen)
        return self.out_proj(rearrange(y, "batch head seq d -> batch seq (head d)")), state

    def turned(
        self, heads: Float[Tensor, "batch head seq d"], seen: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch head seq d"]:
        """Apply rope, if used, to queries or keys at the positions that follow the `seen` ones."""
        if self.rope_base is None:
            return heads
        return rotate(heads, seen.unsqueeze(1) + torch.arange(heads.shape[2], device=heads.device), self.rope_base)


class SharedCacheState(NamedTuple):
    lower: tuple[Any, ...]  # the states of the lower layers
    cache: CacheState


class SharedCache(SequenceMixer):
    """Lower layers, and upper layers that attend to one cache computed from the lower ones' output (YOCO, 2405.05254).

        u    = lower(x)
        k, v = W_K norm(u), W_V norm(u)                            once for all upper layers
        x_l  = block_l(x_{l-1}), whose mixer is attention of W_Q norm(x_{l-1}) to k and v;  x_0 = u

    Coefficients. Those of the lower layers, queries and keys, 1/rms of the norms, those of the channel mixers.

    State. The states of the lower layers, and one cache of 2 n_kv_heads d_head numbers per position.

    Source. Sun et al. 2405.05254, section 2. The lower layers can be any mixers; the paper uses sliding windows or
    gated retention.

    Not here. A prefill that runs the upper layers at the last position only.

    Args:
        lower: layers whose output makes the cache.
        upper: blocks whose mixer is a `CacheReader`, all with the same heads of keys and values.
        norm_eps: epsilon of the norm before keys and values.
    """

    def __init__(self, lower: Iterable[SequenceMixer], upper: Iterable[ResidualBlock], norm_eps: float = 1e-5) -> None:
        below = Stack(lower)
        super().__init__(below.d_model)
        self.lower = below
        self.norm = RMSNorm(self.d_model, norm_eps)
        self.upper = nn.ModuleList(upper)
        reader = self._readers()[0]
        self.kv_proj = nn.Linear(self.d_model, 2 * reader.n_kv_heads * reader.d_head, bias=False)

    def _readers(self) -> list[CacheReader]:
        return [cast(CacheReader, block.mixer) for block in cast(list[ResidualBlock], list(self.upper))]

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> SharedCacheState:
        lower = self.lower.empty_state(batch_size, dtype, device)
        return SharedCacheState(lower, self._readers()[0].empty_state(batch_size, dtype, device))

    def mix(self, x: Tensor, state: SharedCacheState, lengths: Tensor | None) -> tuple[Tensor, SharedCacheState]:
        seq_len, seen, reader = x.shape[1], state.cache.seen, self._readers()[0]
        x, lower = self.lower.stream(x, state.lower, lengths)
        kv = self.kv_proj(self.norm(x))
        k, v = rearrange(kv, "batch seq (part head d) -> part batch head seq d", part=2, d=reader.d_head)
        keys = grow_cache(state.cache.keys, coefficient(reader.turned(k, seen)))
        cache = CacheState(keys, grow_cache(state.cache.values, v), seen)
        for block in cast(list[ResidualBlock], list(self.upper)):
            x, _ = block.mix(x, cache, lengths)
        keys, values = (settle_cache(slots, lengths, seq_len) for slots in (cache.keys, cache.values))
        return x, SharedCacheState(lower, CacheState(keys, values, seen + (seq_len if lengths is None else lengths)))
