"""Convert mixers of transformers: options, weights and supported configurations, one function per kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.loading.transformers.reading import (
    ONES,
    ZEROS,
    Fields,
    Part,
    Table,
    Take,
    eps_of,
    exact_buffers,
    mixtures,
    norm_weight,
    same,
    take,
)
from zoo.mixers.mla import NORM_EPS
from zoo.ops.attention import alibi_slopes
from zoo.ops.rope import SCALINGS

ROPE_TYPES = ("default", *SCALINGS)
PARTIAL_ROPE = (
    "BambaAttention",
    "Qwen3NextAttention",
    "Qwen3_5Attention",
    "Qwen3_5MoeAttention",
    "RecurrentGemmaAttention",
)
"""Layers that use partial_rotary_factor; other layers of transformers ignore it."""


WINDOW_IN_CONFIG = ("MiniMaxAttention",)
"""Attention layers that read the window from the configuration, not from an attribute."""


class Layer(NamedTuple):
    """The mixer for a layer of transformers, and the function that reads the layer."""

    mixer: str
    read: Callable[[Any], Part]


# State space models

_BLOCK = take(conv__weight="conv1d.weight", conv__bias="conv1d.bias") | same(
    "in_proj.weight", "A_log", "D", "out_proj.weight"
)
_SSM = _BLOCK | same("x_proj.weight", "dt_proj.weight", "dt_proj.bias")
_NORMED = ("dt_b_c_norm.0.weight", "dt_b_c_norm.1.weight", "dt_b_c_norm.2.weight")


def _mamba_fields(theirs: Any) -> Fields:
    return {
        "hidden_act": (theirs.activation, "silu"),
        "use_bias": (theirs.in_proj.bias is not None or theirs.out_proj.bias is not None, False),
        "use_conv_bias": (theirs.conv1d.bias is not None, True),
    }


def _mamba(theirs: Any) -> Part:
    expand = max(1, theirs.intermediate_size // theirs.hidden_size)
    options = {
        "d_state": theirs.ssm_state_size,
        "d_conv": theirs.conv_kernel_size,
        "expand": expand,
        "dt_rank": theirs.time_step_rank,
    }
    fields = _mamba_fields(theirs) | {"intermediate_size": (theirs.intermediate_size, expand * theirs.hidden_size)}
    return Part(options, _SSM, fields)


def _falcon_mamba(theirs: Any) -> Part:
    options, table, fields = _mamba(theirs)
    return Part(options | {"norm_eps": theirs.rms_eps}, table | dict.fromkeys(_NORMED, ONES), fields)


def _jamba_mamba(theirs: Any) -> Part:
    options, table, fields = _mamba(theirs)
    names = ("dt_layernorm", "b_layernorm", "c_layernorm")
    eps = [eps_of(getattr(theirs, name)) for name in names]
    norms = {ours: Take((f"{name}.weight",)) for ours, name in zip(_NORMED, names, strict=True)}
    fields = fields | {"rms_norm_eps of dt, B and C": (eps, [eps[0]] * 3)}
    return Part(options | {"norm_eps": eps[0]}, table | norms, fields)


def _ssd(theirs: Any) -> Part:
    norm, width = theirs.norm, theirs.intermediate_size
    normed = not isinstance(norm, nn.Identity)
    groups = width // norm.group_size if hasattr(norm, "group_size") else theirs.n_groups
    options = {
        "d_state": theirs.ssm_state_size,
        "d_conv": theirs.conv_kernel_size,
        "d_inner": width,
        "d_head": theirs.head_dim,
        "n_groups": theirs.n_groups,
        "norm_groups": groups if normed else 0,
        "dt_floor": theirs.time_step_limit[0],
    }
    fields = _mamba_fields(theirs) | {
        "time_step_limit": (tuple(theirs.time_step_limit), (theirs.time_step_limit[0], float("inf"))),
        "norm_before_gate": (getattr(norm, "norm_before_gate", False), False),
    }
    table = _BLOCK | same("dt_bias")
    if normed:
        options["norm_eps"] = eps_of(norm)
        table = table | same("norm.weight")
    return Part(options, table, fields)


def _falcon_h1_ssd(theirs: Any) -> Part:
    rows = theirs.mup_vector.flatten().double() * theirs.ssm_in_multiplier
    return _ssd(theirs).scaled({"in_proj.weight": rows})


# Attention

_TRAINED = "original_max_position_embeddings"


def _rope(theirs: Any, d_head: int) -> tuple[dict[str, Any], Fields]:
    """Read the rope of heads of width d_head: our options, and configuration fields to check."""
    longest, rope = getattr(theirs.config, "max_position_embeddings", 0), theirs.config.rope_parameters
    kind, part = rope["rope_type"], rope.get("partial_rotary_factor") or 1.0
    turned = int(d_head * part) if type(theirs).__name__ in PARTIAL_ROPE else d_head
    fields: Fields = {
        "rope_parameters.rope_type": (kind, kind if kind in ROPE_TYPES else " or ".join(ROPE_TYPES)),
        "rope_parameters.partial_rotary_factor": (part, turned / d_head),
    }
    options: dict[str, Any] = {"position": "rope", "rope_base": float(rope["rope_theta"])}
    if turned < d_head:
        return options | {"d_rope": turned}, fields | {"rope_parameters.rope_type": (kind, "default")}
    if kind == "default" or kind not in ROPE_TYPES:
        return options, fields
    given = {field: value for field, value in rope.items() if value is not None}
    trained = longest if kind == "dynamic" else given.get(_TRAINED, longest)  # as transformers reads them
    given = {"factor": longest / trained} | given | {_TRAINED: trained}
    known = (*SCALINGS[kind].required, *SCALINGS[kind].defaults)
    scaling = {"rope_type": kind} | {field: given[field] for field in known if field in given}
    return options | {"rope_scaling": scaling}, fields


def _attention(theirs: Any, norms: str = "", out: str = "o_proj") -> Part:
    """Read softmax attention without position encoding; `norms` is the name of the norms, with `{}` for q or k."""
    projections = [theirs.q_proj, theirs.k_proj, theirs.v_proj, getattr(theirs, out)]
    n_heads, n_kv_heads = (layer.weight.shape[0] // theirs.head_dim for layer in projections[:2])
    options: dict[str, Any] = {"n_heads": n_heads, "d_head": theirs.head_dim, "n_kv_heads": n_kv_heads}
    window = getattr(theirs.config if type(theirs).__name__ in WINDOW_IN_CONFIG else theirs, "sliding_window", None)
    fields: Fields = {
        "attention_bias": (any(layer.bias is not None for layer in projections), False),
        "attention_dropout": (getattr(theirs, "attention_dropout", 0.0), 0.0),
        "is_causal": (bool(theirs.is_causal and getattr(theirs.config, "is_causal", True)), True),
        "sliding_window": (window, None),
    }
    table = take(qkv_proj__weight="q_proj.weight k_proj.weight v_proj.weight", out_proj__weight=f"{out}.weight")
    part, scaling = Part(options, table, fields), theirs.scaling * theirs.head_dim**0.5
    if not norms:
        sizes = [layer.weight.shape[0] for layer in projections[:3]]
        rows = [factor for size, factor in zip(sizes, (scaling, 1.0, 1.0), strict=True) for _ in range(size)]
        return (
            part
            if abs(scaling - 1) < _ROUNDING
            else part.scaled({"qkv_proj.weight": torch.tensor(rows, dtype=torch.float64)})
        )
    paths = [norms.format(letter) for letter in "qk"]
    q_norm, k_norm = (theirs.get_submodule(path) for path in paths)
    width = "head" if q_norm.weight.shape[0] == theirs.head_dim else "all"
    eps = [eps_of(q_norm), eps_of(k_norm)]
    table = table | {"q_norm.weight": norm_weight(paths[0], q_norm), "k_norm.weight": norm_weight(paths[1], k_norm)}
    part = Part(
        options | {"qk_norm": width, "norm_eps": eps[0]}, table, fields | {"eps of q and k": (eps, eps[:1] * 2)}
    )
    return part if abs(scaling - 1) < _ROUNDING else part.scaled({"q_norm.weight": scaling})


_ROUNDING = 1e-12


def _roped(theirs: Any, norms: str = "", out: str = "o_proj") -> Part:
    part, (options, fields) = _attention(theirs, norms, out), _rope(theirs, theirs.head_dim)
    return Part(part.options | options, part.table, part.fields | fields)


def _granite_attention(theirs: Any) -> Part:
    return (_roped if theirs.config.position_embedding_type == "rope" else _attention)(theirs)


def _olmo_hybrid_attention(theirs: Any) -> Part:
    turned = (theirs.config.rope_parameters or {}).get("rope_theta") is not None
    return (_roped if turned else _attention)(theirs, norms="{}_norm")


def read_shared_attention(theirs: Any) -> Part:
    """Read the attention of Zamba2's shared transformer, without the low-rank maps of the layers that use it."""
    return (_roped if theirs.config.use_mem_rope else _attention)(theirs)


