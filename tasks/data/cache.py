"""Slow tasks on disk: a split is generated once, written and read back by Hugging Face `datasets`.

By default only tasks that declare themselves slow are kept; `--task.cache true` keeps any task. For most tasks, drawing
ten thousand examples takes less time than importing `datasets`.

One folder per split, `<cache>/<task>/<split>-<n>-seed<seed>-<key>/`, where the key hashes everything that decides the
content: the options, split, size and seed, the source text of the generator and the versions of its libraries. An
edited generator therefore never meets an old file. `datasets.load_from_disk` can read the folder; `seal.json`
in it records the key and a checksum of each other file, so a truncated or foreign file is noticed, named and made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sys
import zlib
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tasks.base import Arrays, Task
from tasks.data.arrow import from_table, to_table
from tasks.data.reading import quiet
from tasks.data.splits import narrow_split, require_rows, shard_rows, split_rng

logger = logging.getLogger(__name__)

FORMAT = 2
"""Version of the layout on disk; part of the key."""

SEAL = "seal.json"


class _Damaged(Exception):
    """A cached split that cannot be used; the message says which file and why."""


def default_cache_dir() -> Path:
    """`$MIXER_ZOO_CACHE`, or `~/.cache/mixer-zoo`."""
    return Path(os.environ.get("MIXER_ZOO_CACHE") or "~/.cache/mixer-zoo").expanduser()


def materialise(
    task_name: str,
    task: Task,
    split: str,
    n: int,
    seed: int,
    cache_dir: str | Path | None = None,
) -> Arrays:
    """Return the first `n` examples of a split from the cache; generate and store them if they are not there.

    The arrays, on disk and returned, are those of `tasks.data.splits.narrow_split(task, split, n, seed)`. Processes
    that ask for the same split at once wait for the one that writes it. A file that is truncated, altered or not ours
    is reported in one line of the log (a warning), deleted and generated again. Nothing is downloaded.

    Args:
        task_name: names the folder; the name the task is registered under.
        task: the generator.
        split: "train", "validation" or "test".
        n: number of examples, at least 1.
        seed: data seed, at least 0; the splits of one seed are disjoint.
        cache_dir: folder of the cache; `default_cache_dir()` if not given.

    Returns:
        The arrays, in memory and writable.

    Raises:
        ValueError: an unknown split, a negative seed, n < 1 or more than a finite task has, or a cache folder that
            cannot be written.
    """
    # Refused before anything is written.
    split_rng(seed, split, 0)
    require_rows(task, split, n)
    key = cache_key(task_name, task, split, n, seed)
    root = default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser()
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    folder = root.absolute() / task_name / f"{split}-{n}-seed{seed}-{digest}"
    with contextlib.suppress(FileNotFoundError, _Damaged):
        return _read(folder, key)
    try:
        return _generate_once(folder, key, task)
    except OSError as error:
        raise ValueError(
            f"cannot write the task cache {str(root)!r} ({error.strerror or error.args[0]}); "
            "name another folder by --task.cache_dir or MIXER_ZOO_CACHE"
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
    """Return a hash of each source text that decides what `task` samples.

    These are the package `tasks` as a whole, and the modules of the task, of its base classes and in `sources`.
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
    with contextlib.suppress(ValueError):  # the module of a script that is run has no spec
        spec = find_spec(module)
    file = getattr(sys.modules.get(module), "__file__", None) if spec is None else spec.origin
    if file is None:
        raise ValueError(
            f"the source of {module!r} cannot be found, so what it generates cannot be cached; "
            "write the task into a file and import it"
        )
    return Path(file)


def _generate_once(folder: Path, key: dict[str, Any], task: Task) -> Arrays:
    """Write the split unless another process has done so meanwhile; a damaged one is reported and replaced."""
    from filelock import FileLock

    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        try:
            return _read(folder, key)
        except FileNotFoundError:
            pass
        except _Damaged as damage:
            logger.warning("%s; it is deleted and generated again", damage)
        if folder.exists():
            shutil.rmtree(folder)
        _write(folder, key, task)
        return _read(folder, key)


def _write(folder: Path, key: dict[str, Any], task: Task) -> None:
    """Generate the split next to `folder`, seal it, and move it there in one step."""
    import datasets

    table = to_table(narrow_split(task, key["split"], key["n"], key["seed"]))
    workshop = folder.with_name(f".{folder.name}.incomplete")
    shutil.rmtree(workshop, ignore_errors=True)  # of a writer that was killed
    try:
        with quiet():
            datasets.Dataset(table).save_to_disk(workshop, num_shards=1)
        seal = {"key": key, "crc32": {file.name: _checksum(file) for file in sorted(workshop.iterdir())}}
        (workshop / SEAL).write_text(json.dumps(seal, indent=1) + "\n")
        workshop.replace(folder)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _read(folder: Path, key: dict[str, Any]) -> Arrays:
    """Return the arrays in `folder`.

    Raises:
        FileNotFoundError: there is no such folder.
        _Damaged: it does not hold, whole, what `key` describes.
    """
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    try:
        seal = json.loads((folder / SEAL).read_text())
        ours = seal["key"] == json.loads(json.dumps(key))
        checksums = dict(seal["crc32"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _Damaged(f"the cached file {folder / SEAL} cannot be read ({error or type(error).__name__})") from error
    if not ours:
        raise _Damaged(f"the cached file {folder / SEAL} describes other data")
    for name, crc32 in checksums.items():
        try:
            if _checksum(folder / name) != crc32:
                raise _Damaged(f"the cached file {folder / name} is truncated or not the one that was written")
        except OSError as error:
            raise _Damaged(f"the cached file {folder / name} cannot be read ({error})") from error
    # Imported once there is something to read.
    import datasets

    with quiet():
        return from_table(datasets.load_from_disk(folder).with_format("arrow")[:])  # pyright: ignore[reportArgumentType]


def _checksum(path: Path) -> int:
    """CRC-32 of a file, in blocks: corruption is what it guards against, not malice."""
    crc32 = 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            crc32 = zlib.crc32(block, crc32)
    return crc32
