"""Convert a user's arrays to the shapes of a `TaskSpec`, or report the first problem in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from tasks.base import Arrays
from tasks.spec import IGNORED, TaskSpec

OWN = ("inputs", "labels", "lengths")
"""Names of the arrays that are not facts."""
MOST = 2**24
"""Upper bound of tokens and classes, since a model has a vector for each number up to the largest."""

FACTS = np.iinfo(np.int32)
"""Range of facts; a number outside becomes the nearest one inside."""


def conform(given: Mapping[str, Any]) -> Arrays:
    """Return `inputs` and `labels` as in `TaskSpec`, `lengths` if given, then the facts.

    Args:
        given: arrays by name. `inputs` are (n, seq) integers or (n, seq, features) floats. `labels` are integers or
            floats, (n, seq) or (n,), for regression also (n, seq, channels); -100 or NaN means no label, and one label
            per row belongs to the row's last position. `lengths` of the rows are (n,). Facts are (n, seq) integers.

    Raises:
        ValueError: a missing array, or an invalid type, shape or value.
    """
    for name in OWN[:2]:
        if name not in given:
            raise ValueError(f"there is no array {name!r}, only: {', '.join(given) or 'none'}")
    arrays = {name: _numbers(name, array) for name, array in given.items()}
    inputs = arrays["inputs"]
    if (inputs.dtype.kind, inputs.ndim) not in (("i", 2), ("f", 3)) or 0 in inputs.shape[1:]:
        raise ValueError(f"inputs must be integers (n, seq) or floats (n, seq, features), got {_outline(inputs)}")
    n, seq_len = inputs.shape[:2]
    if not n:
        raise ValueError("there are no examples")
    for name, array in arrays.items():
        if array.shape[:1] != (n,):
            raise ValueError(f"{name} must have {n} rows like inputs, got {_outline(array)}")
    lengths = arrays.get("lengths", np.full(n, seq_len))
    rule = f"lengths must be integers (n,) from 1 to {seq_len}"
    if lengths.shape != (n,) or lengths.dtype.kind != "i":
        raise ValueError(f"{rule}, got {_outline(lengths)}")
    _refuse((lengths < 1) | (lengths > seq_len), lambda row: f"{rule}, row {row} has {lengths[row]}")
    within = np.arange(seq_len) < lengths[:, None]
    made = {"inputs": _inputs(inputs, within), "labels": _labels(arrays["labels"], within, lengths)}
    labelled = known(made["labels"])
    if "lengths" in arrays:
        made["lengths"] = lengths
    for name in sorted(arrays.keys() - {*OWN}):
        fact = arrays[name]
        if fact.shape != (n, seq_len) or fact.dtype.kind != "i":
            raise ValueError(f"{name} must be integers {(n, seq_len)}, as any additional array, got {_outline(fact)}")
        made[name] = np.where(labelled, fact, -1).clip(FACTS.min, FACTS.max).astype(np.int32)
    return made


def known(labels: np.ndarray) -> np.ndarray:
    """Return whether each position has a label, bool (n, seq)."""
    return labels != IGNORED if labels.dtype.kind == "i" else ~np.isnan(labels[:, :, 0])


def measure(splits: Iterable[Arrays], vocab_size: int | None, n_classes: int | None) -> TaskSpec:
    """Return the spec of examples from `conform`, which have the same names and types of arrays in each split.

    Args:
        splits: the examples of each split.
        vocab_size: number of tokens; default: one more than the largest token.
        n_classes: number of classes; default: one more than the largest class.

    Raises:
        ValueError: vocab_size for float inputs, n_classes for regression, or no label at all.
    """
    spec = _measured(list(splits), vocab_size, n_classes)
    if spec.labelled == 0:
        raise ValueError(f"labels: no position has a label; {IGNORED} and NaN mean none")
    return spec


def _measured(splits: list[Arrays], vocab_size: int | None, n_classes: int | None) -> TaskSpec:
    inputs, labels = splits[0]["inputs"], splits[0]["labels"]
    tokens, classes = inputs.dtype.kind == "i", labels.dtype.kind == "i"
    if vocab_size is not None and not tokens:
        raise ValueError(f"vocab_size needs integer inputs, but these are floats; got vocab_size={vocab_size}")
    if n_classes is not None and not classes:
        raise ValueError(f"n_classes needs integer labels, but these are floats; got n_classes={n_classes}")

    def count(name: str) -> int:
        return 1 + max(int(arrays[name].max(initial=0)) for arrays in splits)

    numbers = np.unique(np.concatenate([known(arrays["labels"]).sum(axis=1) for arrays in splits]))
    return TaskSpec(
        input="tokens" if tokens else "vectors",
        seq_len=inputs.shape[1],
        n_outputs=(n_classes or count("labels")) if classes else labels.shape[2],
        loss="cross_entropy" if classes else "mse",
        chance=majority(labels) if classes else None,
        vocab_size=(vocab_size or count("inputs")) if tokens else None,
        d_input=None if tokens else inputs.shape[2],
        labelled=int(numbers[0]) if len(numbers) == 1 else None,
        facts=tuple(name for name in splits[0] if name not in OWN),
    )


def require(arrays: Arrays, spec: TaskSpec) -> None:
    """Check that examples from `conform` fit a spec.

    Raises:
        ValueError: a field differs, or a token or class is out of range; the message has the field or the row.
    """
    here = _measured([arrays], None, None)
    for field in ("input", "seq_len", "d_input", "loss", "facts"):
        if (there := getattr(spec, field)) != (found := getattr(here, field)):
            raise ValueError(f"{field} is {found}, but {there} in the other examples")
    if spec.loss == "mse" and here.n_outputs != spec.n_outputs:
        raise ValueError(f"labels have {here.n_outputs} channels, but {spec.n_outputs} in the other examples")
    if spec.vocab_size is not None:
        _bound("inputs", "token", "vocab_size", arrays["inputs"], spec.vocab_size)
    if spec.loss == "cross_entropy":
        _bound("labels", "class", "n_classes", arrays["labels"], spec.n_outputs)


def _bound(name: str, kind: str, option: str, array: np.ndarray, top: int) -> None:
    def message(row: int) -> str:
        found = f"{name}: row {row} has the {kind} {array[row].max()}"
        return f"{found}, but {option}={top} allows 0 ... {top - 1}; give a larger {option}"

    _refuse(array >= top, message)


def majority(labels: np.ndarray) -> float:
    """Return the share of the most common class among all labels; 1 without labels."""
    counts = np.bincount(labels[labels != IGNORED])
    return float(counts.max() / counts.sum()) if len(counts) else 1.0


def _numbers(name: str, given: Any) -> np.ndarray:
    """Return an array of numbers as int64, float32 or float64."""
    array = np.asarray(given)
    if array.dtype.kind not in "biuf" or not array.ndim:
        raise ValueError(f"{name} must be an array of integers or floats, got {_outline(array)}")
    if array.dtype == np.uint64:  # the upper half would turn negative in int64
        array = array.clip(max=np.iinfo(np.int64).max)
    if array.dtype.kind == "f":
        return array if array.dtype == np.float64 else array.astype(np.float32)
    return array.astype(np.int64)


def _inputs(inputs: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Return the checked inputs, with zeros beyond the ends of rows."""
    if inputs.dtype.kind == "i":
        inputs = np.where(within, inputs, 0)
        _refuse(inputs < 0, lambda row: f"inputs: row {row} has the token {inputs[row].min()}; tokens are at least 0")
        return _below_most("inputs", "token", inputs)
    inputs = _single(np.where(within[:, :, None], inputs, 0))
    _refuse(~np.isfinite(inputs), lambda row: f"inputs: row {row} has NaN or inf; give finite numbers")
    return inputs


