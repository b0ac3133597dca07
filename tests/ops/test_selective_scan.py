"""The selective scan's CPU backends, torch and numba: precision, gradients, errors, threads, compilation, decoding.

tests/ops/test_ops.py tests it in float64, tests/ops/test_scan_triton.py the Triton kernels.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import holding, python, refused
from tests.cases import draw
from tests.ops.as_python import run_as_python
from tests.ops.test_ops import differentiable, scan_inputs, scan_loop
from tests.tolerances import assert_close
from zoo.ops import scan, scan_numba
from zoo.ops.scan import selective_scan

ON_CPU = pytest.mark.parametrize("backend", ["torch", "numba"])
PRECISE = 10 * 2**-24
"""Largest error of an output or gradient, as measured by `errors`: ten roundings of float32."""


def narrowed(inputs: tuple[Tensor, ...]) -> list[Tensor]:
    return [t.float() for t in inputs]


def results(inputs: list[Tensor], weights: list[Tensor], backend: str | None) -> list[Tensor]:
    """y, the final state, and the gradients of all inputs; `weights` are the cotangents of y and the state."""
    inputs = differentiable(*inputs)
    outputs = selective_scan(*inputs, backend=backend)
    loss = sum((o * w.to(o)).sum() for o, w in zip(outputs, weights, strict=True))
    return [*(o.detach() for o in outputs), *torch.autograd.grad(loss, inputs)]


def draw_weights(inputs: list[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Cotangents of y and of the final state, which have the shapes of x and the first state."""
    return [draw(*t.shape, generator=generator) for t in (inputs[0], inputs[-1])]


def errors(inputs: list[Tensor], generator: torch.Generator, backend: str) -> list[float]:
    """Error of each float32 result against float64, relative to the sum of the magnitudes of its terms.

    The magnitudes are the results for absolute values of inputs and weights, which cannot cancel. An error relative to
    the result itself would depend on cancellation and on the order of the sums, which differs between CPUs.
    """
    weights = draw_weights(inputs, generator)
    wide = [t.double() for t in inputs]
    narrow, exact = results(inputs, weights, backend), results(wide, weights, None)
    assert all(t.isfinite().all() for t in narrow)
    x, dt, A, *rest = wide
    magnitudes = results([x.abs(), dt, A, *(t.abs() for t in rest)], [w.abs() for w in weights], None)
    return [float((a.double() - e).norm() / m.norm()) for a, e, m in zip(narrow, exact, magnitudes, strict=True)]


# Precision.


@pytest.mark.parametrize("seq_len", [1, 63, 1000])
@ON_CPU
def test_every_backend_has_the_gradients_of_float64(backend: str, seq_len: int, generator: torch.Generator) -> None:
    """The float64 gradients pass gradcheck in test_ops.py. 300 channels are one and a fraction of numba's blocks."""
    inputs = narrowed(scan_inputs(generator, seq_len, d_inner=300, d_state=5))
    assert max(errors(inputs, generator, backend)) <= PRECISE


