"""Mixers reproduce the outputs, gradients and final states of upstream's layers, recorded in float64.

tools/record_upstream.py wrote the records. A differentiable function translates upstream's weights into the zoo's, so
that gradients are taken with respect to upstream's parameters and compared directly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.tolerances import assert_close
from zoo import create_mixer
from zoo.blocks import Canon
from zoo.ops.attention import alibi_slopes
from zoo.ops.diagonal import hippo_modes

RECORDS = Path(__file__).parent / "records"
LENGTHS = (7, 70)
Weights = dict[str, Tensor]


class Streamed(nn.Module):
    """Wraps a mixer so that `forward` returns outputs and last state."""

    def __init__(self, mixer: Any) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return self.mixer.stream(x)


def assert_same(
    mixer: Any,
    translate: Callable[[Weights], Weights],
    weights: Weights,
    x: Tensor,
    y: Tensor,
    dy: Tensor,
    dx: Tensor,
    grads: Weights,
) -> Any:
    """Assert that the mixer with upstream's translated weights returns y, and for dy the gradients of x and weights.

    Returns:
        The last state.
    """
    weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    x = x.detach().requires_grad_()
    ours = {f"mixer.{name}": weight for name, weight in translate(weights).items()}
    streamed = Streamed(mixer)
    assert set(ours) == set(streamed.state_dict())
    actual, state = torch.func.functional_call(streamed, ours, (x,))
    assert_close(actual, y)
    actual_dx, *actual_grads = torch.autograd.grad(actual, [x, *weights.values()], dy, materialize_grads=True)
    assert_close(actual_dx, dx)
    for name, grad in zip(weights, actual_grads, strict=True):
        assert_close(grad, grads[name])
    return state


def take(record: Any, prefix: str) -> Weights:
    """The tensors of a record whose names start with the prefix, which is removed."""
    return {key.removeprefix(prefix): torch.from_numpy(record[key]) for key in record.files if key.startswith(prefix)}


# Functions that translate upstream's parameters into the zoo's, and pair the zoo's states with upstream's.


def linear_attention(w: Weights) -> Weights:
    qkv = torch.cat([w[f"{name}_projection.weight"] for name in ("query", "key", "value")])
    return {"qkv_proj.weight": qkv, "out_proj.weight": w["out_projection.weight"]}


def joined(w: Weights) -> Weights:
    """Concatenate the projections of queries, keys and values, and their convolutions if present."""
    ours = {
        "qkv_proj.weight": torch.cat([w[f"{name}_proj.weight"] for name in "qkv"]),
        "out_proj.weight": w["o_proj.weight"],
    }
    if "q_conv1d.weight" in w:
        ours["conv.weight"] = torch.cat([w[f"{name}_conv1d.weight"] for name in "qkv"]).squeeze(1)
    return ours


def gated_linear_attention(w: Weights) -> Weights:
    return {
        **joined(w),
        "decay_down.weight": w["gk_proj.0.weight"],
        "decay_up.weight": w["gk_proj.1.weight"],
        "decay_up.bias": w["gk_proj.1.bias"],
        "gate_proj.weight": w["g_proj.weight"],
        "gate_proj.bias": torch.zeros(len(w["g_proj.weight"]), dtype=torch.float64),  # only the paper has it
        "norm.weight": w["g_norm_swish_gate.weight"],
    }


def delta_net(w: Weights) -> Weights:
    return {**joined(w), "beta_proj.weight": w["b_proj.weight"], "norm.weight": w["o_norm.weight"]}


def gated_delta_net(w: Weights) -> Weights:
    renamed = {"dt_proj.weight": w["a_proj.weight"], "gate_proj.weight": w["g_proj.weight"]}
    return {**delta_net(w), **renamed, "A_log": w["A_log"], "dt_bias": w["dt_bias"]}


def kda(w: Weights) -> Weights:
    strengths = [w[f"{name}_proj.weight"] for name in "bw" if f"{name}_proj.weight" in w]
    return {
        **joined(w),
        "strength_proj.weight": torch.cat(strengths),
        "decay_down.weight": w["f_proj.0.weight"],
        "decay_up.weight": w["f_proj.1.weight"],
        "gate_down.weight": w["g_proj.0.weight"],
        "gate_up.weight": w["g_proj.1.weight"],
        "gate_up.bias": w["g_proj.1.bias"],
        "norm.weight": w["o_norm.weight"],
        "A_log": w["A_log"],
        "dt_bias": w["dt_bias"],
    }


def comba(w: Weights) -> Weights:
    return {**gated_delta_net(w), "D": w["D"], "feedback": w["decay"]}


def mesa_net(w: Weights) -> Weights:
    qk = {name: torch.cat([w[f"{part}_{name}.weight"] for part in "qk"]) for name in ("proj", "conv1d")}
    gates = {f"gate_proj.{kind}": torch.cat([w[f"{part}_proj.{kind}"] for part in "ab"]) for kind in ("weight", "bias")}
    return {
        **gates,
        "qk_proj.weight": qk["proj"],
        "conv.weight": qk["conv1d"].squeeze(1),
        "v_proj.weight": w["v_proj.weight"],
        "ridge": w["lambda_params"].view(2, 3),
        "norm.weight": w["o_norm.weight"],
        "out_proj.weight": w["o_proj.weight"],
    }


def titans(w: Weights) -> Weights:
    rates = ("adaptive_step", "momentum", "decay_factor")
    return {
        "qkv_proj.weight": torch.cat([w[f"to_{name}.0.weight"] for name in ("queries", "keys", "values")]),
        "conv.weight": torch.ones(18, 1, dtype=torch.float64),
        **{f"rate_proj.{kind}": torch.cat([w[f"to_{name}.0.{kind}"] for name in rates]) for kind in ("weight", "bias")},
        "gate_proj.weight": w["retrieve_gate.0.weight"].repeat_interleave(3, 0),  # theirs is one per head
        "norm.weight": 1 + w["multihead_rmsnorm.gamma"].flatten(),
        "out_proj.weight": w["combine_heads.weight"],
    }


def retnet(w: Weights) -> Weights:
    return {**joined(w), "gate_proj.weight": w["g_proj.weight"], "norm.weight": w["g_norm_swish_gate.weight"]}


def hgrn2(w: Weights) -> Weights:
    inner = torch.cat([w[f"{name}_proj.weight"] for name in "qfi"])
    return {"in_proj.weight": inner, "norm.weight": w["g_norm.weight"], "out_proj.weight": w["o_proj.weight"]}


def gsa(w: Weights) -> Weights:
    return {**joined(w), "decay_proj.weight": w["f_proj.weight"], "norm.weight": w["g_norm.weight"]}


def rwkv4(w: Weights) -> Weights:
    shift = torch.cat([w[f"time_mix_{name}"] for name in ("receptance", "key", "value")]).squeeze(1)
    names = {"r_proj": "receptance", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
    maps = {f"{ours}.weight": w[f"{theirs}.weight"] for ours, theirs in names.items()}
    return {"shift": shift, "decay": w["time_decay"], "bonus": w["time_first"], **maps}


def rwkv6(w: Weights) -> Weights:
    names = {"mix_down.weight": "x_proj.0.linear.weight", "mu": "x_proj.0.mu", "mix_up.weight": "x_proj.2.weight"}
    names |= {"mix_bias": "x_bias", "bonus": "bonus", "norm_weight": "g_norm.weight", "norm_bias": "g_norm.bias"}
    names |= {
        f"{ours}_proj.weight": f"{theirs}_proj.linear.weight"
        for ours, theirs in zip(("r", "k", "v", "gate"), "rkvg", strict=True)
    }
    names |= {"decay_down.weight": "w_proj.linear.lora.0.weight", "out_proj.weight": "o_proj.weight"}
    names |= {f"decay_up.{kind}": f"w_proj.linear.lora.2.{kind}" for kind in ("weight", "bias")}
    return {ours: w[theirs] for ours, theirs in names.items()}


def rwkv7(w: Weights) -> Weights:
    ours = {
        "shift": torch.cat([w[f"x_{name}"] for name in "rwkvag"]).squeeze(1),
        "kappa_scale": w["k_k"],
        "key_rate": w["k_a"],
        "bonus": w["r_k"],
        "norm_weight": w["g_norm.weight"],
        "norm_bias": w["g_norm.bias"],
        "out_proj.weight": w["o_proj.weight"],
        **{f"{name}_proj.weight": w[f"{name}_proj.weight"] for name in "rkv"},
    }
    for ours_name, name in (("decay", "w"), ("rate", "a"), ("gate", "g")):
        ours[f"{ours_name}_down.weight"] = w[f"{name}_lora.lora.0.weight"]
        ours[f"{ours_name}_up.weight"] = w[f"{name}_lora.lora.2.weight"]
        if name != "g":
            ours[f"{ours_name}_up.bias"] = w[f"{name}_lora.lora.2.bias"]
    return ours


def mlstm(w: Weights) -> Weights:
    gates = {
        f"gate_proj.{part}": torch.cat([w[f"mlstm_cell.{name}gate.{part}"] for name in "if"])
        for part in ("weight", "bias")
    }
    return {
        **gates,
        **{f"{name}_blocks": w[f"{name}_proj.weight"] for name in "qkv"},
        "in_proj.weight": w["proj_up.weight"],
        "conv.weight": w["conv1d.conv.weight"].squeeze(1),
        "conv.bias": w["conv1d.conv.bias"],
        "norm_weight": 1 + w["mlstm_cell.outnorm.weight"],  # upstream stores weight - 1
        "skip": w["learnable_skip"],
        "out_proj.weight": w["proj_down.weight"],
    }


def mlstm_states(state: Any, theirs: Weights, _: Weights) -> list[tuple[Tensor, Tensor]]:
    kept = [(state.n, theirs["n"].squeeze(3)), (state.m, theirs["m"].flatten(1))]
    return [(state.C, theirs["C"]), *kept, (state.conv, theirs["conv"])]


def mamba(w: Weights) -> Weights:
    ours = {name.replace("conv1d", "conv"): tensor for name, tensor in w.items()}
    return {**ours, "conv.weight": w["conv1d.weight"].squeeze(1)}


def log_linear_ssd(w: Weights) -> Weights:
    """Upstream's in_proj has the levels' projection as its last rows, after dt."""
    ours = mamba({name: tensor for name, tensor in w.items() if name != "L"})
    inner, levels = w["in_proj.weight"].split((len(w["in_proj.weight"]) - w["L"].numel(), w["L"].numel()))
    return {**ours, "in_proj.weight": inner, "levels.proj.weight": levels, "levels.scale": w["L"].flatten()}


def log_linear_gated_delta_net(w: Weights) -> Weights:
    ours = gated_delta_net({name: tensor for name, tensor in w.items() if name not in ("L", "l_proj.weight")})
    return {**ours, "levels.proj.weight": w["l_proj.weight"], "levels.scale": w["L"].flatten()}


def pairs(d_state: int, angles: int) -> list[int]:
    """Upstream's index of each state channel of the zoo: the rotated pair (m, m + angles) is (2m, 2m + 1) upstream."""
    return [*range(0, 2 * angles, 2), *range(1, 2 * angles, 2), *range(2 * angles, d_state)]


