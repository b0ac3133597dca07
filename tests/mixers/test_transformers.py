"""`load_transformers`: models have the same outputs, gradients and states in the zoo, or are refused."""

from __future__ import annotations

import copy
import inspect
import json
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests import holding, refused, slow
from tests.cases import draw, randomise
from zoo import Backbone, SequenceMixer, load_transformers
from zoo.blocks import ResidualBlock
from zoo.loading.transformers import LAYERS
from zoo.registry import MIXERS
from zoo.sharing import SharedTransformer

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

BATCH, SEQ_LEN, D_MODEL, VOCAB = 2, 13, 16, 19

# All widths differ, so that a mix-up of two fails.
MAMBA = [
    {"state_size": 4, "conv_kernel": 4, "expand": 2, "time_step_rank": 3},
    {"state_size": 16, "conv_kernel": 2, "expand": 1, "time_step_rank": 1},
    {"state_size": 5, "conv_kernel": 3, "expand": 3},
]
MAMBA2 = [
    {"state_size": 8, "conv_kernel": 4, "expand": 2, "head_dim": 8, "num_heads": 4, "n_groups": 1, "chunk_size": 4},
    {"state_size": 5, "conv_kernel": 2, "expand": 3, "head_dim": 6, "num_heads": 8, "n_groups": 4, "chunk_size": 16},
]
HEADS = [
    {"num_attention_heads": 4, "num_key_value_heads": 4},
    {"num_attention_heads": 4, "num_key_value_heads": 2},
    {"num_attention_heads": 8, "num_key_value_heads": 1},
]
TRAINED = {"original_max_position_embeddings": 8}
ROPES = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **TRAINED},
    "yarn": {"factor": 4, "beta_fast": 4, **TRAINED},
}


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 50.0, **ROPES[kind], **fields}}


