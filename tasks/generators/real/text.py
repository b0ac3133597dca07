"""Text: predict the next character or byte of real text."""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from tasks.base import Arrays, named
from tasks.data.reading import OfSplits, content_hash, load_dataset, read_files
from tasks.spec import TaskSpec
from zoo.targets import expanded

Unit = Literal["bytes", "characters"]
MOST_REPEATED = 16
"""Maximum length of a repetition; longer ones count as this length."""
WINDOWS = 2000
"""Training windows in which to count the frequencies of symbols, and test windows on which to score them."""

DEFAULT = ("torch", "_torch_docs.py")
"""Package and file of the default text: some 440 kB of English and code that come with torch."""


class Text(OfSplits):
    """Predict the next symbol at every position of a window of text.

    The text is a sequence of symbols s_1, s_2, ... An example is s_t ... s_{t+L-1} with the labels s_{t+1} ... s_{t+L},
    where t is drawn uniformly from the starts that fit into the split. It comes from a file or a folder (`path`), a
    data set of the Hugging Face hub (`dataset`), or by default PyTorch's own documentation of its functions, which
    needs no download. The splits are consecutive parts of the text that do not overlap; the splits of a data set are
    kept. Chance is the share of the most common symbol among a split's labels. Perplexity is exp(loss), bits per symbol
    are loss / ln 2.

    `repeated` is the amount of context with which the window itself gives the answer: the length of the longest string
    right before a symbol that also occurs earlier in the window, followed by the same symbol, up to 16. Zoology's split
    by repeated bigrams (Arora et al., arXiv 2312.04927) counts tokens, which are longer than bytes.

    Source: the data; character models as in Graves, "Generating Sequences", arXiv 1308.0850.

    Prediction: Nearby symbols carry most of the information, so every mixer with a local view comes close. Mixers that
    recall (attention, gated and delta rules, hybrids) gain when names and phrases repeat.

        >>> task = Text(seq_len=12)
        >>> example = task.of_split("train").sample(np.random.default_rng(0), 1)
        >>> bytes(example["inputs"][0].tolist())
        b'= torch.svd('
        >>> bytes(example["labels"][0].tolist())
        b' torch.svd(a'

    Args:
        path: a file, or a folder whose files are read in the order of their paths, without hidden ones.
        dataset: name of a data set on the hub, or a local folder with one.
        config: configuration of the data set.
        column: column of the text; rows are joined by line feeds.
        unit: bytes (256 symbols) or characters (all that occur; the text must be UTF-8).
        seq_len: number of symbols in a window.
        validation: share of the text for validation, if the data has no validation split.
        test: share of the text for the test, if the data has no test split.
    """

    def __init__(
        self,
        path: str | None = None,
        dataset: str | None = None,
        config: str | None = None,
        column: str = "text",
        unit: Unit = "bytes",
        seq_len: int = 256,
        validation: float = 0.05,
        test: float = 0.05,
    ) -> None:
        self.path, self.dataset, self.config, self.column = path, dataset, config, column
        self.unit: Unit = unit
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self._demand(path is None or dataset is None, "give path or dataset, not both")
        self._demand(unit in get_args(Unit), f"unit must be one of {', '.join(get_args(Unit))}")
        self._keep_shares(validation, test)
        for split, symbols in self._symbols.items():
            if len(symbols) <= self.seq_len:
                raise ValueError(
                    f"text: the {split} part has {len(symbols)} symbols, fewer than seq_len + 1: give more text or a"
                    f" shorter seq_len, got seq_len={self.seq_len}"
                )

    @cached_property
    def _texts(self) -> dict[str, bytes]:
        """The text of each split in the data; only "train" if the text is yet to be divided."""
        with named(self.name):
            if self.dataset is not None:
                splits = load_dataset(self.dataset, self.config, (self.column,))
                return {split: "\n".join(self._rows(split, rows)).encode() for split, rows in splits.items()}
            files = read_files(default_file() if self.path is None else expanded(self.path))
            for file, content in files.items() if self.unit == "characters" else ():
                try:
                    content.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise ValueError(f"{file} is not UTF-8 at byte {error.start}; use unit=bytes") from None
            return {"train": b"".join(files.values())}

    def _rows(self, split: str, rows: Any) -> list[str]:
        for row, text in enumerate(texts := list(rows[self.column])):
            if not isinstance(text, str):
                raise ValueError(f"{self.column} of {split} must contain text, got {text!r} in row {row}")
        return texts

    @cached_property
    def _alphabet(self) -> np.ndarray:
        """The code points that occur, ascending; with bytes as the unit, all 256 bytes."""
        if self.unit == "bytes":
            return np.arange(256)
        return np.unique(np.concatenate([self._codes(text) for text in self._texts.values()]))

    @cached_property
    def _symbols(self) -> dict[str, np.ndarray]:
        """The symbols of each split."""
        found = {split: np.searchsorted(self._alphabet, self._codes(text)) for split, text in self._texts.items()}
        whole = found["train"]
        return found | {split: whole[part] for split, part in self._parts(len(whole), found).items()}

    def _codes(self, text: bytes) -> np.ndarray:
        if self.unit == "bytes":
            return np.frombuffer(text, dtype=np.uint8)
        return np.frombuffer(text.decode("utf-8").encode("utf-32-le"), dtype="<u4")

    @property
    def _here(self) -> np.ndarray:
        """The symbols of this task's split, from which windows are drawn."""
        return self._symbols[self._split]

    def fingerprint(self) -> dict[str, Any]:
        return {"content": content_hash(self._alphabet, *(self._symbols[split] for split in sorted(self._symbols)))}

    @property
    def spec(self) -> TaskSpec:
        size = len(self._alphabet)
        return TaskSpec.tokens(
            self.seq_len,
            size,
            chance=self._majority_share(),
            labelled=self.seq_len,
            facts=("repeated",),
            perplexity=True,
        )

    def _majority_share(self) -> float:
        """Return the most common symbol's share of the labels, counted over all windows."""
        labels = self._here[1:]
        starts = len(labels) - self.seq_len + 1
        place = np.arange(len(labels))
        covering = np.minimum(np.minimum(place + 1, len(labels) - place), min(self.seq_len, starts))
        counts = np.bincount(labels, weights=covering)
        return float(counts.max() / counts.sum())

    def input_text(self, token: int) -> str:
        character = chr(self._alphabet[token])
        return "␣" if character == " " else character if character.isprintable() else repr(character)[1:-1]

    def label_text(self, label: int) -> str:
        return self.input_text(label)

    def guess_without_order(self) -> float:
        """Return the perplexity on test windows of the symbol frequencies in training windows (add-one smoothing)."""
        rng = np.random.default_rng(0)
        seen = self.of_split("train").sample(rng, WINDOWS)["inputs"]
        asked = self.of_split("test").sample(rng, WINDOWS)["labels"]
        counts = 1 + np.bincount(seen.ravel(), minlength=len(self._alphabet))
        return float(np.exp(-np.log(counts / counts.sum())[asked].mean()))

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        symbols = self._here
        starts = rng.integers(len(symbols) - self.seq_len, size=n)
        windows = np.lib.stride_tricks.sliding_window_view(symbols, self.seq_len + 1)[starts].astype(np.int64)
        return {"inputs": windows[:, :-1], "labels": windows[:, 1:], "repeated": repeated(windows)}


def repeated(windows: np.ndarray) -> np.ndarray:
    """Return for each symbol but the first the length of its repeated context; see `Text`.

    Args:
        windows: symbols (n, length + 1).

    Returns:
        int32 (n, length), at most `MOST_REPEATED`.
    """
    longest = np.zeros(windows[:, 1:].shape, dtype=np.int32)
    equal = np.zeros(windows.shape, dtype=np.int32)  # length of the common suffix of the symbols up to s and up to t
    for t in range(1, windows.shape[1]):
        equal[:, 1:t] = equal[:, : t - 1] + 1
        equal[:, 0] = 1
        equal[:, :t] *= windows[:, :t] == windows[:, t : t + 1]
        longest[:, t - 1] = equal[:, :t].max(axis=1)
    return np.clip(longest - 1, 0, MOST_REPEATED)


def default_file() -> Path:
    """Return the file of the default text.

    Raises:
        ValueError: this installation of torch does not include it.
    """
    package = find_spec(DEFAULT[0])
    file = Path(package.origin or "").with_name(DEFAULT[1]) if package else Path()
    if not file.is_file():
        raise ValueError("no default text on this machine: give --task.path or --task.dataset")
    return file
