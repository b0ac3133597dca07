"""Compare speed on one CUDA device with the memory floor and with public kernels; write docs/performance_gpu.md.

    python benchmarks/gpu.py                     every section
    python benchmarks/gpu.py --only scan steps   these sections; the page keeps the others as they were
    python benchmarks/gpu.py --tune              the scan under other tiles, printed and not published

First it runs the tests of what is timed, on the device, and measures nothing if they fail. Public kernels are included
if they can be imported (`mamba_ssm`, `fla`, `mambapy`) and listed as missing if not; nothing else is needed. Candidates
take turns in one process and are timed by CUDA events; medians are kept.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.page import Cell, Section, Table, Target, render_section  # noqa: E402
from benchmarks.peers import generator, mambapy_scan, scan_inputs  # noqa: E402
from benchmarks.performance import describe_run, read_results, tests_pass  # noqa: E402
from benchmarks.sections import FULL, same_state, state_numbers, training_step  # noqa: E402
from benchmarks.timing import Run, forward_only, interleaved, trained  # noqa: E402
from zoo import create_mixer  # noqa: E402
from zoo.contract import SequenceMixer  # noqa: E402
from zoo.ops.attention import forgetting_attend  # noqa: E402
from zoo.ops.delta_rule import delta_rule, unit_length  # noqa: E402
from zoo.ops.dplr import dplr  # noqa: E402
from zoo.ops.ridge import ridge_queries  # noqa: E402
from zoo.ops.scan import selective_scan  # noqa: E402
from zoo.ops.slstm import slstm_scan  # noqa: E402
from zoo.ops.ssd import ssd  # noqa: E402
from zoo.report.files import as_json, write_all  # noqa: E402

TESTS = ("tests/ops/test_scan_triton.py", "tests/ops/test_chunked_ops.py", "tests/ops/test_slstm.py")
RESULTS, PAGE = "benchmarks/gpu.json", "docs/performance_gpu.md"

SCAN_SHAPE = (8, 4096, 2048, 16)  # batch, seq_len, d_inner, d_state
HEADS_SHAPE = (4, 4096, 16, 128)  # batch, seq_len, heads, width of keys and of values
STREAMED = (1_000_000, 4096)  # positions, and how many at a time
PAIRS = ("attention", "forgetting_attention", "path_attention", "moba", "nsa", "dsa", "gated_delta_net")
ROUNDS = 21
DEVICE = "cuda"
COPY_BYTES = 4 << 30
TYPES = (torch.float32, torch.bfloat16)

# Counting and timing.


def scan_bytes(batch: int, seq_len: int, d_inner: int, d_state: int, size: int) -> tuple[int, int]:
    """Count the bytes that any selective scan must move, each tensor once; x's numbers have `size` bytes.

    Forward reads x, dt, B, C, A and a state and writes y and a state. Backward reads x, dt, B, C, A and the gradients
    of y and the final state, and writes a gradient for each of the six inputs. States that an implementation keeps in
    between are not counted.
    """
    wide, narrow = batch * seq_len * d_inner * size, batch * seq_len * d_state * size
    rates, state = 4 * d_inner * d_state, 4 * batch * d_inner * d_state
    return 3 * wide + 2 * narrow + rates + 2 * state, 5 * wide + 4 * narrow + 2 * rates + 2 * state


def timed(candidates: Mapping[str, Run], rounds: int = ROUNDS) -> dict[str, float]:
    """Return the median seconds of each candidate on the device; in every round each has its turn."""
    for run in candidates.values():  # compiles; the first turn, which is not measured, fills the allocator
        run()
    return interleaved(candidates, rounds, math.inf, _device_seconds)


def _device_seconds(run: Run) -> float:
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
    """Return functions by their shown names, from "module:function", and the names of those not installed."""
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
    """|ours - theirs| / |theirs|."""
    return float((ours.double() - theirs.double()).norm() / theirs.double().norm())


# The sections.


def scan() -> Section:
    """Measure the selective scan against the memory floor and the public kernels."""
    kernels = {"mamba_ssm": "mamba_ssm.ops.selective_scan_interface:selective_scan_fn"}
    kernels |= {"mamba.py": "mambapy.pscan:pscan"}
    found, missing = available(kernels)
    bandwidth = copy_bandwidth()
    batch, seq_len, d_inner, d_state = SCAN_SHAPE
    section = Section(
        f"batch {batch}, length {seq_len}, d_inner {d_inner}, N {d_state}; the state is float32. The floor is the bytes"
        f" that must be moved, each tensor once, at the {bandwidth / 1e12:.2f} TB/s that a copy reaches here."
        f" flash-linear-attention has no scan of its own.{_absent(missing)}"
    )
    table = Table("", ["numbers", "pass", "ours ms", "GB", "floor ms", "ours / floor", *(f"{n} / ours" for n in found)])
    for dtype in TYPES:
        given = [t.to(DEVICE) for t in scan_inputs(*SCAN_SHAPE, generator())]
        given = [t if i == 2 else t.to(dtype) for i, t in enumerate(given)]  # A stays float32
        runs = {"ours": passes(_scan, given)}
        if "mamba_ssm" in found:
            runs["mamba_ssm"] = passes(found["mamba_ssm"], _time_last(given))
        if "mamba.py" in found and dtype == torch.float32:
            with contextlib.suppress(torch.OutOfMemoryError):  # it makes every state, and more than once
                both = passes(mambapy_scan, given)
                both[1]()
                runs["mamba.py"] = both
        for index, direction in enumerate(("forward", "backward")):
            seconds = timed({name: both[index] for name, both in runs.items()})
            moved = scan_bytes(*SCAN_SHAPE, dtype.itemsize)[index]
            floor = moved / bandwidth
            ratios: list[Cell] = [seconds[n] / seconds["ours"] if n in seconds else None for n in found]
            row = [1e3 * seconds["ours"], moved / 1e9, 1e3 * floor, seconds["ours"] / floor]
            table.rows.append([_name(dtype), direction, *row, *ratios])
            if direction == "forward":
                what = f"scan {_name(dtype)}, forward over the memory floor"
                section.targets.append(Target(what, 2.0, seconds["ours"] / floor, least=False))
            if "mamba_ssm" in seconds:
                what = f"scan {_name(dtype)} {direction}, times as fast as mamba_ssm"
                section.targets.append(Target(what, 1.0, seconds["mamba_ssm"] / seconds["ours"]))
        del runs, given
    section.tables.append(table)
    return section


def _scan(*inputs: Tensor) -> Tensor:
    """Call the scan as the mixers do: they have made dt and A with the right sign."""
    return selective_scan(*inputs, check=False)[0]


def _time_last(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return what mamba_ssm takes: (batch, channels, seq), in memory too, so that no copy is charged to it."""
    x, dt, A, B, C = inputs
    x, dt, B, C = (t.transpose(1, 2).contiguous() for t in (x, dt, B, C))
    return [x, dt, A, B, C]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def chunked() -> Section:
    """SSD, the delta rules and gated linear attention against flash-linear-attention."""
    kernels = {
        "ssd": "fla.ops.simple_gla:chunk_simple_gla",
        "delta rule": "fla.ops.delta_rule:chunk_delta_rule",
        "gated delta rule": "fla.ops.gated_delta_rule:chunk_gated_delta_rule",
        "gated linear attention": "fla.ops.gla:chunk_gla",
    }
    found, missing = available(kernels)
    batch, seq_len, heads, width = HEADS_SHAPE
    section = Section(
        f"batch {batch}, length {seq_len}, {heads} heads of keys and values of width {width}. Ours is PyTorch and"
        " computes in float32 whatever the inputs are; fla's kernels are made for bfloat16. The column of differences"
        " says that both compute the same map."
        f"{_absent([f'fla ({name})' for name in missing])}"
    )
    table = Table("", ["map", "numbers", "pass", "ours ms", "fla ms", "fla / ours", "difference"])
    for name in kernels:
        for dtype in TYPES:
            given = _head_inputs(name, dtype)
            runs = {"ours": passes(_ours(name), given)}
            apart = None
            if name in found and dtype == torch.bfloat16:
                theirs = _theirs(found[name])
                runs["fla"] = passes(theirs, given)
                with torch.no_grad():
                    apart = difference(_ours(name)(*given), theirs(*given))
            for index, direction in enumerate(("forward", "backward")):
                seconds = timed({form: both[index] for form, both in runs.items()})
                fla = seconds.get("fla")
                ratio = fla / seconds["ours"] if fla else None
                cells: list[Cell] = [1e3 * seconds["ours"], 1e3 * fla if fla else None, ratio, apart]
                table.rows.append([name, _name(dtype), direction, *cells])
    section.tables.append(table)
    return section


