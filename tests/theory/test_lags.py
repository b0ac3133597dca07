"""Lag operators and head counts, against closed forms, optimised factorizations and published values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import zoo.theory
from tests import refused
from tests.cases import draw
from tests.tolerances import assert_close
from zoo.theory import balanced_teacher, head_count, head_count_bound, lag_operators
from zoo.theory.claims.heads import minimised


def test_lag_operators_are_powers(generator: torch.Generator) -> None:
    poles = torch.tensor([0.9, -0.5, 0.0], dtype=torch.float64)
    B, C = draw(3, 4, generator=generator), draw(2, 3, generator=generator)
    lags = lag_operators(poles, B, C, 6)
    for tau in range(6):
        assert_close(lags[tau], C @ torch.linalg.matrix_power(torch.diag(poles), tau) @ B)
    assert_close(lag_operators(torch.diag(poles), B, C, 6), lags)
    basis = torch.linalg.qr(draw(3, 3, generator=generator)).Q
    assert_close(lag_operators(basis @ torch.diag(poles) @ basis.T, basis @ B, C @ basis.T, 6), lags)


def test_conjugate_poles_give_a_real_oscillation() -> None:
    pole = 0.9 * complex(math.cos(0.3), math.sin(0.3))
    A = torch.tensor([pole, pole.conjugate()], dtype=torch.complex128)
    B, C = torch.ones(2, 1, dtype=torch.complex128), torch.full((1, 2), 0.5, dtype=torch.complex128)
    tau = torch.arange(20, dtype=torch.float64)
    assert_close(lag_operators(A, B, C, 20).flatten(), 0.9**tau * torch.cos(0.3 * tau))


@pytest.mark.parametrize(("n", "k"), [(16, 6), (8, 8)])
def test_the_teacher_is_its_definition(n: int, k: int) -> None:
    """Dividing out the decay and projecting on the Fourier modes gives orthonormal residues."""
    tau = torch.arange(n, dtype=torch.float64)
    modes = [torch.ones_like(tau)]
    for m in range(1, n // 2):
        modes += [2**0.5 * torch.cos(2 * math.pi * m * tau / n), 2**0.5 * torch.sin(2 * math.pi * m * tau / n)]
    modes.append(torch.cos(math.pi * tau))
    undecayed = balanced_teacher(k, 3, n, rho=0.7, seed=5).flatten(1) / 0.7 ** tau[:, None]
    residues = torch.stack(modes[:k]) @ undecayed / n
    assert_close(residues @ residues.T, torch.eye(k, dtype=torch.float64))
    assert_close(torch.stack(modes[:k]).T @ residues, undecayed)


@pytest.mark.parametrize(
    ("k", "published"),
    [
        (4, [0.577, 0.2555, 0.0679, 0, 0]),
        (8, [0.725, 0.516, 0.339, 0.204, 0.111, 0.051, 0.0169, 0, 0]),
    ],
)
def test_the_bound_is_the_published_one(k: int, published: list[float]) -> None:
    lags = balanced_teacher(k, 6, 32, rho=0.98, seed=1)
    found = [head_count_bound(lags, n_heads) for n_heads in range(1, k + 2)]
    assert found == pytest.approx(published, abs=6e-4)


def mean_squared_error(lags: Tensor, covariance: Tensor) -> Tensor:
    """E sum_i ||y_i||^2, as a sum over all pairs of positions (i, j)."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(lags)):
        for j in range(i + 1):
            total = total + torch.trace(lags[i - j] @ covariance @ lags[i - j].T)
    return total


@pytest.mark.parametrize("correlated", [False, True])
def test_the_bound_is_attained_and_never_beaten(correlated: bool, generator: torch.Generator) -> None:
    n, d_out, d_in, n_heads = 5, 2, 3, 2
    lags = draw(n, d_out, d_in, generator=generator)
    mix = draw(d_in, d_in, generator=generator)
    covariance = mix @ mix.T if correlated else torch.eye(d_in, dtype=torch.float64)
    bound = head_count_bound(lags, n_heads, covariance if correlated else None)
    energy = mean_squared_error(lags, covariance)

    coefficients = draw(n_heads, n, generator=generator).requires_grad_()
    values = draw(n_heads, d_out, d_in, generator=generator).requires_grad_()

    def error() -> Tensor:
        return mean_squared_error(torch.einsum("ht,hpd->tpd", coefficients, values) - lags, covariance) / energy

    assert error().item() > bound
    found = minimised([coefficients, values], error, max_iter=300)
    assert found == pytest.approx(bound, rel=1e-4)
    assert found >= bound * (1 - 1e-9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("scalar", 1), ("two_values", 2), ("jordan", 5), ("delay_line", 6), ("siso", 1), ("zero", 0), ("pole_at_zero", 2)],
)
def test_head_counts_in_closed_form(name: str, expected: int, generator: torch.Generator) -> None:
    def system(A: Tensor, d_in: int = 4, d_out: int = 4) -> Tensor:
        d_state = A.shape[0]
        B, C = draw(d_state, d_in, generator=generator), draw(d_out, d_state, generator=generator)
        return lag_operators(A.double(), B, C, 16)

    lags = {
        "scalar": lambda: system(torch.full((16,), 0.9)),
        "two_values": lambda: system(torch.tensor([0.9] * 8 + [0.4] * 8)),
        "jordan": lambda: system(torch.diag(torch.full((5,), 0.5)) + torch.diag(torch.ones(4), 1)),
        "delay_line": lambda: system(torch.diag(torch.ones(5), 1)),
        "siso": lambda: system(torch.linspace(-0.9, 0.9, 8), 1, 1),
        "zero": lambda: torch.zeros(4, 2, 2),
        "pole_at_zero": lambda: system(torch.tensor([0.5, 0.0])),
    }[name]()
    assert head_count(lags) == expected
    assert head_count(lags.float()) == expected


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_bound_does_not_depend_on_scale(scale: float, generator: torch.Generator) -> None:
    lags, mix = draw(5, 2, 3, generator=generator), draw(3, 3, generator=generator)
    covariance = mix @ mix.T
    assert head_count_bound(scale * lags, 2) == pytest.approx(head_count_bound(lags, 2))
    expected = pytest.approx(head_count_bound(lags, 2, covariance))
    assert head_count_bound(scale * lags, 2, scale * covariance) == expected
    assert head_count(scale * lags) == head_count(lags)


