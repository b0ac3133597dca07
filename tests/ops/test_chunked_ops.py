"""Chunked recurrences, in torch and as Triton kernels, against plain loops: values, states, gradients, precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from tests import slow
from tests.cases import D_MODEL, assert_states_close, draw
from tests.ops.test_ops import differentiable
from tests.tolerances import assert_close, tolerance
from zoo import create_mixer
from zoo.ops import transforms
from zoo.ops.carry import decayed_states, erased_states
from zoo.ops.chunked import segment_sums
from zoo.ops.delta_rule import delta_rule, unit_length
from zoo.ops.dplr import dplr
from zoo.ops.linear_recurrence import linear_recurrence
from zoo.ops.mlstm import mlstm
from zoo.ops.momentum import momentum_delta_rule
from zoo.ops.precision import rounded_type
from zoo.ops.ridge import ridge_queries
from zoo.ops.ssd import ssd
from zoo.ops.trapezoid import advance_angles

HEADS, D_KEY, D_VALUE = 2, 3, 4


def log_decays(generator: torch.Generator, *shape: int) -> Tensor:
    """Logarithms of decays from -e^4, which clears the state, to -e^-6, which hardly changes it."""
    return -torch.exp(5 * draw(*shape, generator=generator).tanh() - 1)


def inputs(generator: torch.Generator, seq_len: int, columns: int) -> dict[str, Tensor]:
    """Arguments of a stable recurrence for all ops; the decay has `columns` channels."""
    q, k = (draw(2, HEADS, seq_len, D_KEY, generator=generator) for _ in range(2))
    p = unit_length(draw(2, HEADS, seq_len, D_KEY, generator=generator))
    beta = 2 * torch.sigmoid(2 * draw(2, HEADS, seq_len, 1, generator=generator))
    return {
        "q": q,
        "k": k,
        "v": draw(2, HEADS, seq_len, D_VALUE, generator=generator),
        "log_decay": log_decays(generator, 2, HEADS, seq_len, columns),
        "p": p,
        "r": beta * p,
        "beta": beta,
        "state": draw(2, HEADS, D_KEY, D_VALUE, generator=generator),
    }


def loop(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, p: Tensor | None, r: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """S_t = (I - p r^T) diag(exp(log_decay)) S_{t-1} + k v^T, y_t = S_t^T q_t; p and r may be None."""
    outputs = []
    for t in range(q.shape[2]):
        state = log_decay[:, :, t, :, None].exp() * state
        if p is not None and r is not None:
            state = state - p[:, :, t, :, None] @ (r[:, :, t, None, :] @ state)
        state = state + k[:, :, t, :, None] @ v[:, :, t, None, :]
        outputs.append((q[:, :, t, None, :] @ state).squeeze(2))
    return torch.stack(outputs, dim=2), state


class Recurrence(NamedTuple):
    """An op, its loop, the channels of its decay (0: no such axis), and its arguments among `inputs`."""

    op: Callable[..., tuple[Tensor, Tensor]]
    loop: Callable[..., tuple[Tensor, Tensor]]
    columns: int
    arguments: str

    def draw(self, generator: torch.Generator, seq_len: int) -> list[Tensor]:
        given = inputs(generator, seq_len, self.columns)
        if self.op is ssd:  # heads share queries and keys
            given |= {name: given[name][:, :1] for name in ("q", "k")}
        if self.columns == 0:
            given["log_decay"] = log_decays(generator, 2, HEADS, seq_len)
        return [given[name] for name in self.arguments.split()]


def delta_loop(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor) -> Any:
    return loop(q, beta * k, v, log_decay.unsqueeze(3), beta * k, k, state)


def ssd_loop(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor) -> Any:
    q, k = (t.expand(-1, HEADS, -1, -1) for t in (q, k))
    return loop(q, k, v, log_decay.unsqueeze(3), None, None, state)


def momentum_op(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor) -> Any:
    rate, momentum = beta.squeeze(3) / 2, log_decay.flip(2) / 4
    y, *states = momentum_delta_rule(q, k, v, rate, log_decay, momentum, state, state.flip(2))
    return y, torch.cat(states, dim=2)


def momentum_loop(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor) -> Any:
    memory, momentum, lasting, outputs = state, state.flip(2), (log_decay.flip(2) / 4).exp(), []
    for t in range(q.shape[2]):
        error = v[:, :, t, None, :] - k[:, :, t, None, :] @ memory
        momentum = lasting[:, :, t, None, None] * momentum + beta[:, :, t, None] / 2 * k[:, :, t, :, None] @ error
        memory = log_decay[:, :, t, None, None].exp() * memory + momentum
        outputs.append((q[:, :, t, None, :] @ memory).squeeze(2))
    return torch.stack(outputs, dim=2), torch.cat((memory, momentum), dim=2)


def unerased(rule: Callable[..., Any]) -> Callable[..., Any]:
    return lambda q, k, v, log_decay, state: rule(q, k, v, log_decay, None, None, state)


RECURRENCES = {
    "ssd": Recurrence(ssd, ssd_loop, 0, "q k v log_decay state"),
    "gated_linear_attention": Recurrence(unerased(dplr), unerased(loop), D_KEY, "q k v log_decay state"),
    "linear_attention, one decay": Recurrence(unerased(dplr), unerased(loop), 1, "q k v log_decay state"),
    "delta_rule": Recurrence(
        lambda q, k, v, beta, a, state: delta_rule(q, k, v, beta.squeeze(3), a, state),
        delta_loop,
        0,
        "q p v beta log_decay state",
    ),
    "momentum_delta_rule": Recurrence(momentum_op, momentum_loop, 0, "q p v beta log_decay state"),
    "dplr, a decay per channel": Recurrence(dplr, loop, D_KEY, "q k v log_decay p r state"),
    "dplr, one decay": Recurrence(dplr, loop, 1, "q k v log_decay p r state"),
    "dplr, erased as written": Recurrence(
        lambda q, k, v, a, r, state: dplr(q, k, v, a, k, r, state),  # the op has a shortcut for p is k
        lambda q, k, v, a, r, state: loop(q, k, v, a, k, r, state),
        D_KEY,
        "q p v log_decay r state",
    ),
}
EACH = pytest.mark.parametrize("name", RECURRENCES)
ON_CUDA = pytest.mark.parametrize("device", ["cuda"], indirect=True)
ALL_DEVICES = pytest.mark.parametrize("device", ["cpu", "cuda", "mps"], indirect=True)


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the ops take the code path of a device: Triton kernels for float32 on CUDA, pairs of chunks otherwise.

    The kernels of SSD and the delta rule are for two-byte operands; interpreted, they run in float32, which is exact.

    Returns:
        The device for float32 tensors: CUDA if available, otherwise the CPU with Triton's interpreter.
    """
    if request.param == "cuda":
        pytest.importorskip("triton")
        multiply_bfloat16(monkeypatch)
        if not torch.cuda.is_available():
            for place in ("ssd", "dplr"):
                monkeypatch.setattr(f"zoo.ops.{place}.rounded_type", lambda s: rounded_type(s) or _float32(s))
    monkeypatch.setattr(transforms, "_device_type", lambda t: request.param)
    return "cuda" if request.param == "cuda" and torch.cuda.is_available() else "cpu"


