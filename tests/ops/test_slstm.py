"""sLSTM's numba loop against its torch loop, which the contract suite tests: values, gradients, threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.ops.as_python import run_as_python
from tests.tolerances import assert_close
from zoo.ops import scan_numba, slstm, slstm_numba, transforms
from zoo.ops.slstm import slstm_scan

PRECISE = 1e-6


def draw(
    generator: torch.Generator, batch: int, heads: int, seq_len: int, d_head: int, *, scale: float = 2.0
) -> list[Tensor]:
    """u, the recurrent matrices, and h, c, n and m, all of them float32 leaves."""
    u = scale * torch.randn(batch, heads, seq_len, 4, d_head, generator=generator)
    recurrent = torch.randn(4, heads, d_head, d_head, generator=generator) / d_head**0.5
    h, c, n, m = torch.randn(4, batch, heads, d_head, generator=generator)
    return [t.requires_grad_() for t in (u, recurrent, h, c, n.abs() + 0.5, m)]


def results(given: list[Tensor], valid: Tensor | None, cotangents: list[Tensor]) -> list[Tensor]:
    """All outputs, and the gradients of all inputs."""
    u, recurrent, *state = given
    y, last = slstm_scan(u, recurrent, tuple(state), valid)
    outputs = [y, *last]
    gradients = torch.autograd.grad(outputs, given, [t.to(y.dtype) for t in cotangents])
    return [t.detach() for t in (*outputs, *gradients)]


def cotangents(generator: torch.Generator, given: list[Tensor]) -> list[Tensor]:
    u, _, *state = given
    return [torch.randn(shape, generator=generator) for shape in (u[..., 0, :].shape, *(t.shape for t in state))]


def assert_precise(given: list[Tensor], valid: Tensor | None, generator: torch.Generator) -> None:
    """Assert that outputs and gradients in float32 (numba) are those in float64 (torch)."""
    weights = cotangents(generator, given)
    found = results(given, valid, weights)
    exact = results([t.detach().double().requires_grad_() for t in given], valid, weights)
    assert all(t.dtype == torch.float32 for t in found)
    for part in (slice(0, 1), slice(1, 5), slice(5, 6), slice(6, 7), slice(7, 11)):  # parts of a state count together
        mine, right = (torch.cat([t.double().flatten() for t in each[part]]) for each in (found, exact))
        assert (mine - right).norm() <= PRECISE * right.norm()


@pytest.mark.parametrize(
    ("batch", "heads", "seq_len", "d_head", "scale", "ragged"),
    [
        (2, 2, 75, 9, 2.0, True),  # an incomplete last chunk of 32 positions; a width that is no multiple of four
        (1, 2, 33, 70, 2.0, False),  # wider than one block
        (1, 1, 40, 5, 1000.0, False),  # exp of the gates overflows float32
        (2, 1, 1, 4, 2.0, False),
        (1, 1, 40, 5, 1e-4, False),  # tanh near zero must keep its digits
    ],
)
def test_values_and_gradients_of_the_compiled_loop_are_those_of_float64(
    batch: int, heads: int, seq_len: int, d_head: int, scale: float, ragged: bool, generator: torch.Generator
) -> None:
    valid = torch.arange(seq_len) < torch.tensor([[seq_len], [seq_len // 2]]) if ragged else None
    assert_precise(draw(generator, batch, heads, seq_len, d_head, scale=scale), valid, generator)


@pytest.mark.parametrize(
    ("approximate", "exact", "ends"),
    [
        (slstm_numba._exp, np.exp, (-30, 0)),
        (slstm_numba._log1p, np.log1p, (1e-3, 1)),
        (slstm_numba._tanh, np.tanh, (-3, 3)),
        (slstm_numba.sigmoid, lambda z: 1 / (1 + np.exp(-z)), (-30, 30)),
        (lambda e: scan_numba._exp2(e, scan_numba._EXP2), np.exp2, (-30, 0)),
    ],
    ids=["exp", "log1p", "tanh", "sigmoid", "exp2"],
)
def test_a_polynomial_errs_by_two_roundings_at_most(
    approximate: Callable[..., float], exact: Callable[..., np.ndarray], ends: tuple[float, float]
) -> None:
    x = np.linspace(*ends, 5000, dtype=np.float32)
    found = np.array([approximate(each) for each in x], dtype=np.float64)
    np.testing.assert_allclose(found, exact(x.astype(np.float64)), rtol=2 * np.finfo(np.float32).eps)


@pytest.mark.filterwarnings("ignore:overflow encountered in scalar add:RuntimeWarning")  # overflowing bits are unused
@pytest.mark.parametrize(("scale", "ragged"), [(2.0, True), (1000.0, False), (1e-4, False)])
def test_the_loop_stays_within_its_arrays(
    scale: float, ragged: bool, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    """With chunks of two positions and blocks of two channels, the last of each half empty."""
    run_as_python(monkeypatch, slstm_numba, _CHUNK=2, _WIDTH=2)
    valid = torch.arange(5) < torch.tensor([[5], [2]]) if ragged else None
    assert_precise(draw(generator, 2, 2, 5, 5, scale=scale), valid, generator)


def test_a_nan_in_a_gate_reaches_the_output(generator: torch.Generator) -> None:
    for gate in range(4):
        u, recurrent, *state = (t.detach() for t in draw(generator, 1, 1, 3, 4))
        u[0, 0, 1, gate, 2] = torch.nan
        y, _ = slstm_scan(u, recurrent, tuple(state))
        assert y[0, 0, 0].isfinite().all()
        assert y[0, 0, 1, 2].isnan()


def test_results_are_bitwise_equal_for_any_number_of_threads(two_threads: None, generator: torch.Generator) -> None:
    given = draw(generator, 3, 2, 40, 4)
    weights = cotangents(generator, given)
    several = results(given, None, weights)
    torch.set_num_threads(1)
    torch.testing.assert_close(results(given, None, weights), several, rtol=0, atol=0)


def test_gradients_of_the_compiled_loop_can_be_differentiated_again(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    given = draw(generator, 2, 1, 5, 4)
    given[3].requires_grad_(False)  # one of the states needs no gradient

    def second() -> Tensor:
        u, recurrent, *state = given
        y, _ = slstm_scan(u, recurrent, tuple(state))
        (slope,) = torch.autograd.grad(y.square().sum(), u, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), recurrent)[0]

    compiled = second()
    monkeypatch.setattr(transforms, "_NUMBA", False)
    assert_close(compiled, second())


def test_without_numba_the_torch_loop_runs(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    given = draw(generator, 1, 1, 4, 4)
    compiled = results(given, None, weights := cotangents(generator, given))
    monkeypatch.setattr(transforms, "_NUMBA", False)
    monkeypatch.setattr(slstm._Scan, "apply", None)
    for mine, torchs in zip(compiled, results(given, None, weights), strict=True):
        assert_close(mine, torchs)