def _head_inputs(name: str, dtype: torch.dtype) -> list[Tensor]:
    """q, k, v (batch, seq, heads, width) and what else the map has, in fla's order: decay, or beta, or both."""
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
    """Compute the zoo's map in fla's layout, from the empty state."""

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


def kernels() -> Section:
    """Measure the Triton kernels against the same maps in torch, and their difference."""
    batch, seq_len, heads, width = HEADS_SHAPE
    section = Section(
        "Each kernel of the zoo, and FlexAttention, against plain operations of torch: the scan at the shapes above,"
        f" the others at batch {batch}, length {seq_len}, {heads} heads of width {width}. float32."
    )
    table = Table("", ["kernel", "pass", "Triton ms", "torch ms", "torch / Triton", "difference"])
    rates = {"decayed states": "gated linear attention", "erased states": "gated delta rule"}
    forms = {name: (_ours(of), _head_inputs(of, torch.float32)) for name, of in rates.items()}
    forms["selective scan"] = _scan, [t.to(DEVICE) for t in scan_inputs(*SCAN_SHAPE, generator())]
    forms["slstm"] = _slstm, _slstm_inputs()
    q, k, _, *more = _head_inputs("gated delta rule", torch.float32)
    forms["conjugate gradients"] = _ridge, [q, k, *more]
    forms["forgetting attention"] = _forgetting, _head_inputs("ssd", torch.float32)
    for name, (form, given) in forms.items():
        runs = {"Triton": passes(form, given), "torch": [in_torch(run) for run in in_torch(passes)(form, given)]}
        with torch.no_grad():
            apart = difference(form(*given), in_torch(form)(*given))
        for index, direction in enumerate(("forward", "backward")):
            seconds = timed({road: both[index] for road, both in runs.items()}, FULL.step_rounds)
            table.rows.append([name, direction, *(1e3 * each for each in seconds.values())])
            table.rows[-1] += [seconds["torch"] / seconds["Triton"], apart]
    section.tables.append(table)
    return section


