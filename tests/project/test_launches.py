"""Kernel launches, compiled graphs and the cost of decoding do not grow with the sequence beyond their budgets."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

pytest.importorskip("benchmarks.launches", reason="the benchmarks run from a clone")

from benchmarks.launches import launches, mixer_and_input
from tests.cases import OF_THEIR_OWN_OP
from tools.gallery import computed, growth
from zoo import list_mixers

BUDGET = (100, 200)
BUDGETS = {"path_attention": (250, 500)}


@pytest.mark.parametrize("name", list_mixers())
def test_launches_stay_within_a_budget_and_do_not_grow(name: str) -> None:
    """The count does not depend on the width."""
    short, long = ([found.total() for found in launches(name, seq_len, 32)] for seq_len in (4096, 16384))
    for here, there, budget in zip(short, long, BUDGETS.get(name, BUDGET), strict=True):
        assert here <= budget
        assert there <= 1.1 * here


@pytest.mark.parametrize("name", list_mixers())
def test_the_cost_of_a_decoding_step_grows_at_most_linearly(name: str, generator: torch.Generator) -> None:
    mixer, _ = mixer_and_input(name, 257, 8, "cpu")
    x, costs = torch.randn(1, 257, 8, generator=generator), []
    for seen in (64, 128, 256):
        _, state = mixer.stream(x[:, :seen])
        costs.append(computed(lambda state=state: mixer.stream(x[:, -1:], state)))
    assert growth(costs) < 1.1


@pytest.mark.parametrize("name", ["path_attention", "deltaformer"])
def test_no_matrix_over_all_pairs_of_positions_is_kept(name: str) -> None:
    """These two mixers have no fused kernel; their backward pass recomputes the attention weights."""
    mixer, x = mixer_and_input(name, 2048, 32, "meta")
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        mixer(x.requires_grad_())
    assert max(kept) < 2048**2


@pytest.mark.slow
@pytest.mark.parametrize("name", random.Random("graph").sample(OF_THEIR_OWN_OP, 10))  # ten seconds each
def test_a_compiled_graph_does_not_grow(name: str, unchecked_shapes: None) -> None:
    """One forward and one backward graph on the CPU, with the same number of operations at any length."""

    def operations(seq_len: int) -> list[int]:
        found: list[int] = []

        def count(graph: torch.fx.GraphModule, _: object) -> Callable[..., list[Tensor | None]]:
            found.append(sum(node.op == "call_function" for node in graph.graph.nodes))
            outputs = [None if node is None else node.meta["val"] for node in graph.graph.output_node().args[0]]
            return make_boxed_func(
                lambda *_: [
                    None if t is None else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in outputs
                ]
            )

        torch.compiler.reset()
        mixer, x = mixer_and_input(name, seq_len, 32, "cpu")
        backend = aot_autograd(fw_compiler=count, bw_compiler=count)
        torch.compile(mixer, backend=backend, fullgraph=True, dynamic=False)(x).sum().backward()
        return found

    short, long = operations(1024), operations(8192)
    assert len(short) == len(long) == 2
    assert all(there <= 1.1 * here for here, there in zip(short, long, strict=True))