FACTORS = {"factor": 2.0, "long_factor": [1.0, 2.0], "short_factor": [1.0, 1.0], **TRAINED}
LONGROPE = {"rope_parameters": {"rope_type": "longrope", "rope_theta": 50.0, **FACTORS}}
LLAMA = [
    *HEADS,
    {**HEADS[1], "head_dim": 6, **rope("default")},
    *({**HEADS[1], "head_dim": 10, **rope(kind)} for kind in ROPES if kind != "default"),
    {**HEADS[0], "head_dim": 10, **rope("yarn", mscale=2.0, mscale_all_dim=0.5, truncate=False)},
    {**HEADS[0], "head_dim": 10, **rope("yarn", attention_factor=0.7, factor=None), "max_position_embeddings": 64},
]
JAMBA = [
    {**HEADS[1], "mamba_d_state": 4, "mamba_d_conv": 3, "mamba_expand": 2, "mamba_dt_rank": 3},
    {**HEADS[2], "mamba_d_state": 6, "mamba_d_conv": 4, "mamba_expand": 1, "mamba_dt_rank": 2, "rms_norm_eps": 1e-3},
    {**HEADS[0], "mamba_d_state": 4, "mamba_dt_rank": 2, "expert_layer_period": 8, "expert_layer_offset": 5},  # none
    {**HEADS[0], "mamba_d_state": 4, "mamba_dt_rank": 2, "expert_layer_period": 3, "expert_layer_offset": 2},
]
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
MLA = {
    "kv_lora_rank": 6,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 3,
    "v_head_dim": 3,
    "moe_intermediate_size": 8,
    "n_shared_experts": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 1.7,
}
KIMI = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_head_dim": 5,
    "linear_num_heads": 2,
    "linear_conv_kernel_dim": 3,
}
MINIMAX = {
    "layer_types": ["full_attention", "linear_attention"],
    "num_local_experts": 4,
    "block_size": 4,
    "full_attn_alpha_factor": 3.5,
    "full_attn_beta_factor": 0.7,
    "linear_attn_alpha_factor": 0.6,
    "mlp_alpha_factor": 1.5,
    "mlp_beta_factor": 1.2,
}
ZAMBA2 = {
    "layers_block_type": ["linear_attention", *["hybrid"] * 3],
    "mamba_d_state": 5,
    "mamba_d_conv": 3,
    "mamba_ngroups": 2,
    "n_mamba_heads": 4,
    "chunk_size": 4,
    "adapter_rank": 3,
    "time_step_min": 1e-9,
}
OLMO = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 4,
    "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "full_attention"],
}
DELTA = {**OLMO, "linear_value_head_dim": 8, "shared_expert_intermediate_size": 12}
GRIFFIN = {
    "num_attention_heads": 4,
    "attention_window_size": 5,
    "conv1d_width": 3,
    "block_types": ["recurrent", "attention"],
    "logits_soft_cap": 2.0,
}
HYBRID = {
    "mamba_n_heads": 4,
    "mamba_d_head": 8,
    "mamba_d_state": 5,
    "mamba_d_conv": 3,
    "mamba_n_groups": 2,
    "mamba_chunk_size": 4,
}
GRANITE = {
    "layer_types": ["linear_attention", "full_attention"],
    "shared_intermediate_size": 12,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.7,
    "logits_scaling": 2.0,
}
FALCON_H1 = {
    "mamba_d_ssm": 32,
    "key_multiplier": 0.5,
    "lm_head_multiplier": 0.3,
    "embedding_multiplier": 2.0,
    "attention_in_multiplier": 0.7,
    "attention_out_multiplier": 0.6,
    "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9],
    "ssm_in_multiplier": 1.5,
    "ssm_out_multiplier": 0.4,
    "mlp_multipliers": [0.3, 0.6],
}
NEMOTRON = {
    "head_dim": 6,
    "mamba_num_heads": 4,
    "mamba_head_dim": 6,
    "ssm_state_size": 5,
    "conv_kernel": 3,
    "n_groups": 2,
    "chunk_size": 4,
    "time_step_min": 1e-9,
}
KINDS = {
    "Mamba": MAMBA,
    "FalconMamba": [*MAMBA[:2], {**MAMBA[2], "mixer_rms_eps": 1e-2}],
    "Mamba2": MAMBA2,
    "Jamba": JAMBA,
    "Llama": LLAMA,
    "Qwen3": [
        {**HEADS[1], "head_dim": 6},
        {**HEADS[2], "head_dim": 4, "rms_norm_eps": 1e-3, **rope("yarn")},
    ],
    "Qwen3Moe": [
        {**HEADS[1], **MOE, "head_dim": 6, "decoder_sparse_step": 2, "norm_topk_prob": True},
        {**HEADS[0], **MOE, "head_dim": 4, "num_experts_per_tok": 3},
        {**HEADS[0], **MOE, "head_dim": 4, "num_hidden_layers": 4, "mlp_only_layers": [1]},
    ],
    "Qwen3Next": [
        {**HEADS[1], **MOE, **DELTA, "head_dim": 8, "decoder_sparse_step": 2},
        {**HEADS[2], **MOE, **DELTA, "head_dim": 4, "partial_rotary_factor": 1.0, "num_experts_per_tok": 3},
        {**HEADS[0], **MOE, **DELTA, "head_dim": 16, "linear_num_value_heads": 2, "rms_norm_eps": 1e-3},
    ],
    "Qwen3_5Text": [
        {**HEADS[1], **DELTA, "head_dim": 8},
        {**HEADS[0], **DELTA, "head_dim": 6, "partial_rotary_factor": 1.0, "linear_num_value_heads": 2},
    ],
    "Qwen3_5MoeText": [{**HEADS[2], **MOE, **DELTA, "head_dim": 16}],
    "DeepseekV3": [
        {
            **HEADS[0],
            **MLA,
            "q_lora_rank": 7,
            "first_k_dense_replace": 1,
            **rope("yarn", mscale=1.0, mscale_all_dim=0.8),
        },
        {**HEADS[0], **MLA, "q_lora_rank": None, "rope_interleave": False, "first_k_dense_replace": 0}
        | {"n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    ],
    "KimiLinear": [
        {**HEADS[0], **MLA, **KIMI, "first_k_dense_replace": 1},
        {**HEADS[0], **MLA, **KIMI, "q_lora_rank": 5, "linear_conv_kernel_dim": 2, "rms_norm_eps": 1e-3},
        {**HEADS[0], **MLA, **KIMI, "n_shared_experts": 0},
    ],
    "MiniMax": [
        {**HEADS[1], **MINIMAX, "head_dim": 6},
        {**HEADS[0], **MINIMAX, **rope("yarn"), "head_dim": 4, "layer_types": ["linear_attention", "full_attention"]},
    ],
    "Zamba2": [
        {**HEADS[0], **ZAMBA2, "use_shared_attention_adapter": True, "use_mem_rope": True, "num_mem_blocks": 2},
        {**HEADS[1], **ZAMBA2, "layers_block_type": ["hybrid", "linear_attention", "hybrid"], "num_mem_blocks": 4},
    ],
    "Bamba": [
        {**HEADS[1], **HYBRID, "attn_layer_indices": [1]},
        {**HEADS[0], **HYBRID, "mamba_n_groups": 1, "attn_layer_indices": [0], "rms_norm_eps": 1e-3},
    ],
    "GraniteMoeHybrid": [
        {**HEADS[1], **HYBRID, **GRANITE, "num_local_experts": 4, "position_embedding_type": "rope"},
        {**HEADS[0], **HYBRID, **GRANITE, "num_local_experts": 0, "tie_word_embeddings": True},
        {**HEADS[0], **HYBRID, **GRANITE, "num_local_experts": 4, "shared_intermediate_size": 0},
    ],
    "FalconH1": [
        {**HEADS[1], **HYBRID, **FALCON_H1, "head_dim": 6},
        {**HEADS[0], **HYBRID, "head_dim": 4, "mamba_d_ssm": 32, "mamba_rms_norm": True}
        | {"mamba_norm_before_gate": False},
    ],
    "NemotronH": [
        {**HEADS[1], **NEMOTRON, "layers_block_type": ["linear_attention", "mlp", "full_attention"]},
        {**HEADS[2], **NEMOTRON, "layers_block_type": ["full_attention", "mlp"] + 2 * ["linear_attention"]},
    ],
    "OlmoHybrid": [
        {**HEADS[1], **OLMO, **rope("yarn"), "rms_norm_eps": 1e-3},
        {**HEADS[0], **OLMO, "linear_value_head_dim": 4, "linear_allow_neg_eigval": False},
    ],
    "RecurrentGemma": [
        {**HEADS[2], **GRIFFIN},
        {**HEADS[1], **GRIFFIN, "lru_width": 24, "partial_rotary_factor": 1.0, "tie_word_embeddings": False},
    ],
    "Lfm2": [
        {**HEADS[1], "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False},
        {**HEADS[0], "layer_types": ["full_attention", "conv"], "block_multiple_of": 4, "conv_L_cache": 4},
    ],
    "Rwkv": [{}, {"attention_hidden_size": 24, "layer_norm_epsilon": 1e-5, "rescale_every": 0}],
    "xLSTM": [  # their cache knows multiples of 64
        {"hidden_size": 64, "num_heads": 4, "qk_dim_factor": 1.0, "use_cache": False, "gate_soft_cap": 1.5},
        {"hidden_size": 128, "num_heads": 2, "use_cache": False, "chunk_size": 4, "output_logit_soft_cap": 2.0},
    ],
}
DIFFERENT = ("Mamba", "Mamba2", "Jamba", "Qwen3Next", "RecurrentGemma", "Rwkv", "xLSTM")
"""Families that together have every kind of layer; tests of layers run the other families only when slow."""


without_width = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
every_config = pytest.mark.parametrize(
    ("kind", "options"),
    [
        slow(kind, options, unless=n == 0 and kind in DIFFERENT, id=f"{kind}{n}")
        for kind, configs in KINDS.items()
        for n, options in enumerate(configs)
    ],
)
"""Every family with all its options; the default run has the first options of each in DIFFERENT."""
different_kinds = pytest.mark.parametrize("kind", [slow(kind, unless=kind in DIFFERENT) for kind in KINDS])
MIXER_NAMES = ("mixer", "mamba", "self_attn", "linear_attn", "conv", "temporal_block", "mlstm_layer", "attention")


BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-10}


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Assert closeness relative to the largest entry: the roundoff of a sum does not shrink with the entry."""
    scale = expected.detach().abs().max().clamp(min=1.0)
    bound = BOUNDS[expected.dtype]
    torch.testing.assert_close(actual / scale, expected / scale, rtol=bound, atol=bound)


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make transformers compute in float64: it names float32 in norms, RoPE and residuals, which are patched."""
    import transformers.integrations.moe
    import transformers.modeling_rope_utils

    modules = [transformers.integrations.moe, transformers.modeling_rope_utils]
    configs = [getattr(transformers, f"{kind}Config").__module__ for kind in KINDS]
    modules += [import_module(name.replace("configuration_", "modeling_")) for name in configs]
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRglru

    monkeypatch.setattr(RecurrentGemmaRglru._rnn_scan, "__defaults__", (torch.float64,))
    wide = ModuleType("torch")
    vars(wide).update(vars(torch) | {"float32": torch.float64, "float": torch.float64})
    for module in modules:
        monkeypatch.setattr(module, "torch", wide)
    monkeypatch.setattr(Tensor, "float", Tensor.double)


def build(kind: str, generator: torch.Generator, **options: Any) -> Any:
    """A small causal language model of transformers with noise on every parameter, in float32 and eval mode."""
    import transformers

    sizes = {"hidden_size": D_MODEL, "vocab_size": VOCAB, "num_hidden_layers": 2, "pad_token_id": None}
    if "Mamba" not in kind:
        sizes |= {"intermediate_size": 20}
    if kind == "Zamba2":
        sizes |= {"num_hidden_layers": len(options["layers_block_type"])}
    if kind == "Jamba":
        sizes |= {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **options})
    model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config)
    model = randomise(model.float(), generator).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Without the factor some random Jambas lose five digits in float32, in either implementation.
            parameter.mul_(0.7)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):  # zero before training
                buffer.copy_(torch.randn(buffer.shape, generator=generator))
        for module in model.modules():
            if hasattr(module, "decay_factors"):  # computed in float32
                for name, decay in zip(
                    ("query", "key", "diagonal"), module.decay_factors(module.slope_rate), strict=True
                ):
                    setattr(module, f"{name}_decay", decay)
    return model


