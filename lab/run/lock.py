"""The lock of a run's folder: only one process trains there."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

from lab.run.files import LOCK
from zoo.errors import UsageError

IN_USE = "is in use by"
"""Words in the error about a run that another process trains, by which `lab.sweep.engine` recognises it."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create the folder and lock it against other processes; if this one is killed, the kernel releases the lock.

    Folders created only for the lock are removed with it, so an invalid command leaves nothing behind.

    Raises:
        UsageError: another process trains there.
        OSError: the folder cannot be written.
    """
    from filelock import FileLock, Timeout

    made = [each for each in (folder, *folder.parents) if not each.exists()]
    file = folder / LOCK
    lock = FileLock(file, blocking=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise UsageError(f"{folder} {IN_USE} {_holder(file)}; wait for it to end, or give another --run_dir") from None
    try:
        with contextlib.suppress(OSError):  # the content only serves the error of other processes
            file.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        yield
    finally:
        # Unlink before releasing: a process that opened this file detects the removal and opens the new one.
        with contextlib.suppress(OSError):
            file.unlink()
            for each in made:
                each.rmdir()
        lock.release()


def _holder(lock: Path) -> str:
    try:
        return lock.read_text(encoding="utf-8") or "another process"
    except (OSError, ValueError):
        return "another process"
