"""Functional heads of a model: scores with one layer truncated, budgets of time and memory, errors."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor

from tests import slow
from tests.cases import draw, randomise
from zoo import Backbone
from zoo.theory import budget, model_heads, span_basis, truncate
from zoo.theory.budget import least_seconds, memory_needed, others_within
from zoo.theory.model_heads import CutScores, cut_scores, measure_heads
from zoo.theory.scores import accuracy, agreement, explained
from zoo.training.metrics import R2

SIZES = {"d_model": 8, "n_layers": 2, "vocab_size": 12, "n_outputs": 12}


def model_of(generator: torch.Generator, **options: object) -> Backbone:
    given = {"mixer": {"name": "hybrid", "n_heads": 2}} | SIZES | options
    return randomise(Backbone(**given), generator).double().eval()


def tokens(generator: torch.Generator, n: int = 3) -> Tensor:
    return torch.randint(12, (n, 10), generator=generator)


@pytest.mark.parametrize("backbone", ["residual", "bare"])
def test_a_row_per_layer_and_the_whole_span_keeps_the_model(backbone: str, generator: torch.Generator) -> None:
    model = model_of(generator, backbone=backbone)
    before = copy.deepcopy(model.state_dict())
    seen: list[str] = []
    rows = measure_heads(
        model, tokens(generator), tokens(generator, 4), grid=(0, 1, 64), progress=lambda _, what: seen.append(what)
    )
    assert [row.name for row in rows] == ["layer 0: selective_ssm", "layer 1: attention"]
    assert [row.n_heads for row in rows] == [None, 2]
    assert len(seen) == 8
    for row in rows:
        assert row.cut is not None
        assert row.state_size is not None
        most = max(row.cut.scores)
        assert row.read.rank == most <= 64
        assert (row.cut.whole, row.cut.scores[most]) == (1.0, 1.0)
        assert row.cut.scores[0] < 1.0
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


def test_a_model_of_one_output_is_scored_by_its_numbers(generator: torch.Generator) -> None:
    """R^2 relative to the untruncated model, because the argmax of a single output is constant."""
    model, others = model_of(generator, n_outputs=1, n_layers=2, backbone="bare"), tokens(generator, 4)
    silent = copy.deepcopy(model).float()
    torch.nn.init.zeros_(silent.layers.chain()[1].out_proj.weight)
    wanted, given = (each.detach().double().flatten() for each in (model(others), silent(others)))
    cut = measure_heads(model, tokens(generator), others, grid=(0, 64))[1].cut
    assert cut is not None
    assert cut.scores[0] == pytest.approx(
        1 - float((given - wanted).square().mean() / wanted.var(correction=0)), rel=1e-4
    )
    assert cut.scores[max(cut.scores)] == pytest.approx(1.0)


@pytest.mark.slow
def test_processes_share_the_layers(generator: torch.Generator) -> None:
    model, x, others = model_of(generator), tokens(generator), tokens(generator, 4)
    seen: list[str] = []
    given = {"grid": (0, 1, 64), "progress": lambda row, what: seen.append(f"{row}: {what}")}
    alone, shared = (measure_heads(model, x, others, **given, processes=n) for n in (1, 2))
    assert sorted(seen[:8]) == sorted(seen[8:])
    for one, other in zip(alone, shared, strict=True):
        assert (one.name, one.read.heads, one.cut) == (other.name, other.read.heads, other.cut)
    assert memory_needed(model, 10, 3, 4) < memory_needed(model, 10, 3, 4, processes=2)


@pytest.mark.parametrize("norm", ["input", slow("output")])
def test_a_layer_cut_to_zero_operators_adds_only_its_offset(norm: str, generator: torch.Generator) -> None:
    """Attention has no bias, so without operators its output is zero, as with zero output weights."""
    model, others = model_of(generator, blocks=[{"d_channel": 8, "norm": norm}] * 2), tokens(generator, 4)
    silent = copy.deepcopy(model)
    torch.nn.init.zeros_(silent.layers.chain()[1].mixer.out_proj.weight)
    stream = model.layers.chain()[0](model.embed(others))
    x = model.layers.chain()[1].mixer_input(stream)
    score = agreement(model(others))
    found = cut_scores(model, 1, x, stream, score, grid=(0, 64))
    assert found.scores == {0: score(silent(others)), max(found.scores): 1.0}


def test_bisection_finds_the_functional_heads_of_a_large_model(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The score, one minus the relative error of the truncated model, grows with the number of operators."""
    model, others = model_of(generator, n_layers=1, mixer={"name": "selective_ssm"}), tokens(generator)
    x = model.layers.chain()[0].mixer_input(stream := model.embed(others))
    whole = model(others).detach()
    given = (model, 0, x, stream, lambda y: 1 - float((y - whole).norm() / whole.norm()))
    every = cut_scores(*given)
    monkeypatch.setattr(model_heads, "_FEW_PRODUCTS", 0)
    some = cut_scores(*given, whole=1.0)
    assert every.whole == some.whole == 1.0
    block = model.layers.chain()[0]
    basis = span_basis(block.mixer, x)
    for count in (0, 1, 3):
        cut_off = block.mix_channels(block.add_mixed(stream, truncate(block.mixer, basis, count)(x)))
        assert every.scores[count] == pytest.approx(given[-1](model.read_out(cut_off).detach()))
    assert every.functional_heads == some.functional_heads
    assert len(some.scores) < len(every.scores) / 2
    assert some.scores.items() <= every.scores.items()
    assert len(cut_scores(*given, grid=(0, 1, 2), whole=1.0).scores) == 1  # even the largest loses the score
    *_, last_but_one, last = every.scores
    monkeypatch.setattr(model_heads, "KEPT", every.scores[last_but_one] - 1e-6)
    assert cut_scores(*given, whole=1.0).functional_heads == every.functional_heads == last_but_one < last
    monkeypatch.setattr(model_heads, "LARGEST_PARTS", 1)  # sequence by sequence
    assert cut_scores(*given, whole=1.0).scores == pytest.approx(some.scores)


