"""Operations of a layer on CUDA's road, which do not grow with the sequence: each is a launch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

pytest.importorskip("benchmarks.launches", reason="the benchmarks run from a clone")

from benchmarks.launches import launches, on_meta
from zoo import list_mixers

BUDGET = (100, 200)
BUDGETS = (
    dict.fromkeys(("kda", "gdn2", "rwkv7", "gated_linear_attention", "gsa"), (160, 320))  # a decay for each channel
    | dict.fromkeys(("delta_product", "path_attention"), (250, 500))
    | {"moba": (110, 200), "nsa": (170, 200)}  # queries are sorted by block, and their parts joined
    | {"mesa_net": (100 + 30 * 23, 200 + 30 * 65)}  # thirty steps of conjugate gradients
)
NAMES = pytest.mark.parametrize("name", list_mixers())


@NAMES
def test_launches_stay_within_a_budget_and_do_not_grow(name: str) -> None:
    """At width 32: the count depends on no width."""
    short, long = ([found.total() for found in launches(name, seq_len, 32)] for seq_len in (4096, 16384))
    for here, there, budget in zip(short, long, BUDGETS.get(name, BUDGET), strict=True):
        assert here <= budget
        assert there <= 1.1 * here


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of the tracers, about internals
@NAMES
def test_a_compiled_graph_does_not_grow(name: str, unchecked_shapes: None) -> None:
    """One graph forward and one backward, of as many operations at 1,024 positions as at 8,192."""

    def operations(seq_len: int) -> list[int]:
        found: list[int] = []

        def count(graph: torch.fx.GraphModule, _: object) -> Any:
            found.append(sum(node.op == "call_function" for node in graph.graph.nodes))
            return graph.forward

        backend = aot_autograd(fw_compiler=count, bw_compiler=count)
        mixer, x = on_meta(name, seq_len, 32)
        torch.compiler.reset()
        y = torch.compile(mixer, backend=backend, fullgraph=True, dynamic=False)(x)
        y.backward(torch.empty_like(y))
        torch.compiler.reset()
        return found

    short, long = operations(1024), operations(8192)
    assert len(short) == len(long) == 2
    assert all(there <= 1.1 * here for here, there in zip(short, long, strict=True))