def mamba3(w: Weights, angles: int) -> Weights:
    ours = dict(w)
    n_heads, rank, d_state = w["B_bias"].shape
    order, d_inner = pairs(d_state, angles), w["out_proj.weight"].shape[1]
    for name in ("B_norm.weight", "C_norm.weight", "B_bias", "C_bias"):
        ours[name] = w[name][..., order]
    wide = rank * d_state
    z_u, B, C, rest = w["in_proj.weight"].split((2 * d_inner, wide, wide, 3 * n_heads + angles))
    B, C = (t.unflatten(0, (rank, d_state))[:, order].flatten(0, 1) for t in (B, C))
    ours["in_proj.weight"] = torch.cat((z_u, B, C, rest))
    if rank > 1:
        ours["rank_mix"] = torch.stack([ours.pop(f"mimo_{name}") for name in ("x", "z", "o")])
    return ours


def mamba3_state(state: Any, theirs: Weights, angles: int, w: Weights) -> list[tuple[Tensor, Tensor]]:
    order = pairs(state.h.shape[2], angles)
    keys, turned = theirs["k"].view_as(state.k), theirs["angle"]
    values = state.u if "u" in theirs else state.u.unsqueeze(2) * w["mimo_x"]
    return [
        (state.h, theirs["h"].transpose(2, 3)[:, :, order]),
        (state.k, keys[..., order]),
        (values, theirs["u"] if "u" in theirs else theirs["v"]),
        (state.angle.cos(), turned.cos()),
        (state.angle.sin(), turned.sin()),
    ]


