"""Layers of torch and transformers, called here, against the zoo: outputs, every gradient and states in float64.

Whole models of transformers with their caches: tests/mixers/test_transformers.py.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases import draw, randomise
from tests.tolerances import assert_close
from tests.upstream.compare import CUTS, Weights, assert_same
from tests.upstream.record import in_float64
from zoo import create_mixer

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

D_MODEL, LENGTHS = 12, (7, 70)
every_length = pytest.mark.parametrize("length", LENGTHS)
Compare = Callable[..., Any]


@pytest.fixture(autouse=True)
def _float64() -> Iterator[None]:
    """Modules are made in float64, and upstream's casts to float32 are to float64."""
    with in_float64():
        yield


@pytest.fixture(params=CUTS.values(), ids=CUTS)
def compare(request: pytest.FixtureRequest, generator: torch.Generator) -> Compare:
    """Assert the same outputs and gradients on random weights; returns the zoo's last state, and the input."""

    def compare(
        layer: nn.Module,
        run: Callable[[Tensor], Tensor],
        mixer: nn.Module,
        translate: Callable[[Weights], Weights],
        length: int = 7,
    ) -> Any:
        randomise(layer, generator).eval()
        x = draw(2, length, D_MODEL, generator=generator).requires_grad_()
        y = run(x)
        dy = draw(*y.shape, generator=generator)
        weights = dict(layer.named_parameters())
        dx, *grads = torch.autograd.grad(y, [x, *weights.values()], dy)
        given = x, y.detach(), dy, dx, dict(zip(weights, grads, strict=True))
        return assert_same(mixer, translate, weights, request.param, *given), x

    return compare


def joined(w: Weights) -> Weights:
    return {
        "qkv_proj.weight": torch.cat([w[f"{name}_proj.weight"] for name in "qkv"]),
        "out_proj.weight": w["o_proj.weight"],
    }


def mask(length: int, window: int | None = None) -> Tensor:
    """transformers' own rule of who sees whom, (1, 1, length, length), to be added to logits."""
    from transformers import masking_utils

    i, j = torch.arange(length).view(-1, 1), torch.arange(length)
    visible = masking_utils.causal_mask_function(0, 0, i, j)
    if window is not None:
        visible = visible & masking_utils.sliding_window_overlay(window)(0, 0, i, j)
    return torch.zeros(length, length).masked_fill(~visible, -torch.inf)[None, None]


def build(kind: str, layer_idx: int = 0, **options: Any) -> tuple[Any, Any]:
    """An attention layer of transformers in plain Python, and its rotary embedding."""
    import transformers

    sizes = {"hidden_size": D_MODEL, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}
    sizes |= {"head_dim": 4, "attn_implementation": "eager", **options}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    name = {"GptOss": "gpt_oss", "Qwen3Next": "qwen3_next"}.get(kind, kind.lower())
    file = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    return getattr(file, f"{kind}Attention")(config, layer_idx), getattr(file, f"{kind}RotaryEmbedding")(config)


ROPE = {"rope_type": "default", "rope_theta": 50.0}


# Attention.


def test_attention_is_torchs(compare: Compare) -> None:
    layer = nn.MultiheadAttention(D_MODEL, 3, bias=False, batch_first=True)
    compare(
        layer,
        lambda x: layer(x, x, x, attn_mask=mask(7)[0, 0], need_weights=False)[0],
        create_mixer("attention", D_MODEL, n_heads=3),
        lambda w: {"qkv_proj.weight": w["in_proj_weight"], "out_proj.weight": w["out_proj.weight"]},
    )


def test_rope_and_shared_heads_are_llamas(compare: Compare) -> None:
    layer, rope = build("Llama", rope_parameters=ROPE)
    compare(
        layer,
        lambda x: layer(x, rope(x, torch.arange(7)[None]), mask(7))[0],
        create_mixer("attention", D_MODEL, n_heads=4, n_kv_heads=2, d_head=4, position="rope", rope_base=50.0),
        joined,
    )


def test_the_constant_sink_is_gpt_oss(compare: Compare) -> None:
    layer, _ = build("GptOss", attention_bias=False)
    nn.init.zeros_(layer.sinks)
    still = torch.ones(1, 7, 2), torch.zeros(1, 7, 2)  # no rotation
    compare(
        layer,
        lambda x: layer(x, still, mask(7))[0],
        create_mixer("attention", D_MODEL, n_heads=4, n_kv_heads=2, d_head=4, sink="constant"),
        lambda w: {**joined(w), "sink_logit": w["sinks"].unsqueeze(1)},
    )


@every_length
def test_the_sliding_window_is_mistrals(length: int, compare: Compare) -> None:
    layer, rope = build("Mistral")
    compare(
        layer,
        lambda x: layer(x, rope(x, torch.arange(length)[None]), mask(length, window=5))[0],
        create_mixer("sliding_attention", D_MODEL, n_heads=4, n_kv_heads=2, d_head=4, window=5, position="rope"),
        joined,
        length,
    )


