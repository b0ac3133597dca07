"""The pure functions, against plain loops: float64 unless said, values and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from tests import reference, slow
from tests.cases import draw
from tests.tolerances import assert_close, tolerance
from zoo.ops import trapezoid
from zoo.ops.activation import heavy_tail, rms_norm, silu, silu_gate, tanh, tanhc
from zoo.ops.attention import attend, lag_matrix
from zoo.ops.conv import causal_conv
from zoo.ops.diagonal import diagonal_scan, ring_gain, zero_order_hold
from zoo.ops.dplr import dplr
from zoo.ops.precision import widest
from zoo.ops.recurrent import linear_rnn, lstm_scan
from zoo.ops.rope import rotate
from zoo.ops.scan import selective_scan
from zoo.ops.sliding import sliding_attend
from zoo.ops.time import right_align, valid_positions
from zoo.ops.toeplitz import long_conv, toeplitz_mix

LENGTHS = pytest.mark.parametrize("seq_len", [1, 2, 7, 63, 1000])


def rows(function: object, *tensors: Tensor) -> np.ndarray:
    """A function of single sequences, applied to each row of a batch."""
    arrays = [t.detach().numpy() for t in tensors]
    return np.stack([function(*row) for row in zip(*arrays, strict=True)])


def differentiable(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


# Selective scan.


def scan_inputs(generator: torch.Generator, seq_len: int, batch: int = 2, d_inner: int = 3, d_state: int = 4):
    """x, dt, A, B, C, D and a state, as the Mamba block makes them."""
    x, dt = (draw(batch, seq_len, d_inner, generator=generator) for _ in range(2))
    A = -draw(d_inner, d_state, generator=generator).exp()
    B, C = (draw(batch, seq_len, d_state, generator=generator) for _ in range(2))
    D = draw(d_inner, generator=generator)
    return x, torch.nn.functional.softplus(dt), A, B, C, D, draw(batch, d_inner, d_state, generator=generator)


@LENGTHS
def test_selective_scan_is_the_reference(seq_len: int, generator: torch.Generator) -> None:
    x, dt, A, B, C, D, _ = scan_inputs(generator, seq_len)
    y, final = selective_scan(x, dt, A, B, C, D)

    def alone(x: np.ndarray, dt: np.ndarray, B: np.ndarray, C: np.ndarray) -> np.ndarray:
        return reference.selective_scan(x, dt, A.numpy(), B, C, D.numpy())

    assert_close(y, rows(alone, x, dt, B, C))
    without_skip, same_final = selective_scan(x, dt, A, B, C)
    assert_close(without_skip, y - D * x)
    assert_close(same_final, final)


@LENGTHS
def test_selective_scan_goes_on_from_a_state(seq_len: int, generator: torch.Generator) -> None:
    x, dt, A, B, C, D, state = scan_inputs(generator, seq_len)
    y, final = selective_scan(x, dt, A, B, C, D, state)
    h, expected = state.clone(), []
    for t in range(seq_len):
        h = torch.exp(dt[:, t, :, None] * A) * h + (dt * x)[:, t, :, None] * B[:, t, None, :]
        expected.append((h * C[:, t, None, :]).sum(-1) + D * x[:, t])
    assert_close(y, torch.stack(expected, dim=1))
    assert_close(final, h)


@pytest.mark.parametrize("seq_len", [1, 2, 7])
def test_selective_scan_gradients(seq_len: int, generator: torch.Generator) -> None:
    assert gradcheck(selective_scan, differentiable(*scan_inputs(generator, seq_len, d_inner=2, d_state=3)))


@pytest.mark.parametrize("seq_len", [63, 300])  # 300: more than one chunk
def test_selective_scan_gradients_of_long_sequences(seq_len: int, generator: torch.Generator) -> None:
    assert gradcheck(selective_scan, differentiable(*scan_inputs(generator, seq_len)), fast_mode=True)


@pytest.mark.parametrize("output", [0, 1])
def test_selective_scan_gradients_of_one_output_alone(output: int, generator: torch.Generator) -> None:
    inputs = differentiable(*scan_inputs(generator, 20))
    assert gradcheck(lambda *a: selective_scan(*a)[output], inputs, fast_mode=True)


@pytest.mark.parametrize(
    "steps", [(1e-6, 1e-6), (1e-6, 1e-3), (1e-3, 1e-1), (0.1, 10.0), (100.0, 100.0), (1e-6, 100.0)]
)
def test_selective_scan_in_float32_for_steps_from_a_millionth_to_a_hundred(
    steps: tuple[float, float], generator: torch.Generator
) -> None:
    """Nothing overflows, vanishes or is lost in a difference of sums: relative errors stay inside the table."""
    x, _, A, B, C, D, state = scan_inputs(generator, 300)
    low, high = np.log(steps)
    dt = torch.exp(low + (high - low) * torch.rand(x.shape, generator=generator, dtype=torch.float64))
    wide = differentiable(x, dt, A, B, C, D, state)
    narrow = [t.detach().float().requires_grad_() for t in wide]
    weights = draw(*x.shape, generator=generator), draw(*state.shape, generator=generator)
    results = []
    for inputs in (wide, narrow):
        outputs = selective_scan(*inputs)
        loss = sum((o * w.to(o)).sum() for o, w in zip(outputs, weights, strict=True))
        results.append([*outputs, *torch.autograd.grad(loss, inputs)])
    for exact, rounded in zip(*results, strict=True):
        assert rounded.dtype == torch.float32
        assert rounded.isfinite().all()
        assert (rounded.double() - exact).norm() <= tolerance(torch.float32)["rtol"] * exact.norm()


def test_selective_scan_accumulates_bfloat16_in_float32(generator: torch.Generator) -> None:
    *narrow, state = (t.bfloat16() for t in scan_inputs(generator, 300))
    narrow.append(state.float())
    y, final = selective_scan(*narrow)
    assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    exact_y, exact_final = selective_scan(*(t.double() for t in narrow))
    assert_close(final, exact_final)
    assert_close(y, exact_y)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 1, 0)])
def test_selective_scan_takes_any_memory_layout(order: tuple[int, int, int], generator: torch.Generator) -> None:
    def relayed(t: Tensor) -> Tensor:
        inverse = [order.index(axis) for axis in range(3)]
        return t.permute(order).contiguous().permute(inverse)

    x, dt, A, B, C, D, state = scan_inputs(generator, 9)
    expected = selective_scan(x, dt, A, B, C, D, state)
    inputs = differentiable(relayed(x), relayed(dt), A, relayed(B), relayed(C), D, relayed(state))
    for actual, target in zip(selective_scan(*inputs), expected, strict=True):
        assert_close(actual, target)
        assert actual.is_contiguous()
    assert gradcheck(selective_scan, inputs, fast_mode=True)


# Linear attention.


def linear_attention(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return dplr(q, k, v, None, None, None, state)


@pytest.mark.parametrize("value_heads", [1, 3])
@LENGTHS
def test_linear_attention_is_the_sum_over_the_past(seq_len: int, value_heads: int, generator: torch.Generator) -> None:
    q, k = (draw(2, 3, seq_len, 4, generator=generator) for _ in range(2))
    v = draw(2, value_heads, seq_len, 5, generator=generator)
    state = draw(2, 3, 4, 5, generator=generator)
    y, final = linear_attention(q, k, v, state)
    outer, expected = state.clone(), []
    for t in range(seq_len):
        outer = outer + k[:, :, t, :, None] * v[:, :, t, None, :]
        expected.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], outer))
    assert_close(y, torch.stack(expected, dim=2))
    assert_close(final, outer)


@pytest.mark.parametrize("seq_len", [1, 7, 63, 130])  # 130: more than one chunk, the last of them short
def test_linear_attention_gradients(seq_len: int, generator: torch.Generator) -> None:
    q, k = (draw(2, 2, seq_len, 3, generator=generator) for _ in range(2))
    v, state = draw(2, 2, seq_len, 2, generator=generator), draw(2, 2, 3, 2, generator=generator)
    assert gradcheck(linear_attention, differentiable(q, k, v, state), fast_mode=seq_len > 7)


def test_linear_attention_computes_in_the_type_of_its_state_under_autocast(generator: torch.Generator) -> None:
    q, k, v = (draw(1, 2, 200, 4, generator=generator).bfloat16() for _ in range(3))
    state = torch.zeros(1, 2, 4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, final = linear_attention(q, k, v, state)
    expected = linear_attention(q, k, v, state.double())
    for actual, target in zip((y, final), expected, strict=True):
        assert actual.dtype == torch.float32
        assert_close(actual, target.float())


# Linear RNN.


def test_linear_rnn_computes_in_the_type_of_its_state_under_autocast(generator: torch.Generator) -> None:
    u = draw(2, 100, 6, generator=generator).bfloat16()
    recurrent = (0.99 * torch.linalg.qr(draw(6, 6, generator=generator))[0]).float()
    h = torch.zeros(2, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states, last = linear_rnn(u, recurrent, h)
    expected = linear_rnn(u, recurrent, h.double())
    for actual, target in zip((states, last), expected, strict=True):
        assert actual.dtype == torch.float32
        assert_close(actual, target.float())


# Devices without float64.


def test_the_widest_type_is_float64_where_there_is_one() -> None:
    assert widest(torch.device("cpu")) == widest(torch.device("cuda")) == torch.float64
    assert widest(torch.device("mps")) == torch.float32


def test_angles_keep_their_digits_without_float64(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    increments = (600 + draw(1, 1, 1000, 3, generator=generator)).float()
    start = torch.zeros(1, 1, 3)
    expected = trapezoid.advance_angles(increments, start)
    monkeypatch.setattr(trapezoid, "widest", lambda device: torch.float32)
    actual = trapezoid.advance_angles(increments, start)
    assert (torch.polar(torch.ones(()), actual) - torch.polar(torch.ones(()), expected)).abs().max() < 1e-3


# Diagonal recurrence.


def decays(kind: torch.dtype, generator: torch.Generator) -> Tensor:
    """Logarithms of decays between .4 and .9999, real or turning."""
    rate = -torch.logspace(-4, 0, 5, dtype=torch.float64)
    return torch.complex(rate, 3 * draw(5, generator=generator)) if kind.is_complex else rate


@pytest.mark.parametrize("kind", [torch.float64, torch.complex128])
@LENGTHS
def test_diagonal_scan_is_the_recurrence(seq_len: int, kind: torch.dtype, generator: torch.Generator) -> None:
    log_decay = decays(kind, generator)
    u = torch.randn(2, seq_len, 5, generator=generator, dtype=kind)
    state = torch.randn(2, 5, generator=generator, dtype=kind)
    h, expected = state, []
    for t in range(seq_len):
        h = log_decay.exp() * h + u[:, t]
        expected.append(h)
    parts = torch.view_as_real if kind.is_complex else torch.clone
    assert_close(parts(diagonal_scan(u, log_decay, state)), parts(torch.stack(expected, dim=1)))


@pytest.mark.parametrize("kind", [torch.float64, torch.complex128])
@pytest.mark.parametrize("seq_len", [1, 7, 63])
def test_diagonal_scan_gradients(seq_len: int, kind: torch.dtype, generator: torch.Generator) -> None:
    u = torch.randn(2, seq_len, 5, generator=generator, dtype=kind)
    state = torch.randn(2, 5, generator=generator, dtype=kind)
    inputs = differentiable(u, decays(kind, generator), state)
    assert gradcheck(diagonal_scan, inputs, fast_mode=seq_len > 7)


def test_a_fast_decay_in_float32_neither_overflows_nor_loses_gradients() -> None:
    u, state = torch.ones(1, 200, 1), torch.ones(1, 1)
    log_decay = torch.tensor([-50.0], requires_grad=True)
    h = diagonal_scan(u, log_decay, state)
    assert_close(h, torch.ones(1, 200, 1))
    h.sum().backward()
    assert log_decay.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_order_hold_loses_nothing_for_small_steps(dtype: torch.dtype) -> None:
    """exp(z) - 1 by its series, in float64, where the difference itself would cancel."""
    A = torch.complex(torch.full((5,), -0.5, dtype=torch.float64), torch.full((5,), 3.0, dtype=torch.float64))
    dt = torch.tensor([1e-12, 1e-6, 1e-3, 0.1, 1.0], dtype=torch.float64)
    z = (dt * A).numpy()
    term, total = np.ones_like(z), np.zeros_like(z)
    for n in range(1, 40):
        term = term * z / n
        total = total + term
    log_decay, gain = zero_order_hold(A.to(dtype.to_complex()), dt.to(dtype))
    for actual, expected in ((log_decay, z), (gain, total / A.numpy())):
        error = np.abs(actual.numpy() - expected) / np.abs(expected)
        assert error.max() < tolerance(dtype)["rtol"]


def test_ring_gain_keeps_unit_variance() -> None:
    """The variance of h_t = lambda h_{t-1} + gain u_t under white u is gain^2 / (1 - |lambda|^2) = 1."""
    log_decay = torch.tensor([-1e-9 + 1j, -1e-3 - 2j, -0.5 + 0j], dtype=torch.complex128)
    magnitude = log_decay.real.exp()
    assert_close(ring_gain(log_decay)[1:] ** 2 / (1 - magnitude[1:] ** 2), np.ones(2))
    assert_close(ring_gain(log_decay)[:1], np.sqrt([2e-9]) * (1 - 0.5e-9))  # where 1 - |lambda|^2 would cancel


# Causal convolution.


@pytest.mark.parametrize("width", [1, 2, 4])
@LENGTHS
def test_causal_conv_is_the_reference(seq_len: int, width: int, generator: torch.Generator) -> None:
    x, tail = draw(2, seq_len, 3, generator=generator), draw(2, width - 1, 3, generator=generator)
    weight, bias = draw(3, width, generator=generator), draw(3, generator=generator)
    window = torch.cat((tail, x), dim=1)
    y, new_tail = causal_conv(x, weight, bias, tail)
    whole = rows(lambda row: reference.short_conv(row, weight.numpy(), bias.numpy()), window)
    assert_close(y, whole[:, width - 1 :])
    assert_close(new_tail, window[:, seq_len:])


def test_causal_conv_gradients(generator: torch.Generator) -> None:
    x, tail = draw(2, 7, 3, generator=generator), draw(2, 3, 3, generator=generator)
    inputs = differentiable(x, draw(3, 4, generator=generator), draw(3, generator=generator), tail)
    assert gradcheck(causal_conv, inputs)
    lengths = torch.tensor([7, 2])
    assert gradcheck(lambda *a: causal_conv(*a, lengths)[1], inputs)


# Softmax attention.


def attend_by_loops(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    cached: list[int],
    bias: np.ndarray | None = None,
    sink: np.ndarray | None = None,
) -> np.ndarray:
    """One softmax a row, head and query, over the slots that it may see."""
    batch, n_heads, seq_len, d_head = q.shape
    past, group = k.shape[2] - seq_len, n_heads // k.shape[1]
    y = np.zeros(q.shape)
    for b in range(batch):
        for h in range(n_heads):
            for i in range(seq_len):
                seen = slice(past - cached[b], past + i + 1)
                logits = k[b, h // group, seen] @ q[b, h, i] / np.sqrt(d_head)
                if bias is not None:
                    logits = logits + bias[h, i, seen]
                top = logits.max() if sink is None else max(logits.max(), sink[b, h, i])
                weights = np.exp(logits - top)
                total = weights.sum() + (0.0 if sink is None else np.exp(sink[b, h, i] - top))
                y[b, h, i] = weights @ v[b, h // group, seen] / total
    return y


@pytest.mark.parametrize("with_sink", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("seq_len", "past", "cached"),
    [
        (1, 0, [0, 0]),
        (2, 0, [0, 0]),
        (7, 0, [0, 0]),
        (63, 0, [0, 0]),
        (1, 5, [5, 2]),
        (7, 4, [0, 3]),
        slow(1000, 0, [0, 0]),
    ],
)
def test_attend_is_the_softmax_over_what_is_seen(
    seq_len: int, past: int, cached: list[int], with_bias: bool, with_sink: bool, generator: torch.Generator
) -> None:
    q = draw(2, 4, seq_len, 3, generator=generator)
    k, v = (draw(2, 2, past + seq_len, 3, generator=generator) for _ in range(2))
    bias = draw(4, seq_len, past + seq_len, generator=generator) if with_bias else None
    sink = draw(2, 4, seq_len, generator=generator) if with_sink else None
    expected = attend_by_loops(
        q.numpy(), k.numpy(), v.numpy(), cached, *(None if t is None else t.numpy() for t in (bias, sink))
    )
    assert_close(attend(q, k, v, torch.tensor(cached), bias, sink), expected)


def test_a_sink_may_be_shared_by_rows_and_queries(generator: torch.Generator) -> None:
    q, k, v = (draw(2, 4, 5, 3, generator=generator) for _ in range(3))
    sink, cached = draw(1, 4, 1, generator=generator), torch.zeros(2, dtype=torch.int64)
    assert_close(attend(q, k, v, cached, sink=sink), attend(q, k, v, cached, sink=sink.expand(2, 4, 5)))


def test_attend_gradients(generator: torch.Generator) -> None:
    q = draw(2, 4, 3, 2, generator=generator)
    k, v = (draw(2, 2, 5, 2, generator=generator) for _ in range(2))
    bias, sink = draw(4, 3, 5, generator=generator), draw(2, 4, 3, generator=generator)
    cached = torch.tensor([2, 1])
    assert gradcheck(lambda q, k, v, b, s: attend(q, k, v, cached, b, s), differentiable(q, k, v, bias, sink))
    assert gradcheck(lambda q, k, v: attend(q, k, v, cached), differentiable(q, k, v))
    whole = [draw(1, 2, 4, 2, generator=generator) for _ in range(3)]
    assert gradcheck(lambda q, k, v: attend(q, k, v, cached[:1]), differentiable(*whole))


def test_rotation_is_the_reference_and_sees_only_lags(generator: torch.Generator) -> None:
    q, k = (draw(2, 3, 9, 6, generator=generator) for _ in range(2))
    positions = torch.stack((torch.arange(9), torch.arange(9) + 1000))
    turned = rotate(q, positions)
    for b in range(2):
        for h in range(3):
            for i in range(9):
                assert_close(turned[b, h, i], reference.rotate(q[b, h, i].numpy(), int(positions[b, i])))
    near, far = (rotate(q, positions + s) @ rotate(k, positions + s).transpose(-1, -2) for s in (0, 12_345))
    assert_close(far, near)


def test_lag_matrix_counts_from_the_right() -> None:
    expected = [[3, 2, 1, 0, -1], [4, 3, 2, 1, 0]]
    assert lag_matrix(2, 5, torch.device("cpu")).tolist() == expected


# Toeplitz mixing.


@pytest.mark.parametrize("past", [0, 3])
@LENGTHS
def test_toeplitz_mix_is_a_sum_over_lags(seq_len: int, past: int, generator: torch.Generator) -> None:
    x, coefficients = draw(2, past + seq_len, 3, generator=generator), draw(4, 1024, generator=generator)
    y = toeplitz_mix(coefficients, x, seq_len)
    expected = np.zeros((4, 2, seq_len, 3))
    for i in range(seq_len):
        seen = past + i + 1
        by_lag = coefficients[:, :seen].flip(1).numpy()  # the newest slot has lag 0
        expected[:, :, i] = np.einsum("hj,bjd->hbd", by_lag, x[:, :seen].numpy())
    assert_close(y, expected)


def test_toeplitz_mix_gradients(generator: torch.Generator) -> None:
    inputs = differentiable(draw(2, 9, generator=generator), draw(2, 7, 3, generator=generator))
    assert gradcheck(lambda a, x: toeplitz_mix(a, x, 5), inputs)


# Long short-term memory.


@LENGTHS
def test_lstm_scan_is_the_reference(seq_len: int, generator: torch.Generator) -> None:
    u, recurrent = draw(2, seq_len, 12, generator=generator), draw(12, 3, generator=generator)
    zero = torch.zeros(2, 3, dtype=torch.float64)
    eye = {"in_proj.weight": np.eye(12), "bias": np.zeros(12), "out_proj.weight": np.eye(3)}
    y, h, _ = lstm_scan(u, recurrent, zero, zero)
    assert_close(y, rows(lambda row: reference.lstm(eye | {"recurrent": recurrent.numpy()}, row), u))
    assert torch.equal(h, y[:, -1])


def test_lstm_scan_stands_still_where_nothing_is_valid(generator: torch.Generator) -> None:
    u, recurrent = draw(1, 6, 12, generator=generator), draw(12, 3, generator=generator)
    h, c = draw(1, 3, generator=generator), draw(1, 3, generator=generator)
    valid = torch.tensor([[True, False, True, False, False, True]])
    y, *last = lstm_scan(u, recurrent, h, c, valid)
    expected, *expected_last = lstm_scan(u[:, valid[0]], recurrent, h, c)
    assert_close(y[:, valid[0]], expected)
    assert_close(last, expected_last)


def test_lstm_scan_gradients(generator: torch.Generator) -> None:
    u, recurrent = draw(2, 5, 8, generator=generator), draw(8, 2, generator=generator)
    h, c = draw(2, 2, generator=generator), draw(2, 2, generator=generator)
    assert gradcheck(lstm_scan, differentiable(u, recurrent, h, c))
    valid = torch.tensor([[True, False, True, True, False], [False, False, True, False, True]])
    assert gradcheck(lambda *a: lstm_scan(*a, valid), differentiable(u, recurrent, h, c))


# Long convolution and sliding attention.


@pytest.mark.parametrize(
    ("slots", "seq_len"),
    [(1, 1), (7, 7), (7, 2), (64, 64), (200, 1), (200, 64), (200, 129), slow(300, 300)],
)
def test_long_conv_is_the_double_sum(slots: int, seq_len: int, generator: torch.Generator) -> None:
    x, kernel = draw(2, slots, 3, generator=generator), draw(3, slots, generator=generator)
    expected = np.zeros((2, slots, 3))
    for i in range(slots):
        for j in range(i + 1):
            expected[:, i] += kernel[:, i - j].numpy() * x[:, j].numpy()
    assert_close(long_conv(x, kernel, seq_len), expected[:, slots - seq_len :])


def test_long_conv_gradients(generator: torch.Generator) -> None:
    inputs = differentiable(draw(2, 5, 2, generator=generator), draw(2, 5, generator=generator))
    assert gradcheck(lambda x, kernel: long_conv(x, kernel, 3), inputs)


@pytest.mark.parametrize("window", [1, 2, 5, 16, 20])
@pytest.mark.parametrize("seq_len", [1, 5, 16, 33, 50])
def test_sliding_attention_is_the_band_of_attention(window: int, seq_len: int, generator: torch.Generator) -> None:
    """Whatever the blocks; the cache of a row that has seen less than the window starts with slots nobody filled."""
    past = window - 1
    q = draw(2, 4, seq_len, 3, generator=generator)
    k, v = (draw(2, 2, past + seq_len, 3, generator=generator) for _ in range(2))
    held, slopes = torch.tensor([past, past // 2]), draw(4, generator=generator)
    lag = lag_matrix(seq_len, past + seq_len, q.device)
    band = torch.where(lag < window, -slopes.view(-1, 1, 1) * lag, -torch.inf)
    assert_close(sliding_attend(q, k, v, held, slopes), attend(q, k, v, held, band))
    assert_close(sliding_attend(q, k, v, held), attend(q, k, v, held, band.where(band.isinf(), 0.0)))


# Norms and nonlinearities.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tanhc_is_exact_near_and_far_from_zero(dtype: torch.dtype) -> None:
    magnitude = torch.logspace(-30, 1.5, 400, dtype=torch.float64)
    u = torch.cat((-magnitude, magnitude)).to(dtype).requires_grad_()
    wide = u.detach().double().numpy()
    assert_close(tanhc(u), np.tanh(wide) / wide)
    (slope,) = torch.autograd.grad(tanhc(u).sum(), u)
    # d/du tanh(u)/u = (u / cosh(u)^2 - tanh(u)) / u^2, which cancels near zero: there its series -2u/3 + 8u^3/15
    near = np.abs(wide) < 1e-2
    series = -2 * wide / 3 + 8 * wide**3 / 15 - 34 * wide**5 / 105
    away = np.where(near, 1.0, wide)
    assert_close(slope, np.where(near, series, (away / np.cosh(away) ** 2 - np.tanh(away)) / away**2))


def test_tanhc_at_zero_has_value_one_slope_zero_and_its_curvature() -> None:
    u = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(tanhc(u), u, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, u)
    assert tanhc(u).item() == 1
    assert slope.item() == 0
    assert_close(curvature, np.array([-2 / 3]))


def test_heavy_tail_is_positive_and_smooth_at_zero() -> None:
    u = torch.tensor([-1e6, -3.0, -0.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert_close(heavy_tail(u), reference.heavy_tail(u.detach().numpy()))
    (slope,) = torch.autograd.grad(heavy_tail(u).sum(), u)
    assert_close(slope, np.array([1 / (1 + 1e6) ** 2, 1 / 16, 1.0, 1.0, 1.0]))


def test_nonlinearities_are_their_definitions(generator: torch.Generator) -> None:
    u, v = (5 * draw(50, generator=generator) for _ in range(2))
    assert_close(silu(u), reference.silu(u.numpy()))
    assert_close(silu_gate(u, v), reference.silu(u.numpy()) * v.numpy())
    assert_close(tanh(u), np.tanh(u.numpy()))
    for function in (silu, tanh, tanhc):
        assert gradcheck(function, differentiable(u))
    assert gradcheck(silu_gate, differentiable(u, v))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rms_norm_is_its_definition_at_any_scale(scale: float, generator: torch.Generator) -> None:
    x, weight = scale * draw(2, 5, 6, generator=generator), draw(6, generator=generator)
    assert_close(rms_norm(x, weight), reference.rms_norm(x.numpy(), weight.numpy()))


def test_rms_norm_gradients(generator: torch.Generator) -> None:
    assert gradcheck(rms_norm, differentiable(draw(2, 3, 4, generator=generator), draw(4, generator=generator)))


# Ragged batches.


def test_rows_align_to_the_right() -> None:
    x = torch.arange(1, 9).view(2, 4)
    assert right_align(x, torch.tensor([2, 0])).tolist() == [[0, 0, 1, 2], [0, 0, 0, 0]]
    assert right_align(x.unsqueeze(-1), torch.tensor([4, 3]))[..., 0].tolist() == [[1, 2, 3, 4], [0, 5, 6, 7]]


def test_valid_positions_stand_at_the_left() -> None:
    assert valid_positions(torch.tensor([0, 2, 3]), 3).int().tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 1]]