def s4d(w: Weights) -> Weights:
    return {
        "log_rate": w["kernel.log_A_real"],
        "frequency": w["kernel.A_imag"],
        "log_dt": w["kernel.log_dt"],
        "C": w["kernel.C"],
        "D": w["D"],
        "out_proj.weight": w["output_linear.0.weight"].squeeze(2),
        "out_proj.bias": w["output_linear.0.bias"],
    }


def ring(w: Weights) -> Weights:
    """The LRU. Upstream takes Re(C h); the zoo counts a pole and its conjugate, so C is halved."""
    return {
        "log_rate": w["nu_log"],
        "frequency": w["theta_log"].exp(),
        "B": torch.stack((w["B_re"], w["B_im"]), 2),
        "C": torch.stack((w["C_re"], w["C_im"]), 2) / 2,
        "D": w["D"],
    }


def lru(w: Weights) -> Weights:
    return {**ring(w), "log_gain": w["gamma_log"]}


def linoss(w: Weights) -> Weights:
    maps = {name: w[name].movedim(2, 0) for name in "BC"}
    return {"stiffness": w["A_diag"], "dt_logit": w["steps"], "D": w["D"], **maps}


def s5(w: Weights) -> Weights:
    return {
        "log_rate": (-w["Lambda_re"]).log(),
        "frequency": w["Lambda_im"],
        "log_dt": w["log_step"].squeeze(1),
        **{name: w[name] for name in "BCD"},
    }


