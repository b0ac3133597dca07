"""Compare the linear recurrences, sLSTM and whole layers with their CPU peers: time, memory, one step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from benchmarks import layers, peers, recurrences
from benchmarks.page import Section, Table, Target
from benchmarks.timing import (
    Run,
    all_cores,
    forward_and_backward,
    forward_only,
    interleaved,
    peak_bytes,
    repeated,
)
from zoo.threads import threads

if TYPE_CHECKING:
    from benchmarks.sections import Sizes

FASTER = 1.5


def _sizes(sizes: Sizes, seq_len: int) -> recurrences.Sizes:
    return recurrences.Sizes(1, seq_len, 4, sizes.family_width)


def family(sizes: Sizes) -> Section:
    """Compare each recurrence with its peer: whole sequences, memory, and one decoding step."""
    heads = f"batch 1, length {sizes.family_length}, 4 heads of width {sizes.family_width}"
    section = Section(
        f"The ops of the mixers at {heads}, {all_cores()} threads, and one decoding step with one thread. The peer"
        " transformers is its path without CUDA: Qwen3-Next, Kimi Linear, xLSTM, RecurrentGemma. minGRU's published"
        " form is a cumulative log-sum-exp over the sequence, its step one interpolation. Our step has five small"
        " operations instead of six, so there is little to gain. mLSTM's step has more than twenty operations on both"
        " sides, most of them on one number per head. If no form for CPUs is published, the peer is a loop over"
        " `unbind`. sLSTM with its input map is compared with torch's LSTM of the same width, a different recurrence"
        " (dense, not per head) whose loop is oneDNN's. Memory is torch's peak allocation in forward + backward."
    )
    table = _table("op")
    decoding = Table("One step, no gradient", ["op", "peer", "µs", "peer / zoo"])
    for name in (*recurrences.PROBLEMS, "slstm"):
        least = 1.0 if name == "slstm" else FASTER
        _compare(section, table, name, sizes, least)
        steps = _steps(name, _sizes(sizes, 1), sizes.decode_steps)
        if len(steps) > 1:
            with threads(1), torch.no_grad():
                seconds = interleaved(steps, 3 * sizes.rounds)
            ratio = seconds[peer := list(steps)[1]] / seconds["zoo"]
            decoding.rows.append([name, peer, 1e6 * seconds["zoo"] / sizes.decode_steps, ratio])
            section.targets.append(Target(f"{peer} / zoo, one step of {name}", least, ratio))
    section.tables += [table, decoding]
    return section


def whole_layers(sizes: Sizes) -> Section:
    """Compare whole layers with other libraries: time and memory."""
    heads = f"batch 1, length {sizes.family_length}, 4 heads of width {sizes.family_width}"
    section = Section(
        f"Whole layers, projections included, at {heads}, {all_cores()} threads, with the gradients of all parameters."
        " The peer transformers is DeepSeek-V3, DeepSeek-V3.2 (64 chosen positions) and MiniMax, which use torch's"
        " fused softmax kernel as ours do, and RWKV-4, a Python loop over positions. titans-pytorch has a linear memory"
        " with a gradient step per position. native-sparse-attention-pytorch has our block sizes: 32 positions, four"
        " per query, a window of 64. The last two are measured only if installed. Both sides of lightning attention"
        " spend much of their time in projections, which limits the ratio. Memory is torch's peak allocation in forward"
        " + backward."
    )
    table = _table("layer")
    for name in layers.available():
        _compare(section, table, name, sizes, FASTER)
    section.tables.append(table)
    return section


def _table(first: str) -> Table:
    return Table(
        "", [first, "peer", "forward ms", "peer / zoo", "forward + backward ms", "peer / zoo", "MB", "peer's MB"]
    )


def _compare(section: Section, table: Table, name: str, sizes: Sizes, least: float) -> None:
    """Add a row and its targets: times, measured in turns, and memory."""
    given = _runs(name, _sizes(sizes, sizes.family_length))
    peer = list(given)[1]
    with threads(all_cores()):
        whole = [
            interleaved({who: wrap(*each) for who, each in given.items()}, sizes.rounds)
            for wrap in (forward_only, forward_and_backward)
        ]
        memory = [peak_bytes(forward_and_backward(*each)) for each in given.values()]
    ratios = [seconds[peer] / seconds["zoo"] for seconds in whole]
    times = [1e3 * seconds["zoo"] for seconds in whole]
    table.rows.append([name, peer, times[0], ratios[0], times[1], ratios[1], *(each / 1e6 for each in memory)])
    section.targets.append(Target(f"{peer} / zoo, forward + backward of {name}", least, ratios[1]))
    section.targets.append(Target(f"memory of {name} / {peer}", 1.0, memory[0] / max(memory[1], 1), least=False))


def _runs(name: str, n: recurrences.Sizes) -> dict[str, tuple[peers.Form, tuple[Tensor, ...]]]:
    """Return {implementation: (form, inputs)}, ours first."""
    if name in layers.PAIRS:
        torch.manual_seed(0)
        return layers.forms(name, n, peers.generator())
    if name == "slstm":
        return {who: (form, inputs) for who, (form, _, inputs, _) in recurrences.cells(n, peers.generator()).items()}
    problem = recurrences.PROBLEMS[name]
    inputs = problem.inputs(n, peers.generator())
    return {who: (form, inputs) for who, form in problem.forms.items()}


def _steps(name: str, n: recurrences.Sizes, count: int) -> dict[str, Run]:
    """Return {implementation: a run of `count` decoding steps}, ours first."""
    if name == "slstm":
        cells = recurrences.cells(n, peers.generator()).items()
        return {who: repeated(partial(step, *inputs), state, count) for who, (_, step, inputs, state) in cells}
    problem = recurrences.PROBLEMS[name]
    inputs, state = problem.inputs(n, peers.generator()), problem.state(n, peers.generator())
    return {who: repeated(partial(step, *inputs), state, count) for who, step in problem.steps.items()}