def layers_of(theirs: Any) -> list[nn.Module]:
    body = next(getattr(theirs, name) for name in ("backbone", "rwkv", "model") if hasattr(theirs, name))
    layers = getattr(body, "blocks", None) or body.layers
    layers = [getattr(layer, "mamba_decoder", layer) for layer in layers]
    return [next(m for n, m in layer.named_children() if n in MIXER_NAMES) for layer in layers]


def run_layer(theirs: Any, model: Any, x: Tensor) -> Tensor:
    """Run one of their layers alone, with the arguments that its model passes."""
    positions = torch.arange(x.shape[1])[None]
    if type(theirs).__name__.startswith("RecurrentGemma"):
        lag = positions.T - positions
        mask = (lag >= 0) & (lag < GRIFFIN["attention_window_size"])
        return theirs(x, position_ids=positions, attention_mask=mask[None, None], use_cache=False)[0]
    if MIXERS.entry(LAYERS[type(theirs).__name__].mixer).family != "softmax":
        masked = {"attention_mask", "position_embeddings"} & inspect.signature(theirs.forward).parameters.keys()
        y = theirs(x, **dict.fromkeys(masked))
        return y if isinstance(y, Tensor) else y[0]
    rotary = getattr(model.model, "rotary_emb", None)
    return theirs(x, attention_mask=None, position_embeddings=None if rotary is None else rotary(x, positions))[0]


def assert_same_gradients(ours: nn.Module, theirs: nn.Module) -> None:
    """Compare gradients in our layout. The translation of weights is affine, ours = a + b * theirs.

    So the gradient of theirs is b times the gradient of ours.
    """
    assert [name for name, p in theirs.named_parameters() if p.grad is None] == []
    moved = []
    with torch.no_grad():
        for value in (torch.zeros_like, torch.ones_like, lambda p: p.grad):
            for p in theirs.parameters():
                p.copy_(value(p))
            moved.append(dict(load_transformers(theirs, verify=False).named_parameters()))
    a, a_and_b, a_and_grad = moved
    normed = {"embedding.weight"} if hasattr(theirs, "rwkv") else set()  # not affine in their weights
    for name, p in ours.named_parameters():
        if p.requires_grad and name not in normed:
            assert_same(p.grad, (a_and_grad[name] - a[name]) / (a_and_b[name] - a[name]).square())


