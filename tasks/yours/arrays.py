"""Examples that others made: brought to the shapes of a `TaskSpec`, or refused in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from tasks.base import Arrays
from tasks.spec import IGNORED, TaskSpec

OWN = ("inputs", "labels", "lengths")
"""The arrays that are no facts."""
MOST = 2**24
"""Tokens and classes are below this number: a model has a vector for each up to the greatest."""


def conform(given: Mapping[str, Any]) -> Arrays:
    """Return `inputs` and `labels` as `TaskSpec` has them, `lengths` if they are given, then the facts.

    Args:
        given: by name: `inputs`, (n, seq) integers or (n, seq, features) floats; `labels`, integers or floats, (n, seq)
            or (n,), where -100 or NaN is no label and a label per row stands at its last position, or for regression
            (n, seq, channels); `lengths`, (n,), where rows end; facts, (n, seq) integers.

    Raises:
        ValueError: a missing array, a type, a shape or a value that no task has.
    """
    for name in OWN[:2]:
        if name not in given:
            raise ValueError(f"there is no {name!r}; there are: {', '.join(given) or 'none'}")
    arrays = {name: _numbers(name, array) for name, array in given.items()}
    inputs = arrays["inputs"]
    if (inputs.dtype.kind, inputs.ndim) not in (("i", 2), ("f", 3)) or 0 in inputs.shape[1:]:
        raise ValueError(f"inputs must be integers (n, seq) or floats (n, seq, features), got {_outline(inputs)}")
    n, seq_len = inputs.shape[:2]
    if not n:
        raise ValueError("there are no examples")
    for name, array in arrays.items():
        if array.shape[:1] != (n,):
            raise ValueError(f"{name} must have {n} rows, as many as inputs, got {_outline(array)}")
    lengths = arrays.get("lengths", np.full(n, seq_len))
    if lengths.shape != (n,) or lengths.dtype.kind != "i":
        raise ValueError(f"lengths must be integers (n,) from 1 to {seq_len}, got {_outline(lengths)}")
    if (wrong := (lengths < 1) | (lengths > seq_len)).any():
        row = _first(wrong)
        raise ValueError(f"lengths must be integers (n,) from 1 to {seq_len}, row {row} has {lengths[row]}")
    within = np.arange(seq_len) < lengths[:, None]
    made = {"inputs": _inputs(inputs, within), "labels": _labels(arrays["labels"], within, lengths)}
    labelled = known(made["labels"])
    if "lengths" in arrays:
        made["lengths"] = lengths
    for name in sorted(arrays.keys() - {*OWN}):
        fact = arrays[name]
        if fact.shape != (n, seq_len) or fact.dtype.kind != "i":
            raise ValueError(f"{name} must be integers {(n, seq_len)}, as any further array, got {_outline(fact)}")
        made[name] = np.where(labelled, fact, -1).astype(np.int32)
    return made


def known(labels: np.ndarray) -> np.ndarray:
    """Return which positions have a label, (n, seq)."""
    return labels != IGNORED if labels.dtype.kind == "i" else ~np.isnan(labels[:, :, 0])


def measure(splits: Iterable[Arrays], vocab_size: int | None, n_classes: int | None) -> TaskSpec:
    """Return the spec of examples that `conform` returned: their shape, the greatest token, the greatest class.

    Args:
        splits: with the same names and types of arrays.
        vocab_size: number of tokens; None for as many as occur.
        n_classes: number of classes; None for as many as occur.

    Raises:
        ValueError: a number of tokens for floats, or of classes for regression; no label at all.
    """
    spec = _measured(list(splits), vocab_size, n_classes)
    if spec.labelled == 0:
        raise ValueError(f"labels: no position has one; {IGNORED} and NaN are none")
    return spec


def _measured(splits: list[Arrays], vocab_size: int | None, n_classes: int | None) -> TaskSpec:
    inputs, labels = splits[0]["inputs"], splits[0]["labels"]
    tokens, classes = inputs.dtype.kind == "i", labels.dtype.kind == "i"
    if vocab_size is not None and not tokens:
        raise ValueError(f"vocab_size is of integer inputs, and these are floats, got vocab_size={vocab_size}")
    if n_classes is not None and not classes:
        raise ValueError(f"n_classes is of integer labels, and these are floats, got n_classes={n_classes}")

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
    """Refuse examples, as `conform` returned them, of another shape than the spec's, or out of its ranges.

    Raises:
        ValueError: what differs; which token or class in which row is out of range.
    """
    here = _measured([arrays], None, None)
    for field in ("input", "seq_len", "d_input", "loss", "facts"):
        if (there := getattr(spec, field)) != (found := getattr(here, field)):
            raise ValueError(f"{field} is {found}, elsewhere {there}")
    if spec.loss == "mse" and here.n_outputs != spec.n_outputs:
        raise ValueError(f"labels have {here.n_outputs} channels, elsewhere {spec.n_outputs}")
    for name, kind, option, top in (
        ("inputs", "token", "vocab_size", spec.vocab_size),
        ("labels", "class", "n_classes", spec.n_outputs if spec.loss == "cross_entropy" else None),
    ):
        if top is not None and arrays[name].max(initial=0) >= top:
            row = _first(arrays[name] >= top)
            raise ValueError(
                f"{name}: row {row} has the {kind} {arrays[name][row].max()}, {option}={top} allows 0 ... {top - 1};"
                f" give a greater {option}"
            )


def majority(labels: np.ndarray) -> float:
    """Return the share of the commonest class among all labels; 1 where there is none."""
    counts = np.bincount(labels[labels != IGNORED])
    return float(counts.max() / counts.sum()) if len(counts) else 1.0


def _numbers(name: str, given: Any) -> np.ndarray:
    """Return the array with the one type of its kind."""
    array = np.asarray(given)
    if array.dtype.kind not in "biuf" or not array.ndim:
        raise ValueError(f"{name} must be an array of integers or floats, got {_outline(array)}")
    if array.dtype == np.uint64:  # of which the upper half would turn negative
        array = array.clip(max=np.iinfo(np.int64).max)
    return array.astype(
        np.float64 if array.dtype == np.float64 else np.float32 if array.dtype.kind == "f" else np.int64
    )


def _inputs(inputs: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Zeros beyond the ends of rows."""
    if inputs.dtype.kind == "i":
        inputs = np.where(within, inputs, 0)
        if (negative := inputs < 0).any():
            row = _first(negative)
            raise ValueError(f"inputs: row {row} has the token {inputs[row].min()}; tokens are at least 0")
        return _below_most("inputs", "token", inputs)
    inputs = _single(np.where(within[:, :, None], inputs, 0))
    if (wrong := ~np.isfinite(inputs)).any():
        raise ValueError(f"inputs: row {_first(wrong)} has NaN or inf; give finite numbers")
    return inputs