def forgetting_attention(w: Weights) -> Weights:
    return {**joined(w), **{f"forget_proj.{kind}": w[f"f_proj.{kind}"] for kind in ("weight", "bias")}}


def forgetting_states(state: Any, theirs: Weights, _: Weights) -> list[tuple[Tensor, Tensor]]:
    """Upstream caches log f per position, the zoo its sum over later positions."""
    later = theirs["f"].sum(1, keepdim=True) - theirs["f"].cumsum(1)
    return [
        (state.keys, theirs["k"].transpose(1, 2)),
        (state.values, theirs["v"].transpose(1, 2)),
        (state.forgotten.squeeze(3), later.transpose(1, 2)),
    ]


def deltaformer(w: Weights) -> Weights:
    return {**joined(w), **{f"beta_proj.{kind}": w[f"b_proj.{kind}"] for kind in ("weight", "bias")}}


def path_attention(w: Weights) -> Weights:
    renamed = {"beta_proj": "bt_proj", "forget_proj": "g_proj"}
    return {
        **joined(w),
        "w_down.weight": w["w_proj.0.weight"],
        "w_up.weight": w["w_proj.1.weight"],
        "conv.weight": w["w_conv1d.weight"].squeeze(1),
        **{f"{ours}.{kind}": w[f"{theirs}.{kind}"] for ours, theirs in renamed.items() for kind in ("weight", "bias")},
    }


def path_states(state: Any, theirs: Weights, _: Weights) -> list[tuple[Tensor, Tensor]]:
    """Upstream's reference does not return the transformed keys; the rest of its cache is compared."""
    later = theirs["g"].sum(1, keepdim=True) - theirs["g"].cumsum(1)
    return [
        (state.values, theirs["v"].transpose(1, 2)),
        (state.forgotten.squeeze(3), later.transpose(1, 2)),
        (state.conv, theirs["conv"]),
    ]


