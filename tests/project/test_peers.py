"""What the benchmarks compare computes one and the same thing: values and gradients, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks import peers, recurrences
from tests.tolerances import assert_close, tolerance

# A peer that raises the type of what it is given to float32, or lowers it, is compared in float32.
SINGLE = {"transformers"}
PROBLEMS: dict[str, tuple[dict[str, peers.Form], Callable[..., tuple[Tensor, ...]], tuple[int, ...]]] = {
    "scan": (peers.SCANS, peers.scan_inputs, (2, 64, 3, 4)),
    "ssd": (peers.SSDS, peers.ssd_inputs, (2, 128, 4, 5, 3)),
    "bank": (peers.BANKS, peers.bank_inputs, (2, 100, 3, 4)),
}
PAIRS = [(problem, peer) for problem, (forms, *_) in PROBLEMS.items() for peer in list(forms)[1:]]


@pytest.mark.parametrize(("problem", "peer"), PAIRS)
def test_a_peer_computes_what_ours_does(problem: str, peer: str, generator: torch.Generator) -> None:
    forms, make, sizes = PROBLEMS[problem]
    given = make(*sizes, generator, dtype=torch.float32 if peer in SINGLE else torch.float64)
    results = []
    for form in (forms["zoo"], forms[peer]):
        inputs = [t.clone().requires_grad_() for t in given]
        y = form(*inputs)
        results.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
    for ours, theirs in zip(*results, strict=True):
        if ours.is_complex():
            ours, theirs = torch.view_as_real(ours), torch.view_as_real(theirs)
        if peer in SINGLE:
            assert (ours - theirs).norm() <= tolerance(torch.float32)["rtol"] * ours.norm()
        else:
            assert_close(ours, theirs)


FAMILY = [(name, peer) for name, problem in recurrences.PROBLEMS.items() for peer in list(problem.forms)[1:]]
STEPS = [(name, peer) for name, problem in recurrences.PROBLEMS.items() for peer in list(problem.steps)[1:]]
OWN_WAY = {("rg_lru", "transformers")}
"""transformers functions that compute in the type they are given."""


@pytest.mark.parametrize(("name", "peer"), FAMILY)
def test_a_peer_of_the_family_computes_what_ours_does(name: str, peer: str, generator: torch.Generator) -> None:
    single = peer in SINGLE and (name, peer) not in OWN_WAY
    problem, sizes = recurrences.PROBLEMS[name], recurrences.Sizes(2, 128, 2, 4, _kind(single))
    given = problem.inputs(sizes, generator)
    results = []
    for form in (problem.forms["zoo"], problem.forms[peer]):
        inputs = [t.clone().requires_grad_() for t in given]
        y = form(*inputs)
        results.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
    _same(*results, single=single)


@pytest.mark.parametrize(("name", "peer"), STEPS)
def test_a_step_of_a_peer_is_ours(name: str, peer: str, generator: torch.Generator) -> None:
    single = peer in SINGLE and (name, peer) not in OWN_WAY
    problem, sizes = recurrences.PROBLEMS[name], recurrences.Sizes(2, 1, 2, 4, _kind(single))
    given = (*problem.inputs(sizes, generator), *problem.state(sizes, generator))
    _same(*(list(problem.steps[who](*given)) for who in ("zoo", peer)), single=single)


def _kind(single: bool) -> torch.dtype:
    return torch.float32 if single else torch.float64


def _same(ours: list[Tensor], theirs: list[Tensor], *, single: bool) -> None:
    for mine, their in zip(ours, theirs, strict=True):
        assert mine.shape == their.shape
        if single:
            assert (mine - their).norm() <= tolerance(torch.float32)["rtol"] * mine.norm()
        else:
            assert_close(mine, their)


def test_an_absent_package_names_its_extra() -> None:
    with pytest.raises(ImportError, match=r"^nothing_of_that_name is not installed: pip install 'mixer-zoo\[bench\]'$"):
        peers.installed("nothing_of_that_name.inside")
