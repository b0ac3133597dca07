"""The implementations that the benchmarks compare give the same values and gradients, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor

from benchmarks import peers, recurrences
from tests.tolerances import assert_close, tolerance

SINGLE = {("scan", "transformers"), ("ssd", "transformers")} | {
    (name, "transformers") for name in recurrences.PROBLEMS if name != "rg_lru"
}
"""Peers that convert their inputs to float32; they are compared in float32."""

Draw = Callable[[torch.Generator, torch.dtype], tuple[Tensor, ...]]
PROBLEMS: dict[str, tuple[Mapping[str, Callable[..., Tensor]], Draw]] = {
    "scan": (peers.SCANS, lambda g, dtype: peers.scan_inputs(2, 64, 3, 4, g, dtype=dtype)),
    "ssd": (peers.SSDS, lambda g, dtype: peers.ssd_inputs(2, 128, 4, 5, 3, g, dtype=dtype)),
    "bank": (peers.BANKS, lambda g, dtype: peers.bank_inputs(2, 100, 3, 4, g, dtype=dtype)),
    **{
        name: (problem.forms, lambda g, dtype, p=problem: p.inputs(recurrences.Sizes(2, 128, 2, 4, dtype), g))
        for name, problem in recurrences.PROBLEMS.items()
    },
}
PAIRS = [(name, peer) for name, (forms, _) in PROBLEMS.items() for peer in list(forms)[1:]]
STEPS = [(name, peer) for name, problem in recurrences.PROBLEMS.items() for peer in list(problem.steps)[1:]]


def assert_same(ours: Sequence[Tensor], theirs: Sequence[Tensor], *, single: bool) -> None:
    for mine, their in zip(ours, theirs, strict=True):
        assert mine.shape == their.shape
        if single:
            assert (mine - their).norm() <= tolerance(torch.float32)["rtol"] * mine.norm()
        else:
            assert_close(*(torch.view_as_real(t) if t.is_complex() else t for t in (mine, their)))


@pytest.mark.parametrize(("name", "peer"), PAIRS)
def test_values_and_gradients_of_a_peer_are_ours(name: str, peer: str, generator: torch.Generator) -> None:
    (forms, draw), single = PROBLEMS[name], (name, peer) in SINGLE
    given = draw(generator, torch.float32 if single else torch.float64)
    results = []
    for form in (forms["zoo"], forms[peer]):
        inputs = [t.clone().requires_grad_() for t in given]
        y = form(*inputs)
        results.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
    assert_same(*results, single=single)


@pytest.mark.parametrize(("name", "peer"), STEPS)
def test_a_decoding_step_of_a_peer_is_ours(name: str, peer: str, generator: torch.Generator) -> None:
    single = (name, peer) in SINGLE
    problem = recurrences.PROBLEMS[name]
    sizes = recurrences.Sizes(2, 1, 2, 4, torch.float32 if single else torch.float64)
    given = (*problem.inputs(sizes, generator), *problem.state(sizes, generator))
    assert_same(*(problem.steps[who](*given) for who in ("zoo", peer)), single=single)
