"""`interaction`: the operator reproduces the layer's output, and layers without one are refused with the reason.

The contract suite compares operators with closed forms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests import refused
from tests.cases import draw
from tests.tolerances import assert_close
from zoo.backbone import Backbone
from zoo.blocks import Experts, ResidualBlock, RMSNorm, ShortConv, Stack, SwiGLU
from zoo.coefficient import coefficient
from zoo.registry import create_mixer
from zoo.theory.costs import complexity
from zoo.theory.gradients import gradient_profile
from zoo.theory.operator import NotAffineError, OperatorError, check_offset, interaction, offset_share, replayed

SEQ, WIDTH = 11, 8


def hybrid_backbone() -> Backbone:
    mixer = {"name": "hybrid", "pattern": ["selective_ssm", "attention", "diagonal_ssm", "lstm"]}
    return Backbone(mixer, d_model=WIDTH, n_layers=4, vocab_size=7, n_outputs=5, d_conv=3)


LAYERS = {
    "attention, all options": lambda: create_mixer(
        "attention", WIDTH, n_heads=4, n_kv_heads=2, position="alibi", sink="bos", d_conv=3
    ),
    "another width": lambda: create_mixer("factorized", WIDTH, kernel="bilinear", d_out=3),
    "norm": lambda: RMSNorm(WIDTH),
    "channel mixer": lambda: SwiGLU(WIDTH, 12),
    "experts": lambda: Experts(WIDTH, 6, n_experts=3),
    "convolution": lambda: ShortConv(WIDTH, 4, bias=True),
    "stack": lambda: Stack([ResidualBlock(create_mixer("selective_ssm", WIDTH)), create_mixer("lstm", WIDTH)]),
    "backbone": hybrid_backbone,
}
"""One layer of every kind; the contract suite covers each mixer."""


@pytest.mark.parametrize("name", LAYERS)
def test_reproduces_the_output(name: str, generator: torch.Generator) -> None:
    layer = LAYERS[name]().double().eval()
    x = draw(2, SEQ, WIDTH, generator=generator)
    with torch.no_grad():
        y = layer.from_embeddings(x) if isinstance(layer, Backbone) else layer(x)
    found = interaction(layer, x)
    assert found.operator.shape == (2, SEQ, SEQ, y.shape[2], WIDTH)
    assert (found.apply(x) - y).norm() <= 1e-12 * y.norm()
    future = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)
    assert not found.operator[:, future].any()


def test_both_sides_give_the_same_operator(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators by rows and by columns agree, in several blocks with a short last one."""
    monkeypatch.setattr("zoo.theory.operator.POSITIONS_AT_ONCE", 3 * 2 * SEQ * WIDTH)
    layer = create_mixer("selective_ssm", WIDTH).double()
    with replayed(layer, draw(2, SEQ, WIDTH, generator=generator)) as held:
        rows = list(held.rows())
        columns = torch.cat([block for _, block in held.columns()], dim=1)
    assert [now.stop - now.start for now, _ in rows] == [3, 3, 3, 2]
    assert_close(torch.cat([block for _, block in rows], dim=1), columns.transpose(1, 2))


def test_training_mode_and_gradients_are_left_unchanged(generator: torch.Generator) -> None:
    layer = nn.Sequential(nn.Dropout(0.5), create_mixer("attention", WIDTH)).double()
    layer[1].eval()
    x = draw(1, SEQ, WIDTH, generator=generator)
    found = interaction(layer, x)
    assert layer.training
    assert layer[0].training
    assert not layer[1].training
    assert_close(found.apply(x), layer[1](x).detach())
    assert all(p.grad is None for p in layer.parameters())


class Squared(nn.Module):
    def __init__(self, share: float, marked: bool) -> None:
        super().__init__()
        self.share, self.marked = share, marked

    def forward(self, x: Tensor) -> Tensor:
        factor = coefficient(x) if self.marked else x
        return x + self.share * factor * x


def test_an_unmarked_coefficient_is_refused_with_the_relative_miss(generator: torch.Generator) -> None:
    x = draw(1, SEQ, WIDTH, generator=generator)
    interaction(Squared(0.1, marked=True), x)
    misses = []
    for share in (1e-1, 1e-5):
        with pytest.raises(NotAffineError, match=r"not affine under replay \(relative error .*not marked") as caught:
            interaction(Squared(share, marked=False), x)
        misses.append(float(str(caught.value).split("relative error ")[1].split(")")[0]))
    assert 1e-2 < misses[0] < 10
    assert misses[1] == pytest.approx(misses[0] * 1e-4, rel=1)


