"""What tasks made of real data share: a user's files, Hugging Face data sets, and how data is divided into splits."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from tasks.base import HELD_OUT, Task

OWN_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""What data sets call each split."""


class OfSplits(Task):
    """A task whose data is divided up: `of_split` gives a copy that knows which part it is drawn from."""

    validation: float
    test: float
    _split: str = "train"

    def _keep_shares(self, validation: float, test: float) -> None:
        """Check and keep the shares of the data that go to the splits which it does not have."""
        self.validation, self.test = float(validation), float(test)
        fit = self.validation > 0 and self.test > 0 and self.validation + self.test < 1
        self._demand(fit, "validation and test must be positive shares with a sum below 1", "validation", "test")

    def _parts(self, n: int, found: Container[str]) -> dict[str, slice]:
        """Divide `n` items of training data among it and the splits that are not found in the data."""
        return divide(n, {split: getattr(self, split) for split in HELD_OUT if split not in found})

    def of_split(self, split: str) -> Self:
        part = copy.copy(self)
        part._split = split
        return part


def read_files(path: Path) -> bytes:
    """Read a file, or all files in a folder and its subfolders, one after the other, in the order of their paths.

    Raises:
        ValueError: there is nothing to read.
    """
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    try:
        content = b"".join(file.read_bytes() for file in files)
    except OSError as error:
        raise ValueError(f"cannot read {error.filename or path}: {error.strerror}") from None
    if not content:
        raise ValueError(f"{path} holds nothing")
    return content


def load_dataset(name: str, config: str | None, columns: tuple[str, ...]) -> dict[str, Any]:
    """Load a Hugging Face data set as {split: rows}: at least "train", and those of `OWN_NAMES` that it has.

    Args:
        name: name on the hub, or a local folder.
        config: which of its configurations; None where there is one.
        columns: that every row must have.

    Raises:
        ValueError: `datasets` is missing, the data set cannot be loaded, or it lacks a training split or a column.
    """
    try:
        import datasets
    except ModuleNotFoundError:
        raise ValueError("data sets by name need datasets: pip install 'mixer-zoo[train]'") from None
    try:
        loaded = datasets.load_dataset(name, config)
    except Exception as error:  # noqa: BLE001 (the library raises what its backends raise: not found, offline, broken)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"cannot load data set {name!r}: {reason}") from None
    splits = {}
    for split, names in OWN_NAMES.items():
        for own in names:
            if own in loaded:
                splits.setdefault(split, loaded[own])
    if "train" not in splits:
        raise ValueError(f"data set {name!r} has no split 'train'; it has: {', '.join(map(str, loaded))}")
    for column in columns:
        if column not in splits["train"].column_names:
            valid = ", ".join(splits["train"].column_names)
            raise ValueError(f"data set {name!r} has no column {column!r}; choose from: {valid}")
    return splits


def divide(n: int, missing: Mapping[str, float]) -> dict[str, slice]:
    """Divide `n` items into a training part, then one part for each split that has no data of its own.

    Args:
        n: items in order.
        missing: {split: share of the items}.
    """
    parts, end = {}, n
    for split, share in reversed(list(missing.items())):
        start = end - max(1, round(share * n))
        parts[split], end = slice(start, end), start
    return {"train": slice(0, end), **parts}


def content_hash(*arrays: np.ndarray) -> str:
    """Return a digest of the numbers, their types and shapes."""
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(f"{array.dtype.str}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()
