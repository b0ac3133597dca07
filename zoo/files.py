"""Files that a reader finds whole: the old one or the new one, never half of it."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write text (UTF-8) or bytes under a temporary name in the same folder, then rename.

    Raises:
        OSError: the folder is not there or cannot be written; what stood at `path` stays.
    """
    # Without the name in it: TensorBoard reads every file that is called one of events, hidden ones too.
    temporary = path.with_name(f".{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
