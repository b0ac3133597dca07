"""Norm, channel mixer, convolution, stack and residual block."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests import holding, reference, refused
from tests.cases import draw, in_chunks, parameters, randomise
from tests.tolerances import assert_close
from zoo import create_mixer
from zoo.blocks import ResidualBlock, RMSNorm, ShortConv, Stack, SwiGLU
from zoo.theory.operator import interaction


def test_rms_norm_is_continuous_at_zero_and_safe_in_float16() -> None:
    norm = RMSNorm(4)
    assert torch.equal(norm(torch.zeros(1, 4)), torch.zeros(1, 4))
    large = torch.full((1, 4), 1000.0, dtype=torch.float16)  # its square overflows
    torch.testing.assert_close(norm.half()(large), torch.ones_like(large))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("d_conv", [1, 2, 5])
def test_short_conv_is_the_reference_in_any_chunks(d_conv: int, bias: bool, generator: torch.Generator) -> None:
    conv = randomise(ShortConv(3, d_conv, bias=bias), generator).double()
    x = draw(2, 9, 3, generator=generator)
    p = parameters(conv)
    expected = np.stack([reference.short_conv(row, p["weight"], p.get("bias", 0.0)) for row in x.numpy()])
    assert_close(conv(x), expected)
    chunks, state = in_chunks(conv, x, [1, 2, 6])
    assert_close(chunks, expected)
    assert state.shape == (2, d_conv - 1, 3)


@pytest.mark.parametrize(("d_channel", "norm"), [(0, "input"), (12, "input"), (12, "output"), (12, "residual")])
def test_a_residual_block_is_the_reference_and_an_operator(
    d_channel: int, norm: str, generator: torch.Generator
) -> None:
    block = randomise(ResidualBlock(create_mixer("attention", 8), d_channel, norm=norm), generator).double()
    x, p = draw(2, 7, 8, generator=generator), parameters(block)
    of_reference = {
        "input": reference.residual_block,
        "output": reference.output_normed_block,
        "residual": reference.residual_normed_block,
    }
    expected = np.stack([of_reference[norm](p, row, "attention") for row in x.numpy()])
    assert_close(block(x), expected)
    assert_close(in_chunks(block, x, [3, 4])[0], expected)
    assert_close(interaction(block, x).apply(x), expected)


def test_a_stack_is_its_layers_one_after_the_other(generator: torch.Generator) -> None:
    first, second = create_mixer("factorized", 8, d_out=5), create_mixer("lstm", 5)
    stack, x = Stack([first, second]).double(), draw(2, 7, 8, generator=generator)
    assert (stack.d_model, stack.d_out) == (8, 5)
    assert torch.equal(stack(x), second(first(x)))
    assert_close(in_chunks(stack, x, [3, 4])[0], stack(x))


def test_reset_parameters_reaches_all_submodules(generator: torch.Generator) -> None:
    block = ResidualBlock(create_mixer("selective_ssm", 8), 12)
    for module in (block, Stack([block])):
        randomise(module, generator)
        before = {name: p.clone() for name, p in module.named_parameters()}
        module.reset_parameters()
        assert [name for name, p in module.named_parameters() if torch.equal(p, before[name])] == []
    assert torch.equal(block.mixer_norm.weight, torch.ones(8))
    assert torch.equal(block.channel_norm.weight, torch.ones(8))


def test_a_module_with_parameters_must_define_reset_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ShortConv, "reset_parameters")
    with pytest.raises(NotImplementedError, match="must define reset_parameters to initialise weight, bias"):
        ShortConv(8, 4, bias=True)


def test_norms_and_biases_are_excluded_from_weight_decay() -> None:
    block = ResidualBlock(Stack([ShortConv(8, 4, bias=True), create_mixer("selective_ssm", 8)]), 12)
    assert block.no_weight_decay() == {
        "mixer_norm.weight",
        "channel_norm.weight",
        "mixer.layers.0.bias",
        "mixer.layers.1.A_log",
        "mixer.layers.1.D",
        "mixer.layers.1.conv.bias",
        "mixer.layers.1.dt_proj.bias",
    }


def test_parts_of_different_widths_and_invalid_sizes_are_refused() -> None:
    narrow = create_mixer("factorized", 8, d_out=5)
    for call, words in (
        (lambda: Stack([narrow, create_mixer("lstm", 8)]), ["d_out=5", "d_model=8"]),
        (lambda: Stack([]), ["at least one layer"]),
        (lambda: ResidualBlock(narrow), ["d_out", "5", "8"]),
        (lambda: ShortConv(8, 0), ["d_conv", "0"]),
        (lambda: SwiGLU(8, -1), ["d_channel", "-1"]),
    ):
        with refused(holding(*words)):
            call()
