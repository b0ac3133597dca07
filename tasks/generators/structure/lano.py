"""Lano: predict sentences of a context-free grammar, whose next-token probabilities are known exactly."""

from __future__ import annotations

from functools import cached_property, reduce
from itertools import pairwise

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.occurrences import label_shares
from tasks.spec import IGNORED, TaskSpec

N_SYMBOLS = 3
"""Number of symbols of each level, and of terminals."""

GRAMMARS = {
    "cfg3f": """
        12 102 200 11
        202 12 22, 00 01 102, 21 10 012 02
        22 020 10 11, 210 12 21, 120 200 02
        12 212 021, 02 202 21 022, 011 110 00 221
        122 202 022, 11 20 200, 020 21 112
        110 211 201 21, 200 01 220, 010 22 00
    """,
    "cfg3k": """
        01 22 21
        20 211 22 02, 121 122 11 01, 21 12 002
        120 20 202 221, 111 02 110 210, 21 020 100 122
        21 12 212 100, 121 200 22, 11 20 011
        022 112 22, 01 011 100 11, 21 00 12
        00 11 220 020, 102 000 010, 01 110 202 12
        22 020 10, 12 001 20 011, 022 11 000 212
    """,
}
"""A line per level, from the root: commas separate symbols, spaces their rules; a rule is symbols of the next level."""

FLOOR_POSITIONS = 1 << 14
"""Number of positions over which to average the least perplexity."""

COUNTED_ROWS, COUNTED_POSITIONS = 4096, 1 << 18
"""Maximum numbers of sequences and positions in which to count tokens for the chance level."""


