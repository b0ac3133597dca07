"""Write TensorBoard event files atomically."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zoo.extras import require_extra
from zoo.report.files import write_atomically


def write_events(file: Path, summaries: Iterable[tuple[int, Any]], began: float) -> None:
    """Write an event file, atomically and only if it changes.

    Args:
        file: path of the file; its name must contain "tfevents".
        summaries: pairs of step and `Summary`.
        began: time of the events, in seconds since 1970. TensorBoard sorts and colours runs in this order.

    Raises:
        OSError: the file cannot be written.
        MissingExtraError: tensorboard is not installed.
    """
    Event = require_extra("tensorboard.compat.proto.event_pb2").Event
    content = io.BytesIO()
    records = require_extra("tensorboard.summary.writer.record_writer").RecordWriter(content)
    records.write(Event(wall_time=began, file_version="brain.Event:2").SerializeToString())
    for step, summary in summaries:
        records.write(Event(wall_time=began, step=step, summary=summary).SerializeToString())
    if not file.exists() or file.read_bytes() != content.getvalue():
        write_atomically(file, content.getvalue())