def _float32(state: Tensor) -> torch.dtype | None:
    return torch.float32 if state.dtype == torch.float32 else None


def multiply_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix Triton's interpreter for bfloat16: it multiplies the integers that hold the bits."""
    from triton.language import bfloat16, float32
    from triton.runtime.interpreter import InterpreterBuilder

    dot = InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, *(self.create_fp_ext(t, float32) if t.dtype.scalar == bfloat16 else t for t in (a, b)), *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


@EACH
def test_chunks_are_the_loop(name: str, generator: torch.Generator) -> None:
    """Over several chunks; the contract suite covers other lengths."""
    each = RECURRENCES[name]
    given = each.draw(generator, 300)
    assert_close(each.op(*given), each.loop(*given))


@pytest.mark.parametrize("seq_len", [1, slow(7), 20, slow(100)])
@ON_CUDA
@EACH
def test_values_and_gradients_of_kernels_are_those_of_the_loop(
    name: str, device: str, seq_len: int, generator: torch.Generator
) -> None:
    assert_float32_is_the_loop(name, seq_len, generator, device)


@pytest.mark.parametrize(("device", "seq_len"), [("cpu", 70), ("cuda", 130)], indirect=["device"])
@EACH
def test_gradients_of_several_chunks(name: str, device: str, seq_len: int, generator: torch.Generator) -> None:
    each = RECURRENCES[name]
    assert gradcheck(each.op, differentiable(*each.draw(generator, seq_len)), fast_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "cuda"], indirect=True)
