"""Generated splits on disk: Arrow files written through Hugging Face `datasets`, memory-mapped to read.

One folder per split, `<cache>/<task>/<split>-<n>-seed<seed>-<key>/`, where the key hashes everything that decides the
content: the options, split, size and seed, the source text of the generator and the versions of its libraries. An
edited generator therefore never meets an old file. `seal.json` beside the Arrow file records the key and a checksum,
so a truncated or foreign file is noticed, named and made anew. Reading needs pyarrow alone, not `datasets`.
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
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from tasks.arrow import Column, read_arrays, to_table
from tasks.base import Arrays, Task
from tasks.splits import require_rows, shard_rows, shards, split_rng

logger = logging.getLogger(__name__)

FORMAT = 1
"""Version of the layout on disk; part of the key."""

SEAL = "seal.json"
PROGRESS_DELAY = 2.0
"""Seconds of generation before a progress bar appears."""


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
    """The first `n` examples of a split, from the cache if they are there, else generated into it.

    The same numbers as `tasks.splits.sample_split(task, split, n, seed)`, but tokens and labels are kept in the
    smallest integers that hold them, on disk and in what is returned: cast a batch to int64, not the split (at 100,000
    examples of length 512 that is 400 MB against 1 GB). Processes that ask for the same split at once wait for the one
    that writes it. A file that is truncated, altered or not ours is reported in one line of the log (`tasks.cache`,
    WARNING), deleted and generated again. Nothing is downloaded.

    Args:
        task_name: names the folder; the name the task is registered under.
        task: the generator.
        split: "train", "validation" or "test".
        n: number of examples, at least 1.
        seed: data seed, at least 0; the splits of one seed are disjoint.
        cache_dir: folder of the cache; `default_cache_dir()` if not given.

    Returns:
        The arrays of `task.sample`, in memory, writable, integers narrowed as said above.

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
    """Everything that decides the content of a cached split, as plain data."""
    return {
        "format": FORMAT,
        "task": task_name,
        "options": task.options(),
        "fingerprint": task.fingerprint(),
        "split": split,
        "n": n,
        "seed": seed,
        "shard_rows": shard_rows(task),
        "sources": {module: _source_hash(module) for module in source_modules(task)},
        "libraries": {library: metadata.version(library) for library in task.libraries},
    }


def source_modules(task: Task) -> list[str]:
    """The modules whose text decides what `task` samples: its class's own and inherited ones, `sources`, the splits."""
    inherited = {cls.__module__ for cls in type(task).__mro__ if issubclass(cls, Task)}
    return sorted({*inherited, *task.sources, "tasks.splits"})


def _source_hash(module: str) -> str:
    spec = None
    with contextlib.suppress(ValueError):  # a script that is run is a module without a spec
        spec = find_spec(module)
    file = getattr(sys.modules.get(module), "__file__", None) if spec is None else spec.origin
    if file is None:
        raise ValueError(
            f"the source of {module!r} cannot be found, so what it generates cannot be cached; "
            "write the task into a file and import it"
        )
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


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
    """Generate the split beside `folder`, seal it, and move it there in one step."""
    from datasets.exceptions import DatasetGenerationError

    from tasks.builder import SplitBuilder

    parts = _with_progress(shards(task, key["split"], key["n"], key["seed"]), key)
    first = next(parts)
    layout = {name: Column.of(name, array, task.spec) for name, array in first.items()}
    tables = (to_table(part, layout) for part in chain([first], parts))
    workshop = folder.with_name(f".{folder.name}.incomplete")
    shutil.rmtree(workshop, ignore_errors=True)
    try:
        SplitBuilder(key["task"], key["split"], layout, tables, workshop).write(workshop / "split")
        [data] = (workshop / "split").glob("*.arrow")
        columns = {name: asdict(column) for name, column in layout.items()}
        seal = {"key": key, "file": data.name, "crc32": _checksum(data), "layout": columns}
        (workshop / "split" / SEAL).write_text(json.dumps(seal, indent=1) + "\n")
        (workshop / "split").replace(folder)
    except DatasetGenerationError as error:
        # What the reader needs is the cause: a full disk, a bug in a generator.
        raise error.__cause__ or error from None
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _with_progress(parts: Iterator[Arrays], key: dict[str, Any]) -> Iterator[Arrays]:
    from tqdm import tqdm

    title = f"generating {key['task']} {key['split']}"
    # disable=None: shown on a terminal only.
    with tqdm(total=key["n"], desc=title, unit=" examples", delay=PROGRESS_DELAY, leave=False, disable=None) as bar:
        for part in parts:
            yield part
            bar.update(len(part["inputs"]))


def _read(folder: Path, key: dict[str, Any]) -> Arrays:
    """The arrays in `folder`.

    Raises:
        FileNotFoundError: there is no such folder.
        _Damaged: it does not hold, whole, what `key` describes.
    """
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    try:
        seal = json.loads((folder / SEAL).read_text())
        ours = seal["key"] == json.loads(json.dumps(key))
        data = folder / seal["file"]
        layout = {name: Column(**column) for name, column in seal["layout"].items()}
        crc32 = seal["crc32"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _Damaged(f"the cached file {folder / SEAL} cannot be read ({error or type(error).__name__})") from error
    if not ours:
        raise _Damaged(f"the cached file {folder / SEAL} describes other data")
    try:
        if _checksum(data) != crc32:
            raise _Damaged(f"the cached file {data} is truncated or not the one that was written")
        return read_arrays(data, layout)
    except OSError as error:
        raise _Damaged(f"the cached file {data} cannot be read ({error})") from error


def _checksum(path: Path) -> int:
    """CRC-32 of a file, in blocks: corruption is what it guards against, not malice."""
    crc32 = 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            crc32 = zlib.crc32(block, crc32)
    return crc32
