"""Weights of transformers' layers and models in the zoo's own: the same numbers out, on the one contract."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.backbone import Backbone
from zoo.blocks import Experts, ResidualBlock
from zoo.contract import SequenceMixer
from zoo.naming import unknown
from zoo.registry import create_mixer

Weights = dict[str, Tensor]


class Translation(NamedTuple):
    """A mixer in the zoo's words."""

    name: str
    d_model: int
    options: dict[str, Any]
    weights: Weights
    frozen: tuple[str, ...] = ()
    """Parameters of ours that are constants of theirs."""


class Family(NamedTuple):
    """Where a causal language model of transformers keeps its parts."""

    body: str
    embedding: str
    norm: str
    mixer_norm: str
    mixers: tuple[str, ...]
    eps: str
    channel_norm: str = ""
    channel: str = ""  # none


def load_transformers(source: nn.Module | str | os.PathLike[str]) -> SequenceMixer | Backbone:
    """A mixer or a model of the zoo with the weights of one of transformers; outputs, gradients and states agree.

        mixer = zoo.load_transformers(theirs.model.layers[0].self_attn)     # a layer: a SequenceMixer
        model = zoo.load_transformers(theirs)                               # a language model: a Backbone
        logits = model(tokens)

    Layers: MambaMixer, FalconMambaMixer, Mamba2Mixer, JambaMambaMixer, JambaAttention, LlamaAttention. Models: the
    ...ForCausalLM of these five. Weights are copied, in their dtype and on their device; a head that shares the
    embedding's weight still does. FalconMamba's norms on dt, B and C have no weights: ours are ones and frozen.
    The embedding of a padding token, which transformers leaves out of training, is a parameter like the others.

    Args:
        source: the layer or model, or the folder (or name) of a pretrained model, which transformers loads.

    Raises:
        ValueError: another kind of module, or a configuration that the zoo cannot express; names the field.
        ModuleNotFoundError: a folder is given and transformers is not installed; names the extra that brings it.
    """
    theirs = source if isinstance(source, nn.Module) else _pretrained(source)
    kind = type(theirs).__name__
    ours_alone = not type(theirs).__module__.startswith("transformers.")
    if ours_alone or kind not in {*LAYERS, *MODELS}:
        raise ValueError(unknown("layer or model of transformers", kind, [*LAYERS, *MODELS]))
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, then overwritten
        ours = _model(theirs, MODELS[kind]) if kind in MODELS else _mixer(theirs)
    first = next(theirs.parameters())
    return ours.to(device=first.device, dtype=first.dtype).train(theirs.training)


def _pretrained(source: str | os.PathLike[str]) -> nn.Module:
    try:
        from transformers import AutoModelForCausalLM
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "loading a pretrained model needs transformers: pip install 'mixer-zoo[transformers]'", name="transformers"
        ) from None
    return AutoModelForCausalLM.from_pretrained(source)


def _expect(theirs: object, fields: dict[str, tuple[object, object]]) -> None:
    """Raise ValueError for the first field, `{name: (its value, the only value that the zoo can express)}`."""
    for field, (value, expected) in fields.items():
        if value != expected:
            raise ValueError(
                f"{type(theirs).__name__}: the zoo cannot express {field}={value!r}; it can express {expected!r}"
            )


# Layers


def _selective_ssm(theirs: Any) -> Translation:
    names = ("in_proj.weight", "x_proj.weight", "dt_proj.weight", "dt_proj.bias", "A_log", "D", "out_proj.weight")
    weights, options = _mamba_block(theirs, names)
    return Translation("selective_ssm", theirs.hidden_size, options | {"dt_rank": theirs.time_step_rank}, weights)