@EACH
def test_second_derivatives(name: str, device: str, generator: torch.Generator) -> None:
    each = RECURRENCES[name]
    assert gradgradcheck(each.op, differentiable(*each.draw(generator, 40)), fast_mode=True)


@pytest.mark.slow
@ALL_DEVICES
@EACH
def test_float32_is_precise_for_mixed_decays(name: str, device: str, generator: torch.Generator) -> None:
    """Some steps clear the state and others hardly change it: cumulative sums must not lose the small ones."""
    assert_float32_is_the_loop(name, 300, generator, device)


def assert_float32_is_the_loop(name: str, seq_len: int, generator: torch.Generator, device: str) -> None:
    each = RECURRENCES[name]
    wide = differentiable(*each.draw(generator, seq_len))
    results = []
    for function, given in ((each.loop, wide), (each.op, differentiable(*(t.float().to(device) for t in wide)))):
        outputs = function(*given)
        loss = sum(o.mT.contiguous().square().sum() for o in outputs)  # gradients arrive in another memory layout
        results.append([*outputs, *torch.autograd.grad(loss, given)])
    for exact, rounded in zip(*results, strict=True):
        assert rounded.dtype == torch.float32
        assert (rounded.cpu().double() - exact).norm() <= tolerance(torch.float32)["rtol"] * exact.norm()