def test_a_layer_is_cut_to_the_operators_of_all_inputs(generator: torch.Generator) -> None:
    """One sequence of ten positions has only 55 operators, but an LSTM of width 8 spans up to 64."""
    model = model_of(generator, n_layers=1, mixer={"name": "lstm"})
    [row] = measure_heads(model, tokens(generator, 3), tokens(generator, 1), grid=(64,))
    assert row.cut is not None
    assert 55 < max(row.cut.scores) <= 64


def test_the_budget_limits_the_number_of_scored_sequences(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels of a head share weights, so attention needs fewer passes than a mixer with a gate per channel."""
    attention, lru = (
        model_of(generator, d_model=40, n_layers=1, mixer={"name": name}) for name in ("attention", "rg_lru")
    )
    assert least_seconds(attention, 64, 2, 8) < least_seconds(lru, 64, 2, 8)
    assert others_within(lru, 64, 2) == 24
    monkeypatch.setattr(budget, "BUDGET", least_seconds(lru, 64, 2, 5) * 1.001)
    assert others_within(lru, 64, 2) == 5
    monkeypatch.setattr(budget, "BUDGET", 0.0)
    assert others_within(lru, 64, 2) == 1
    assert memory_needed(lru, 64, 2, 0) < memory_needed(lru, 64, 2, 1) < memory_needed(lru, 64, 2, 24)


def test_a_mixer_behind_a_canon_layer_has_its_heads(generator: torch.Generator) -> None:
    model = model_of(generator, mixer={"name": "attention", "n_heads": 2}, n_layers=1, canon="A")
    rows = measure_heads(model, tokens(generator))
    assert [(row.name, row.n_heads) for row in rows] == [("layer 0: Canon + attention", 2)]


def test_functional_heads_are_the_fewest_from_which_on_the_score_is_kept() -> None:
    assert CutScores(0.9, {0: 0.1, 1: 0.9, 2: 0.5, 3: 0.895, 4: 0.9}).functional_heads == 3
    assert CutScores(0.9, {0: 0.9, 1: 0.9}).functional_heads == 0
    assert CutScores(0.9, {0: 0.1, 64: 0.5}).functional_heads is None
    assert CutScores(0.0, {0: 0.0, 1: 0.0}).functional_heads is None
    assert CutScores(-0.5, {0: 0.1, 1: -0.5}).functional_heads is None
    assert CutScores(math.nan, {0: math.nan, 1: math.nan}).functional_heads is None  # R^2 of a constant output


def test_scores_are_of_labelled_positions(generator: torch.Generator) -> None:
    labels = torch.tensor([[0, -100, 1], [1, 1, -100]])
    outputs = torch.nn.functional.one_hot(torch.tensor([[0, 1, 0], [1, 0, 1]]), 2).double()
    assert accuracy(labels)(outputs) == 0.5
    wanted = draw(2, 3, 1, generator=generator)
    assert explained(wanted)(wanted) == 1.0
    assert explained(wanted)(wanted.mean().expand_as(wanted)) == pytest.approx(0.0)
    wanted[0, 0] = torch.nan
    assert explained(wanted)(wanted.nan_to_num(7.0)) == 1.0
    wanted = draw(20, 3, 2, generator=generator) + torch.tensor([0.0, 9.0])  # outputs with different means
    outputs = wanted.mean((0, 1)) + 0.1 * draw(20, 3, 2, generator=generator)
    training = R2()
    training.update(outputs.flatten(0, 1), wanted.flatten(0, 1))
    assert explained(wanted)(outputs) == pytest.approx(float(training.compute()), rel=1e-4)


def test_bad_input_is_a_one_line_error(generator: torch.Generator) -> None:
    model, x = model_of(generator), tokens(generator)
    for grid in ((-1, 2), ()):
        with pytest.raises(ValueError, match="grid must hold"):  # before anything is measured
            measure_heads(model, x, x, grid=grid, progress=lambda *_: pytest.fail("measured"))
    with pytest.raises(ValueError, match="inputs must be tokens"):
        measure_heads(model, draw(1, 4, 8, generator=generator))