def drawn(generator: torch.Generator) -> Tensor:
    """Random tokens."""
    return torch.randint(VOCAB, (BATCH, SEQ_LEN), generator=generator)


def assert_same_training(ours: Any, theirs: Any, tokens: Tensor) -> None:
    """Assert the same logits, and the same gradients of their cross-entropy."""
    y, expected = ours(tokens), theirs(tokens, use_cache=False).logits
    assert_same(y, expected)
    for logits in (y, expected):
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    assert_same_gradients(ours, theirs)


# Layers.


@different_kinds
def test_a_loaded_layer_has_the_same_outputs(kind: str, generator: torch.Generator) -> None:
    model = build(kind, generator, **KINDS[kind][0])
    for theirs in [module for module in model.modules() if type(module).__name__ in LAYERS][:2]:
        ours = load_transformers(theirs)
        assert isinstance(ours, SequenceMixer)
        x = draw(BATCH, SEQ_LEN, ours.d_model, generator=generator, dtype=torch.float32)
        assert_same(ours(x), run_layer(theirs, model, x))


# Models.


@every_config
@without_width
def test_a_loaded_model_has_the_same_outputs_and_gradients_in_float64(
    kind: str, options: dict[str, Any], in_float64: None, generator: torch.Generator
) -> None:
    theirs = build(kind, generator, **options)
    ours = load_transformers(theirs)
    theirs.config._experts_implementation = "eager"  # the default implementation refuses float64
    assert {p.dtype for p in (*ours.parameters(), *theirs.parameters())} == {torch.float64}
    assert_same_training(ours, theirs, drawn(generator))


def test_rwkv_loads_its_training_weights_even_after_an_eval_pass(generator: torch.Generator) -> None:
    """In eval mode transformers halves weights in place, and the residual stream, but not the norms' epsilons."""
    theirs, tokens = build("Rwkv", generator, num_hidden_layers=5, rescale_every=2), drawn(generator)
    theirs(tokens)
    ours, theirs = load_transformers(theirs).train(), theirs.train()
    assert_same_training(ours, theirs, tokens)


def test_a_norm_of_the_embeddings_is_folded_into_them(generator: torch.Generator) -> None:
    """The gradient of theirs follows from ours by the norm's backward pass."""
    theirs, tokens = build("Rwkv", generator).train(), drawn(generator)
    ours = load_transformers(theirs)
    for logits in (ours(tokens), theirs(tokens).logits):
        logits.square().sum().backward()
    norm, weight = copy.deepcopy(theirs.rwkv.blocks[0].pre_ln), theirs.rwkv.embeddings.weight.detach().requires_grad_()
    norm.zero_grad()
    norm(weight).backward(ours.embedding.weight.grad)
    assert_same(weight.grad, theirs.rwkv.embeddings.weight.grad)
    assert_same(norm.weight.grad, theirs.rwkv.blocks[0].pre_ln.weight.grad)
    assert_same(norm.bias.grad, theirs.rwkv.blocks[0].pre_ln.bias.grad)


def test_dynamic_rope_beyond_its_length_equals_their_pass_over_the_whole_sequence(generator: torch.Generator) -> None:
    """Their cached decoding differs: it keeps keys that were rotated for a shorter sequence."""
    theirs = build("Llama", generator, **HEADS[1], head_dim=10, **rope("dynamic"), max_position_embeddings=8)
    tokens = drawn(generator)
    assert_same(load_transformers(theirs)(tokens), theirs(tokens, use_cache=False).logits)
    attention = theirs.model.layers[0].self_attn
    alone, x = load_transformers(attention), draw(BATCH, SEQ_LEN, D_MODEL, generator=generator, dtype=torch.float32)
    _, state = alone.stream(x[:, :-1])
    assert_same(alone.stream(x[:, -1:], state)[0], run_layer(attention, theirs, x)[:, -1:])


def cache_of(theirs: Any) -> Any:
    """A cache for RecurrentGemma that reads the states kept in its recurrent layers."""
    from transformers import DynamicCache

    cache: Any = DynamicCache(config=theirs.config)
    cache.get_conv_state = lambda layer, **_: layers_of(theirs)[layer].conv1d_state
    cache.get_recurrent_state = lambda layer, **_: layers_of(theirs)[layer].rg_lru.recurrent_states
    return cache


@different_kinds
def test_states_equal_the_caches_of_transformers(kind: str, generator: torch.Generator) -> None:
    """After a prompt and after each further token."""
    theirs = build(kind, generator, **KINDS[kind][0])
    ours = load_transformers(theirs)
    tokens = drawn(generator)[: 1 if kind == "Rwkv" else BATCH]  # transformers mixes up the rows of an RWKV batch
    of_kind = {"Mamba": "cache_params", "xLSTM": "cache_params", "Rwkv": "state"}
    carries = next((carries for part, carries in of_kind.items() if part in kind), "past_key_values")
    cache = cache_of(theirs) if kind == "RecurrentGemma" else None
    with torch.no_grad():
        y, state = ours.stream(tokens[:, :9])
        out = theirs(tokens[:, :9], use_cache=True, **({carries: cache} if cache else {}))
        cache = cache or getattr(out, carries)
        assert_same(y, out.logits)
        for i in range(9, SEQ_LEN):
            y, state = ours.stream(tokens[:, i : i + 1], state)
            given = {carries: cache}
            if carries == "past_key_values":  # like generate(); otherwise Bamba counts positions from zero
                given["position_ids"] = torch.full((BATCH, 1), i)
            out = theirs(tokens[:, i : i + 1], use_cache=True, **given)
            assert_same(y, out.logits)
    kept = [at for at, layer in enumerate(layers_of(theirs)) if not type(layer).__name__.endswith("MLP")]
    if kind == "Zamba2":  # its only layer is a SharedTransformer
        (layers,) = state
        for at, layer in enumerate(layers):
            if layer.attention:
                assert_same_state(None, layer.attention, cache, at)
        state = [layer.block for layer in layers]
    if kind == "Rwkv":
        for at, layer in enumerate(state):
            assert_same(layer.inside[:, 0], cache[0][:, :, at])
        state = [layer.mixer for layer in state]
    for layer, mixer, ours_now in zip(kept, mixers_of(ours), state, strict=True):
        members = getattr(mixer, "members", [mixer])
        for member, now in zip(members, getattr(ours_now, "members", [ours_now]), strict=True):
            assert_same_state(member, now, cache, layer)