def slstm(w: Weights) -> Weights:
    recurrent, bias = w["slstm_cell._recurrent_kernel_"], w["slstm_cell._bias_"]  # (heads, gates * out, in), flat
    gates = ("fgate", "igate", "zgate", "ogate")  # upstream's names of the cell's i, f, z, o
    return {
        "conv.weight": w["conv1d.conv.weight"].squeeze(1),
        "conv.bias": w["conv1d.conv.bias"],
        "weight": torch.stack([w[f"{gate}.weight"] for gate in gates]),
        "recurrent": recurrent.unflatten(1, (4, -1)).transpose(0, 1),
        "bias": bias.view(4, len(recurrent), -1),
        "norm_weight": 1 + w["group_norm.weight"].view(len(recurrent), -1),
    }


def slstm_states(state: Any, theirs: Weights, _: Weights) -> list[tuple[Tensor, Tensor]]:
    return [(state.conv, theirs["conv"]), (torch.stack(state[1:]).flatten(2), theirs["cell"])]


def hyena(w: Weights) -> Weights:
    net = "filter_fn.implicit_filter"
    return {
        **{f"{name}.{kind}": w[f"{name}.{kind}"] for name in ("in_proj", "out_proj") for kind in ("weight", "bias")},
        "conv.weight": w["short_filter.weight"].squeeze(1),
        "conv.bias": w["short_filter.bias"],
        "D": w["filter_fn.bias"],
        **{f"filter.layers.{n}.{kind}": w[f"{net}.{2 * n}.{kind}"] for n in range(3) for kind in ("weight", "bias")},
        "filter.frequency": w[f"{net}.1.freq"].squeeze(0),
        "filter.out_proj.weight": w[f"{net}.6.weight"],
    }


def minimal_recurrence(w: Weights) -> Weights:
    (inner,) = {"to_hidden_and_gate.weight", "to_hidden_and_f_i_gate.weight"} & set(w)
    return {"in_proj.weight": w[inner], "out_proj.weight": w["to_out.weight"]}


def minimal_states(state: Any, theirs: Weights, _: Weights) -> list[tuple[Tensor, Tensor]]:
    return [(state.h, theirs["h"].squeeze(1))]


def sink(w: Weights) -> Weights:
    return {**joined(w), "sink_logit": w["sinks"].unsqueeze(1)}


def lightning_attention(w: Weights) -> Weights:
    renamed = {"gate_proj.weight": w["output_gate.weight"], "norm.weight": w["norm.weight"]}
    qkv = w["qkv_proj.weight"].unflatten(0, (4, 3, 3)).transpose(0, 1).flatten(0, 2)
    return {"qkv_proj.weight": qkv, "out_proj.weight": w["out_proj.weight"], **renamed}


def differential_attention(w: Weights) -> Weights:
    """Upstream orders the first softmax of all heads before the second, and halves of values likewise."""
    pairs = {
        f"{n}_proj.weight": w[f"{n}_proj.weight"].unflatten(0, (2, 3, 4)).transpose(0, 1).flatten(0, 2) for n in "qkv"
    }
    lambdas = {f"lambda_{n}": torch.stack((w[f"lambda_{n}1"], w[f"lambda_{n}2"])) for n in "qk"}
    return {**joined(w | pairs), **lambdas, "norm.weight": torch.ones(8, dtype=torch.float64)}


def pairs_apart(t: Tensor) -> Tensor:
    """Reorder the last axis from neighbouring pairs to first and second halves."""
    return torch.cat((t[..., ::2], t[..., 1::2]), dim=-1)


def mla(w: Weights) -> Weights:
    """Upstream rotates neighbouring channels: the last 4 of each of 4 heads, and the 4 after the latent."""
    q = w["q_b_proj.weight"].unflatten(0, (4, 7)).transpose(1, 2)
    latent, k = w["kv_a_proj_with_mqa.weight"].split((6, 4))
    return {
        "query_down.weight": w["q_a_proj.weight"],
        "query_norm.weight": w["q_a_layernorm.weight"],
        "query_proj.weight": torch.cat((q[..., :3], pairs_apart(q[..., 3:])), 2).transpose(1, 2).flatten(0, 1),
        "latent_proj.weight": torch.cat((latent, pairs_apart(k.T).T)),
        "latent_norm.weight": w["kv_a_layernorm.weight"],
        "kv_proj.weight": w["kv_b_proj.weight"],
        "out_proj.weight": w["o_proj.weight"],
    }


