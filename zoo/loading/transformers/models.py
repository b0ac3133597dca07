"""Convert causal language models of transformers: paths of their parts by family, and the options of the backbone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.backbone import Backbone
from zoo.loading.transformers.channels import ACTIVATIONS, CHANNELS, granite_channels, read_channel
from zoo.loading.transformers.layers import LAYERS, read_layer
from zoo.loading.transformers.reading import Part, Take, Weights, eps_of, expect, norm_table, take
from zoo.loading.transformers.shared import read_shared
from zoo.sharing import SharedTransformer


class Family(NamedTuple):
    """The paths of the parts of a causal language model, and its peculiarities.

    Attributes:
        embedding: path of the token embedding.
        layers: path of the list of layers.
        mixers: possible names of a layer's mixer.
        norms: our norm -> name of the norm in a layer.
        norm: path of the last norm.
        channels: possible names of a layer's channel mixer; empty if the model has none.
        mix: reads the mixer of a layer; default: the child with a name in `mixers`.
        mix_channels: reads the channel mixer of a layer; default: the child with a name in `channels`.
        output_norms: replaces `norms` for layers without its first norm, which norm the output of each half.
        residual_norms: whether the norms are applied to the residual stream itself.
        alone: whether each layer is only one half of our blocks, a mixer or a channel mixer.
        multiplied: maps the model and a layer to {our parameter: factor to multiply its weights by}.
        embeddings: maps the model to the multiplier of its embeddings.
        logits: maps the configuration to the multiplier of its logits.
        cap: configuration field for the bound of the logits.
        head: path of the output projection.
        embedding_norm: path of a norm of the embeddings; empty for none.
    """

    embedding: str
    layers: str
    mixers: tuple[str, ...]
    norms: dict[str, str]
    norm: str
    channels: tuple[str, ...] = ()
    mix: Callable[[Any], Part] | None = None
    mix_channels: Callable[[Any], Part] | None = None
    output_norms: dict[str, str] | None = None
    residual_norms: bool = False
    alone: bool = False
    multiplied: Callable[[Any, Any], dict[str, float]] = lambda _theirs, _layer: {}
    embeddings: Callable[[Any], float] = lambda theirs: getattr(theirs.config, "embedding_multiplier", 1.0)
    logits: Callable[[Any], float] = lambda _config: 1.0
    cap: str = ""
    head: str = "lm_head"
    embedding_norm: str = ""


class Half(NamedTuple):
    """A mixer or a channel mixer with paths relative to the model, the path of its norm, and the norm's multiplier."""

    part: Part
    norm: str
    norm_scale: float = 1.0


class Block(NamedTuple):
    """The sources of one of our blocks: its halves, and the path of the original layer with which it ends."""

    path: str
    mixer: Half
    channel: Half | None


def find(layer: nn.Module, names: Sequence[str], kinds: Collection[str]) -> tuple[str, nn.Module]:
    """Return name and module of the child of a layer that has one of the names."""
    found = [(name, part) for name, part in layer.named_children() if name in names]
    if len(found) != 1 or type(found[0][1]).__name__ not in kinds:
        there = ", ".join(f"{name}: {type(part).__name__}" for name, part in layer.named_children()) or "nothing"
        raise ValueError(f"{type(layer).__name__}: {' or '.join(names)} must be one of {', '.join(kinds)}; got {there}")
    return found[0]


def _read_mixer(layer: nn.Module, names: Sequence[str]) -> Part:
    name, mixer = find(layer, names, LAYERS)
    part = read_layer(mixer)
    expect(mixer, part.fields)
    return part.below(name)


def _read_channels(layer: nn.Module, names: Sequence[str]) -> Part:
    name, channel = find(layer, names, CHANNELS)
    part = read_channel(channel)
    expect(channel, part.fields)
    return part.below(name)


def _falcon_h1_mixers(layer: nn.Module) -> Part:
    """Read a state space model and attention in parallel, with added outputs."""
    parts = [_read_mixer(layer, [name]) for name in ("mamba", "self_attn")]
    options = {"name": "parallel_hybrid", "merge": "sum", "pattern": [part.options for part in parts]}
    table = {f"members.{at}.{name}": it for at, part in enumerate(parts) for name, it in part.table.items()}
    return Part(options, table, {})


def _falcon_h1_multiplied(_theirs: Any, layer: Any) -> dict[str, float]:
    return {
        "mixer.members.0.out_proj.weight": layer.ssm_out_multiplier,
        "mixer.members.1.qkv_proj.weight": layer.attention_in_multiplier,
        "mixer.members.1.out_proj.weight": layer.attn_out_multiplier,
    }


