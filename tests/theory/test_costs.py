"""`complexity`: memory against formulas, exponents against known powers. `input_dependence` against whole operators."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases import every_kind
from zoo.backbone import Backbone
from zoo.blocks import RMSNorm, ShortConv
from zoo.coefficient import coefficient, recording
from zoo.contract import SequenceMixer
from zoo.registry import create_mixer
from zoo.theory import costs
from zoo.theory.costs import complexity, input_dependence
from zoo.theory.operator import interaction

LENGTHS = (32, 64, 128)


class Constant(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)


class Square(nn.Module):
    """Saves x, x * x and a parameter for the backward pass."""

    d_model = 4

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * x * self.weight


def test_memory_counts_each_storage_once() -> None:
    """x and x * x count once each, the parameter not at all."""
    found = complexity(Square(), LENGTHS, batch_size=3, repeats=1)
    assert found.bytes == tuple(2 * 3 * length * 4 * 4 for length in LENGTHS)
    assert found.memory_exponent == pytest.approx(1)
    assert found.lengths == LENGTHS
    wide = complexity(Square().double(), LENGTHS, batch_size=3, repeats=1)
    assert wide.bytes == tuple(2 * b for b in found.bytes)


def test_memory_of_mixers_and_blocks() -> None:
    for layer, exponent in (
        (create_mixer("attention", 8, n_heads=2), 1),  # the fused kernel does not keep the attention matrix
        (create_mixer("attention", 8, position="alibi"), 2),  # with a bias torch keeps it
        (create_mixer("lstm", 8), 1),
        (Backbone({"name": "linear_attention"}, d_model=8, n_layers=1, vocab_size=5, n_outputs=3), 1),
    ):
        found = complexity(layer, (128, 256), repeats=1)
        assert found.memory_exponent == pytest.approx(exponent, abs=0.1)
        if isinstance(layer, SequenceMixer):  # the memory includes the state
            assert all(held >= (layer.state_bytes(n) or 0) for n, held in zip((128, 256), found.bytes, strict=True))


def test_times_are_medians_of_interleaved_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is simulated: length^1.5 seconds, with one disturbed round."""
    visited: list[int] = []

    def clock(layer: nn.Module, x: Tensor) -> float:
        visited.append(x.shape[1])
        return x.shape[1] ** 1.5 * (100 if len(visited) <= len(LENGTHS) else 1)

    monkeypatch.setattr(costs, "_seconds", clock)
    found = complexity(Square(), LENGTHS, repeats=3)
    assert visited == list(LENGTHS) * 3
    assert found.seconds == pytest.approx([length**1.5 for length in LENGTHS])
    assert found.time_exponent == pytest.approx(1.5)


def test_timing_includes_the_backward_pass_and_leaves_no_gradients() -> None:
    layer = Square()
    passes: list[torch.Size] = []
    layer.weight.register_hook(lambda grad: passes.append(grad.shape))
    found = complexity(layer, LENGTHS, repeats=2)
    assert len(passes) == 2 * len(LENGTHS)
    assert layer.weight.grad is None
    assert layer.training
    assert all(s > 0 for s in found.seconds)
    assert math.isfinite(found.time_exponent)


@every_kind
def test_input_dependence_from_whole_operators(
    name: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.theory.operator.POSITIONS_AT_ONCE", 3 * 4 * 5 * 2)
    layer = create_mixer(name, 4).double()
    x = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    W = interaction(layer, x).operator
    expected = [
        ((a - b).norm() / ((a.square().sum() + b.square().sum()) / 2).sqrt()).item()
        for a, b in itertools.combinations(W, 2)
    ]
    found = input_dependence(layer, x)
    assert found == pytest.approx(sum(expected) / 3, rel=1e-9, abs=1e-12)
    with recording() as tape:
        layer(x)
    assert (found < 1e-12) == (not tape.kept)


class Shifted(nn.Module):
    """A small input-dependent gate plus a large constant."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.01 * coefficient(torch.sigmoid(x)) * x.cumsum(1) + 1e4


def test_a_large_offset_does_not_move_the_operator_in_float32(generator: torch.Generator) -> None:
    x = torch.randn(2, 5, 3, generator=generator)
    assert input_dependence(Shifted(), x) == pytest.approx(input_dependence(Shifted(), x.double()), rel=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: complexity(ShortConv(2, 2), (8, 8)), "two different"),
        (lambda: complexity(ShortConv(2, 2), (1, 8)), "at least 2"),
        (lambda: complexity(ShortConv(2, 2), (4, 8), repeats=0), "repeats"),
        (lambda: complexity(RMSNorm(2), (4, 8)), "no d_model"),
        (lambda: complexity(Constant(), (4, 8), d_in=2), "no backward pass to measure: .* of Constant"),
        (lambda: input_dependence(ShortConv(2, 2), torch.ones(1, 3, 2)), "at least two"),
        (lambda: input_dependence(nn.Threshold(9.0, 0.0), torch.ones(2, 3, 2)), "zero at one"),
    ],
)
def test_bad_input_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
