"""A task on your own data: an npz file, or a file or folder that Hugging Face `datasets` reads."""

from __future__ import annotations

import functools
import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import numpy as np

from tasks.base import HELD_OUT, HELD_OUT_SHARE, Arrays, FiniteTask, named
from tasks.data.reading import SPLIT_OF, OfSplits, by_split, content_hash, divide, read_splits
from tasks.data.splits import SPLITS
from tasks.spec import IGNORED, TaskSpec
from tasks.yours import SUFFIXES
from tasks.yours.arrays import OWN, conform, known, majority, measure, require
from zoo.report.files import read_npz

BUILDERS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".jsonl": "json"}
"""Builder of `datasets` by the suffix of the files that it reads."""


class Data(OfSplits, FiniteTask):
    """The examples of a file or a folder.

    The data has columns, or arrays in an npz file. `inputs` are, per example, (seq,) integers or (seq, features)
    floats. `labels` are integers for classes or floats for regression, one per position, or one per example for its
    last position; -100 or NaN means no label. `lengths` are the lengths of padded examples; tables with lists of
    several lengths do not need them. Other integer columns in the shape of the inputs are facts, by which scores are
    split.

    Splits are named train, validation (valid, val, dev) and test: by a prefix of the array's name (`test_inputs`), by
    the name of a file or its folder, or as saved by `datasets`. A missing split is a tenth of the training data, cut so
    that equal inputs stay in one split.

    Args:
        inputs: name of the column of inputs.
        labels: name of the column of labels.
        vocab_size: number of tokens; default: one more than the largest token.
        n_classes: number of classes; default: one more than the largest class.
        split_seed: seed that divides examples among missing splits.
        allow_shared: accept data whose splits share inputs.
    """

    path: ClassVar[Path]
    """The file or folder."""

    def __init__(
        self,
        inputs: str = "inputs",
        labels: str = "labels",
        vocab_size: int | None = None,
        n_classes: int | None = None,
        split_seed: int = 0,
        allow_shared: bool = False,
    ) -> None:
        self.inputs, self.labels, self.allow_shared = inputs, labels, allow_shared
        self.vocab_size = None if vocab_size is None else self._whole("vocab_size", vocab_size, 1)
        self.n_classes = None if n_classes is None else self._whole("n_classes", n_classes, 1)
        self.split_seed = self._whole("split_seed", split_seed, 0)
        with named(self.path):
            self._splits, spec = self._read()
        self._specs = {
            split: spec if spec.chance is None else replace(spec, chance=majority(arrays["labels"]))
            for split, arrays in self._splits.items()
        }

    def _read(self) -> tuple[dict[str, Arrays], TaskSpec]:
        # The path may come from the configuration of an old run, or of a run on another machine.
        path = next((each for each in (self.path, Path.cwd() / self.path.name) if each.exists()), None)
        if path is None:
            raise ValueError(f"there is no such file or folder: put {self.path.name} there or into {Path.cwd()}")
        if path.is_file() and path.suffix not in SUFFIXES:
            raise ValueError(f"not a data file; give {', '.join(SUFFIXES)}, a folder of tables, or file.py:function")
        columns_of = _arrays if path.suffix == ".npz" else functools.partial(_tables, asked=(self.inputs, self.labels))
        found: dict[str, Arrays] = {}
        for name, columns in columns_of(path).items():
            with named(name):
                found[name] = conform(self._named(columns))
        found = by_split(found)
        splits = _aligned({split: found[split] for split in SPLITS if split in found})
        spec = measure(splits.values(), self.vocab_size, self.n_classes)
        for split, arrays in splits.items():
            with named(split):
                require(arrays, spec)
        if not self.allow_shared:
            _refuse_shared(splits)
        splits = _cut(splits, self.split_seed)
        for split, arrays in splits.items():
            if not known(arrays["labels"]).any():
                raise ValueError(f"{split}: labels: no position has a label; {IGNORED} and NaN mean none")
        return splits, spec

    def _named(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the columns under their names in examples: inputs, labels, lengths and facts."""
        for option, column in (("inputs", self.inputs), ("labels", self.labels)):
            if column not in columns:
                there = ", ".join(columns) or "no columns of numbers"
                raise ValueError(f"there is no column {column!r}, only: {there}; set --task.{option}")
        inputs = columns[self.inputs]
        given = {"inputs": inputs, "labels": columns[self.labels]}
        for name, array in columns.items():
            is_fact = array.dtype.kind in "iu" and array.shape == inputs.shape[:2]
            if name == "lengths" or (is_fact and name not in {self.inputs, self.labels, *OWN}):
                given[name] = array
        return given

    def at_length(self, seq_len: int) -> Self:
        if seq_len != self.spec.seq_len:
            raise ValueError(f"{self.name}: the data has length {self.spec.seq_len}, got {seq_len}")
        return self

    def fingerprint(self) -> dict[str, Any]:
        parts = [array for split in sorted(self._splits) for _, array in sorted(self._splits[split].items())]
        return {"content": content_hash(*parts)}

    @property
    def spec(self) -> TaskSpec:
        return self._specs[self._split]

    @property
    def size(self) -> int:
        return len(self._splits[self._split]["inputs"])

    def take(self, rows: np.ndarray) -> Arrays:
        return {name: array[rows] for name, array in self._splits[self._split].items()}


def _arrays(file: Path) -> dict[str, dict[str, np.ndarray]]:
    """Return the arrays of an npz file by split; arrays without a split in their names are training data."""
    try:
        arrays = read_npz(file)
    except (OSError, ValueError) as error:
        why = "it has arrays of Python objects, which we never load" if "allow_pickle" in str(error) else error
        raise ValueError(f"cannot be read: {why}") from None
    splits: dict[str, dict[str, np.ndarray]] = {}
    for name, array in arrays.items():
        beginning, _, rest = name.partition("_")
        split, column = (SPLIT_OF[beginning], rest) if beginning in SPLIT_OF and rest else ("", name)
        splits.setdefault(split, {})[column] = array
    if "" in splits and len(splits) > 1:
        raise ValueError(f"either all or no array names must begin with a split; there are: {', '.join(arrays)}")
    return splits if "" not in splits else {"train": splits[""]}


def _tables(path: Path, asked: tuple[str, str]) -> dict[str, dict[str, np.ndarray]]:
    """Return the columns of a file or a folder by split: the two in `asked`, and all other columns of numbers."""
    if path.is_file() and not path.stat().st_size:
        raise ValueError("cannot be read: the file is empty")
    with TemporaryDirectory() as scratch:
        with named("cannot be read"):
            if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
                found = read_splits("load_from_disk", str(path))
            elif path.is_file():
                found = read_splits("load_dataset", BUILDERS[path.suffix], data_files=str(path), cache_dir=scratch)
            elif any(path.rglob("*.feather")):
                found = read_splits("load_dataset", "arrow", data_dir=str(path), cache_dir=scratch)
            else:
                found = read_splits("load_dataset", str(path), cache_dir=scratch)
        parts = by_split(found) if isinstance(found, dict) else {"train": found}
        return {split: _columns(rows.with_format("arrow")[:], asked) for split, rows in parts.items()}


def _columns(table: Any, asked: tuple[str, str]) -> dict[str, np.ndarray]:
    """Return the columns of a table as arrays, with `lengths` if rows differ in length.

    A column that cannot be read is left out, unless it is asked for or may be a fact.
    """
    import pyarrow as pa

    from tasks.data.arrow import read_column

    arrays, ends = {}, {}
    for field in table.schema:
        innermost, depth = field.type, 0
        while isinstance(innermost, pa.BaseExtensionType) or hasattr(innermost, "value_type"):
            if isinstance(innermost, pa.BaseExtensionType):
                innermost = innermost.storage_type
            else:
                innermost, depth = innermost.value_type, depth + 1
        needed = field.name in {*asked, "lengths"} or (depth == 1 and pa.types.is_integer(innermost))
        if needed or pa.types.is_integer(innermost) or pa.types.is_floating(innermost):
            try:
                with named(field.name):
                    arrays[field.name], ends[field.name] = read_column(table.column(field.name))
            except ValueError:
                if needed:
                    raise
    return _with_lengths(arrays, ends, *asked)


def _with_lengths(arrays: Arrays, ends: Mapping[str, np.ndarray | None], inputs: str, labels: str) -> Arrays:
    """Return the columns, with `lengths` if inputs differ in length, without columns of other lengths."""
    if not {inputs, labels} <= arrays.keys():
        return arrays  # the caller's error lists them
    lengths = ends.get(inputs)
    fitting = {}
    for name, array in arrays.items():
        if (own := ends[name]) is None or (lengths is not None and (own == lengths).all()):
            fitting[name] = array
        elif name == labels:
            row = 0 if lengths is None else int(np.flatnonzero(own != lengths)[0])
            n = array.shape[1] if lengths is None else lengths[row]
            raise ValueError(f"row {row} has {own[row]} {labels} and {n} {inputs}; give equal numbers")
    return fitting if lengths is None else {"lengths": lengths, **fitting}


def _aligned(splits: dict[str, Arrays]) -> dict[str, Arrays]:
    """Pad the rows of all splits to the longest row, if any split has `lengths`."""
    if not any("lengths" in arrays for arrays in splits.values()):
        return splits
    longest = max(arrays["inputs"].shape[1] for arrays in splits.values())
    made = {}
    for split, arrays in splits.items():
        n, seq_len = arrays["inputs"].shape[:2]
        filled = {"lengths": np.full(n, seq_len)} | arrays
        for name in filled.keys() - {"lengths"}:
            nothing = {"inputs": 0, "labels": IGNORED if arrays["labels"].dtype.kind == "i" else np.nan}.get(name, -1)
            edges = [(0, longest - seq_len if axis == 1 else 0) for axis in range(filled[name].ndim)]
            filled[name] = np.pad(filled[name], edges, constant_values=nothing)
        made[split] = filled
    return made


def _refuse_shared(splits: Mapping[str, Arrays]) -> None:
    keys = {split: _row_keys(arrays) for split, arrays in splits.items()}
    for first, second in itertools.combinations(keys, 2):
        shared = np.isin(keys[second], keys[first])
        if shared.any():
            row = int(shared.argmax())
            other = int((keys[first] == keys[second][row]).argmax())
            raise ValueError(
                f"{shared.sum():,} of {len(shared):,} rows of {second} have inputs that also occur in {first}:"
                f" row {row} repeats the inputs of row {other}; divide the data again, or give allow_shared=true"
            )


def _cut(splits: dict[str, Arrays], seed: int) -> dict[str, Arrays]:
    """Return the splits, with missing splits cut from training; rows with equal inputs stay together."""
    missing = dict.fromkeys((split for split in HELD_OUT if split not in splits), HELD_OUT_SHARE)
    if not missing:
        return splits
    whole = splits["train"]
    distinct, group = np.unique(_row_keys(whole), return_inverse=True)
    if len(distinct) <= len(missing):
        raise ValueError(f"cutting off {' and '.join(missing)} needs more than {len(missing)} different inputs")
    order = np.random.default_rng(seed).permutation(len(distinct))
    parts = {split: np.isin(group, order[part]) for split, part in divide(len(distinct), missing).items()}
    return splits | {split: {name: each[rows] for name, each in whole.items()} for split, rows in parts.items()}


def _row_keys(arrays: Arrays) -> np.ndarray:
    """Return a digest of each row's inputs."""
    inputs, ends = arrays["inputs"], arrays.get("lengths")
    rows = (row.tobytes() + (b"" if ends is None else ends[i].tobytes()) for i, row in enumerate(inputs))
    return np.array([hashlib.sha256(row).hexdigest()[:32] for row in rows])
