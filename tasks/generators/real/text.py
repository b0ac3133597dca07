"""The next character or byte of real text."""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from tasks.base import Arrays, named
from tasks.data.reading import OfSplits, content_hash, load_dataset, read_files
from tasks.spec import TaskSpec

Unit = Literal["bytes", "characters"]
MOST_REPEATED = 16
"""Longer repetitions count as this length."""
WINDOWS = 2000
"""Windows in which frequencies of symbols are counted, and the number of others on which they are scored."""

DEFAULT = ("torch", "_torch_docs.py")
"""Some 440 kB of English and code that stand on every machine with this version of torch."""


class Text(OfSplits):
    """Predict the next symbol at every position of a window of text.

    The text is a sequence of symbols s_1, s_2, ... An example is s_t ... s_{t+L-1} with the labels s_{t+1} ... s_{t+L},
    where t is drawn uniformly from the starts that fit into the split. It comes from a file or a folder (`path`), a
    data set of the Hugging Face hub (`dataset`), or by default PyTorch's own documentation of its functions, which
    needs no download. The splits are consecutive parts of the text that share no symbol; a data set's own splits are
    kept. Chance is the share of the commonest symbol among a split's labels. Perplexity is exp(loss), bits per symbol
    loss / ln 2.

    `repeated` is the length of the longest string right before a symbol that occurs, with the same symbol behind it,
    earlier in the window, up to 16: the symbols of context by which the window itself gives the answer. Zoology's
    split by repeated bigrams (Arora et al., arXiv 2312.04927) counts tokens, of which a byte is a part.

    Source: the data's own; character models as in Graves, "Generating Sequences", arXiv 1308.0850.

    Prediction: Nearby symbols carry most of the information, so every mixer with a local view comes close; those that
    recall (attention, gated and delta rules, hybrids) gain where names and phrases come back.

        >>> task = Text(seq_len=12)
        >>> example = task.of_split("train").sample(np.random.default_rng(0), 1)
        >>> bytes(example["inputs"][0].tolist())
        b'= torch.svd('
        >>> bytes(example["labels"][0].tolist())
        b' torch.svd(a'

    Args:
        path: a file, or a folder whose files are read in the order of their names, without hidden ones.
        dataset: a data set of the hub by name, or a local folder with one.
        config: configuration of the data set.
        column: the data set's column with the text of each row; rows are joined by line feeds.
        unit: bytes (256 symbols) or characters (as many as occur; the text is then UTF-8).
        seq_len: symbols in a window.
        validation: share of the text for validation, if the data has no validation split of its own.
        test: share of the text for the test, if the data has no test split of its own.
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
                    f"text: the {split} part holds {len(symbols)} symbols, fewer than seq_len + 1: give more text or a"
                    f" shorter seq_len, got seq_len={self.seq_len}"
                )

    @cached_property
    def _texts(self) -> dict[str, bytes]:
        """The text of each split that the data has; only "train" where it is to be divided."""
        with named(self.name):
            if self.dataset is not None:
                splits = load_dataset(self.dataset, self.config, (self.column,))
                return {split: "\n".join(self._rows(split, rows)).encode() for split, rows in splits.items()}
            files = read_files(default_file() if self.path is None else Path(self.path).expanduser())
            for file, content in files.items() if self.unit == "characters" else ():
                try:
                    content.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise ValueError(f"{file} is not UTF-8 at byte {error.start}; take unit=bytes") from None
            return {"train": b"".join(files.values())}

    def _rows(self, split: str, rows: Any) -> list[str]:
        for row, said in enumerate(texts := list(rows[self.column])):
            if not isinstance(said, str):
                raise ValueError(f"{self.column} of {split} must hold text, got {said!r} in row {row}")
        return texts

    @cached_property
    def _alphabet(self) -> np.ndarray:
        """The code points that occur, ascending; all 256 bytes where bytes are the unit."""
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
        """The symbols that windows are drawn from: those of the split, or of the training part."""
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
        """Return the commonest symbol's share of the labels; it counts once for every window that it is a label of."""
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
        """Return the perplexity on test windows of the frequencies in training windows, of which none counts as 0."""
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
    """Return for each symbol but the first the length of the longest string before it that came before it already.

    Args:
        windows: symbols (n, length + 1).

    Returns:
        int32 (n, length), at most `MOST_REPEATED`.
    """
    longest = np.zeros(windows[:, 1:].shape, dtype=np.int32)
    equal = np.zeros(windows.shape, dtype=np.int32)  # how many symbols up to s are those up to t, for the t of the loop
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
