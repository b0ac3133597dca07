"""`zoo.check.check`: its targets and errors; the report as JSON, text and HTML."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests import refused
from tests.browser import fits_every_screen
from tests.check.modules import Recurrence
from tests.check.planted import ERRORS
from zoo import create_mixer
from zoo.__main__ import main
from zoo.check import Adapter, ConformanceError, Finding, Report, check, properties
from zoo.check.command import read_option
from zoo.check.report import as_html, print_card


class Unused(Recurrence):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.unused = nn.Parameter(torch.ones(3))


def test_a_check_leaves_the_module_and_the_global_generator_unchanged() -> None:
    module, drawn = Recurrence(8).train(), torch.get_rng_state()
    before = {name: p.clone() for name, p in module.state_dict().items()}
    check(module, d_model=8, only=["deep_copy", "state_dict", "bfloat16", "eval_without_dropout", "no_global_draws"])
    assert module.training
    assert all(torch.equal(p, before[name]) and p.dtype == torch.float32 for name, p in module.state_dict().items())
    check(Recurrence, d_model=8, only=["options_matter", "causality"])
    assert torch.equal(torch.get_rng_state(), drawn)


def test_a_report_is_plain_data_and_raises_its_failures() -> None:
    report = check(Unused, d_model=8, only=["causality", "parameters_trained", "operator", "gradient_decay"])
    read = json.loads(report.to_json())
    assert [f["property"] for f in read["findings"]] == [f.property for f in report.findings]
    assert set(read["findings"][0]) == {field.name for field in dataclasses.fields(Finding)}
    assert (read["setting"]["d_model"], read["setting"]["adapter"]) == (8, None)
    (failed,) = report.failed
    for raising in (report, failed):
        with pytest.raises(ConformanceError, match=r"parameters_trained: .*no gradient for unused") as caught:
            raising.raise_if_failed()
        assert failed.reproduce in str(caught.value)
    assert check(Unused, d_model=8, only="parameters_trained").failed == report.failed
    assert failed.reproduce == "zoo.check.check(Unused, d_model=8, only=['parameters_trained'])"
    again = eval(failed.reproduce, {"zoo": __import__("zoo.check"), "Unused": Unused})
    assert again.findings == (failed,)


@pytest.mark.parametrize("error", [e for e in ERRORS if e.seen_by in ("chunked", "large_inputs")][:2])
def test_the_command_of_a_failure_finds_it_again(
    error: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    error.plant(monkeypatch)
    name = f"{error.module.__module__}:{error.module.__name__}"
    setting = {"d_model": 6, "dtype": torch.float64, "seed": 3}
    if name.endswith("Recurrence"):
        setting["options"] = {"negative": True}
    (finding,) = check(name, only=[error.seen_by], **setting).failed
    program, *words = shlex.split(finding.reproduce)
    assert program == "zoo"
    assert main([*words, "--json", str(tmp_path / "again.json")]) == 1
    (again,) = json.loads((tmp_path / "again.json").read_text())["findings"]
    assert (again["detail"], again["reproduce"]) == (finding.detail, finding.reproduce)
    assert finding.reproduce in capsys.readouterr().out


class Named(nn.Linear):
    def __init__(self, d_model: int, kind: str) -> None:
        super().__init__(d_model, d_model)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).flip(1)


@pytest.mark.parametrize("kind", ["2", "none", "True", "two words", "(1)", "it's"])
def test_the_command_of_a_failure_keeps_texts(kind: str) -> None:
    (finding,) = check(f"{__name__}:Named", d_model=4, options={"kind": kind}, only=["causality"]).failed
    assert read_option(shlex.split(finding.reproduce)[-1]) == ("kind", kind)


class Whole(Adapter):
    """Maps whole sequences."""


def test_the_command_of_a_failure_names_the_adapter() -> None:
    report = check(f"{__name__}:Named", d_model=4, options={"kind": "a"}, adapter=Whole(), only=["causality"])
    words = shlex.split(report.failed[0].reproduce)
    assert report.setting["adapter"] == words[words.index("--adapter") + 1] == f"{__name__}:Whole"


def test_a_seed_changes_parameters_and_inputs() -> None:
    found = {seed: check(Recurrence, d_model=8, only=["gradient_decay"], seed=seed).findings for seed in (0, 1)}
    assert found[0] != found[1]


@pytest.mark.parametrize("each", properties("causality", "chunked"), ids=str)
def test_properties_parametrise_a_test(each: Any) -> None:
    each.check(Recurrence, d_model=8).raise_if_failed()
    each.check(create_mixer("lstm", 8).double(), d_model=8, dtype=torch.float64).raise_if_failed()


@pytest.mark.parametrize(
    ("target", "setting", "words"),
    [
        (Recurrence(8), {"options": {"d_conv": 2}}, "the target is a module"),
        (Recurrence(8), {"d_model": 6}, "Recurrence does not take (batch, seq, d_model) (2, 40, 6)"),
        (3, {}, "got int"),
        (lambda: 3, {}, "got int"),
        (lambda d: nn.LSTM(d, d), {}, "batch_first=True"),
        (lambda d: nn.Flatten(), {}, "does not take"),
        (
            Recurrence(8).to("meta"),
            {},
            "Recurrence cannot be built: NotImplementedError: Cannot copy out of meta tensor",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_targets_that_cannot_be_checked_are_refused(target: Any, setting: dict[str, Any], words: str) -> None:
    with refused(re.escape(words)):
        check(target, **{"d_model": 8} | setting)


def test_a_page_holds_findings_plots_and_commands_and_needs_no_network() -> None:
    report = check("linear_attention", d_model=8, only=["one_by_one", "rank", "gradient_decay", "padding"])
    failed = Finding("causality", "failed", "<script>alert(1)</script> & more", "zoo check '<b>'")
    text = as_html(Report("<i>name</i>", report.setting, (*report.findings, failed)))
    assert re.findall(r'(?:src|href)="(.{22})', text) == ["data:image/png;base64,"]
    assert not re.search(r"https?://|@import|<script|<i>|<b>", text)
    assert all(text.index("causality") < text.index(f"<th>{finding.property}<") for finding in report.findings)
    assert "zoo check &#39;&lt;b&gt;&#39;" in text
    assert "<img" not in as_html(Report("name", report.setting, (failed,)))
    assert text.count('class="failed"') == 1


def test_properties_with_the_same_reason_share_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report(
        "name", {}, tuple(Finding(name, "not_applicable", "no state") for name in ("chunked", "one_by_one"))
    )
    assert as_html(report).count("no state") == 1
    print_card(report)
    assert capsys.readouterr().out.count("no state") == 1


@pytest.mark.slow
def test_the_page_fits_every_screen(tmp_path: Path, browser: Any) -> None:
    report = check("linear_attention", d_model=8, only=["chunked", "rank", "gradient_decay", "padding"])
    failed = Finding("causality", "failed", "a sentence of what was seen " * 9, f"zoo check {'path/' * 30}")
    (tmp_path / "found.html").write_text(as_html(Report("name", report.setting, (*report.findings, failed))), "utf-8")
    fits_every_screen(browser, (tmp_path / "found.html").as_uri())
