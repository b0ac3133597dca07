"""The sections of docs/performance.md: one function per section, from sizes to tables and targets.

Compared runs take turns in one process (`timing.interleaved`); memory is torch's peak allocation
(`timing.peak_bytes`). `benchmarks/performance.py` runs the sections and writes the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from benchmarks import family, peers
from benchmarks.launches import reaching
from benchmarks.page import Cell, Section, Table, Target
from benchmarks.timing import (
    ROOT,
    all_cores,
    busy_cores,
    compared,
    forward_and_backward,
    interleaved,
    isolated,
    peak_bytes,
    repeated,
    trained,
)
from zoo import create_mixer, list_mixers
from zoo.backbone import Backbone
from zoo.contract import SequenceMixer
from zoo.ops import selective_scan
from zoo.registry import MIXERS, mixer_class
from zoo.report import plots
from zoo.report.files import write_atomically
from zoo.theory import costs
from zoo.threads import threads


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measurements: `FULL` for publication, `QUICK` for tests of the scripts."""

    rounds: int = 7
    scan_shapes: tuple[tuple[int, int, int], ...] = ((1, 256, 256), (1, 1024, 256), (1, 4096, 256), (4, 1024, 128))
    python_loop_up_to: int = 1024
    """Length above which transformers' loop is left out, because its backward pass is quadratic in the length."""
    long: int = 4096
    ssd_states: tuple[int, ...] = (16, 64, 128)
    bank_channels: int = 256
    family_length: int = 2048
    family_width: int = 64
    decode_at: tuple[int, ...] = (16, 1024, 4096)
    decode_steps: int = 200
    lengths: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    scaling_rounds: int = 2
    scaling_width: int = 64
    step_width: int = 256
    step_length: int = 1024
    step_rounds: int = 3
    mixers: tuple[str, ...] = ()
    train_steps: int = 150

    @property
    def long_lengths(self) -> tuple[int, ...]:
        return self.lengths[len(self.lengths) // 2 - 1 :]

    @property
    def mixer_names(self) -> list[str]:
        return list(self.mixers) or list_mixers()


FULL = Sizes()
QUICK = Sizes(
    rounds=1,
    scan_shapes=((1, 64, 16),),
    python_loop_up_to=64,
    long=128,
    ssd_states=(16,),
    bank_channels=8,
    family_length=64,
    family_width=8,
    decode_at=(2, 16),
    decode_steps=3,
    lengths=(32, 64, 128),
    scaling_rounds=1,
    scaling_width=16,
    step_width=16,
    step_length=32,
    step_rounds=1,
    mixers=("attention", "selective_ssm"),
    train_steps=2,
)


def zoo_scan(backend: str) -> peers.Form:
    """Return our scan with this backend."""
    return lambda x, dt, A, B, C: selective_scan(x, dt, A, B, C, backend=backend)[0]


def scan_forms(seq_len: int, sizes: Sizes) -> dict[str, peers.Form]:
    """Return our scans, and the peers that finish in reasonable time at this length."""
    forms: dict[str, peers.Form] = {"zoo numba": zoo_scan("numba"), "zoo torch": zoo_scan("torch")}
    forms |= {name: form for name, form in peers.SCANS.items() if name != "zoo"}
    if seq_len > sizes.python_loop_up_to:
        del forms["transformers"]
    return forms


def scan(sizes: Sizes) -> Section:
    """Compare the selective scan with its peers: time, memory, error."""
    section = Section(
        "The scan of Mamba (`zoo.ops.selective_scan`), N = 16, float32. Our times are in milliseconds; peers are shown"
        " as multiples of our time in pure PyTorch. mamba.py is `mambapy` from PyPI. transformers is its path without"
        f" CUDA, a Python loop, left out above {sizes.python_loop_up_to} positions, where its backward pass takes"
        " minutes. The loop over `unbind` is written by us as a fair baseline."
    )
    ratios: dict[tuple[str, int, tuple[int, ...]], float] = {}
    for count in dict.fromkeys((1, all_cores())):
        columns = ["batch, length, d_inner", "pass", "numba ms", "torch ms", "torch / numba"]
        others = ["mamba.py", "loop over unbind", "transformers"]
        table = Table(f"{count} thread{'s' * (count > 1)}", columns + [f"{name} / torch" for name in others])
        for shape in sizes.scan_shapes:
            inputs = peers.scan_inputs(*shape, 16, peers.generator())
            forms = scan_forms(shape[1], sizes)
            for title, seconds in compared(forms, inputs, sizes.rounds, count):
                ours = seconds["zoo torch"]
                row: list[Cell] = [", ".join(map(str, shape)), title, 1e3 * seconds["zoo numba"], 1e3 * ours]
                row += [ours / seconds["zoo numba"], *(seconds[o] / ours if o in seconds else None for o in others)]
                table.rows.append(row)
                if title != "forward":
                    ratios |= {(name, count, shape): each / ours for name, each in seconds.items()}
                    ratios["numba", count, shape] = ours / seconds["zoo numba"]
        section.tables.append(table)
    longest = _longest(sizes)
    mamba, numba = ratios["mamba.py", 1, longest], ratios["numba", 1, longest]
    both = _training_at(longest)
    section.targets += [
        Target(f"mamba.py / torch, {both}", 8, mamba),
        Target(f"torch / numba, {both}", 3, numba),
        Target(f"mamba.py / numba, {both}", 25, mamba * numba),
        *(
            Target(f"transformers / torch, {_training_at(shape)}", 100, ratios["transformers", 1, shape])
            for shape in sizes.scan_shapes
            if shape[1] == sizes.python_loop_up_to
        ),
    ]
    _scan_memory(section, sizes)
    _scan_error(section, sizes)
    return section


def _training_at(shape: tuple[int, ...]) -> str:
    return f"forward + backward at ({', '.join(map(str, shape))}), one thread"


def _longest(sizes: Sizes) -> tuple[int, int, int]:
    return max(sizes.scan_shapes, key=lambda shape: (shape[1], shape[2]))


def _scan_memory(section: Section, sizes: Sizes) -> None:
    shape = _longest(sizes)
    forms, inputs = scan_forms(shape[1], sizes), peers.scan_inputs(*shape, 16, peers.generator())
    with threads(1):
        peaks = {
            name: peak_bytes(forward_and_backward(forms[name], inputs))
            for name in ("zoo numba", "zoo torch", "mamba.py")
        }
    table = Table(
        f"torch's peak allocation in forward + backward at ({', '.join(map(str, shape))})",
        ["form", "MB", "mamba.py / this"],
    )
    table.rows = [[name, peak / 1e6, peaks["mamba.py"] / max(peak, 1)] for name, peak in peaks.items()]
    section.tables.append(table)
    share = peaks["mamba.py"] / max(peaks["zoo torch"], 1)
    section.targets.append(Target(f"memory of mamba.py / torch, {_training_at(shape)}", 15, share))


def _scan_error(section: Section, sizes: Sizes) -> None:
    """Compare with float64, for steps from no decay to complete decay."""
    names = ("x", "dt", "A", "B", "C")
    table = Table(
        "Relative error against float64 (norm of the difference / norm), dt log-uniform from 1e-6 to 100",
        ["backend", "output", *(f"gradient of {name}" for name in names)],
    )
    x, _, A, B, C = peers.scan_inputs(2, min(1000, sizes.long), 64, 16, peers.generator(), torch.float64)
    dt = 1e-6 * 1e8 ** torch.rand(x.shape, generator=peers.generator(), dtype=torch.float64)
    inputs = [t.float() for t in (x, dt, A, B, C)]
    exact = _values_and_gradients(zoo_scan("torch"), [t.double() for t in inputs])
    worst = 0.0
    for backend in ("numba", "torch"):
        found = _values_and_gradients(zoo_scan(backend), inputs)
        errors = [float((f - e).norm() / e.norm()) for f, e in zip(found, exact, strict=True)]
        table.rows.append([backend, *errors])
        worst = max(worst, errors[0] if backend == "torch" else max(errors))
    section.tables.append(table)
    section.targets.append(Target("relative error of numba, outputs and gradients", 1e-6, worst, least=False))


def _values_and_gradients(form: peers.Form, inputs: Iterable[Tensor]) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    y = form(*leaves)
    cotangent = torch.randn(y.shape, generator=peers.generator(), dtype=torch.float64).to(y.dtype)
    return [t.double() for t in (y.detach(), *torch.autograd.grad(y, leaves, cotangent))]


def loaded(sizes: Sizes) -> Section:
    """Measure the scan while other processes keep every core busy."""
    cores = all_cores()
    section = Section(
        f"Forward + backward of the scan with {cores} threads, alone on {cores} cores and while {cores} other processes"
        " keep them busy. A fair share of a busy core doubles the time; many short parallel regions would multiply it"
        " much further."
    )
    shape = _longest(sizes)
    inputs = peers.scan_inputs(*shape, 16, peers.generator())
    forms = {"zoo numba": zoo_scan("numba"), "zoo torch": zoo_scan("torch"), "mamba.py": peers.mambapy_scan}
    runs = {name: forward_and_backward(form, inputs) for name, form in forms.items()}
    with threads(cores):
        idle = interleaved(runs, sizes.rounds)
        with busy_cores(cores):
            busy = interleaved(runs, sizes.rounds)
    table = Table(f"({', '.join(map(str, shape))})", ["form", "idle ms", "busy ms", "busy / idle"])
    table.rows = [[name, 1e3 * idle[name], 1e3 * busy[name], busy[name] / idle[name]] for name in runs]
    section.tables.append(table)
    worst = max(busy[name] / idle[name] for name in ("zoo numba", "zoo torch"))
    section.targets.append(Target("busy / idle, the worse of our backends", 4, worst, least=False))
    return section


def ssd(sizes: Sizes) -> Section:
    """Compare SSD with its published forms."""
    section = Section(
        f"SSD of Mamba-2 (`zoo.ops.ssd`): 4 heads of width 64, length {sizes.long}, one thread, with the operations of"
        " a block around the scan. The minimal form is our version of the paper's listing 1; transformers is its path"
        " without CUDA."
    )
    others = [name for name in peers.SSDS if name != "zoo"]
    table = Table("", ["N", "pass", "zoo ms", *(f"{name} / zoo" for name in others)])
    for d_state in sizes.ssd_states:
        inputs = peers.ssd_inputs(1, sizes.long, 4, 64, d_state, peers.generator())
        for title, seconds in compared(peers.SSDS, inputs, sizes.rounds):
            ratios = [seconds[name] / seconds["zoo"] for name in others]
            table.rows.append([d_state, title, 1e3 * seconds["zoo"], *ratios])
            if title != "forward" and d_state in (64, sizes.ssd_states[-1]):
                wanted = f"the better peer / zoo, forward + backward, N = {d_state}"
                section.targets.append(Target(wanted, 1.3, min(ratios)))
    section.tables.append(table)
    return section


def lti(sizes: Sizes) -> Section:
    """Compare diagonal SSMs with a convolution by the full kernel."""
    section = Section(
        f"A bank of diagonal SSMs as in S4D (`zoo.ops.channel_ssm`): {sizes.bank_channels} channels, 64 poles each, one"
        " thread. The peer computes the kernel by a full Vandermonde matrix and convolves by FFT; it returns no final"
        " state."
    )
    table, ratio = Table("", ["length", "pass", "zoo ms", "Vandermonde in full / zoo"]), math.nan
    for seq_len in dict.fromkeys((min(256, sizes.long), sizes.long)):
        inputs = peers.bank_inputs(1, seq_len, sizes.bank_channels, 64, peers.generator())
        for title, seconds in compared(peers.BANKS, inputs, sizes.rounds):
            ratio = seconds["Vandermonde in full"] / seconds["zoo"]
            table.rows.append([seq_len, title, 1e3 * seconds["zoo"], ratio])
    section.tables.append(table)
    section.targets.append(Target(f"Vandermonde in full / zoo, forward + backward at {sizes.long}", 15, ratio))
    return section


def decode(sizes: Sizes) -> Section:
    """Measure decoding token by token, from states after growing numbers of positions."""
    section = Section(
        "Microseconds per token, batch 1, one thread, no gradient. The first table is the scan alone at d_inner 256,"
        " N 16. The second is the whole mixer at d_model 128 (projections, convolution, gates, checks of input and"
        " state), from a state after that many positions. Attention's cache and time grow with them."
    )
    x, dt, A, B, C = peers.scan_inputs(1, 1, 256, 16, peers.generator())
    state = torch.zeros(1, 256, 16)
    ways = {
        "as the mixer calls it (check=False)": {"check": False},
        "by itself, values checked": {},
        "backend numba, through the op": {"backend": "numba"},
        "backend torch, through the op": {"backend": "torch"},
    }
    steps = {way: partial(selective_scan, x, dt, A, B, C, None, **options) for way, options in ways.items()}
    cores = {way: repeated(step, [state], sizes.decode_steps) for way, step in steps.items()}
    with threads(1), torch.no_grad():
        seconds = interleaved(cores, max(sizes.rounds, 1))
    table = Table("The core: one step of the selective scan", ["call", "µs a token"])
    table.rows = [[way, 1e6 * each / sizes.decode_steps] for way, each in seconds.items()]
    section.tables.append(table)
    fastest = 1e6 * min(seconds.values()) / sizes.decode_steps
    section.targets.append(
        Target("µs a token of the selective scan as the mixer calls it, d_inner 256", 30, fastest, least=False)
    )
    whole = Table("Whole mixers", ["mixer", *(f"after {n:,} positions" for n in sizes.decode_at), "last / first"])
    for name in sizes.mixer_names:
        found = _decode_mixer(name, sizes)
        growth = found[-1] / found[0]
        whole.rows.append([name, *found, growth])
        if name == "selective_ssm":
            what = "growth of selective_ssm's time a token with length"
            section.targets.append(Target(what, 1.2, growth, least=False))
    section.tables.append(whole)
    return section


def _decode_mixer(name: str, sizes: Sizes) -> list[float]:
    torch.manual_seed(0)
    mixer = create_mixer(name, d_model=128, **reaching(name, max(sizes.decode_at) + sizes.decode_steps)).eval()
    token = torch.randn(1, 1, 128, generator=peers.generator())
    runs = {}
    with threads(1), torch.no_grad():
        for seen in sizes.decode_at:
            _, state = mixer.stream(torch.randn(1, seen, 128, generator=peers.generator()))
            runs[str(seen)] = repeated(partial(mixer.stream, token), [state], sizes.decode_steps)
        seconds = interleaved(runs, max(3, sizes.rounds // 2))
    return [1e6 * seconds[str(seen)] / sizes.decode_steps for seen in sizes.decode_at]


def scaling(sizes: Sizes) -> Section:
    """Measure the time of a training pass against length."""
    section = Section(
        f"Time of forward + backward of each mixer at d_model {sizes.scaling_width}, batch 1, against the length"
        f" L = {sizes.lengths[0]} … {sizes.lengths[-1]}: the exponent e of the power law L^e, by least squares on"
        " logarithms over all lengths and over their upper half. One thread; the lengths take turns."
    )
    table = Table("", ["mixer", "e, all", "e, upper half", *(f"ms at {n:,}" for n in sizes.lengths)])
    times: dict[str, list[float]] = {}
    for name in sizes.mixer_names:
        seconds = isolated(_training_passes, name, sizes)
        times[name] = seconds
        whole = costs.exponent(sizes.lengths, seconds)
        late = costs.exponent(sizes.long_lengths, seconds[-len(sizes.long_lengths) :])
        table.rows.append([name, whole, late, *(1e3 * each for each in seconds)])
        if MIXERS.entry(name).family in LINEAR_TIME:
            what = f"exponent of {name}, {sizes.lengths[0]} … {sizes.lengths[-1]}"
            section.targets.append(Target(what, 1.15, whole, least=False))
    section.tables.append(table)
    section.figures.append(_scaling_figure(sizes.lengths, times))
    return section


SPARSE = {"moba": "attention", "nsa": "attention", "dsa": "mla"}
"""Sparse attention -> the full attention that it replaces."""


def sparse(sizes: Sizes) -> Section:
    """Compare sparse attention with the full attention that it replaces."""
    lengths = sizes.long_lengths
    section = Section(
        "Layers that attend to chosen positions, in turns with the full attention that they replace: mla for dsa, else"
        f" attention by torch's fused kernel. d_model {sizes.step_width}, four heads, batch 1, rotary positions,"
        f" {all_cores()} threads. A query attends to three blocks of 64 positions in moba, to four blocks of 32 and a"
        " window of 64 in nsa, and to 64 positions in dsa. The backward pass is for the input. The index of dsa scores"
        " every pair, and the chosen latents are gathered for each query; only on long sequences is this faster than"
        " the fused kernel over all pairs."
    )
    table = Table("", ["layer", "length", "forward ms", "full / sparse", "forward + backward ms", "full / sparse"])
    for name, full in SPARSE.items():
        for seq_len in lengths:
            seconds = isolated(_sparse_passes, name, full, seq_len, sizes)
            ratios = [each[full] / each[name] for each in seconds]
            cells = [cell for each, ratio in zip(seconds, ratios, strict=True) for cell in (1e3 * each[name], ratio)]
            table.rows.append([name, seq_len, *cells])
            if seq_len == sizes.long:
                section.targets.append(Target(f"{full} / {name}, forward + backward at {seq_len:,}", 1.0, ratios[1]))
    section.tables.append(table)
    return section


def _sparse_passes(name: str, full: str, seq_len: int, sizes: Sizes) -> list[dict[str, float]]:
    """Return {layer: seconds} for the forward pass, and for forward and backward."""
    torch.manual_seed(0)
    mixers = {each: create_mixer(each, sizes.step_width) for each in (name, full)}
    if full == "attention":
        mixers[full] = create_mixer(full, sizes.step_width, position="rope")
    x = torch.randn(1, seq_len, sizes.step_width, generator=peers.generator())
    return [seconds for _, seconds in compared(mixers, (x,), sizes.rounds, all_cores())]


def memory(sizes: Sizes) -> Section:
    """Measure peak memory of a training pass against length, for layers that compute weights in blocks of queries."""
    lengths = sizes.long_lengths
    section = Section(
        f"torch's peak allocation in forward + backward at d_model {sizes.scaling_width}, batch 1, against the length"
        f" L = {lengths[0]} … {lengths[-1]}: the exponent e of the power law L^e."
    )
    table = Table("", ["mixer", "e", *(f"MB at {n:,}" for n in lengths)])
    for name in ("forgetting_attention", "path_attention"):
        mixer = create_mixer(name, d_model=sizes.scaling_width)
        with threads(1):
            peaks = [float(_training_peak(mixer, seq_len)) for seq_len in lengths]
        table.rows.append([name, exponent := costs.exponent(lengths, peaks), *(peak / 1e6 for peak in peaks)])
        what = f"exponent of the memory of {name}, {lengths[0]} … {lengths[-1]}"
        section.targets.append(Target(what, 1.1, exponent, least=False))
    section.tables.append(table)
    return section


def _training_peak(mixer: SequenceMixer, seq_len: int) -> int:
    x = torch.randn(1, seq_len, mixer.d_model, generator=peers.generator())
    return peak_bytes(lambda: mixer(x).square().mean().backward())


LINEAR_TIME = {"linear attention", "delta rule", "time-invariant", "selective state space"}
"""Families whose time should be linear in the sequence length."""


def _training_passes(name: str, sizes: Sizes) -> list[float]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mixer = create_mixer(name, d_model=sizes.scaling_width, **reaching(name, max(sizes.lengths)))
    runs = {}
    for seq_len in sizes.lengths:
        x = torch.randn(1, seq_len, sizes.scaling_width, generator=peers.generator(), requires_grad=True)
        runs[str(seq_len)] = lambda x=x: mixer(x).square().mean().backward()
    seconds = interleaved(runs, sizes.scaling_rounds, patience=5)
    return [seconds[str(seq_len)] for seq_len in sizes.lengths]


@plots.styled
def _scaling_figure(lengths: tuple[int, ...], times: dict[str, list[float]]) -> str:
    figure, (axes,) = plots.new_figure()
    styles = plots.line_styles(sorted(times))
    for name, style in styles.items():
        axes.loglog(lengths, [1e3 * each for each in times[name]], **style)
    axes.set(xlabel="length", ylabel="forward + backward, ms", title="Time of a training pass against length")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
    plots.name_lines(axes)
    target = ROOT / "docs" / "figures" / "scaling.png"
    if len(times) > 2:  # the smoke test leaves the published figure alone
        write_atomically(target, plots.as_png(figure))
    return "figures/scaling.png"


def same_state(name: str, d_model: int) -> dict[str, int]:
    """Return options that give a layer a state of about 64 d_model numbers, if options determine its size."""
    heads = {"n_heads": max(1, d_model // 64)}
    per_head = ("linear_attention", "lightning_attention", "hgrn2", "delta_net", "kda", "gdn2", "rwkv7")
    as_wide = ("retnet", "mlstm", "gated_delta_net", "delta_product")
    per_channel = ("selective_ssm", "ssd", "mamba3")
    if name in per_head:
        return heads
    if name in as_wide:
        return heads | {"expand": 1}
    return {"d_state": 32} if name in per_channel else {}


def state_numbers(name: str, d_model: int) -> int | None:
    """Count the real numbers in a layer's state; None if they grow with the sequence."""
    mixer = create_mixer(name, d_model, **reaching(name, 16), **same_state(name, d_model)).eval()
    sizes = []
    for seq_len in (4, 16):
        with torch.no_grad():
            _, state = mixer.stream(torch.zeros(1, seq_len, d_model))
        leaves = [t for t in tree_leaves(state) if isinstance(t, Tensor)]
        sizes.append(sum(t.numel() * (1 + t.is_complex()) for t in leaves))
    return sizes[0] if sizes[0] == sizes[1] else None


def training_step(name: str, sizes: Sizes) -> Callable[[], None]:
    """Return one step of a two-layer model in float32."""
    torch.manual_seed(0)
    options = {**reaching(name, sizes.step_length), **same_state(name, sizes.step_width)}
    model = Backbone({"name": name, **options}, sizes.step_width, 2, n_outputs=256, vocab_size=256)
    return step_of(model, 1, sizes.step_length)


def step_of(model: Backbone, batch_size: int, seq_len: int, *, half: bool = False) -> Callable[[], None]:
    """Return one step (forward, backward, AdamW) of next-token prediction; with `half`, in bfloat16 by autocast."""
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=on_gpu, fused=on_gpu)
    shape = batch_size, seq_len + 1
    tokens = torch.randint(model.vocab_size or 0, shape, generator=peers.generator()).to(device)

    def run() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def steps(sizes: Sizes) -> Section:
    """Measure a training step of each mixer."""
    section = Section(
        f"One training step (forward, backward, AdamW) of two layers at d_model {sizes.step_width} with SwiGLU, length"
        f" {sizes.step_length}, batch 1, float32, all {all_cores()} cores; each mixer in its own"
        " process, in turns with gated_delta_net. Memory is torch's peak allocation above the model and its optimizer."
        f" If an option sets the size of a layer's state, it is chosen for about {64 * sizes.step_width:,} numbers;"
        " a dash marks a state that grows with the sequence. The page of a mixer with less than half of"
        " gated_delta_net's tokens per second explains why."
    )
    table = Table("", ["mixer", "numbers of state", "ms/step", "tokens/s", "tokens/s / gated_delta_net's", "peak MB"])
    unexplained = 0
    for name in sizes.mixer_names:
        seconds, reference, peak = isolated(_measure_step, name, sizes)
        ratio = reference / seconds
        numbers = state_numbers(name, sizes.step_width)
        table.rows.append([name, numbers, 1e3 * seconds, int(sizes.step_length / seconds), ratio, peak / 1e6])
        unexplained += ratio < 0.5 and "gated_delta_net" not in (mixer_class(name).__doc__ or "")
    section.tables.append(table)
    what = "mixers below half of gated_delta_net without an explanation"
    section.targets.append(Target(what, 0, unexplained, least=False))
    return section


def _measure_step(name: str, sizes: Sizes) -> tuple[float, float, int]:
    step, reference = training_step(name, sizes), training_step("gated_delta_net", sizes)
    step()
    peak = peak_bytes(step)
    seconds = interleaved({"step": step, "reference": reference}, sizes.step_rounds)
    return seconds["step"], seconds["reference"], peak


def profiles(sizes: Sizes) -> Section:
    """Profile a training step of each mixer."""
    section = Section(
        "PyTorch's profiler over one training step, with the shape of the steps' table and one thread. Shares are of"
        " the operators' self time. The first row of each table is the largest remaining cost."
    )
    summary = Table("The largest cost of each mixer", ["mixer", "operator", "share", "calls"])
    for name in sizes.mixer_names:
        rows = isolated(_profile, name, sizes)
        summary.rows.append([name, *rows[0]])
        section.tables.append(Table(name, ["operator", "share", "calls"], rows))
    section.tables.insert(0, summary)
    return section


def _profile(name: str, sizes: Sizes, top: int = 6) -> list[list[Cell]]:
    from torch.profiler import ProfilerActivity, profile

    torch.set_num_threads(1)
    step = training_step(name, sizes)
    step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
    events = sorted(found.key_averages(), key=lambda event: event.self_cpu_time_total, reverse=True)
    total = sum(event.self_cpu_time_total for event in events)
    return [[f"`{e.key}`", f"{100 * e.self_cpu_time_total / total:.0f} %", e.count] for e in events[:top]]


def end_to_end(sizes: Sizes) -> Section:
    """Measure whole processes of `train.py`."""
    section = Section(
        "Tokens per second that `python train.py` reports on MQAR with the default recipe, for training steps with data"
        " and logging; and the seconds of the whole process."
    )
    table = Table("", ["mixer", "tokens/s", "whole process s"])
    for mixer in ("hybrid", "attention"):
        flags = ["--mixer", mixer, "--trainer.max_steps", str(sizes.train_steps), "--figures_every", "0"]
        metrics, seconds = trained(*flags, "--task.n_train", "2000")
        table.rows.append([mixer, int(metrics["tokens_per_second"]), seconds])
    section.tables.append(table)
    return section


SECTIONS: dict[str, tuple[str, Callable[[Sizes], Section]]] = {
    "scan": ("Selective scan", scan),
    "loaded": ("On a busy machine", loaded),
    "ssd": ("State space duality", ssd),
    "lti": ("Diagonal systems", lti),
    "family": ("Linear recurrences and sLSTM against their peers", family.family),
    "layers": ("Layers against their peers", family.whole_layers),
    "decode": ("Decoding", decode),
    "scaling": ("Scaling with length", scaling),
    "sparse": ("Sparse attention against full attention", sparse),
    "memory": ("Memory with length", memory),
    "steps": ("A training step of each mixer", steps),
    "end_to_end": ("End to end", end_to_end),
    "profiles": ("Profiles", profiles),
}
