"""Mixture of experts: routing, grouped matrix products, load-balancing loss, placement in a model."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lab.plain import read_mapping
from tests import ROOT, reference
from tests.cases import D_MODEL, draw, parameters, randomise
from tests.tolerances import assert_close
from zoo import Backbone, create_mixer, state_nbytes
from zoo.blocks import Experts, ResidualBlock, SigmoidExperts
from zoo.ops.experts import grouped_in_blocks, grouped_linear

JAMBA = ROOT / "configs" / "mixer" / "jamba.yaml"
VOCAB = 11


def experts_of(generator: torch.Generator, **options: Any) -> Experts:
    settings = {"d_channel": 5, "n_experts": 6, "top_k": 2} | options
    return randomise(Experts(D_MODEL, **settings), generator).double()


def block_of(generator: torch.Generator, **options: Any) -> ResidualBlock:
    settings = {"d_channel": 5, "n_experts": 4, "top_k": 2} | options
    return randomise(ResidualBlock(create_mixer("selective_ssm", D_MODEL), **settings), generator).double()


def model_of(generator: torch.Generator, **options: Any) -> Backbone:
    settings = {"d_model": D_MODEL, "n_layers": 2, "vocab_size": VOCAB, "n_outputs": VOCAB, "n_experts": 4}
    return randomise(Backbone(**({"mixer": {"name": "hybrid"}} | settings | options)), generator).double()


# Outputs and gradients.


@pytest.mark.parametrize(
    ("top_k", "options"),
    [
        *((top_k, {}) for top_k in (1, 2, 6)),
        *((2, {"normalize": True, "d_shared": 3, "gate_shared": gated}) for gated in (False, True)),
    ],
)
def test_experts_are_the_reference(top_k: int, options: dict[str, Any], generator: torch.Generator) -> None:
    layer, x = experts_of(generator, top_k=top_k, **options), draw(2, 7, D_MODEL, generator=generator)
    normalize = options.get("normalize", False)
    expected = np.stack([reference.experts(parameters(layer), row, top_k, normalize=normalize) for row in x.numpy()])
    assert_close(layer(x), expected)
    assert_close(layer(x[0]), expected[0])
    assert_close(layer(x[0, 0]), expected[0, 0])
    assert layer(x[:0]).shape == (0, 7, D_MODEL)


@pytest.mark.parametrize(
    "options", [{}, {"n_groups": 3, "top_groups": 2, "normalize": True, "scale": 1.5, "d_shared": 3}]
)
def test_sigmoid_experts_are_the_reference(options: dict[str, Any], generator: torch.Generator) -> None:
    layer = randomise(SigmoidExperts(D_MODEL, 5, n_experts=6, top_k=3, **options), generator).double()
    x = draw(2, 7, D_MODEL, generator=generator)
    expected = np.stack([reference.sigmoid_experts(parameters(layer), row, 3, **options) for row in x.numpy()])
    assert_close(layer(x), expected)
    assert not layer.preference.requires_grad


def test_positions_are_independent_under_an_uneven_load(generator: torch.Generator) -> None:
    layer = experts_of(generator)
    with torch.no_grad():
        layer.router.weight[3] = 0.0
        layer.router.weight[3, 0] = 20.0
    x = draw(1, 50, D_MODEL, generator=generator)
    x[..., 0] = x[..., 0].abs() + 1  # all of them choose expert 3
    assert_close(layer(x), torch.cat([layer(x[:, i : i + 1]) for i in range(50)], dim=1))
    layer(x)
    assert layer.load[3] == 1.0


def test_gradients_are_those_of_the_definition(generator: torch.Generator) -> None:
    """The definition runs every expert on every position and masks the unselected ones."""
    layer, x = experts_of(generator), draw(2, 7, D_MODEL, generator=generator).requires_grad_()

    def dense(x: Tensor) -> Tensor:
        probability = torch.softmax(layer.router(x), dim=-1)
        kth = probability.topk(layer.top_k).values[..., -1:]
        gate, value = torch.einsum("ecd,bsd->bsec", layer.up_proj, x).chunk(2, dim=-1)
        served = torch.einsum("edc,bsec->bsed", layer.down_proj, nn.functional.silu(gate) * value)
        return torch.einsum("bse,bsed->bsd", probability * (probability >= kth), served)

    inputs = [x, *layer.parameters()]
    assert_close(layer(x), dense(x))
    expected = torch.autograd.grad(dense(x).square().sum(), inputs)
    assert_close(torch.autograd.grad(layer(x).square().sum(), inputs), expected)
    layer(x[:1, :1])
    assert 0 < int((layer.load > 0).sum()) < layer.n_experts  # some experts get no row
    assert_close(layer(x[:1, :1]), dense(x[:1, :1]))
    rows, weight = draw(5, 3, generator=generator), draw(4, 2, 3, generator=generator).requires_grad_()
    for sizes in ([0, 3, 0, 2], [5, 0, 0, 0], [1, 1, 1, 2], [0, 0, 0, 5]):
        counts = torch.tensor(sizes)
        assert torch.autograd.gradcheck(partial(grouped_linear, counts=counts), (rows.requires_grad_(), weight))
        assert torch.autograd.gradcheck(partial(grouped_in_blocks, counts=counts), (rows, weight))
        assert_close(grouped_in_blocks(rows, weight, counts), grouped_linear(rows, weight, counts))


def test_reduced_precision_stays_close(generator: torch.Generator) -> None:
    layer = experts_of(generator).bfloat16()
    x = draw(2, 7, D_MODEL, generator=generator, dtype=torch.bfloat16)
    same_weights = copy.deepcopy(layer).double()
    assert layer(x).dtype == torch.bfloat16
    assert_close(layer(x), same_weights(x.double()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = same_weights.float()(x.float())
    assert_close(y.bfloat16(), same_weights(x.float()))


def test_experts_are_initialised_like_linear_layers() -> None:
    layer = Experts(64, 16, n_experts=3)
    for weight, fan_in in ((layer.up_proj, 64), (layer.down_proj, 16)):
        assert weight.abs().max() <= fan_in**-0.5
        assert weight.detach().std() == pytest.approx((3 * fan_in) ** -0.5, rel=0.05)


def test_reset_parameters_forgets_the_preference() -> None:
    layer = SigmoidExperts(8, 4, n_experts=3)
    nn.init.ones_(layer.preference)
    layer.reset_parameters()
    assert not layer.preference.any()


# The load.


@pytest.mark.parametrize("top_k", [1, 2])
def test_balance_is_the_reference_over_valid_positions(top_k: int, generator: torch.Generator) -> None:
    layer, x = experts_of(generator, top_k=top_k), draw(3, 9, D_MODEL, generator=generator)
    valid, one = torch.rand(3, 9, generator=generator) < 0.6, torch.arange(27).view(3, 9) == 4
    for given, counted in ((None, x.flatten(0, 1)), (valid, x[valid]), (one, x[one])):
        layer(x, given)
        loss, load = reference.balance(parameters(layer), counted.numpy(), top_k)
        assert_close(layer.balance_loss, np.asarray(loss))
        assert_close(layer.load, load)


def test_the_balance_loss_of_padding_alone_is_zero(generator: torch.Generator) -> None:
    """One of several processes may get such a batch."""
    layer, x = experts_of(generator), draw(2, 3, D_MODEL, generator=generator)
    layer(x, torch.zeros(2, 3, dtype=torch.bool))
    assert layer.balance_loss == 0
    assert not layer.load.any()


def test_padding_changes_no_output_and_no_load(generator: torch.Generator) -> None:
    block, x = block_of(generator), draw(2, 9, D_MODEL, generator=generator)
    lengths = torch.tensor([9, 4])
    y = block(x, lengths)
    loss, load = block.channel.balance_loss, block.channel.load
    x[1, 4:] = torch.nan
    assert_close(block(x, lengths), y)
    assert torch.equal(block.channel.balance_loss, loss)
    loads = []
    for row in (x[:1], x[1:, :4]):
        block(row)
        loads.append(block.channel.load * row.shape[1])
    assert_close(load, sum(loads) / 13)


def test_the_load_of_the_last_training_pass_is_not_copied_or_saved(generator: torch.Generator) -> None:
    model, x = model_of(generator), torch.randint(VOCAB, (2, 9), generator=generator)
    layer = model.layers.layers[1].channel
    model.eval()(x)
    assert layer.balance_loss is None
    model.train()(x)
    assert layer.balance_loss.requires_grad
    assert not layer.load.requires_grad
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.layers.layers[1].channel.balance_loss is twin.layers.layers[1].channel.load is None
        assert_close(twin(x), model(x))
    assert model.state_bytes(9, 2, torch.float64) == state_nbytes(model.stream(x)[1])


def test_the_load_counts_unselected_positions_too(generator: torch.Generator) -> None:
    model, x = model_of(generator).train(), torch.randint(VOCAB, (2, 9), generator=generator)
    layer, lengths, at = model.layers.layers[1].channel, torch.tensor([9, 5]), torch.zeros(2, 9, dtype=torch.bool)
    at[:, 2] = True
    everywhere = model(x, lengths)
    expected = layer.balance_loss, layer.load
    assert_close(model(x, lengths, at), everywhere[at])
    assert_close(layer.balance_loss, expected[0])
    assert_close(layer.load, expected[1])


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
def test_compiled_code_agrees_with_eager_balance_loss_too(generator: torch.Generator) -> None:
    eager = model_of(generator, n_experts=3)
    compiled = copy.deepcopy(eager)
    compiled.compile(fullgraph=True, backend="aot_eager")
    x = torch.randint(VOCAB, (2, 9), generator=generator)
    for model in (eager, compiled):
        (model(x).square().sum() + model.layers.layers[1].channel.balance_loss).backward()
    assert_close(compiled(x), eager(x))
    assert_close(*([p.grad for p in model.parameters()] for model in (compiled, eager)))


# Layouts.


def test_per_sample_gradients_by_vmap_are_those_of_single_samples(generator: torch.Generator) -> None:
    everywhere = {"n_experts": 3, "expert_offset": 0, "expert_period": 1}
    model = model_of(generator, mixer={"name": "selective_ssm"}, **everywhere).eval()
    values, tokens = dict(model.named_parameters()), torch.randint(7, (3, 9), generator=generator)

    def loss(values: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(model, values, (row[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(values, tokens)
    for number, row in enumerate(tokens):
        own = torch.autograd.grad(loss(values, row), list(values.values()))
        assert_close([gradient[number] for gradient in each.values()], own)


def test_expert_period_and_offset_place_the_experts(generator: torch.Generator) -> None:
    def layers(**options: Any) -> list[int]:
        blocks = model_of(generator, n_layers=6, **options).layers.layers
        return [layer for layer, block in enumerate(blocks) if isinstance(block.channel, Experts)]

    assert layers() == [1, 3, 5]
    assert layers(expert_period=3, expert_offset=0) == [0, 3]
    assert layers(expert_period=1, expert_offset=0) == [0, 1, 2, 3, 4, 5]
    assert layers(n_experts=0) == []


def test_the_config_of_jamba_builds_its_layers(generator: torch.Generator) -> None:
    values = read_mapping(JAMBA)
    assert values.pop("balance_weight") == 1e-3
    model = Backbone(**values, vocab_size=VOCAB, n_outputs=VOCAB)
    blocks = model.layers.chain()
    kinds = [type(block.mixer).__name__ for block in blocks]
    assert kinds == ["SelectiveSSM"] * 4 + ["Attention"] + ["SelectiveSSM"] * 3
    assert [isinstance(block.channel, Experts) for block in blocks] == [False, True] * 4
    assert (blocks[1].channel.n_experts, blocks[1].channel.top_k) == (16, 2)
    assert all(len(block.mixer.dt_b_c_norm) == 3 for block in blocks if block is not blocks[4])
    assert blocks[4].mixer.position == "none"
    assert model(torch.randint(VOCAB, (2, 5), generator=generator)).shape == (2, 5, VOCAB)
