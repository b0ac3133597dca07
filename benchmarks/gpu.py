"""Compare speed on one CUDA device with the memory floor and with public kernels; write docs/performance_gpu.md.

    python -m benchmarks.gpu                     every section
    python -m benchmarks.gpu --only scan steps   these sections; the page keeps the others as they were
    python -m benchmarks.gpu --tune              the scan under other tiles, printed and not published

The tests of the measured code run first, on the device; if they fail, nothing is measured. Public kernels are optional:
`mamba_ssm` and `fla` are included if they can be imported, and listed as missing if not. Candidates take turns in one
process and are timed by CUDA events; medians are reported. The page is written after every measured row.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.launches import reaching
from benchmarks.page import Cell, Section, Table, Target, render_section
from benchmarks.peers import generator, scan_inputs
from benchmarks.performance import describe_run, read_results, tests_pass
from benchmarks.sections import step_of
from benchmarks.timing import Run, forward_only, interleaved, isolated, trained
from zoo import Backbone, create_mixer, list_mixers, state_nbytes
from zoo.contract import SequenceMixer
from zoo.ops.attention import forgetting_attend
from zoo.ops.conv import causal_conv
from zoo.ops.delta_rule import delta_rule, unit_length
from zoo.ops.dplr import dplr
from zoo.ops.ridge import ridge_queries
from zoo.ops.scan import selective_scan
from zoo.ops.slstm import slstm_scan
from zoo.ops.ssd import ssd
from zoo.registry import mixer_class
from zoo.report.files import as_json, write_all

ROOT = Path(__file__).resolve().parent.parent
TESTS = tuple(f"tests/ops/test_{name}.py" for name in ("scan_triton", "chunked_ops", "slstm_triton", "conv_triton"))
RESULTS, PAGE = "benchmarks/gpu.json", "docs/performance_gpu.md"

SCAN_SHAPES = ((8, 2048, 1536, 16), (1, 65536, 1536, 16))  # batch, seq_len, d_inner, d_state
HEADS_SHAPE = (4, 4096, 16, 128)  # batch, seq_len, heads, width of keys and of values
STREAMED = (1_000_000, 4096)  # positions, and positions per chunk
ENDLESS: dict[str, dict[str, Any]] = {
    "selective_ssm": {},
    "gated_delta_net": {},
    "hybrid": {"pattern": ["selective_ssm", "sliding_attention"]},
    "log_linear_ssd": {},
}
LONG = ("hybrid", "moba", "nsa", "dsa", "forgetting_attention", "path_attention", "gated_delta_net", "ssd")
COMPILED = ("gated_delta_net", "kda", "nsa")
ROUNDS, STEP_ROUNDS = 21, 5
DEVICE = "cuda"
COPY_BYTES = 4 << 30
TYPES = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Model:
    """Sizes of a language model with about 130 million parameters, and of its batch."""

    d_model: int = 768
    d_head: int = 64
    n_layers: int = 12
    vocab_size: int = 32_000
    batch_size: int = 4
    seq_len: int = 4096


MODEL = Model()
LENGTHS = {4096: 4, 8192: 2, 16384: 1, 32768: 1}
"""Sequence length -> batch size of a step."""

# Counting and timing.


def scan_bytes(batch: int, seq_len: int, d_inner: int, d_state: int, size: int) -> tuple[int, int]:
    """Count the bytes that any selective scan must move, forward and backward; an entry of x has `size` bytes.

    Each tensor counts once. Forward reads x, dt, B, C, A and a state and writes y and a state. Backward reads x, dt, B,
    C, A and the gradients of y and the final state, and writes a gradient for each of the six inputs. Intermediate
    states of an implementation do not count.
    """
    wide, narrow = batch * seq_len * d_inner * size, batch * seq_len * d_state * size
    rates, state = 4 * d_inner * d_state, 4 * batch * d_inner * d_state
    return 3 * wide + 2 * narrow + rates + 2 * state, 5 * wide + 4 * narrow + 2 * rates + 2 * state


def timed(candidates: Mapping[str, Run], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the median seconds of each candidate on the device; all take turns in every round."""
    for run in candidates.values():  # compile; the warm-up of `interleaved` then fills the allocator
        run()
    return interleaved(candidates, rounds, math.inf, _device_seconds)


