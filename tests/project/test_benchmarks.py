"""The scripts that measure speed: they refuse red tests, measure in turns, and publish what they found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("benchmarks.peers", reason="the benchmarks run from a clone")

from benchmarks import performance, sections, task_generation, timing
from benchmarks.sections import SECTIONS
from tasks import create_task, list_tasks


@pytest.mark.parametrize(("rounds", "patience"), [(3, 100.0), (5, -1.0)])  # a slow one sits out after three rounds
def test_candidates_take_turns(rounds: int, patience: float) -> None:
    turns: list[str] = []
    forms = {name: lambda name=name: turns.append(name) for name in "ab"}
    assert sorted(timing.interleaved(forms, rounds, patience=patience)) == ["a", "b"]
    assert turns == ["a", "b"] * 4  # once each beforehand


def test_what_is_kept_of_the_rounds_is_their_median() -> None:
    taken = iter([50.0, 1.0, 2.0, 30.0])  # the first is not measured
    assert timing.interleaved({"a": lambda: None}, 3, patience=100.0, clock=lambda _: next(taken)) == {"a": 2.0}


@pytest.mark.slow
def test_nothing_is_measured_on_red_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    red = tmp_path / "test_red.py"
    red.write_text("def test_red():\n    assert False\n")
    monkeypatch.setattr(performance, "TESTS", (str(red),))
    assert performance.main(["--out", str(tmp_path)]) == 2
    assert "nothing was measured" in capsys.readouterr().err
    assert not (tmp_path / performance.RESULTS).exists()


def test_mixers_are_compared_at_one_size_of_state() -> None:
    for name in ("retnet", "delta_product", "mamba3"):
        numbers = sections.state_numbers(name, 128)
        assert numbers is not None
        assert 0.9 * 64 * 128 < numbers < 1.6 * 64 * 128  # the tails of convolutions count too
    assert sections.state_numbers("attention", 16) is None  # it grows


@pytest.mark.slow
def test_every_task_is_drawn_by_the_benchmark_of_tasks() -> None:
    assert {name for name, options in task_generation.shapes() if create_task(name, **options)} == set(list_tasks())


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_every_section_runs(section: str) -> None:
    assert performance.run_section(section, quick=True)["tables"]


@pytest.mark.slow
def test_a_section_is_measured_in_a_process_of_its_own_and_published(tmp_path: Path) -> None:
    assert performance.main(["--quick", "--out", str(tmp_path), "--only", "memory"]) == 0
    assert json.loads((tmp_path / performance.RESULTS).read_text())["memory"]["tables"]
    assert "Memory with length" in (tmp_path / performance.PAGE).read_text()
