"""Ops in conditions that tests of mixers miss: extreme arguments, low precision, memory layouts, manual gradients."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from tests import reference
from tests.cases import D_MODEL, Case, draw, randomise, trained_by_outputs
from tests.tolerances import assert_close, tolerance
from zoo import create_mixer
from zoo.coefficient import recording
from zoo.ops import attention, transforms, trapezoid
from zoo.ops.activation import gelu, heavy_tail, layer_norm, rms_norm, silu, tanhc
from zoo.ops.blocks import attend_to_best_blocks
from zoo.ops.delta_rule import fed_back_delta_rule, unit_length
from zoo.ops.diagonal import diagonal_scan, ring_gain, zero_order_hold
from zoo.ops.dplr import dplr
from zoo.ops.precision import chunk_product, widest
from zoo.ops.recurrent import linear_rnn
from zoo.ops.scan import selective_scan
from zoo.ops.wkv import wkv
from zoo.state import state_tensors


def differentiable(*tensors: Tensor) -> list[Tensor]:
    return [t.detach().clone().requires_grad_() for t in tensors]


# Selective scan.


def scan_inputs(generator: torch.Generator, seq_len: int, batch: int = 2, d_inner: int = 3, d_state: int = 4):
    """x, dt, A, B, C, D and a state, distributed as in a Mamba block."""
    x, dt = (draw(batch, seq_len, d_inner, generator=generator) for _ in range(2))
    A = -draw(d_inner, d_state, generator=generator).exp()
    B, C = (draw(batch, seq_len, d_state, generator=generator) for _ in range(2))
    D = draw(d_inner, generator=generator)
    return x, torch.nn.functional.softplus(dt), A, B, C, D, draw(batch, d_inner, d_state, generator=generator)


def scan_loop(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, h: Tensor
) -> tuple[Tensor, Tensor]:
    """y and the final state, by a loop over positions."""
    y = []
    for t in range(x.shape[1]):
        h = torch.exp(dt[:, t, :, None] * A) * h + (dt * x)[:, t, :, None] * B[:, t, None]
        y.append((h * C[:, t, None]).sum(2))
    return torch.stack(y, dim=1) + (0 if D is None else D * x), h


def test_selective_scan_gradients_of_more_than_one_chunk(generator: torch.Generator) -> None:
    assert gradcheck(selective_scan, differentiable(*scan_inputs(generator, 300)), fast_mode=True)


def test_selective_scan_in_float32_for_steps_of_a_millionth(generator: torch.Generator) -> None:
    """Small steps cause no underflow or cancellation: relative errors stay within the tolerance."""
    x, _, A, B, C, D, state = scan_inputs(generator, 300)
    dt = torch.full_like(x, 1e-6)
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


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 1, 0)])
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


# Devices without float64.


def test_widest_is_float64_except_on_mps() -> None:
    assert widest(torch.device("cpu")) == widest(torch.device("cuda")) == torch.float64
    assert widest(torch.device("mps")) == torch.float32


def test_angles_are_precise_without_float64(generator: torch.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    increments = (600 + draw(1, 1, 1000, 3, generator=generator)).float()
    start = torch.zeros(1, 1, 3)
    expected = trapezoid.advance_angles(increments, start)
    monkeypatch.setattr(trapezoid, "widest", lambda device: torch.float32)
    actual = trapezoid.advance_angles(increments, start)
    assert (torch.polar(torch.ones(()), actual) - torch.polar(torch.ones(()), expected)).abs().max() < 1e-3


# Diagonal recurrence.


def test_a_fast_decay_in_float32_keeps_values_and_gradients_finite() -> None:
    u, state = torch.ones(1, 200, 1), torch.ones(1, 1)
    log_decay = torch.tensor([-50.0], requires_grad=True)
    h = diagonal_scan(u, log_decay, state)
    assert_close(h, torch.ones(1, 200, 1))
    h.sum().backward()
    assert log_decay.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_order_hold_is_precise_for_small_steps(dtype: torch.dtype) -> None:
    """The reference is the series of exp(z) - 1 in float64, since the difference would cancel."""
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
    assert_close(ring_gain(log_decay)[:1], np.sqrt([2e-9]) * (1 - 0.5e-9))  # here 1 - |lambda|^2 would cancel


# Accumulation under autocast.


def linear_attention(v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    return dplr(v, v.flip(2), v, None, None, None, state)


def linear_rnn_inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
    recurrent = (0.99 * torch.linalg.qr(draw(6, 6, generator=generator))[0]).float()
    return draw(2, 100, 6, generator=generator).bfloat16(), recurrent, torch.zeros(2, 6)


def linear_attention_inputs(generator: torch.Generator) -> tuple[Tensor, ...]:
    return draw(1, 2, 200, 4, generator=generator).bfloat16(), torch.zeros(1, 2, 4, 4)


@pytest.mark.parametrize(
    ("op", "inputs", "rounds"),
    [(linear_attention, linear_attention_inputs, True), (linear_rnn, linear_rnn_inputs, False)],
)
def test_states_are_float32_under_autocast_and_products_inside_chunks_round_their_operands(
    op: Any, inputs: Any, rounds: bool, generator: torch.Generator
) -> None:
    """The state is right to float32: its operands are bfloat16 already. With a float64 state nothing is rounded."""
    given = inputs(generator)
    y, state = op(*given[:-1], given[-1].double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, last = op(*given)
        wide, _ = op(*given[:-1], given[-1].double())
    assert found.dtype == last.dtype == torch.float32
    assert_close(last, state.float())
    assert_close(wide, y)
    if not rounds:
        assert_close(found, y.float())
    assert (found - y).norm() <= 2**-8 * y.norm()
    assert bool((found - y).norm() > 2**-14 * y.norm()) == rounds


def test_a_fed_back_delta_rule_stays_in_range_of_float16(generator: torch.Generator) -> None:
    """The direction that is read is divided by the decay, here down to exp(-40)."""
    q, k, v, state = (draw(2, 2, n, 4, generator=generator).float() for n in (50, 50, 50, 4))
    gates = torch.rand(2, 2, 2, 50, generator=generator)
    given = q, unit_length(k), v, gates[0], -40 * gates[1] ** 2, torch.full((2, 1, 1), 0.7), state
    expected = fed_back_delta_rule(*given)
    with torch.autocast("cpu", dtype=torch.float16):
        found = fed_back_delta_rule(*given)
    for mine, right in zip(found, expected, strict=True):
        assert (mine - right).norm() <= 2**-9 * right.norm()


@pytest.mark.parametrize("shared", [False, True])
def test_a_product_of_rounded_operands_has_the_gradients_of_one(shared: bool, generator: torch.Generator) -> None:
    """With operands that rounding does not change, the rounded product equals the plain one."""
    a, b = (draw(3, 1 if shared else 2, *shape, generator=generator).bfloat16().float() for shape in ((4, 5), (5, 6)))
    a = a.expand(3, 2, 4, 5)
    leaves, cotangent = differentiable(a, b), draw(3, 2, 4, 6, generator=generator).bfloat16().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = chunk_product(a)
    assert_close(product(*leaves), a @ b)
    expected = torch.autograd.grad(leaves[0] @ leaves[1], leaves, cotangent)
    assert_close(torch.autograd.grad(product(*leaves), leaves, cotangent), expected)


# Norms and nonlinearities.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tanhc_is_exact_near_and_far_from_zero(dtype: torch.dtype) -> None:
    magnitude = torch.logspace(-30, 1.5, 400, dtype=torch.float64)
    u = torch.cat((-magnitude, magnitude)).to(dtype).requires_grad_()
    wide = u.detach().double().numpy()
    assert_close(tanhc(u), np.tanh(wide) / wide)
    (slope,) = torch.autograd.grad(tanhc(u).sum(), u)
    # d/du tanh(u)/u = (u / cosh(u)^2 - tanh(u)) / u^2 cancels near zero, so there we take its series -2u/3 + 8u^3/15
    near = np.abs(wide) < 1e-2
    series = -2 * wide / 3 + 8 * wide**3 / 15 - 34 * wide**5 / 105
    away = np.where(near, 1.0, wide)
    assert_close(slope, np.where(near, series, (away / np.cosh(away) ** 2 - np.tanh(away)) / away**2))
    zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(tanhc(zero), zero, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, zero)
    assert_close(torch.cat((tanhc(zero), slope, curvature)).detach(), np.array([1, 0, -2 / 3]))
    far = torch.tensor([-0.5, 0.5], dtype=dtype).mul_(torch.finfo(dtype).max).requires_grad_()  # its square overflows
    assert not torch.autograd.grad(tanhc(far).sum(), far)[0].any()


def test_heavy_tail_is_positive_and_smooth_at_zero() -> None:
    u = torch.tensor([-1e6, -3.0, -0.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert_close(heavy_tail(u), reference.heavy_tail(u.detach().numpy()))
    (slope,) = torch.autograd.grad(heavy_tail(u).sum(), u)
    assert_close(slope, np.array([1 / (1 + 1e6) ** 2, 1 / 16, 1.0, 1.0, 1.0]))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_rms_norm_is_its_definition_at_any_scale(scale: float, generator: torch.Generator) -> None:
    x, weight = scale * draw(2, 5, 6, generator=generator), draw(6, generator=generator)
    assert_close(rms_norm(x, weight), reference.rms_norm(x.numpy(), weight.numpy()))


# Softmax attention.


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("forgetting_attention", {"n_kv_heads": 2}),
        ("deltaformer", {}),
        ("path_attention", {}),
        ("path_attention", {"n_kv_heads": 2, "forget_gate": True}),
    ],
    ids=str,
)
def test_attention_in_blocks_of_queries_equals_all_queries_at_once(
    name: str, options: dict[str, Any], generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a state and with padding: outputs, states, first and second derivatives."""
    mixer = randomise(create_mixer(name, 8, **options), generator).double()
    x, lengths = draw(2, 40, 8, generator=generator).requires_grad_(), torch.tensor([28, 9])

    def outcome() -> list[Tensor]:
        _, state = mixer.stream(x[:, :12])
        y, after = mixer.stream(x[:, 12:], state, lengths)
        found = [y, *(t for t in state_tensors(after) if t.is_floating_point())]
        total = sum(t.square().sum() for t in found)
        (gradient,) = torch.autograd.grad(total, x, create_graph=True)
        return [*found, gradient, *torch.autograd.grad(gradient.square().sum(), [x, *mixer.parameters()])]

    expected = outcome()
    monkeypatch.setattr("zoo.ops.attention.QUERIES", 5)
    for ours, once in zip(outcome(), expected, strict=True):
        assert_close(ours, once)