def _device_seconds(run: Run) -> float:
    """Return the device time of a run; the device first sleeps, so that the host can queue the run."""
    torch.cuda._sleep(2_000_000)  # cycles, about a millisecond
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def copy_bandwidth() -> float:
    """Measure the bytes per second that a copy within the device's memory reads and writes."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=DEVICE).random_()
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / timed({"copy": lambda: target.copy_(source)})["copy"]


def available(kernels: Mapping[str, str]) -> tuple[dict[str, Callable[..., Any]], list[str]]:
    """Import functions given as {name: "module:function"}; return them by name, and the names of missing ones."""
    found, missing = {}, []
    for name, place in kernels.items():
        module, _, function = place.partition(":")
        try:
            found[name] = getattr(import_module(module), function)
        except (ImportError, AttributeError):
            missing.append(name)
    return found, missing


def _absent(missing: Sequence[str]) -> str:
    return f" Not installed here: {', '.join(missing)}." if missing else ""


def passes(form: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[Run, Run]:
    """Return the forward pass of `form` without gradients, and its backward pass for a fixed cotangent."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    y = form(*leaves)
    cotangent = torch.randn_like(y)
    return forward_only(form, inputs), lambda: torch.autograd.grad(y, leaves, cotangent, retain_graph=True)


def difference(ours: Tensor, theirs: Tensor) -> float:
    """Return |ours - theirs| / |theirs|."""
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


# The sections. Each yields itself after every row, so that an interrupted run keeps its measurements.


def scan() -> Iterator[Section]:
    """Compare the selective scan with the memory floor and with mamba_ssm."""
    found, missing = available({"mamba_ssm": "mamba_ssm.ops.selective_scan_interface:selective_scan_fn"})
    bandwidth = copy_bandwidth()
    section = Section(
        f"The state is float32. The floor of time is the bytes that must be moved, each tensor once, at the"
        f" {bandwidth / 1e12:.2f} TB/s of a copy on this device. The floor of memory is the output and the gradients of"
        f" output and inputs.{_absent(missing)}"
    )
    columns = ["ours ms", "GB", "floor ms", "ours / floor", "mamba_ssm / ours", "memory / floor", "mamba_ssm's"]
    table = Table("", ["batch, length, d_inner, N", "numbers", "pass", *columns])
    section.tables.append(table)
    for shape, dtype in itertools.product(SCAN_SHAPES, TYPES):
        given = [t.to(DEVICE) for t in scan_inputs(*shape, generator())]
        given = [t if i == 2 else t.to(dtype) for i, t in enumerate(given)]  # A stays float32
        forms = {"ours": (_scan, given)}
        if found:
            forms["mamba_ssm"] = found["mamba_ssm"], _time_last(given)
        memory = {name: peak_above(*form) / gradient_bytes(*form) for name, form in forms.items()}
        runs = {name: passes(*form) for name, form in forms.items()}
        for index, direction in enumerate(("forward", "backward")):
            seconds = timed({name: both[index] for name, both in runs.items()})
            moved = scan_bytes(*shape, dtype.itemsize)[index]
            floor, ours = moved / bandwidth, seconds["ours"]
            what = f"scan {', '.join(map(str, shape))}, {_name(dtype)}"
            ratio = seconds["mamba_ssm"] / ours if found else None
            row: list[Cell] = [1e3 * ours, moved / 1e9, 1e3 * floor, ours / floor, ratio]
            row += [memory["ours"], memory.get("mamba_ssm")]
            table.rows.append([", ".join(map(str, shape)), _name(dtype), direction, *row])
            if ratio is not None:
                section.targets.append(Target(f"{what} {direction}, times as fast as mamba_ssm", 1.0, ratio))
        section.targets.append(Target(f"{what}, memory over the floor", 2.0, memory["ours"], least=False))
        del runs, forms, given
        yield section