def _recurrent_gemma_attention(theirs: Any) -> Part:
    part = _roped(theirs)
    biases = [getattr(theirs, f"{name}_proj").bias is not None for name in "qkv"]
    window = {"window": theirs.sliding_window, "out_bias": theirs.o_proj.bias is not None}
    fields = part.fields | {"attention_bias": (any(biases), False), "sliding_window": (theirs.sliding_window,) * 2}
    table = part.table | (take(out_proj__bias="o_proj.bias") if window["out_bias"] else {})
    return Part(part.options | window, table, fields)


def _falcon_h1_attention(theirs: Any) -> Part:
    part, d_head = _roped(theirs), theirs.head_dim
    queries, keys = part.options["n_heads"] * d_head, part.options["n_kv_heads"] * d_head
    rows = [1.0] * queries + [theirs.key_multiplier] * keys + [1.0] * keys
    return part.scaled({"qkv_proj.weight": torch.tensor(rows, dtype=torch.float64)})


def _qwen3_next_attention(theirs: Any) -> Part:
    """Read attention whose query projection contains the queries and the gate of each head."""
    part, d_head = _roped(theirs, norms="{}_norm"), theirs.head_dim
    n_heads = part.options["n_heads"] // 2
    options = {name: value for name, value in part.options.items() if name not in ("position", "qk_norm")}
    options |= {"n_heads": n_heads, "d_rope": options.get("d_rope", d_head)}
    fields = part.fields | {"rope_parameters.rope_type": (theirs.config.rope_parameters["rope_type"], "default")}

    def queries(weight: Tensor) -> Tensor:
        q, rest = weight.split((2 * n_heads * d_head, len(weight) - 2 * n_heads * d_head))
        return torch.cat((_per_head(q, n_heads, (d_head, d_head))[0], rest))

    def gates(weight: Tensor) -> Tensor:
        return _per_head(weight, n_heads, (d_head, d_head))[1]

    changed = {
        "qkv_proj.weight": part.table["qkv_proj.weight"]._replace(change=queries, shared=True),
        "gate_proj.weight": Take(("q_proj.weight",), gates, shared=True),
    }
    return Part(options, part.table | changed, fields)


