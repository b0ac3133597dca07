"""ListOps: evaluate a nested expression of list operations."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from tasks.base import Arrays, FiniteTask, Task, named
from tasks.data.reading import divide, read_files
from tasks.generators.placing import LAST, labels_at
from tasks.generators.structure.expressions import (
    BLANK,
    CLOSE,
    OPERATORS,
    WORDS,
    kept_trees,
    length_share,
    majority_share,
)
from tasks.spec import TaskSpec
from zoo.targets import expanded

RAREST = 1e-4
"""Minimum share of expressions with a valid length, since the others are discarded."""

FILES = {"train": "train", "validation": "val", "test": "test"}
"""The word for each split in the names of LRA's files."""


class ListOps(Task):
    """Evaluate a nested expression to a digit.

    Definition: an expression is a digit, or an operator, two to max_args expressions and a closing bracket. Operators
    are MIN, MAX, MED (the median, rounded down) and SM (the sum modulo 10). Each argument is a nested expression with
    probability 1/4, down to max_depth, else a digit; operators, digits and numbers of arguments are uniform.
    Expressions of more than min_length and fewer than max_length tokens are kept. Tokens 0 ... 9 are the digits,
    10 ... 13 the operators, each with its opening bracket, 14 closes, 15 is blank. Blanks come first, so that the
    expression ends the sequence; the only label, at the last position, is its value. The chance level is the share of
    the most common value among 4,096 expressions.

    With `tsv`, expressions come from files instead: a folder in LRA's format (basic_train.tsv, basic_val.tsv,
    basic_test.tsv) or one file, which is divided 48 : 1 : 1. The columns are Source and Target; parentheses are
    ignored.

    At another length the bounds scale with it; expressions from files stay the same.

    Source: Nangia and Bowman, "ListOps", arXiv 1804.06028, with the numbers of Tay et al., "Long Range Arena", arXiv
    2011.04006, whose expressions have 501 to 1,999 tokens; the published file has 96,000, 2,000 and 2,000 of them.

    Prediction: An expression needs a stack. A fixed state can store a stack of bounded depth, and attention of fixed
    depth follows a few levels, so all get the shallow part right: S4 reaches 59.5 %, attention about 37 %, chance about
    17 %.

        >>> task = ListOps(seq_len=16, min_length=8, max_length=16, max_depth=3, max_args=4)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(task.input_text(token) for token in example["inputs"][0] if token < 15))
        [SM [SM 8 3 1 ] [MIN 7 8 ] 1 ]
        >>> int(example["labels"][0, -1])  # 2 + 7 + 1, modulo 10
        0

    Args:
        seq_len: length of a sequence, including the blanks before the expression.
        min_length: exclusive lower bound of the number of tokens in an expression.
        max_length: exclusive upper bound of the number of tokens in an expression.
        max_depth: maximum depth; a digit inside max_depth - 1 pairs of brackets has depth max_depth.
        max_args: maximum number of arguments of an operator.
        tsv: file, or folder of files, with expressions to read.
    """

    slow: ClassVar[bool] = True

    def __init__(
        self,
        seq_len: int = 2048,
        min_length: int = 500,
        max_length: int = 2000,
        max_depth: int = 10,
        max_args: int = 10,
        tsv: str | None = None,
    ) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 4)
        self.min_length = self._whole("min_length", min_length, 1)
        self.max_length = self._whole("max_length", max_length, 2)
        self.max_depth = self._whole("max_depth", max_depth, 2)
        self.max_args = self._whole("max_args", max_args, 2)
        self.tsv = tsv
        if tsv is not None:
            _ = self._files  # raises for files without expressions
            return
        self._demand(self.max_length <= self.seq_len, "max_length must be <= seq_len")
        self._demand(
            length_share(self.min_length, self.max_length, self.max_depth, self.max_args) >= RAREST,
            f"less than one in {1 / RAREST:,.0f} expressions has such a length",
            "min_length",
            "max_length",
            "max_depth",
            "max_args",
        )

    @property
    def spec(self) -> TaskSpec:
        if self.tsv is not None:
            return self._files["train"].spec
        return listops_spec(self.seq_len, self._majority_share)

    def input_text(self, token: int) -> str:
        return WORDS[token]

    def at_length(self, seq_len: int) -> Self:
        options: dict[str, Any] = self.options() | {"seq_len": seq_len}
        if self.tsv is None:
            options |= {bound: getattr(self, bound) * seq_len // self.seq_len for bound in ("min_length", "max_length")}
        return type(self)(**options)

    def of_split(self, split: str) -> Task:
        return self if self.tsv is None else self._files[split]

    def fingerprint(self) -> dict[str, Any]:
        if self.tsv is None:
            return {}
        lines = (line for file in self._files.values() for line in (*file.expressions, file.values.tobytes()))
        return {"content": hashlib.sha256(b"\n".join(lines)).hexdigest()}

    @cached_property
    def _files(self) -> dict[str, ListedExpressions]:
        """The expressions of each split, read from the user's files."""
        with named(self.name):
            found = read_tsv(expanded(str(self.tsv)))
        files = {split: ListedExpressions(self.seq_len, *listed) for split, listed in found.items()}
        longest = max(len(expression) for file in files.values() for expression in file.expressions)
        if longest > self.seq_len:
            raise ValueError(
                f"{self.name}: the longest expression has {longest} tokens, which must be <= seq_len, "
                f"got seq_len={self.seq_len}"
            )
        return files

    @cached_property
    def _majority_share(self) -> float:
        return majority_share(self.min_length, self.max_length, self.max_depth, self.max_args)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        if self.tsv is not None:
            return self._files["train"].sample(rng, n)
        inputs = np.full((n, self.seq_len), BLANK, dtype=np.int64)
        values = np.empty(n, dtype=np.int64)
        filled = 0
        for trees in kept_trees(rng, self.min_length, self.max_length, self.max_depth, self.max_args, n):
            rows = inputs[filled : filled + len(trees.lengths)]
            trees.write(rows)
            values[filled : filled + len(rows)] = trees.values()
            filled += len(rows)
        return labelled_at_the_end(inputs, values)


def labelled_at_the_end(inputs: np.ndarray, values: np.ndarray) -> Arrays:
    """Return examples with each expression's value as the label at its last position."""
    return {"inputs": inputs, "labels": labels_at(LAST, values[:, None], inputs.shape[1])}


def listops_spec(seq_len: int, chance: float) -> TaskSpec:
    """Return the spec of drawn and listed expressions."""
    return TaskSpec.tokens(seq_len, len(WORDS), 10, chance=chance, labelled=1)


# Expressions from files


class ListedExpressions(FiniteTask):
    """The expressions of one split, from a file.

    Args:
        seq_len: length of a sequence.
        expressions: tokens of each expression, a byte per token.
        values: value of each expression, int64 (n,).
    """

    def __init__(self, seq_len: int, expressions: Sequence[bytes], values: np.ndarray) -> None:
        self.seq_len, self.expressions, self.values = seq_len, expressions, values

    @property
    def spec(self) -> TaskSpec:
        return listops_spec(self.seq_len, float(np.bincount(self.values).max() / self.size))

    @property
    def size(self) -> int:
        return len(self.values)

    def take(self, rows: np.ndarray) -> Arrays:
        inputs = np.full((len(rows), self.seq_len), BLANK, dtype=np.int64)
        for read, row in zip(inputs, rows, strict=True):
            tokens = np.frombuffer(self.expressions[row], dtype=np.uint8)
            read[self.seq_len - len(tokens) :] = tokens
        return labelled_at_the_end(inputs, self.values[rows])


def read_tsv(path: Path) -> dict[str, tuple[list[bytes], np.ndarray]]:
    """Return expressions and values of each split, from the files of a folder or from one file in three parts.

    Raises:
        ValueError: a file is missing, or does not hold expressions.
    """
    if not path.is_dir():
        expressions, values = read_expressions(path)
        parts = divide(len(values), {"validation": 0.02, "test": 0.02})
        if len(values) < len(parts):
            raise ValueError(f"{path} has {len(values)} expressions, too few for three splits")
        return {split: (expressions[part], values[part]) for split, part in parts.items()}
    found = {}
    for split, word in FILES.items():
        files = sorted(path.glob(f"*{word}*.tsv"))
        if len(files) != 1:
            raise ValueError(f"{path} must contain one file *{word}*.tsv, found {len(files)}")
        found[split] = read_expressions(files[0])
    return found


def read_expressions(file: Path) -> tuple[list[bytes], np.ndarray]:
    """Return the expressions and values in a TSV file with the columns Source and Target.

    Raises:
        ValueError: the file cannot be read, or a line is not an expression and a digit.
    """
    header, *lines = b"".join(read_files(file).values()).rstrip(b"\n").replace(b"\r", b"").split(b"\n")
    if header != b"Source\tTarget":
        raise ValueError(f"{file} must begin with a line of the columns Source and Target")
    expressions, values = [], []
    for number, line in enumerate(lines, start=2):
        source, _, target = line.partition(b"\t")
        for place, operator in enumerate(OPERATORS):
            source = source.replace(operator.encode(), bytes([10 + place]))
        # Each word is a single byte now; translate maps it to its token, or to 255 if it is invalid.
        expressions.append(source.translate(_TOKEN_OF_BYTE, b" ()"))
        if not expressions[-1] or 255 in expressions[-1] or target not in _DIGITS:
            raise ValueError(f"{file}, line {number} must be an expression of {' '.join(WORDS).strip()} and a digit")
        values.append(int(target))
    if not values:
        raise ValueError(f"{file} contains no expressions")
    return expressions, np.array(values)


_DIGITS = [str(digit).encode() for digit in range(10)]
_TOKEN_OF_BYTE = bytes(
    byte if 10 <= byte < CLOSE else CLOSE if byte == ord("]") else byte - ord("0") if 48 <= byte < 58 else 255
    for byte in range(256)
)
