"""Convert channel mixers (MLPs, experts) of transformers to options of `zoo.blocks.ResidualBlock`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from zoo.loading.transformers.reading import Part, Table, Take, mixtures, same, take


def _swiglu(theirs: Any, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> Part:
    table = take(up_proj__weight=f"{gate}.weight {up}.weight", down_proj__weight=f"{down}.weight")
    return Part({"d_channel": theirs.get_submodule(down).in_features}, table, {})


def _falcon_h1_mlp(theirs: Any) -> Part:
    part = _swiglu(theirs)
    width = part.options["d_channel"]

    def gate(weight: Tensor) -> Tensor:
        weight[:width] *= theirs.gate_multiplier
        return weight

    table = part.table | {"up_proj.weight": part.table["up_proj.weight"]._replace(change=gate)}
    return part._replace(table=table).scaled({"down_proj.weight": theirs.down_multiplier})


def _granite_mlp(theirs: Any) -> Part:
    table = take(up_proj__weight="input_linear.weight", down_proj__weight="output_linear.weight")
    return Part({"d_channel": theirs.hidden_size}, table, {})


def _squared_relu(theirs: Any) -> Part:
    return Part(
        {"d_channel": theirs.down_proj.in_features, "channel": "relu2"}, same("up_proj.weight", "down_proj.weight"), {}
    )


def _geglu(theirs: Any) -> Part:
    part = _swiglu(theirs)
    biases = take(up_proj__bias="gate_proj.bias up_proj.bias", down_proj__bias="down_proj.bias")
    return Part(part.options | {"channel": "geglu"}, part.table | biases, {})


def _rwkv(theirs: Any) -> Part:
    table = take(gate_proj__weight="receptance.weight", up_proj__weight="key.weight", down_proj__weight="value.weight")
    options = {"d_channel": theirs.value.in_features, "channel": "rwkv"}
    return Part(options, table | mixtures("receptance", "key"), {})


def _experts(theirs: Any, router: str = "gate") -> Part:
    """Read a mixture of experts; `normalize` is set if the router normalises the weights of the chosen experts."""
    routing, down = theirs.get_submodule(router), theirs.experts.down_proj
    options = {
        "d_channel": down.shape[2],
        "n_experts": down.shape[0],
        "top_k": getattr(routing, "top_k", None) or theirs.top_k,
        "normalize": getattr(routing, "norm_topk_prob", False),
    }
    table: Table = {
        "router.weight": Take((f"{router}.weight",)),
        "up_proj": Take(("experts.gate_up_proj",)),
        "down_proj": Take(("experts.down_proj",)),
    }
    return Part(options, table, {})


def _with_shared(experts: Part, shared: Part) -> Part:
    """Add a shared expert to the experts; one of width zero adds nothing. Paths are relative to their parent module."""
    if not shared.options["d_channel"]:
        return experts
    table = experts.table | {f"shared.{name}": it for name, it in shared.table.items()}
    return Part(experts.options | {"d_shared": shared.options["d_channel"]}, table, {})


def _qwen3_next_experts(theirs: Any) -> Part:
    part = _with_shared(_experts(theirs), _swiglu(theirs.shared_expert).below("shared_expert"))
    return Part(
        part.options | {"gate_shared": True}, part.table | take(shared_gate__weight="shared_expert_gate.weight"), {}
    )


def _qwen3_5_experts(theirs: Any) -> Part:
    part = _qwen3_next_experts(theirs)
    return part._replace(options=part.options | {"normalize": True})


def _minimax_experts(theirs: Any) -> Part:
    part = _experts(theirs)
    return Part(part.options | {"normalize": True}, part.table, {"router_jitter_noise": (theirs.jitter_noise, 0.0)})


def _sigmoid_experts(theirs: Any) -> Part:
    routing = theirs.gate
    part = _with_shared(_experts(theirs), _swiglu(theirs.shared_experts).below("shared_experts"))
    options = {
        "router": "sigmoid",
        "n_groups": routing.num_group,
        "top_groups": routing.topk_group,
        "scale": routing.routed_scaling_factor,
    }
    return Part(part.options | options, part.table | take(preference="gate.e_score_correction_bias"), {})


def granite_channels(layer: Any) -> Part:
    """Read the channel mixer of a decoder layer: a shared expert, with or without other experts."""
    shared = _granite_mlp(layer.shared_mlp).below("shared_mlp")
    if layer.block_sparse_moe is None:
        return shared
    experts = _experts(layer.block_sparse_moe, "router").below("block_sparse_moe")
    part = _with_shared(experts, shared)
    return part._replace(options=part.options | {"normalize": True})  # softmax over the chosen experts


CHANNELS: dict[str, Callable[[Any], Part]] = {
    **dict.fromkeys(
        (
            "LlamaMLP",
            "Qwen3MLP",
            "Qwen3MoeMLP",
            "Qwen3NextMLP",
            "Qwen3_5MLP",
            "DeepseekV3MLP",
            "KimiLinearMLP",
            "JambaMLP",
            "BambaMLP",
            "OlmoHybridMLP",
        ),
        _swiglu,
    ),
    "Lfm2MLP": partial(_swiglu, gate="w1", up="w3", down="w2"),
    "xLSTMFeedForward": partial(_swiglu, gate="proj_up_gate", up="proj_up", down="proj_down"),
    "FalconH1MLP": _falcon_h1_mlp,
    "NemotronHMLP": _squared_relu,
    "RwkvFeedForward": _rwkv,
    "RecurrentGemmaMlp": _geglu,
    "JambaSparseMoeBlock": partial(_experts, router="router"),
    "Qwen3MoeSparseMoeBlock": _experts,
    "Qwen3NextSparseMoeBlock": _qwen3_next_experts,
    "Qwen3_5MoeSparseMoeBlock": _qwen3_5_experts,
    "MiniMaxSparseMoeBlock": _minimax_experts,
    "DeepseekV3MoE": _sigmoid_experts,
    "KimiLinearMoE": _sigmoid_experts,
}


ACTIVATIONS = {"relu2": "relu2", "geglu": "gelu_pytorch_tanh"}
"""Activation of a channel mixer in the configuration; silu for all others."""


def read_channel(theirs: nn.Module) -> Part:
    """Read a channel mixer."""
    return CHANNELS[type(theirs).__name__](theirs)
