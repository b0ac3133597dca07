"""The chunked recurrences against plain loops over time, across many chunks: values, states, gradients, float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from tests.cases import draw
from tests.tolerances import assert_close, tolerance
from zoo import create_mixer
from zoo.ops.channel_ssm import channel_ssm
from zoo.ops.chunked import decayed_states, into_chunks, segment_sums
from zoo.ops.delta_rule import delta_rule, unit_length
from zoo.ops.dplr import dplr
from zoo.ops.linear_recurrence import linear_recurrence
from zoo.ops.mlstm import mlstm, running_maximum
from zoo.ops.ssd import ssd
from zoo.ops.step_size import draw_step_bias
from zoo.ops.trapezoid import advance_angles, rotate_pairs, trapezoidal_ssd

LENGTHS = pytest.mark.parametrize("seq_len", [1, 2, 7, 63, 64, 65, 300])
HEADS, D_KEY, D_VALUE = 2, 3, 4

Recurrence = Callable[..., tuple[Tensor, Tensor]]


def attention_inputs(generator: torch.Generator, seq_len: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and a state."""
    q, k = (draw(2, HEADS, seq_len, D_KEY, generator=generator) for _ in range(2))
    v = draw(2, HEADS, seq_len, D_VALUE, generator=generator)
    return q, k, v, draw(2, HEADS, D_KEY, D_VALUE, generator=generator)


def log_decays(generator: torch.Generator, *shape: int) -> Tensor:
    """From hardly any decay to one that clears the state: e^-6 to e^4."""
    return -torch.exp(5 * draw(*shape, generator=generator).tanh() - 1)


def ssd_inputs(generator: torch.Generator, seq_len: int) -> tuple[Tensor, ...]:
    q, k, v, state = attention_inputs(generator, seq_len)
    return q[:, :1], k[:, :1], v, log_decays(generator, 2, HEADS, seq_len), state


def gated_inputs(generator: torch.Generator, seq_len: int) -> tuple[Tensor, ...]:
    q, k, v, state = attention_inputs(generator, seq_len)
    return q, k, v, log_decays(generator, 2, HEADS, seq_len, D_KEY), state


def delta_inputs(generator: torch.Generator, seq_len: int) -> tuple[Tensor, ...]:
    q, k, v, state = attention_inputs(generator, seq_len)
    beta = 2 * torch.sigmoid(2 * draw(2, HEADS, seq_len, generator=generator))
    return q, unit_length(k), v, beta, log_decays(generator, 2, HEADS, seq_len), state