class Lano(Task):
    """Predict the next token of sentences from a context-free grammar.

    Definition: The grammar has levels of three symbols, 0, 1 and 2; the symbols below the last level are the terminals.
    A symbol has three or four rules, each of two or three symbols of the next level. A sentence expands the first
    symbol of the level that is n_levels above the terminals: each symbol is replaced by one of its rules, drawn
    uniformly, until only terminals are left. A sequence consists of sentences, each after the token #, cut off at
    seq_len. The label at each position except the last is the next token.

    `probabilities` gives the exact distribution of the next token at each position; it depends on the sentence so far.
    With I_s[i, j], the probability that symbol s writes tokens i ... j - 1, and O_s[i], the probability that the tokens
    before i were written and s comes next,

        I_s = mean over the rules s -> abc of I_a I_b I_c,
        O_b gains O_s I_a / (number of rules of s) for each rule s -> abc,

    the distribution is proportional to O_b[i] for the terminals b, and to the probability that the sentence ends at i.
    `floors` returns the least perplexity, the least bits per token and the least share of errors, averaged over 16,384
    positions. The bits per token above the floor are the Kullback-Leibler divergence from the grammar.

    Source: Lano of Allen-Zhu, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon
    Layers", SSRN 5240330, and Allen-Zhu and Li, "Physics of Language Models: Part 1, Learning Hierarchical Language
    Structures", arXiv 2305.13673, where grammars have six or seven levels; facebookresearch/PhysicsLM4, commit 7580696,
    data-synthetic-pretrain/Lano-cfg, grammars cfg3f and cfg3k.

    Reported: The authors report the share of the model's continuations that the grammar can produce, and the divergence
    between the next-token distributions of grammar and model.

    Prediction: Tokens are locally ambiguous: a symbol of a level is known only once its parts are read. This takes a
    stack of n_levels or, at bounded length, look-ups at the boundaries of parts. Nearby tokens determine the lower
    levels, so every mixer with a local view gains most of the bits; the rest separates the mixers.

        >>> task = Lano(seq_len=16, n_levels=2)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{task.input_text(token):>4}" for token in example["inputs"][0]))
           #    2    1    1    0    1    0    0    1    0    #    0    1    0    1    1
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
           2    1    1    0    1    0    0    1    0    3    0    1    0    1    1 -100
        >>> task.probabilities(example["inputs"])[0, :3].round(3)
        array([[0.333, 0.083, 0.583, 0.   ],
               [0.333, 0.286, 0.381, 0.   ],
               [0.333, 0.5  , 0.167, 0.   ]])

    Args:
        seq_len: length of a sequence.
        grammar: "cfg3f" with six levels or "cfg3k" with seven.
        n_levels: number of levels of rules that a sentence uses, the last ones of the grammar.
    """

    def __init__(self, seq_len: int = 128, grammar: str = "cfg3f", n_levels: int = 3) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 2)
        self.grammar = grammar
        self._demand(grammar in GRAMMARS, f"grammar must be one of {', '.join(GRAMMARS)}")
        self.n_levels = self._whole("n_levels", n_levels, 1)
        levels = GRAMMARS[grammar].strip().splitlines()
        self._demand(self.n_levels <= len(levels), f"n_levels must be <= {len(levels)}, the levels of the grammar")

    @cached_property
    def _rules(self) -> list[list[list[list[int]]]]:
        """Symbols by level, symbol and rule; the root level has only its first symbol."""
        lines = GRAMMARS[self.grammar].strip().splitlines()[-self.n_levels :]
        levels = [[[[*map(int, rule)] for rule in rules.split()] for rules in line.split(",")] for line in lines]
        return [levels[0][:1], *levels[1:]]

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.tokens(
            self.seq_len,
            N_SYMBOLS + 1,
            chance=float(self._frequencies().max()),
            labelled=self.seq_len - 1,
            perplexity=True,
        )

    def input_text(self, token: int) -> str:
        return "#" if token == N_SYMBOLS else str(token)

    def label_text(self, label: int) -> str:
        return self.input_text(label)

    def guess_without_order(self) -> float:
        """Return the perplexity of the frequencies of the tokens."""
        frequencies = self._frequencies()
        return float(np.exp(-frequencies @ np.log(frequencies)))

    def _frequencies(self) -> np.ndarray:
        """Return the share of each token among the labels."""
        return label_shares(self, min(COUNTED_ROWS, max(1, COUNTED_POSITIONS // self.seq_len)))

    def floors(self) -> dict[str, float | dict[str, float]]:
        """Return the least perplexity `floor`, `floor_bits_per_token`, and the least share of errors `floor_errors`."""
        rows = max(1, FLOOR_POSITIONS // self.seq_len)
        laws = self.probabilities(self.sample(np.random.default_rng(0), rows)["inputs"])[:, :-1]
        nats = -(laws * np.log(np.where(laws > 0, laws, 1))).sum(axis=2).mean()
        return {
            "floor": float(np.exp(nats)),
            "floor_bits_per_token": float(nats / np.log(2)),
            "floor_errors": float(1 - laws.max(axis=2).mean()),
        }

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        lengths = [1] * N_SYMBOLS
        for level in reversed(self._rules):
            lengths = [min(sum(lengths[symbol] for symbol in rule) for rule in rules) for rules in level]
        # The number of sentences that fill a row even if all have the minimum length.
        per_row = -(-self.seq_len // (lengths[0] + 1))
        sentence, tokens = self._sentences(rng, n * per_row)
        # Each sentence takes one more position than it has tokens, because # precedes it.
        position = np.arange(len(tokens)) + sentence + 1
        size = np.bincount(sentence, minlength=n * per_row) + 1
        start = np.append(0, np.cumsum(size))[::per_row]
        row = sentence // per_row if n else sentence
        place = position - start[row]
        inputs = np.full((n, self.seq_len), N_SYMBOLS)
        kept = place < self.seq_len
        inputs[row[kept], place[kept]] = tokens[kept]
        labels = np.full_like(inputs, IGNORED)
        labels[:, :-1] = inputs[:, 1:]
        return {"inputs": inputs, "labels": labels}

    def _sentences(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw `n` sentences; return the sentence index of each token, ascending, and the tokens."""
        sentence, symbols = np.arange(n), np.zeros(n, dtype=np.int64)
        for level in self._rules:
            n_rules = np.array([len(rules) for rules in level])
            padded = [rule + [-1] * (N_SYMBOLS - len(rule)) for rules in level for rule in rules]
            first = np.cumsum(n_rules) - n_rules
            written = np.array(padded)[first[symbols] + rng.integers(n_rules[symbols])]
            sentence, symbols = np.repeat(sentence, (written >= 0).sum(axis=1)), written[written >= 0]
        return sentence, symbols

    def probabilities(self, inputs: np.ndarray) -> np.ndarray:
        """Return the exact distribution of the next token at each position, (n, seq_len, 4); class 3 is #.

        Args:
            inputs: sequences of the task, (n, seq_len).
        """
        laws = np.empty((*inputs.shape, N_SYMBOLS + 1))
        for row, tokens in enumerate(inputs):
            starts = [*np.flatnonzero(tokens == N_SYMBOLS), len(tokens)]
            for start, end in pairwise(starts):
                laws[row, start:end] = self._law(tokens[start + 1 : end])
        return laws

    def _law(self, sentence: np.ndarray) -> np.ndarray:
        """Return the distribution of the next token after each prefix of a sentence, (tokens + 1, 4)."""
        size = len(sentence) + 1
        # A factor of two per token cancels in the distributions, and avoids underflow for long sentences.
        inside = [np.array([np.diag(2.0 * (sentence == symbol), k=1) for symbol in range(N_SYMBOLS)])]
        for level in reversed(self._rules[1:]):
            below = inside[0]
            found = [sum(reduce(np.matmul, below[rule]) for rule in rules) / len(rules) for rules in level]
            inside.insert(0, np.array(found).reshape(N_SYMBOLS, size, size))
        ahead, end = np.eye(1, size), np.zeros(size)
        for depth, (level, below) in enumerate(zip(self._rules, inside, strict=True)):
            after, ahead = ahead, np.zeros((N_SYMBOLS, size))
            for before, rules in zip(after, level, strict=True):
                for rule in rules:
                    here = before / len(rules)
                    for symbol in rule:
                        ahead[symbol] += here
                        here = here @ below[symbol]
                    end += here if depth == 0 else 0
        law = np.vstack([ahead, end]).T
        return law / law.sum(axis=1, keepdims=True)
