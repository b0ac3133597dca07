"""Conversions of convolutions into heads, softmax heads and ALiBi, against plain loops and closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import refused
from tests.tolerances import assert_close
from zoo.theory.convert import fit_heads, to_heads
from zoo.theory.lags import head_count, head_count_bound
from zoo.theory.operator import interaction
from zoo.theory.rank import interaction_rank
from zoo.theory.softmax import ema_as_alibi, positive_combination, softmax_floor, to_softmax_heads
from zoo.theory.teacher import balanced_teacher

N, D = 24, 4
T = np.arange(N)


def mixed(rng: np.random.Generator, *laws: np.ndarray, d_out: int = D, d_in: int = D) -> Tensor:
    """sum_k law_k(tau) R_k with drawn R_k."""
    return torch.from_numpy(sum(law[:, None, None] * rng.normal(size=(d_out, d_in)) for law in laws))


def turning(radius: float, angle: float) -> tuple[np.ndarray, np.ndarray]:
    return radius**T * np.cos(angle * T), radius**T * np.sin(angle * T)


def convolved(lags: Tensor, x: Tensor) -> np.ndarray:
    """y_i = sum_tau G_tau x_{i - tau}, by a double loop."""
    g, u = lags.double().numpy(), x.double().numpy()
    y = np.zeros((*u.shape[:2], g.shape[1]))
    for i in range(u.shape[1]):
        for tau in range(i + 1):
            y[:, i] += u[:, i - tau] @ g[tau].T
    return y


def miss(mixer: torch.nn.Module, lags: Tensor, rng: np.random.Generator, seq_len: int | None = None) -> float:
    """Relative error of the mixer's output on random sequences."""
    x = torch.from_numpy(rng.normal(size=(2, seq_len or len(lags), lags.shape[2]))).to(lags)
    wanted = convolved(lags, x)
    with torch.no_grad():
        return float(np.linalg.norm(mixer(x).double().numpy() - wanted) / np.linalg.norm(wanted))


def test_to_heads_is_exact_at_k(rng: np.random.Generator) -> None:
    lags = mixed(rng, 0.9**T, (-0.5) ** T, *turning(0.8, 1.0), d_out=3)
    mixer = to_heads(lags)
    assert (mixer.n_heads, mixer.d_model, mixer.d_out, mixer.max_seq_len) == (4, D, 3, N)
    assert miss(mixer, lags, rng) < 1e-13
    assert miss(mixer, lags, rng, seq_len=7) < 1e-13


@pytest.mark.parametrize("variances", [(1.0, 4.0, 0.25, 9.0), (1.0, 4.0, 0.0, 9.0)], ids=["full", "flat"])
def test_heads_for_a_covariance_attain_its_bound(variances: tuple[float, ...], rng: np.random.Generator) -> None:
    """The expected error of n heads equals the bound, which is zero for n = k."""
    lags = mixed(rng, 0.9**T, (-0.5) ** T, *turning(0.8, 1.0), d_out=3)
    turned = np.linalg.qr(rng.normal(size=(D, D)))[0]
    covariance = torch.from_numpy(turned * np.array(variances) @ turned.T)

    def energy(operators: Tensor) -> float:
        return sum((N - tau) * float(torch.trace(g @ covariance @ g.T)) for tau, g in enumerate(operators.detach()))

    for n_heads in (1, 2, 4):
        heads = to_heads(lags, n_heads, covariance)
        assert heads.coefficients is not None
        missed = lags - torch.einsum("ht,hpd->tpd", heads.coefficients, heads.value_maps)
        assert energy(missed) / energy(lags) == pytest.approx(head_count_bound(lags, n_heads, covariance), abs=1e-12)


def test_fitted_heads_are_exact_at_k_and_no_worse_below(rng: np.random.Generator) -> None:
    lags = mixed(rng, 0.9**T, (-0.5) ** T, d_out=3)
    x = torch.from_numpy(rng.normal(size=(20, N, D)).cumsum(1))  # correlated positions
    y = torch.from_numpy(convolved(lags, x))

    def error(heads: torch.nn.Module) -> float:
        return float((heads(x) - y).square().sum() / y.square().sum())

    with torch.no_grad():
        drawn = to_heads(mixed(rng, 0.3**T, 0.7**T, d_out=3))
        assert error(drawn) > 0.1
        assert error(fit_heads(drawn, x, y, rounds=40)) < 1e-6
        one = to_heads(lags, 1)
        errors = [error(one), *(error(fit_heads(one, x, y, rounds)) for rounds in (1, 2, 8))]
        assert errors == sorted(errors, reverse=True)
        assert errors[-1] < 0.9 * errors[0]