@pytest.mark.parametrize(
    ("op", "groups", "seq_len", "d_key", "d_value"),
    [
        (ssd, 1, 70, 5, 3),
        slow(ssd, 2, 130, 70, 33),
        slow(ssd, 1, 64, 16, 130),
        (delta_rule, 2, 70, 5, 3),
        slow(delta_rule, 2, 130, 70, 33),
        slow(delta_rule, 2, 64, 128, 130),
    ],
)
@ON_CUDA
def test_kernels_with_operands_in_bfloat16(
    op: Any, groups: int, seq_len: int, d_key: int, d_value: int, device: str, generator: torch.Generator
) -> None:
    """Against the loop in float64 on bfloat16 numbers; decays, sums and states are float32."""
    q, k = (unit_length(draw(2, groups, seq_len, d_key, generator=generator)) for _ in range(2))
    v, state = (draw(2, HEADS, rows, d_value, generator=generator) for rows in (seq_len, d_key))
    beta = [2 * torch.sigmoid(2 * draw(2, HEADS, seq_len, generator=generator))] if op is delta_rule else []
    wide = [*(t.bfloat16().double() for t in (q, k, v, *beta)), log_decays(generator, 2, HEADS, seq_len), state]
    wide, rounded = differentiable(*wide), 3 + len(beta)
    given = differentiable(
        *(t.to(device, torch.bfloat16 if n < rounded else torch.float32) for n, t in enumerate(wide))
    )
    with torch.autocast(device, torch.bfloat16):
        found = op(*given)
    if op is delta_rule:
        expected = delta_loop(*wide[:3], wide[3].unsqueeze(3), *wide[4:])
    else:
        of_heads = (t.repeat_interleave(HEADS // groups, 1) for t in wide[:2])
        expected = loop(*of_heads, wide[2], wide[3].unsqueeze(3), None, None, wide[4])
    seeds = [draw(*t.shape, generator=generator) for t in expected]
    found = [*found, *torch.autograd.grad(found, given, [t.float().to(device) for t in seeds])]
    expected = [*expected, *torch.autograd.grad(expected, wide, seeds)]
    for mine, right in zip(found, expected, strict=True):
        assert (mine.cpu().double() - right).norm() <= tolerance(torch.bfloat16)["rtol"] * right.norm()


@pytest.mark.parametrize("device", ["cpu", "cuda"], indirect=True)
def test_second_derivatives_of_ssd_in_float32_with_dependent_inputs(device: str, generator: torch.Generator) -> None:
    """On CUDA plain operations compute the kernels' second derivatives; they must treat the inputs as independent."""
    k, v = (draw(1, HEADS, 20, width, generator=generator) for width in (D_KEY, D_VALUE))
    state = draw(1, HEADS, D_KEY, D_VALUE, generator=generator)

    def found(dtype: torch.dtype, device: str) -> list[Tensor]:
        x, values, start = differentiable(*(t.to(device, dtype) for t in (k, v, state)))
        y, final = ssd(x.tanh(), x, values, -values.square().mean(3), start)
        first = torch.autograd.grad(y.square().sum() + final.sum(), (x, values), create_graph=True)
        return [*first, *torch.autograd.grad(sum(t.square().sum() for t in first), (x, values, start))]

    for narrow, wide in zip(found(torch.float32, device), found(torch.float64, "cpu"), strict=True):
        assert (narrow.cpu().double() - wide).norm() <= tolerance(torch.float32)["rtol"] * wide.norm()


@ALL_DEVICES
@EACH
def test_a_decay_that_clears_the_state_gives_no_nan(name: str, device: str, generator: torch.Generator) -> None:
    each = RECURRENCES[name]
    given = each.draw(generator, 70)
    place = each.arguments.split().index("log_decay")
    given = differentiable(*(torch.full_like(t, -1e4) if n == place else t for n, t in enumerate(given)))
    y, state = each.op(*given)
    gradients = torch.autograd.grad(y.sum() + state.sum(), given)
    assert all(t.isfinite().all() for t in (y, state, *gradients))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["ssd", "gated_linear_attention", "delta_rule"])
def test_a_log_decay_of_minus_infinity_clears_the_state(
    name: str, dtype: torch.dtype, generator: torch.Generator
) -> None:
    each = RECURRENCES[name]
    given = [t.to(dtype) for t in each.draw(generator, 70)]
    given[each.arguments.split().index("log_decay")][:, :, 40] = -torch.inf
    from_there = [t[:, :, 40:] if t.shape[2] == 70 else torch.zeros_like(t) for t in given]
    for actual, expected in zip(each.op(*given), each.op(*from_there), strict=True):
        assert_close(actual[:, :, -30:], expected[:, :, -30:])


# The state between chunks.


@pytest.mark.parametrize(
    ("chunks", "d_key", "d_value", "size"),
    [(1, 3, 4, 5), (2, 70, 5, 33), (7, 4, 37, 1), slow(3, 128, 64, 32)],
)
@pytest.mark.parametrize("kind", ["erased", "rounded", "decayed", "complex"])
@pytest.mark.parametrize("device", ["cuda", "mps"], indirect=True)
def test_any_shape_and_stride_of_states_between_chunks(
    kind: str, chunks: int, d_key: int, d_value: int, size: int, device: str, generator: torch.Generator
) -> None:
    """In float32 against the loop over chunks in float64; decays range from zero to one, both included.

    `rounded` is `erased` with bfloat16 operands.
    """

    def drawn(*shape: int) -> Tensor:  # laid out with the third axis last
        dtype = torch.complex128 if kind == "complex" else torch.float64
        return torch.randn(*shape[:2], *shape[3:], shape[2], generator=generator, dtype=dtype).movedim(-1, 2)

    rounded, kind = (torch.bfloat16, "erased") if kind == "rounded" else (None, kind)
    shared = {
        "erased": (2, 2, chunks, d_key, 1),
        "decayed": (1, 2, chunks, 1, d_value),
        "complex": (2, 1, chunks, 1, 1),
    }
    decay = (2 * torch.rand(shared[kind], generator=generator, dtype=torch.float64) - 0.5).clamp(0, 1)
    given = [drawn(2, 2, d_key, d_value), decay.to(torch.complex128) if kind == "complex" else decay]
    if kind == "erased":
        keys, sought = (drawn(2, 2, chunks, size, d_key) / (d_key * size) ** 0.5 for _ in range(2))
        given += [keys.mT, sought, drawn(2, 2, chunks, size, d_value)]
    else:
        given.append(drawn(2, 2, chunks, d_key, d_value))
    op = erased_states if kind == "erased" else decayed_states
    narrow = differentiable(*(t.to(device, torch.complex64 if kind == "complex" else torch.float32) for t in given))
    found = op(*narrow, rounded=rounded) if rounded else op(*narrow)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, "_device_type", lambda t: "cpu")
        exact = op(*(wide := differentiable(*given)))
        seeds = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in exact]
        expected = [*exact, *torch.autograd.grad(exact, wide, seeds)]
    found = [*found, *torch.autograd.grad(found, narrow, [s.to(f) for s, f in zip(seeds, found, strict=True)])]
    largest = tolerance(rounded)["rtol"] if rounded else 1e-6
    for mine, right in zip(found, expected, strict=True):
        assert mine.dtype == narrow[0].dtype
        assert (mine.cpu() - right).norm() <= largest * right.norm()