A, B = (torch.randn(4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in (1, 2))


class Layer(nn.Module):
    """Wraps a function of x and of the number of earlier calls."""

    def __init__(self, function: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.function, self.calls = function, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.function(x, self.calls - 1)


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x @ A).cumsum(1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad @ A.T


def mixed(x: Tensor) -> Tensor:
    return (x @ A).cumsum(1)


@torch.no_grad()
def untracked(x: Tensor) -> Tensor:
    return mixed(x)


def seeded_mask(x: Tensor) -> Tensor:
    kept = torch.rand(x.shape, generator=torch.Generator().manual_seed(3)) < 0.7
    return mixed(x) * kept


def narrow_core(x: Tensor) -> Tensor:
    return (x.float() @ A.float()).double()


def marks_one_or_two(x: Tensor) -> Tensor:
    y = mixed(x)
    for _ in range(2 if x.any() else 1):
        y = coefficient(x.sigmoid()) * y
    return y


def large_beside_tanh(large: float) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.cat((large * x[..., :1], x[..., 1:].tanh()), dim=-1)


NOT_REPEATED, COUPLED = "the layer is not deterministic", "rows of the batch are coupled"
NOT_AFFINE, UNSEEN = "not affine under replay", "autograd does not see what the layer computes"
ALL_MARKED, MARKS_VARY = "the layer's output is a coefficient", "marks other coefficients on another input"

# {layer: (function, reason of the refusal)}. A test of affinity alone misses those before the large channel.
REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "forward without gradients": (untracked, UNSEEN),
    "a kernel outside torch": (lambda x: torch.from_numpy((x.detach().numpy() @ A.numpy()).cumsum(1)), UNSEEN),
    "one path detached": (lambda x: x @ A + (x.detach() @ B).cumsum(1), UNSEEN),
    "wrong backward": (WrongBackward.apply, UNSEEN),
    "fine quantisation": (lambda x: (2**36 * mixed(x)).round() / 2**36, UNSEEN),
    "batch mean": (lambda x: x - x.mean(0), COUPLED),
    "batch deviation, marked": (lambda x: x / coefficient(x.std(0)) if len(x) > 1 else x, COUPLED),
    "one mask for the batch": (seeded_mask, COUPLED),
    "place in the batch": (lambda x: mixed(x) * torch.arange(1.0, 1 + len(x))[:, None, None], COUPLED),
    "all marked": (lambda x: coefficient(mixed(x)), ALL_MARKED),
    "all marked but a constant": (lambda x: coefficient(mixed(x)) + 3, ALL_MARKED),
    "a large channel beside tanh": (large_beside_tanh(1e10), NOT_AFFINE),
    "square": (torch.square, NOT_AFFINE),
    "square, one factor detached": (lambda x: x * x.detach(), NOT_AFFINE),  # although y - J x = 0
    "square of a marked square": (lambda x: (coefficient(x) * x).square(), NOT_AFFINE),
    "tanh": (torch.tanh, NOT_AFFINE),
    "layer norm": (lambda x: nn.functional.layer_norm(x, x.shape[2:]), NOT_AFFINE),
    "sign gate": (lambda x: x * x.sign(), NOT_AFFINE),
    "relu": (torch.relu, NOT_AFFINE),  # linear along every ray, so a test of f(2x) = 2 f(x) would pass
    "dropout": (lambda x: nn.functional.dropout(x, training=True), NOT_REPEATED),
    "batch deviation": (lambda x: x / x.std(0) if len(x) > 1 else x, COUPLED),
    "branch on a sign": (lambda x: x * (1 + (x.sum((1, 2), keepdim=True) > 0)), NOT_AFFINE),
    "float32 core": (narrow_core, "part of the layer computes in float32"),
    "one mark more beside zero": (marks_one_or_two, MARKS_VARY),
    "overflow elsewhere": (lambda x: x / (x.abs() < 2.9 * A.abs().max()), NOT_AFFINE),
}
ACCEPTED: dict[str, Callable[[Tensor], Tensor]] = {
    "control": mixed,
    "idle clamp": lambda x: mixed(x).clamp(-50, 50),
    "large channel": lambda x: torch.cat((1e10 * x[..., :1], x[..., 1:]), dim=-1),
    "cancelled to roundoff": lambda x: torch.cat((x[..., :2], 1e3 * x[..., 2:] - 1e3 * x[..., 2:]), dim=-1),
    "constant": lambda x: torch.full_like(x, 2.0),  # all offset
    "dead gate": lambda x: coefficient(torch.zeros_like(x)) * x,
}


def four_wide(batch: int = 2) -> Tensor:
    return draw(batch, 6, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", REFUSED)
def test_a_layer_without_a_faithful_operator_is_refused_with_the_reason(name: str) -> None:
    function, message = REFUSED[name]
    for batch in (1, 2):
        with refused(message, OperatorError):
            interaction(Layer(lambda x, _: function(x)), four_wide(batch))


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_suspicious_but_affine_layer_is_accepted(name: str) -> None:
    x = four_wide()
    layer = Layer(lambda x, _: ACCEPTED[name](x))
    assert_close(interaction(layer, x).apply(x), layer(x))


def test_a_small_channel_that_is_not_affine_is_detected_in_float32() -> None:
    large = large_beside_tanh(1e5)
    with pytest.raises(NotAffineError):
        interaction(Layer(lambda x, _: large(x)), four_wide().float())


def test_layers_with_several_dtypes_are_refused() -> None:
    layer = nn.Sequential(nn.Linear(4, 4).double(), nn.Linear(4, 4))
    with pytest.raises(OperatorError, match=r"several dtypes: 1\.weight is torch\.float32"):
        interaction(layer, four_wide())
    with pytest.raises(ValueError, match="must have its input's dtype"):
        interaction(Layer(lambda x, _: x.float()), four_wide())


def test_the_share_of_the_offset_in_the_output(generator: torch.Generator) -> None:
    x = draw(1, SEQ, WIDTH, generator=generator)
    layer = create_mixer("selective_ssm", WIDTH).double()
    found = interaction(layer, x)
    assert offset_share(layer, x) == pytest.approx((found.offset.norm() / layer(x).norm()).item())
    assert offset_share(create_mixer("attention", WIDTH).double(), x) == 0
    assert offset_share(Layer(lambda x, _: 0 * x), x) == 0
    assert offset_share(Layer(lambda x, _: x - x + 3), x) == 1


def test_a_value_marked_as_coefficient_is_detected_in_the_offset(generator: torch.Generator) -> None:
    """x + coefficient(f(x)) is affine under replay with the right gradient; only the offset reveals the error."""
    x = four_wide()
    halves = Layer(lambda x, _: x + coefficient(mixed(x)))
    assert offset_share(halves, x) > 0.5
    with pytest.raises(OperatorError, match=r"\|c\| / \|y\| is .* part of the value stream is marked"):
        check_offset(halves, x)
    layer = create_mixer("selective_ssm", WIDTH).double()
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    x = draw(1, SEQ, WIDTH, generator=generator)
    check_offset(layer, x)
    assert offset_share(layer, x) > 0.05
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(1, 4, WIDTH, dtype=torch.int64), "float32 or float64"),
        (torch.ones(1, 4, WIDTH, dtype=torch.float64), "convert one to match"),
        (torch.ones(1, 4, WIDTH + 1), f"d_model={WIDTH}"),
    ],
)
def test_bad_input_is_refused(x: Tensor, message: str, unchecked_shapes: None) -> None:
    with pytest.raises(ValueError, match=message):
        interaction(create_mixer("attention", WIDTH), x)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.LSTM(2, 2), "must return one tensor, got tuple"),
        (torch.relu, "must be a torch.nn.Module, got builtin_function_or_method"),
        (nn.Flatten(), r"must map \(batch, seq, d_in\) to \(batch, seq, d_out\)"),
    ],
)
def test_a_module_that_does_not_map_sequences_is_refused(layer: Any, message: str, unchecked_shapes: None) -> None:
    with pytest.raises(ValueError, match=message):
        interaction(layer, torch.ones(1, 4, 2))


def test_inference_mode_is_refused_where_gradients_are_needed(generator: torch.Generator) -> None:
    layer, x = create_mixer("attention", WIDTH).double(), draw(1, SEQ, WIDTH, generator=generator)
    reads = (
        lambda: interaction(layer, x),
        lambda: gradient_profile(layer, seq_len=4, seeds=1),
        lambda: complexity(layer, (4, 8), repeats=1),
    )
    for read in reads:
        with torch.inference_mode(), refused("torch.inference_mode turns off the gradients"):
            read()


@pytest.mark.gpu
def test_the_operator_on_a_gpu_reproduces_the_output(generator: torch.Generator) -> None:
    layer = hybrid_backbone().cuda()
    x = draw(1, SEQ, WIDTH, generator=generator, dtype=torch.float32).cuda()
    y = layer.from_embeddings(x).detach()
    found = interaction(layer, x)
    assert found.operator.device == x.device
    assert (found.apply(x) - y).norm() <= 1e-5 * y.norm()