def test_to_heads_is_optimal_below_k() -> None:
    lags = balanced_teacher(4, 5, N)
    x = torch.zeros(1, N, 5, dtype=torch.float64)
    fewer, whole = (interaction(to_heads(lags, n_heads), x).operator[0] for n_heads in (2, None))
    error = ((fewer - whole).square().sum() / whole.square().sum()).item()
    assert error == pytest.approx(head_count_bound(lags, 2), rel=1e-10)
    assert interaction_rank(fewer) == 2


LAWS: dict[str, tuple[Callable[[], Sequence[np.ndarray]], int]] = {
    "one positive pole": (lambda: [0.9**T], 1),
    "a negative pole under a positive one": (lambda: [0.9**T, (-0.5) ** T], 2),
    "a pair under a positive pole": (lambda: [0.9**T, *turning(0.8, 1.0)], 3),
    "a convolution": (lambda: list(np.eye(N)[:5]), 5),
    "a negative pole": (lambda: [(-0.8) ** T], 2),
    "a pair": (lambda: turning(0.9, 1.0), 3),
    "four pairs": (lambda: [law for j in range(4) for law in turning(0.8 + 0.04 * j, 0.4 + 0.5 * j)], 9),
}


@pytest.mark.parametrize("name", LAWS)
def test_to_softmax_heads_is_exact_with_k_or_one_more(name: str, rng: np.random.Generator) -> None:
    laws, n_heads = LAWS[name]
    lags = mixed(rng, *laws())
    mixer = to_softmax_heads(lags)
    assert mixer.n_heads == n_heads
    assert miss(mixer, lags, rng) < 1e-12
    assert miss(mixer, lags, rng, seq_len=5) < 1e-12


def test_a_positive_combination_exists_exactly_if_the_rows_lie_in_a_half_space(rng: np.random.Generator) -> None:
    rows = torch.from_numpy(rng.normal(size=(40, 3)))
    rows[:, 0] = rows[:, 0].abs() + 0.1
    rows = rows / rows.norm(dim=1, keepdim=True)
    c = positive_combination(rows, 1e-3)
    assert c is not None
    assert (rows @ c).min().item() == pytest.approx(1, abs=1e-9)
    # 1 / |c| is the largest margin of any direction: random directions come close and never exceed it.
    tried = torch.from_numpy(rng.normal(size=(200_000, 3)))
    widest = (rows @ (tried / tried.norm(dim=1, keepdim=True)).T).amin(0).max()
    assert 0.95 / c.norm() < widest <= 1 / c.norm() + 1e-12
    assert positive_combination(torch.cat((rows, -rows[:1])), 1e-3) is None
    assert positive_combination(torch.eye(3, dtype=torch.float64)[:1], 1e-3) is not None


def test_ema_as_alibi_is_the_moving_average_at_any_length(rng: np.random.Generator) -> None:
    poles = torch.tensor([0.01, 0.5, 0.9, 0.99, 1 - 1e-6], dtype=torch.float64)
    mixer = ema_as_alibi(poles)
    x, reached, wanted = rng.normal(size=(1, 400, 5)), np.zeros(5), []
    for i in range(400):
        reached = poles.numpy() * reached + (1 - poles.numpy()) * x[0, i]
        wanted.append(reached)
    with torch.no_grad():
        y = mixer(torch.from_numpy(x))[0].numpy()
    assert (mixer.n_heads, mixer.d_head, mixer.d_model) == (5, 1, 5)
    assert np.linalg.norm(y - wanted) / np.linalg.norm(wanted) < 1e-13


def test_ema_as_alibi_takes_a_whole_system(rng: np.random.Generator) -> None:
    poles, b, c = rng.uniform(0.2, 0.99, 6), rng.normal(size=(6, 3)), rng.normal(size=(3, 6))
    lags = np.stack([c @ np.diag(poles**tau) @ b for tau in range(N)])
    mixer = ema_as_alibi(*(torch.from_numpy(t) for t in (poles, b, c)))
    assert (mixer.n_heads, mixer.d_head, mixer.d_model) == (6, 1, 3)
    assert miss(mixer, torch.from_numpy(lags), rng) < 1e-13