@pytest.mark.parametrize("n_heads", [4, 6])
@pytest.mark.parametrize("name", ["attention", "sliding_attention"])
def test_alibi_is_blooms(name: str, n_heads: int, compare: Compare) -> None:
    from transformers.models.bloom import BloomConfig, modeling_bloom

    layer = modeling_bloom.BloomAttention(BloomConfig(hidden_size=D_MODEL, n_head=n_heads), layer_idx=0)
    layer.query_key_value.bias = layer.dense.bias = None
    mixer = create_mixer(name, D_MODEL, n_heads=n_heads, position="alibi")

    def run(x: Tensor) -> Tensor:
        alibi = modeling_bloom.build_alibi_tensor(torch.ones(2, 7), n_heads, torch.float64)
        return layer(x, torch.zeros_like(x), alibi, mask(7))[0]

    def translate(w: Weights) -> Weights:
        heads = w["query_key_value.weight"].unflatten(0, (n_heads, 3, -1)).transpose(0, 1)
        slopes = mixer.slopes.detach()  # the published ones, as both start
        return {"qkv_proj.weight": heads.flatten(0, 2), "out_proj.weight": w["dense.weight"], "slopes": slopes}

    compare(layer, run, mixer, translate)


@every_length
def test_gated_attention_is_qwen3_nexts(length: int, compare: Compare) -> None:
    layer, rope = build("Qwen3Next", head_dim=8, rope_parameters={**ROPE, "partial_rotary_factor": 0.5})

    def translate(w: Weights) -> Weights:
        q, gate = (t.flatten(0, 1) for t in w["q_proj.weight"].unflatten(0, (4, 2, 8)).unbind(1))
        return {
            **joined(w | {"q_proj.weight": q}),
            "gate_proj.weight": gate,
            **{f"{n}_norm.weight": 1 + w[f"{n}_norm.weight"] for n in "qk"},  # theirs is kept as the distance from one
        }

    compare(
        layer,
        lambda x: layer(x, rope(x, torch.arange(length)[None]), mask(length))[0],
        create_mixer("gated_attention", D_MODEL, n_heads=4, n_kv_heads=2, d_head=8, d_rope=4, rope_base=50.0),
        translate,
        length,
    )


# Linear attention.


@pytest.mark.parametrize(("length", "layer_idx"), [(7, 0), (7, 2), (70, 1)])
def test_lightning_attention_is_minimaxs(length: int, layer_idx: int, compare: Compare) -> None:
    from transformers.models.minimax import MiniMaxConfig, modeling_minimax

    sizes = {"hidden_size": D_MODEL, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 3}
    kinds = {"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 4}
    config = MiniMaxConfig(**sizes, **kinds, block_size=16)
    layer = modeling_minimax.MiniMaxLightningAttention(config, layer_idx=layer_idx)
    scale = float(layer.slope_rate[0] / 0.25)
    assert math.isclose(scale, 1 - layer_idx / 3, rel_tol=1e-4)

    def translate(w: Weights) -> Weights:
        qkv = w["qkv_proj.weight"].unflatten(0, (4, 3, 3)).transpose(0, 1).flatten(0, 2)
        gate = {"gate_proj.weight": w["output_gate.weight"]}
        return {"qkv_proj.weight": qkv, **gate, **{f"{n}.weight": w[f"{n}.weight"] for n in ("norm", "out_proj")}}

    mixer = create_mixer("lightning_attention", D_MODEL, n_heads=4, slope_scale=scale)
    state, x = compare(layer, lambda x: layer(x, None, None)[0], mixer, translate, length)
    assert_close(state.S, layer(x, None, None)[1])


@every_length
def test_differential_attention_is_diffllamas(length: int, compare: Compare) -> None:
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 6, "num_hidden_layers": 3, "rms_norm_eps": 1e-5}
    layer, rope = build("DiffLlama", 2, **sizes, rope_parameters=ROPE)

    def translate(w: Weights) -> Weights:
        # Theirs has the first softmax of every head, then the second; likewise the halves of the values.
        def in_pairs(t: Tensor) -> Tensor:
            return t.unflatten(0, (2, 3, 4)).transpose(0, 1).flatten(0, 2)

        return {
            "qkv_proj.weight": torch.cat([in_pairs(w[f"{name}_proj.weight"]) for name in "qkv"]),
            "out_proj.weight": w["o_proj.weight"],
            **{f"lambda_{n}": torch.stack((w[f"lambda_{n}1"], w[f"lambda_{n}2"])) for n in "qk"},
            "norm.weight": torch.ones(8),
        }

    compare(
        layer,
        lambda x: layer(x, rope(x, torch.arange(length)[None]), mask(length))[0],
        create_mixer("differential_attention", D_MODEL, n_heads=3, d_head=4, depth=2, rope_base=50.0),
        translate,
        length,
    )


# Nonlinear recurrence.