def _latent_attention(theirs: Any) -> Part:
    """Read multi-head latent attention without rope on the shared key channels."""
    d_head, d_shared, latent = theirs.qk_nope_head_dim, theirs.qk_rope_head_dim, theirs.q_lora_rank is not None
    options = {
        "n_heads": theirs.num_heads,
        "d_head": d_head,
        "d_latent": theirs.kv_lora_rank,
        "d_rope": d_shared,
        "d_query": theirs.q_lora_rank,
        "position": "none",
    }
    table = take(
        query_proj__weight="q_b_proj.weight" if latent else "q_proj.weight",
        latent_proj__weight="kv_a_proj_with_mqa.weight",
        latent_norm__weight="kv_a_layernorm.weight",
        kv_proj__weight="kv_b_proj.weight",
        out_proj__weight="o_proj.weight",
    )
    norms = [theirs.kv_a_layernorm]
    if latent:
        table |= take(query_down__weight="q_a_proj.weight", query_norm__weight="q_a_layernorm.weight")
        norms.append(theirs.q_a_layernorm)
    width = theirs.kv_a_proj_with_mqa.in_features
    ranks = {"kv_lora_rank": theirs.kv_lora_rank, "q_lora_rank": theirs.q_lora_rank}
    fields: Fields = {
        **{name: (rank, rank if (rank or 0) <= width else f"at most {width}") for name, rank in ranks.items()},
        "v_head_dim": (theirs.v_head_dim, d_head),
        "num_key_value_groups": (theirs.num_key_value_groups, 1),
        "attention_bias": (theirs.o_proj.bias is not None, False),
        "attention_dropout": (theirs.attention_dropout, 0.0),
        "is_causal": (theirs.is_causal, True),
        "eps of latents": ([eps_of(norm) for norm in norms], [NORM_EPS] * len(norms)),
    }
    return Part(options, table, fields)


