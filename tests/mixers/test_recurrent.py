"""LSTM, GRU and RNN: torch's fused kernels and the zoo's loops agree, and each runs when it should."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.cases import D_MODEL, Case, assert_states_close, cases, draw
from tests.tolerances import assert_close, tolerance
from zoo.coefficient import active, recording, replaying
from zoo.ops import recurrent as recurrent_op
from zoo.ops import transforms
from zoo.ops.recurrent import linear_rnn
from zoo.state import detach_state, state_tensors

NAMES = ("lstm", "gru", "rnn")
fused_cases = cases(variants=False, names=NAMES)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the fused kernels called so far."""
    calls: list[str] = []
    kernel = recurrent_op.fused_recurrence
    monkeypatch.setattr(
        recurrent_op, "fused_recurrence", lambda name, *a, **b: calls.append(name) or kernel(name, *a, **b)
    )
    return calls


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("seq_len", "lengths"), [(1, None), (63, None), (1, [0, 1]), (63, [7, 62])])
@fused_cases
def test_fused_kernels_equal_the_loops(
    case: Case,
    seq_len: int,
    lengths: list[int] | None,
    dtype: torch.dtype,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outputs, last state, and the gradients of input, first state and parameters."""
    mixer = case.create(generator, dtype)
    x = draw(2, seq_len, D_MODEL, generator=generator, dtype=dtype).requires_grad_()
    _, before = mixer.stream(draw(2, 3, D_MODEL, generator=generator, dtype=dtype))
    before = detach_state(before)
    inputs = [x, *mixer.parameters(), *(t.requires_grad_() for t in state_tensors(before))]
    weights = draw(2, seq_len, D_MODEL, generator=generator, dtype=dtype)

    def run() -> tuple[Tensor, object, tuple[Tensor, ...]]:
        y, after = mixer.stream(x, before, lengths)
        loss = (y * weights).sum() + sum(t.square().sum() for t in state_tensors(after))
        return y, after, torch.autograd.grad(loss, inputs)

    y, after, gradients = run()
    monkeypatch.setattr(recurrent_op, "fused_suffices", lambda *_: False)
    expected, expected_after, expected_gradients = run()
    assert_close(y, expected)
    assert_states_close(after, expected_after)
    assert_close(gradients, expected_gradients)


@fused_cases
def test_the_fused_kernel_runs_unless_something_needs_the_loop(
    case: Case, generator: torch.Generator, fused: list[str]
) -> None:
    mixer, x = case.create(generator), draw(2, 5, D_MODEL, generator=generator)
    expected = mixer(x)
    assert fused == [{"rnn": "rnn_tanh"}.get(case.name, case.name)]
    with recording() as tape:
        assert active()
        assert_close(mixer(x), expected)
    with replaying(tape):
        assert_close(mixer(x), expected)
    assert not active()
    assert len(fused) == 1
    assert_close(mixer(x, torch.tensor([5, 5])), expected)
    assert len(fused) == 2
    assert mixer.to("meta")(x.to("meta")).shape == expected.shape


@fused_cases
def test_a_cpu_without_the_kernel_runs_the_loop(
    case: Case, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU is simulated: the kernel raises an error like oneDNN's on CPUs that lack it."""

    def missing(name: str, *_: Tensor, **__: Tensor) -> None:
        raise RuntimeError(f"could not create a primitive descriptor for {name}")

    mixer = case.create(generator, torch.float32)
    x = draw(2, 9, D_MODEL, generator=generator, dtype=torch.float32).requires_grad_()
    expected = mixer(x)
    monkeypatch.setattr(recurrent_op, "fused_recurrence", missing)
    recurrent_op._exists_on_cpu.cache_clear()
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = mixer(x)
            _, state = mixer.stream(x[:, :4])
            streamed, _ = mixer.stream(x[:, 4:], state)
        y.float().square().sum().backward()
        assert all(p.grad.isfinite().all() for p in mixer.parameters())
        for actual, target in ((y, expected), (streamed, expected[:, 4:])):
            assert (actual - target).norm() < tolerance(torch.bfloat16)["rtol"] * target.norm()
    finally:
        recurrent_op._exists_on_cpu.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@fused_cases
def test_reduced_precision_works_on_every_cpu(case: Case, dtype: torch.dtype, generator: torch.Generator) -> None:
    """With such weights and under autocast, with and without gradients. The support of a kernel is probed once."""
    x = draw(2, 9, D_MODEL, generator=generator, dtype=torch.float32)
    mixer = case.create(generator, torch.float32)
    for weights, autocast in ((dtype, False), (torch.float32, True)):
        mixer, x = mixer.to(weights), x.to(weights)
        with torch.autocast("cpu", dtype=dtype, enabled=autocast):
            y = mixer(x)
            with torch.inference_mode():
                assert mixer(x).isfinite().all()
        y.float().square().sum().backward()
        assert all(p.grad.isfinite().all() for p in mixer.parameters())
    asked = recurrent_op._exists_on_cpu.cache_info().misses
    with torch.autocast("cpu", dtype=dtype):
        mixer(x)
    assert recurrent_op._exists_on_cpu.cache_info().misses == asked


@pytest.mark.parametrize("seq_len", [1, 33, 1100])
def test_a_linear_rnn_gives_the_same_with_parallel_and_sequential_chunks(
    seq_len: int, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    given = (
        draw(2, seq_len, 5, generator=generator),
        0.4 * draw(5, 5, generator=generator),
        draw(2, 5, generator=generator),
    )
    results = []
    for device in ("cuda", "cpu"):
        monkeypatch.setattr(transforms, "_device_type", lambda t, device=device: device)
        leaves = [t.clone().requires_grad_() for t in given]
        outputs = linear_rnn(*leaves, torch.tensor([0, seq_len]))
        results.append([*outputs, *torch.autograd.grad(sum(t.square().sum() for t in outputs), leaves)])
    assert_close(*results)
