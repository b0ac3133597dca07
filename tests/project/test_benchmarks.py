"""Benchmark scripts: they refuse to run if tests fail, interleave candidates, and publish their results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("benchmarks.peers", reason="the benchmarks run from a clone")

from benchmarks import performance, sections, task_generation, timing
from benchmarks.sections import SECTIONS
from tasks import create_task, list_tasks


@pytest.mark.parametrize(("rounds", "patience"), [(3, 100.0), (5, -1.0)])  # without patience three rounds are the limit
def test_candidates_take_turns(rounds: int, patience: float) -> None:
    turns: list[str] = []
    forms = {name: lambda name=name: turns.append(name) for name in "ab"}
    assert sorted(timing.interleaved(forms, rounds, patience=patience)) == ["a", "b"]
    assert turns == ["a", "b"] * 4  # with one warm-up each


def test_the_result_is_the_median_over_rounds() -> None:
    taken = iter([50.0, 1.0, 2.0, 30.0])  # the first is the warm-up
    assert timing.interleaved({"a": lambda: None}, 3, patience=100.0, clock=lambda _: next(taken)) == {"a": 2.0}


@pytest.mark.slow
def test_nothing_is_measured_if_tests_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    red = tmp_path / "test_red.py"
    red.write_text("def test_red():\n    assert False\n")
    monkeypatch.setattr(performance, "TESTS", (str(red),))
    assert performance.main(["--out", str(tmp_path)]) == 2
    assert "nothing was measured" in capsys.readouterr().err
    assert not (tmp_path / performance.RESULTS).exists()


def test_mixers_are_compared_at_equal_state_size() -> None:
    for name in ("retnet", "delta_product", "mamba3"):
        numbers = sections.state_numbers(name, 128)
        assert numbers is not None
        assert 0.9 * 64 * 128 < numbers < 1.6 * 64 * 128  # including the states of convolutions
    assert sections.state_numbers("attention", 16) is None  # its state grows


@pytest.mark.slow
def test_every_task_is_drawn_by_the_benchmark_of_tasks() -> None:
    assert {name for name, options in task_generation.shapes() if create_task(name, **options)} == set(list_tasks())


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_every_section_runs(section: str) -> None:
    assert performance.run_section(section, quick=True)["tables"]


@pytest.mark.slow
def test_a_section_is_measured_in_a_subprocess_and_published(tmp_path: Path) -> None:
    assert performance.main(["--quick", "--out", str(tmp_path), "--only", "memory"]) == 0
    assert json.loads((tmp_path / performance.RESULTS).read_text())["memory"]["tables"]
    assert "Memory with length" in (tmp_path / performance.PAGE).read_text()