def gradient_bytes(form: Callable[..., Tensor], inputs: Sequence[Tensor]) -> int:
    """Count the bytes that any forward and backward pass must allocate: the output and all gradients."""
    with torch.no_grad():
        return 2 * form(*inputs).nbytes + sum(t.nbytes for t in inputs)


def peak_above(form: Callable[..., Tensor], inputs: Sequence[Tensor]) -> int:
    """Return torch's peak allocation in a forward and a backward pass, above the inputs."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    leaves = [t.detach().requires_grad_() for t in inputs]
    y = form(*leaves)
    torch.autograd.grad(y, leaves, torch.ones_like(y))
    return torch.cuda.max_memory_allocated() - before


def _scan(*inputs: Tensor) -> Tensor:
    """Call the scan as the mixers do, without checks of the signs of dt and A."""
    return selective_scan(*inputs, check=False)[0]


def _time_last(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the inputs in mamba_ssm's memory layout (batch, channels, seq), so that it needs no copy."""
    x, dt, A, B, C = inputs
    x, dt, B, C = (t.transpose(1, 2).contiguous() for t in (x, dt, B, C))
    return [x, dt, A, B, C]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def chunked() -> Iterator[Section]:
    """Compare SSD, the delta rules and gated linear attention with flash-linear-attention."""
    kernels = {
        "ssd": "fla.ops.simple_gla:chunk_simple_gla",
        "delta rule": "fla.ops.delta_rule:chunk_delta_rule",
        "gated delta rule": "fla.ops.gated_delta_rule:chunk_gated_delta_rule",
        "gated linear attention": "fla.ops.gla:chunk_gla",
    }
    found, missing = available(kernels)
    batch, seq_len, heads, width = HEADS_SHAPE
    section = Section(
        f"batch {batch}, length {seq_len}, {heads} heads with keys and values of width {width}. Our products are in the"
        " precision of the column `numbers`, our states in float32. fla's kernels are made for bfloat16; there both get"
        " bfloat16 inputs. The last column shows that both compute the same map."
        f"{_absent([f'fla ({name})' for name in missing])}"
    )
    columns = ["ours ms", "fla ms", "fla / ours", "memory / floor", "fla's", "difference"]
    table = Table("", ["map", "numbers", "pass", *columns])
    section.tables.append(table)
    for name, numbers in itertools.product(kernels, ("float32", "tf32", "bfloat16")):
        given = _head_inputs(name, torch.bfloat16 if numbers == "bfloat16" else torch.float32)
        forms = {"ours": (_in_numbers(_ours(name), numbers), given)}
        apart = None
        if name in found and numbers == "bfloat16":
            forms["fla"] = theirs = _theirs(found[name]), given
            with torch.no_grad():
                apart = difference(*(form(*inputs) for form, inputs in (forms["ours"], theirs)))
        runs = {form: passes(*each) for form, each in forms.items()}
        backwards = [form for form, both in runs.items() if _runs(both[1])]
        memory = {form: peak_above(*forms[form]) / gradient_bytes(*forms[form]) for form in backwards}
        for index, direction in enumerate(("forward", "backward")):
            chosen = {form: both[index] for form, both in runs.items() if index == 0 or form in backwards}
            seconds = timed(chosen)
            fla = seconds.get("fla")
            ratio = fla / seconds["ours"] if fla else None
            cells: list[Cell] = [1e3 * seconds["ours"], 1e3 * fla if fla else None, ratio]
            table.rows.append([name, numbers, direction, *cells, memory["ours"], memory.get("fla"), apart])
            if ratio is not None:
                section.targets.append(Target(f"{name} {direction}, times as fast as fla", 0.8, ratio))
        del runs, forms
        yield section