def in_torch(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return `run` without the kernels: also a backward pass, which chooses anew."""

    def without(*given: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for place in ("carry", "slstm", "ridge", "attention"):
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


def _slstm(u: Tensor, recurrent: Tensor) -> Tensor:
    h = u.new_zeros(*u.shape[:2], u.shape[4])
    return slstm_scan(u, recurrent, (h, h, h, torch.full_like(h, -math.inf)))[0]


def _slstm_inputs() -> list[Tensor]:
    batch, seq_len, heads, width = HEADS_SHAPE
    u = torch.randn(batch, heads, seq_len, 4, width, generator=generator())
    recurrent = torch.randn(4, heads, width, width, generator=generator()) / width
    return [u.to(DEVICE), recurrent.to(DEVICE)]


def steps() -> Section:
    """Measure a training step of each mixer, also as one CUDA graph, and see whether it makes the host wait."""
    section = Section(
        f"One training step (forward, backward, AdamW) of two layers at d_model {FULL.step_width} with SwiGLU, length"
        f" {FULL.step_length}, batch {FULL.step_batch}, float32; the highest memory that torch held; whether"
        " the host waits for the device in a step; the same step captured as a CUDA graph and replayed."
    )
    table = Table("", ["mixer", "ms/step", "tokens/s", "peak MB", "waits", "ms as a graph", "why not"])
    for name in FULL.mixer_names:
        torch.cuda.empty_cache()
        step = training_step(name, FULL, DEVICE)
        seconds = timed({name: step}, FULL.step_rounds)[name]
        torch.cuda.reset_peak_memory_stats()
        step()
        rate = int(FULL.step_batch * FULL.step_length / seconds)
        row: list[Cell] = [name, 1e3 * seconds, rate, torch.cuda.max_memory_allocated() / 1e6, waits(step)]
        try:
            table.rows.append([*row, 1e3 * timed({name: captured(step)}, FULL.step_rounds)[name], None])
        except RuntimeError as error:
            table.rows.append([*row, None, str(error).partition("\n")[0]])
    section.tables.append(table)
    return section


def lengths() -> Section:
    """Measure time and memory of a training step against the length, where positions meet in pairs."""
    section = Section(
        f"A training step as above, batch {FULL.step_batch}, at length L: milliseconds, and the highest memory in MB"
        " that torch held. Sparse attention is to be faster than attention from 4,096 positions on, and the memory of"
        " forgetting_attention linear."
    )
    heads = [f"{what} at {n:,}" for what in ("ms", "MB") for n in FULL.lengths]
    table = Table("", ["mixer", *heads])
    for name in PAIRS:
        found: list[tuple[Cell, Cell]] = []
        for seq_len in FULL.lengths:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            try:
                step = training_step(name, replace(FULL, step_length=seq_len), DEVICE)
                seconds = timed({name: step}, FULL.step_rounds)[name]
                found.append((1e3 * seconds, torch.cuda.max_memory_allocated() / 1e6))
            except torch.OutOfMemoryError:
                found.append((None, None))
        table.rows.append([name, *(cell for column in zip(*found, strict=True) for cell in column)])
    section.tables.append(table)
    return section


def waits(step: Run) -> str:
    """Return whether the host waits for the device in a step: torch raises where it would."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "no"


def captured(step: Run) -> Run:
    """Return a step as one CUDA graph.

    Raises:
        RuntimeError: something in it cannot be captured.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # as torch asks: what is allocated once is there before the capture
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def stream() -> Section:
    """Measure a million tokens through `stream`, for the mixers whose state does not grow."""
    n_tokens, chunk = STREAMED
    section = Section(
        f"{n_tokens:,} positions at d_model {FULL.step_width}, batch of one, {chunk:,} at a time, each chunk from the"
        " state that the last one left; float32, without gradients."
    )
    table = Table("", ["mixer", "tokens/s", "peak MB"])
    for name in FULL.mixer_names:
        if state_numbers(name, FULL.step_width) is None:
            continue
        mixer = create_mixer(name, FULL.step_width, **same_state(name, FULL.step_width)).to(DEVICE)
        x = torch.randn(1, chunk, FULL.step_width, generator=generator()).to(DEVICE)
        torch.cuda.reset_peak_memory_stats()
        seconds = timed({name: partial(_streamed, mixer, x, n_tokens)}, 1)[name]
        table.rows.append([name, int(n_tokens / seconds), torch.cuda.max_memory_allocated() / 1e6])
    section.tables.append(table)
    return section


@torch.no_grad()
def _streamed(mixer: SequenceMixer, x: Tensor, n_tokens: int) -> None:
    state = None
    for first in range(0, n_tokens, x.shape[1]):
        _, state = mixer.stream(x[:, : n_tokens - first], state)


def end_to_end() -> Section:
    """`train.py --mixer hybrid`: eager and compiled, float32 and bfloat16."""
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
    about = (
        "What `python train.py --mixer hybrid --d_model 256 --batch_size 64` reports on MQAR; medians of three runs."
    )
    return Section(about, [table])


SECTIONS: dict[str, tuple[str, Callable[[], Section]]] = {
    "scan": ("Selective scan", scan),
    "chunked": ("SSD, delta rules, gated linear attention", chunked),
    "kernels": ("Kernels against torch", kernels),
    "steps": ("A training step of each mixer", steps),
    "lengths": ("A training step with length", lengths),
    "stream": ("A million tokens through stream", stream),
    "end_to_end": ("End to end", end_to_end),
}


# The scan under other tiles.

CHUNKS = (8, 16, 32)
TILES = ((8, 1), (16, 1), (16, 2), (32, 1), (32, 2), (32, 4), (64, 4), (64, 8))  # channels, warps


def tune() -> None:
    """Print the times of the scan for tiles and chunks around the ones that are set in zoo/ops/scan_triton.py."""
    from zoo.ops import scan_triton

    batch, _, d_inner, d_state = SCAN_SHAPE
    x, dt, A, B, C = (t.to(DEVICE) for t in scan_inputs(*SCAN_SHAPE, generator()))
    state = x.new_zeros(batch, d_inner, d_state)
    states = scan_triton.forward_tile(d_state).states
    for chunk, (channels, warps) in itertools.product(CHUNKS, TILES):
        tile = scan_triton.Tile(states, channels, warps)
        tiles = dict.fromkeys(("forward_tile", "backward_tile"), lambda _, tile=tile: tile)
        with mock.patch.multiple(scan_triton, CHUNK=chunk, **tiles):
            given = scan_triton.scan(x, dt, A, B, C, state)
            runs: dict[str, Run] = {
                "forward": lambda: scan_triton.scan(x, dt, A, B, C, state),
                "backward": lambda given=given: scan_triton.scan_backward(*given[:2], x, dt, A, B, C, given[2]),
            }
            times = ", ".join(f"{name} {1e3 * each:.3f} ms" for name, each in timed(runs, 5).items())
        print(f"chunk {chunk}, {channels} channels, {warps} warps: {times}", flush=True)


# The page.


def page(results: Mapping[str, Any]) -> str:
    """docs/performance_gpu.md, from what benchmarks/gpu.json holds."""
    lines = ["# Performance on a GPU", ""]
    lines += ["Made by `python benchmarks/gpu.py`; edit that, not this page. Ratios are of"]
    lines += ["medians, measured in turns in one process. On a CPU: [performance](performance.md).", ""]
    for name, (title, _) in SECTIONS.items():
        if name in results:
            section = {key: value for key, value in results[name].items() if key != "measured"}
            lines += render_section(title, Section.from_plain(section), results[name]["measured"])
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmarks and return the exit status: 2 without a CUDA device, or where the tests fail."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--tune", action="store_true", help="time the scan under other tiles and stop")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder in the place of the repository's root")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("gpu.py: error: no CUDA device here; on a CPU: python benchmarks/performance.py", file=sys.stderr)
        return 2
    if options.tune:
        tune()
        return 0
    if not tests_pass(TESTS):
        print("gpu.py: error: the tests of what is timed fail; nothing was measured", file=sys.stderr)
        return 2
    results = read_results(options.out / RESULTS)
    for name in options.only or SECTIONS:
        print(f"{SECTIONS[name][0]} ...", flush=True)
        measured = f"{torch.cuda.get_device_name()}, {describe_run()}"
        results[name] = {"measured": measured, **SECTIONS[name][1]().to_plain()}
        write_all(options.out, {RESULTS: as_json(results), PAGE: page(results)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
