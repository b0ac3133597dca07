"""Time and memory against sequence length, and input dependence of the operator: columns of the comparison table."""

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
    seconds: tuple[float, ...]  # time of a forward and a backward pass
    bytes: tuple[int, ...]  # memory held between the two


def complexity(
    layer: nn.Module,
    lengths: Sequence[int] = (256, 512, 1024, 2048),
    *,
    batch_size: int = 1,
    repeats: int = 5,
    d_in: int | None = None,
) -> Complexity:
    """Measure time and memory of a forward and a backward pass, and fit c * length^exponent to both.

    Times are medians of `repeats` runs; the lengths take turns, so a disturbance affects all of them. Memory is the
    storages that autograd saves for the backward pass, each once, without parameters and buffers, plus the mixer's
    final state; it is the same on every device that runs the same kernels. Its exponent is fitted to the bytes added by
    the second half of each length, so that constant costs (kernels, tables) do not hide it; it is 0 if nothing is
    added. Both describe the implementation: a fused attention kernel holds no matrix of weights.

    Args:
        layer: any sequence map (batch, seq, d_in) -> (batch, seq, d_out); a backbone is measured from its embeddings.
        lengths: at least two different lengths, from 2 on; if fixed costs dominate, the exponent of time is low.
        batch_size: rows of the input, which is standard normal with seed 0.
        repeats: timed runs per length, after one run that counts memory.
        d_in: width of the input; default the layer's d_model.

    Raises:
        ValueError: fewer than two lengths, equal ones, one below 2, other sizes that are not positive, a layer without
            d_model and no d_in, or an output without a gradient.
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
    """Measure how the operator depends on the input: the mean of ||W - W'||_F / sqrt((||W||^2 + ||W'||^2) / 2).

    The mean is over pairs of inputs. It is 0 for a linear time-invariant layer, and sqrt(2) if the operators at two
    inputs are orthogonal. W is compared a few positions at a time and never held as a whole.

    Args:
        layer: any layer that `interaction` accepts.
        x: at least two inputs.

    Raises:
        OperatorError, ValueError: see `interaction`; also fewer than two inputs, or an operator that is zero.
    """
    if len(x) < 2:
        raise ValueError(f"input dependence needs at least two inputs, got {len(x)}")
    first, second = torch.tensor(list(itertools.combinations(range(len(x)), 2)), device=x.device).unbind(1)
    energy = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    distances = torch.zeros(len(first), dtype=torch.float64, device=x.device)
    with replayed(layer, x) as held:
        # Columns need forward passes only, but carry the roundoff of the offset, too large in float32.
        for _, part in held.columns() if x.dtype == torch.float64 else held.rows():
            part = part.double().flatten(1)
            energy += part.square().sum(1)
            # Subtract entries, not squared norms, which would cancel half of the digits.
            distances += torch.stack([(part[a] - part[b]).square().sum() for a, b in zip(first, second, strict=True)])
    if not bool((energy > 0).all()):
        raise ValueError("the operator is zero at one of the inputs: its relative change is undefined")
    return float((distances / ((energy[first] + energy[second]) / 2)).sqrt().mean())


def _draw(layer: nn.Module, batch_size: int, seq_len: int, d_in: int | None) -> Float[Tensor, "batch seq d_in"]:
    x = draw_input(layer, batch_size, seq_len, torch.Generator().manual_seed(0), "d_in", d_in)
    check_input(layer, x)
    require_autograd()
    return x


def _held_bytes(layer: nn.Module, x: Tensor) -> int:
    """Count the bytes that autograd saves in a forward pass, and those of the mixer's final state."""
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
    # y keeps the graph alive until here, so no address has been reused.
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved}
    del y
    return sum(size for address, size in storages.items() if address not in own)


def _seconds(layer: nn.Module, x: Tensor) -> float:
    """Return the wall time of a forward and a backward pass, with parameters in the graph; .grad is not touched."""
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
