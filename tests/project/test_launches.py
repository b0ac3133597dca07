"""Operations of a layer on CUDA's road, which do not grow with the sequence: each is a launch."""

from __future__ import annotations

import pytest

pytest.importorskip("benchmarks.launches", reason="the benchmarks run from a clone")

from benchmarks.launches import launches
from zoo import list_mixers

OF_CHANNELS = dict.fromkeys(("kda", "gdn2", "rwkv7", "gated_linear_attention"), (160, 320))
BUDGETS = OF_CHANNELS | dict.fromkeys(("path_attention", "delta_product"), (250, 500))
BUDGETS["mesa_net"] = (100 + 30 * 23, 200 + 30 * 65)  # thirty steps of conjugate gradients
BUDGET = (100, 200)
LOOPS = ("path_attention", "lstm", "gru", "rnn")


@pytest.mark.parametrize("name", [name for name in list_mixers() if name not in LOOPS])
def test_launches_stay_within_a_budget_and_do_not_grow(name: str) -> None:
    """At width 32: the count depends on no width."""
    short, long = ([found.total() for found in launches(name, seq_len, 32)] for seq_len in (4096, 16384))
    for here, there, budget in zip(short, long, BUDGETS.get(name, BUDGET), strict=True):
        assert here <= budget
        assert there <= 1.1 * here
