"""Truncated back-propagation through time: the state carries on across chunks, the gradient as far as one lets it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.cases import D_MODEL, KINDS, Case, cases, draw
from tests.tolerances import assert_close
from zoo import create_mixer, detach_state
from zoo.contract import SequenceMixer
from zoo.state import map_state, state_tensors

CHUNK, N_CHUNKS, STEPS = 4, 6, 60


@cases(variants="slow", by_default=KINDS)
def test_a_gradient_handed_over_at_a_cut_is_the_whole_gradient(case: Case, generator: torch.Generator) -> None:
    """Backward through the second chunk as far as its first state, and from there on through the first chunk."""
    mixer, x = case.create(generator), draw(2, 9, D_MODEL, generator=generator).requires_grad_()
    inputs, whole = [x, *mixer.parameters()], mixer(x)
    weights = draw(*whole.shape, generator=generator)
    expected = torch.autograd.grad((whole * weights).sum(), inputs)

    y, state = mixer.stream(x[:, :5])
    cut = map_state(lambda t: t.detach().requires_grad_(t.requires_grad), state)
    rest, _ = mixer.stream(x[:, 5:], cut)
    ends = [(a, b) for a, b in zip(state_tensors(state), state_tensors(cut), strict=True) if b.requires_grad]
    second = (rest * weights[:, 5:]).sum()
    handed_over = torch.autograd.grad(second, [b for _, b in ends], retain_graph=True) if ends else ()
    first = [(y * weights[:, :5]).sum(), *(a for a, _ in ends)]
    before = torch.autograd.grad(first, inputs, [torch.ones_like(first[0]), *handed_over])
    truncated = torch.autograd.grad(second, inputs)
    assert_close([a + b for a, b in zip(before, truncated, strict=True)], expected)


def leaky_sum(x: Tensor) -> Tensor:
    """y_t = 0.8 y_{t-1} + 0.6 x_t."""
    y, outputs = torch.zeros_like(x[:, 0]), []
    for x_t in x.unbind(1):
        y = 0.8 * y + 0.6 * x_t
        outputs.append(y)
    return torch.stack(outputs, dim=1)


def loss_of(mixer: SequenceMixer, x: Tensor, *, carry: bool, optimizer: torch.optim.Optimizer | None = None) -> float:
    """Mean squared error over a sequence in chunks; a step of the optimizer, where there is one, after each chunk."""
    state, total = None, 0.0
    for chunk, target in zip(x.split(CHUNK, 1), leaky_sum(x).split(CHUNK, 1), strict=True):
        y, after = mixer.stream(chunk, state)
        loss = (y - target).square().mean()
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        state = detach_state(after) if carry else None
        total += loss.item() / N_CHUNKS
    return total


# Those that fit the target in a second; that gradients are right is tested for all above.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["attention", "sliding_attention", "diagonal_ssm", "conv", "lstm", "gru", "rnn"],
)
def test_a_mixer_trains_with_it(name: str, generator: torch.Generator) -> None:
    """Trained with no gradient beyond a chunk, it uses what the state brings from the chunks before."""
    options = {"position": "alibi"} if name in ("attention", "sliding_attention") else {}
    mixer = create_mixer(name, D_MODEL, **options)
    optimizer = torch.optim.Adam(mixer.parameters(), lr=1e-2)

    def sequences() -> Tensor:
        return draw(16, CHUNK * N_CHUNKS, D_MODEL, generator=generator, dtype=torch.float32)

    unseen = sequences()
    with torch.no_grad():
        start = loss_of(mixer, unseen, carry=True)
    for _ in range(STEPS):
        loss_of(mixer, sequences(), carry=True, optimizer=optimizer)
    with torch.no_grad():
        carried, dropped = (loss_of(mixer, unseen, carry=carry) for carry in (True, False))
    assert carried < 0.5 * start
    assert carried < 0.6 * dropped