def assert_same_state(mixer: Any, state: Any, cache: Any, layer: int) -> None:
    if type(mixer).__name__ == "CappedMLSTM":
        for now, held in zip(state, cache.rnn_state[layer], strict=True):
            assert_same(now, held.view_as(now))
        return
    if type(mixer).__name__ == "RWKV4":
        for now, held in zip((state.last[:, 0], *state[1:]), cache[1:], strict=True):
            assert_same(now, held[:, :, layer])
        return
    if hasattr(cache, "linear_cache") and "keys" not in state._fields:
        assert_same(state.S, cache.linear_cache[layer])
        return
    if "latents" in state._fields:
        held = torch.cat((cache.layers[layer].keys, cache.layers[layer].values), dim=3)
        assert_same(state.latents, held)
        return
    if "keys" in state._fields:
        keys = state.keys
        assert_same(keys, cache.layers[layer].keys[:, :, -keys.shape[2] :])
        assert_same(state.values, cache.layers[layer].values[:, :, -keys.shape[2] :])
        return
    assert_same(state.conv, cache.get_conv_state(layer, state_idx=0)[..., -state.conv.shape[1] :].transpose(1, 2))
    if len(state) > 1:
        h = cache.get_recurrent_state(layer, state_idx=0)
        assert_same(state[1], h.transpose(2, 3) if type(mixer).__name__ == "SSD" else h)


def mixers_of(ours: Backbone) -> list[SequenceMixer]:
    first, *others = ours.layers.chain()
    blocks = first.chain() if isinstance(first, SharedTransformer) else [first, *others]
    assert all(isinstance(block, ResidualBlock) for block in blocks)
    return [block.mixer for block in blocks]


def test_the_balance_loss_is_that_of_transformers(generator: torch.Generator) -> None:
    from transformers.models.jamba.modeling_jamba import load_balancing_loss_func

    theirs = build("Jamba", generator, **JAMBA[0], num_hidden_layers=2, router_aux_loss_coef=1.0)
    ours = load_transformers(theirs).train()
    tokens = drawn(generator)
    ours(tokens)
    experts = ours.layers.chain()[1].channel
    expected = load_balancing_loss_func(theirs(tokens, output_router_logits=True).router_logits, 4, 2)
    assert_same(experts.balance_loss, expected)


# Ties, dtypes, training flags; their model stays unchanged.


@pytest.mark.parametrize("tied", [False, True])
def test_tying_is_read_from_the_weights(tied: bool, generator: torch.Generator) -> None:
    theirs = build("Llama", generator, **HEADS[0], tie_word_embeddings=not tied)
    embedding = theirs.model.embed_tokens.weight
    theirs.lm_head.weight = embedding if tied else nn.Parameter(torch.randn(VOCAB, D_MODEL, generator=generator))
    assert theirs.config.tie_word_embeddings != tied
    ours = load_transformers(theirs)
    assert (ours.head.weight is ours.embedding.weight) == tied
    tokens = drawn(generator)
    assert_same(ours(tokens), theirs(tokens).logits)


def test_an_untied_zamba2_has_a_transformer_per_hybrid_layer(generator: torch.Generator) -> None:
    options = KINDS["Zamba2"][0] | {"tie_word_embeddings": False}
    ours = load_transformers(theirs := build("Zamba2", generator, **options))
    assert (len(ours.layers.chain()[0].transformers), ours.head.weight is ours.embedding.weight) == (3, False)
    tokens = drawn(generator)
    assert_same(ours(tokens), theirs(tokens).logits)


def test_a_folder_of_save_pretrained_loads(tmp_path: Path, generator: torch.Generator) -> None:
    theirs = build("Mamba", generator, **MAMBA[0])
    theirs.save_pretrained(tmp_path)
    tokens = drawn(generator)
    assert_same(load_transformers(tmp_path)(tokens), theirs(tokens).logits)


def test_a_model_keeps_its_dtype(generator: torch.Generator) -> None:
    theirs = build("Mamba", generator, **MAMBA[0]).to(torch.bfloat16)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    ours = load_transformers(theirs)
    assert torch.equal(torch.rand(2), expected)  # loading draws nothing
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    before = theirs.get_input_embeddings().weight.clone()
    assert torch.equal(ours.embedding.weight, before)
    with torch.no_grad():
        ours.embedding.weight.zero_()
    assert torch.equal(theirs.get_input_embeddings().weight, before)