@pytest.mark.filterwarnings("ignore:overflow encountered in scalar add:RuntimeWarning")  # overflowing bits are unused
@pytest.mark.parametrize("step", [1.0, 1e4])
def test_numbas_loops_stay_within_their_arrays(
    step: float, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    """With chunks of two positions and blocks of two channels, the last of each half empty."""
    run_as_python(monkeypatch, scan_numba, _CHUNK=2, _BLOCK=2)
    prefetched = []
    monkeypatch.setattr(scan_numba, "_prefetch", prefetched.append)  # a machine instruction
    x, dt, *rest = narrowed(scan_inputs(generator, 7))
    dt[:, 3] *= step
    assert max(errors([x, dt, *rest], generator, "numba")) <= PRECISE
    assert prefetched


@ON_CPU
@pytest.mark.parametrize(
    ("steps", "seq_len"),
    [
        ((1e-6, 1e-3), 40),  # decays near one: n roundings add up to sqrt(n) times one
        ((1e-3, 0.1), 700),
        ((0.1, 10.0), 700),
        ((20.0, 20.0), 700),  # exp(z) magnifies the rounding of z by z
        ((1e-6, 100.0), 700),
    ],
)
def test_every_step_size_is_precise(
    backend: str, steps: tuple[float, float], seq_len: int, generator: torch.Generator
) -> None:
    """Steps are drawn independently. A constant step of 1e-6, whose decay always rounds the same way, needs the wider
    tolerance of test_ops.py.
    """
    x, _, A, B, C, D, state = scan_inputs(generator, seq_len, d_state=16)
    low, high = np.log(steps)
    dt = torch.exp(low + (high - low) * torch.rand(x.shape, generator=generator, dtype=torch.float64))
    assert max(errors(narrowed((x, dt, A, B, C, D, state)), generator, backend)) <= PRECISE


@ON_CPU
def test_a_step_of_zero_keeps_the_state_and_a_huge_one_clears_it_exactly(
    backend: str, generator: torch.Generator
) -> None:
    x, dt, A, B, C, _, state = narrowed(scan_inputs(generator, 40))
    assert torch.equal(selective_scan(x, torch.zeros_like(dt), A, B, C, None, state, backend=backend)[1], state)
    forgetful = [selective_scan(x, dt + 1e30, A - 1, B, C, None, h, backend=backend) for h in (state, -state)]
    for one, other in zip(*forgetful, strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()


@ON_CPU
def test_an_empty_batch_has_gradients_of_zero(backend: str, generator: torch.Generator) -> None:
    inputs = narrowed(scan_inputs(generator, 5, batch=0))
    y, final, *gradients = results(inputs, draw_weights(inputs, generator), backend)
    assert (y.shape, final.shape) == ((0, 5, 3), (0, 3, 4))
    assert all(not gradient.any() for gradient in gradients)


# The choice of a backend.


def test_the_default_backend_is_the_fastest_that_applies(generator: torch.Generator) -> None:
    x = torch.ones(1, 1, 1)
    assert scan._choose(None, x, torch.float32) == "numba"
    assert scan._choose(None, x, torch.float64) == "torch"
    assert scan._choose(None, x.to("meta"), torch.float32) == "torch"
    inputs = narrowed(scan_inputs(generator, 40))
    torch.testing.assert_close(selective_scan(*inputs), selective_scan(*inputs, backend="numba"), rtol=0, atol=0)


def test_without_numba_the_scan_runs_in_torch(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    monkeypatch.setitem(scan._INSTALLED, "numba", False)
    inputs = narrowed(scan_inputs(generator, 40))
    torch.testing.assert_close(selective_scan(*inputs), selective_scan(*inputs, backend="torch"), rtol=0, atol=0)
    with pytest.raises(ImportError, match=r"^backend 'numba' is not installed: pip install numba, or .*\[fast\]'$"):
        selective_scan(*inputs, backend="numba")


# Errors.


WIDE = {name: torch.ones(2, 5, n, dtype=torch.float64) for name, n in (("x", 3), ("dt", 3), ("B", 4), ("C", 4))}


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"backend": "nunba"}, ["'nunba'", "'numba'", "torch", "triton"]),
        ({"backend": "triton"}, ["triton", "CUDA", "x", "cpu"]),
        ({"backend": "numba", **WIDE}, ["numba", "float32", "x", "float64", "torch"]),
        ({"A": torch.ones(3, 4)}, ["A", "positive", "1"]),
        ({"A": torch.full((3, 4), -torch.inf)}, ["A", "finite", "-inf"]),
        ({"dt": -torch.ones(2, 5, 3)}, ["dt", "negative", "-1"]),
        ({"dt": torch.full((2, 5, 3), torch.nan)}, ["dt", "finite", "nan"]),
        ({"x": torch.ones(2, 3)}, ["x", "(2, 3)"]),
        ({"x": torch.ones(2, 0, 3)}, ["x", "(2, 0, 3)"]),
        ({"x": torch.ones(2, 5, 3, dtype=torch.int64)}, ["x", "floating", "torch.int64"]),
        ({"dt": torch.ones(2, 1, 3)}, ["dt", "(2, 5, 3)", "(2, 1, 3)"]),
        ({"A": -torch.ones(4, 3)}, ["A", "d_inner=3", "(4, 3)"]),
        ({"A": -torch.ones(3, 0)}, ["A", "d_state", "(3, 0)"]),
        ({"B": torch.ones(2, 5, 3)}, ["B", "(2, 5, 3)"]),
        ({"C": torch.ones(2, 4, 4)}, ["C", "(2, 4, 4)"]),
        ({"D": torch.ones(4)}, ["D", "(4,)"]),
        ({"state": torch.ones(2, 4, 3)}, ["state", "(2, 4, 3)"]),
        ({"state": torch.ones(2, 3, 4).bfloat16()}, ["state", "torch.float32", "bfloat16"]),
        ({"dt": torch.ones(2, 5, 3).double()}, ["dt", "float32", "float64"]),
        ({"B": torch.ones(2, 5, 4).long()}, ["B", "floating", "torch.int64"]),
        ({"C": torch.ones(2, 5, 4, device="meta")}, ["C", "meta", "x", "cpu"]),
    ],
)
def test_bad_input_is_a_one_line_error(
    changed: dict[str, object], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    shapes = {"x": (2, 5, 3), "dt": (2, 5, 3), "A": (3, 4), "B": (2, 5, 4), "C": (2, 5, 4)}
    arguments = {name: -torch.ones(shape) if name == "A" else torch.ones(shape) for name, shape in shapes.items()}
    with refused(holding(*words)):
        selective_scan(**{**arguments, **changed})


def test_signs_are_checked_in_a_single_step_unless_check_is_false(generator: torch.Generator) -> None:
    x, dt, A, B, C, *_ = narrowed(scan_inputs(generator, 1))
    with refused("A must be finite and not positive"):
        selective_scan(x, dt, -A, B, C)
    selective_scan(x, dt, -A, B, C, check=False)


@ON_CPU
def test_without_checks_a_nan_reaches_the_outputs(backend: str, generator: torch.Generator) -> None:
    """A diverged run must show in its loss."""
    x, dt, *rest = narrowed(scan_inputs(generator, 5))
    dt[0, 2, 1] = torch.nan
    y, final = selective_scan(x, dt, *rest, backend=backend, check=False)
    assert y[0, 2:, 1].isnan().all()
    assert final[0, 1].isnan().all()
    assert y[0, :2].isfinite().all()
    assert y[1].isfinite().all()


# Registration.


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")  # symbolic sizes are no integers
@ON_CPU
@pytest.mark.parametrize(("seq_len", "d_state"), [(300, 4), (5, 1)])
def test_the_registration_of_the_ops_is_correct(
    backend: str, seq_len: int, d_state: int, generator: torch.Generator
) -> None:
    """`opcheck` tests schema, fake tensors, autograd registration and tracing with dynamic shapes.

    With d_state 1 a transposed view is contiguous, so a backend may mistake its input for a copy.
    """
    x, dt, A, B, C, _, state = narrowed(scan_inputs(generator, seq_len, d_state=d_state))
    forward = torch.ops.zoo.selective_scan.default
    torch.library.opcheck(forward, (*differentiable(x, dt, A, B, C, state), backend, True))
    y, final, entering = forward(x, dt, A, B, C, state, backend, True)
    backward = (torch.ones_like(y), torch.ones_like(final), x, dt, A, B, C, entering, backend)
    torch.library.opcheck(torch.ops.zoo.selective_scan_backward.default, backward)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's own
@ON_CPU
def test_compiling_gives_one_graph_and_the_same_results(backend: str, generator: torch.Generator) -> None:
    inputs = differentiable(*narrowed(scan_inputs(generator, 40)))
    compiled = torch.compile(selective_scan, fullgraph=True)
    gradients = []
    for run in (selective_scan, compiled):
        y, final = run(*inputs, backend=backend)
        gradients.append([y, final, *torch.autograd.grad(y.square().sum() + final.sum(), inputs)])
    for eager, other in zip(*gradients, strict=True):
        assert_close(other, eager)


# Threads.


def test_results_are_bitwise_equal_for_any_number_of_threads(two_threads: None, generator: torch.Generator) -> None:
    inputs = narrowed(scan_inputs(generator, 50, batch=3, d_inner=300))
    weights = draw_weights(inputs, generator)
    several = results(inputs, weights, "numba")
    torch.set_num_threads(1)
    torch.testing.assert_close(results(inputs, weights, "numba"), several, rtol=0, atol=0)


def test_several_threads_can_scan_at_once(two_threads: None, generator: torch.Generator) -> None:
    inputs = narrowed(scan_inputs(generator, 200, d_inner=300))
    expected = selective_scan(*inputs, backend="numba")[0]
    found: list[Tensor] = []

    def work() -> None:
        torch.set_num_threads(2)
        found.extend(selective_scan(*inputs, backend="numba")[0] for _ in range(5))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 15
    assert all(torch.equal(y, expected) for y in found)


@pytest.mark.parametrize(("batch", "d_inner"), [(2, 300), (5, 60)], ids=["channels", "rows"])
@pytest.mark.usefixtures("two_threads")
def test_the_torch_backend_in_several_blocks_is_the_reference(
    batch: int, d_inner: int, generator: torch.Generator
) -> None:
    """With 16 states per channel the work exceeds a block, so channels or rows of the batch are split."""
    inputs = [*scan_inputs(generator, 40, batch=batch, d_inner=d_inner, d_state=16)]
    weights = draw_weights(inputs, generator)
    outputs = scan_loop(*(leaves := differentiable(*inputs)))
    gradients = torch.autograd.grad(sum((o * w).sum() for o, w in zip(outputs, weights, strict=True)), leaves)
    assert_close(results(inputs, weights, "torch"), (*outputs, *gradients))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_scans_too() -> None:
    """Like workers of a DataLoader. A child has no copy of its parent's threads and must not wait for them."""
    program = (
        "import os, torch, zoo.ops\n"
        "torch.set_num_threads(2)\n"
        "x = torch.ones(2, 9, 200)\n"
        "run = lambda: zoo.ops.selective_scan(x, x, -torch.ones(200, 4), x[..., :4], x[..., :4], backend='numba')[0]\n"
        "y = run()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if torch.equal(run(), y) else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    python("-c", program, timeout=120)


SCAN = (
    "import logging, sys, torch, zoo.ops\n"
    "logging.basicConfig(level='INFO', format='%(message)s', stream=sys.stdout)\n"
    "x = torch.ones(1, 3, 2)\n"
    "for _ in range(2):\n"
    "    zoo.ops.selective_scan(x, x, -torch.ones(2, 4), x.mT[:, :1].mT.expand(1, 3, 4), torch.ones(1, 3, 4),"
    " backend='numba')\n"
)


@pytest.mark.slow
def test_compiling_is_logged_once_and_the_code_is_cached(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "code")}
    logged = []
    for _ in range(2):
        done = python("-c", SCAN, env=environment)
        assert done.stderr == ""
        logged.append(done.stdout.splitlines())
    (line,), second = logged
    assert re.fullmatch(rf"compiling the scan \(once; cached in {re.escape(str(tmp_path / 'code'))}/.+\)", line)
    assert second == []
    assert list(tmp_path.rglob("*.nbc"))


@pytest.mark.slow
def test_without_a_writable_cache_the_scan_is_compiled_in_each_process(tmp_path: Path) -> None:
    """As when both the installation and the home folder are read-only."""
    program = f"import numba.core.caching as caching\ncaching.CacheImpl._locator_classes = []\n{SCAN}"
    done = python("-c", program)
    assert done.stdout == "compiling the scan (for this process: no folder can hold the code)\n"


# Decoding.


def test_a_single_step_under_autocast_stays_in_float32(generator: torch.Generator) -> None:
    given = narrowed(scan_inputs(generator, 1))
    expected = selective_scan(*given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for y, exact in zip(selective_scan(*given), expected, strict=True):
            assert_close(y, exact)