def _granite_multiplied(_theirs: Any, layer: Any) -> dict[str, float]:
    last = ("mixer.out_proj.weight", "channel.down_proj.weight", "channel.down_proj", "channel.shared.down_proj.weight")
    return dict.fromkeys(last, layer.residual_multiplier)


def _minimax_multiplied(_theirs: Any, layer: Any) -> dict[str, float]:
    """Multiply norms by alpha and output weights by beta; divide the weights that read a normed input by alpha."""
    kind = "linear" if layer.block_type == "linear_attention" else "full"
    alphas = {f"{kind}_attn_alpha_factor": layer.attn_alpha_factor, "mlp_alpha_factor": layer.mlp_alpha_factor}
    expect(layer, {name: (alpha, alpha or "any number but 0") for name, alpha in alphas.items()})
    readers = {"mixer": ("qkv_proj.weight", "gate_proj.weight"), "channel": ("router.weight", "up_proj")}
    scaled = {"mixer.out_proj.weight": layer.attn_beta_factor, "channel.down_proj": layer.mlp_beta_factor}
    for (half, names), alpha in zip(readers.items(), alphas.values(), strict=True):
        scaled |= {f"{half}_norm.weight": alpha} | {f"{half}.{name}": 1 / alpha for name in names}
    return {name: float(factor) for name, factor in scaled.items()}


def _rwkv_multiplied(theirs: Any, layer: Any) -> dict[str, float]:
    """Undo the halving of weights every `rescale_every` layers, which a model in eval mode has done in place."""
    every = theirs.config.rescale_every
    halved = layer.layer_id // every if theirs.rwkv.layers_are_rescaled and every > 0 else 0
    return dict.fromkeys(("mixer.out_proj.weight", "channel.down_proj.weight"), 2.0**halved)


