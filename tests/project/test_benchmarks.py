"""The scripts that measure speed: they refuse red tests, measure in turns, and publish what they found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

pytest.importorskip("benchmarks.peers", reason="the benchmarks run from a clone")

from benchmarks import performance, sections, task_generation, timing
from benchmarks.page import Section, Table, Target, render_section, show
from benchmarks.sections import SECTIONS, Sizes
from tasks import create_task, list_tasks
from tests import ROOT
from zoo.threads import threads


def test_candidates_take_turns() -> None:
    turns: list[str] = []
    seconds = timing.interleaved({name: lambda name=name: turns.append(name) for name in "ab"}, rounds=3)
    assert turns == ["a", "b"] * 4  # once each beforehand
    assert sorted(seconds) == ["a", "b"]


def test_a_slow_candidate_sits_out_after_three_rounds() -> None:
    turns: list[str] = []
    timing.interleaved({name: lambda name=name: turns.append(name) for name in "ab"}, rounds=5, patience=-1.0)
    assert turns == ["a", "b"] * 4


def test_what_is_kept_of_the_rounds_is_their_median() -> None:
    taken = iter([50.0, 1.0, 2.0, 30.0])  # the first is not measured
    assert timing.interleaved({"a": lambda: None}, 3, patience=100.0, clock=lambda _: next(taken)) == {"a": 2.0}


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_a_forward_pass_alone_keeps_no_graph() -> None:
    seen: list[bool] = []
    leaf = torch.ones(2, requires_grad=True)
    timing.forward_only(lambda x: seen.append((x * x).requires_grad) or x, [leaf])()
    timing.forward_and_backward(lambda x: seen.append((x * x).requires_grad) or x * x, [leaf])()
    assert (seen[0], seen[-1]) == (False, True)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the high-water mark is Linux's")
def test_peak_memory_is_what_was_allocated_at_once() -> None:
    def one_after_the_other() -> None:
        for _ in range(3):
            bytearray(64_000_000)

    assert 60_000_000 < timing.peak_bytes(one_after_the_other) < 100_000_000


@pytest.mark.parametrize(
    ("cell", "text"), [(None, "–"), ("x", "x"), (12345, "12,345"), (0.012345, "0.0123"), (9e3, "9,000")]
)
def test_numbers_are_shown_to_three_digits(cell: object, text: str) -> None:
    assert show(cell) == text  # type: ignore[arg-type]


def test_a_missed_target_is_shown_as_one() -> None:
    targets = [Target("speed", 8, 7.9), Target("error", 1e-6, 2e-7, least=False)]
    section = Section("About.", [Table("Times", ["a", "b"], [["x", 1.5]])], targets)
    assert Section.from_plain(json.loads(json.dumps(section.to_plain()))) == section
    text = "\n".join(render_section("Title", section, "here"))
    assert "| speed | ≥ 8 | 7.9 | **no** |" in text
    assert "| error | ≤ 1e-06 | 2e-07 | yes |" in text
    assert "| x | 1.5 |" in text


def test_nothing_is_measured_on_red_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    red = tmp_path / "test_red.py"
    red.write_text("def test_red():\n    assert False\n")
    monkeypatch.setattr(performance, "TESTS", (str(red),))
    assert performance.main(["--out", str(tmp_path)]) == 2
    assert "nothing was measured" in capsys.readouterr().err
    assert not (tmp_path / performance.RESULTS).exists()


@pytest.mark.slow
def test_every_task_is_drawn_by_the_benchmark_of_tasks_at_its_length_where_it_has_it() -> None:
    found = {name: create_task(name, **options).spec.seq_len for name, options in task_generation.shapes()}
    assert found.keys() == set(list_tasks())
    assert sum(length == task_generation.LENGTH for length in found.values()) >= len(found) / 2
    assert task_generation.n_examples("mqar", {}) == task_generation.EXAMPLES


def test_pages_are_made_from_the_results(tmp_path: Path) -> None:
    plain = Section("About.", [], [Target("speed", 8, 9.0)]).to_plain()
    performance.publish({"scan": {"measured": "a machine, commit abc", **plain}}, tmp_path)
    assert "| speed | ≥ 8 | 9 | yes |" in (tmp_path / performance.PAGE).read_text()


@pytest.mark.slow
def test_shapes_of_one_length_keep_their_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1, 100))

    def made_up(forms: Mapping[str, object], rounds: int) -> dict[str, float]:
        ours = next(calls)
        return {name: 1.0 if name == "zoo torch" else 100.0 * ours for name in forms}

    monkeypatch.setattr(timing, "interleaved", made_up)
    monkeypatch.setattr(sections, "_scan_memory", lambda *_: None)
    monkeypatch.setattr(sections, "_scan_error", lambda *_: None)
    section = sections.scan(Sizes(scan_shapes=((1, 8, 4), (4, 8, 2)), python_loop_up_to=8))
    measured = {target.what: target.measured for target in section.targets}
    rows = {row[0]: row[-1] for row in section.tables[0].rows if row[1] == "forward + backward"}
    for shape in ("1, 8, 4", "4, 8, 2"):
        assert measured[f"transformers / torch, forward + backward at ({shape}), one thread"] == rows[shape]
    assert rows["1, 8, 4"] != rows["4, 8, 2"]
    assert measured["mamba.py / torch, forward + backward at (1, 8, 4), one thread"] == rows["1, 8, 4"]


@pytest.mark.parametrize("name", ["retnet", "mlstm", "kda", "delta_product", "rwkv7", "ssd", "mamba3"])
def test_mixers_are_compared_at_one_size_of_state(name: str) -> None:
    numbers = sections.state_numbers(name, 128)
    assert numbers is not None
    assert 0.9 * 64 * 128 < numbers < 1.6 * 64 * 128  # the tails of convolutions count too


def test_a_state_that_grows_has_no_size() -> None:
    assert sections.state_numbers("attention", 16) is None


@pytest.mark.slow
@pytest.mark.parametrize("section", sorted(SECTIONS))
def test_every_section_runs(section: str, tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/performance.py", "--quick", "--out", str(tmp_path), "--only", section]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / performance.RESULTS).read_text())[section]
    assert found["tables"]