def dsa(w: Weights) -> Weights:
    """Upstream rotates the indexer's channels by halves, like the zoo."""
    index = {
        "index_query_proj.weight": "wq_b.weight",
        "index_key_proj.weight": "wk.weight",
        "index_norm.weight": "k_norm.weight",
        "index_norm.bias": "k_norm.bias",
        "index_weight_proj.weight": "weights_proj.weight",
    }
    return {**mla(w), **{ours: w[f"indexer.{theirs}"] for ours, theirs in index.items()}}


def dsa_states(state: Any, theirs: Weights, _: Weights) -> list[tuple[Tensor, Tensor]]:
    return [*mla_states(state, theirs, _), (state.index_keys.squeeze(1), theirs["index"])]


def mla_states(state: Any, theirs: Weights, _: Weights) -> list[tuple[Tensor, Tensor]]:
    return list(zip(state.latents.split((6, 4), dim=3), (theirs["c"], theirs["k"]), strict=True))


@dataclass(frozen=True)
class Twin:
    """The zoo's mixer for a record: its options, the translation of weights, and the pairs of states to compare."""

    name: str
    options: dict[str, Any]
    weights: Callable[[Weights], Weights]
    states: Callable[[Any, Weights, Weights], list[tuple[Tensor, Tensor]]] = lambda *_: []


def alike(*names: str) -> Callable[[Any, Weights, Weights], list[tuple[Tensor, Tensor]]]:
    """Pair the parts of the state that have the same name and shape upstream."""
    return lambda state, theirs, _: [(getattr(state, name), theirs[name]) for name in names]


def mamba_states(state: Any, theirs: Weights, _: Weights, swap: bool) -> list[tuple[Tensor, Tensor]]:
    h = theirs["h"].transpose(2, 3) if swap else theirs["h"]
    return [(state.h, h), (state.conv, theirs["conv"][:, :, 1:].transpose(1, 2))]  # upstream keeps one input more


def mamba3_twin(angles: int, **options: Any) -> Twin:
    return Twin(
        "mamba3",
        options,
        partial(mamba3, angles=angles),
        lambda state, theirs, w: mamba3_state(state, theirs, angles, w),
    )