_MAMBA = Family(
    embedding="backbone.embeddings",
    layers="backbone.layers",
    mixers=("mixer",),
    norms={"mixer": "norm"},
    norm="backbone.norm_f",
)
_LLAMA = Family(
    embedding="model.embed_tokens",
    layers="model.layers",
    mixers=("self_attn",),
    norms={"mixer": "input_layernorm", "channel": "post_attention_layernorm"},
    norm="model.norm",
    channels=("mlp",),
)
_JAMBA = _LLAMA._replace(
    mixers=("mamba", "self_attn"),
    norms={"mixer": "input_layernorm", "channel": "pre_ff_layernorm"},
    norm="model.final_layernorm",
    channels=("feed_forward",),
)
MODELS = {
    "MambaForCausalLM": _MAMBA,
    "FalconMambaForCausalLM": _MAMBA,
    "Mamba2ForCausalLM": _MAMBA,
    **dict.fromkeys(("LlamaForCausalLM", "DeepseekV3ForCausalLM", "KimiLinearForCausalLM"), _LLAMA),
    "Qwen3ForCausalLM": _LLAMA,
    "Qwen3MoeForCausalLM": _LLAMA,
    **dict.fromkeys(
        ("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
        _LLAMA._replace(mixers=("linear_attn", "self_attn")),
    ),
    "MiniMaxForCausalLM": _LLAMA._replace(residual_norms=True, multiplied=_minimax_multiplied),
    "Zamba2ForCausalLM": _LLAMA._replace(
        mixers=("mamba",), norms={"mixer": "input_layernorm"}, norm="model.final_layernorm", channels=()
    ),
    "JambaForCausalLM": _JAMBA,
    "BambaForCausalLM": _JAMBA,
    "FalconH1ForCausalLM": _JAMBA._replace(
        mix=_falcon_h1_mixers,
        multiplied=_falcon_h1_multiplied,
        logits=lambda config: config.lm_head_multiplier,
    ),
    "GraniteMoeHybridForCausalLM": _LLAMA._replace(
        mixers=("mamba", "self_attn"),
        mix_channels=granite_channels,
        multiplied=_granite_multiplied,
        logits=lambda config: 1 / config.logits_scaling,
    ),
    "NemotronHForCausalLM": _MAMBA._replace(
        embedding="model.embeddings", layers="model.layers", norm="model.norm_f", alone=True
    ),
    "OlmoHybridForCausalLM": _LLAMA._replace(
        mixers=("linear_attn", "self_attn"),
        output_norms={"mixer": "post_attention_layernorm", "channel": "post_feedforward_layernorm"},
    ),
    "RecurrentGemmaForCausalLM": _LLAMA._replace(
        mixers=("temporal_block",),
        norms={"mixer": "temporal_pre_norm", "channel": "channel_pre_norm"},
        norm="model.final_norm",
        channels=("mlp_block",),
        embeddings=lambda theirs: theirs.model.normalizer.item(),
        cap="logits_soft_cap",
    ),
    "Lfm2ForCausalLM": _LLAMA._replace(
        mixers=("conv", "self_attn"),
        norms={"mixer": "operator_norm", "channel": "ffn_norm"},
        norm="model.embedding_norm",
        channels=("feed_forward",),
    ),
    "RwkvForCausalLM": Family(
        embedding="rwkv.embeddings",
        layers="rwkv.blocks",
        mixers=("attention",),
        norms={"mixer": "ln1", "channel": "ln2"},
        norm="rwkv.ln_out",
        channels=("feed_forward",),
        multiplied=_rwkv_multiplied,
        head="head",
        embedding_norm="rwkv.blocks.0.pre_ln",
    ),
    "xLSTMForCausalLM": Family(
        embedding="backbone.embeddings",
        layers="backbone.blocks",
        mixers=("mlstm_layer",),
        norms={"mixer": "norm_mlstm", "channel": "norm_ffn"},
        norm="backbone.out_norm",
        channels=("ffn",),
        cap="output_logit_soft_cap",
    ),
}


def _blocks(theirs: Any, family: Family) -> Iterator[Block]:
    """Yield the model's layers as our blocks."""
    layers = {f"{family.layers}.{at}": layer for at, layer in enumerate(theirs.get_submodule(family.layers))}
    if family.alone:
        yield from _halves(layers, family)
        return
    for path, layer in layers.items():
        inner = path
        if hasattr(layer, "mamba_decoder"):  # a layer of Zamba2 that uses the shared transformer
            layer, inner = layer.mamba_decoder, f"{path}.mamba_decoder"
        factors, norms = family.multiplied(theirs, layer), family.norms
        if family.output_norms is not None and not hasattr(layer, norms["mixer"]):
            norms = family.output_norms

        def half(name: str, part: Part, path: str = inner, factors=factors, norms=norms) -> Half:
            mine = {ours.removeprefix(f"{name}."): factor for ours, factor in factors.items() if ours.startswith(name)}
            return Half(part.scaled(mine).below(path), f"{path}.{norms[name]}", factors.get(f"{name}_norm.weight", 1.0))

        mixer = family.mix(layer) if family.mix else _read_mixer(layer, family.mixers)
        channel = None
        if family.mix_channels or family.channels:
            channel = family.mix_channels(layer) if family.mix_channels else _read_channels(layer, family.channels)
            if family.residual_norms or norms is family.output_norms:
                norm = "residual" if family.residual_norms else "output"
                channel = channel._replace(options=channel.options | {"norm": norm})
        yield Block(path, half("mixer", mixer), None if channel is None else half("channel", channel))


def _halves(layers: dict[str, nn.Module], family: Family) -> Iterator[Block]:
    """Join layers that are halves of blocks: a channel mixer belongs to the mixer before it."""
    waiting: Block | None = None
    for path, layer in layers.items():
        name, inner = find(layer, family.mixers, [*LAYERS, *CHANNELS])
        norm = f"{path}.{family.norms['mixer']}"
        if type(inner).__name__ in LAYERS:
            if waiting is not None:
                yield waiting
            waiting = Block(path, Half(_read_mixer(layer, [name]).below(path), norm), None)
        elif waiting is None:
            expect(layer, {"layers_block_type": ("an mlp without a mixer before it", "at most one mlp after a mixer")})
        else:
            yield waiting._replace(path=path, channel=Half(_read_channels(layer, [name]).below(path), norm))
            waiting = None
    if waiting is not None:
        yield waiting


def read_model(theirs: Any, weights: Weights) -> Backbone:
    """Read the model's parameters into `weights`, and build the backbone on the meta device."""
    family, config = MODELS[type(theirs).__name__], theirs.config
    embedding, head, norm = map(theirs.get_submodule, (family.embedding, family.head, family.norm))
    weights.read(norm_table(family.norm, norm, family.logits(config)), "", "norm")
    table = Take((f"{family.embedding}.weight",))
    if family.embedding_norm:
        first = theirs.get_submodule(family.embedding_norm)
        table = table._replace(change=lambda weight: copy.deepcopy(first).to(weight)(weight).detach())
        weights.leave_out(family.embedding_norm)
        expect(config, {"tie_word_embeddings": (head.weight is embedding.weight, False)})
    weights.read({"embedding.weight": table})
    if head.weight is embedding.weight:
        weights.found["head.weight"] = weights.found["embedding.weight"]  # stays tied
    else:
        weights.read(take(head__weight=f"{family.head}.weight"))
    blocks, eps = list(_blocks(theirs, family)), {family.norm: eps_of(norm)}
    sharing: dict[str, Any] = {}
    shared = read_shared(theirs, family.layers, weights)
    if shared is not None:
        part, of_norms = shared
        weights.read(part.table, "", "layers.layers.0")
        sharing, eps = {"shared": part.options}, eps | of_norms
    our_blocks = "layers.layers.0.blocks" if sharing else "layers.layers"
    for number, block in enumerate(blocks):
        for name, half in (("mixer", block.mixer), ("channel", block.channel)):
            if half is not None:
                ours, layer_norm = f"{our_blocks}.{number}.{name}", theirs.get_submodule(half.norm)
                weights.read(half.part.table, "", ours)
                weights.read(norm_table(half.norm, layer_norm, half.norm_scale), "", f"{ours}_norm")
                eps[half.norm] = eps_of(layer_norm)
    pattern = [block.mixer.part.options for block in blocks]
    channels = [{} if block.channel is None else block.channel.part.options for block in blocks]
    activation = ACTIVATIONS.get(next((o["channel"] for o in channels if "channel" in o), ""), "silu")
    name = next((n for n in ("hidden_act", "mlp_hidden_act") if hasattr(config, n)), "hidden_activation")
    expect(theirs, {"num_hidden_layers": (len(pattern), len(pattern) or "1 or more")})
    narrowest = min((options["d_channel"] for options in channels if options), default=1)
    expect(theirs, {"intermediate_size": (narrowest, narrowest or "1 or more")})
    expect(theirs, {f"eps of {path}": (value, eps[family.norm]) for path, value in eps.items()})
    if any(channels):
        expect(config, {name: (getattr(config, name, activation), activation)})
        expect(config, {"mlp_bias": (getattr(config, "mlp_bias", False), False)})
    with torch.device("meta"):
        return Backbone(
            pattern[0] if all(entry == pattern[0] for entry in pattern) else {"name": "hybrid", "pattern": pattern},
            embedding.embedding_dim,
            len(pattern),
            vocab_size=embedding.num_embeddings,
            n_outputs=head.out_features,
            norm_eps=eps[family.norm],
            norm_type="layer" if isinstance(norm, nn.LayerNorm) else "rms",
            embedding_scale=family.embeddings(theirs),
            logit_cap=getattr(config, family.cap) if family.cap else None,
            **_channel_options(channels),
            **sharing,
        )


def _channel_options(channels: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the shortest options of a backbone for these channel mixers."""
    first = channels[0]
    if any(options != first for options in channels) or first.keys() - {"d_channel"}:
        return {"blocks": channels}
    return {"d_channel": first.get("d_channel", 0)}


def stages_of(theirs: Any, ours: Backbone) -> Iterator[tuple[str, Callable[[Tensor], Tensor]]]:
    """Yield the path of each original module, in order, and our function that must give the same outputs."""
    family = MODELS[type(theirs).__name__]
    assert ours.embedding is not None
    assert ours.norm is not None
    assert ours.head is not None
    embedding, norm, head = ours.embedding, ours.norm, ours.head
    first, *others = zip(_blocks(theirs, family), _layers_of(ours), strict=True)
    multiplier = family.logits(theirs.config)
    yield family.embedding_norm or family.embedding, embedding
    yield first[0].path, lambda x: first[1](ours.embedding_scale * x)
    for block, mine in others:
        yield block.path, mine
    yield family.norm, lambda x: norm(x) / multiplier
    yield family.head, head
    yield "", lambda y: ours.capped(multiplier * y)


def _layers_of(ours: Backbone) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield the layers as functions; with a shared transformer, they store the input of the first layer."""
    first = ours.layers.chain()[0]
    if not isinstance(first, SharedTransformer):
        yield from ours.layers.chain()
        return
    shared, inputs = first, []

    def layer(at: int, x: Tensor) -> Tensor:
        inputs.append(x)
        return shared.mix_layer(at, x, inputs[0], shared.empty_state(len(x), x.dtype, x.device)[at], None)[0]

    for at in range(len(shared.chain())):
        yield partial(layer, at)
