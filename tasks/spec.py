"""The specification of a task, as plain data without numpy: shapes of inputs and labels, loss and chance level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

IGNORED = -100
"""Label of a position without loss or score (the default `ignore_index` of cross-entropy)."""


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """The shapes of a task's arrays, and the scoring of its answers.

    `inputs` are int64 (n, seq_len) in [0, vocab_size) for "tokens", float32 (n, seq_len, d_input) for "vectors".
    `labels` are int64 (n, seq_len) in [0, n_outputs) for "cross_entropy", float32 (n, seq_len, n_outputs) for "mse";
    a position without a label has -100, or NaN in every channel. Facts are int32 (n, seq_len), -1 without a label.

    Attributes:
        input: kind of input.
        seq_len: positions per sequence.
        n_outputs: number of classes, or of regressed channels.
        loss: training loss.
        chance: accuracy of the best guess that ignores the input; None for regression.
        vocab_size: number of input tokens; None for vectors.
        d_input: channels of an input vector; None for tokens.
        labelled: number of labelled positions per sequence; None if it varies.
        facts: names of the additional arrays from `sample`, such as "distance", by which scores are split.
        perplexity: whether perplexity is a score besides accuracy, as for text.

    Raises:
        ValueError: the fields contradict each other.
    """

    input: Literal["tokens", "vectors"]
    seq_len: int
    n_outputs: int
    loss: Literal["cross_entropy", "mse"]
    chance: float | None = None
    vocab_size: int | None = None
    d_input: int | None = None
    labelled: int | None = None
    facts: tuple[str, ...] = ()
    perplexity: bool = False

    def __post_init__(self) -> None:
        if self.input not in ("tokens", "vectors"):
            raise ValueError(f"TaskSpec: input must be 'tokens' or 'vectors', got {self.input!r}")
        if self.loss not in ("cross_entropy", "mse"):
            raise ValueError(f"TaskSpec: loss must be 'cross_entropy' or 'mse', got {self.loss!r}")
        if (self.vocab_size is None, self.d_input is None) != (self.input != "tokens", self.input != "vectors"):
            raise ValueError("TaskSpec: tokens need vocab_size only, vectors need d_input only")
        if (self.chance is None) != (self.loss == "mse"):
            raise ValueError("TaskSpec: chance is an accuracy for cross_entropy and None for mse")
        if self.perplexity and self.loss == "mse":
            raise ValueError("TaskSpec: perplexity needs the loss cross_entropy, not mse")

    @classmethod
    def tokens(
        cls,
        seq_len: int,
        vocab_size: int,
        n_outputs: int | None = None,
        *,
        chance: float | None = None,
        labelled: int | None = None,
        facts: tuple[str, ...] = (),
        perplexity: bool = False,
    ) -> Self:
        """Return the spec of a map from tokens to classes; by default the whole vocabulary, equally likely."""
        n_outputs = vocab_size if n_outputs is None else n_outputs
        return cls(
            input="tokens",
            seq_len=seq_len,
            n_outputs=n_outputs,
            loss="cross_entropy",
            chance=1 / n_outputs if chance is None else chance,
            vocab_size=vocab_size,
            labelled=labelled,
            facts=facts,
            perplexity=perplexity,
        )

    @classmethod
    def regression(
        cls, seq_len: int, d_input: int, n_outputs: int = 1, *, labelled: int, facts: tuple[str, ...] = ()
    ) -> Self:
        """Return the spec of a map from vectors to numbers."""
        return cls(
            input="vectors",
            seq_len=seq_len,
            n_outputs=n_outputs,
            loss="mse",
            d_input=d_input,
            labelled=labelled,
            facts=facts,
        )
