"""How the zoo's mixer is held against upstream's layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tests.tolerances import assert_close
from zoo.contract import SequenceMixer

CUTS: dict[str, Sequence[int]] = {"whole": (), "after one": (1,), "in parts": (2, 3, 6), "by ones": range(1, 7)}
"""Where sequences of length 7 are cut; those of a multiple of it, at the multiples."""

Weights = dict[str, Tensor]


class Streamed(nn.Module):
    """A mixer over a sequence that is cut at some positions, and its last state."""

    def __init__(self, mixer: SequenceMixer, cuts: Sequence[int]) -> None:
        super().__init__()
        self.mixer, self.cuts = mixer, cuts

    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        outputs, state = [], None
        for chunk in x.tensor_split(list(self.cuts), dim=1):
            y, state = self.mixer.stream(chunk, state)
            outputs.append(y)
        return torch.cat(outputs, 1), state


def assert_same(
    mixer: SequenceMixer,
    translate: Callable[[Weights], Weights],
    weights: Weights,
    cuts: Sequence[int],
    x: Tensor,
    y: Tensor,
    dy: Tensor,
    dx: Tensor,
    grads: Weights,
) -> Any:
    """Assert that the mixer with upstream's weights, translated, gives y, and from dy the gradients of x and of them.

    Returns:
        The last state.
    """
    weights = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    x = x.detach().requires_grad_()
    ours = {f"mixer.{name}": weight for name, weight in translate(weights).items()}
    streamed = Streamed(mixer, [x.shape[1] // 7 * cut for cut in cuts])
    assert set(ours) == set(streamed.state_dict())
    actual, state = torch.func.functional_call(streamed, ours, (x,))
    assert_close(actual, y)
    actual_dx, *actual_grads = torch.autograd.grad(actual, [x, *weights.values()], dy)
    assert_close(actual_dx, dx)
    for name, grad in zip(weights, actual_grads, strict=True):
        assert_close(grad, grads[name])
    return state