def test_softmax_floor_solves_its_least_squares_problem(rng: np.random.Generator) -> None:
    """Against the constrained least-squares problem in all W_ij and S, where each row of W sums to S."""
    n = 6
    lags = mixed(rng, 0.9**T, *turning(0.7, 0.8), d_out=2, d_in=3)[:n].numpy()
    index = [(i, j) for i in range(n) for j in range(i + 1)]
    wanted = np.array([lags[i - j].ravel() for i, j in index])
    # Free unknowns: S, and all entries of a row except the first, which the sum determines.
    columns = 1 + sum(1 for _, j in index if j > 0)
    design, at = np.zeros((len(index), columns)), 1
    for i in range(n):
        first = index.index((i, 0))
        design[first, 0] = 1
        for j in range(1, i + 1):
            design[index.index((i, j)), at] = 1
            design[first, at] = -1
            at += 1
    residual = wanted - design @ np.linalg.lstsq(design, wanted, rcond=None)[0]
    assert softmax_floor(torch.from_numpy(lags)) == pytest.approx((residual**2).sum() / (wanted**2).sum(), rel=1e-9)
    assert softmax_floor(mixed(rng, np.eye(N)[0])) == pytest.approx(0, abs=1e-28)  # a map without memory


@pytest.mark.parametrize("convert", [to_heads, to_softmax_heads])
def test_conversions_keep_dtype_and_draw_nothing(
    convert: Callable[..., torch.nn.Module], rng: np.random.Generator
) -> None:
    lags = mixed(rng, 0.9**T, *turning(0.9, 1.3)).float()
    before = torch.get_rng_state()
    mixer = convert(lags)
    assert torch.equal(torch.get_rng_state(), before)
    assert {parameter.dtype for parameter in mixer.parameters()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in mixer.parameters())
    assert miss(mixer, lags, rng) < 1e-5


def test_the_zero_map_converts() -> None:
    zero = torch.zeros(N, 2, 2, dtype=torch.float64)
    x = torch.ones(1, N, 2, dtype=torch.float64)
    assert head_count(zero) == 0
    for mixer in (to_heads(zero), to_softmax_heads(zero)):
        assert mixer(x).abs().max() == 0
        assert mixer.n_heads == 1  # k = 0, but a layer has at least one head


@pytest.mark.parametrize("law", [0.9**T, (-0.8) ** T])
def test_conversions_take_any_scale(law: np.ndarray, rng: np.random.Generator) -> None:
    lags, x = mixed(rng, law), torch.from_numpy(rng.normal(size=(1, N, D)))
    for scale in (1e-200, 1e200):
        for convert in (to_heads, to_softmax_heads):
            plain, mixer = convert(lags), convert(scale * lags)
            assert mixer.n_heads == plain.n_heads
            assert_close(mixer(x) / scale, plain(x))
        assert softmax_floor(scale * lags) == pytest.approx(softmax_floor(lags))


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: to_heads(o(3, 2)), r"to_heads: lags must be .*got torch.float64 \(3, 2\)"),
        (lambda o: to_heads(o(3, 2, 2), 0), "n_heads must be a positive integer, got 0"),
        (
            lambda o: to_softmax_heads(o(3, 2, 4)),
            "lags must be square, got d_out=2, d_in=4; .*to_heads accepts any shape",
        ),
        (lambda o: to_softmax_heads(math.nan * o(3, 2, 2)), "to_softmax_heads: lags must be finite"),
        (lambda o: to_softmax_heads(3e38 * o(3, 2, 2).float()), "overflow torch.float32"),
        (lambda o: to_heads(3e38 * o(3, 2, 2).float()), "the coefficients overflow torch.float32"),
        (lambda o: softmax_floor(0 * o(3, 2, 2)), "the map's output is zero"),
        (lambda o: ema_as_alibi(o(2)), "strictly between 0 and 1, got 1;"),
        (lambda o: ema_as_alibi(0.5j * o(2)), "poles must be"),
        (lambda o: ema_as_alibi(0.5 * o(2), o(2, 3)), "give both B and C, or neither"),
        (lambda o: ema_as_alibi(0.5 * o(2), o(2, 3), o(2, 3)), r"C \(d_model, 2\), got \(2, 3\) and \(2, 3\)"),
        (lambda o: ema_as_alibi(0.5 * o(2), o(2, 3), math.inf * o(3, 2)), "B and C must be real and finite"),
    ],
)
def test_bad_input_is_a_one_line_error(call: Callable[[Any], Any], message: str) -> None:
    with refused(message):
        call(lambda *shape: torch.ones(shape, dtype=torch.float64))
