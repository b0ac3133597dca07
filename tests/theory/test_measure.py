"""The comparison table of mixers: its measurements, its names of layers, its files and figures."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.tolerances import assert_close
from zoo.backbone import Backbone
from zoo.registry import create_mixer, list_mixers
from zoo.theory.columns import decay_text, heads_text, rank_text, remarks
from zoo.theory.figures import error_by_heads, fitted_line, gradient_decay_figure
from zoo.theory.gradients import DecayRate, Gradient, GradientProfile, fitted, gradient_profile, profile_at
from zoo.theory.layers import layer_inputs, random_inputs
from zoo.theory.measure import (
    QUANTITIES,
    Measurement,
    Sizes,
    measure_backbone,
    measure_gradients,
    measure_mixers,
    sizes_within,
)
from zoo.theory.measure_page import measure_page, measurements_as_json, write_measurements
from zoo.theory.operator import interaction
from zoo.theory.spectra import SpectrumRead, operator_norms

SMALL = Sizes(d_model=4, seq_len=12, n_heads=2, gradient_len=24, lengths=(8, 16), repeats=1, n_seeds=5)


@pytest.fixture(scope="module")
def rows() -> list[Measurement]:
    seen: list[tuple[str, str]] = []
    found = measure_mixers(["attention", "factorized", "lstm"], SMALL, lambda *what: seen.append(what))
    assert sorted(seen) == sorted((row.name, quantity) for row in found for quantity in QUANTITIES)
    return found


def test_rows_have_the_known_values_of_their_mixers(rows: list[Measurement]) -> None:
    attention, factorized, lstm = rows
    assert [row.name for row in rows] == ["attention", "factorized", "lstm"]
    assert (attention.read.rank, attention.predicted_rank, attention.as_predicted) == (2, 2, True)
    assert (lstm.read.rank, lstm.predicted_rank) == (16, 16)
    assert attention.read.heads[0.001] == 2
    assert attention.n_params == 4 * 4 * 4
    assert attention.state_bytes == {length: 2 * 4 * 4 * length + 8 for length in (1024, 65536)}
    assert factorized.state_bytes[65536] is None  # longer than its free lags
    assert lstm.state_bytes == {1024: 32, 65536: 32}
    assert [row.offset_share for row in rows] == [0, 0, 0]
    assert factorized.input_dependence == 0
    assert attention.input_dependence > 0.01
    assert attention.highway is not None
    assert factorized.highway is None
    assert attention.highway.decay is not None
    assert abs(attention.highway.decay.rate) < 1e-6
    assert lstm.noise.decay is not None
    assert lstm.noise.decay.rate < -0.1


def test_rows_depend_only_on_the_seed_and_measure_gradients_gives_the_same(rows: list[Measurement]) -> None:
    torch.manual_seed(99)
    noise, highway = measure_gradients(["attention"], SMALL)["attention"]
    assert rows[0].highway is not None
    assert highway is not None
    assert torch.equal(noise.profile.values, rows[0].noise.profile.values)
    assert torch.equal(highway.profile.values, rows[0].highway.profile.values)
    shared = measure_mixers(["attention", "lstm"], SMALL, processes=2)
    assert [row.name for row in shared] == ["attention", "lstm"]
    assert_close(shared[0].read.values, rows[0].read.values)
    (other,) = measure_mixers(["attention"], replace(SMALL, seed=1))
    assert not torch.equal(other.read.values, rows[0].read.values)


def backbone(**options: Any) -> Backbone:
    return Backbone({"name": "attention", "n_heads": 2}, 4, 2, n_outputs=3, **options).eval()


@pytest.mark.parametrize("norm", ["input", "output"])
def test_layers_of_a_model_are_measured_at_their_inputs(norm: str, generator: torch.Generator) -> None:
    model = backbone(vocab_size=7, blocks=[{"d_channel": 8, "norm": norm}] * 2)
    tokens = random_inputs(model, 2, 12, generator)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    rows = measure_backbone(model, SMALL, tokens)
    assert [(row.name, row.read.rank) for row in rows] == [("layer 0: attention", 2), ("layer 1: attention", 2)]
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    # The second mixer's input is the residual stream after the first block, normed if blocks norm their inputs.
    first, second = model.layers.chain()
    x = first(model.embed(tokens))
    x = second.mixer_norm(x) if norm == "input" else x
    torch.testing.assert_close(layer_inputs(model, tokens)[1].x, x)


def test_a_rank_is_predicted_for_the_length_of_the_inputs_and_may_be_zero() -> None:
    model = Backbone({"name": "lstm"}, 4, 2, vocab_size=7, n_outputs=7)
    model.layers.chain()[1].get_submodule("mixer").get_submodule("out_proj").get_parameter("weight").data.zero_()
    first, silent = measure_backbone(model, SMALL, torch.tensor([[0, 1, 2], [3, 4, 5]]))
    assert (first.read.rank, first.predicted_rank) == (6, 6)  # of three positions
    assert (silent.read.rank, silent.input_dependence) == (0, None)


@pytest.mark.parametrize("name", list_mixers())
def test_a_layer_has_the_name_of_its_mixer(name: str, generator: torch.Generator) -> None:
    model = Backbone({"name": name}, 16, 2, vocab_size=7, n_outputs=7)
    names = [layer.name for layer in layer_inputs(model, random_inputs(model, 1, 9, generator))]
    members = ["selective_ssm", "attention"] if name == "hybrid" else [name, name]
    assert names == [f"layer {at}: {member}" for at, member in enumerate(members)]


def test_a_model_with_vector_inputs_and_a_bare_one_are_measured() -> None:
    assert len(measure_backbone(backbone(d_input=5), SMALL)) == 2
    bare = backbone(d_input=4, backbone="bare")
    (first, _) = layer_inputs(bare, torch.ones(1, 3, 4))
    assert torch.equal(first.x, torch.ones(1, 3, 4))
    with pytest.raises(ValueError, match="at least two inputs"):
        measure_backbone(bare, SMALL, torch.ones(1, 3, 4))


@pytest.mark.parametrize(
    ("mixer", "longest"),
    [
        ({"name": "factorized", "max_seq_len": 20}, 20),
        ({"name": "hybrid", "pattern": ["lstm", {"name": "factorized", "max_seq_len": 50}]}, 50),
        ({"name": "lstm"}, None),
    ],
)
def test_sizes_are_cut_to_the_longest_sequence_that_a_model_takes(mixer: dict[str, Any], longest: int | None) -> None:
    model = Backbone(mixer, 4, 2, d_input=4, n_outputs=3).eval()
    wanted = replace(SMALL, seq_len=64, gradient_len=48, lengths=(32, 64, 128))
    sizes = sizes_within(model, wanted)
    if longest is None:
        assert sizes == wanted
        return
    cut = {"seq_len": min(64, longest), "gradient_len": min(48, longest)}
    assert sizes == replace(wanted, **cut, lengths=(longest // 4, longest // 2, longest), cut_to=longest)
    model(torch.zeros(1, longest, 4))
    with pytest.raises(ValueError, match="exceeds max_seq_len"):
        model(torch.zeros(1, longest + 1, 4))


def test_norms_of_the_operator_are_those_of_its_blocks(generator: torch.Generator) -> None:
    for d_model, factor in ((8, 1 + 1e-9), (24, 2)):  # exact for width 8, estimated from random directions for 24
        layer = create_mixer("attention", d_model, n_heads=2).double()
        x = torch.randn(1, 10, d_model, generator=generator, dtype=torch.float64)
        found, exact = operator_norms(layer, x), torch.linalg.matrix_norm(interaction(layer, x).operator[0])
        past = torch.ones(10, 10).tril().bool()
        assert (found / exact)[past].log().abs().max() < math.log(factor)
        assert not found[~past].any()


def test_a_profile_at_given_inputs_is_the_profile_there(generator: torch.Generator) -> None:
    layer = create_mixer("attention", 4, n_heads=2).double()
    x = torch.randn(2, 9, 4, generator=generator, dtype=torch.float64)
    given = gradient_profile(layer, lambda g, _: x[g.initial_seed()], range(9), seeds=2, seq_len=9)
    torch.testing.assert_close(profile_at(layer, x).values, given.values)


@pytest.mark.parametrize(
    ("name", "value"), [("d_model", 0), ("n_seeds", 4), ("gradient_len", 8), ("lengths", (8, 8, 16)), ("seed", 2**64)]
)
def test_invalid_sizes_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Sizes(**{name: value})


def test_invalid_mixers_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(ValueError, match="did you mean 'lstm'"):
        measure_mixers(["factorized", "lst"], SMALL, lambda *_: pytest.fail("measured"))
    with pytest.raises(ValueError, match="not divisible by n_heads"):
        measure_mixers(["factorized", "attention"], replace(SMALL, d_model=5), lambda *_: pytest.fail("measured"))


@pytest.mark.usefixtures("unpainted")
def test_the_written_files_contain_the_rows(rows: list[Measurement], tmp_path: Path) -> None:
    page, data, picture = write_measurements(rows, tmp_path / "out", SMALL, "a machine")
    content = json.loads(data.read_text())
    assert (content["machine"], content["sizes"]["d_model"]) == ("a machine", 4)
    first, second, _ = content["rows"]
    assert first["rank"] == rows[0].read.rank
    assert first["spectrum"] == pytest.approx(rows[0].read.values.tolist())
    assert rows[0].noise.decay is not None
    assert first["gradient_random"]["decay"]["rate"] == pytest.approx(rows[0].noise.decay.rate)
    assert second["gradient_highway"] is None
    table = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(rows)
    assert len({line.count("|") for line in table}) == 1
    assert table[2].startswith("| attention | 2 | 2 | ")
    assert "(measure.png)" in page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")
    odd = [replace(rows[0], input_dependence=math.nan)]
    json.loads(measurements_as_json(odd, SMALL, ""), parse_constant=pytest.fail)


def test_notes_report_wrong_predictions_and_estimates(rows: list[Measurement]) -> None:
    row, values = rows[0], rows[0].read.values
    assert measure_page(rows, SMALL, "").notes == []
    (note,) = measure_page([replace(row, predicted_rank=3)], SMALL, "").notes
    assert "attention" in note
    sketched = replace(row, read=SpectrumRead(values, limit=2), predicted_rank=50)
    assert sketched.as_predicted
    assert rank_text(sketched.read) == "≥ 2"
    assert "m = 16" in remarks({"attention": sketched.read})[0]
    sampled = replace(row, read=SpectrumRead(values, sources=32))
    assert "32" in remarks({"attention": sampled.read})[0]
    assert heads_text(sampled.read) == f"≥ {heads_text(row.read)}"
    unread = replace(row, read=SpectrumRead(torch.empty(0)))
    assert "attention" in remarks({"attention": unread.read})[0]
    assert (rank_text(unread.read), heads_text(unread.read), unread.as_predicted) == ("–", "–", None)


def test_a_gradient_of_finite_reach_has_no_decay_rate() -> None:
    found = measure_gradients(["conv", "identity", "attention"], SMALL)
    noise = {name: noise for name, (noise, _) in found.items()}
    assert {name: gradient.reach for name, gradient in noise.items()} == {"conv": 3, "identity": 0, "attention": None}
    assert noise["conv"].decay is None
    assert noise["attention"].decay is not None


def test_the_reach_of_a_gradient_is_the_largest_over_seeds() -> None:
    values = torch.tensor([[1.0, 0.5, 0.0, 0.0], [1.0, 0.0, 0.1, 0.0]])
    assert Gradient(GradientProfile(values, torch.arange(4), 4), None).reach == 2
    assert Gradient(GradientProfile(values[:, :3], torch.arange(3), 4), None).reach is None


def test_error_by_heads_is_the_tail_of_the_spectrum() -> None:
    counts, errors = error_by_heads(torch.tensor([3.0, 4.0 / 2, 0.0]))
    assert counts == [1, 2]
    assert errors[0] == pytest.approx(2 / math.sqrt(13))
    assert errors[1] <= 1e-7


def test_the_fitted_line_lies_on_the_profile() -> None:
    distances = torch.arange(64)
    profile = GradientProfile((-0.05 * distances.double()).exp().expand(5, -1) * 5, distances, 64)
    decay = fitted(profile).decay
    assert decay is not None
    taus, line = fitted_line(profile, decay)
    assert taus[0] == 16
    torch.testing.assert_close(line, 5 * (-0.05 * taus).exp())


@pytest.mark.parametrize(
    ("decay", "text"),
    [
        ((-0.10536, (-0.1061, -0.1049)), "-0.1054 [-0.1061, -0.1049]"),
        ((-1e-9, (-2e-9, 1e-9)), "0.0000 [0.0000, 0.0000]"),
        ((-0.8, (-0.95, -0.2)), "-0.80 [-0.95, -0.20]"),
    ],
)
def test_a_rate_has_the_digits_that_its_interval_allows(decay: Any, text: str) -> None:
    assert decay_text(DecayRate(*decay, None, 1.0, 1.0)) == text


@pytest.mark.parametrize("values", [torch.zeros(2, 6), torch.tensor([[0.0, 1.0], [0.0, 2.0]])])
def test_a_figure_of_a_zero_gradient_can_be_drawn(values: Tensor) -> None:
    profile = GradientProfile(values, torch.arange(values.shape[1]), values.shape[1])
    assert gradient_decay_figure(Gradient(profile, None), "title").axes[0].get_title() == "title"
