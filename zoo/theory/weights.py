"""Read the scalar attention weights of each head or channel of any mixer: y_i = sum_j w_ij v_j."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from zoo.blocks import Bidirectional
from zoo.cores import Call, Reading, reading
from zoo.theory.operator import AFFINE_RTOL, POSITIONS_AT_ONCE, OperatorError, check_input, evaluated


def head_weights(layer: nn.Module, x: Float[Tensor, "batch seq d_in"]) -> Float[Tensor, "batch heads seq seq"]:
    """Return the weights w_ij with which each head (or channel) of `layer` mixes its values over time, at `x`.

    The weights are exact, including decays and the erasing step of a delta rule, which the usual picture of a recurrent
    layer's attention, q_i . k_j times decays, leaves out. The values are the inputs of the core. Steps before the core
    (a convolution of the values, SSD's dt) and after it (a gate, a norm, linear attention's division) are not in w;
    `interaction` includes them. Row i is output i, column j is source j.

    Args:
        layer: a mixer, or any layer that contains mixers; the heads of all mixers are returned, in the order in which
            they run. It runs in eval mode.
        x: input of the layer, in its dtype (float32 or float64) and on its device.

    Returns:
        The weights: per head if the channels of a head share them, else per channel. A head of DeltaProduct has
        `n_householder` entries, one after the other, because each of its steps writes its own value.

    Raises:
        OperatorError: no part of the layer has scalar weights, or a declared core has none.
        ValueError: x is not a finite (batch, seq, d_in) of the layer's dtype and device.
    """
    check_input(layer, x)
    batch, seq_len, _ = x.shape
    found: list[list[Call]] = []
    with evaluated(layer) as f, torch.no_grad():
        for sources in torch.arange(seq_len, device=x.device).split(max(1, POSITIONS_AT_ONCE // (batch * seq_len))):
            with reading(sources) as read, _turning(layer, read):
                f(x.repeat(len(sources), 1, 1))
            found.append(read.calls)
    if not found[0]:
        raise OperatorError(
            f"no op of {type(layer).__name__} declares scalar weights per head or channel; "
            "zoo.theory.interaction(layer, x) gives its operator"
        )
    # Per core: (batch, heads, parts_out, seq, seq of sources, parts_in).
    cores = [torch.cat([call.weights for call in calls]).movedim(0, 4) for calls in zip(*found, strict=True)]
    for weights, call in zip(cores, found[0], strict=True):
        _check(weights, call)
    return torch.cat([weights.movedim(5, 2).flatten(1, 3) for weights in cores], dim=1)


@contextmanager
def _turning(layer: nn.Module, read: Reading) -> Iterator[None]:
    """Set `read.backwards` while the backward mixer of a `Bidirectional` runs."""

    def turn(*_: object) -> None:
        read.backwards = not read.backwards

    with ExitStack() as stack:
        for part in layer.modules():
            if isinstance(part, Bidirectional):
                stack.enter_context(part.mixer_b.register_forward_pre_hook(turn))
                stack.enter_context(part.mixer_b.register_forward_hook(turn))
        yield


def _check(weights: Tensor, call: Call) -> None:
    """Raise OperatorError unless the weights reproduce the core's outputs for its own values."""
    again = torch.einsum("bhoijs,bhjsp->bhoip", weights, call.values.to(weights.dtype))
    size = torch.einsum("bhoijs,bhjsp->bhoip", weights.abs(), call.values.abs().to(weights.dtype)).amax()
    miss = float((again - call.outputs).abs().amax() / size.clamp(min=torch.finfo(size.dtype).tiny))
    if not miss <= AFFINE_RTOL.get(weights.dtype, AFFINE_RTOL[torch.float32]):
        raise OperatorError(f"{call.name} is not a core of scalar weights: they miss its output by {miss:.1e}")
