"""Decoding steps of dplr, mLSTM and minGRU as numba loops give the results of the torch operations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.ops.as_python import run_as_python
from tests.tolerances import assert_close
from zoo.ops import steps_numba
from zoo.ops.dplr import dplr, dplr_step
from zoo.ops.linear_recurrence import min_gru
from zoo.ops.mlstm import mlstm

DPLR = [
    pytest.param(batch, value_heads, d_decay, erases, id=f"{batch}-{value_heads}-{d_decay}-{erases}")
    for batch, value_heads, d_decay, erases in (
        (1, 3, 5, True),
        (2, 3, 1, True),
        (2, 1, 0, False),
        (3, 3, 5, False),
        (0, 3, 1, True),
    )
]


def draw_dplr(
    generator: torch.Generator, batch: int, value_heads: int, d_decay: int, erases: bool
) -> tuple[Tensor | None, ...]:
    """Arguments of `dplr_step` with three heads, five key channels and four value channels."""
    q, k, p, r = torch.randn(4, batch, 3, 1, 5, generator=generator)
    v, state = (torch.randn(batch, *shape, generator=generator) for shape in ((value_heads, 1, 4), (3, 5, 4)))
    decay = torch.rand(batch, 3, d_decay, 1, generator=generator) if d_decay else None
    return q, k, v, decay, *((p, r) if erases else (None, None)), state


def draw_mlstm(generator: torch.Generator) -> tuple[Tensor, ...]:
    shapes = ((1, 5), (1, 5), (1, 4), (1,), (1,), (5, 4), (5,), ())
    return tuple(torch.randn(2, 3, *shape, generator=generator) for shape in shapes)


def draw_gru(generator: torch.Generator) -> tuple[Tensor, ...]:
    return tuple(torch.randn(shape, generator=generator) for shape in ((3, 1, 5), (3, 1, 5), (3, 5)))


def assert_same(step: Callable[..., tuple[Tensor, ...]], given: tuple[Tensor | None, ...]) -> None:
    """Assert that the step in float32 equals the step in float64, and leaves its arguments unchanged."""
    copies = [None if t is None else t.clone() for t in given]
    with torch.no_grad():
        found = step(*given)
        right = step(*(None if t is None else t.double() for t in given))
    for mine, exact in zip(found, right, strict=True):
        assert mine.dtype == torch.float32
        assert_close(mine, exact)
    assert all(
        t is copy or (t is not None and copy is not None and t.equal(copy))
        for t, copy in zip(given, copies, strict=True)
    )


@pytest.fixture(params=[False, True], ids=["one thread", "shared"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Calls of the numba loops so far, which run on one thread or are always split over threads."""
    calls: list[object] = []
    run = steps_numba._run
    monkeypatch.setattr(steps_numba, "_run", lambda kernel, *given: (calls.append(kernel), run(kernel, *given)))
    monkeypatch.setattr(steps_numba, "_SHARED", 0 if request.param else 10**9)
    return calls


@pytest.mark.parametrize(("batch", "value_heads", "d_decay", "erases"), DPLR)
def test_a_step_of_dplr(
    batch: int, value_heads: int, d_decay: int, erases: bool, loops: list[object], generator: torch.Generator
) -> None:
    assert_same(dplr_step, draw_dplr(generator, batch, value_heads, d_decay, erases))
    assert len(loops) == 1


def test_steps_of_mlstm_and_of_minimal_gates(loops: list[object], generator: torch.Generator) -> None:
    assert_same(mlstm, draw_mlstm(generator))
    assert_same(min_gru, draw_gru(generator))
    assert len(loops) == 2


def test_views_other_dtypes_and_leaves_are_read_correctly(generator: torch.Generator) -> None:
    q, k, v, decay, _, _, state = draw_dplr(generator, 2, 3, 5, False)
    assert not any(t is None for t in (q, k, v, decay, state))
    strided = state.mT.contiguous().mT.requires_grad_()
    with torch.no_grad():
        y, after = dplr_step(q.bfloat16(), k, v, decay, None, None, strided)
        right, after_right = dplr_step(
            q.bfloat16().double(), *(t.double() for t in (k, v, decay)), None, None, state.double()
        )
    assert_close(y, right)
    assert_close(after, after_right)


def test_recording_vmap_and_gradients_do_not_use_the_loops(loops: list[object], generator: torch.Generator) -> None:
    from zoo.coefficient import recording

    given = draw_mlstm(generator)
    mlstm(*(t.requires_grad_() for t in given))[0].sum().backward()
    assert all(t.grad is not None for t in given[:5])
    with torch.no_grad(), recording():
        mlstm(*given)
    q, k, v, _, _, _, state = draw_dplr(generator, 1, 3, 0, False)
    with torch.no_grad():
        torch.func.vmap(lambda key: dplr(q, key, v, None, None, None, state)[0])(torch.stack((k, k)))
    assert not loops


def test_the_loops_stay_within_their_arrays(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    """With NumPy arrays in place of addresses, so that Python raises an error for an index out of bounds."""
    run_as_python(monkeypatch, steps_numba)
    monkeypatch.setattr(steps_numba, "_floats", lambda array: array)
    monkeypatch.setattr(steps_numba, "carray", lambda array, shape: array.reshape(shape))
    for batch, value_heads, d_decay, erases in (case.values for case in DPLR):
        q, k, v, decay, p, r, state = draw_dplr(generator, batch, value_heads, d_decay or 1, erases)
        absent = torch.empty(0, 3, 1, 5)
        arrays = [t.numpy() for t in (q, k, v, decay, absent if p is None else p, absent if r is None else r, state)]
        y, after = torch.full((batch, 3, 1, 4), torch.nan), torch.full((batch, 3, 5, 4), torch.nan)
        sizes = batch, 3, value_heads, 5, 4, d_decay or 1, erases
        steps_numba._dplr(0, 3 * batch, *sizes, *arrays, y.numpy(), after.numpy())
        with torch.no_grad():
            right = dplr_step(*(None if t is None else t.double() for t in (q, k, v, decay, p, r, state)))
        assert_close(y, right[0])
        assert_close(after, right[1])
    given = draw_mlstm(generator)
    made = [torch.full(shape, torch.nan) for shape in ((2, 3, 1, 4), (2, 3, 5, 4), (2, 3, 5), (2, 3))]
    steps_numba._mlstm(0, 6, 2, 3, 5, 4, 1e-6, 80.0, *(t.numpy() for t in (*given, *made)))
    assert_close(made, mlstm(*(t.double() for t in given)))
    logit, u, state = draw_gru(generator)
    h = torch.full((3, 5), torch.nan)
    steps_numba._min_gru(0, 3, 3, 5, *(t.numpy() for t in (logit, u, state, h)))
    assert_close(h, min_gru(logit.double(), u.double(), state.double())[1])