def _labels(labels: np.ndarray, within: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """No label beyond the ends of rows; those per row at the last position, floats with an axis of channels."""
    classes, shape = labels.dtype.kind == "i", within.shape
    if labels.ndim == 1:
        last = np.arange(shape[1]) == lengths[:, None] - 1
        labels = np.where(last, labels[:, None], IGNORED if classes else np.nan)
    if labels.shape[:2] != shape or labels.ndim > (2 if classes else 3) or 0 in labels.shape[1:]:
        more = "" if classes else f", or {(*shape, 'channels')}".replace("'", "")
        raise ValueError(f"labels must be {shape} as inputs, or ({shape[0]},){more}, got {_outline(labels)}")
    if classes:
        labels = np.where(within, labels, IGNORED)
        if (negative := (labels < 0) & (labels != IGNORED)).any():
            row = _first(negative)
            raise ValueError(
                f"labels: row {row} has the class {labels[row][negative[row]][0]}; classes are at least 0, or {IGNORED}"
                " for no label"
            )
        return _below_most("labels", "class", labels)
    labels = _single(np.where(within[:, :, None], labels.reshape(*shape, -1), np.nan))
    absent = np.isnan(labels)
    if (wrong := np.isinf(labels).any(axis=2) | (absent.any(axis=2) != absent.all(axis=2))).any():
        raise ValueError(f"labels: row {_first(wrong)} has inf, or NaN in some channels only; NaN is no label")
    return labels


def _below_most(name: str, kind: str, array: np.ndarray) -> np.ndarray:
    if (wrong := array >= MOST).any():
        row = _first(wrong)
        raise ValueError(f"{name}: row {row} has the {kind} {array[row].max()}; number them from 0, below {MOST}")
    return array


def _single(array: np.ndarray) -> np.ndarray:
    """As float32, in which what is too large becomes inf."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _first(mask: np.ndarray) -> int:
    """Return the first row in which something is true."""
    return int(np.argwhere(mask)[0][0])


def _outline(array: np.ndarray) -> str:
    return f"{array.dtype} {array.shape}"