def _turned_latent_attention(theirs: Any) -> Part:
    """Read multi-head latent attention with rope, whose pairs may be interleaved."""
    part, (options, fields) = _latent_attention(theirs), _rope(theirs, theirs.qk_rope_head_dim)
    n_heads, d_head, d_rope = theirs.num_heads, theirs.qk_nope_head_dim, theirs.qk_rope_head_dim
    pairs = torch.arange(d_rope).view(-1, 2).T.flatten() if theirs.config.rope_interleave else torch.arange(d_rope)
    query_rows = torch.cat((torch.arange(d_head), d_head + pairs))
    latent_rows = torch.cat((torch.arange(theirs.kv_lora_rank), theirs.kv_lora_rank + pairs))
    scaling = theirs.scaling * (d_head + d_rope) ** 0.5

    def queries(weight: Tensor) -> Tensor:
        return scaling * weight.unflatten(0, (n_heads, -1))[:, query_rows.to(weight.device)].flatten(0, 1)

    def latents(weight: Tensor) -> Tensor:
        return weight[latent_rows.to(weight.device)]

    table = part.table | {
        name: part.table[name]._replace(change=change)
        for name, change in (("query_proj.weight", queries), ("latent_proj.weight", latents))
    }
    return Part(part.options | options, table, part.fields | fields)


def _per_head(weight: Tensor, n_heads: int, sizes: tuple[int, ...]) -> list[Tensor]:
    """Split a projection with rows in the order (head, part, row) into its parts."""
    return [part.flatten(0, 1) for part in weight.unflatten(0, (n_heads, sum(sizes))).split(sizes, dim=1)]


# Others


def _rwkv(theirs: Any) -> Part:
    table = take(
        r_proj__weight="receptance.weight",
        k_proj__weight="key.weight",
        v_proj__weight="value.weight",
        out_proj__weight="output.weight",
        decay="time_decay",
        bonus="time_first",
    )
    shift = mixtures("receptance", "key", "value")
    return Part({"d_inner": theirs.attention_hidden_size}, table | shift, {})


def _delta_net(theirs: Any) -> Part:
    """Read a gated DeltaNet with two fused projections, whose rows are grouped by key head."""
    n_keys, n_heads, d_key, d_value = theirs.num_k_heads, theirs.num_v_heads, theirs.head_k_dim, theirs.head_v_dim
    group = n_heads // n_keys
    rows, pair = (d_key, d_key, group * d_value, group * d_value), (group, group)

    def several(path: str, sizes: tuple[int, ...], *chosen: int) -> Take:
        def change(weight: Tensor) -> Tensor:
            parts = _per_head(weight, n_keys, sizes)
            return torch.cat([parts[number] for number in chosen])

        return Take((f"{path}.weight",), change, shared=True)

    table: Table = {
        "qkv_proj.weight": several("in_proj_qkvz", rows, 0, 1, 2),
        "gate_proj.weight": several("in_proj_qkvz", rows, 3),
        "beta_proj.weight": several("in_proj_ba", pair, 0),
        "dt_proj.weight": several("in_proj_ba", pair, 1),
    }
    table |= same("norm.weight", "out_proj.weight")
    return _gated_delta_net(theirs, theirs.norm, table)


def _qwen3_5_delta_net(theirs: Any) -> Part:
    """Read a gated DeltaNet with one projection for queries, keys and values, and separate ones for the rest."""
    table = take(
        qkv_proj__weight="in_proj_qkv.weight",
        gate_proj__weight="in_proj_z.weight",
        beta_proj__weight="in_proj_b.weight",
        dt_proj__weight="in_proj_a.weight",
    ) | same("norm.weight", "out_proj.weight")
    return _gated_delta_net(theirs, theirs.norm, table)


def _olmo_hybrid_delta_net(theirs: Any) -> Part:
    """Read a gated DeltaNet with separate projections."""
    table = take(
        qkv_proj__weight="q_proj.weight k_proj.weight v_proj.weight",
        gate_proj__weight="g_proj.weight",
        beta_proj__weight="b_proj.weight",
        dt_proj__weight="a_proj.weight",
        norm__weight="o_norm.weight",
        out_proj__weight="o_proj.weight",
    )
    return _gated_delta_net(theirs, theirs.o_norm, table, beta_max=2.0 if theirs.allow_neg_eigval else 1.0)


