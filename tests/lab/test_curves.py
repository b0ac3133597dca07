"""TensorBoard's events read back as curves."""

from __future__ import annotations

import logging
import time
from logging.handlers import BufferingHandler
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from lab.run.files import EVENTS
from lab.run.record import read_curves


def test_events_that_cannot_be_read_give_no_curves(tmp_path: Path) -> None:
    (tmp_path / f"{EVENTS}0").write_bytes(b"no events of TensorBoard, just text that is long enough to hold a header")
    assert read_curves(tmp_path) == {}


def test_after_a_resume_the_later_values_count(tmp_path: Path) -> None:
    for at, (start, value) in enumerate(((10, 0.25), (20, 0.5))):
        with SummaryWriter(tmp_path, purge_step=start if at else None, filename_suffix=f".{at}") as writer:
            for step in (start, *range(start, 40, 10)):
                writer.add_scalar("val/accuracy", value, step)
        time.sleep(1.1)  # files are read in the order of the second in their name
    said, logger = BufferingHandler(100), logging.getLogger("tensorboard")
    logger.addHandler(said)
    level = logger.level
    assert read_curves(tmp_path) == {"val/accuracy": [(10, 0.25), (20, 0.5), (30, 0.5)]}
    logger.removeHandler(said)
    assert (said.buffer, logger.level) == ([], level)  # TensorBoard would warn of "a TensorFlow restart"
