"""Compare the linear recurrences and sLSTM with their CPU peers, with their older versions, and trick by trick."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks import peers, recurrences
from benchmarks.page import Section, Table, Target
from benchmarks.timing import (
    Run,
    all_cores,
    compared,
    forward_and_backward,
    forward_only,
    interleaved,
    isolated,
    peak_bytes,
    repeated,
    threads,
)
from zoo.ops.delta_rule import delta_rule
from zoo.ops.dplr import dplr

if TYPE_CHECKING:
    from benchmarks.sections import Sizes

ROOT = Path(__file__).resolve().parent.parent
FASTER = 1.5
BEFORE_ONE_OP = "c0d4aa2^"
"""The last commit whose linear attention, gated linear attention and delta rule were ops of their own."""


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _sizes(sizes: Sizes, seq_len: int) -> recurrences.Sizes:
    return recurrences.Sizes(1, seq_len, 4, sizes.family_width)


def family(sizes: Sizes) -> Section:
    """Measure whole sequences, memory and one step of each recurrence against its peer."""
    heads = f"batch 1, length {sizes.family_length}, 4 heads of width {sizes.family_width}"
    section = Section(
        f"The ops of the mixers at {heads}, {all_cores()} threads, and one decoding step with one thread. The peer"
        " transformers is its path without CUDA: Qwen3-Next, Kimi Linear, xLSTM, RecurrentGemma. minGRU's published"
        " form is a cumulative log-sum-exp over the sequence, its step one interpolation. Ours is the same step, five"
        " small operations where the peer has six, so that little can be gained. mLSTM's step is twenty and more"
        " operations on both sides, most of them on one number per head. Where nobody publishes a form for CPUs, the"
        " peer is a loop over `unbind`. sLSTM is measured with its input map against torch's LSTM of the same width,"
        " another recurrence (every unit sees every unit), whose loop is oneDNN's. Memory is that of forward + backward"
        " above the inputs."
    )
    table = Table(
        "", ["op", "peer", "forward ms", "peer / zoo", "forward + backward ms", "peer / zoo", "MB", "peer's MB"]
    )
    decoding = Table("One step, no gradient", ["op", "peer", "µs", "peer / zoo"])
    for name in (*recurrences.PROBLEMS, "slstm"):
        given = _runs(name, _sizes(sizes, sizes.family_length))
        peer = list(given)[1]
        with threads(all_cores()):
            whole = [
                interleaved({who: wrap(*each) for who, each in given.items()}, sizes.rounds)
                for wrap in (forward_only, forward_and_backward)
            ]
        ratios = [seconds[peer] / seconds["zoo"] for seconds in whole]
        # The median of three processes: the system gives memory in pages of two sizes.
        memory = [statistics.median(isolated(_peak, name, who, sizes) for _ in range(3)) for who in given]
        times = [1e3 * seconds["zoo"] for seconds in whole]
        table.rows.append([name, peer, times[0], ratios[0], times[1], ratios[1], *(each / 1e6 for each in memory)])
        least = 1.0 if name == "slstm" else FASTER
        section.targets.append(Target(f"{peer} / zoo, forward + backward of {name}", least, ratios[1]))
        section.targets.append(Target(f"memory of {name} / {peer}", 1.0, memory[0] / max(memory[1], 1), least=False))
        steps = _steps(name, _sizes(sizes, 1), sizes.decode_steps)
        if len(steps) > 1:
            with threads(1), torch.no_grad():
                seconds = interleaved(steps, 3 * sizes.rounds)
            ratio = seconds[peer := list(steps)[1]] / seconds["zoo"]
            decoding.rows.append([name, peer, 1e6 * seconds["zoo"] / sizes.decode_steps, ratio])
            section.targets.append(Target(f"{peer} / zoo, one step of {name}", least, ratio))
    section.tables += [table, decoding]
    return section


def _runs(name: str, n: recurrences.Sizes) -> dict[str, tuple[peers.Form, tuple[Tensor, ...]]]:
    """Return form and inputs by implementation, ours first."""
    if name == "slstm":
        return {who: (form, inputs) for who, (form, _, inputs, _) in recurrences.cells(n, _generator()).items()}
    problem = recurrences.PROBLEMS[name]
    inputs = problem.inputs(n, _generator())
    return {who: (form, inputs) for who, form in problem.forms.items()}


def _steps(name: str, n: recurrences.Sizes, count: int) -> dict[str, Run]:
    """Return `count` steps by implementation, ours first."""
    if name == "slstm":
        cells = recurrences.cells(n, _generator()).items()
        return {who: repeated(partial(step, *inputs), state, count) for who, (_, step, inputs, state) in cells}
    problem = recurrences.PROBLEMS[name]
    inputs, state = problem.inputs(n, _generator()), problem.state(n, _generator())
    return {who: repeated(partial(step, *inputs), state, count) for who, step in problem.steps.items()}


def _peak(name: str, who: str, sizes: Sizes) -> int:
    form, inputs = _runs(name, _sizes(sizes, min(128, sizes.family_length)))[who]
    forward_and_backward(form, inputs)()
    form, inputs = _runs(name, _sizes(sizes, sizes.family_length))[who]
    return peak_bytes(forward_and_backward(form, inputs))


def before(sizes: Sizes) -> Section:
    """Compare three ops that became calls of `zoo.ops.dplr` with their older versions from the repository's history."""
    section = Section(
        f"Linear attention, gated linear attention and the delta rule are calls of one op, `zoo.ops.dplr`. Here against"
        f" the ops of their own that they were until commit {BEFORE_ONE_OP.rstrip('^')}, read from the history of the"
        f" repository: 4 heads of width {sizes.family_width}, one thread, now / before. No more than 5 % may be lost."
    )
    table = Table("", ["op", "length", "forward ms", "now / before", "forward + backward ms", "now / before"])
    for name, (now, inputs) in _REWIRED.items():
        then = _old_op(name)
        for seq_len in dict.fromkeys((min(256, sizes.family_length), sizes.family_length)):
            given = inputs(recurrences.Sizes(1, seq_len, 4, sizes.family_width), _generator())
            empty = torch.zeros(1, 4, sizes.family_width, sizes.family_width)
            forms = {"now": _from_empty(now, empty), "before": _from_empty(then, empty)}
            row, ratio = [name, seq_len], 0.0
            for _, seconds in compared(forms, given, 3 * sizes.rounds):
                ratio = seconds["now"] / seconds["before"]
                row += [1e3 * seconds["now"], ratio]
            table.rows.append(row)
            section.targets.append(
                Target(f"now / before, forward + backward of {name} at {seq_len}", 1.05, ratio, least=False)
            )
    section.tables.append(table)
    return section


