"""Measure sequence parallelism of each mixer: bytes sent, error and speed-up, with gloo on this machine.

    python -m benchmarks.parallel [--ranks 2]

Each rank has one thread and an equal part of the positions. The table shows the bytes of the state after rank 0's
positions, the bytes that rank 0 sends forward and the last rank sends back, and the largest difference in an output or
a gradient from one process, relative to the largest entry of that tensor (at least 1). Speed-up is the time of one
process over the time of the ranks, forward and backward, as medians measured in turns; all processes run at the same
time in both cases. One layer and one batch leave nothing to pipeline, so a mixer gains only if its ranks work at once.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from benchmarks.timing import interleaved
from zoo import create_mixer, list_mixers, parallel
from zoo.report.markdown import table

BATCH, ROUNDS = 2, 5


class Measured(NamedTuple):
    """Bytes sent forward and back by this rank, its largest error, and one process' seconds over the ranks'."""

    sent: int = 0
    sent_back: int = 0
    error: float = 0.0
    speed_up: float = 0.0


def measure(name: str, d_model: int, seq_len: int) -> Measured:
    """Measure one mixer on this rank."""
    mixer = create_mixer(name, d_model).double()
    x = torch.randn(BATCH, seq_len, d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    split = parallel.sequence(mixer)

    def gradients(run: torch.nn.Module, x: Tensor) -> list[Tensor]:
        mixer.zero_grad()
        x = x.clone().requires_grad_()
        y = run(x)
        y.square().sum().backward()
        if run is split:
            split.sum_gradients()
        assert x.grad is not None
        return [y.detach(), x.grad, *(p.grad.clone() for p in mixer.parameters() if p.grad is not None)]

    y, of_x, *rest = gradients(mixer, x)
    pairs = zip(gradients(split, split.part(x)), [split.part(y), split.part(of_x), *rest], strict=True)
    error = max(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in pairs)
    runs = {"one": lambda: gradients(mixer, x), "ranks": lambda: gradients(split, split.part(x))}
    seconds = interleaved(runs, ROUNDS, patience=float("inf"), clock=_together)
    return Measured(split.state_bytes_sent, split.gradient_bytes_sent, error, seconds["one"] / seconds["ranks"])


def _together(run: Callable[[], object]) -> float:
    """Return the seconds from the common start of all ranks to the end of the last one."""
    dist.barrier()
    start = time.perf_counter()
    run()
    dist.barrier()
    return time.perf_counter() - start


def run_rank(rank: int, arguments: argparse.Namespace, store: str) -> None:
    """Measure all mixers on this rank; rank 0 prints the table."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}/ranks", rank=rank, world_size=arguments.ranks)
    rows, own = [], -(-arguments.seq_len // arguments.ranks)
    for name in arguments.mixers or list_mixers():
        torch.manual_seed(0)
        found = [Measured()] * arguments.ranks
        dist.all_gather_object(found, measure(name, arguments.d_model, arguments.seq_len))
        state = create_mixer(name, arguments.d_model).state_bytes(own, BATCH, torch.float64)
        numbers = [f"{n:,}" for n in (state or 0, found[0].sent, found[-1].sent_back)]
        error, speed_up = max(each.error for each in found), min(each.speed_up for each in found)
        rows.append([name, *numbers, f"{error:.0e}", f"{speed_up:.2f}"])
    if rank == 0:
        headings = ["mixer", "state, bytes", "sent", "sent back", "error", "speed-up"]
        print("\n".join(table(headings, rows, "lrrrrr")))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("ranks", 2), ("seq_len", 1024), ("d_model", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--mixers", nargs="*", help="default: all")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as store:
        mp.spawn(run_rank, (arguments, store), nprocs=arguments.ranks)
