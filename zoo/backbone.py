"""`Backbone`, a whole model around a mixer: embedding or input projection, blocks, final norm, head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from zoo.blocks import (
    NORMS,
    ROUTERS,
    Autoencoder,
    Canon,
    Experts,
    LayerNorm,
    NormType,
    ResidualBlock,
    RMSNorm,
    ShortConv,
    Stack,
)
from zoo.errors import unknown
from zoo.modules import no_weight_decay
from zoo.ops.activation import tanh
from zoo.ops.time import Lengths, as_lengths, valid_positions
from zoo.pretrained import Pretrained
from zoo.registry import create_layers
from zoo.sharing import CacheReader, SharedCache, SharedTransformer
from zoo.validate import require_choice, require_positive

BackboneKind = Literal["residual", "bare"]
BLOCK_OPTIONS = sorted(
    {name for kind in (ResidualBlock, *ROUTERS.values()) for name in signature(kind).parameters}
    - {"mixer", "d_model", "norm_eps", "norm_type", "canon", "experts", "options"}
)


class Backbone(Pretrained):
    """A model from tokens or vectors to logits or regressed vectors.

    backbone="residual": embedding, n_layers blocks (norm, mixer, norm, SwiGLU or experts; both halves with residuals),
    norm, head. backbone="bare": only the mixers, without norms, residuals or channel mixers. It omits the input
    projection and the head if the widths agree, so that you can fit a mixer alone.

    Args:
        mixer: `{"name": ..., **options}`, the arguments of `zoo.create_mixer`.
        d_model: width of the residual stream.
        n_layers: number of blocks.
        vocab_size: size of the vocabulary, for tokens as input; give this or d_input.
        d_input: width of the input vectors.
        n_outputs: number of classes, or of regressed channels.
        d_channel: inner width of the SwiGLU; default 2 * d_model, 0 for none.
        d_conv: width of a causal depthwise convolution before each mixer; 0 for none.
        canon: where to put Canon layers (x_t plus a depthwise convolution of the last four positions, Allen-Zhu
            2512.17351): none, or letters of A (before each mixer, after its norm), C (before the channel mixer, after
            its norm) and D (inside the SwiGLU).
        backbone: residual or bare.
        decode_from: adds a decoder (`zoo.blocks.Autoencoder`) for the positions from this one on. Of the positions
            before, it sees only the blocks' output at the last one. 0 for no decoder.
        n_experts: experts in the channel mixer of each expert layer; 0 for a single SwiGLU in every layer.
        top_k: number of experts per position.
        expert_period: layers expert_offset, expert_offset + expert_period, ... have experts.
        expert_offset: first layer with experts.
        norm_eps: epsilon of the residual backbone's norms.
        norm_type: kind of norm in the residual blocks and before the head: rms, or layer for LayerNorm with bias
            (RWKV-4). A decoder and shared parts always use RMS norms.
        blocks: options of each layer's `ResidualBlock`, such as `{"d_channel": 128, "channel": "relu2"}`; replaces
            d_channel, n_experts, top_k, expert_period and expert_offset.
        shared: options of a `zoo.sharing.SharedTransformer`, a transformer shared by several layers (Zamba2), such as
            `{"layers": [2, 5], "lora_rank": 8, "attention": {"n_heads": 4}}`.
        shared_cache: makes the last `upper` layers attend to one cache, computed from the output of the layers below
            (YOCO, `zoo.sharing.SharedCache`). The other options are those of `CacheReader`:
            `{"upper": 4, "n_heads": 4}`.
        embedding_scale: factor of the embeddings (Gemma, Granite, Falcon-H1).
        logit_cap: if given, outputs y become logit_cap tanh(y / logit_cap) (Griffin, xLSTM 7B).

    Raises:
        ValueError: sizes that are not positive; both or neither of vocab_size and d_input; unknown names or options;
            embedding_scale without vocab_size; blocks with d_channel or n_experts, in the bare backbone, or not one per
            layer; experts or Canon layers C and D without a channel mixer that can hold them; canon A with d_conv;
            decode_from, shared or shared_cache with experts, with each other, or in the bare backbone; shared_cache
            with canon, or with a channel mixer that has a state in the upper layers.
    """

    def __init__(
        self,
        mixer: Mapping[str, Any],
        d_model: int = 64,
        n_layers: int = 2,
        *,
        n_outputs: int,
        vocab_size: int | None = None,
        d_input: int | None = None,
        d_channel: int | None = None,
        d_conv: int = 0,
        canon: str = "none",
        backbone: BackboneKind = "residual",
        decode_from: int = 0,
        n_experts: int = 0,
        top_k: int = 2,
        expert_period: int = 2,
        expert_offset: int = 1,
        norm_eps: float = 1e-5,
        norm_type: NormType = "rms",
        blocks: Sequence[Mapping[str, Any]] | None = None,
        shared: Mapping[str, Any] | None = None,
        shared_cache: Mapping[str, Any] | None = None,
        embedding_scale: float = 1.0,
        logit_cap: float | None = None,
    ) -> None:
        super().__init__()
        require_positive(
            d_model=d_model, n_layers=n_layers, n_outputs=n_outputs, vocab_size=vocab_size, d_input=d_input
        )
        require_positive(d_channel=d_channel or None, d_conv=d_conv or None, n_experts=n_experts or None)
        require_positive(expert_period=expert_period, decode_from=decode_from or None)
        require_choice("backbone", backbone, BackboneKind)
        require_choice("norm_type", norm_type, NormType)
        if blocks is not None and (backbone == "bare" or len(blocks) != n_layers):
            raise ValueError(f"blocks needs backbone=residual and one entry per layer, n_layers={n_layers}")
        for name, given in {"d_channel": d_channel, "n_experts": n_experts or None}.items():
            if blocks is not None and given is not None:
                raise ValueError(f"{name}={given} cannot be combined with blocks: set {name} in the entries of blocks")
        for name in [name for options in blocks or () for name in options]:
            if name not in BLOCK_OPTIONS:
                raise ValueError(unknown("option of a block", name, BLOCK_OPTIONS))
        if logit_cap is not None and not 0 < logit_cap < math.inf:
            raise ValueError(f"logit_cap must be positive and finite, got {logit_cap}")
        if not math.isfinite(embedding_scale):
            raise ValueError(f"embedding_scale must be finite, got {embedding_scale}")
        if vocab_size is None and embedding_scale != 1:
            raise ValueError(f"embedding_scale={embedding_scale} multiplies embeddings: it needs vocab_size")
        self.embedding_scale, self.logit_cap = embedding_scale, logit_cap
        parts = {"decode_from": decode_from, "shared": shared, "shared_cache": shared_cache}
        parts = [name for name, given in parts.items() if given not in (None, 0)]
        if len(parts) > 1:
            raise ValueError(f"{' and '.join(parts)} cannot be combined")
        if parts and backbone == "bare":
            raise ValueError(f"{parts[0]} needs backbone=residual")
        if shared_cache is not None and canon != "none":
            raise ValueError("shared_cache cannot be combined with canon")
        if parts and (n_experts or any(options.get("n_experts") for options in blocks or ())):
            raise ValueError(f"{parts[0]} cannot be combined with experts: it needs n_experts=0")
        if (vocab_size is None) == (d_input is None):
            raise ValueError("give exactly one of vocab_size (tokens) and d_input (vectors)")
        if n_experts and (backbone == "bare" or d_channel == 0):
            raise ValueError("experts are channel mixers: they need backbone=residual and a d_channel that is not 0")
        expert_layers = range(expert_offset, n_layers, expert_period)
        if n_experts and not 0 <= expert_offset < min(n_layers, expert_period):
            raise ValueError(
                f"expert_offset must lie in 0..{min(n_layers, expert_period) - 1} "
                f"(n_layers={n_layers}, expert_period={expert_period}), got {expert_offset}"
            )
        if not isinstance(mixer, Mapping):
            raise ValueError(f"mixer must be a mapping {{'name': ..., **options}}, got {mixer!r}")
        options = dict(mixer)
        if "name" not in options:
            raise ValueError(f"mixer needs the key 'name', got {options}")
        for name in options.keys() & {"d_model", "n_layers"}:
            raise ValueError(f"{name} is an option of Backbone: pass it to Backbone, not in mixer")
        _check_shared(shared)
        heads = dict(shared_cache or {})
        upper = heads.pop("upper", 0)
        if shared_cache is not None and not (isinstance(upper, int) and 0 < upper < n_layers):
            raise ValueError(f"upper of shared_cache must lie in 1..{n_layers - 1} (n_layers={n_layers}), got {upper}")
        mixers = create_layers(options.pop("name"), n_layers - upper, d_model, **options)
        places = _canon_places(canon, d_conv, backbone)
        if d_conv or "A" in places:
            mixers = [Stack([Canon(d_model) if "A" in places else ShortConv(d_model, d_conv), m]) for m in mixers]
        mixers = [*mixers, *(CacheReader.create(d_model, heads) for _ in range(upper))]
        if backbone == "residual":
            if blocks is None:
                width = 2 * d_model if d_channel is None else d_channel
                blocks = [
                    {"d_channel": width, "n_experts": n_experts if layer in expert_layers else 0, "top_k": top_k}
                    for layer in range(n_layers)
                ]
            residual = [
                ResidualBlock(mixer, norm_eps=norm_eps, norm_type=norm_type, canon=places.replace("A", ""), **options)
                for mixer, options in zip(mixers, blocks, strict=True)
            ]
            if decode_from:
                mixers = [Autoencoder(Stack(residual), decode_from, norm_eps)]
            elif shared is not None:
                mixers = [SharedTransformer(residual, norm_eps=norm_eps, **shared)]
            elif upper:
                if not all(block.by_position for block in residual[-upper:]):
                    raise ValueError(
                        "channel rwkv has a state, so it cannot be used in the upper layers of shared_cache"
                    )
                mixers = [SharedCache(residual[:-upper], residual[-upper:], norm_eps)]
            else:
                mixers = residual
        self.layers = Stack(mixers)
        self.vocab_size, self.n_outputs = vocab_size, n_outputs
        d_out = self.layers.d_out
        bare = backbone == "bare"
        self.embedding = nn.Embedding(vocab_size, d_model) if vocab_size is not None else None
        self.in_proj = (
            nn.Linear(d_input, d_model) if d_input is not None and not (bare and d_input == d_model) else None
        )
        self.norm: RMSNorm | LayerNorm | None = None if bare else NORMS[norm_type](d_out, norm_eps)
        self.head = None if bare and d_out == n_outputs else nn.Linear(d_out, n_outputs, bias=False)
        if self.embedding is not None:
            nn.init.normal_(self.embedding.weight, std=0.02)

    @property
    def d_model(self) -> int:
        return self.layers.d_model

    def forward(
        self,
        inputs: Shaped[Tensor, "batch seq *d_input"],
        lengths: Lengths | None = None,
        at: Bool[Tensor, "batch seq"] | Int[Tensor, " selected"] | None = None,
    ) -> Float[Tensor, "*positions n_outputs"]:
        """Return logits at every position, (batch, seq, n_outputs), or at the positions `at`, (selected, n_outputs).

        `at` is a mask, or a vector of indices row * seq + position. With a mask, the host waits for the device to count
        the selected positions. With `at`, the last channel mixer and the head run only at the selected positions;
        channel mixers with Canon layers or a shift run everywhere, and so do experts in training, since their load
        counts every position.

        Raises:
            ValueError: inputs of the wrong type or width, tokens outside the vocabulary, lengths outside 0..seq, `at`
                of the wrong shape or type.
        """
        return self.from_embeddings(self.embed(inputs), lengths, at)

    def stream(
        self,
        inputs: Shaped[Tensor, "batch seq *d_input"],
        state: Any = None,
        lengths: Lengths | None = None,
    ) -> tuple[Float[Tensor, "batch seq n_outputs"], Any]:
        """Return logits for the next chunk, and the next state; see `SequenceMixer.stream`."""
        x, state = self.layers.stream(self.embed(inputs), state, lengths)
        return self.read_out(x), state

    def embed(self, inputs: Shaped[Tensor, "batch seq *d_input"]) -> Float[Tensor, "batch seq d_model"]:
        """Return the input of the first block: embedded tokens, or projected vectors.

        Raises:
            ValueError: vectors instead of tokens or the reverse; on the CPU, tokens outside the vocabulary.
        """
        if self.embedding is not None:
            if inputs.dtype not in (torch.int32, torch.int64) or inputs.ndim != 2:
                raise ValueError(
                    f"inputs must be tokens (batch, seq), int32 or int64, got {inputs.dtype} {tuple(inputs.shape)}"
                )
            try:
                x = self.embedding(inputs)
            except IndexError:  # only on the CPU; reading the values would synchronise with other devices
                found = f"{int(inputs.min())} to {int(inputs.max())}"
                raise ValueError(f"tokens must lie in 0..{self.embedding.num_embeddings - 1}, got {found}") from None
            return x if self.embedding_scale == 1 else self.embedding_scale * x
        width = self.d_model if self.in_proj is None else self.in_proj.in_features
        if not inputs.is_floating_point() or inputs.ndim != 3 or inputs.shape[2] != width:
            raise ValueError(f"inputs must be (batch, seq, d_input={width}), got {inputs.dtype} {tuple(inputs.shape)}")
        return inputs if self.in_proj is None else self.in_proj(inputs)

    def from_embeddings(
        self,
        x: Float[Tensor, "batch seq d_model"],
        lengths: Lengths | None = None,
        at: Bool[Tensor, "batch seq"] | Int[Tensor, " selected"] | None = None,
    ) -> Float[Tensor, "*positions n_outputs"]:
        """`forward` from the output of `embed`; `zoo.theory.interaction` computes the operator of this map."""
        lengths = as_lengths(lengths, x)
        if at is None:
            return self.read_out(self.layers(x, lengths))
        if at.dtype == torch.bool:
            if at.shape != x.shape[:2]:
                raise ValueError(f"at must mark the positions {tuple(x.shape[:2])}, got a mask {tuple(at.shape)}")
            at = at.flatten().nonzero().squeeze(1)
        elif at.ndim != 1 or at.dtype not in (torch.int32, torch.int64):  # an integer mask would be taken for indices
            raise ValueError(
                f"at must be a mask of bool or indices (selected,), int32 or int64, got {at.dtype} {tuple(at.shape)}"
            )
        *before, last = self.layers.chain()
        for layer in before:  # `stream`, because FSDP2 gathers a layer's parameters around it
            x, _ = layer.stream(x, None, lengths)
        counts_load = isinstance(last, ResidualBlock) and isinstance(last.channel, Experts) and last.training
        if isinstance(last, ResidualBlock) and last.by_position and not counts_load:
            x, _ = last.mix_positions(x, None, lengths)
            y = last.mix_channels(x.flatten(0, 1)[at])
            if lengths is not None:  # outputs in padding are zero, as in `stream`
                y = y.masked_fill(~valid_positions(lengths, x.shape[1]).flatten()[at].unsqueeze(1), 0.0)
            return self.read_out(y)
        return self.read_out(last(x, lengths).flatten(0, 1)[at])

    def read_out(self, x: Float[Tensor, "*positions d_out"]) -> Float[Tensor, "*positions n_outputs"]:
        """Return logits from the output of the last layer."""
        if self.norm is not None:
            x = self.norm(x)
        return self.capped(x if self.head is None else self.head(x))

    def capped(self, y: Float[Tensor, "*positions n_outputs"]) -> Float[Tensor, "*positions n_outputs"]:
        """Bound outputs by logit_cap, if given."""
        return y if self.logit_cap is None else self.logit_cap * tanh(y / self.logit_cap)

    @torch.no_grad()
    def generate(
        self,
        prompt: Int[Tensor, "batch seq"],
        n: int,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
        top_k: int | None = None,
        top_p: float = 1.0,
    ) -> Int[Tensor, "batch total"]:
        """Continue each prompt by n tokens, one `stream` step per token.

        Args:
            prompt: tokens.
            n: number of tokens to add.
            temperature: 0 for greedy decoding; otherwise tokens are sampled from softmax(logits / temperature).
            generator: random generator of the samples.
            top_k: sample only from the k likeliest tokens, and from ties with the k-th.
            top_p: nucleus sampling: of these tokens, sample only from the smallest set whose total probability is at
                least top_p.

        Returns:
            Prompt and continuation, (batch, seq + n).

        Raises:
            ValueError: n_outputs is not vocab_size, n or top_k below 1, a temperature below 0 or NaN, a top_p outside
                (0, 1], top_k or top_p with temperature 0.
        """
        require_positive(n=n)
        if self.vocab_size != self.n_outputs:
            raise ValueError(f"generate needs n_outputs = vocab_size, got {self.n_outputs} and {self.vocab_size}")
        if not temperature >= 0:  # NaN too
            raise ValueError(f"temperature must be 0 or above, got {temperature}")
        require_positive(top_k=top_k)
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
        if not temperature and (top_k is not None or top_p < 1):
            raise ValueError("top_k and top_p restrict sampling: they need a temperature above 0")
        tokens, state = [prompt], None
        for _ in range(n):
            logits, state = self.stream(tokens[-1], state)
            if temperature:
                last = logits[:, -1].float()
                last = (last - last.amax(-1, keepdim=True)) / max(temperature, torch.finfo(last.dtype).tiny)
                chances = torch.softmax(_likeliest(last, top_k, top_p), dim=-1)
                tokens.append(torch.multinomial(chances, 1, generator=generator))
            else:
                tokens.append(logits[:, -1:].argmax(-1))
        return torch.cat(tokens, dim=1)

    def state_bytes(self, seq_len: int, batch_size: int = 1, dtype: torch.dtype = torch.float32) -> int | None:
        """Count the bytes of the state after `seq_len` positions; see `SequenceMixer.state_bytes`."""
        return self.layers.state_bytes(seq_len, batch_size, dtype)

    def require_choice(self, seq_len: int) -> None:
        """Raise ValueError if `seq_len` is too short for a sparse layer; see `SequenceMixer.require_choice`."""
        self.layers.require_choice(seq_len)

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters without weight decay: norms, biases, embedding, and those in `undecayed`."""
        embedding = {"embedding.weight"} if self.embedding is not None else set()
        return no_weight_decay(self) | embedding