def _runs(run: Run) -> bool:
    """Return whether this runs: fla raises for some backward passes that Triton would compile wrongly."""
    try:
        run()
    except RuntimeError as error:
        print(f"  left out: {error}", file=sys.stderr)
        return False
    return True


def _in_numbers(form: Callable[..., Tensor], numbers: str) -> Callable[..., Tensor]:
    """Run `form` with products in float32, in tf32, or in bfloat16 by autocast."""

    def run(*inputs: Tensor) -> Tensor:
        torch.set_float32_matmul_precision("high" if numbers == "tf32" else "highest")
        try:
            with torch.autocast(DEVICE, torch.bfloat16, enabled=numbers == "bfloat16"):
                return form(*inputs)
        finally:
            torch.set_float32_matmul_precision("highest")

    return run


def _head_inputs(name: str, dtype: torch.dtype) -> list[Tensor]:
    """Draw q, k, v (batch, seq, heads, width), then the map's log-decay or beta or both, in fla's order."""
    draw = generator()
    batch, seq_len, heads, width = HEADS_SHAPE
    q, k, v = (torch.randn(batch, seq_len, heads, width, generator=draw) for _ in range(3))
    q, k = unit_length(q), unit_length(k)
    shape = (batch, seq_len, heads, width) if name == "gated linear attention" else (batch, seq_len, heads)
    log_decay = torch.nn.functional.logsigmoid(4 + torch.randn(shape, generator=draw))
    beta = torch.rand(batch, seq_len, heads, generator=draw)
    more = {"delta rule": [beta], "gated delta rule": [log_decay, beta]}.get(name, [log_decay])
    return [t.to(DEVICE, torch.float32 if t is log_decay else dtype) for t in (q, k, v, *more)]


def _ours(name: str) -> Callable[..., Tensor]:
    """Return our map with fla's layout, from the empty state."""

    def form(*inputs: Tensor) -> Tensor:
        q, k, v, *more = (t.transpose(1, 2) for t in inputs)
        empty = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3], dtype=torch.float32)
        if name == "ssd":
            y = ssd(q, k, v, more[0], empty)[0]
        elif name == "gated linear attention":
            y = dplr(q, k, v, more[0], None, None, empty)[0]
        else:
            y = delta_rule(q, k, v, more[-1], more[0] if len(more) == 2 else None, empty)[0]
        return y.transpose(1, 2)

    return form


def _theirs(kernel: Callable[..., Any]) -> Callable[..., Tensor]:
    return lambda *inputs: kernel(*inputs, scale=1.0)[0]


def kernels() -> Iterator[Section]:
    """Compare our Triton kernels with the same maps in torch: speed and difference."""
    batch, seq_len, heads, width = HEADS_SHAPE
    section = Section(
        "Each kernel of the zoo, and FlexAttention, compared with plain torch operations. The scan has the first shape"
        f" above, the others batch {batch}, length {seq_len}, {heads} heads of width {width}. All are in float32 except"
        " SSD and the delta rule, whose products have bfloat16 operands by autocast."
    )
    table = Table("", ["kernel", "pass", "Triton ms", "torch ms", "torch / Triton", "difference"])
    section.tables.append(table)
    rates = {"scores with a decay per channel": "gated linear attention", "erased states": "gated delta rule"}
    forms = {name: (_ours(of), _head_inputs(of, torch.float32)) for name, of in rates.items()}
    forms["selective scan"] = _scan, [t.to(DEVICE) for t in scan_inputs(*SCAN_SHAPES[0], generator())]
    for name in ("ssd", "gated delta rule"):
        forms[name] = _in_numbers(_ours(name), "bfloat16"), _head_inputs(name, torch.bfloat16)
    forms["slstm"] = _slstm, _slstm_inputs()
    forms["short convolution"] = _conv, _conv_inputs()
    q, k, _, *more = _head_inputs("gated delta rule", torch.float32)
    forms["conjugate gradients"] = _ridge, [q, k, *more]
    forms["forgetting attention"] = _forgetting, _head_inputs("ssd", torch.float32)
    for name, (form, given) in forms.items():
        runs = {"Triton": passes(form, given), "torch": [in_torch(run) for run in in_torch(passes)(form, given)]}
        with torch.no_grad():
            apart = difference(form(*given), in_torch(form)(*given))
        for index, direction in enumerate(("forward", "backward")):
            seconds = timed({road: both[index] for road, both in runs.items()}, STEP_ROUNDS)
            table.rows.append([name, direction, *(1e3 * each for each in seconds.values())])
            table.rows[-1] += [seconds["torch"] / seconds["Triton"], apart]
        yield section


