"""The operator read off a layer against the operator worked out by hand, and against the layer itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.tolerances import assert_close
from zoo.backbone import Backbone
from zoo.blocks import ResidualBlock, RMSNorm, ShortConv, Stack, SwiGLU
from zoo.coefficient import coefficient
from zoo.registry import create_mixer, list_mixers
from zoo.theory.operator import NotAffineError, interaction, replayed

SEQ, WIDTH = 11, 8


def draw(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=dtype)


def hybrid_backbone() -> Backbone:
    mixer = {"name": "hybrid", "pattern": ["selective_ssm", "attention", "diagonal_ssm", "lstm"]}
    return Backbone(mixer, d_model=WIDTH, n_layers=4, vocab_size=7, n_outputs=5, d_conv=3)


LAYERS = {
    **{name: lambda name=name: create_mixer(name, WIDTH) for name in list_mixers()},
    "attention, all options": lambda: create_mixer(
        "attention", WIDTH, n_heads=4, n_kv_heads=2, position="alibi", sink="bos", d_conv=3
    ),
    "rope": lambda: create_mixer("attention", WIDTH, position="rope", n_heads=2),
    "bilinear": lambda: create_mixer("factorized", WIDTH, kernel="bilinear", d_out=3),
    "norm": lambda: RMSNorm(WIDTH),
    "channel mixer": lambda: SwiGLU(WIDTH, 12),
    "convolution": lambda: ShortConv(WIDTH, 4, bias=True),
    "block": lambda: ResidualBlock(create_mixer("selective_ssm", WIDTH), d_channel=12),
    "stack": lambda: Stack([create_mixer("attention", WIDTH), create_mixer("lstm", WIDTH)]),
    "backbone": hybrid_backbone,
    "regression backbone": lambda: Backbone(
        {"name": "linear_attention"}, d_model=WIDTH, n_layers=1, d_input=WIDTH, n_outputs=3, backbone="bare"
    ),
}


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", LAYERS)
def test_reproduces_the_output(name: str, dtype: torch.dtype, limit: float, generator: torch.Generator) -> None:
    layer = LAYERS[name]().to(dtype).eval()
    x = draw(generator, 2, SEQ, WIDTH, dtype=dtype)
    with torch.no_grad():
        y = layer.from_embeddings(x) if isinstance(layer, Backbone) else layer(x)
    found = interaction(layer, x)
    assert found.operator.shape == (2, SEQ, SEQ, y.shape[2], WIDTH)
    assert found.operator.dtype == found.offset.dtype == dtype
    assert (found.apply(x) - y).norm() <= limit * y.norm()
    future = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)
    assert not found.operator[:, future].any()


def test_attention_by_hand(generator: torch.Generator) -> None:
    heads, width = 2, WIDTH // 2
    layer = create_mixer("attention", WIDTH, n_heads=heads).double()
    x = draw(generator, 1, SEQ, WIDTH)
    W = interaction(layer, x).operator[0].numpy()
    weights = layer.qkv_proj.weight.detach().numpy().reshape(3, heads, width, WIDTH)
    out = layer.out_proj.weight.detach().numpy().reshape(WIDTH, heads, width)
    expected = np.zeros_like(W)
    for h in range(heads):
        q, k = x[0].numpy() @ weights[0, h].T, x[0].numpy() @ weights[1, h].T
        for i in range(SEQ):
            share = np.exp(q[i] @ k[: i + 1].T / width**0.5)
            for j in range(i + 1):
                expected[i, j] += share[j] / share.sum() * out[:, h] @ weights[2, h]
    np.testing.assert_allclose(W, expected, rtol=1e-9, atol=1e-13)


def test_diagonal_ssm_by_hand(generator: torch.Generator) -> None:
    layer = create_mixer("diagonal_ssm", 3, d_state=4, init="ring").double()
    found = interaction(layer, draw(generator, 1, SEQ, 3))
    log_decay, B, C = (t.detach().numpy() for t in layer.dynamics())
    for i in range(SEQ):
        for j in range(i + 1):
            lag = (C @ np.diag(np.exp((i - j) * log_decay)) @ B).real + (i == j) * np.diag(layer.D.detach().numpy())
            np.testing.assert_allclose(found.operator[0, i, j].numpy(), lag, rtol=1e-9, atol=1e-13)
    assert not found.offset.any()


def test_the_convolutions_bias_is_the_offset(generator: torch.Generator) -> None:
    """Mamba's offset is a good part of its output, and W x alone does not do."""
    layer = create_mixer("selective_ssm", WIDTH).double()
    x = draw(generator, 1, SEQ, WIDTH)
    found = interaction(layer, x)
    with torch.no_grad():
        y = layer(x)
    assert 0.05 < (found.apply(x) - found.offset - y).norm() / y.norm() < 1
    with torch.no_grad():
        layer.conv.bias.zero_()
    assert not interaction(layer, x).offset.any()