def _from_empty(op: Callable[..., tuple[Tensor, Tensor]], empty: Tensor) -> peers.Form:
    return lambda *given: op(*given, empty)[0]


def _qkv(n: recurrences.Sizes, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (n.draw(g, n.batch, n.heads, n.seq_len, n.d_head) for _ in range(3))
    return q / n.d_head**0.5, k / k.norm(dim=3, keepdim=True), v


_REWIRED: dict[str, tuple[Callable[..., tuple[Tensor, Tensor]], recurrences.Inputs]] = {
    "linear_attention": (lambda q, k, v, state: dplr(q, k, v, None, None, None, state), _qkv),
    "gated_linear_attention": (
        lambda q, k, v, log_decay, state: dplr(q, k, v, log_decay, None, None, state),
        lambda n, g: (
            *_qkv(n, g),
            torch.nn.functional.logsigmoid(n.draw(g, n.batch, n.heads, n.seq_len, n.d_head)) / 16,
        ),
    ),
    "delta_rule": (
        delta_rule,
        lambda n, g: (
            *_qkv(n, g),
            torch.sigmoid(n.draw(g, n.batch, n.heads, n.seq_len)),
            -torch.nn.functional.softplus(n.draw(g, n.batch, n.heads, n.seq_len) - 4),
        ),
    ),
}


def _old_op(name: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the op as it was before, from the history.

    Raises:
        FileNotFoundError: the history does not reach back to it (a shallow clone, an unpacked archive).
    """
    command = ["git", "show", f"{BEFORE_ONE_OP}:zoo/ops/{name}.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        raise FileNotFoundError(f"the history does not hold {command[-1]}: this section needs a full clone")
    old = ModuleType(f"before_{name}")
    exec(compile(found.stdout, command[-1], "exec"), old.__dict__)
    return getattr(old, name)


_TRICKS: dict[str, tuple[str, str]] = {
    "blocks of 256 channels, not 64": ("_BLOCK = 256", "_BLOCK = 64"),
    "rows asked for ahead": ("_prefetch(row[d:].ctypes.data)", "pass"),
    "2^e by a polynomial": (
        "return np.int32(bits).view(np.float32) if e > least else _F0",
        "return np.float32(2) ** e",
    ),
    "its coefficients handed over as values": (", p5 = constants", ", p5 = _EXP2"),
    "sums in any order": ('fastmath=("contract", "reassoc", "nsz")', 'fastmath=("contract",)'),
    "a state every 64 steps, not 32": ("_CHUNK = 64", "_CHUNK = 32"),
}
"""What makes the scan of numba fast, as the text in `zoo/ops/scan_numba.py` and what stands there without it."""


def tricks(sizes: Sizes) -> Section:
    """Measure what each trick of the selective scan in numba is worth."""
    shapes = [(1, sizes.long, sizes.bank_channels), (1, sizes.long // 4, 6 * sizes.bank_channels)]
    section = Section(
        "The selective scan in numba with one of its tricks taken out of its source at a time: the time without / with,"
        " N = 16, float32, one thread. A trick that is worth less than a twentieth nowhere has no place in the source."
    )
    columns = [f"{kind} at {', '.join(map(str, shape))}" for shape in shapes for kind in ("forward", "both passes")]
    table = Table("", ["trick", *columns])
    modules = {"with": _without(None)} | {trick: _without(trick) for trick in _TRICKS}
    found: dict[str, list[float]] = {trick: [] for trick in _TRICKS}
    with threads(1):
        for shape in shapes:
            given = (*peers.scan_inputs(*shape, 16, _generator()), torch.zeros(1, shape[2], 16))
            for run in (_scan_forward, _scan_both):
                seconds = interleaved({who: run(each, given) for who, each in modules.items()}, 3 * sizes.rounds)
                for trick in _TRICKS:
                    found[trick].append(seconds[trick] / seconds["with"])
    for trick, ratios in found.items():
        table.rows.append([trick, *ratios])
        section.targets.append(Target(f"without / with, at best: {trick}", 1.05, max(ratios)))
    section.tables.append(table)
    return section


def _without(trick: str | None) -> ModuleType:
    """`zoo.ops.scan_numba` without a trick.

    Raises:
        ValueError: the source does not hold the trick's text just once.
    """
    source = (ROOT / "zoo/ops/scan_numba.py").read_text()
    if trick is not None:
        old, new = _TRICKS[trick]
        if source.count(old) != 1:
            raise ValueError(f"zoo/ops/scan_numba.py must hold {old!r} once, found {source.count(old)}")
        source = source.replace(old, new)
    module = ModuleType(f"scan_numba_without_{trick}")
    exec(compile(source, f"scan_numba without {trick}", "exec"), module.__dict__)
    return module


def _scan_forward(module: ModuleType, given: tuple[Tensor, ...]) -> Callable[[], None]:
    return lambda: module.scan(*given)


def _scan_both(module: ModuleType, given: tuple[Tensor, ...]) -> Callable[[], None]:
    def run() -> None:
        y, final, entering = module.scan(*given)
        module.scan_backward(y, final, *given[:5], entering)

    return run
