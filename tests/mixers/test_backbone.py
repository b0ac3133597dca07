"""`Backbone`: embedding, blocks and head, selected positions, generation, the autoencoder, errors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import holding, reference, refused, slow
from tests.cases import KINDS, Case, draw, in_chunks, parameters, randomise, trained_by_outputs
from tests.tolerances import assert_close
from zoo import Backbone, list_mixers, state_nbytes
from zoo.blocks import LayerNorm, RMSNorm
from zoo.theory.operator import interaction

VOCAB = 11


def model_of(case: Case, generator: torch.Generator, **options: Any) -> Backbone:
    """A small float64 language model with noise on every parameter."""
    settings = {"d_model": 8, "n_layers": 2, "vocab_size": VOCAB, "n_outputs": VOCAB} | options
    return randomise(Backbone({"name": case.name, **case.options}, **settings), generator).double()


def tokens(*shape: int, generator: torch.Generator) -> Tensor:
    return torch.randint(VOCAB, shape, generator=generator)


SHAPES = [{}, {"d_channel": 0}, {"d_conv": 3}, {"backbone": "bare"}, {"backbone": "bare", "d_conv": 2}]
shapes_of_kinds = pytest.mark.parametrize(
    ("shape", "name"),
    [
        slow(shape, name, unless=name in KINDS, id=f"{shape}-{name}")
        for shape, name in zip(itertools.cycle(SHAPES), (*KINDS, *sorted({*list_mixers()} - {*KINDS})), strict=False)
    ],
)
"""Every mixer in one of the shapes; the default run has one mixer per kind of state."""


# Outputs and gradients.


@pytest.mark.parametrize("name", ["attention", "selective_ssm"])
@pytest.mark.parametrize(
    "options",
    [{}, {"vocab_size": None, "d_input": 5, "n_outputs": 6}, *({"canon": canon} for canon in ("A", "C", "D", "ACD"))],
    ids=str,
)
def test_forward_is_the_reference(name: str, options: dict[str, Any], generator: torch.Generator) -> None:
    model = model_of(Case(name, {}), generator, **options)
    of_vectors = "d_input" in options
    x = draw(2, 7, 5, generator=generator) if of_vectors else tokens(2, 7, generator=generator)
    expected = [reference.backbone(parameters(model), row, name, n_layers=2) for row in x.numpy()]
    assert_close(model(x), np.stack(expected))


@pytest.mark.parametrize("name", ["hybrid", slow("gated_delta_net")])
@pytest.mark.parametrize(
    "options",
    [
        {"canon": "ACD"},
        {"canon": "CA", "n_experts": 2},
        {"canon": "D"},
        {"norm_type": "layer", "canon": "C", "blocks": [{"d_channel": 5, "channel": "rwkv"}] * 2},
    ],
    ids=str,
)
def test_models_with_canon_layers_and_other_states_stream(
    name: str, options: dict[str, Any], generator: torch.Generator
) -> None:
    """Models with Canon layers stream, take lengths, select positions and have an operator and exact state sizes."""
    model, x = model_of(Case(name, {}), generator, **options), tokens(2, 9, generator=generator)
    y, lengths = model(x), torch.tensor([4, 2])
    chunks, state = in_chunks(model, x, [1, 2, 1, 5])
    assert_close(chunks, y)
    assert model.state_bytes(9, 2, torch.float64) == state_nbytes(state)
    padded, state = model.stream(x[:, :4], None, lengths)
    rest, _ = model.stream(x[:, 4:], state)
    assert_close(padded[1, :2], y[1, :2])
    assert_close(rest[0], y[0, 4:])
    assert_close(rest[1], model(torch.cat((x[1:, :2], x[1:, 4:]), dim=1))[0, 2:])
    at = torch.rand(2, 9, generator=generator) < 0.5
    assert_close(model(x, None, at), y[at])
    inputs = model.embed(x[:, :5]).detach()
    assert_close(interaction(model, inputs).apply(inputs), model.from_embeddings(inputs))


def test_canon_layers_start_as_a_convolution_beside_the_identity() -> None:
    block = Backbone({"name": "lstm"}, 64, 1, vocab_size=5, n_outputs=5, canon="ACD").layers.layers[0]
    layers = (block.mixer.layers[0], block.canon_before, block.canon_inside)
    assert [tuple(layer.weight.shape) for layer in layers] == [(64, 4), (64, 4), (256, 4)]
    for layer in layers:
        assert 0.45 < layer.weight.detach().abs().max() <= 0.5


@shapes_of_kinds
def test_selected_positions_equal_the_full_output(name: str, shape: dict[str, Any], generator: torch.Generator) -> None:
    model = model_of(Case(name, {}), generator, **shape)
    x, lengths = tokens(3, 9, generator=generator), torch.tensor([9, 4, 6])
    at = torch.rand(3, 9, generator=generator) < 0.4
    for given in (None, lengths):
        y, full = model(x, given, at), model(x, given)
        assert y.shape == (int(at.sum()), VOCAB)
        assert_close(y, full[at])
        of_selected = torch.autograd.grad(y.square().sum(), model.embedding.weight)[0]
        assert_close(of_selected, torch.autograd.grad(full[at].square().sum(), model.embedding.weight)[0])
    assert model(x, at=torch.zeros_like(at)).shape == (0, VOCAB)


@pytest.mark.parametrize("options", [{"n_layers": 1}, {"norm_type": "layer"}], ids=str)
def test_selected_padding_is_that_of_the_full_output(options: dict[str, Any], generator: torch.Generator) -> None:
    model = model_of(Case("lstm", {}), generator, **options)
    x, lengths = tokens(2, 5, generator=generator), torch.tensor([5, 2])
    at = torch.tensor([4, 6, 8])
    y, full = model(x, lengths, at), model(x, lengths).flatten(0, 1)[at]
    assert_close(y, full)
    of_selected = torch.autograd.grad(y.square().sum(), model.embedding.weight)[0]
    assert_close(of_selected, torch.autograd.grad(full.square().sum(), model.embedding.weight)[0])


@shapes_of_kinds
def test_every_parameter_receives_a_gradient(name: str, shape: dict[str, Any], generator: torch.Generator) -> None:
    model = model_of(Case(name, {}), generator, **shape)
    model(tokens(2, 9, generator=generator)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in trained_by_outputs(model))


# Composition.


def test_the_backbone_passes_options_to_its_blocks() -> None:
    model = Backbone({"name": "lstm"}, 8, 2, vocab_size=5, n_outputs=5, d_conv=3, d_channel=5, norm_eps=0.3)
    convolution, lstm = model.layers.layers[0].mixer.layers
    assert (type(lstm).__name__, convolution.weight.shape) == ("LSTM", (8, 3))
    assert [block.channel.down_proj.in_features for block in model.layers.layers] == [5, 5]
    assert [norm.eps for norm in model.modules() if isinstance(norm, RMSNorm)] == [0.3] * 5  # 2 per block, 1 at the end
    plain = Backbone({"name": "lstm"}, 8, 1, vocab_size=5, n_outputs=5)
    assert plain.layers.layers[0].channel.down_proj.in_features == 16
    assert Backbone({"name": "lstm"}, 8, 1, vocab_size=5, n_outputs=5, d_channel=0).layers.layers[0].channel is None


def test_a_bare_backbone_of_equal_widths_is_the_mixer_alone(generator: torch.Generator) -> None:
    model = Backbone({"name": "factorized"}, 8, 1, d_input=8, n_outputs=8, backbone="bare").double()
    x = draw(2, 7, 8, generator=generator)
    assert {name.rsplit(".", 1)[-1] for name, _ in model.named_parameters()} == {"value_maps", "coefficients"}
    assert torch.equal(model(x), model.layers.layers[0](x))
    narrow = Backbone({"name": "factorized", "d_out": 5}, 8, 1, d_input=8, n_outputs=5, backbone="bare").double()
    assert narrow.head is None
    assert narrow(x).shape == (2, 7, 5)


def test_a_bare_backbone_of_other_widths_adds_projections(generator: torch.Generator) -> None:
    model = Backbone({"name": "lstm"}, 8, 2, d_input=3, n_outputs=2, backbone="bare").double()
    assert model.norm is None
    assert (model.in_proj.in_features, model.head.out_features) == (3, 2)
    x = draw(2, 7, 3, generator=generator)
    first, second = model.layers.layers
    assert_close(model(x), model.head(second(first(model.in_proj(x)))))


def test_published_initialisation_survives_the_backbone() -> None:
    model = Backbone({"name": "selective_ssm"}, 16, 2, vocab_size=5, n_outputs=5)
    for block in model.layers.layers:
        dt = torch.nn.functional.softplus(block.mixer.dt_proj.bias)
        assert 1e-3 * 0.999 <= dt.min() < dt.max() <= 1e-1 * 1.001
        assert_close(block.mixer.A_log.exp(), np.arange(1.0, 17.0) * np.ones((32, 1)))


@pytest.mark.parametrize(
    ("channel", "of_reference", "norm_type"),
    [
        ("relu2", reference.squared_relu, "rms"),
        ("geglu", reference.geglu, "rms"),
        ("rwkv", reference.shifted_relu, "layer"),
    ],
)
def test_blocks_with_different_channel_mixers_scaled_embeddings_and_capped_logits(
    channel: str, of_reference: Callable[..., np.ndarray], norm_type: str, generator: torch.Generator
) -> None:
    blocks = [{}, {"d_channel": 5, "channel": channel}]
    options = {"vocab_size": 5, "n_outputs": 5, "blocks": blocks, "embedding_scale": 3.0, "logit_cap": 0.1}
    options["norm_type"] = norm_type
    model = randomise(Backbone({"name": "lstm"}, 8, 2, **options), generator).double()
    first, second = model.layers.layers
    assert first.channel is None
    tokens = torch.randint(5, (2, 7), generator=generator)
    before = second.channel_norm(second.mix_positions(first(3 * model.embedding(tokens)), None, None)[0])
    x = second.mix_positions(first(3 * model.embedding(tokens)), None, None)[0]
    added = of_reference(parameters(second.channel), before.detach().numpy())
    logits = model.head(model.norm(x + torch.as_tensor(added)))
    assert_close(model(tokens), 0.1 * torch.tanh(logits / 0.1))
    assert_close(interaction(model, model.embed(tokens)).apply(model.embed(tokens)), model(tokens))
    assert_close(interaction(second, x).apply(x), second(x))


def test_layer_norms_are_the_reference(generator: torch.Generator) -> None:
    model = model_of(Case("lstm", {}), generator, norm_type="layer", norm_eps=0.3)
    norms = [norm for norm in model.modules() if isinstance(norm, LayerNorm)]
    assert len(norms) == 5  # 2 per block, 1 at the end
    x = 3 * draw(2, 7, 8, generator=generator)
    for norm in norms:
        weight, bias = (t.detach().numpy() for t in (norm.weight, norm.bias))
        assert_close(norm(x), reference.layer_norm(x.numpy(), weight, bias, 0.3))


def test_weight_decay_excludes_the_embedding_and_the_exclusions_of_its_parts() -> None:
    model = Backbone({"name": "hybrid"}, 8, 2, vocab_size=5, n_outputs=5, d_conv=2)
    spared = model.no_weight_decay()
    assert {"embedding.weight", "norm.weight", "layers.layers.0.mixer.layers.1.A_log"} <= spared
    assert not {"head.weight", "layers.layers.0.channel.up_proj.weight"} & spared


# Decoding.


@shapes_of_kinds
def test_streaming_and_greedy_generation_are_recomputation_from_the_start(
    name: str, shape: dict[str, Any], generator: torch.Generator
) -> None:
    model, expected = model_of(Case(name, {}), generator, **shape), tokens(2, 4, generator=generator)
    generated = model.generate(expected, 8)
    for _ in range(8):
        expected = torch.cat((expected, model(expected)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(generated, expected)
    assert not generated.requires_grad
    assert_close(in_chunks(model, expected, [1, 1, 7, 3])[0], model(expected))


@pytest.mark.parametrize(("top_k", "top_p"), [(None, 1.0), (4, 1.0), (None, 0.55), (5, 0.55), (100, 1e-6)])
def test_sampled_frequencies_are_the_softmax(top_k: int | None, top_p: float, generator: torch.Generator) -> None:
    model, prompt = model_of(Case("lstm", {}), generator), torch.full((20_000, 1), 3)
    logits = (model(prompt[:1])[0, -1].double() / 2).tolist()
    kept, total = {}, 0.0
    likeliest = sorted(range(VOCAB), key=lambda token: -logits[token])[:top_k]
    norm = sum(math.exp(logits[token]) for token in likeliest)
    for token in likeliest:
        if total < top_p:
            kept[token] = math.exp(logits[token])
            total += kept[token] / norm
    chances = torch.tensor([kept.get(token, 0.0) / sum(kept.values()) for token in range(VOCAB)])
    drawn = model.generate(prompt, 1, 2.0, generator, top_k, top_p)[:, -1]
    counts = torch.bincount(drawn, minlength=VOCAB) / len(drawn)
    error = (chances * (1 - chances) / len(drawn)).sqrt()
    assert ((counts - chances).abs() <= 5 * error + 1e-12).all()


def test_the_generators_seed_determines_the_samples(generator: torch.Generator) -> None:
    model, prompt = model_of(Case("lstm", {}), generator), torch.full((4, 1), 3)
    one, other, cold, colder = (
        model.generate(prompt[:4], 20, temperature, torch.Generator().manual_seed(seed))
        for seed, temperature in ((1, 1.0), (2, 1.0), (1, 1e-6), (1, 1e-320))
    )
    assert torch.equal(one, model.generate(prompt[:4], 20, 1.0, torch.Generator().manual_seed(1)))
    assert not torch.equal(one, other)
    for greedy in (cold, colder):
        assert torch.equal(greedy, model.generate(prompt[:4], 20))


# Errors, in one line.


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mixer": {"n_heads": 2}}, "mixer name"),
        ({"mixer": "attention"}, "mapping 'attention'"),
        ({"mixer": {"name": "factorized", "d_out": 5}}, "d_out d_model 5 8"),
        ({"mixer": {"name": "factorized", "d_out": 5}, "backbone": "bare"}, "d_out=5 d_model=8"),
        ({"d_model": 0}, "d_model positive 0"),
        ({"n_layers": -1}, "n_layers positive -1"),
        ({"n_outputs": 0}, "n_outputs positive 0"),
        ({"vocab_size": 0}, "vocab_size positive 0"),
        ({"vocab_size": None, "d_input": 1.5}, "d_input positive 1.5"),
        ({"d_channel": -2}, "d_channel positive -2"),
        ({"d_conv": -2}, "d_conv positive -2"),
        *(({"canon": canon}, f"canon '{canon}'") for canon in ("AE", "AA", "")),
        ({"canon": "AB"}, "canon B d_conv"),
        ({"canon": "A", "d_conv": 3}, "canon A d_conv=3"),
        ({"canon": "AC", "backbone": "bare"}, "canon AC backbone=bare"),
        ({"canon": "C", "d_channel": 0}, "canon C d_channel 0"),
        ({"canon": "D", "n_experts": 2}, "canon D"),
        ({"backbone": "bear"}, "'bear' 'bare'"),
        ({"blocks": [{}]}, "blocks n_layers=2"),
        ({"blocks": [{}, {}], "n_experts": 4}, "blocks n_experts"),
        ({"blocks": [{}, {}], "d_channel": 6}, "blocks d_channel"),
        ({"blocks": [{"n_expert": 2}, {}]}, "'n_expert' 'n_experts'"),
        ({"blocks": [{"d_channel": 3, "channel": "gelu"}, {}]}, "channel 'gelu'"),
        ({"blocks": [{"d_channel": 3, "normalize": True}, {}]}, "n_experts 0"),
        ({"blocks": [{"d_channel": 3, "router": "sigmoid"}, {}]}, "router n_experts 0"),
        (
            {"blocks": [{"d_channel": 3, "n_experts": 4, "router": "sigmoid", "n_groups": 3}, {}]},
            "n_groups=3 n_experts=4",
        ),
        ({"d_input": 3}, "vocab_size"),
        ({"mixer": {"name": "lstm", "d_model": 8}}, "d_model Backbone"),
        ({"mixer": {"name": "lstm", "n_layers": 2}}, "n_layers Backbone"),
        ({"embedding_scale": math.nan}, "embedding_scale finite nan"),
        ({"vocab_size": None, "d_input": 3, "embedding_scale": 2.0}, "embedding_scale vocab_size"),
        ({"vocab_size": None}, "vocab_size"),
        ({"n_experts": -1}, "n_experts positive -1"),
        ({"n_experts": 2, "top_k": 3}, "top_k=3 n_experts=2"),
        ({"n_experts": 4, "top_k": 0}, "top_k positive 0"),
        ({"n_experts": 4, "expert_period": 0}, "expert_period positive 0"),
        ({"n_experts": 4, "n_layers": 3, "expert_offset": 2}, "expert_offset 0..1 2"),
        ({"n_experts": 4, "n_layers": 1}, "expert_offset 0..0 n_layers=1"),
        ({"n_experts": 4, "d_channel": 0}, "experts channel"),
        ({"n_experts": 4, "backbone": "bare"}, "experts channel"),
        ({"decode_from": -1}, "decode_from positive -1"),
        ({"decode_from": 3, "backbone": "bare"}, "decode_from backbone=residual"),
        ({"decode_from": 3, "n_experts": 4}, "decode_from n_experts=0"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], words: str) -> None:
    valid = {"mixer": {"name": "lstm"}, "d_model": 8, "n_layers": 2, "vocab_size": 5, "n_outputs": 5}
    with refused(holding(*words.split())):
        Backbone(**(valid | options))


@pytest.mark.usefixtures("unchecked_shapes")
def test_invalid_inputs_and_generation_options_are_refused() -> None:
    of_tokens = Backbone({"name": "lstm"}, 8, vocab_size=5, n_outputs=5)
    of_vectors = Backbone({"name": "lstm"}, 8, d_input=3, n_outputs=5)
    narrow = torch.zeros(2, 4, dtype=torch.uint8)
    for inputs in (torch.zeros(2, 4), torch.zeros(2, 4, 8), torch.zeros(4, dtype=torch.int64), narrow):
        with refused("inputs must be tokens"):
            of_tokens(inputs)
    with refused(r"tokens must lie in 0\.\.4, got -1 to 5"):
        of_tokens(torch.tensor([[-1, 5]]))
    for mask in (torch.ones(4, 2, dtype=torch.bool), torch.ones(8, dtype=torch.bool)):
        with refused(r"at must mark the positions \(2, 4\), got a mask"):
            of_vectors(torch.zeros(2, 4, 3), at=mask)
    for positions in (torch.ones(2, 4, dtype=torch.int64), torch.ones(8, dtype=torch.uint8), torch.ones(8)):
        with refused(r"at must be a mask of bool or indices \(selected,\)"):
            of_vectors(torch.zeros(2, 4, 3), at=positions)
    for inputs in (torch.zeros(2, 4, dtype=torch.int64), torch.zeros(2, 4), torch.zeros(2, 4, 8)):
        with refused("inputs must be .*d_input=3"):
            of_vectors(inputs)
    prompt = torch.zeros(1, 2, dtype=torch.int64)
    with refused("n must be a positive integer, got 0"):
        of_tokens.generate(prompt, 0)
    for temperature in (-1.0, math.nan):
        with refused(f"temperature must be 0 or above, got {temperature}"):
            of_tokens.generate(prompt, 1, temperature=temperature)
    for options, error in (
        ({"top_k": 0}, "top_k must"),
        ({"top_p": 0.0}, "top_p must"),
        ({"top_p": 1.5}, "top_p must"),
    ):
        with refused(error):
            of_tokens.generate(prompt, 1, temperature=1.0, **options)
    with refused("top_k and top_p .* need a temperature"):
        of_tokens.generate(prompt, 1, top_k=2)
    with refused("n_outputs = vocab_size, got 3 and 5"):
        Backbone({"name": "lstm"}, 8, vocab_size=5, n_outputs=3).generate(prompt, 1)


# The autoencoder: decoded positions see one vector that encodes the earlier ones, and their own embedding.


def decoded(model: Backbone, code: np.ndarray, place: np.ndarray) -> np.ndarray:
    """NumPy reference of MAD's decoder and read-out."""
    p, u = parameters(model), code + place
    for layer in range(2):
        name = f"layers.layers.0.{{}}.{layer}.{{}}"
        u = p[name.format("projections", "weight")] @ reference.rms_norm(u, p[name.format("norms", "weight")])
        u = u + p[name.format("projections", "bias")]
        u = u * reference.normal_distribution(u)
    return p["head.weight"] @ reference.rms_norm(u, p["norm.weight"])


