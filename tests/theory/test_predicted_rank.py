"""The interaction rank that a layer's algebra predicts equals the measured one."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn

from tests import slow
from tests.cases import every_kind, randomise
from zoo.blocks import Canon, ResidualBlock, ShortConv, Stack
from zoo.contract import SequenceMixer
from zoo.registry import create_mixer
from zoo.theory.operator import interaction
from zoo.theory.rank import interaction_rank

# Mixer, d_model, positions, options.
MIXERS: list[tuple[str, int, int, dict[str, Any]]] = [
    ("attention", 3, 3, {"n_heads": 6, "d_head": 1, "n_kv_heads": 1}),
    ("attention", 3, 3, {"n_heads": 7, "d_head": 1, "sink": "constant"}),
    ("attention", 6, 6, {"n_heads": 2, "d_conv": 3}),
    ("sliding_attention", 6, 6, {"n_heads": 3, "window": 1}),
    ("sliding_attention", 8, 4, {"n_heads": 8, "window": 2}),
    ("gated_attention", 6, 12, {"n_heads": 3, "gate": "head"}),
    ("gated_attention", 3, 8, {"n_heads": 4, "d_head": 2, "n_kv_heads": 1}),
    ("differential_attention", 8, 12, {"n_heads": 3, "d_head": 2}),
    ("forgetting_attention", 6, 12, {"n_heads": 3}),
    ("path_attention", 6, 12, {"n_heads": 3, "forget_gate": True}),
    ("deltaformer", 6, 12, {"n_heads": 3}),
    ("deltaformer", 3, 3, {"n_heads": 7, "d_head": 1}),
    ("mla", 6, 12, {"n_heads": 3}),
    ("mla", 2, 8, {"n_heads": 4, "d_head": 2, "d_latent": 1}),
    *(("dsa", 6, 12, {"n_heads": 3, "top_k": top_k}) for top_k in (1, 2, 5)),
    *(("moba", 6, 12, {"n_heads": 3, "block_size": 2, "top_k": top_k}) for top_k in (1, 2, 4)),
    *(("nsa", 6, 12, {"n_heads": 3, "block_size": size, "top_k": 3, "window": 2}) for size in (2, 4)),
    ("nsa", 6, 12, {"n_heads": 6, "n_kv_heads": 2, "block_size": 2, "top_k": 3, "window": 2}),
    ("factorized", 3, 4, {"n_heads": 7}),
    ("factorized", 3, 8, {"n_heads": 5, "kernel": "bilinear", "d_head": 2}),
    ("diagonal_ssm", 4, 16, {"d_state": 6, "init": "ring"}),
    ("diagonal_ssm", 4, 16, {"d_state": 3, "init": "real_log", "dt_min": 0.1, "dt_max": 1.0}),
    ("s4d", 3, 12, {"d_state": 4, "output": "none", "dt_min": 0.1, "dt_max": 1.0}),
    ("s4d", 3, 12, {"d_state": 4, "dt_min": 0.1, "dt_max": 1.0}),
    ("conv", 5, 12, {"d_conv": 3}),
    ("conv", 3, 12, {"kernel": "implicit"}),
    ("linoss", 4, 16, {"d_state": 6}),
    ("ssd", 4, 16, {"d_state": 4}),
    *(("log_linear_ssd", 4, n, {"d_state": 4, "expand": 1, "d_head": 2}) for n in (8, 16, 32)),
    *(("log_linear_gated_delta_net", 4, n, {"n_heads": 1, "d_head": 2, "expand": 1}) for n in (8, 16, 32)),
    ("mamba3", 4, 16, {"d_state": 4}),
    ("delta_net", 6, 16, {"n_heads": 2}),
    ("gated_delta_net", 4, 16, {"n_heads": 2}),
    ("selective_ssm", 3, 12, {"d_state": 2}),
    ("gated_linear_attention", 6, 16, {"n_heads": 2, "output_gate": False}),
    ("kda", 6, 16, {"n_heads": 2}),
    ("delta_product", 6, 16, {"n_heads": 1, "d_head": 3, "expand": 1}),
    ("retnet", 6, 16, {"n_heads": 1, "expand": 1}),
    ("lightning_attention", 6, 16, {"n_heads": 2}),
    ("hgrn2", 6, 16, {"n_heads": 3}),
    *(("gsa", 6, 16, {"n_heads": 2, "n_slots": n_slots}) for n_slots in (1, 5)),
    ("rwkv4", 6, 16, {"d_inner": 4}),
    ("rwkv4", 4, 16, {}),
    ("rwkv6", 4, 16, {"n_heads": 1, "mix_rank": 1}),
    ("rwkv6", 4, 16, {"n_heads": 2, "d_head": 2}),
    ("comba", 4, 16, {"n_heads": 2}),
    *(("mesa_net", 6, 16, {"n_heads": 2, "cg_steps": steps}) for steps in (1, 30)),
    ("titans", 4, 16, {"n_heads": 2}),
    ("titans", 6, 16, {"n_heads": 1, "d_head": 3}),
    ("rwkv7", 8, 16, {"n_heads": 2, "gate_rank": 3}),
    ("mlstm", 6, 16, {"n_heads": 2}),
    ("mlstm", 6, 16, {"n_heads": 1, "expand": 1, "d_block": 2}),
    ("rnn", 4, 12, {"d_inner": 3, "nonlinearity": "linear"}),
    ("s4d", 4, 5, {"d_state": 4, "dt_min": 0.1, "dt_max": 1.0}),
    ("lstm", 2, 12, {"d_inner": 5}),
    ("lstm", 4, 5, {}),
    ("gru", 7, 9, {"d_inner": 8}),
    ("rnn", 4, 5, {}),
    ("slstm", 6, 7, {"n_heads": 1}),
    ("gru", 4, 12, {"d_inner": 2}),
    ("gated_conv", 5, 12, {}),
    ("hyena", 5, 12, {}),
    ("min_lstm", 2, 12, {"d_inner": 6}),
    ("rg_lru", 4, 12, {"d_inner": 6}),
    ("parallel_hybrid", 6, 12, {"pattern": ["attention", "conv"], "n_heads": 2, "d_conv": 3}),
    ("head_hybrid", 6, 12, {"n_heads": 3, "n_softmax_heads": 2}),
    ("identity", 3, 5, {}),
    ("hybrid", 6, 12, {"pattern": ["attention", {"name": "attention", "n_heads": 2}], "n_heads": 3}),
    ("capped_mlstm", 6, 12, {"n_heads": 2}),
    ("slstm", 6, 14, {"n_heads": 2}),
]
DRAWN = random.Random(0).sample(range(len(MIXERS)), 16)
"""Indices of the rows in the default run."""


def attention(n_heads: int, **options: Any) -> SequenceMixer:
    return create_mixer("attention", 8, n_heads=n_heads, **options)


LAYERS = {
    "conv": lambda: ShortConv(5, 3),
    "two layers": lambda: Stack([attention(2), attention(3, d_head=2)]),
    "channel mixer": lambda: ResidualBlock(attention(2), d_channel=4),
    "layer norms": lambda: ResidualBlock(attention(2), d_channel=24, norm_type="layer"),
    "layer norms of outputs": lambda: ResidualBlock(attention(2), d_channel=24, norm_type="layer", norm="output"),
    "more operators than channels": lambda: ResidualBlock(attention(9, d_head=8), d_channel=2),
    "taps of centred channels": lambda: ResidualBlock(
        create_mixer("factorized", 4, n_heads=1), d_channel=3, canon="C", norm_type="layer"
    ),
    "shift after canon": lambda: ResidualBlock(
        create_mixer("attention", 12, n_heads=1), d_channel=1, canon="C", channel="rwkv"
    ),
    "shifted channel mixer": lambda: ResidualBlock(attention(1), d_channel=1, channel="rwkv"),
    "canon in front": lambda: Stack([Canon(8), attention(2)]),
    "canon before": lambda: ResidualBlock(attention(1), d_channel=3, canon="C"),
    "canon inside": lambda: ResidualBlock(attention(2), d_channel=4, canon="D"),
}


def measured(layer: nn.Module, seq_len: int, generator: torch.Generator) -> int:
    x = torch.randn(1, seq_len, layer.d_model, generator=generator, dtype=torch.float64)
    return interaction_rank(interaction(layer.double(), x).operator[0])


@pytest.mark.parametrize(
    ("name", "d_model", "seq_len", "options"), [slow(*row, unless=at in DRAWN) for at, row in enumerate(MIXERS)]
)
def test_a_mixer_has_the_predicted_rank(
    name: str, d_model: int, seq_len: int, options: dict[str, Any], generator: torch.Generator
) -> None:
    layer = create_mixer(name, d_model, **options)
    if name in ("capped_mlstm", "rwkv6", "slstm"):  # at initialisation their gates hide a part of the span
        randomise(layer, generator)
    assert layer.predicted_rank(seq_len) == measured(layer, seq_len, generator)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_several_parts_has_the_predicted_rank(name: str, generator: torch.Generator) -> None:
    layer = LAYERS[name]()
    if name == "layer norms of outputs":  # at initialisation both norms remove the same direction
        randomise(layer, generator)
    assert layer.predicted_rank(32) == measured(layer, 32, generator)


@every_kind
def test_no_mixer_exceeds_its_prediction(name: str, generator: torch.Generator) -> None:
    layer = create_mixer(name, 4)
    predicted = layer.predicted_rank(10)
    assert predicted is not None
    assert measured(layer, 10, generator) <= predicted


def test_a_layer_without_a_law_predicts_nothing() -> None:
    class Unheard(ShortConv):
        rank_law = SequenceMixer.rank_law

    assert Unheard(4, 2).predicted_rank(8) is None
    assert Stack([ShortConv(4, 2), Unheard(4, 2)]).predicted_rank(8) is None
    assert ResidualBlock(Unheard(4, 2)).predicted_rank(8) is None
    assert ResidualBlock(ShortConv(4, 2), 4, n_experts=2).predicted_rank(8) is None


def test_no_prediction_exceeds_the_pairs_of_positions() -> None:
    assert ShortConv(4, 3).predicted_rank(1) == 1
    assert create_mixer("lstm", 8).predicted_rank(3) == 6
    with pytest.raises(ValueError, match="seq_len must be a positive integer"):
        ShortConv(4, 3).predicted_rank(0)
