"""Errors taken from real threads are seen, each by the property that ought to; right modules pass in everything."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.check.planted import BUGS, RIGHT, FaintMemory
from zoo.check import check, properties
from zoo.check.comparison import miss

D_MODEL = 8


@pytest.mark.parametrize("each", [p for p in properties() if not p.slow], ids=str)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_module_passes(name: str, each: object) -> None:
    (finding,) = check(RIGHT[name], d_model=D_MODEL, only=[str(each)]).findings
    finding.raise_if_failed()


@pytest.mark.slow
@pytest.mark.parametrize("each", [p for p in properties() if p.slow], ids=str)
@pytest.mark.parametrize("module", [*RIGHT.values(), nn.LSTM, nn.GRU], ids=lambda m: m.__name__)
def test_a_right_module_passes_the_slow_ones(module: type[nn.Module], each: object) -> None:
    options = {"hidden_size": D_MODEL, "batch_first": True} if issubclass(module, nn.RNNBase) else {}
    (finding,) = check(module, d_model=D_MODEL, only=[str(each)], options=options).findings
    finding.raise_if_failed()


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_seen_by_the_property_that_ought_to(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Run as they stand, the lines of the finding make the two tensors that differ, or raise what the module raises."""
    bug = BUGS[name]
    (finding,) = check(bug.module, d_model=D_MODEL, only=[bug.property]).findings
    assert finding.verdict == "failed"
    assert "expected: " in finding.detail
    assert "\n" not in finding.detail
    assert f"from {bug.module.__module__} import {bug.module.__name__}" in finding.reproduce
    space: dict[str, object] = {"__name__": "reproduction"}
    try:
        with torch.enable_grad():  # and put back what the lines set
            exec(compile(finding.reproduce, "reproduce.py", "exec"), space)
    except Exception as error:  # noqa: BLE001 - it has to be the one that the finding names
        assert type(error).__name__ in finding.detail  # noqa: PT017
        return
    a, b = space.get("a"), space.get("b")
    if bug.property in ("chunked", "one_by_one", "lengths", "rows_independent", "state_dict", "deterministic"):
        assert isinstance(a, torch.Tensor)
        assert isinstance(b, torch.Tensor)
        assert miss(a, b) > (0.01 if bug.module is FaintMemory else 1)
        assert "differ by" in capsys.readouterr().out