@pytest.mark.slow  # torch.utils.checkpoint imports the compiler
@pytest.mark.parametrize("name", ["forgetting_attention", "path_attention", "deltaformer"])
def test_blocks_may_be_recomputed_within_a_checkpoint(
    name: str, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zoo.ops.attention.QUERIES", 5)
    mixer = randomise(create_mixer(name, 8), generator).double()
    x = draw(1, 20, 8, generator=generator).requires_grad_()
    calls = mixer(x), checkpoint(mixer, x, use_reentrant=False)
    plain, checkpointed = (torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()]) for y in calls)
    assert_close(checkpointed, plain)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch.compile's own
@pytest.mark.parametrize(("seq_len", "past"), [(140, 0), (13, 7)])
def test_forgetting_attention_by_flex_attention(
    seq_len: int,
    past: int,
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
    unchecked_shapes: None,
) -> None:
    """Outputs and gradients on the code path of CUDA in float32, against blocks of queries in float64.

    On the CPU torch traces FlexAttention and its gradients into plain operations.
    """
    q = draw(2, 4, seq_len, 5, generator=generator)
    k, v = (draw(2, 2, past + seq_len, width, generator=generator) for width in (5, 3))
    log_forget, forgotten = (
        -draw(2, 4, seq_len, generator=generator).exp(),
        -draw(2, 4, past, generator=generator).exp(),
    )
    log_forget[:, :, seq_len // 2] = -torch.inf
    cached, cotangent = torch.tensor([past, past // 2]), draw(2, 4, seq_len, 3, generator=generator)

    def outcome(dtype: torch.dtype) -> list[Tensor]:
        given = differentiable(*(t.to(dtype) for t in (q, k, v, log_forget, forgotten)))
        y = attention.forgetting_attend(*given[:3], cached, *given[3:])
        return [y, *torch.autograd.grad(y, given, cotangent.to(dtype))]

    expected = outcome(torch.float64)
    flex = import_module("torch.nn.attention.flex_attention")
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)  # it forbids gradients on the CPU
    traced = torch.compile(flex.flex_attention, backend="aot_eager")
    monkeypatch.setattr(attention, "_flex_attention", lambda: traced)
    monkeypatch.setattr(attention, "QUERIES", 5)
    monkeypatch.setattr(transforms, "_device_type", lambda t: "cuda")
    assert_close(outcome(torch.float32), expected)


@pytest.mark.parametrize(("kv_heads", "seq_len", "top_k"), [(4, 1, 1), (2, 7, 2), (1, 130, 4), (4, 70, 30)])
def test_attention_to_selected_blocks_has_the_same_gradients_on_every_device(
    kv_heads: int, seq_len: int, top_k: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other devices gather rows by index; first and second derivatives equal the CPU's, which autograd derives."""
    heads = differentiable(*(draw(2, n, seq_len, 6, generator=generator) for n in (4, kv_heads, kv_heads)))
    results = []
    for device in ("cpu", "mps"):
        monkeypatch.setattr(transforms, "_device_type", lambda t, device=device: device)
        y = attend_to_best_blocks(*heads, torch.arange(seq_len).expand(2, -1), 8, top_k)
        first = torch.autograd.grad(y.square().sum(), heads, create_graph=True)
        results.append([y, *first, *torch.autograd.grad(sum(t.square().sum() for t in first), heads)])
    assert_close(results[1], results[0])


@pytest.mark.parametrize("top_k", [3, 40])
@pytest.mark.parametrize("queries", [256, 5])
def test_the_loss_of_dsas_indexer_is_the_reference_and_trains_only_the_indexer(
    top_k: int, queries: int, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is the mean over valid positions; other parameters and the input get no gradient from it."""
    monkeypatch.setattr("zoo.ops.attention.QUERIES", queries)
    mixer = randomise(create_mixer("dsa", 8, n_heads=2, top_k=top_k), generator).double()
    x, lengths = draw(2, 20, 8, generator=generator).requires_grad_(), [20, 9]
    y = mixer(x, torch.tensor(lengths))
    p = {name: value.detach().numpy() for name, value in mixer.named_parameters()}
    rows = [reference.index_loss(p, x[row, :n].detach().numpy(), 2, top_k) for row, n in enumerate(lengths)]
    assert mixer.own_loss is not None
    assert_close(mixer.own_loss, np.asarray(np.concatenate(rows).mean()))
    mixer.own_loss.backward(retain_graph=True)
    trained = {name for name, value in mixer.named_parameters() if value.grad is not None and value.grad.any()}
    assert trained == set(mixer.apart)
    assert x.grad is not None
    assert not x.grad.any()
    torch.autograd.grad(y.sum(), [x, *trained_by_outputs(mixer)])
    with torch.no_grad():
        mixer(x)
    assert mixer.own_loss is None


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("attention", {"n_kv_heads": 2}),
        ("attention", {"sink": "constant"}),
        ("attention", {"sink": "position", "n_kv_heads": 2}),
        ("differential_attention", {}),
        ("gated_attention", {}),
        ("sliding_attention", {"n_kv_heads": 2}),
    ],
    ids=str,
)
def test_attention_with_masks_groups_and_sinks_uses_fused_kernels(
    name: str, options: dict[str, Any], generator: torch.Generator
) -> None:
    mixer, x = create_mixer(name, 16, **options), draw(2, 12, 16, generator=generator, dtype=torch.float32)
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]):
        y, state = mixer.stream(x)
        again, _ = mixer.stream(x, state, torch.tensor([12, 5]))
        (y.sum() + again.sum()).backward()


@pytest.mark.parametrize(
    "op",
    [
        silu,
        gelu,
        lambda u: rms_norm(u, u.new_tensor([0.5, 2.0, -1.0])),
        lambda u: layer_norm(u, u.new_tensor([0.5, 2.0, -1.0]), u.new_tensor([1.0, 0.0, 2.0])),
    ],
    ids=["silu", "gelu", "rms_norm", "layer_norm"],
)
def test_torchs_fused_kernels_agree_with_coefficients_times_values(
    op: Callable[[Tensor], Tensor], generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    u = (10 * draw(2, 5, 3, generator=generator)).requires_grad_()
    with recording():
        parts = op(u)
    slopes = torch.autograd.grad(parts.square().sum(), u)
    monkeypatch.setattr(transforms, "_device_type", lambda t: "cuda")  # for the norm that only GPUs have a kernel of
    fused = op(u)
    assert_close((fused, *torch.autograd.grad(fused.square().sum(), u)), (parts, *slopes))


def test_wkv_keeps_slow_decays_in_float32(generator: torch.Generator) -> None:
    """Keys much larger than one must not round a decay that is almost one."""
    k = 60 + 3 * torch.randn(1, 4096, 3, generator=generator, dtype=torch.float64)
    v = torch.linspace(1, 2, 4096).double().view(1, -1, 1).expand_as(k)
    given = k, v, -torch.exp(torch.tensor([-5.0, -9.0, -13.0]).double()), torch.zeros(3).double()
    sums = torch.zeros(1, 3).double(), torch.zeros(1, 3).double(), torch.full((1, 3), -1e38).double()
    exact, narrow = (wkv(*(t.to(dtype) for t in (*given, *sums)))[0] for dtype in (torch.float64, torch.float32))
    assert_close(narrow, exact)


def test_linear_attention_keeps_the_digits_of_small_features(generator: torch.Generator) -> None:
    mixer, x = Case("linear_attention", {}).create(generator), 30 * draw(2, 37, D_MODEL, generator=generator)
    expected = mixer(x)
    assert_close(mixer.float()(x.float()), expected)