def test_head_count_takes_a_tolerance() -> None:
    lags = torch.diag(torch.tensor([1.0, 1e-3, 1e-8], dtype=torch.float64))[:, None, :]
    assert [head_count(lags, rtol) for rtol in (0.0, 1e-5, 0.1)] == [3, 2, 1]


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: lag_operators(o(2), o(2, 3), o(4, 2), 0), "seq_len must be >= 1, got 0"),
        (lambda o: lag_operators(o(2), o(3, 3), o(4, 2), 5), r"A must be .* got \(2,\), \(3, 3\), \(4, 2\)"),
        (lambda o: lag_operators(o(3, 2), o(2, 3), o(4, 2), 5), r"A must be .* got \(3, 2\), \(2, 3\), \(4, 2\)"),
        (lambda o: lag_operators(o(2, 2), o(2, 3), o(4, 2), 5), "unstable, a pole of modulus 2 lies outside"),
        (lambda o: lag_operators(math.nan * o(2, 2), o(2, 3), o(4, 2), 5), "A must be finite"),
        (lambda o: lag_operators(o(2), math.inf * o(2, 3), o(4, 2), 5), "B must be finite"),
        (lambda o: lag_operators(0.5j * o(2), o(2, 3), o(4, 2), 5), "not real; complex poles must come in conjugate"),
        (lambda o: head_count(o(2, 3)), r"lags must be .* got torch.float32 \(2, 3\)"),
        (lambda o: head_count(math.nan * o(2, 2, 3)), "head_count: lags must be finite"),
        (lambda o: head_count_bound(math.inf * o(2, 2, 3), 1), "head_count_bound: lags must be finite"),
        (lambda o: head_count(o(2, 2, 3), 1.5), r"rtol must lie in \[0, 1\), got 1.5"),
        (lambda o: head_count_bound(o(2, 2, 3), 0), "n_heads must be a positive integer, got 0"),
        (lambda o: head_count_bound(0 * o(2, 2, 3), 1), "output is zero"),
        (lambda o: head_count_bound(o(2, 2, 3), 1, math.nan * o(3, 3)), "covariance must be finite"),
        (lambda o: lag_operators((1 + 1e-6) * o(2).double(), o(2, 3), o(4, 2), 5), "a pole of modulus 1.000001 lies"),
        (lambda o: head_count_bound(o(2, 2, 3), 1, o(2, 2)), r"covariance must be \(3, 3\), got \(2, 2\)"),
        (lambda o: head_count_bound(o(2, 2, 3), 1, o(3, 3).triu()), "covariance must be symmetric"),
        (lambda o: head_count_bound(o(2, 2, 3), 1, -torch.eye(3)), "negative eigenvalue, -1"),
        (lambda _: balanced_teacher(33, 6, 32), "<= period .* got k=33, period=32"),
        (lambda _: balanced_teacher(5, 2, 32), "<= d_out \\* d_model"),
        (lambda _: balanced_teacher(1, 0, 32), "d_model and d_out must be >= 1"),
        (lambda _: balanced_teacher(1, 2, 32, rho=1.1), r"rho must lie in \(0, 1\], got 1.1"),
    ],
)
def test_bad_input_is_a_one_line_error(call: Any, message: str) -> None:
    with refused(message):
        call(torch.ones)


def test_public_names_resolve() -> None:
    for name in 2 * list(zoo.theory.__all__):  # a submodule with the name of its function would replace it after import
        assert callable(getattr(zoo.theory, name))
        assert name in dir(zoo.theory)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = zoo.theory.nonsense
