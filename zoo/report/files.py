"""Atomic writing of files, JSON without NaN, and safe reading of npz files."""

from __future__ import annotations

import contextlib
import json
import math
import os
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.extras import require_extra


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write text (UTF-8) or bytes to a temporary file in the same folder, then rename it.

    Raises:
        OSError: the folder is missing or not writable; an existing file at `path` is unchanged.
    """
    path = Path(path)
    # The temporary name does not contain the file's: TensorBoard reads all event files, even hidden ones.
    temporary = path.with_name(f".{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename is not None:  # the message must not show the temporary name
            raise OSError(error.errno, error.strerror, str(path if path.is_dir() else path.parent)) from None
        raise


def write_all(folder: str | os.PathLike[str], contents: Mapping[str, str | bytes]) -> list[Path]:
    """Write {path in the folder: content}, each file atomically; create missing folders and return the full paths.

    Raises:
        OSError: the folder is not writable.
    """
    files = {Path(folder, name): content for name, content in contents.items()}
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content)
    return list(files)


def check_place(path: str | os.PathLike[str]) -> None:
    """Check, before long work starts, that a file can be written to `path`.

    Raises:
        ValueError: `path` is a folder, or its folder does not exist.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, but a file is needed")
    if not path.resolve().parent.is_dir():
        raise ValueError(f"cannot write {path.name}: there is no folder {path.parent}")


def as_json(content: Any, indent: int | None = 1) -> str:
    """Format plain data as the text of a JSON file; numbers that are not finite become null.

    >>> print(as_json({"loss": math.nan, "at": (1, 2.5)}, indent=None), end="")
    {"loss": null, "at": [1, 2.5]}
    """
    return json.dumps(finite(content), indent=indent, allow_nan=False, ensure_ascii=False) + "\n"


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, None for NaN and Infinity.

    Raises:
        OSError: the file does not exist or cannot be read.
        ValueError: it is not JSON.
    """
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str) -> Any:
    """Parse the text of a JSON file; NaN and Infinity become None."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float | None:
    return value if math.isfinite(value := float(text)) else None


def read_npz(file: Path) -> dict[str, Any]:
    """Read the arrays of an npz file by name; arrays of Python objects are never loaded.

    Raises:
        ValueError: the file is not npz, or an array's header claims more bytes than the file has (checked before any
            memory is allocated).
        OSError: the file cannot be read.
        MissingExtraError: numpy is not installed.
    """
    np = require_extra("numpy", "train")
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                with archive.open(member) as array:
                    shape, _, dtype = read_header[np.lib.format.read_magic(array)](array)
                    claimed, there = math.prod(shape) * dtype.itemsize, member.file_size - array.tell()
                if claimed > there and not dtype.hasobject:
                    raise ValueError(f"{member.filename} claims {claimed:,} bytes but has {there:,}")
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, MemoryError, NotImplementedError) as error:
        raise ValueError(f"not a valid npz file: {error or type(error).__name__}") from None


def finite(content: Any) -> Any:
    """Convert plain data to valid JSON: numbers that are not finite become None, tuples lists, and keys strings."""
    if isinstance(content, Mapping):
        return {str(key): finite(each) for key, each in content.items()}
    if isinstance(content, list | tuple):
        return [finite(each) for each in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