def test_each_weight_keeps_its_own_dtype_and_whether_it_is_trained(generator: torch.Generator) -> None:
    theirs = build("FalconMamba", generator, **MAMBA[0]).bfloat16()
    for layer in theirs.backbone.layers:
        layer.mixer.A_log.data = layer.mixer.A_log.data.float()
        layer.mixer.D.requires_grad_(False)
    theirs.backbone.embeddings.requires_grad_(False)  # tied to the head
    ours = load_transformers(theirs)
    wide = {name for name, p in ours.named_parameters() if p.dtype == torch.float32}
    frozen = {name for name, p in ours.named_parameters() if not p.requires_grad}
    mixers = [f"layers.layers.{n}.mixer" for n in range(2)]
    norms = {f"{mixer}.dt_b_c_norm.{n}.weight" for mixer in mixers for n in range(3)}  # Falcon's norms have no weights
    assert wide == {f"{mixer}.A_log" for mixer in mixers}
    assert frozen == {f"{mixer}.D" for mixer in mixers} | {"embedding.weight"} | norms
    assert all((p == 1).all() for name, p in ours.named_parameters() if name in norms)


def test_verification_does_not_change_their_model(generator: torch.Generator) -> None:
    theirs = build("Llama", generator, **HEADS[1], head_dim=10, **rope("dynamic"), max_position_embeddings=16)
    theirs.train().model.layers[0].eval()
    before = copy.deepcopy(theirs)
    ours = load_transformers(theirs)
    assert [m.training for m in theirs.modules()] == [m.training for m in before.modules()]
    assert all(not m._forward_hooks for m in theirs.modules())
    for kind in ("buffers", "parameters"):
        assert all(torch.equal(a, b) for a, b in zip(getattr(theirs, kind)(), getattr(before, kind)(), strict=True))
    assert all(p.grad is None for p in (*theirs.parameters(), *ours.parameters()))
    assert theirs.config.to_dict() == before.config.to_dict()
    assert all(m.training for m in ours.modules())


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_is_verified_in_every_implementation(implementation: str, generator: torch.Generator) -> None:
    theirs = build("Llama", generator, **LLAMA[1], attn_implementation=implementation)
    assert isinstance(load_transformers(theirs), Backbone)
    layer = layers_of(theirs)[1]
    assert isinstance(load_transformers(layer), SequenceMixer)
    layer.config._attn_implementation = None  # as in a layer built without a model
    assert isinstance(load_transformers(layer), SequenceMixer)


@pytest.mark.parametrize(
    ("kind", "options", "dtype"),
    [
        ("Qwen3Moe", {"output_router_logits": True}, torch.float32),  # returns an auxiliary loss before the logits
        ("xLSTM", {"mode": "train", "chunk_size": 48}, torch.float32),  # accepts only whole chunks
        ("xLSTM", {"chunk_size": 16}, torch.bfloat16),  # transformers runs it only in float32
    ],
)
def test_verification_works_in_configurations_with_restrictions(
    kind: str, options: dict[str, Any], dtype: torch.dtype, generator: torch.Generator
) -> None:
    assert isinstance(load_transformers(build(kind, generator, **KINDS[kind][0] | options).to(dtype)), Backbone)


def test_a_float32_model_with_large_roundoff_is_verified_in_float64(generator: torch.Generator) -> None:
    """RecurrentGemma computes 1 - a², which loses digits if a is close to one."""
    theirs = build("RecurrentGemma", generator, **KINDS["RecurrentGemma"][1])
    with torch.no_grad():
        for weight in (p for p in theirs.parameters() if p.ndim > 1):
            weight.mul_(5)
    ours, tokens = load_transformers(theirs), drawn(generator)
    y, expected = ours(tokens), theirs(tokens).logits
    assert (y - expected).norm() > BOUNDS[torch.float32] * expected.norm()


def test_loading_a_folder_runs_no_code_from_it(tmp_path: Path) -> None:
    own = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": own}))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with refused(holding("cannot load")):
        load_transformers(tmp_path)
    assert not (tmp_path / "ran").exists()


# Errors, in one line with the field or the part.


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("adapter", ["adapter_config.json"]),
        ("lacking", ["missing weights", "backbone.layers.1.mixer.D"]),
        ("more", ["unexpected weights", "backbone.layers.0.mixer.lora_A.weight"]),
        ("shape", ["shape", "backbone.layers.1.mixer.D"]),
        ("damaged", ["cannot load"]),
        ("unknown", ["does not support GPT2LMHeadModel", "Mamba2ForCausalLM"]),
        ("empty", ["cannot load"]),
    ],
)
def test_a_folder_that_is_not_exactly_a_model_is_refused(
    change: str, words: list[str], tmp_path: Path, generator: torch.Generator
) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    theirs = build("Mamba", generator, **MAMBA[0])
    if change == "unknown":
        theirs = GPT2LMHeadModel(GPT2Config(vocab_size=5, n_embd=4, n_head=1, n_layer=2))
    weights = theirs.state_dict()
    if change == "lacking":
        del weights["backbone.layers.1.mixer.D"]
    elif change == "more":
        weights["backbone.layers.0.mixer.lora_A.weight"] = torch.ones(1)
    elif change == "shape":
        weights["backbone.layers.1.mixer.D"] = torch.ones(3)
    if change != "empty":
        theirs.save_pretrained(tmp_path, state_dict=weights)
    if change == "adapter":
        (tmp_path / "adapter_config.json").write_text("{}")
    elif change == "damaged":
        file = tmp_path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:100])
    with refused(holding(*words)):
        load_transformers(tmp_path)