@pytest.mark.parametrize(("name", "kind"), [("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn", nn.RNN)])
def test_recurrent_nets_are_torchs(name: str, kind: type[nn.RNNBase], compare: Compare) -> None:
    layer = kind(D_MODEL, D_MODEL, batch_first=True)

    def translate(w: Weights) -> Weights:
        b_in, b_recurrent = w["bias_ih_l0"], w["bias_hh_l0"]
        ours = {"in_proj.weight": w["weight_ih_l0"], "recurrent": w["weight_hh_l0"], "bias": b_in + b_recurrent}
        if name == "gru":  # the new gate's recurrent bias is reset with what it belongs to
            ours["bias"] = torch.cat((ours["bias"][: 2 * D_MODEL], b_in[2 * D_MODEL :]))
            ours["recurrent_bias"] = b_recurrent[2 * D_MODEL :]
        return {**ours, "out_proj.weight": torch.eye(D_MODEL)}

    mixer = create_mixer(name, D_MODEL)
    state, x = compare(layer, lambda x: layer(x)[0], mixer, translate)
    last = layer(x)[1]
    for held, theirs in zip(state, last if name == "lstm" else (last,), strict=True):
        assert_close(held, theirs[0])


# Convolution.


@every_length
def test_the_gated_convolution_is_lfm2s(length: int, compare: Compare) -> None:
    from transformers.models.lfm2 import Lfm2Config, modeling_lfm2

    config = Lfm2Config(hidden_size=D_MODEL, num_hidden_layers=1, layer_types=["conv"])
    layer = modeling_lfm2.Lfm2ShortConv(config, layer_idx=0)
    mixer = create_mixer("gated_conv", D_MODEL)
    compare(layer, layer, mixer, lambda w: w | {"conv.weight": w["conv.weight"].squeeze(1)}, length)


# Linear recurrence.


@every_length
def test_the_real_gated_unit_is_recurrent_gemmas(length: int, compare: Compare, generator: torch.Generator) -> None:
    from transformers.models.recurrent_gemma import RecurrentGemmaConfig, modeling_recurrent_gemma

    config = RecurrentGemmaConfig(hidden_size=D_MODEL, lru_width=15, num_attention_heads=3, conv1d_width=4)
    layer = modeling_recurrent_gemma.RecurrentGemmaRecurrentBlock(config, layer_idx=0)
    for parameter in layer.rg_lru.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)  # far from a = 1, where theirs bounds a derivative
    layer.rg_lru._rnn_scan = partial(layer.rg_lru._rnn_scan, acc_dtype=torch.float64)

    def translate(w: Weights) -> Weights:
        unit = {name.removeprefix("rg_lru."): weight for name, weight in w.items() if name.startswith("rg_lru.")}
        names = ("input_gate", "recurrent_gate")
        return {
            **{f"in_proj.{kind}": torch.cat([w[f"linear_{n}.{kind}"] for n in "yx"]) for kind in ("weight", "bias")},
            "conv.weight": w["conv_1d.weight"].squeeze(1),
            "conv.bias": w["conv_1d.bias"],
            "gate_weight": torch.stack([unit[f"{name}_weight"] for name in names]),
            "gate_bias": torch.stack([unit[f"{name}_bias"].flatten() for name in names]),
            "rate": unit["recurrent_param"],
            **{f"out_proj.{kind}": w[f"linear_out.{kind}"] for kind in ("weight", "bias")},
        }

    def run(x: Tensor) -> Tensor:
        return layer(x, torch.arange(length)[None], None, use_cache=False)[0]

    mixer = create_mixer("rg_lru", D_MODEL, d_inner=15, n_heads=3)
    state, _ = compare(layer, run, mixer, translate, length)
    assert_close(state.h, layer.rg_lru.recurrent_states)


# The gated delta rule.


@every_length
def test_the_gated_delta_rule_is_qwen3_nexts(length: int, compare: Compare) -> None:
    from transformers.models.qwen3_next import Qwen3NextConfig, modeling_qwen3_next

    heads, d_head, d_value = 2, 5, 10
    config = Qwen3NextConfig(
        hidden_size=D_MODEL,
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
        linear_key_head_dim=d_head,
        linear_value_head_dim=d_value,
        layer_types=["linear_attention"],
        num_hidden_layers=1,
        rms_norm_eps=1e-5,
    )
    layer = modeling_qwen3_next.Qwen3NextGatedDeltaNet(config, layer_idx=0)

    def translate(w: Weights) -> Weights:
        per_head = w["in_proj_qkvz.weight"].unflatten(0, (heads, -1)).split((d_head, d_head, d_value, d_value), dim=1)
        q, k, v, gate = (t.flatten(0, 1) for t in per_head)
        beta, dt = w["in_proj_ba.weight"].unflatten(0, (heads, 2)).unbind(1)
        return {
            "qkv_proj.weight": torch.cat((q, k, v)),
            "conv.weight": w["conv1d.weight"].squeeze(1),
            "beta_proj.weight": beta,
            "dt_proj.weight": dt,
            "gate_proj.weight": gate,
            **{name: w[name] for name in ("A_log", "dt_bias", "norm.weight", "out_proj.weight")},
        }

    mixer = create_mixer("gated_delta_net", D_MODEL, n_heads=heads, d_head=d_head)
    compare(layer, lambda x: layer(x), mixer, translate, length)
    assert math.isclose(mixer.norm.eps, layer.norm.variance_epsilon)