def loop(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, p: Tensor | None, r: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """S_t = (I - p r^T) diag(exp(log_decay)) S_{t-1} + k v^T, y_t = S_t^T q_t; no erasure without p and r."""
    outputs = []
    for t in range(q.shape[2]):
        state = log_decay[:, :, t, :, None].exp() * state
        if p is not None and r is not None:
            state = state - p[:, :, t, :, None] @ (r[:, :, t, None, :] @ state)
        state = state + k[:, :, t, :, None] @ v[:, :, t, None, :]
        outputs.append((q[:, :, t, None, :] @ state).squeeze(2))
    return torch.stack(outputs, dim=2), state


def ssd_loop(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    q, k = (t.expand(-1, HEADS, -1, -1) for t in (q, k))
    return loop(q, k, v, log_decay.unsqueeze(3), None, None, state)


def gated_loop(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return loop(q, k, v, log_decay, None, None, state)


def delta_loop(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    written = beta.unsqueeze(3) * k
    return loop(q, written, v, log_decay.unsqueeze(3), written, k, state)


def gated_linear_attention(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return dplr(q, k, v, log_decay, None, None, state)


def erasing_inputs(generator: torch.Generator, seq_len: int, columns: int) -> tuple[Tensor, ...]:
    """q, k, v, log_decay with so many columns, p and r of a stable recurrence, and a state."""
    q, k, v, state = attention_inputs(generator, seq_len)
    p = unit_length(draw(2, HEADS, seq_len, D_KEY, generator=generator))
    r = 2 * torch.sigmoid(2 * draw(2, HEADS, seq_len, 1, generator=generator)) * p
    return q, k, v, log_decays(generator, 2, HEADS, seq_len, columns), p, r, state


def gated_delta_inputs(generator: torch.Generator, seq_len: int) -> tuple[Tensor, ...]:
    """What is erased is what is written: q, k, v, log_decay per channel, r, state."""
    q, _, v, log_decay, p, r, state = erasing_inputs(generator, seq_len, D_KEY)
    return q, p, v, log_decay, r, state


def gated_delta(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, r: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return dplr(q, k, v, log_decay, k, r, state)


def gated_delta_loop(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, r: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    return loop(q, k, v, log_decay, k, r, state)


RECURRENCES: dict[str, tuple[Recurrence, Recurrence, Callable[..., tuple[Tensor, ...]]]] = {
    "ssd": (ssd, ssd_loop, ssd_inputs),
    "gated_linear_attention": (gated_linear_attention, gated_loop, gated_inputs),
    "delta_rule": (delta_rule, delta_loop, delta_inputs),
    "dplr, a decay per channel": (dplr, loop, lambda g, seq_len: erasing_inputs(g, seq_len, D_KEY)),
    "dplr, one decay": (dplr, loop, lambda g, seq_len: erasing_inputs(g, seq_len, 1)),
    "dplr, erased as written": (gated_delta, gated_delta_loop, gated_delta_inputs),
}
EACH = pytest.mark.parametrize("name", RECURRENCES)


@LENGTHS
@EACH
def test_chunks_are_the_loop(name: str, seq_len: int, generator: torch.Generator) -> None:
    op, plain, inputs = RECURRENCES[name]
    given = inputs(generator, seq_len)
    assert_close(op(*given), plain(*given))


@pytest.mark.parametrize("seq_len", [1, 5, 70])  # 70: more than one chunk
@EACH
def test_gradients(name: str, seq_len: int, generator: torch.Generator) -> None:
    op, _, inputs = RECURRENCES[name]
    given = [t.detach().requires_grad_() for t in inputs(generator, seq_len)]
    assert gradcheck(op, given, fast_mode=True)


@pytest.mark.slow
@EACH
def test_second_derivatives(name: str, generator: torch.Generator) -> None:
    op, _, inputs = RECURRENCES[name]
    given = [t.detach().requires_grad_() for t in inputs(generator, 40)]
    assert gradgradcheck(op, given, fast_mode=True)


@pytest.mark.slow
@EACH
def test_float32_loses_nothing_to_decays_of_all_sizes(name: str, generator: torch.Generator) -> None:
    """Steps that clear the state stand beside steps that hardly change it: sums before them must not cost digits."""
    op, plain, inputs = RECURRENCES[name]
    wide = [t.detach().requires_grad_() for t in inputs(generator, 300)]
    narrow = [t.detach().float().requires_grad_() for t in wide]
    results = []
    for function, given in ((plain, wide), (op, narrow)):
        outputs = function(*given)
        loss = sum(o.square().sum() for o in outputs)
        results.append([*outputs, *torch.autograd.grad(loss, given)])
    for exact, rounded in zip(*results, strict=True):
        assert rounded.dtype == torch.float32
        assert (rounded.double() - exact).norm() <= tolerance(torch.float32)["rtol"] * exact.norm()


@EACH
def test_a_decay_that_clears_everything_is_no_nan(name: str, generator: torch.Generator) -> None:
    op, _, inputs = RECURRENCES[name]
    given = list(inputs(generator, 70))
    place = next(n for n, t in enumerate(given) if (t < 0).all())
    given[place] = torch.full_like(given[place], -1e4)
    given = [t.detach().requires_grad_() for t in given]
    y, state = op(*given)
    gradients = torch.autograd.grad(y.sum() + state.sum(), given)
    assert all(t.isfinite().all() for t in (y, state, *gradients))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_logarithm_of_minus_infinity_clears_the_state(dtype: torch.dtype, generator: torch.Generator) -> None:
    for op, inputs in ((ssd, ssd_inputs), (gated_linear_attention, gated_inputs), (delta_rule, delta_inputs)):
        given = [t.to(dtype) for t in inputs(generator, 70)]
        place = next(n for n, t in enumerate(given) if (t < 0).all())
        given[place][:, :, 40] = -torch.inf
        from_there = [t[:, :, 40:] if t.shape[2] == 70 else torch.zeros_like(t) for t in given]
        for actual, expected in zip(op(*given), op(*from_there), strict=True):
            assert_close(actual[:, :, -30:], expected[:, :, -30:])


# The state between chunks.


@pytest.mark.parametrize("kind", [torch.float64, torch.complex128])
def test_the_state_between_chunks_differentiates_twice(kind: torch.dtype, generator: torch.Generator) -> None:
    shapes = ((1, 2, 2, 2), (1, 1, 3, 2, 1), (1, 2, 3, 2, 2))  # state, decay shared by heads and values, written
    given = [torch.randn(shape, generator=generator, dtype=kind, requires_grad=True) for shape in shapes]
    assert gradcheck(decayed_states, given)
    assert gradgradcheck(decayed_states, given)
    _, final = decayed_states(*given)
    state, decay, written = (t.detach() for t in given)
    for c in range(3):
        state = decay[:, :, c] * state + written[:, :, c]
    assert_close((final.detach() - state).abs(), torch.zeros(state.shape))


# Scalar decay, several rows a step.


@pytest.mark.parametrize("seq_len", [1, 9, 150])
def test_ssd_with_several_rows_a_step_is_the_loop(seq_len: int, generator: torch.Generator) -> None:
    rank = 3
    q, k, v, state = attention_inputs(generator, seq_len * rank)
    log_decay = log_decays(generator, 2, HEADS, seq_len)
    y, final = ssd(q, k, v, log_decay, state)
    outputs = []
    for t in range(seq_len):
        rows = slice(t * rank, (t + 1) * rank)
        state = log_decay[:, :, t, None, None].exp() * state + k[:, :, rows].transpose(2, 3) @ v[:, :, rows]
        outputs.append(q[:, :, rows] @ state)
    assert_close(y, torch.cat(outputs, dim=2))
    assert_close(final, state)


def test_segment_sums_are_sums_of_segments(generator: torch.Generator) -> None:
    t = draw(2, 6, generator=generator)
    sums = segment_sums(t)
    for i in range(6):
        for j in range(6):
            expected = t[:, j + 1 : i + 1].sum(1) if j <= i else torch.full((2,), -torch.inf, dtype=t.dtype)
            assert_close(sums[:, i, j], expected)


def test_segment_sums_do_not_remember_what_went_before() -> None:
    assert segment_sums(torch.tensor([1e8, 1e8, 0.25, 0.5]))[3, 1] == 0.75


def test_chunks_hold_the_sequence_and_zeros(generator: torch.Generator) -> None:
    t = draw(1, 1, 7, 2, generator=generator)
    chunks = into_chunks(t, 4)
    assert chunks.shape == (1, 1, 2, 4, 2)
    assert torch.equal(chunks.flatten(2, 3)[:, :, :7], t)
    assert not chunks[:, :, 1, 3].any()


# The delta rule.


def test_without_decay_the_delta_rule_is_the_one_with_decay_one(generator: torch.Generator) -> None:
    q, k, v, beta, log_decay, state = delta_inputs(generator, 70)
    expected = delta_rule(q, k, v, beta, torch.zeros_like(log_decay), state)
    assert_close(delta_rule(q, k, v, beta, None, state), expected)


def test_a_beta_of_one_replaces_what_stands_under_the_key(generator: torch.Generator) -> None:
    _, k, v, state = attention_inputs(generator, 40)
    k = F.normalize(k, dim=3)
    y, _ = delta_rule(k, k, v, torch.ones_like(k[..., 0]), None, state)
    assert_close(y, v)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_beta_of_two_reflects_for_a_thousand_steps(dtype: torch.dtype, generator: torch.Generator) -> None:
    """Eigenvalue -1: the sign of the state counts its steps modulo two, and products of reflections keep lengths."""
    seq_len = 1000
    key = torch.eye(D_KEY, dtype=dtype)[1].expand(1, 1, seq_len, D_KEY)
    state = key[:, :, :1].transpose(2, 3)
    y, _ = delta_rule(key, key, torch.zeros_like(key[..., :1]), torch.full_like(key[..., 0], 2.0), None, state)
    assert_close(y.flatten(), torch.tensor([-1.0, 1.0], dtype=dtype).repeat(seq_len // 2))
    keys = F.normalize(draw(1, 1, seq_len, D_KEY, generator=generator, dtype=dtype), dim=3)
    beta, nothing = torch.full_like(keys[..., 0], 2.0), torch.zeros_like(keys[..., :1])
    _, final = delta_rule(keys, keys, nothing, beta, None, state)
    assert_close(final.norm(), state.norm())


# The whole family.


@pytest.mark.parametrize("columns", [1, D_KEY])
def test_chunks_of_any_length_are_the_whole(columns: int, generator: torch.Generator) -> None:
    *given, state = erasing_inputs(generator, 100, columns)
    expected, final = dplr(*given, state)
    outputs = []
    for chunk in zip(*(t.split((1, 1, 33, 2, 63), dim=2) for t in given), strict=True):
        y, state = dplr(*chunk, state)
        outputs.append(y)
    assert_close(torch.cat(outputs, dim=2), expected)
    assert_close(state, final)


@pytest.mark.parametrize("columns", [1, D_KEY])
def test_a_key_that_repeats_costs_no_digits(columns: int, generator: torch.Generator) -> None:
    """float32 against float64 over 4,096 positions that erase and write under one key, with strengths from 0 to 2."""
    q, k, v, log_decay, p, r, state = (t.float() for t in erasing_inputs(generator, 4096, columns))
    k = F.normalize(k[:, :, :1], dim=3).expand_as(k)
    strength = (p * r).sum(3, keepdim=True)
    given = (q, k, v, 1e-2 * log_decay, k, strength * k, state)
    for narrow, wide in zip(dplr(*given), loop(*(t.double() for t in given)), strict=True):
        assert (narrow.double() - wide).norm() <= 1e-6 * wide.norm()


def test_p_and_r_belong_together(generator: torch.Generator) -> None:
    q, k, v, log_decay, p, _, state = erasing_inputs(generator, 3, 1)
    with pytest.raises(ValueError, match="give both"):
        dplr(q, k, v, log_decay, p, None, state)


# Channels by themselves.


@LENGTHS
def test_channel_ssm_is_the_loop(seq_len: int, generator: torch.Generator) -> None:
    channels, d_state = 3, 2
    x = draw(2, seq_len, channels, generator=generator)
    rate, frequency = draw(channels, d_state, generator=generator).exp(), draw(channels, d_state, generator=generator)
    log_decay = torch.complex(-rate, frequency)
    gain, C = (torch.view_as_complex(draw(channels, d_state, 2, generator=generator)) for _ in range(2))
    state = torch.view_as_complex(draw(2, channels, d_state, 2, generator=generator))
    lengths = torch.tensor([seq_len // 2, seq_len])
    y, final = channel_ssm(x, log_decay, gain, C, state)
    _, ragged = channel_ssm(
        x.masked_fill(torch.arange(seq_len).unsqueeze(1) >= lengths.view(2, 1, 1), 0.0),
        log_decay,
        gain,
        C,
        state,
        lengths,
    )
    h, states = state, [state]
    for t in range(seq_len):
        h = log_decay.exp() * h + gain * x[:, t, :, None]
        states.append(h)
        assert_close(y[:, t], (C * h).sum(2).real)
    for actual, expected in ((final, h), (ragged, torch.stack([states[int(n)][row] for row, n in enumerate(lengths)]))):
        assert_close(torch.view_as_real(actual), torch.view_as_real(expected))


# Mamba-3.


@LENGTHS
def test_trapezoid_is_the_loop(seq_len: int, generator: torch.Generator) -> None:
    rank = 2
    q = draw(2, HEADS, seq_len, rank, D_KEY, generator=generator)
    k = draw(2, HEADS, seq_len + 1, rank, D_KEY, generator=generator)
    v = draw(2, HEADS, seq_len + 1, rank, D_VALUE, generator=generator)
    log_decay = log_decays(generator, 2, HEADS, seq_len)
    before, now = (draw(2, HEADS, seq_len, generator=generator).sigmoid() for _ in range(2))
    state = draw(2, HEADS, D_KEY, D_VALUE, generator=generator)
    y, final = trapezoidal_ssd(q, k, v, log_decay, before, now, state)
    written = k.transpose(3, 4) @ v
    for t in range(seq_len):
        a, past, present = (s[:, :, t, None, None] for s in (log_decay.exp(), before, now))
        state = a * (state + past * written[:, :, t]) + present * written[:, :, t + 1]
        assert_close(y[:, :, t], q[:, :, t] @ state)
    assert_close(final, state)


@pytest.mark.parametrize("step", [3.0, 40.0, -600.0])  # less than half a turn, and many turns
def test_angles_keep_their_digits_over_many_turns(step: float) -> None:
    steps = torch.full((1, 1, 100_000, 1), step)
    angles = advance_angles(steps, torch.full((1, 1, 1), 1.0))
    assert angles.dtype == torch.float32
    exact = np.remainder(1.0 + step * np.arange(1, 100_001), 2 * np.pi)
    assert_close(angles.flatten().cos(), np.cos(exact))
    assert 0 <= angles.min() <= angles.max() <= 2 * np.pi


def test_a_rotation_keeps_lengths_and_the_channels_beyond_its_angles(generator: torch.Generator) -> None:
    t, angles = draw(1, 2, 5, 3, 7, generator=generator), draw(1, 2, 5, 2, generator=generator)
    turned = rotate_pairs(t, angles)
    assert torch.equal(turned[..., 4:], t[..., 4:])
    assert_close(turned.norm(dim=4), t.norm(dim=4))
    assert_close(rotate_pairs(turned, -angles), t)
    quarter = rotate_pairs(t, torch.full_like(angles, np.pi / 2))
    assert_close(quarter[..., :4], torch.cat((-t[..., 2:4], t[..., :2]), dim=-1))


# Step sizes.


def test_step_biases_are_log_uniform_after_softplus() -> None:
    dt = F.softplus(draw_step_bias(2000, 1e-3, 1e-1))
    assert 1e-3 * 0.999 <= dt.min() < 1.1e-3
    assert 0.09 < dt.max() <= 1e-1 * 1.001
    assert abs(float(dt.log10().mean()) + 2) < 0.05
    assert_close(F.softplus(draw_step_bias(3, 1e-6, 1e-6)), np.full(3, 1e-4))  # the floor


def elementwise_inputs(generator: torch.Generator, seq_len: int) -> tuple[Tensor, Tensor, Tensor]:
    """Decays from zero exactly to one exactly, what is written, and a state."""
    decay = (draw(2, seq_len, 3, generator=generator) + 0.5).clamp(0, 1)
    return decay, draw(2, seq_len, 3, generator=generator), draw(2, 3, generator=generator)


@LENGTHS
def test_the_elementwise_recurrence_is_the_loop(seq_len: int, generator: torch.Generator) -> None:
    given = [t.requires_grad_() for t in elementwise_inputs(generator, seq_len)]
    decay, written, h = given
    outputs = []
    for a, b in zip(decay.unbind(1), written.unbind(1), strict=True):
        h = a * h + b
        outputs.append(h)
    y, last = linear_recurrence(*given)
    assert_close(y, torch.stack(outputs, dim=1))
    assert_close(last, h)
    dy = draw(*y.shape, generator=generator)
    expected = torch.autograd.grad(torch.stack(outputs, dim=1), given, dy)
    assert_close(torch.autograd.grad(y, given, dy), expected)


def test_the_elementwise_recurrence_has_second_derivatives(generator: torch.Generator) -> None:
    given = [t.requires_grad_() for t in elementwise_inputs(generator, 5)]
    assert gradcheck(linear_recurrence, given)
    assert gradgradcheck(linear_recurrence, given)


def test_the_elementwise_recurrence_keeps_float32s_digits(generator: torch.Generator) -> None:
    decay, written, state = elementwise_inputs(generator, 4096)
    decay = 1 - 0.001 * decay
    exact, _ = linear_recurrence(decay, written, state)
    rounded, _ = linear_recurrence(decay.float(), written.float(), state.float())
    assert (rounded - exact).norm() < 1e-5 * exact.norm()


def test_a_decay_that_underflows_to_one_leaves_gradients_finite() -> None:
    mixer = create_mixer("rg_lru", 4)
    with torch.no_grad():
        mixer.gate_bias[1].fill_(-200.0)
    mixer(torch.ones(1, 5, 4)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())


def test_the_running_maximum_is_its_recurrence(generator: torch.Generator) -> None:
    log_input, log_forget = draw(2, 3, 37, generator=generator), -draw(2, 3, 37, generator=generator).abs()
    log_input[:, :, 5:9], log_forget[:, :, 5:9] = -torch.inf, 0.0  # as padding has it
    m = draw(2, 3, generator=generator)
    given = [t.requires_grad_() for t in (log_input, log_forget, m)]
    fast, slow = running_maximum(*given), []
    for t in range(37):
        m = torch.maximum(log_forget[:, :, t] + m, log_input[:, :, t])
        slow.append(m)
    assert_close(fast, torch.stack(slow, dim=2))
    dy = draw(2, 3, 37, generator=generator)
    expected = torch.autograd.grad(torch.stack(slow, dim=2), given, dy)
    assert_close(torch.autograd.grad(fast, given, dy), expected)


@pytest.mark.parametrize("size", [0.0, 300.0, -300.0])
def test_the_matrix_memory_keeps_input_gates_of_any_size_in_range(size: float, generator: torch.Generator) -> None:
    q, k = (draw(1, 2, 100, 4, generator=generator).abs() for _ in range(2))
    v, log_input = draw(1, 2, 100, 4, generator=generator), size + 5 * draw(1, 2, 100, generator=generator)
    given = (q, k, v, log_input, F.logsigmoid(draw(1, 2, 100, generator=generator)))
    empty = [torch.zeros(1, 2, *shape) for shape in ((4, 4), (4,), ())]
    exact = mlstm(*given, *(t.double() for t in empty))
    leaves = [t.float().requires_grad_() for t in given]
    rounded = mlstm(*leaves, *empty)
    for actual, expected in zip(rounded, exact, strict=True):
        assert (actual - expected).norm() < 1e-4 * expected.norm() + 1e-30  # exp(-300) is zero in float32
    rounded[0].sum().backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in leaves)