def _kimi_delta(theirs: Any) -> Part:
    table = take(
        qkv_proj__weight="q_proj.weight k_proj.weight v_proj.weight",
        conv__weight="conv1d.weight",
        decay_down__weight="forget_gate.f_a_proj.weight",
        decay_up__weight="forget_gate.f_b_proj.weight",
        dt_bias="forget_gate.dt_bias",
        strength_proj__weight="b_proj.weight",
        gate_down__weight="g_a_proj.weight",
        gate_up__weight="g_b_proj.weight",
        norm__weight="o_norm.weight",
        out_proj__weight="o_proj.weight",
    )
    table |= {"A_log": Take(("forget_gate.A_log",), torch.flatten), "gate_up.bias": ZEROS}
    options = {
        "n_heads": theirs.num_heads,
        "d_head": theirs.head_dim,
        "d_conv": theirs.conv_kernel_size,
        "norm_eps": eps_of(theirs.o_norm),
    }
    return Part(options, table, {"hidden_act": (theirs.activation, "silu")})


def _gated_delta_net(theirs: Any, norm: nn.Module, table: Table, **more: Any) -> Part:
    """Read the common part of all gated DeltaNets, given the table of projections and further options."""
    d_key, d_value = theirs.head_k_dim, theirs.head_v_dim
    expand = max(1, d_value // d_key)
    options = {
        "n_heads": theirs.num_v_heads,
        "n_key_heads": theirs.num_k_heads,
        "d_head": d_key,
        "expand": expand,
        "d_conv": theirs.conv_kernel_size,
        "norm_eps": eps_of(norm),
    }
    fields: Fields = {
        "hidden_act": (theirs.activation, "silu"),
        "linear_value_head_dim": (d_value, expand * d_key),
    }
    common = same("A_log", "dt_bias") | take(conv__weight="conv1d.weight")
    return Part(options | more, common | table, fields)


def _rg_lru(theirs: Any) -> Part:
    """Read Griffin's recurrent block, whose two gates are separate parameters."""

    def both(name: str, *shape: int) -> Take:
        paths = (f"rg_lru.input_gate_{name}", f"rg_lru.recurrent_gate_{name}")
        return Take(paths, lambda weight: weight.reshape(2, *shape))

    width, n_heads = theirs.lru_width, theirs.rg_lru.num_attention_heads
    d_head = width // n_heads
    table = take(
        in_proj__weight="linear_y.weight linear_x.weight",
        in_proj__bias="linear_y.bias linear_x.bias",
        conv__weight="conv_1d.weight",
        conv__bias="conv_1d.bias",
        rate="rg_lru.recurrent_param",
        out_proj__weight="linear_out.weight",
        out_proj__bias="linear_out.bias",
    )
    gates: Table = {"gate_weight": both("weight", n_heads, d_head, d_head), "gate_bias": both("bias", width)}
    options = {"d_inner": width, "n_heads": n_heads, "d_conv": theirs.conv1d_width}
    return Part(options, table | gates, {"hidden_activation": (type(theirs.act_fn).__name__, "GELUTanh")})


def _capped_mlstm(theirs: Any) -> Part:
    config, norm = theirs.config, theirs.multihead_norm
    table = take(
        in_proj__weight="q.weight k.weight v.weight ogate_preact.weight",
        gate_proj__weight="igate_preact.weight fgate_preact.weight",
        gate_proj__bias="igate_preact.bias fgate_preact.bias",
        norm_weight="multihead_norm.weight",
        out_proj__weight="out_proj.weight",
    )
    options = {
        "n_heads": norm.num_heads,
        "d_head": theirs.v_dim // norm.num_heads,
        "d_key": theirs.qk_dim // norm.num_heads,
        "gate_cap": config.gate_soft_cap,
        "norm_eps": eps_of(norm),
    }
    fields: Fields = {
        "weight_mode": (config.weight_mode, "single"),
        "use_bias": (config.use_bias, False),
        "eps": (config.eps, 1e-6),
    }
    return Part(options, table, fields)


def _lightning(theirs: Any) -> Part:
    """Read lightning attention, whose projection contains queries, keys and values of each head."""
    n_heads, d_head = theirs.num_attention_heads, theirs.head_dim
    slope = exact_buffers(theirs)["slope_rate"].flatten()[-1].item()

    def qkv(weight: Tensor) -> Tensor:
        return torch.cat(_per_head(weight, n_heads, (d_head,) * 3))

    table = same("norm.weight", "out_proj.weight") | take(gate_proj__weight="output_gate.weight")
    powers = n_heads & (n_heads - 1) == 0
    fields: Fields = {
        "num_attention_heads": (n_heads, n_heads if powers else "a power of two"),
        "hidden_act": (type(theirs.act_fn).__name__, "SiLUActivation"),
        "eps of the norm": (eps_of(theirs.norm), 1e-6),
    }
    options = {"n_heads": n_heads, "d_head": d_head, "slope_scale": slope / alibi_slopes(n_heads)[-1].item()}
    return Part(options, table | {"qkv_proj.weight": Take(("qkv_proj.weight",), qkv)}, fields)


def _gated_conv(theirs: Any) -> Part:
    table = take(in_proj__weight="in_proj.weight", conv__weight="conv.weight", out_proj__weight="out_proj.weight")
    return Part({"d_conv": theirs.conv_kernel_size}, table, {"conv_bias": (theirs.bias, False)})


LAYERS = {
    "MambaMixer": Layer("selective_ssm", _mamba),
    "FalconMambaMixer": Layer("selective_ssm", _falcon_mamba),
    "JambaMambaMixer": Layer("selective_ssm", _jamba_mamba),
    "Mamba2Mixer": Layer("ssd", _ssd),
    "BambaMixer": Layer("ssd", _ssd),
    "Zamba2MambaMixer": Layer("ssd", _ssd),
    "GraniteMoeHybridMambaLayer": Layer("ssd", _ssd),
    "NemotronHMamba2Mixer": Layer("ssd", _ssd),
    "FalconH1Mixer": Layer("ssd", _falcon_h1_ssd),
    "JambaAttention": Layer("attention", _attention),
    "NemotronHAttention": Layer("attention", _attention),
    "GraniteMoeHybridAttention": Layer("attention", _granite_attention),
    **dict.fromkeys(("LlamaAttention", "MiniMaxAttention"), Layer("attention", _roped)),
    "MiniMaxLightningAttention": Layer("lightning_attention", _lightning),
    "BambaAttention": Layer("attention", _roped),
    "FalconH1Attention": Layer("attention", _falcon_h1_attention),
    "Qwen3Attention": Layer("attention", partial(_roped, norms="{}_norm")),
    "Qwen3MoeAttention": Layer("attention", partial(_roped, norms="{}_norm")),
    "Lfm2Attention": Layer("attention", partial(_roped, norms="{}_layernorm", out="out_proj")),
    "Qwen3NextAttention": Layer("gated_attention", _qwen3_next_attention),
    "Qwen3NextGatedDeltaNet": Layer("gated_delta_net", _delta_net),
    **dict.fromkeys(("Qwen3_5Attention", "Qwen3_5MoeAttention"), Layer("gated_attention", _qwen3_next_attention)),
    **dict.fromkeys(("Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet"), Layer("gated_delta_net", _qwen3_5_delta_net)),
    "KimiLinearAttention": Layer("mla", _latent_attention),
    "KimiLinearDeltaAttention": Layer("kda", _kimi_delta),
    "DeepseekV3Attention": Layer("mla", _turned_latent_attention),
    "OlmoHybridAttention": Layer("attention", _olmo_hybrid_attention),
    "OlmoHybridGatedDeltaNet": Layer("gated_delta_net", _olmo_hybrid_delta_net),
    "RecurrentGemmaAttention": Layer("sliding_attention", _recurrent_gemma_attention),
    "RecurrentGemmaRecurrentBlock": Layer("rg_lru", _rg_lru),
    "Lfm2ShortConv": Layer("gated_conv", _gated_conv),
    "xLSTMLayer": Layer("capped_mlstm", _capped_mlstm),
    "RwkvSelfAttention": Layer("rwkv4", _rwkv),
}


def read_layer(theirs: nn.Module) -> Part:
    """Read a layer; the options include the mixer's name."""
    layer = LAYERS[type(theirs).__name__]
    part = layer.read(theirs)
    return part._replace(options={"name": layer.mixer, **part.options})