@without_width
@pytest.mark.parametrize(
    ("kind", "options", "field"),
    [
        ("Mamba", {"use_bias": True}, "use_bias=True"),
        ("Mamba", {"use_conv_bias": False}, "use_conv_bias=False"),
        ("Mamba", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("FalconMamba", {"use_bias": True}, "use_bias=True"),
        ("Mamba2", {**MAMBA2[0], "time_step_limit": (0.0, 0.5)}, "time_step_limit=(0.0, 0.5)"),
        ("Jamba", {**JAMBA[0], "mamba_proj_bias": True}, "use_bias=True"),
        ("Jamba", {**JAMBA[0], "attention_dropout": 0.1}, "attention_dropout=0.1"),
        ("Llama", {**HEADS[0], "attention_bias": True}, "attention_bias=True"),
        ("Llama", {**HEADS[0], "mlp_bias": True}, "mlp_bias=True"),
        ("Llama", {**HEADS[0], "num_hidden_layers": 0}, "num_hidden_layers=0"),
        ("Llama", {**HEADS[0], "intermediate_size": 0}, "intermediate_size=0"),
        ("Llama", {**HEADS[0], "hidden_act": "relu"}, "hidden_act='relu'"),
        ("Llama", {**HEADS[0], **rope("default", partial_rotary_factor=0.5)}, "partial_rotary_factor=0.5"),
        ("Llama", {**HEADS[0], **LONGROPE}, "rope_type='longrope'"),
        ("Qwen3", {**HEADS[0], "use_sliding_window": True, "max_window_layers": 0}, "sliding_window=4096"),
        ("FalconH1", {**HEADS[0], **HYBRID, "mamba_d_ssm": 32, "mamba_rms_norm": True}, "norm_before_gate=True"),
        ("Bamba", {**HEADS[0], **HYBRID, "attn_layer_indices": [1], **rope("linear")}, "rope_type='linear'"),
        ("NemotronH", {**NEMOTRON, "layers_block_type": ["mlp", "linear_attention"]}, "layers_block_type="),
        ("Qwen3Next", {**HEADS[0], **MOE, **DELTA, "linear_value_head_dim": 6}, "linear_value_head_dim=6"),
        ("MiniMax", {**HEADS[0], **MINIMAX, "mlp_alpha_factor": 0.0}, "mlp_alpha_factor=0.0"),
        ("MiniMax", {**MINIMAX, "num_attention_heads": 3, "num_key_value_heads": 1}, "num_attention_heads=3"),
        ("DeepseekV3", {**KINDS["DeepseekV3"][0], "q_lora_rank": 99}, "q_lora_rank=99"),
        ("MiniMax", {**HEADS[0], **MINIMAX, "router_jitter_noise": 0.1}, "router_jitter_noise=0.1"),
        ("MiniMax", {**HEADS[0], **MINIMAX, "sliding_window": 5}, "sliding_window=5"),
        ("Zamba2", {**HEADS[0], **ZAMBA2, "hidden_act": "silu"}, "hidden_act='silu'"),
        ("Lfm2", {**HEADS[0], "layer_types": ["conv"] * 2, "conv_bias": True}, "conv_bias=True"),
        ("xLSTM", {"hidden_size": 64, "eps": 1e-3}, "eps=0.001"),
        ("Rwkv", {"tie_word_embeddings": True}, "tie_word_embeddings=True"),
        ("Rwkv", {"layer_norm_epsilon": 1e-3}, "eps of rwkv.blocks.0.ln1=0.001"),
    ],
)
def test_an_unsupported_configuration_is_refused_with_its_field(
    kind: str, options: dict[str, Any], field: str, generator: torch.Generator
) -> None:
    with refused(holding("does not support", field)):
        load_transformers(build(kind, generator, **options))


class LoRA(nn.Linear):
    """A layer as adapter libraries replace it: the original weight plus further parameters."""

    def __init__(self, base_layer: nn.Linear) -> None:
        super().__init__(base_layer.in_features, base_layer.out_features, bias=False)
        self.weight = base_layer.weight
        self.down, self.up = (
            nn.Parameter(torch.ones(size)) for size in ((2, self.in_features), (self.out_features, 2))
        )


class Wrapper(nn.Module):
    def __init__(self, base_layer: nn.Module) -> None:
        super().__init__()
        self.base_layer = base_layer


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Llama", "model.layers.1.self_attn.v_proj"),
        ("Mamba", "backbone.layers.1.mixer"),
        ("Jamba", "model.layers.1.feed_forward.experts"),
    ],
)
def test_an_adapter_is_refused_wherever_it_sits(kind: str, path: str, generator: torch.Generator) -> None:
    theirs = build(kind, generator, **KINDS[kind][0])
    layer = theirs.get_submodule(path)
    theirs.set_submodule(path, LoRA(layer) if isinstance(layer, nn.Linear) else Wrapper(layer))
    for verify in (True, False):
        with refused(holding(f"{path} is a {__name__}.", "adapters")):
            load_transformers(theirs, verify=verify)


def with_bias(layer: nn.Linear) -> None:
    layer.bias = nn.Parameter(torch.ones(layer.out_features))


def shared_down_proj(theirs: Any) -> None:
    theirs.model.layers[1].mlp.down_proj.weight = theirs.model.layers[0].mlp.down_proj.weight


# (a change to a Llama that loading detects without a run, words of the error)
DETECTED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda t: setattr(layers_of(t)[1], "is_causal", False), "is_causal=False"),
    (lambda t: setattr(t.config, "is_causal", False), "is_causal=False"),
    (lambda t: with_bias(layers_of(t)[1].o_proj), "attention_bias=True"),
    (lambda t: setattr(layers_of(t)[1], "attention_dropout", 0.5), "attention_dropout=0.5"),
    (lambda t: setattr(t.model.layers[1].input_layernorm, "variance_epsilon", 0.1), "layers.1.input_layernorm=0.1"),
    (lambda t: layers_of(t)[0].q_proj.double(), "q_proj.weight"),
    (lambda t: layers_of(t)[0].q_proj.requires_grad_(False), "q_proj.weight"),
    (lambda t: t.set_submodule("model.layers.0.self_attn", nn.Identity()), "self_attn Identity"),
    (lambda t: t.set_submodule("model.layers.1.mlp", nn.Identity()), "mlp Identity"),
    (lambda t: t.set_submodule("model.layers.1", nn.Identity()), "self_attn nothing"),
    (lambda t: t.set_submodule("model.norm", nn.Identity()), "Identity"),
    (lambda t: with_bias(t.model.layers[0].mlp.up_proj), "model.layers.0.mlp.up_proj.bias"),
    (shared_down_proj, "model.layers.1.mlp.down_proj.weight shared"),
    (lambda t: setattr(t, "__class__", type("LlamaForCausalLM", (type(t),), {"__module__": "mine"})), "mine.Llama"),
]