@pytest.mark.parametrize("name", ["attention", "selective_ssm", "lstm"])
def test_decoded_positions_are_the_reference(name: str, generator: torch.Generator) -> None:
    model = model_of(Case(name, {}), generator, decode_from=4)
    x = tokens(2, 7, generator=generator)
    logits, embedded = model(x), model.embed(x)
    blocks = model.layers.chain()[0].mixer
    read = blocks(embedded[:, :4])
    assert_close(logits[:, :4], model.read_out(read))
    for row in range(2):
        for place in range(4, 7):
            code, asked = (t.detach().numpy() for t in (read[row, 3], embedded[row, place]))
            assert_close(logits[row, place], decoded(model, code, asked))


@pytest.mark.parametrize("name", ["attention", "lstm", slow("selective_ssm"), slow("conv")])
def test_an_autoencoder_streams_selects_positions_and_takes_lengths(name: str, generator: torch.Generator) -> None:
    model = model_of(Case(name, {}), generator, decode_from=4)
    x = tokens(3, 9, generator=generator)
    expected = model(x)
    for cut in (2, 4, 6):
        assert_close(in_chunks(model, x, [cut, 9 - cut])[0], expected)
    at = torch.rand(3, 9, generator=generator) < 0.5
    assert_close(model(x, at=at), expected[at])
    lengths = torch.tensor([9, 3, 6])
    ragged = model(x, lengths)
    for row, length in enumerate(lengths.tolist()):
        assert_close(ragged[row, :length], expected[row, :length])
    assert_close(model(x[:, :3]), expected[:, :3])


def test_the_operator_of_an_autoencoder(generator: torch.Generator) -> None:
    model = model_of(Case("attention", {}), generator, decode_from=3, n_layers=1)
    embedded = model.embed(tokens(1, 6, generator=generator)).detach()
    W, c = interaction(model.layers, embedded)
    assert_close(torch.einsum("bijpd,bjd->bip", W, embedded) + c, model.layers(embedded))
    # A decoded position depends on the encoded positions and on itself.
    assert not W[0, 3:, 3:][~torch.eye(3, dtype=torch.bool)].any()
    assert W[0, 3:, :3].any()
