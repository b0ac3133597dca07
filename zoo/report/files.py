"""Files that are written whole or not at all, and JSON in which a number that is not finite is null."""

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
    """Write text (UTF-8) or bytes under a temporary name in the same folder, then rename.

    Raises:
        OSError: the folder is missing or cannot be written; it is named, and an earlier file at `path` stays.
    """
    path = Path(path)
    # Without the name in it: TensorBoard reads every file that is called one of events, hidden ones too.
    temporary = path.with_name(f".{uuid.uuid4().hex}")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename is not None:  # nobody has heard of the temporary name
            raise OSError(error.errno, error.strerror, str(path if path.is_dir() else path.parent)) from None
        raise


def write_all(folder: str | os.PathLike[str], contents: Mapping[str, str | bytes]) -> list[Path]:
    """Write files by their paths in a folder, which is made, each whole or not at all; return their whole paths.

    Raises:
        OSError: the folder cannot be written.
    """
    files = {Path(folder, name): content for name, content in contents.items()}
    for file, content in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, content)
    return list(files)


def check_place(path: str | os.PathLike[str]) -> None:
    """Refuse, before the work is done, a path to which no file can be written.

    Raises:
        ValueError: a folder, or something in a folder that is not there.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file")
    if not path.resolve().parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} to write {path.name} into")


def as_json(content: Any, indent: int | None = 1) -> str:
    """Write plain data as a JSON file's text; a number that is not finite is null.

    >>> print(as_json({"loss": math.nan, "at": (1, 2.5)}, indent=None), end="")
    {"loss": null, "at": [1, 2.5]}
    """
    return json.dumps(finite(content), indent=indent, allow_nan=False, ensure_ascii=False) + "\n"


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, None for NaN and Infinity.

    Raises:
        OSError: there is none, or it cannot be read.
        ValueError: it is not JSON.
    """
    return parse_json(path.read_text(encoding="utf-8"))


def parse_json(text: str) -> Any:
    """Return the content of a JSON file's text, None for NaN and Infinity."""
    return json.loads(text, parse_constant=_finite, parse_float=_finite)


def _finite(text: str) -> float | None:
    return value if math.isfinite(value := float(text)) else None


def read_npz(file: Path) -> dict[str, Any]:
    """Return the arrays of an npz file by name; arrays of Python objects are never loaded.

    Raises:
        ValueError: no npz file, or one whose arrays claim to be larger than the file: nothing is allocated for these.
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
                    raise ValueError(f"{member.filename} claims {claimed:,} bytes and has {there:,}")
        with np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, MemoryError, NotImplementedError) as error:
        raise ValueError(f"no npz file: {error or type(error).__name__}") from None


def finite(content: Any) -> Any:
    """Return the same plain data with None for each number that is not finite, lists for tuples and text for keys."""
    if isinstance(content, Mapping):
        return {str(key): finite(each) for key, each in content.items()}
    if isinstance(content, list | tuple):
        return [finite(each) for each in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