TWINS = {
    "linear_attention": Twin(
        "linear_attention",
        {"n_heads": 2},
        linear_attention,
        lambda state, theirs, _: [(state.outer[..., :-1], theirs["S"]), (state.outer[..., -1], theirs["z"])],
    ),
    "gated_linear_attention": Twin(
        "gated_linear_attention",
        {"n_heads": 2, "gate_rank": 3},
        gated_linear_attention,
        alike("S"),
    ),
    "delta_net": Twin("delta_net", {"n_heads": 2}, delta_net, alike("S", "conv")),
    "gated_delta_net": Twin("gated_delta_net", {"n_heads": 2, "beta_max": 2.0}, gated_delta_net, alike("S", "conv")),
    "log_linear_gated_delta_net": Twin(
        "log_linear_gated_delta_net",
        {"n_heads": 2, "d_head": 4, "n_levels": 8},
        log_linear_gated_delta_net,
        alike("conv"),  # upstream merges its levels one position later
    ),
    "kda": Twin("kda", {"n_heads": 2, "expand": 2, "beta_max": 2.0}, kda, alike("S", "conv")),
    "gdn2": Twin("gdn2", {"n_heads": 2, "expand": 2, "beta_max": 2.0}, kda, alike("S", "conv")),
    "comba": Twin("comba", {"n_heads": 2}, comba, alike("S", "conv")),
    "mesa_net": Twin("mesa_net", {"n_heads": 2}, mesa_net, alike("H", "S", "conv")),
    "titans": Twin("titans", {"n_heads": 2, "d_conv": 1}, titans, alike("S", "Z")),
    "delta_product": Twin("delta_product", {"n_heads": 2}, gated_delta_net, alike("S", "conv")),
    "retnet": Twin("retnet", {"n_heads": 2}, retnet),
    "hgrn2": Twin("hgrn2", {"n_heads": 2, "lower_bound": 0.25}, hgrn2, alike("S")),
    "rwkv4": Twin(
        "rwkv4",
        {"d_inner": 10},
        rwkv4,
        lambda state, theirs, _: [
            (state.last[:, 0], theirs["last"]),
            *((getattr(state, name), theirs[name]) for name in ("numerator", "denominator", "largest")),
        ],
    ),
    "rwkv6": Twin("rwkv6", {"n_heads": 2, "d_key": 2, "mix_rank": 3, "decay_rank": 5}, rwkv6, alike("S", "last")),
    "gsa": Twin("gsa", {"n_heads": 2, "n_slots": 5}, gsa, alike("keys", "values")),
    "rwkv7": Twin("rwkv7", {"n_heads": 2, "decay_rank": 3, "gate_rank": 3}, rwkv7, alike("S", "last")),
    "mlstm": Twin("mlstm", {"n_heads": 2}, mlstm, mlstm_states),
    "selective_ssm": Twin("selective_ssm", {"d_state": 3, "dt_rank": 2}, mamba, partial(mamba_states, swap=False)),
    "ssd": Twin("ssd", {"d_state": 3, "d_head": 2, "n_groups": 2}, mamba, partial(mamba_states, swap=True)),
    "log_linear_ssd": Twin("log_linear_ssd", {"d_state": 3, "d_head": 2, "n_groups": 2, "n_levels": 8}, log_linear_ssd),
    "mamba3": mamba3_twin(2, d_state=8, d_head=4),
    "mamba3_softplus": mamba3_twin(2, d_state=8, d_head=4, rate_map="softplus"),
    "mamba3_ranks": mamba3_twin(2, d_state=4, d_head=3, rank=2, rotated="all"),
    "s4d": Twin("s4d", {"d_state": 6}, s4d),
    "forgetting_attention": Twin(
        "forgetting_attention", {"n_heads": 4, "n_kv_heads": 2}, forgetting_attention, forgetting_states
    ),
    "path_attention": Twin(
        "path_attention", {"n_heads": 4, "n_kv_heads": 2, "forget_gate": True}, path_attention, path_states
    ),
    "deltaformer": Twin(
        "deltaformer",
        {"n_heads": 2, "rope_base": 50.0},
        deltaformer,
        lambda state, theirs, _: [(state.keys, theirs["k"]), (state.values, theirs["u"])],
    ),
    "slstm": Twin("slstm", {"n_heads": 2}, slstm, slstm_states),
    "hyena": Twin("hyena", {"d_filter": 5, "n_frequencies": 2, "max_seq_len": 80}, hyena),
    "min_gru": Twin("min_gru", {"d_inner": 9}, minimal_recurrence, minimal_states),
    "min_lstm": Twin("min_lstm", {"d_inner": 9}, minimal_recurrence, minimal_states),
    "ring": Twin("diagonal_ssm", {"d_state": 10, "init": "ring"}, ring),
    "lru": Twin("lru", {"d_state": 10}, lru),
    "linoss": Twin("linoss", {"d_state": 5}, linoss),
    "linoss_symplectic": Twin("linoss", {"d_state": 5, "scheme": "symplectic"}, linoss),
    "sink": Twin("attention", {"n_heads": 4, "n_kv_heads": 2, "d_head": 4, "sink": "constant"}, sink),
    "lightning_attention": Twin(
        "lightning_attention", {"n_heads": 4, "slope_scale": 1 - 2 / 3.00001 + 1e-5}, lightning_attention, alike("S")
    ),
    "differential_attention": Twin(
        "differential_attention",
        {"n_heads": 3, "d_head": 4, "depth": 2, "rope_base": 50.0},
        differential_attention,
    ),
    "s5": Twin("s5", {"d_state": 10}, s5),
    "mla": Twin(
        "mla",
        {"n_heads": 4, "d_head": 3, "d_latent": 6, "d_rope": 4, "d_query": 5, "rope_base": 50.0},
        mla,
        mla_states,
    ),
    "dsa": Twin(
        "dsa",
        {
            "n_heads": 4,
            "d_head": 3,
            "d_latent": 6,
            "d_rope": 4,
            "d_query": 5,
            "rope_base": 50.0,
            "n_index_heads": 8,
            "d_index": 6,
            "top_k": 3,
        },
        dsa,
        dsa_states,
    ),
    "nsa": Twin(
        "nsa",
        {"n_heads": 32, "n_kv_heads": 2, "d_head": 2, "block_size": 4, "top_k": 4, "window": 5, "rope_base": 50.0},
        lambda w: {**joined(w), "gate_proj.weight": w["g_proj.weight"]},
        lambda state, theirs, _: [
            (state.keys.transpose(1, 2), theirs["k"]),
            (state.values.transpose(1, 2), theirs["v"]),
        ],
    ),
    "moba": Twin(
        "moba",
        {"n_heads": 4, "n_kv_heads": 2, "d_head": 4, "block_size": 4, "top_k": 2, "rope_base": 50.0},
        joined,
        lambda state, theirs, _: [(state.keys, theirs["k"]), (state.values, theirs["v"])],
    ),
}


