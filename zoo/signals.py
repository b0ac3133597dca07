"""Signals that ask a process to stop, and temporary handlers for them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

CTRL_C = signal.SIGINT
SCHEDULER = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""Signals that job schedulers send before they kill a process; Windows has no SIGUSR1."""


@contextmanager
def handled(numbers: Sequence[int], handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle these signals by `handle` within the block; the previous handlers are restored afterwards.

    Outside the main thread, where Python allows no handlers, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
