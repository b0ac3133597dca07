"""Read real data from files and Hugging Face data sets, and divide it into splits."""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from tasks.base import HELD_OUT, Task, named
from zoo.extras import require_extra

SPLIT_OF = {"train": "train", **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"), "test": "test"}
"""Our name of a split, by the names that data sets use."""


class OfSplits(Task):
    """A task on data that is divided into splits: `of_split` returns a copy that draws from its part."""

    validation: float
    test: float
    _split: str = "train"

    def _keep_shares(self, validation: float, test: float) -> None:
        """Check and store the shares for splits that the data lacks."""
        self.validation, self.test = float(validation), float(test)
        fit = self.validation > 0 and self.test > 0 and self.validation + self.test < 1
        self._demand(fit, "validation and test must be positive shares with a sum below 1", "validation", "test")

    def _parts(self, n: int, found: Container[str]) -> dict[str, slice]:
        """Divide `n` items of training data between training and the splits that the data lacks."""
        return divide(n, {split: getattr(self, split) for split in HELD_OUT if split not in found})

    def of_split(self, split: str) -> Self:
        part = copy.copy(self)
        part._split = split
        return part


def read_files(path: Path) -> dict[Path, bytes]:
    """Read a file, or all files below a folder except hidden ones, in the order of their paths.

    Raises:
        ValueError: an unreadable file, or no content.
    """
    files = [path]
    if path.is_dir():
        below = (file for file in sorted(path.rglob("*")) if file.is_file())
        files = [file for file in below if not any(part[0] == "." for part in file.relative_to(path).parts)]
    try:
        contents = {file: file.read_bytes() for file in files}
    except OSError as error:
        raise ValueError(f"cannot read {error.filename or path}: {error.strerror}") from None
    if not any(contents.values()):
        raise ValueError(f"{path} is empty")
    return contents


def load_dataset(name: str, config: str | None, columns: tuple[str, ...]) -> dict[str, Any]:
    """Load a Hugging Face data set as {split: rows}: "train", and "validation" and "test" if it has them.

    Args:
        name: name on the hub, or a local file or folder.
        config: configuration of the data set; None if it has only one.
        columns: required columns.

    Raises:
        MissingExtraError: `datasets` is not installed.
        ValueError: the data set cannot be loaded, or it lacks a training split or a column.
    """
    with named(f"cannot load data set {name!r}"):
        found = read_splits("load_dataset", name, config)
    with named(f"data set {name!r}"):
        splits = by_split(found)
        for column in columns:
            if column not in splits["train"].column_names:
                valid = ", ".join(splits["train"].column_names)
                raise ValueError(f"no column {column!r}; choose from: {valid}")
    return splits


def read_splits(function: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of `datasets` without its progress bars and log, and return its result.

    Raises:
        MissingExtraError: `datasets` is not installed.
        ValueError: the function failed; the message has the reason in one line.
    """
    datasets = require_extra("datasets", "train")
    try:
        with quiet():
            return getattr(datasets, function)(*arguments, **options)
    except Exception as error:  # noqa: BLE001 (the library raises what its backends raise: not found, offline, broken)
        reason = str(error.__cause__ or error).strip() or type(error).__name__
        raise ValueError(reason.splitlines()[0]) from None


def by_split(found: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the splits of a data set under our names; parts with other names are left out.

    Raises:
        ValueError: there is no training split.
    """
    splits = {SPLIT_OF[str(own)]: part for own, part in found.items() if str(own) in SPLIT_OF}
    if "train" not in splits:
        raise ValueError(f"there is no split train, only: {', '.join(map(str, found))}")
    return splits


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide the progress bars of `datasets`, which appear even for the shortest split, and its log."""
    import datasets

    bars, level = not datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if bars:
            datasets.enable_progress_bars()


def divide(n: int, missing: Mapping[str, float]) -> dict[str, slice]:
    """Divide `n` items in order into a training part, then a part per missing split, given its share."""
    parts, end = {}, n
    for split, share in reversed(list(missing.items())):
        start = end - max(1, round(share * n))
        parts[split], end = slice(start, end), start
    return {"train": slice(0, end), **parts}


def content_hash(*arrays: np.ndarray) -> str:
    """Return a digest of arrays: their numbers, types and shapes."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(f"{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()