# Ridge regression.


@pytest.mark.parametrize(
    ("batch", "heads", "seq_len", "d_key", "steps"),
    [(1, 2, 5, 3, 2), slow(2, 1, 70, 7, 1), slow(1, 1, 33, 70, 4), slow(1, 2, 40, 5, 30)],
)
@ON_CUDA
def test_conjugate_gradients_in_one_kernel(
    batch: int, heads: int, seq_len: int, d_key: int, steps: int, device: str, generator: torch.Generator
) -> None:
    """In float32 against the same steps in float64, converged or not: values, first and second derivatives."""
    q, k = (unit_length(draw(batch, heads, seq_len, d_key, generator=generator)) for _ in range(2))
    strength, log_decay = (
        draw(batch, heads, seq_len, generator=generator).sigmoid(),
        log_decays(generator, *q.shape[:3]),
    )
    strength[:, :, seq_len // 2] = log_decay[:, :, seq_len // 2] = 0
    given = [q, k, strength, log_decay, 0.25 + draw(heads, d_key, generator=generator).exp()]
    given.append(draw(batch, heads, d_key, d_key, generator=generator))
    seeds = [draw(*shape, generator=generator) for shape in (q.shape, given[5].shape)]

    def results(device: str, dtype: torch.dtype) -> list[Tensor]:
        mine = differentiable(*(t.to(device, dtype) for t in given))
        outputs = ridge_queries(*mine[:5], mine[5] @ mine[5].mT / d_key, steps)
        slopes = torch.autograd.grad(outputs, mine, [t.to(outputs[0]) for t in seeds], retain_graph=True)
        (again,) = torch.autograd.grad(outputs[0].square().sum(), mine[0], create_graph=True)
        return [*outputs, *slopes, *torch.autograd.grad(again.square().sum(), mine[1:])]

    found = results(device, torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transforms, "_device_type", lambda t: "cpu")
        expected = results("cpu", torch.float64)
    for mine, right in zip(found, expected, strict=True):
        assert (mine.cpu() - right).norm() <= 1e-5 * right.norm()


def test_segment_sums_keep_digits_after_large_terms() -> None:
    assert segment_sums(torch.tensor([1e8, 1e8, 0.25, 0.5]))[3, 1] == 0.75


# The delta rule.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_beta_of_two_reflects_for_a_thousand_steps(dtype: torch.dtype, generator: torch.Generator) -> None:
    """With eigenvalue -1 the state's sign is the parity of its steps, and products of reflections keep its norm."""
    seq_len = 1000
    key = torch.eye(D_KEY, dtype=dtype)[1].expand(1, 1, seq_len, D_KEY)
    state = key[:, :, :1].transpose(2, 3)
    y, _ = delta_rule(key, key, torch.zeros_like(key[..., :1]), torch.full_like(key[..., 0], 2.0), None, state)
    assert_close(y.flatten(), torch.tensor([-1.0, 1.0], dtype=dtype).repeat(seq_len // 2))
    keys = F.normalize(draw(1, 1, seq_len, D_KEY, generator=generator, dtype=dtype), dim=3)
    beta, nothing = torch.full_like(keys[..., 0], 2.0), torch.zeros_like(keys[..., :1])
    _, final = delta_rule(keys, keys, nothing, beta, None, state)
    assert_close(final.norm(), state.norm())


@pytest.mark.parametrize("columns", [1, D_KEY])
def test_a_repeated_key_loses_no_precision(columns: int, generator: torch.Generator) -> None:
    """float32 against float64 over 4,096 positions that erase and write at one key, with strengths from 0 to 2."""
    drawn = {name: t.float() for name, t in inputs(generator, 4096, columns).items()}
    k = F.normalize(drawn["k"][:, :, :1], dim=3).expand_as(drawn["k"])
    given = (drawn["q"], k, drawn["v"], 1e-2 * drawn["log_decay"], k, drawn["beta"] * k, drawn["state"])
    for narrow, wide in zip(dplr(*given), loop(*(t.double() for t in given)), strict=True):
        assert (narrow.double() - wide).norm() <= 1e-6 * wide.norm()


def test_without_momentum_and_decay_it_is_the_delta_rule(generator: torch.Generator) -> None:
    given = inputs(generator, 70, 1)
    q, k, v, beta, state = (given[name] for name in ("q", "p", "v", "beta", "state"))
    beta, zero = beta.squeeze(3), torch.zeros_like(beta.squeeze(3))
    expected = delta_rule(q, k, v, beta, None, state)
    y, memory, _ = momentum_delta_rule(q, k, v, beta, zero, zero - torch.inf, state, torch.ones_like(state))
    for actual, right in zip((y, memory), expected, strict=True):
        assert_close(actual, right)


def test_dplr_refuses_p_without_r(generator: torch.Generator) -> None:
    q, k, v, log_decay, p, _, state = RECURRENCES["dplr, one decay"].draw(generator, 3)
    with pytest.raises(ValueError, match="both"):
        dplr(q, k, v, log_decay, p, None, state)


@pytest.mark.parametrize("step", [3.0, 40.0, -600.0])  # less than half a turn, and many turns
def test_angles_keep_their_digits_over_many_turns(step: float) -> None:
    steps = torch.full((1, 1, 100_000, 1), step)
    angles = advance_angles(steps, torch.full((1, 1, 1), 1.0))
    assert angles.dtype == torch.float32
    exact = np.remainder(1.0 + step * np.arange(1, 100_001), 2 * np.pi)
    assert_close(angles.flatten().cos(), np.cos(exact))
    assert 0 <= angles.min() <= angles.max() <= 2 * np.pi


def elementwise_inputs(generator: torch.Generator, seq_len: int) -> tuple[Tensor, Tensor, Tensor]:
    """Decays from exactly zero to exactly one, writes, and a state."""
    decay = (draw(2, seq_len, 3, generator=generator) + 0.5).clamp(0, 1)
    return decay, draw(2, seq_len, 3, generator=generator), draw(2, 3, generator=generator)


def test_the_elementwise_recurrence_is_the_loop(generator: torch.Generator) -> None:
    given = [t.requires_grad_() for t in elementwise_inputs(generator, 65)]
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


def test_the_elementwise_recurrence_is_precise_in_float32(generator: torch.Generator) -> None:
    decay, written, state = elementwise_inputs(generator, 4096)
    decay = 1 - 0.001 * decay
    exact, _ = linear_recurrence(decay, written, state)
    rounded, _ = linear_recurrence(decay.float(), written.float(), state.float())
    assert (rounded - exact).norm() < 1e-5 * exact.norm()


def test_a_decay_that_rounds_to_one_leaves_gradients_finite() -> None:
    mixer = create_mixer("rg_lru", 4)
    with torch.no_grad():
        mixer.gate_bias[1].fill_(-200.0)
    mixer(torch.ones(1, 5, 4)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())


@pytest.mark.parametrize("seq_len", [1, 2, 8, 9, 63])
@pytest.mark.parametrize("name", ["log_linear_ssd", "log_linear_gated_delta_net"])
def test_a_fenwick_tree_of_reached_levels_is_that_of_all_levels(
    name: str, seq_len: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixer, x = create_mixer(name, D_MODEL, n_levels=9).double(), draw(2, seq_len, D_MODEL, generator=generator)
    y, state = mixer.stream(x, None, [seq_len, seq_len // 2])
    monkeypatch.setattr("zoo.ops.log_linear._distinct", lambda seen, seq_len, n_levels: n_levels)
    expected, all_levels = mixer.stream(x, None, [seq_len, seq_len // 2])
    assert_close(y, expected)
    assert_states_close(state, all_levels)


@pytest.mark.parametrize("size", [0.0, 300.0, -300.0])
def test_mlstm_is_precise_for_input_gates_of_any_size(size: float, generator: torch.Generator) -> None:
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