@pytest.mark.parametrize(("change", "words"), DETECTED, ids=[words for _, words in DETECTED])
def test_a_modified_llama_is_refused_without_verification(
    change: Callable[[Any], Any], words: str, generator: torch.Generator
) -> None:
    theirs = build("Llama", generator, **KINDS["Llama"][0])
    change(theirs)
    with refused(holding(*words.split())):
        load_transformers(theirs, verify=False)


def test_parts_of_one_mixer_must_agree_and_fit(generator: torch.Generator) -> None:
    jamba = layers_of(build("Jamba", generator, **JAMBA[0]))[0]
    jamba.b_layernorm.variance_epsilon = 0.1
    with refused("rms_norm_eps of dt, B and C"):
        load_transformers(jamba)
    mamba = build("Mamba", generator, **MAMBA[0])
    mamba.backbone.layers[0].mixer.D = nn.Parameter(torch.ones(3))
    with refused(holding("layers.layers.0.mixer.D", "(3,)")):
        load_transformers(mamba)


def nan_in(layer: nn.Linear) -> None:
    layer.weight.data[0, 0] = torch.nan


# {first layer with other outputs: a change to a Llama that only verification by a run detects}
UNDETECTED: dict[str, Callable[[Any], Any]] = {
    "model.layers.1 ": lambda t: setattr(t.model.layers[1].mlp, "act_fn", nn.GELU()),
    "model.layers.1 and its conversion differ: relative error nan": lambda t: nan_in(t.model.layers[1].mlp.up_proj),
    "model.layers.0 ": lambda t: t.model.rotary_emb.inv_freq.mul_(0.5),
    "model.embed_tokens ": lambda t: t.model.embed_tokens.register_forward_hook(lambda m, x, y: 2 * y),
    "model.norm ": lambda t: t.model.norm.register_forward_hook(lambda m, x, y: y + 1),
    "LlamaForCausalLM ": lambda t: t.register_forward_hook(lambda m, x, y: type(y)(logits=2 * y.logits)),
    "lm_head ": lambda t: setattr(t.lm_head, "forward", lambda x: x @ t.lm_head.weight.T / 2),
}


@pytest.mark.parametrize("words", UNDETECTED)
def test_a_modified_llama_is_refused_by_verification(words: str, generator: torch.Generator) -> None:
    theirs = build("Llama", generator, **LLAMA[3])
    with torch.no_grad():
        UNDETECTED[words](theirs)
    with refused(holding(words, "and its conversion differ")):
        load_transformers(theirs)
    assert isinstance(load_transformers(theirs, verify=False), Backbone)


@pytest.mark.parametrize("kind", ["Mamba", "Qwen3Next"])
def test_a_modified_single_layer_is_refused_by_verification(kind: str, generator: torch.Generator) -> None:
    theirs = layers_of(build(kind, generator, **KINDS[kind][0]))[0]
    theirs.register_forward_hook(lambda m, x, y: (y[0] * 1.01, *y[1:]) if isinstance(y, tuple) else y * 1.01)
    with refused(f"{type(theirs).__name__} and its conversion differ"):
        load_transformers(theirs)


@pytest.mark.parametrize(("dtype", "factor"), [(torch.bfloat16, 1.1), (torch.float16, 1.02)])
def test_verification_detects_changes_in_half_precision(
    dtype: torch.dtype, factor: float, generator: torch.Generator
) -> None:
    theirs = build("Llama", generator, **LLAMA[3]).to(dtype)
    load_transformers(theirs)
    theirs.model.norm.register_forward_hook(lambda m, x, y: factor * y)
    with refused(holding("model.norm ", "and its conversion differ")):
        load_transformers(theirs)


def test_a_model_that_does_not_run_is_refused(generator: torch.Generator) -> None:
    theirs = build("Llama", generator, **HEADS[0])
    theirs.forward = lambda *_, **__: theirs.absent
    with refused(holding("torch.float32", "absent", "verify=False")):
        load_transformers(theirs)
    mixed = build("Mamba", generator, **MAMBA[0])
    mixed.backbone.layers[1].mixer.out_proj.bfloat16()
    with refused(holding("torch.bfloat16", "torch.float32")):
        load_transformers(mixed)
    assert load_transformers(mixed, verify=False).layers.chain()[1].mixer.out_proj.weight.dtype == torch.bfloat16


@pytest.mark.usefixtures("unchecked_shapes")
def test_unknown_sources_are_refused(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in (nn.Linear(2, 2), build("Llama", generator, **HEADS[0]).model):
        with refused(f"does not support .*{type(other).__name__}; supported: "):
            load_transformers(other)
    for source, word in (("/no/such/folder", "'/no/such/folder'"), ("", "''"), (3, "int")):
        with refused(word):
            load_transformers(source)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with refused(re.escape("pip install transformers"), ModuleNotFoundError):
        load_transformers("a/folder")
