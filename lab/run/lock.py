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
"""In the message about a run that another process trains."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder and lock it against other processes; the kernel releases the lock when this one is killed.

    Folders made only for the lock are removed with it: a run that is refused leaves nothing.

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
        with contextlib.suppress(OSError):  # the holder's name is only for the message to the others
            file.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
        yield
    finally:
        # Unlinked while it is held: who opened it before finds out and opens the one that is there then.
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