def _jamba_ssm(theirs: Any) -> Translation:
    plain = _selective_ssm(theirs)
    norms = (theirs.dt_layernorm, theirs.b_layernorm, theirs.c_layernorm)
    weights = {f"dt_b_c_norm.{n}.weight": norm.weight for n, norm in enumerate(norms)}
    options = plain.options | {"norm_eps": norms[0].variance_epsilon}
    return plain._replace(options=options, weights=plain.weights | weights)


def _falcon_ssm(theirs: Any) -> Translation:
    plain = _selective_ssm(theirs)
    sizes = (theirs.time_step_rank, theirs.ssm_state_size, theirs.ssm_state_size)
    weights = {f"dt_b_c_norm.{n}.weight": torch.ones(size) for n, size in enumerate(sizes)}
    options = plain.options | {"norm_eps": theirs.rms_eps}
    return plain._replace(options=options, weights=plain.weights | weights, frozen=tuple(weights))


def _ssd(theirs: Any) -> Translation:
    _expect(
        theirs,
        {
            "time_step_limit": (tuple(theirs.time_step_limit), (0.0, float("inf"))),
            "layer_norm_epsilon": (theirs.layer_norm_epsilon, 1e-5),
        },
    )
    names = ("in_proj.weight", "dt_bias", "A_log", "D", "norm.weight", "out_proj.weight")
    weights, options = _mamba_block(theirs, names)
    options |= {"d_head": theirs.head_dim, "n_groups": theirs.n_groups}
    options |= {"norm_groups": theirs.intermediate_size // theirs.norm.group_size}
    return Translation("ssd", theirs.hidden_size, options, weights)


def _mamba_block(theirs: Any, names: tuple[str, ...]) -> tuple[Weights, dict[str, Any]]:
    """What all blocks of the Mamba family share; `names` are those of weights called alike here and there."""
    expand = max(1, theirs.intermediate_size // theirs.hidden_size)
    _expect(
        theirs,
        {
            "hidden_act": (theirs.activation, "silu"),
            "use_bias": (theirs.in_proj.bias is not None, False),
            "use_conv_bias": (theirs.conv1d.bias is not None, True),
            "intermediate_size": (theirs.intermediate_size, expand * theirs.hidden_size),
        },
    )
    weights = {name: theirs.get_parameter(name) for name in names}
    weights |= {"conv.weight": theirs.conv1d.weight.squeeze(1), "conv.bias": theirs.conv1d.bias}
    options = {"d_state": theirs.ssm_state_size, "d_conv": theirs.conv_kernel_size, "expand": expand}
    return weights, options


def _attention(theirs: Any) -> Translation:
    config = theirs.config
    _expect(
        theirs,
        {
            "attention_bias": (theirs.q_proj.bias is not None, False),
            "attention_dropout": (config.attention_dropout, 0.0),
        },
    )
    options = {
        "n_heads": config.num_attention_heads,
        "d_head": theirs.head_dim,
        "n_kv_heads": config.num_key_value_heads,
    }
    qkv = torch.cat([theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight])
    weights = {"qkv_proj.weight": qkv, "out_proj.weight": theirs.o_proj.weight}
    return Translation("attention", config.hidden_size, options, weights)


def _rope_attention(theirs: Any) -> Translation:
    rope = theirs.config.rope_parameters
    _expect(theirs, {"rope_parameters.rope_type": (rope["rope_type"], "default")})
    plain = _attention(theirs)
    return plain._replace(options=plain.options | {"position": "rope", "rope_base": float(rope["rope_theta"])})


LAYERS: dict[str, Callable[[Any], Translation]] = {
    "MambaMixer": _selective_ssm,
    "FalconMambaMixer": _falcon_ssm,
    "Mamba2Mixer": _ssd,
    "JambaMambaMixer": _jamba_ssm,
    "JambaAttention": _attention,
    "LlamaAttention": _rope_attention,
}


def _translate(theirs: nn.Module) -> Translation:
    return LAYERS[type(theirs).__name__](theirs)


def _mixer(theirs: nn.Module) -> SequenceMixer:
    translation = _translate(theirs)
    mixer = create_mixer(translation.name, translation.d_model, **translation.options)
    _fill(mixer, translation)
    return mixer


def _fill(mixer: nn.Module, translation: Translation) -> None:
    mixer.load_state_dict(translation.weights)
    for name in translation.frozen:
        mixer.get_parameter(name).requires_grad_(False)


# Models

_MAMBA = Family("backbone", "embeddings", "norm_f", "norm", ("mixer",), "layer_norm_epsilon")
_JAMBA = Family(
    "model",
    "embed_tokens",
    "final_layernorm",
    "input_layernorm",
    ("mamba", "self_attn"),
    "rms_norm_eps",
    "pre_ff_layernorm",
    "feed_forward",
)
MODELS = {
    "MambaForCausalLM": _MAMBA,
    "FalconMambaForCausalLM": _MAMBA,
    "Mamba2ForCausalLM": _MAMBA,
    "JambaForCausalLM": _JAMBA,
    "LlamaForCausalLM": _JAMBA._replace(
        norm="norm", mixers=("self_attn",), channel_norm="post_attention_layernorm", channel="mlp"
    ),
}


def _model(theirs: Any, family: Family) -> Backbone:
    config, body = theirs.config, getattr(theirs, family.body)
    translations = [
        _translate(next(m for n, m in layer.named_children() if n in family.mixers)) for layer in body.layers
    ]
    pattern = [{"name": translation.name, **translation.options} for translation in translations]
    model = Backbone(
        pattern[0] if all(entry == pattern[0] for entry in pattern) else {"name": "hybrid", "pattern": pattern},
        config.hidden_size,
        len(pattern),
        vocab_size=config.vocab_size,
        n_outputs=config.vocab_size,
        norm_eps=getattr(config, family.eps),
        **_channels(config, family),
    )
    assert model.embedding is not None
    assert model.norm is not None
    assert model.head is not None
    model.embedding.load_state_dict({"weight": getattr(body, family.embedding).weight})
    model.norm.load_state_dict({"weight": getattr(body, family.norm).weight})
    model.head.load_state_dict({"weight": theirs.lm_head.weight})
    if config.tie_word_embeddings:
        model.head.weight = model.embedding.weight
    for block, layer, translation in zip(model.layers.chain(), body.layers, translations, strict=True):
        assert isinstance(block, ResidualBlock)
        _fill(block.mixer, translation)
        block.mixer_norm.load_state_dict({"weight": getattr(layer, family.mixer_norm).weight})
        if block.channel is not None and block.channel_norm is not None:
            block.channel_norm.load_state_dict({"weight": getattr(layer, family.channel_norm).weight})
            block.channel.load_state_dict(_channel_weights(getattr(layer, family.channel), block.channel))
    return model


def _channels(config: Any, family: Family) -> dict[str, Any]:
    """Options of the backbone's channel mixers."""
    if not family.channel:
        return {"d_channel": 0}
    _expect(
        config, {"hidden_act": (config.hidden_act, "silu"), "mlp_bias": (getattr(config, "mlp_bias", False), False)}
    )
    options = {"d_channel": config.intermediate_size}
    if getattr(config, "num_experts", 1) > 1:
        options |= {"n_experts": config.num_experts, "top_k": config.num_experts_per_tok}
        options |= {"expert_period": config.expert_layer_period, "expert_offset": config.expert_layer_offset}
    return options


def _channel_weights(theirs: Any, ours: nn.Module) -> Weights:
    if isinstance(ours, Experts):
        experts = theirs.experts
        return {
            "router.weight": theirs.router.weight,
            "up_proj": experts.gate_up_proj,
            "down_proj": experts.down_proj,
        }
    gate_up = torch.cat([theirs.gate_proj.weight, theirs.up_proj.weight])
    return {"up_proj.weight": gate_up, "down_proj.weight": theirs.down_proj.weight}