def in_torch(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run` without Triton kernels; wrap a backward pass too, because it selects its kernel when it runs."""

    def without(*given: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for place in ("carry", "slstm", "ridge", "attention", "conv", "ssd", "dplr"):
                stack.enter_context(mock.patch(f"zoo.ops.{place}.kernels_suffice", return_value=False))
            stack.enter_context(mock.patch("zoo.ops.scan._choose", return_value="torch"))
            return run(*given)

    return without


def _ridge(*inputs: Tensor) -> Tensor:
    q, k, log_decay, beta = (t.transpose(1, 2) for t in inputs)
    empty = q.new_zeros(*q.shape[:2], q.shape[3], q.shape[3])
    return ridge_queries(q, k, beta, log_decay, q.new_ones(q.shape[1], q.shape[3]), empty, 30)[0]


def _forgetting(*inputs: Tensor) -> Tensor:
    q, k, v, log_decay = (t.transpose(1, 2) for t in inputs)
    cached = torch.zeros(len(q), dtype=torch.int64, device=q.device)
    return forgetting_attend(q, k, v, cached, log_decay, log_decay[:, :, :0])


def _conv(x: Tensor, weight: Tensor, tail: Tensor) -> Tensor:
    return causal_conv(x, weight, None, tail)[0]


def _conv_inputs() -> list[Tensor]:
    batch, seq_len, heads, width = HEADS_SHAPE
    shapes = (batch, seq_len, heads * width), (heads * width, 4), (batch, 3, heads * width)
    return [torch.randn(shape, generator=generator()).to(DEVICE) for shape in shapes]


def _slstm(u: Tensor, recurrent: Tensor) -> Tensor:
    h = u.new_zeros(*u.shape[:2], u.shape[4])
    return slstm_scan(u, recurrent, (h, h, h, torch.full_like(h, -math.inf)))[0]


def _slstm_inputs() -> list[Tensor]:
    batch, seq_len, heads, width = HEADS_SHAPE
    u = torch.randn(batch, heads, seq_len, 4, width, generator=generator())
    recurrent = torch.randn(4, heads, width, width, generator=generator()) / width
    return [u.to(DEVICE), recurrent.to(DEVICE)]


def options(name: str, seq_len: int) -> dict[str, Any]:
    """Return the options of a mixer in the model: its number of heads and its maximal length, if it has them."""
    takes = inspect.signature(mixer_class(name)).parameters
    heads = "n_heads" in takes or name in ("hybrid", "parallel_hybrid")
    return reaching(name, seq_len) | ({"n_heads": MODEL.d_model // MODEL.d_head} if heads else {})


def training_step(name: str, seq_len: int, batch_size: int, *, compiled: bool = False) -> Run:
    """Return one step of the model, in bfloat16 by autocast; with `compiled`, each layer goes through torch.compile."""
    torch.manual_seed(0)
    with torch.device(DEVICE):
        mixer = {"name": name, **options(name, seq_len)}
        sizes = {"n_layers": MODEL.n_layers, "n_outputs": MODEL.vocab_size, "vocab_size": MODEL.vocab_size}
        model = Backbone(mixer, MODEL.d_model, **sizes)
    if compiled:
        for layer in model.layers.chain():  # equal layers share their code; compiling the whole model takes minutes
            layer.stream = torch.compile(layer.stream)
    return step_of(model, batch_size, seq_len, half=True)


def steps() -> Iterator[Section]:
    """Measure a training step of each mixer, and whether it makes the host wait."""
    section = Section(
        f"One training step (forward, backward, AdamW) of {MODEL.n_layers} layers at d_model {MODEL.d_model} with"
        f" SwiGLU and {MODEL.vocab_size:,} tokens, about 130 million parameters with attention, heads of width"
        f" {MODEL.d_head}; length {MODEL.seq_len:,}, batch {MODEL.batch_size}, bfloat16 by autocast, in turns with"
        " attention's step. Memory is torch's peak allocation. The last column shows whether the host waits for the"
        " device in a step."
    )
    table = Table("", ["mixer", "ms/step", "tokens/s", "/ attention's", "peak GB", "waits"])
    section.tables.append(table)
    shape = MODEL.seq_len, MODEL.batch_size
    reference = training_step("attention", *shape)
    for name in list_mixers():
        torch.cuda.empty_cache()
        try:
            before = torch.cuda.memory_allocated()
            step = training_step(name, *shape)
            seconds = timed({name: step, "reference": reference}, STEP_ROUNDS)
            rate, ratio = math.prod(shape) / seconds[name], seconds["reference"] / seconds[name]
            torch.cuda.reset_peak_memory_stats()
            step()
            peak = (torch.cuda.max_memory_allocated() - before) / 1e9
            table.rows.append([name, 1e3 * seconds[name], int(rate), ratio, peak, waits(step)])
        except torch.OutOfMemoryError:
            table.rows.append([name, None, None, None, None, "out of memory"])
        step = None
        yield section
    slow = [str(row[0]) for row in table.rows if not isinstance(row[3], float) or row[3] < 0.5]
    what = f"mixers below half of attention's tokens a second{': ' if slow else ''}{', '.join(slow)}"
    section.targets.append(Target(what, 0, len(slow), least=False))
    yield section


def compiled() -> Iterator[Section]:
    """Measure a training step with compiled layers."""
    section = Section(
        "The steps above with each layer through torch.compile, in turns with the uncompiled step and with attention's"
        " compiled step."
    )
    table = Table("", ["mixer", "ms/step", "compiled", "times as fast", "compiled / attention's, compiled"])
    section.tables.append(table)
    shape = MODEL.seq_len, MODEL.batch_size
    for name in COMPILED:
        torch.compiler.reset()
        torch.cuda.empty_cache()
        runs = {"plain": training_step(name, *shape)}
        runs |= {each: training_step(each, *shape, compiled=True) for each in (name, "attention")}
        seconds = timed(runs, STEP_ROUNDS)
        ours = seconds[name]
        row: list[Cell] = [1e3 * seconds["plain"], 1e3 * ours, seconds["plain"] / ours, seconds["attention"] / ours]
        table.rows.append([name, *row])
        yield section


def graphs() -> Iterator[Section]:
    """Capture a training step of each mixer as a CUDA graph, in separate processes, since a failure breaks CUDA."""
    section = Section("A training step as above, captured as one CUDA graph and replayed.")
    table = Table("", ["mixer", "ms as a graph", "why not"])
    section.tables.append(table)
    for name in list_mixers():
        table.rows.append([name, *isolated(_replayed, name)])
        yield section


def _replayed(name: str) -> tuple[float | None, str | None]:
    try:
        replay = captured(training_step(name, MODEL.seq_len, MODEL.batch_size))
        return 1e3 * timed({name: replay}, STEP_ROUNDS)[name], None
    except RuntimeError as error:  # also out of memory
        return None, str(error).partition("\n")[0]


def lengths() -> Iterator[Section]:
    """Measure time and memory of a training step against the length."""
    section = Section(
        "A training step as above at length L, "
        + ", ".join(f"batch {batch} at {n:,}" for n, batch in LENGTHS.items())
        + ": tokens per second as multiples of attention's, measured in turns, and peak memory in GB."
    )
    heads = [f"{what} at {n:,}" for what in ("speed", "GB") for n in LENGTHS]
    table = Table("", ["mixer", *heads])
    section.tables.append(table)
    for name in LONG:
        found: list[tuple[Cell, Cell]] = []
        for shape in LENGTHS.items():
            torch.cuda.empty_cache()
            try:
                runs = {each: training_step(each, *shape) for each in (name, "attention")}
                seconds = timed(runs, 3)
                torch.cuda.reset_peak_memory_stats()
                runs[name]()
                found.append((seconds["attention"] / seconds[name], torch.cuda.max_memory_allocated() / 1e9))
            except torch.OutOfMemoryError:
                found.append((None, None))
            runs = {}
            if name == "hybrid" and shape[0] >= 8192 and isinstance(found[-1][0], float):
                what = f"hybrid at {shape[0]:,} positions, times attention's tokens a second"
                section.targets.append(Target(what, 1.0, found[-1][0]))
        table.rows.append([name, *(cell for column in zip(*found, strict=True) for cell in column)])
        yield section


def waits(step: Run) -> str:
    """Return "no" if the host does not wait for the device in a step, else torch's error about the first wait."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "no"


def captured(step: Run) -> Run:
    """Return the replay of a step that is captured as one CUDA graph.

    Raises:
        RuntimeError: part of the step cannot be captured.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # torch requires a warm-up: one-time allocations must precede the capture
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def stream() -> Iterator[Section]:
    """Measure a million tokens through `stream`."""
    n_tokens, chunk = STREAMED
    section = Section(
        f"{n_tokens:,} positions at d_model {MODEL.d_model}, batch 1, in chunks of {chunk:,} that continue from the"
        " previous state; float32, without gradients. Memory is torch's peak allocation over the first tenth, and over"
        " all positions."
    )
    table = Table("", ["mixer", "tokens/s", "MB, first tenth", "MB", "state MB"])
    section.tables.append(table)
    for name, own in ENDLESS.items():
        mixer = create_mixer(name, MODEL.d_model, **options(name, n_tokens), **own).to(DEVICE)
        x = torch.randn(1, chunk, MODEL.d_model, generator=generator()).to(DEVICE)
        _streamed(mixer, x, 2 * chunk)
        peaks, seconds = [], 0.0
        for n in (n_tokens // 10, n_tokens):
            torch.cuda.reset_peak_memory_stats()
            seconds = _device_seconds(partial(_streamed, mixer, x, n))
            peaks.append(torch.cuda.max_memory_allocated() / 1e6)
        state = state_nbytes(_streamed(mixer, x, chunk)) / 1e6
        table.rows.append([name, int(n_tokens / seconds), *peaks, state])
        yield section


@torch.no_grad()
def _streamed(mixer: SequenceMixer, x: Tensor, n_tokens: int) -> Any:
    state = None
    for first in range(0, n_tokens, x.shape[1]):
        _, state = mixer.stream(x[:, : n_tokens - first], state)
    return state


def end_to_end() -> Iterator[Section]:
    """Measure `train.py --mixer hybrid`: eager and compiled, float32 and bfloat16."""
    variants = [(precision, compiled) for precision in ("32", "bf16-mixed") for compiled in ("false", "true")]
    rates: dict[tuple[str, str], list[float]] = {variant: [] for variant in variants}
    for _ in range(3):
        for variant in variants:
            precision, compiled = variant
            flags = ["--mixer", "hybrid", "--d_model", "256", "--batch_size", "64", "--compile", compiled]
            flags += ["--trainer.accelerator", "gpu", "--trainer.precision", precision]
            metrics, _ = trained(*flags, "--trainer.max_steps", "300", "--figures_every", "0")
            rates[variant].append(metrics["tokens_per_second"])
    eager = statistics.median(rates["32", "false"])
    table = Table("", ["precision", "compiled", "tokens/s", "times the first line"])
    for (precision, compiled), each in rates.items():
        rate = statistics.median(each)
        table.rows.append([precision, "yes" if compiled == "true" else "no", int(rate), rate / eager])
    about = "Reported by `python train.py --mixer hybrid --d_model 256 --batch_size 64` on MQAR; medians of three runs."
    yield Section(about, [table])


SECTIONS: dict[str, tuple[str, Callable[[], Iterator[Section]]]] = {
    "scan": ("Selective scan", scan),
    "chunked": ("SSD, delta rules, gated linear attention", chunked),
    "kernels": ("Kernels against torch", kernels),
    "steps": ("A training step of each mixer", steps),
    "compiled": ("A training step, compiled", compiled),
    "graphs": ("A training step as a CUDA graph", graphs),
    "lengths": ("A training step with length", lengths),
    "stream": ("A million tokens through stream", stream),
    "end_to_end": ("End to end", end_to_end),
}


# The scan under other tiles.

STEPS = (4, 8, 16)
TILES = ((8, 1), (16, 1), (16, 2), (16, 4), (32, 2), (32, 4))  # channels, warps


def tune() -> None:
    """Print the times of the scan for tiles and steps around the defaults of zoo/ops/scan_triton.py."""
    from zoo.ops import scan_triton

    for shape, step, (channels, warps) in itertools.product(SCAN_SHAPES, STEPS, TILES):
        x, dt, A, B, C = (t.to(DEVICE) for t in scan_inputs(*shape, generator()))
        state = x.new_zeros(shape[0], *A.shape)
        tile = scan_triton.Tile(scan_triton.forward_tile(shape[3]).states, channels, warps)
        tiles = dict.fromkeys(("forward_tile", "backward_tile"), lambda _, tile=tile: tile)
        with mock.patch.multiple(scan_triton, STEPS=step, STEPS_BACKWARD=step, **tiles):
            forward = partial(scan_triton.scan, x, dt, A, B, C, state)
            y, final, entering = forward()
            backward = partial(scan_triton.scan_backward, y, final, x, dt, A, B, C, entering)
            runs: dict[str, Run] = {"forward": forward, "backward": backward}
            times = ", ".join(f"{name} {1e3 * each:.3f} ms" for name, each in timed(runs, 5).items())
        print(f"{shape}, {step} steps, {channels} channels, {warps} warps: {times}", flush=True)


# The page.


def page(results: Mapping[str, Any]) -> str:
    """Return the text of docs/performance_gpu.md for the contents of benchmarks/gpu.json."""
    lines = ["# Performance on a GPU", ""]
    lines += ["Made by `python -m benchmarks.gpu`; edit that, not this page. Ratios are of"]
    lines += ["medians, measured in turns in one process. On a CPU: [performance](performance.md).", ""]
    for name, (title, _) in SECTIONS.items():
        if name in results:
            lines += render_section(title, Section.from_plain(results[name]), results[name]["measured"])
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks and return the exit status: 2 without a CUDA device, or if the tests fail."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--tune", action="store_true", help="time the scan under other tiles and stop")
    parser.add_argument("--out", type=Path, default=ROOT, help="output folder; default the repository's root")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("gpu.py: error: no CUDA device here; on a CPU: python -m benchmarks.performance", file=sys.stderr)
        return 2
    if options.tune:
        tune()
        return 0
    if not tests_pass(TESTS):
        print("gpu.py: error: tests of the measured code fail; nothing was measured", file=sys.stderr)
        return 2
    results = read_results(options.out / RESULTS)
    for name in options.only or SECTIONS:
        print(f"{SECTIONS[name][0]} ...", flush=True)
        measured = f"{torch.cuda.get_device_name()}, {describe_run()}"
        for section in SECTIONS[name][1]():
            results[name] = {"measured": measured, **section.to_plain()}
            write_all(options.out, {RESULTS: as_json(results), PAGE: page(results)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