def _likeliest(logits: Tensor, top_k: int | None, top_p: float) -> Tensor:
    """Return logits, (batch, vocab), with -inf for tokens outside top_k, then outside top_p."""
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if top_p < 1:
        chances, order = torch.softmax(logits, dim=-1).sort(dim=-1, descending=True)
        left_out = chances.cumsum(-1) - chances >= top_p  # the likelier tokens reach top_p already
        logits = logits.masked_fill(torch.zeros_like(left_out).scatter(-1, order, left_out), -torch.inf)
    return logits


def _check_shared(shared: Mapping[str, Any] | None) -> None:
    """Raise ValueError if an option is not one of `SharedTransformer`, or `layers` is missing."""
    valid = [name for name in signature(SharedTransformer).parameters if name not in ("blocks", "norm_eps")]
    for name in shared or ():
        if name not in valid:
            raise ValueError(unknown("option of shared", name, valid))
    if shared is not None and "layers" not in shared:
        raise ValueError("shared needs layers: the indices, from 0, of the layers that use the shared transformer")


def _canon_places(canon: str, d_conv: int, backbone: str) -> str:
    """Return the letters of A, C and D in `canon`.

    Raises:
        ValueError: other letters, a repeated letter, A together with d_conv, or C or D in the bare backbone.
    """
    places = "" if canon == "none" else canon
    if "B" in places:
        raise ValueError("canon B, between a mixer's projections and its core, is the mixer's option d_conv")
    if not canon or set(places) - set("ACD") or len(set(places)) < len(places):
        raise ValueError(f"canon must be none or letters of A, C and D, each once, got {canon!r}")
    if "A" in places and d_conv:
        raise ValueError(f"canon A and d_conv={d_conv} cannot be combined: both precede the mixer")
    if backbone == "bare" and set(places) & set("CD"):
        raise ValueError(f"canon {canon} needs channel mixers, which backbone=bare lacks: only canon A is valid there")
    return places
