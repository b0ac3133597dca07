"""Cost against length, and how much of the operator depends on the input: the last columns of the comparison table."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from zoo.contract import SequenceMixer
from zoo.state import state_tensors
from zoo.theory.operator import check_input, draw_input, evaluated, replayed, require_autograd
from zoo.validate import require_positive


class Complexity(NamedTuple):
    """Cost of a training pass against length, with the exponents of the fitted power laws."""

    time_exponent: float
    memory_exponent: float
    lengths: tuple[int, ...]
    seconds: tuple[float, ...]  # of a forward and a backward pass
    bytes: tuple[int, ...]  # held between the two


def complexity(
    layer: nn.Module,
    lengths: Sequence[int] = (256, 512, 1024, 2048),
    *,
    batch_size: int = 1,
    repeats: int = 5,
    d_in: int | None = None,
) -> Complexity:
    """Measure time and memory of a forward and a backward pass, fitted as c * length^exponent.

    Times are medians of `repeats` runs; the lengths take turns, so that a disturbance of the machine meets all of
    them. Memory is counted, not sampled, and is the same on every device that runs the same kernels: the storages that
    autograd keeps for the backward pass, each once, parameters and buffers left out, and the mixer's final state.
    Its exponent is fitted to the bytes that the second half of each length adds, so that constant costs (kernels,
    tables) do not hide it; 0 if nothing is added. Both are costs of the implementation: attention through a fused
    kernel holds no matrix of weights.

    Args:
        layer: any sequence map (batch, seq, d_in) -> (batch, seq, d_out); of a backbone, from embeddings.
        lengths: at least two, all different, from 2 on; if fixed costs dominate, the exponent of time comes out low.
        batch_size: rows of the input, standard normal, seed 0.
        repeats: timed runs per length, after the one whose memory is counted.
        d_in: width of the input; default the layer's d_model.

    Raises:
        ValueError: fewer than two different lengths, one below 2, other sizes that are not positive, no d_in and a
            layer without d_model, or an output without a gradient.
    """
    require_positive(batch_size=batch_size, repeats=repeats, d_in=d_in)
    check_lengths(lengths)
    inputs = [_draw(layer, batch_size, length, d_in) for length in lengths]
    held = [_held_bytes(layer, x) for x in inputs]
    grown = [whole - _held_bytes(layer, x[:, : x.shape[1] // 2]) for whole, x in zip(held, inputs, strict=True)]
    seconds = [[_seconds(layer, x) for x in inputs] for _ in range(repeats)]
    medians = torch.tensor(seconds, dtype=torch.float64).quantile(0.5, dim=0).tolist()
    memory_exponent = exponent(lengths, grown) if min(grown) > 0 else 0.0
    return Complexity(exponent(lengths, medians), memory_exponent, tuple(lengths), tuple(medians), tuple(held))


def check_lengths(lengths: Sequence[int]) -> None:
    """Raise ValueError unless costs can be fitted over these lengths."""
    if len(set(lengths)) < max(2, len(lengths)) or min(lengths) < 2:
        raise ValueError(f"lengths must be at least two different integers, each at least 2, got {list(lengths)}")


def input_dependence(layer: nn.Module, x: Float[Tensor, "batch seq d_in"]) -> float:
    """Measure how the operator moves between inputs: mean of ||W - W'||_F / sqrt((||W||^2 + ||W'||^2) / 2) over pairs.

    0 for a linear time-invariant layer, sqrt(2) when the operators at two inputs are orthogonal. W is read and
    compared a few positions at a time, and never held as a whole.

    Args:
        layer: any layer that `interaction` takes.
        x: the inputs, at least two.

    Raises:
        OperatorError, ValueError: see `interaction`; also fewer than two inputs, or an operator that is zero.
    """
    if len(x) < 2:
        raise ValueError(f"input dependence compares at least two inputs, got {len(x)}")
    first, second = torch.tensor(list(itertools.combinations(range(len(x)), 2)), device=x.device).unbind(1)
    energy = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    moved = torch.zeros(len(first), dtype=torch.float64, device=x.device)
    with replayed(layer, x) as held:
        # Columns take forward passes alone, and the roundoff of the offset, which float32 cannot afford.
        for _, part in held.columns() if x.dtype == torch.float64 else held.rows():
            part = part.double().flatten(1)
            energy += part.square().sum(1)
            # Pair by pair: the difference of two squared norms would lose half of the digits.
            moved += torch.stack([(part[a] - part[b]).square().sum() for a, b in zip(first, second, strict=True)])
    if not bool((energy > 0).all()):
        raise ValueError("the operator is zero at one of the inputs: its relative movement is undefined")
    return float((moved / ((energy[first] + energy[second]) / 2)).sqrt().mean())


def _draw(layer: nn.Module, batch_size: int, seq_len: int, d_in: int | None) -> Float[Tensor, "batch seq d_in"]:
    x = draw_input(layer, batch_size, seq_len, torch.Generator().manual_seed(0), "d_in", d_in)
    check_input(layer, x)
    require_autograd()
    return x


def _held_bytes(layer: nn.Module, x: Tensor) -> int:
    """Count the bytes of storages that autograd saves in a forward pass, and of the final state if there is one."""
    saved: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with evaluated(layer) as f, torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        if isinstance(layer, SequenceMixer):
            y, state = layer.stream(x.detach().requires_grad_())
            saved.extend(state_tensors(state))
        else:
            y = f(x.detach().requires_grad_())
    if not y.requires_grad:
        raise ValueError(
            f"no backward pass to measure: autograd finds no path from input or parameters of {type(layer).__name__} "
            "to its output"
        )
    own = {t.untyped_storage().data_ptr() for t in (*layer.parameters(), *layer.buffers())}
    # y is alive until here, and with it the graph: no storage has been given back, no address used twice.
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    del y
    return sum(size for address, size in storages.items() if address not in own)


def _seconds(layer: nn.Module, x: Tensor) -> float:
    """Measure wall time of a forward and a backward pass; parameters are in the graph, their .grad stays as it is."""
    point = x.detach().requires_grad_()
    wanted = [point, *(p for p in layer.parameters() if p.requires_grad)]
    with evaluated(layer) as f, torch.enable_grad():
        _wait(x)
        start = time.perf_counter()
        y = f(point)
        torch.autograd.grad(y, wanted, torch.ones_like(y), allow_unused=True)
        _wait(x)
        return time.perf_counter() - start


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


def exponent(lengths: Sequence[int], costs: Sequence[int] | Sequence[float]) -> float:
    """Fit the slope of log cost on log length, by least squares."""
    return statistics.linear_regression([*map(math.log, lengths)], [*map(math.log, costs)]).slope
