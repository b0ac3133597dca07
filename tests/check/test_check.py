"""`zoo.check.check`: what it takes, what it says, what it refuses."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
import torch
from torch import nn

from tests import refused
from tests.check.planted import Attention, Recurrence, Stepper
from tests.tolerances import TOLERANCES as SUITE
from zoo import create_mixer
from zoo.check import ConformanceError, check, properties
from zoo.check.comparison import TOLERANCES, miss

CALLS = ("causality", "chunked", "one_by_one")


class Untrained(Recurrence):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.unused = nn.Parameter(torch.ones(3))


def verdicts(*args: Any, **kwargs: Any) -> dict[str, str]:
    return {f.property: f.verdict for f in check(*args, **kwargs).findings}


@pytest.mark.parametrize(
    ("make", "protocol"),
    [
        (lambda d: create_mixer("gated_delta_net", d), "stream(x, state)"),
        (lambda d: nn.LSTM(d, d, batch_first=True), "(y, state) = module(x, state)"),
        (lambda d: nn.GRU(d, d, 2, batch_first=True), "(y, state) = module(x, state)"),
        (Attention, "(y, state) = module(x, state)"),
        (Stepper, "step(x_t, state)"),
        (lambda d: nn.Linear(d, d), "forward alone"),
    ],
    ids=["ours", "LSTM", "GRU", "cache", "step", "linear"],
)
def test_a_protocol_is_found(make: Any, protocol: str) -> None:
    report = check(make, d_model=8, only=CALLS)
    report.raise_if_failed()
    assert report.setting["protocol"] == protocol
    streams = [f.verdict for f in report.findings if f.property == "one_by_one"]
    assert streams == ["not_applicable" if protocol == "forward alone" else "passed"]


@pytest.mark.slow
def test_every_property_of_torchs_lstm_passes_or_says_why_not() -> None:
    # torch's LSTM in bfloat16 needs a processor that knows it.
    fast = [p.name for p in properties() if not p.slow and p.name not in ("bfloat16", "autocast")]
    report = check(nn.LSTM, d_model=8, options={"hidden_size": 8, "batch_first": True}, only=fast)
    report.raise_if_failed()
    silent = {f.property: f.detail for f in report.findings if f.verdict == "not_applicable"}
    assert set(silent) == {"padding", "operator", "rank"}
    assert "coefficient(t)" in silent["operator"]


def test_a_module_is_copied_and_left_as_it_is() -> None:
    module = Recurrence(8).train()
    before = {name: p.clone() for name, p in module.state_dict().items()}
    check(module, d_model=8, only=["deep_copy", "state_dict", "bfloat16", "eval_without_dropout"])
    assert module.training
    assert all(torch.equal(p, before[name]) and p.dtype == torch.float32 for name, p in module.state_dict().items())


def test_nothing_is_drawn_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    check(Recurrence, d_model=8, only=[p.name for p in properties() if not p.slow])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_report_is_plain_data() -> None:
    report = check(Untrained, d_model=8, only=["causality", "parameters_trained", "operator", "gradient_decay"])
    read = json.loads(report.to_json())
    assert [f["property"] for f in read["findings"]] == [f.property for f in report.findings]
    assert set(read["findings"][0]) == {field.name for field in dataclasses.fields(report.findings[0])}
    assert read["setting"]["d_model"] == 8
    assert [f.property for f in report.failed] == ["parameters_trained"]
    assert "unused" in report.failed[0].detail


def test_a_failure_is_raised_with_its_lines() -> None:
    with pytest.raises(ConformanceError, match=re.escape("parameters_trained: ")) as caught:
        check(Untrained, d_model=8, only=["parameters_trained", "causality"]).raise_if_failed()
    assert "module = Untrained(8)" in str(caught.value)
    check(Untrained, d_model=8, only=["causality"]).raise_if_failed()
    (finding,) = check(Untrained, d_model=8, only=["parameters_trained"]).findings
    with pytest.raises(ConformanceError):
        finding.raise_if_failed()


@pytest.mark.parametrize("each", properties("causality", "chunked"), ids=str)
def test_properties_parametrise_a_test(each: Any) -> None:
    each.check(Recurrence, d_model=8).raise_if_failed()
    each.check(create_mixer("lstm", 8).double(), d_model=8, dtype=torch.float64).raise_if_failed()


def test_an_encoder_may_look_ahead() -> None:
    def make(d_model: int) -> nn.Module:
        return nn.TransformerEncoderLayer(d_model, 2, batch_first=True)

    only = ("causality", "lengths", "padding", "eval_without_dropout")
    assert verdicts(make, d_model=8, only=only)["causality"] == "failed"
    found = verdicts(make, d_model=8, only=only, looks_ahead=True)
    assert found == dict.fromkeys(only, "passed") | {"causality": "not_applicable"}


@pytest.mark.parametrize(
    ("target", "setting", "words"),
    [
        (Recurrence, {"d_model": 0}, "d_model must be a positive integer"),
        (Recurrence, {"d_model": 8, "seq_len": 4}, "seq_len must be at least 8, got 4"),
        (Recurrence(8), {"d_model": 8, "options": {"d_conv": 2}}, "this is a module"),
        (Recurrence(8), {"d_model": 6}, "Recurrence does not take (batch, seq, d_model) (2, 40, 6)"),
        (3, {"d_model": 8}, "must be a module or make one, got int"),
        (lambda: 3, {"d_model": 8}, "it makes int"),
        (lambda d: nn.LSTM(d, d), {"d_model": 8}, "batch_first=True"),
        (lambda d: nn.Flatten(), {"d_model": 8}, "does not take"),
        (Recurrence, {"d_model": 8, "only": ["causalty"]}, "did you mean 'causality'"),
    ],
    ids=["d_model", "seq_len", "options", "width", "number", "factory", "batch_first", "shape", "property"],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_what_cannot_be_checked_is_refused(target: Any, setting: dict[str, Any], words: str) -> None:
    with refused(re.escape(words)):
        check(target, **setting)


def test_tolerances_are_no_looser_than_the_suites() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        assert TOLERANCES[dtype] == tuple(SUITE[dtype].values())
    assert TOLERANCES[torch.float32].rtol == SUITE[torch.float32]["rtol"]


def test_a_miss_is_relative_to_what_is_allowed() -> None:
    one = torch.ones(3, dtype=torch.float64)
    assert miss(one, one) == 0
    assert miss(one * (1 + 0.9e-9), one) < 1 < miss(one * (1 + 1.2e-9), one)
    assert miss(1e-20 * one, 1e-20 * one) == 0
    assert miss(one * float("nan"), one) == float("inf")
    with pytest.raises(ValueError, match="shape"):
        miss(one[:2], one)