def _labels(labels: np.ndarray, within: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the checked labels: none beyond the ends of rows, one per row moved to its last position."""
    classes, shape = labels.dtype.kind == "i", within.shape
    if labels.ndim == 1:
        last = np.arange(shape[1]) == lengths[:, None] - 1
        labels = np.where(last, labels[:, None], IGNORED if classes else np.nan)
    if labels.shape[:2] != shape or labels.ndim > (2 if classes else 3) or 0 in labels.shape[1:]:
        more = "" if classes else f", or {(*shape, 'channels')}".replace("'", "")
        raise ValueError(f"labels must be {shape} as inputs, or ({shape[0]},){more}, got {_outline(labels)}")
    if classes:
        labels = np.where(within, labels, IGNORED)
        negative = (labels < 0) & (labels != IGNORED)
        rule = f"classes are at least 0, or {IGNORED} for no label"
        _refuse(negative, lambda row: f"labels: row {row} has the class {labels[row][negative[row]][0]}; {rule}")
        return _below_most("labels", "class", labels)
    labels = _single(np.where(within[:, :, None], labels.reshape(*shape, -1), np.nan))
    absent = np.isnan(labels)
    wrong = np.isinf(labels).any(axis=2) | (absent.any(axis=2) != absent.all(axis=2))
    _refuse(wrong, lambda row: f"labels: row {row} has inf, or NaN in some channels only; NaN is no label")
    return labels


def _below_most(name: str, kind: str, array: np.ndarray) -> np.ndarray:
    rule = f"number them from 0, below {MOST}"
    _refuse(array >= MOST, lambda row: f"{name}: row {row} has the {kind} {array[row].max()}; {rule}")
    return array


def _single(array: np.ndarray) -> np.ndarray:
    """Return the array as float32, with inf for numbers beyond its range."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _refuse(wrong: np.ndarray, message: Callable[[int], str]) -> None:
    """Raise ValueError with the message for the first row that has a wrong entry."""
    if wrong.any():
        raise ValueError(message(int(np.argwhere(wrong)[0][0])))


def _outline(array: np.ndarray) -> str:
    return f"{array.dtype} {array.shape}"