@pytest.mark.parametrize("name", ["attention", "selective_ssm", "lstm"])
def test_the_jacobian_is_another_matrix(name: str, generator: torch.Generator) -> None:
    layer = create_mixer(name, WIDTH).double()
    x = draw(generator, 1, SEQ, WIDTH)
    W = interaction(layer, x).operator[0]
    jacobian = torch.autograd.functional.jacobian(lambda v: layer(v[None])[0], x[0]).permute(0, 2, 1, 3)
    assert (jacobian - W).norm() > 0.05 * W.norm()


def test_the_jacobian_of_a_linear_layer_is_the_operator(generator: torch.Generator) -> None:
    layer = create_mixer("factorized", WIDTH).double()
    x = draw(generator, 1, SEQ, WIDTH)
    jacobian = torch.autograd.functional.jacobian(lambda v: layer(v[None])[0], x[0]).permute(0, 2, 1, 3)
    assert_close(interaction(layer, x).operator[0], jacobian)


def test_rows_of_the_batch_are_independent(generator: torch.Generator) -> None:
    layer = create_mixer("hybrid", WIDTH).double()
    x = draw(generator, 3, SEQ, WIDTH)
    together, alone = interaction(layer, x), interaction(layer, x[1:2])
    assert_close(together.operator[1:2], alone.operator)
    assert_close(together.offset[1:2], alone.offset)


def test_both_sides_give_the_same_operator(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several blocks, of which the last is short."""
    monkeypatch.setattr("zoo.theory.operator.POSITIONS_AT_ONCE", 3 * 2 * SEQ * WIDTH)
    layer = create_mixer("selective_ssm", WIDTH).double()
    with replayed(layer, draw(generator, 2, SEQ, WIDTH)) as held:
        rows = list(held.rows())
        columns = torch.cat([block for _, block in held.columns()], dim=1)
    assert [now.stop - now.start for now, _ in rows] == [3, 3, 3, 2]
    assert_close(torch.cat([block for _, block in rows], dim=1), columns.transpose(1, 2))


def test_a_layer_that_ignores_its_input(generator: torch.Generator) -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.ones_like(x)

    found = interaction(Constant(), draw(generator, 1, 4, 2))
    assert not found.operator.any()
    assert (found.offset == 1).all()


def test_training_mode_and_parameters_are_left_alone(generator: torch.Generator) -> None:
    layer = nn.Sequential(nn.Dropout(0.5), create_mixer("attention", WIDTH)).double()
    layer[1].eval()
    x = draw(generator, 1, SEQ, WIDTH)
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


def test_an_unmarked_coefficient_is_an_error_with_its_size(generator: torch.Generator) -> None:
    x = draw(generator, 1, SEQ, WIDTH)
    interaction(Squared(0.1, marked=True), x)
    misses = []
    for share in (1e-1, 1e-5):
        with pytest.raises(NotAffineError, match=r"not affine under replay \(relative miss .*not marked") as caught:
            interaction(Squared(share, marked=False), x)
        misses.append(float(str(caught.value).split("miss ")[1].split(")")[0]))
    assert 1e-2 < misses[0] < 10
    assert misses[1] == pytest.approx(misses[0] * 1e-4, rel=1)


@pytest.mark.parametrize("unmarked", [nn.ReLU(), nn.Tanh(), nn.LayerNorm(WIDTH, dtype=torch.float64)])
def test_unmarked_nonlinearities_are_errors(unmarked: nn.Module, generator: torch.Generator) -> None:
    """ReLU is linear along every ray: f(2x) = 2 f(x) does not see it."""
    with pytest.raises(NotAffineError):
        interaction(unmarked, draw(generator, 1, SEQ, WIDTH))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(4, WIDTH), "must be"),
        (torch.ones(1, 0, WIDTH), "not empty"),
        (torch.ones(1, 4, WIDTH, dtype=torch.int64), "float32 or float64"),
        (torch.ones(1, 4, WIDTH, dtype=torch.complex64), "float32 or float64"),
        (torch.ones(1, 4, WIDTH, dtype=torch.bfloat16), "float32 or float64"),
        (torch.ones(1, 4, WIDTH, dtype=torch.float64), "convert one to match"),
        (torch.full((1, 4, WIDTH), torch.nan), "finite"),
        (torch.ones(1, 4, WIDTH + 1), f"d_model={WIDTH}"),
    ],
)
def test_bad_input(x: Tensor, message: str, unchecked_shapes: None) -> None:
    with pytest.raises(ValueError, match=message):
        interaction(create_mixer("attention", WIDTH), x)


def test_a_layer_that_is_no_sequence_map() -> None:
    with pytest.raises(ValueError, match=r"must map \(batch, seq, d_in\) to \(batch, seq, d_out\)"):
        interaction(nn.Flatten(), torch.ones(1, 4, 2))


@pytest.mark.gpu
def test_on_a_gpu(generator: torch.Generator) -> None:
    layer = hybrid_backbone().cuda()
    x = draw(generator, 1, SEQ, WIDTH, dtype=torch.float32).cuda()
    y = layer.from_embeddings(x).detach()
    found = interaction(layer, x)
    assert found.operator.device == x.device
    assert (found.apply(x) - y).norm() <= 1e-5 * y.norm()
