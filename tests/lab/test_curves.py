"""`read_curves` reads TensorBoard's event files: resumed, damaged, unfinished, and with clocks set back."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from torch.utils.tensorboard import SummaryWriter

from lab.run.files import EVENTS, HPARAMS, METRICS
from lab.run.record import read_curves
from zoo.training import write_hparams


def test_events_that_cannot_be_read_give_no_curves(tmp_path: Path, logged: list[str]) -> None:
    for at, content in enumerate((b"no events of TensorBoard, just text, long enough for a header", b"\1" + bytes(16))):
        (tmp_path / f"{EVENTS}0").write_bytes(content)
        assert read_curves(tmp_path) == {}
        assert len(logged) == at + 1


def test_steps_that_a_resumed_run_repeats_are_read_once(tmp_path: Path, logged: list[str]) -> None:
    for at, (start, value, end) in enumerate(((10, 0.25, 40), (20, 0.5, 40))):
        with SummaryWriter(tmp_path, purge_step=start if at else None, filename_suffix=f".{at}") as writer:
            writer.add_text("note", "is no curve", start)
            for step in (start, *range(start, end, 10)):
                writer.add_scalar("val/accuracy", value, step)
    written = max(tmp_path.iterdir())
    written.write_bytes(written.read_bytes()[:-9])  # as if the last record were still being written
    whole = {"val/accuracy": [(10, 0.25), (20, 0.5), (30, 0.25)]}
    assert read_curves(tmp_path) == whole
    (tmp_path / METRICS).write_text("{}")  # the run is finished, so the file is damaged
    assert read_curves(tmp_path) == whole
    assert len(logged) == 1


def test_a_truncated_file_of_a_finished_run_is_reported(tmp_path: Path, logged: list[str]) -> None:
    (tmp_path / METRICS).write_text("{}")
    sizes = []
    with SummaryWriter(tmp_path) as writer:
        (file,) = tmp_path.glob(f"{EVENTS}*")
        for step in (1, 2):
            writer.add_scalar("val/accuracy", 0.5, step)
            writer.flush()
            sizes.append(file.stat().st_size)
    content = file.read_bytes()
    for end in range(sizes[0] + 1, sizes[1]):
        file.write_bytes(content[:end])
        assert read_curves(tmp_path) == {"val/accuracy": [(1, 0.5)]}
    assert len(logged) == sizes[1] - sizes[0] - 1


@pytest.mark.parametrize("clocks", list(itertools.permutations((1, 2, 3))))
def test_a_clock_that_was_set_back_hides_no_curve(clocks: tuple[int, ...], tmp_path: Path) -> None:
    write_hparams(tmp_path / HPARAMS, {"lr": 0.1}, "trial", started=1.0)
    for purge, steps, clock in zip((None, 20, 30), ((10, 20, 30), (20, 30, 40), (30, 40, 50)), clocks, strict=True):
        with SummaryWriter(tmp_path / "written", purge_step=purge) as writer:
            for step in steps:
                writer.add_scalar("val/accuracy", step / 64, step)
        next((tmp_path / "written").iterdir()).rename(tmp_path / f"{EVENTS}{clock}.host")
    assert read_curves(tmp_path) == {"val/accuracy": [(step, step / 64) for step in range(10, 60, 10)]}
