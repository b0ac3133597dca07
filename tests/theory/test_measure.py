"""The comparison table: predicted ranks are those measured, rows hold what their parts say, files hold the rows."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.cases import every_kind, randomise
from zoo.backbone import Backbone
from zoo.blocks import Canon, ResidualBlock, ShortConv, Stack
from zoo.contract import SequenceMixer
from zoo.registry import create_mixer
from zoo.theory.comparison import (
    GROUPS,
    describe_misses,
    describe_sketches,
    measurements_as_json,
    measurements_as_markdown,
    write_measurements,
)
from zoo.theory.figures import (
    decay_text,
    error_by_heads,
    fitted_line,
    gradient_decay_figure,
    heads_text,
    spectrum_figure,
)
from zoo.theory.gradients import DecayRate, GradientProfile, gradient_profile
from zoo.theory.measure import (
    Gradient,
    Measurement,
    Sizes,
    fitted,
    layer_inputs,
    layer_profile,
    measure_backbone,
    measure_gradients,
    measure_mixers,
    operator_norms,
    random_inputs,
    sizes_within,
)
from zoo.theory.operator import interaction
from zoo.theory.rank import interaction_rank

SMALL = Sizes(d_model=4, seq_len=12, n_heads=2, gradient_len=24, lengths=(8, 16), repeats=1, n_seeds=5)


def make(name: str, d_model: int, **options: Any) -> nn.Module:
    return create_mixer(name, d_model, **options)


LAYERS: dict[str, tuple[Any, int]] = {
    "attention": (lambda: make("attention", 6, n_heads=3), 6),
    "one key, six queries": (lambda: make("attention", 3, n_heads=6, d_head=1, n_kv_heads=1), 3),
    "attention, value conv": (lambda: make("attention", 6, n_heads=2, d_conv=3), 6),
    "attention with few pairs": (lambda: make("attention", 8, n_heads=8), 2),
    "window": (lambda: make("sliding_attention", 6, n_heads=3, window=4), 6),
    "window of one": (lambda: make("sliding_attention", 6, n_heads=3, window=1), 6),
    "narrow band": (lambda: make("sliding_attention", 8, n_heads=8, window=2), 4),
    "gate per head": (lambda: make("gated_attention", 6, n_heads=3, gate="head"), 12),
    "gate per channel": (lambda: make("gated_attention", 6, n_heads=2), 12),
    "gate per channel, shared": (lambda: make("gated_attention", 3, n_heads=4, d_head=2, n_kv_heads=1), 8),
    "gate per channel, few pairs": (lambda: make("gated_attention", 8, n_heads=2), 3),
    "two softmaxes a head": (lambda: make("differential_attention", 8, n_heads=3, d_head=2), 12),
    "forgetting": (lambda: make("forgetting_attention", 6, n_heads=3), 12),
    "forgetting with few pairs": (lambda: make("forgetting_attention", 8, n_heads=8), 2),
    "moved keys": (lambda: make("path_attention", 6, n_heads=3, forget_gate=True), 12),
    "toeplitz, short": (lambda: make("factorized", 3, n_heads=7), 4),
    "bilinear": (lambda: make("factorized", 3, n_heads=5, kernel="bilinear", d_head=2), 8),
    "ring": (lambda: make("diagonal_ssm", 4, d_state=6, init="ring"), 16),
    "learned gains": (lambda: make("lru", 4, d_state=6), 16),
    "modes of HiPPO": (lambda: make("s5", 4, d_state=6, dt_min=0.1, dt_max=1.0), 16),
    "real poles": (lambda: make("diagonal_ssm", 4, d_state=3, init="real_log", dt_min=0.1, dt_max=1.0), 16),
    "one SSM a channel": (lambda: make("s4d", 3, d_state=4, output="none", dt_min=0.1, dt_max=1.0), 12),
    "one SSM a channel, glu": (lambda: make("s4d", 3, d_state=4, dt_min=0.1, dt_max=1.0), 12),
    "kernel": (lambda: make("conv", 5, d_conv=3), 12),
    "long kernel": (lambda: make("conv", 3, kernel="implicit"), 12),
    "Mamba-2": (lambda: make("ssd", 4, d_state=4), 16),
    "Mamba-3": (lambda: make("mamba3", 4, d_state=4), 16),
    "delta rule": (lambda: make("delta_net", 6, n_heads=2), 16),
    "gated delta rule": (lambda: make("gated_delta_net", 4, n_heads=2), 16),
    "selective": (lambda: make("selective_ssm", 3, d_state=2), 12),
    "gated linear": (lambda: make("gated_linear_attention", 6, n_heads=2), 16),
    "gated linear, no gate": (lambda: make("gated_linear_attention", 6, n_heads=2, output_gate=False), 16),
    "Kimi": (lambda: make("kda", 6, n_heads=2), 16),
    "erase and write gates": (lambda: make("gdn2", 6, n_heads=2), 16),
    "two steps": (lambda: make("delta_product", 6, n_heads=1, d_head=3, expand=1), 16),
    "retention": (lambda: make("retnet", 6, n_heads=1, expand=1), 16),
    "lightning": (lambda: make("lightning_attention", 6, n_heads=2), 16),
    "keys tied to decays": (lambda: make("hgrn2", 6, n_heads=3), 16),
    "shifted delta rule": (lambda: make("rwkv7", 8, n_heads=2), 16),
    "shifted delta rule, one head": (lambda: make("rwkv7", 5, n_heads=1), 16),
    "matrix memory": (lambda: make("mlstm", 6, n_heads=2), 16),
    "matrix memory, one head": (lambda: make("mlstm", 6, n_heads=1, expand=1, d_block=2), 16),
    "capped matrix memory": (
        lambda: randomise(make("capped_mlstm", 6, n_heads=2), torch.Generator().manual_seed(0)),
        12,
    ),
    "linear RNN": (lambda: make("rnn", 4, d_inner=3, nonlinearity="linear"), 12),
    "wide cell": (lambda: make("lstm", 2, d_inner=5), 12),
    "cell with few pairs": (lambda: make("lstm", 4), 3),
    "narrow cell": (lambda: make("gru", 4, d_inner=2), 12),
    "exponential cell": (lambda: randomise(make("slstm", 6, n_heads=2), torch.Generator().manual_seed(0)), 14),
    "gated kernel": (lambda: make("gated_conv", 5), 12),
    "gated kernel with few pairs": (lambda: make("gated_conv", 8, d_conv=2), 4),
    "long gated kernel": (lambda: make("hyena", 5), 12),
    "minimal cell": (lambda: make("min_gru", 4, d_inner=6), 12),
    "wide minimal cell": (lambda: make("min_lstm", 2, d_inner=6), 12),
    "real-gated unit": (lambda: make("rg_lru", 4, d_inner=6), 12),
    "conv": (lambda: ShortConv(5, 3), 12),
    "two layers": (
        lambda: Stack([create_mixer("attention", 8, n_heads=2), create_mixer("attention", 8, n_heads=3, d_head=2)]),
        12,
    ),
    "residual": (lambda: ResidualBlock(create_mixer("attention", 8, n_heads=2)), 12),
    "channel mixer": (lambda: ResidualBlock(create_mixer("attention", 8, n_heads=2), d_channel=4), 16),
    "canon in front": (lambda: Stack([Canon(8), make("attention", 8, n_heads=2)]), 14),
    "canon before": (lambda: ResidualBlock(make("attention", 8, n_heads=1), d_channel=3, canon="C"), 16),
    "canon inside": (lambda: ResidualBlock(make("attention", 8, n_heads=2), d_channel=4, canon="D"), 16),
    "side by side": (lambda: make("parallel_hybrid", 6, pattern=["attention", "conv"], n_heads=2, d_conv=3), 12),
    "both kinds of heads": (lambda: make("head_hybrid", 6, n_heads=3, n_softmax_heads=2), 12),
    "identity": (lambda: make("identity", 3), 5),
    "hybrid": (lambda: make("hybrid", 6, pattern=["attention", {"name": "attention", "n_heads": 2}], n_heads=3), 12),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_predicted_rank_is_the_measured_one(name: str, generator: torch.Generator) -> None:
    build, seq_len = LAYERS[name]
    layer = build().double()
    x = torch.randn(1, seq_len, layer.d_model, generator=generator, dtype=torch.float64)
    assert layer.predicted_rank(seq_len) == interaction_rank(interaction(layer, x).operator[0])


@every_kind
def test_no_mixer_exceeds_its_prediction(name: str, generator: torch.Generator) -> None:
    layer = create_mixer(name, 4).double()
    x = torch.randn(1, 10, 4, generator=generator, dtype=torch.float64)
    predicted = layer.predicted_rank(10)
    assert predicted is not None
    assert interaction_rank(interaction(layer, x).operator[0]) <= predicted


def test_the_parts_of_rwkv7_add_up_to_its_rank(generator: torch.Generator) -> None:
    mixer, x = create_mixer("rwkv7", 8).double(), torch.randn(1, 16, 8, generator=generator, dtype=torch.float64)
    ranks = []
    # A gate that does not depend on the input, then no bonus, then values that are not shifted: two heads are left.
    for part in (None, mixer.gate_down.weight, mixer.bonus, mixer.shift):
        if part is not None:
            torch.nn.init.zeros_(part)
        ranks.append(interaction_rank(interaction(mixer, x).operator[0]))
    assert ranks == [32, 8, 4, 2]


def test_a_layer_without_a_law_has_none() -> None:
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


@pytest.fixture(scope="module")
def rows() -> list[Measurement]:
    return measure_mixers(["attention", "factorized", "lstm"], SMALL)


def test_a_row_holds_what_its_parts_say(rows: list[Measurement]) -> None:
    attention, factorized, lstm = rows
    assert [row.name for row in rows] == ["attention", "factorized", "lstm"]
    assert (attention.rank, attention.predicted_rank, attention.as_predicted) == (2, 2, True)
    assert (lstm.rank, lstm.predicted_rank) == (16, 16)
    assert attention.heads[0.001] == 2
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


def test_rows_depend_on_the_seed_alone(rows: list[Measurement]) -> None:
    torch.manual_seed(99)
    (again,) = measure_mixers(["attention"], SMALL)
    (other,) = measure_mixers(["attention"], replace(SMALL, seed=1))
    assert again.spectrum == rows[0].spectrum
    assert torch.equal(again.noise.profile.values, rows[0].noise.profile.values)
    assert again.spectrum != other.spectrum


def test_gradients_alone_are_those_of_the_rows(rows: list[Measurement]) -> None:
    (noise, highway) = measure_gradients(["attention"], SMALL)["attention"]
    assert rows[0].highway is not None
    assert highway is not None
    assert torch.equal(noise.profile.values, rows[0].noise.profile.values)
    assert torch.equal(highway.profile.values, rows[0].highway.profile.values)


@pytest.mark.slow
def test_progress_names_each_row_and_quantity() -> None:
    seen: list[tuple[str, str]] = []
    (row,) = measure_mixers(["selective_ssm"], SMALL, lambda row, quantity: seen.append((row, quantity)))
    assert 0.2 < row.offset_share < 1
    expected = ["spectrum", "offset", "gradient", "highway", "cost", "input dependence"]
    assert seen == [("selective_ssm", quantity) for quantity in expected]


def backbone(**options: Any) -> Backbone:
    return Backbone({"name": "attention", "n_heads": 2}, 4, 2, n_outputs=3, **options).eval()


@pytest.mark.parametrize("norm", ["input", "output"])
def test_layers_of_a_model_are_read_at_what_reaches_them(norm: str, generator: torch.Generator) -> None:
    model = backbone(vocab_size=7, blocks=[{"d_channel": 8, "norm": norm}] * 2)
    tokens = random_inputs(model, 2, 12, generator)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    rows = measure_backbone(model, SMALL, tokens)
    assert [row.name for row in rows] == ["layer 0: attention", "layer 1: attention"]
    assert [row.rank for row in rows] == [2, 2]
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert next(model.parameters()).dtype == torch.float32
    # By hand: the second mixer sees the stream after the first block, normed where a block norms its input.
    first, second = model.layers.chain()
    x = first(model.embed(tokens))
    x = second.mixer_norm(x) if norm == "input" else x
    torch.testing.assert_close(layer_inputs(model, tokens)[1].x, x)


def test_a_model_of_vectors_and_a_bare_one() -> None:
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
        ({"name": "conv", "kernel": "implicit", "max_seq_len": 33}, 33),
        ({"name": "attention", "position": "relative", "max_seq_len": 40}, 40),
        ({"name": "hybrid", "pattern": ["lstm", {"name": "factorized", "max_seq_len": 50}]}, 50),
        ({"name": "factorized", "kernel": "bilinear", "max_seq_len": 20}, None),
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
    layer = create_mixer("attention", 8, n_heads=2).double()
    x = torch.randn(1, 10, 8, generator=generator, dtype=torch.float64)
    exact = torch.linalg.matrix_norm(interaction(layer, x).operator[0])
    torch.testing.assert_close(operator_norms(layer, x), exact)
    wide = create_mixer("attention", 24, n_heads=2).double()
    x = torch.randn(1, 10, 24, generator=generator, dtype=torch.float64)
    ratio = operator_norms(wide, x) / torch.linalg.matrix_norm(interaction(wide, x).operator[0])
    past = torch.ones(10, 10).tril().bool()
    assert ratio[past].log().abs().max() < math.log(2)
    assert not operator_norms(wide, x)[~past].any()


def test_a_profile_at_given_inputs_is_the_profile_there(generator: torch.Generator) -> None:
    layer = create_mixer("attention", 4, n_heads=2).double()
    x = torch.randn(2, 9, 4, generator=generator, dtype=torch.float64)
    given = gradient_profile(layer, lambda g, _: x[g.initial_seed()], range(9), seeds=2, seq_len=9)
    torch.testing.assert_close(layer_profile(layer, x).values, given.values)


@pytest.mark.parametrize(
    "options",
    [
        {"d_model": 0},
        {"n_seeds": 4},
        {"gradient_len": 8},
        {"lengths": (8,)},
        {"lengths": (8, 8, 16)},
        {"lengths": (1, 2)},
        {"seed": -1},
    ],
)
def test_sizes_that_measure_nothing_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=name):
        Sizes(**options)


def test_what_a_mixer_refuses_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(ValueError, match="did you mean 'lstm'"):
        measure_mixers(["factorized", "lst"], SMALL, lambda *_: pytest.fail("measured"))
    with pytest.raises(ValueError, match="not divisible by n_heads"):
        measure_mixers(["factorized", "attention"], replace(SMALL, d_model=5), lambda *_: pytest.fail("measured"))


def test_files_hold_the_rows(rows: list[Measurement], tmp_path: Path) -> None:
    page, data, picture = write_measurements(rows, tmp_path / "out", SMALL, "a machine")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["measure.json", "measure.md", "measure.png"]
    content = json.loads(data.read_text())
    assert content["machine"] == "a machine"
    assert content["sizes"]["d_model"] == 4
    first = content["rows"][0]
    assert first["rank"] == rows[0].rank
    assert content["rows"][2]["offset_share"] == rows[2].offset_share
    assert first["spectrum"] == pytest.approx(rows[0].spectrum)
    assert rows[0].noise.decay is not None
    assert first["gradient_random"]["decay"]["rate"] == pytest.approx(rows[0].noise.decay.rate)
    assert content["rows"][1]["gradient_highway"] is None
    table = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(rows)
    assert len({line.count("|") for line in table}) == 1
    assert table[2].startswith("| attention | 2 | 2 | ")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "(measure.png)" in page.read_text()


def test_json_has_no_numbers_that_json_does_not_know(rows: list[Measurement]) -> None:
    json.loads(
        measurements_as_json([replace(rows[0], input_dependence=math.nan)], SMALL, ""), parse_constant=pytest.fail
    )


def test_a_rank_that_misses_is_named_and_one_beyond_a_sketch_is_not(rows: list[Measurement]) -> None:
    row = rows[0]
    assert describe_misses(rows) == ""
    assert describe_misses([replace(row, rank=1)]).startswith("Rank other than predicted: attention.")
    beyond = replace(row, rank=2, rank_limit=2, predicted_rank=50)
    assert describe_sketches(rows) == ""
    assert describe_sketches([beyond]).startswith("Read by a random sketch (m = 16)")
    assert "m = 16" in measurements_as_markdown([beyond], SMALL, "")
    some = replace(row, sources=32)
    assert describe_sketches([some]).startswith("Read at 32 source positions")
    assert heads_text(some) == f"≥ {heads_text(row)}"
    assert beyond.as_predicted
    assert GROUPS["Operator"][0].cell(beyond) == "≥ 2"
    assert replace(row, predicted_rank=None).as_predicted is None


def test_a_gradient_that_ends_has_a_reach_and_no_rate() -> None:
    found = measure_gradients(["conv", "sliding_attention", "identity", "attention"], SMALL)
    noise = {name: noise for name, (noise, _) in found.items()}
    assert {name: gradient.reach for name, gradient in noise.items()} == {
        "conv": 3,
        "sliding_attention": None,  # its window is longer than the sequence
        "identity": 0,
        "attention": None,
    }
    assert noise["conv"].decay is None
    assert noise["attention"].decay is not None


def test_a_gradient_reaches_as_far_as_that_of_any_seed() -> None:
    values = torch.tensor([[1.0, 0.5, 0.0, 0.0], [1.0, 0.0, 0.1, 0.0]])
    assert Gradient(GradientProfile(values, torch.arange(4), 4), None).reach == 2
    assert Gradient(GradientProfile(values[:, :3], torch.arange(3), 4), None).reach is None


def test_error_by_heads_is_the_tail() -> None:
    counts, errors = error_by_heads([3.0, 4.0 / 2, 0.0])
    assert counts == [1, 2]
    assert errors[0] == pytest.approx(2 / math.sqrt(13))
    assert errors[1] <= 1e-7


def _exponential(rate: float, n: int = 64) -> GradientProfile:
    taus = torch.arange(n)
    return GradientProfile((rate * taus.double()).exp().expand(5, -1) * 5, taus, n)


def test_the_drawn_fit_lies_on_the_profile() -> None:
    profile = _exponential(-0.05)
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


def _texts(figure: Any) -> list[str]:
    (axes,) = figure.axes
    return [axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), *(t.get_text() for t in axes.get_legend().texts)]


def test_pictures_name_their_axes_and_what_is_marked() -> None:
    texts = _texts(spectrum_figure([1.0, 0.5, 0.0], 2, "title"))
    assert texts[0] == "title"
    assert all(texts)
    assert texts[-1] == "interaction rank k = 2"
    assert "k = at least 2" in _texts(spectrum_figure([1.0, 0.5], 2, "title", limit=2))[-1]
    texts = _texts(gradient_decay_figure(fitted(_exponential(-0.05)), "title"))
    assert "tokens" in texts[1]
    assert "-0.0500" in texts[-1]


@pytest.mark.parametrize("values", [torch.zeros(2, 6), torch.tensor([[0.0, 1.0], [0.0, 2.0]])])
def test_a_gradient_of_zero_can_be_drawn(values: Tensor) -> None:
    profile = GradientProfile(values, torch.arange(values.shape[1]), values.shape[1])
    _texts(gradient_decay_figure(Gradient(profile, None), "title"))
