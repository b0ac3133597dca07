"""Cache the splits of slow tasks on disk: generate a split once, then read it from an npz file.

By default only tasks with `slow` are cached; `--task.cache true` caches any task. For most tasks, drawing ten thousand
examples is faster than reading them.

The file of a split is `<cache>/<task>/<split>-<n>-seed<seed>-<key>.npz`. The key hashes everything that decides the
content: options, split, size and seed, the source text of the generator and the versions of its libraries. Editing a
generator therefore invalidates its files. A file contains its key and npz checksums, so that a truncated or foreign
file is detected, reported and replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from tasks.base import Arrays, Task
from tasks.data.splits import narrow_split, require_rows, shard_rows, split_rng
from zoo.targets import expanded

logger = logging.getLogger(__name__)

FORMAT = 3
"""Version of the layout on disk; part of the key."""

KEY = "cache key"
"""Name of the array with the key, next to the arrays of the examples."""


class _Damaged(Exception):
    """A cached split cannot be used; the message has the file and the reason."""


def default_cache_dir() -> Path:
    """Return `$MIXER_ZOO_CACHE`, or `~/.cache/mixer-zoo`."""
    return expanded(os.environ.get("MIXER_ZOO_CACHE") or "~/.cache/mixer-zoo")


def materialise(
    task_name: str,
    task: Task,
    split: str,
    n: int,
    seed: int,
    cache_dir: str | Path | None = None,
) -> Arrays:
    """Return the first `n` examples of a split from the cache; generate and store them if they are missing.

    The arrays equal `tasks.data.splits.narrow_split(task, split, n, seed)`. If several processes need the same split,
    one generates it and the others wait. A truncated, altered or foreign file gives a warning in the log and is
    generated again.

    Args:
        task_name: registered name of the task, which names the folder.
        task: the generator.
        split: "train", "validation" or "test".
        n: number of examples, at least 1.
        seed: data seed, at least 0; the splits of one seed are disjoint.
        cache_dir: folder of the cache; default `default_cache_dir()`.

    Returns:
        The arrays, in memory and writable.

    Raises:
        ValueError: an unknown split, a negative seed, n < 1 or more than a finite task has, or a cache folder that
            cannot be written.
    """
    # Check the arguments before anything is written.
    split_rng(seed, split, 0)
    require_rows(task, split, n)
    key = json.dumps(cache_key(task_name, task, split, n, seed), sort_keys=True)
    root = default_cache_dir() if cache_dir is None else expanded(cache_dir)
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    file = root.absolute() / task_name / f"{split}-{n}-seed{seed}-{digest}.npz"
    with contextlib.suppress(FileNotFoundError, _Damaged):
        return _read(file, key)
    try:
        from filelock import FileLock

        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_name(f".{file.name}.lock")):
            try:
                return _read(file, key)  # another process may have written it meanwhile
            except FileNotFoundError:
                pass
            except _Damaged as damage:
                logger.warning("%s; it is generated again", damage)
            arrays = narrow_split(task, split, n, seed)
            _write(file, key, arrays)
            return arrays
    except OSError as error:
        raise ValueError(
            f"cannot write the task cache {str(root)!r} ({error.strerror or error.args[0]}); "
            "set another folder by --task.cache_dir or MIXER_ZOO_CACHE"
        ) from error


def cache_key(task_name: str, task: Task, split: str, n: int, seed: int) -> dict[str, Any]:
    """Return everything that decides the content of a cached split, as plain data."""
    return {
        "format": FORMAT,
        "task": task_name,
        "options": task.options(),
        "fingerprint": task.fingerprint(),
        "split": split,
        "n": n,
        "seed": seed,
        "shard_rows": shard_rows(task),
        "sources": _source_hashes(task),
        "libraries": {library: metadata.version(library) for library in task.libraries},
    }


def _source_hashes(task: Task) -> dict[str, str]:
    """Return hashes of the source code that decides the examples of `task`.

    This is the whole package `tasks`, and the modules of the task, of its base classes and in `sources`.
    """
    inherited = {cls.__module__ for cls in type(task).__mro__ if issubclass(cls, Task)}
    others = sorted(name for name in {*inherited, *task.sources} if not name.startswith("tasks."))
    package = Path(__file__).parents[1]
    return {
        "tasks": _hash(sorted(package.rglob("*.py"))),
        **{module: _hash([_source_file(module)]) for module in others},
    }


def _hash(files: Iterable[Path]) -> str:
    sha = hashlib.sha256()
    for file in files:
        sha.update(file.read_bytes())
    return sha.hexdigest()


def _source_file(module: str) -> Path:
    spec = None
    with contextlib.suppress(ValueError):  # the module of a running script has no spec
        spec = find_spec(module)
    file = getattr(sys.modules.get(module), "__file__", None) if spec is None else spec.origin
    if file is None:
        raise ValueError(
            f"the source of {module!r} cannot be found, so its examples cannot be cached; "
            "write the task into a file and import it"
        )
    return Path(file)


def _write(file: Path, key: str, arrays: Arrays) -> None:
    """Write the arrays beside `file` and move them there in one step."""
    partial = file.with_name(f".{file.name}.incomplete")
    try:
        with partial.open("wb") as stream:
            np.savez(stream, **{KEY: np.array(key)}, **arrays)  # pyright: ignore[reportArgumentType]
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _read(file: Path, key: str) -> Arrays:
    """Return the arrays in `file`.

    Raises:
        FileNotFoundError: there is no such file.
        _Damaged: the file is incomplete, or has another key.
    """
    try:
        with ZipFile(file) as archive:
            if broken := archive.testzip():
                raise BadZipFile(f"wrong checksum of {broken}")
        with np.load(file) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError:
        raise
    except (BadZipFile, EOFError, OSError, ValueError) as error:
        raise _Damaged(f"the cached file {file} cannot be read ({error})") from error
    if str(arrays.pop(KEY, "")) != key:
        raise _Damaged(f"the cached file {file} holds other data")
    return arrays
