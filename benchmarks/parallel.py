"""Print the bytes that each mixer sends between ranks: `python benchmarks/parallel.py [--ranks 2] [--seq_len 1024]`.

Ranks are gloo processes of this machine, each with an equal part of the positions. In the table are the bytes that
rank 0 sends forward and the last rank sends back, beside the bytes of the state after rank 0's positions. The error is
the largest difference from one process, outputs and gradients, over the largest number there.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from zoo import create_mixer, list_mixers, parallel
from zoo.report.markdown import table

BATCH = 2


def measure(name: str, d_model: int, seq_len: int) -> tuple[int, int, float]:
    """Return the bytes sent forward and back by this rank, and its largest error."""
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
    return split.state_bytes_sent, split.gradient_bytes_sent, error


def run_rank(rank: int, arguments: argparse.Namespace, store: str) -> None:
    """Measure all mixers; rank 0 prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}/ranks", rank=rank, world_size=arguments.ranks)
    rows, own = [], -(-arguments.seq_len // arguments.ranks)
    for name in list_mixers():
        torch.manual_seed(0)
        found: list[tuple[int, int, float]] = [(0, 0, 0.0)] * arguments.ranks
        dist.all_gather_object(found, measure(name, arguments.d_model, arguments.seq_len))
        state = create_mixer(name, arguments.d_model).state_bytes(own, BATCH, torch.float64)
        numbers = [f"{n:,}" for n in (state or 0, found[0][0], found[-1][1])]
        rows.append([name, *numbers, f"{max(error for *_, error in found):.0e}"])
    if rank == 0:
        headings = ["mixer", "state, bytes", "sent", "sent back", "error"]
        print("\n".join(table(headings, rows, "lrrrr")))
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("ranks", 2), ("seq_len", 1024), ("d_model", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as store:
        mp.spawn(run_rank, (arguments, store), nprocs=arguments.ranks)