def test_every_record_is_compared() -> None:
    layers = {f"{name}-{length}" for name in TWINS for length in LENGTHS}
    assert {path.stem for path in RECORDS.glob("*.npz")} == {"alibi", "canon", *layers}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", TWINS)
def test_the_mixer_is_upstreams_layer(name: str, length: int) -> None:
    twin, record = TWINS[name], np.load(RECORDS / f"{name}-{length}.npz")
    x, y, dy, dx = (torch.from_numpy(record[key]) for key in ("x", "y", "dy", "dx"))
    mixer = create_mixer(twin.name, x.shape[2], **twin.options).double()
    theirs = take(record, "weight.")
    state = assert_same(mixer, twin.weights, theirs, x, y, dy, dx, take(record, "grad."))
    compared = twin.states(state, take(record, "state."), theirs)
    assert len(compared) >= len(take(record, "state."))
    for held, recorded in compared:
        assert_close(held, recorded)


@pytest.mark.parametrize("d_state", [2, 6, 16])
def test_s5_starts_with_the_published_frequencies(d_state: int) -> None:
    """And with the eigenvectors of HiPPO-LegS plus the rank-one term that makes it normal."""
    published = np.load(RECORDS / "s5-7.npz")[f"start.{d_state}"]
    frequency, vectors = hippo_modes(d_state)
    assert_close(torch.cat((-frequency.flip(0), frequency)), published)
    n = np.arange(d_state)
    hippo = np.where(n[:, None] > n, -np.sqrt(np.outer(2 * n + 1, 2 * n + 1)), 0) - np.diag(n + 1)
    normal = torch.tensor(hippo + np.sqrt(np.outer(n + 0.5, n + 0.5))).to(vectors.dtype)
    for held, expected in (
        (normal @ vectors, vectors * (-0.5 + 1j * frequency)),
        (vectors.mH @ vectors, torch.eye(d_state // 2).to(vectors.dtype)),
    ):
        assert_close(torch.view_as_real(held), torch.view_as_real(expected))


def test_a_canon_layer_is_the_published_one() -> None:
    record = np.load(RECORDS / "canon.npz")
    x, y, dy, dx, weight, grad = (torch.from_numpy(record[key]) for key in ("x", "y", "dy", "dx", "weight", "grad"))
    layer = Canon(x.shape[2]).double()
    given = {"weight": weight}, x, y, dy, dx, {"weight": grad}
    assert_same(layer, lambda w: {"weight": w["weight"].squeeze(1)}, *given)


def test_alibis_slopes_are_the_published_ones() -> None:
    record = np.load(RECORDS / "alibi.npz")
    for n_heads in range(1, 25):
        assert_close(alibi_slopes(n_heads), record[f"slopes.{n_heads}"])
    for name in ("attention", "sliding_attention"):
        assert_close(create_mixer(name, 12, n_heads=12, position="alibi").slopes, record["slopes.12"])
