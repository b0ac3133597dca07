"""The zoo against transformers: the same weights give the same outputs, gradients and states."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases import draw, randomise
from zoo import Backbone, SequenceMixer, load_transformers
from zoo.blocks import Experts, ResidualBlock

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

BATCH, SEQ_LEN, D_MODEL, VOCAB = 2, 13, 16, 19

# Widths that differ from each other: two that are taken for one another would not pass.
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
LLAMA = [*HEADS, {**HEADS[1], "head_dim": 6, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}]
JAMBA = [
    {**HEADS[1], "mamba_d_state": 4, "mamba_d_conv": 3, "mamba_expand": 2, "mamba_dt_rank": 3},
    {**HEADS[2], "mamba_d_state": 6, "mamba_d_conv": 4, "mamba_expand": 1, "mamba_dt_rank": 2, "rms_norm_eps": 1e-3},
]
KINDS = {
    "Mamba": MAMBA,
    "FalconMamba": [*MAMBA[:2], {**MAMBA[2], "mixer_rms_eps": 1e-2}],
    "Mamba2": MAMBA2,
    "Jamba": JAMBA,
    "Llama": LLAMA,
}
CONFIGS = [(kind, options) for kind, configs in KINDS.items() for options in configs]
every_config = pytest.mark.parametrize(
    ("kind", "options"), CONFIGS, ids=[f"{kind}{n}" for kind, configs in KINDS.items() for n in range(len(configs))]
)
MIXER_NAMES = ("mixer", "mamba", "self_attn")


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """To 1e-5, relative and of the largest entry, in float32: in the small entries of a sum roundoff is as large."""
    scale = expected.detach().abs().max().clamp(min=1.0)
    torch.testing.assert_close(actual / scale, expected / scale, rtol=1e-5, atol=1e-5)


def build(kind: str, generator: torch.Generator, **options: Any) -> Any:
    """A small causal language model of transformers, every parameter drawn anew, in float32 and eval mode."""
    import transformers

    sizes = {"hidden_size": D_MODEL, "vocab_size": VOCAB, "num_hidden_layers": 2, "pad_token_id": None}
    if kind in ("Jamba", "Llama"):
        sizes |= {"intermediate_size": 20}
    if kind == "Jamba":
        sizes |= {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **options})
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    model = randomise(model.float(), generator).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # At full size some draws of a Jamba lose five digits in float32, whoever computes them.
            parameter.mul_(0.7)
    return model


def layers_of(theirs: Any) -> list[nn.Module]:
    body = getattr(theirs, "backbone", None) or theirs.model
    return [next(m for n, m in layer.named_children() if n in MIXER_NAMES) for layer in body.layers]


def run_layer(theirs: Any, model: Any, x: Tensor) -> Tensor:
    """One of their layers by itself, with what its model would hand to it."""
    if not type(theirs).__name__.endswith("Attention"):
        return theirs(x)
    positions = torch.arange(x.shape[1])[None]
    rotary = {"position_embeddings": model.model.rotary_emb(x, positions)} if hasattr(model.model, "rotary_emb") else {}
    return theirs(x, attention_mask=None, **rotary)[0]


def our_gradients(ours: nn.Module, theirs: nn.Module) -> list[tuple[str, Tensor, Tensor]]:
    """Our gradients beside theirs: theirs, put into our layout by the very translation of weights."""
    expected = {name: p.grad for name, p in theirs.named_parameters()}
    assert all(grad is not None for grad in expected.values())
    with torch.no_grad():
        for p in theirs.parameters():
            p.copy_(p.grad)
    moved = dict(load_transformers(theirs).named_parameters())
    return [(name, p.grad, moved[name]) for name, p in ours.named_parameters() if p.requires_grad]


# Layers.


@every_config
def test_a_layer_has_their_outputs_and_gradients(
    kind: str, options: dict[str, Any], generator: torch.Generator
) -> None:
    model = build(kind, generator, **options)
    for theirs in layers_of(model)[:2]:
        ours = load_transformers(theirs)
        assert isinstance(ours, SequenceMixer)
        x = draw(BATCH, SEQ_LEN, D_MODEL, generator=generator, dtype=torch.float32)
        inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
        y, expected = ours(inputs[0]), run_layer(theirs, model, inputs[1])
        assert_same(y, expected)
        weights = draw(*y.shape, generator=generator, dtype=torch.float32)
        (y * weights).sum().backward()
        (expected * weights).sum().backward()
        assert_same(inputs[0].grad, inputs[1].grad)
        for _, grad, wanted in our_gradients(ours, theirs):
            assert_same(grad, wanted)


# Models.


@every_config
def test_a_model_has_their_logits_and_gradients(kind: str, options: dict[str, Any], generator: torch.Generator) -> None:
    theirs = build(kind, generator, **options)
    ours = load_transformers(theirs)
    assert isinstance(ours, Backbone)
    tokens = torch.randint(VOCAB, (BATCH, SEQ_LEN), generator=generator)
    y, expected = ours(tokens), theirs(tokens).logits
    assert_same(y, expected)
    for logits in (y, expected):
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    untouched = [name for name, p in theirs.named_parameters() if p.grad is None]
    assert untouched == []
    for _, grad, wanted in our_gradients(ours, theirs):
        assert_same(grad, wanted)


@every_config
def test_their_cache_is_our_state(kind: str, options: dict[str, Any], generator: torch.Generator) -> None:
    """A prompt at once, then token by token, on both sides."""
    theirs = build(kind, generator, **options)
    ours = load_transformers(theirs)
    tokens = torch.randint(VOCAB, (BATCH, SEQ_LEN), generator=generator)
    carries = "past_key_values" if kind in ("Jamba", "Llama") else "cache_params"
    with torch.no_grad():
        y, state = ours.stream(tokens[:, :9])
        out = theirs(tokens[:, :9], use_cache=True)
        assert_same(y, out.logits)
        for i in range(9, SEQ_LEN):
            y, state = ours.stream(tokens[:, i : i + 1], state)
            out = theirs(tokens[:, i : i + 1], use_cache=True, **{carries: getattr(out, carries)})
            assert_same(y, out.logits)
    cache = getattr(out, carries)
    for layer, (mixer, ours_now) in enumerate(zip(mixers_of(ours), state, strict=True)):
        held = cache.layers[layer]
        if type(mixer).__name__ == "Attention":
            assert_same(ours_now.keys, held.keys)
            assert_same(ours_now.values, held.values)
            continue
        conv, h = cache.get_conv_state(layer, state_idx=0), cache.get_recurrent_state(layer, state_idx=0)
        width = ours_now.conv.shape[1]
        assert_same(ours_now.conv, conv[..., -width:].transpose(1, 2))
        same_axes = h.transpose(2, 3) if kind == "Mamba2" else h
        assert_same(ours_now.h, same_axes)


def mixers_of(ours: Backbone) -> list[SequenceMixer]:
    blocks = ours.layers.chain()
    assert all(isinstance(block, ResidualBlock) for block in blocks)
    return [block.mixer for block in blocks]


def test_jambas_layout_is_ours(generator: torch.Generator) -> None:
    theirs = build("Jamba", generator, **JAMBA[0], num_hidden_layers=8, attn_layer_period=8, attn_layer_offset=4)
    ours = load_transformers(theirs)
    assert [type(m).__name__ for m in mixers_of(ours)] == ["SelectiveSSM"] * 4 + ["Attention"] + ["SelectiveSSM"] * 3
    assert [isinstance(block.channel, Experts) for block in ours.layers.chain()] == [False, True] * 4
    tokens = torch.randint(VOCAB, (BATCH, SEQ_LEN), generator=generator)
    assert_same(ours(tokens), theirs(tokens).logits)


def test_our_load_balance_is_theirs(generator: torch.Generator) -> None:
    from transformers.models.jamba.modeling_jamba import load_balancing_loss_func

    theirs = build("Jamba", generator, **JAMBA[0], num_hidden_layers=2, router_aux_loss_coef=1.0)
    ours = load_transformers(theirs).train()
    tokens = torch.randint(VOCAB, (BATCH, SEQ_LEN), generator=generator)
    ours(tokens)
    experts = ours.layers.chain()[1].channel
    expected = load_balancing_loss_func(theirs(tokens, output_router_logits=True).router_logits, 4, 2)
    assert_same(experts.balance_loss, expected)


# What is carried over beside the numbers.


@pytest.mark.parametrize("tied", [False, True])
def test_a_tied_head_stays_tied(tied: bool, generator: torch.Generator) -> None:
    ours = load_transformers(build("Mamba", generator, tie_word_embeddings=tied))
    assert (ours.head.weight is ours.embedding.weight) == tied


def test_weights_are_copies_in_their_dtype(generator: torch.Generator) -> None:
    theirs = layers_of(build("Llama", generator, **HEADS[1]))[0].bfloat16()
    ours = load_transformers(theirs)
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    before = theirs.o_proj.weight.clone()
    with torch.no_grad():
        ours.out_proj.weight.zero_()
    assert torch.equal(theirs.o_proj.weight, before)
    assert not ours.training
    assert load_transformers(theirs.train()).training


def test_falcons_weightless_norms_are_frozen_ones(generator: torch.Generator) -> None:
    ours = load_transformers(layers_of(build("FalconMamba", generator, **MAMBA[0]))[0])
    frozen = {name for name, p in ours.named_parameters() if not p.requires_grad}
    assert frozen == {f"dt_b_c_norm.{n}.weight" for n in range(3)}
    assert all((p == 1).all() for p in ours.parameters() if not p.requires_grad)


def test_loading_leaves_the_generator_alone(generator: torch.Generator) -> None:
    theirs = build("Mamba", generator)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    load_transformers(theirs)
    assert torch.equal(torch.rand(2), expected)


def test_a_folder_is_loaded_by_transformers(tmp_path: Path, generator: torch.Generator) -> None:
    theirs = build("Mamba", generator, **MAMBA[0])
    theirs.save_pretrained(tmp_path)
    tokens = torch.randint(VOCAB, (BATCH, SEQ_LEN), generator=generator)
    assert_same(load_transformers(tmp_path)(tokens), theirs(tokens).logits)


# What cannot be expressed, in one line that names the field.


@pytest.mark.parametrize(
    ("kind", "options", "field"),
    [
        ("Mamba", {"use_bias": True}, "use_bias=True"),
        ("Mamba", {"use_conv_bias": False}, "use_conv_bias=False"),
        ("Mamba", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("FalconMamba", {"use_bias": True}, "use_bias=True"),
        ("Mamba2", {**MAMBA2[0], "time_step_limit": (0.0, 0.5)}, r"time_step_limit=\(0.0, 0.5\)"),
        ("Mamba2", {**MAMBA2[0], "layer_norm_epsilon": 1e-3}, "layer_norm_epsilon=0.001"),
        ("Jamba", {**JAMBA[0], "mamba_proj_bias": True}, "use_bias=True"),
        ("Jamba", {**JAMBA[0], "attention_dropout": 0.1}, "attention_dropout=0.1"),
        ("Llama", {**HEADS[0], "attention_bias": True}, "attention_bias=True"),
        ("Llama", {**HEADS[0], "mlp_bias": True}, "mlp_bias=True"),
        ("Llama", {**HEADS[0], "hidden_act": "relu"}, "hidden_act='relu'"),
        (
            "Llama",
            {**HEADS[0], "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            "rope_parameters.rope_type='linear'",
        ),
    ],
)
def test_a_configuration_beyond_the_zoo_is_named(
    kind: str, options: dict[str, Any], field: str, generator: torch.Generator
) -> None:
    theirs = build(kind, generator, **options)
    with pytest.raises(ValueError, match=f"cannot express {field}; it can express") as caught:
        load_transformers(theirs)
    assert "\n" not in str(caught.value)


def test_another_module_is_refused(generator: torch.Generator) -> None:
    for other in (nn.Linear(2, 2), build("Llama", generator, **HEADS[0]).model):
        with pytest.raises(ValueError, match=f"unknown layer or model of transformers '{type(other).__name__}'"):
            load_transformers(other)


def test_an_absent_transformers_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'mixer-zoo\[transformers\]'"):
        load_transformers("a/folder")
