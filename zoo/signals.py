"""Signals that ask a process to stop, as far as the platform has them, and handlers for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

CTRL_C = signal.SIGINT
SCHEDULER = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
"""What schedulers send before they kill; Windows has no SIGUSR1."""


@contextmanager
def handled(numbers: Sequence[int], handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let `handle` see to these signals, then put back what did before.

    Outside the main thread, the only one that receives signals, nothing is changed.
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
