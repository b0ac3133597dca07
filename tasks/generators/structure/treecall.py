"""Treecall: recall the parent of a token in the syntax tree of a sentence."""

from __future__ import annotations

from functools import cache, cached_property

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.draws import one_of
from tasks.generators.occurrences import first_and_previous, label_shares
from tasks.generators.placing import fact_at, labels_at
from tasks.spec import TaskSpec

SHORTEST = 3
"""Minimum number of tokens in a sentence."""

LEAST_SHARE = 0.05
"""Minimum share of a grammar's sentences that fit into a sequence, since the others are discarded."""


class Treecall(Task):
    """Read a sentence of a grammar, then name the parent of one of its tokens.

    Definition, with V = n_terminals. The grammar is drawn once, from grammar_seed, and is the same in all sequences.
    Each of its n_nonterminals nonterminals has a level, rules and heads. The level is drawn uniformly from
    1 ... n_levels; the first nonterminal has level 1. There are 1 to max_rules rules, each a list of 1 to max_rhs items
    drawn uniformly from the nonterminals of higher levels and the terminals 0 ... V - 1. The distribution of the head
    over the terminals is drawn uniformly from the simplex. Each head is assigned one of the rules, drawn uniformly.

    A sentence starts from the first nonterminal. To write a nonterminal, draw its head, write it, then write the items
    of the head's rule in order; their parent is the head. So each token except the first has a parent to its left, and
    a reader who knows the grammar can recover the tree from left to right. Sentences of fewer than 3 or more than
    seq_len - 3 tokens are redrawn. The sequence is V, the sentence, V + 1, a terminal of the sentence, then V + 2 up to
    its end. The label at the queried terminal is the parent token of its last occurrence. The terminal is drawn in two
    steps: a parent, uniformly among the parents of last occurrences, then one of its children that are last
    occurrences.

    Source: Arora et al., "Mechanistic evaluation of Transformers and state space models", arXiv 2505.15105, associative
    treecall; aryamanarora/tinylang at b644c87, tinylang/language/pcfg.py.

    As in the source: the grammar's levels, rules and heads, the restriction to last occurrences, and drawing the parent
    before its child. Unlike in the source, the head decides the rule and is written first, and the start is always the
    same nonterminal. There rule and head are drawn independently and any nonterminal may start, so that a sentence may
    have several trees and the answer may be uncertain even for a reader who knows the grammar. In the paper's results
    the head comes after its items. The source can also ask for children and siblings.

    `distance` counts from a label back to the parent, `depth` is the number of edges from the first token to the
    queried one.

    Prediction: In mqar a value follows its key, so a short convolution finds it. Here the parent may be anywhere to the
    left, so one layer must bind child and parent before another looks the child up. A mixer with a fixed state must
    store the parent of every terminal's last occurrence.

        >>> task = Treecall(seq_len=16, n_terminals=6, n_nonterminals=4, n_levels=3, max_rules=2, grammar_seed=1)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{task.input_text(token):>4}" for token in example["inputs"][0]))
           <    4    2    3    4    1    2    |    4    _    _    _    _    _    _    _
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100 -100 -100 -100 -100    2 -100 -100 -100 -100 -100 -100 -100

    Args:
        seq_len: length of a sequence; a sentence has at most seq_len - 3 tokens.
        n_terminals: number of different tokens in sentences.
        n_nonterminals: number of nonterminals of the grammar.
        n_levels: number of levels; a rule leads only to higher ones.
        max_rules: maximum number of rules of a nonterminal.
        max_rhs: maximum number of items of a rule.
        grammar_seed: seed of the grammar.
    """

    def __init__(
        self,
        seq_len: int = 64,
        n_terminals: int = 20,
        n_nonterminals: int = 40,
        n_levels: int = 10,
        max_rules: int = 5,
        max_rhs: int = 4,
        grammar_seed: int = 13,
    ) -> None:
        self.seq_len = self._whole("seq_len", seq_len, SHORTEST + 3)
        self.n_terminals = self._whole("n_terminals", n_terminals, 2)
        self.n_nonterminals = self._whole("n_nonterminals", n_nonterminals, 1)
        self.n_levels = self._whole("n_levels", n_levels, 1)
        self.max_rules = self._whole("max_rules", max_rules, 1)
        self.max_rhs = self._whole("max_rhs", max_rhs, 1)
        self.grammar_seed = self._whole("grammar_seed", grammar_seed, 0)
        fitting = f"at least {LEAST_SHARE:.0%} of the sentences must have 3 to seq_len - 3 tokens: use another grammar"
        self._demand(self._share_that_fits() >= LEAST_SHARE, fitting, "grammar_seed")

    @cached_property
    def _grammar(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Head probabilities and rule numbers, both (nonterminals, terminals), and the rules (number, max_rhs).

        Items of a rule are terminals, n_terminals + nonterminal, and -1 as padding.
        """
        rng = np.random.default_rng(self.grammar_seed)
        terminals = np.arange(self.n_terminals)
        levels = rng.integers(1, self.n_levels + 1, size=self.n_nonterminals)
        levels[0] = 1
        rules, rule_of = [], np.empty((self.n_nonterminals, self.n_terminals), dtype=np.int64)
        for nonterminal, level in enumerate(levels):
            items = np.concatenate([terminals, self.n_terminals + np.flatnonzero(levels > level)])
            own = []
            for _ in range(rng.integers(1, self.max_rules + 1)):
                size = rng.integers(1, self.max_rhs + 1)
                own.append(np.append(rng.choice(items, size=size), np.full(self.max_rhs - size, -1)))
            rule_of[nonterminal] = len(rules) + rng.integers(len(own), size=self.n_terminals)
            rules += own
        heads = rng.dirichlet(np.ones(self.n_terminals), size=self.n_nonterminals)
        return heads, rule_of, np.array(rules)

    def _share_that_fits(self) -> float:
        """Return the probability that a sentence has 3 to seq_len - 3 tokens, from the lengths of its items."""
        heads, rule_of, rules = self._grammar
        longest = self.seq_len - SHORTEST
        one_token = np.zeros(longest + 1)
        one_token[1] = 1

        @cache
        def lengths(nonterminal: int) -> np.ndarray:
            total = np.zeros(longest + 1)
            for rule in np.unique(rule_of[nonterminal]):
                found = one_token
                for item in rules[rule][rules[rule] >= 0]:
                    more = one_token if item < self.n_terminals else lengths(int(item) - self.n_terminals)
                    found = np.convolve(found, more)[: longest + 1]
                total += heads[nonterminal][rule_of[nonterminal] == rule].sum() * found
            return total

        return float(lengths(0)[SHORTEST:].sum())

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.tokens(
            self.seq_len,
            self.n_terminals + 3,
            self.n_terminals,
            chance=float(label_shares(self, 1_024, draws=4).max()),
            labelled=1,
            facts=("distance", "depth"),
        )

    def input_text(self, token: int) -> str:
        return str(token) if token < self.n_terminals else "<|_"[token - self.n_terminals]

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        room = self.seq_len - 3
        tokens, parents = np.empty((n, room), dtype=np.int64), np.empty((n, room), dtype=np.int64)
        lengths = np.zeros(n, dtype=np.int64)
        while len(rows := np.flatnonzero(lengths < SHORTEST)):
            tokens[rows], parents[rows], lengths[rows] = self._sentences(rng, len(rows))
        asked = self._asked(rng, tokens, parents, lengths)
        rows = np.arange(n)
        inputs = np.full((n, self.seq_len), self.n_terminals + 2, dtype=np.int64)
        inputs[:, 0] = self.n_terminals
        inputs[:, 1:-2] = np.where(np.arange(room) < lengths[:, None], tokens, inputs[:, 1:-2])
        inputs[rows, lengths + 1], inputs[rows, lengths + 2] = self.n_terminals + 1, tokens[rows, asked]
        parent, position = parents[rows, asked], (lengths + 2)[:, None]
        depth, node = np.zeros(n, dtype=np.int64), asked
        while (node > 0).any():
            depth += node > 0
            node = np.where(node > 0, parents[rows, node], 0)
        return {
            "inputs": inputs,
            "labels": labels_at(position, tokens[rows, parent][:, None], self.seq_len),
            "distance": fact_at(position, position - 1 - parent[:, None], self.seq_len),
            "depth": fact_at(position, depth[:, None], self.seq_len),
        }

    def _sentences(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens, positions of their parents, both (n, seq_len - 3), and lengths (n,), 0 if too long.

        A stack holds the remaining items; each step pops one of them and writes a token.
        """
        heads, rule_of, rules = self._grammar
        # A single ascending array for all nonterminals: the cumulative probabilities of number k fill k ... k + 1.
        line = (np.arange(len(heads))[:, None] + heads.cumsum(axis=1)).reshape(-1)
        sizes = (rules >= 0).sum(axis=1)
        room, rows = self.seq_len - 3, np.arange(n)
        tokens, parents = np.zeros((n, room), dtype=np.int64), np.zeros((n, room), dtype=np.int64)
        stack, above = np.zeros((n, room + self.max_rhs), dtype=np.int64), np.zeros((n, room + self.max_rhs), np.int64)
        stack[:, 0] = self.n_terminals
        height, lengths = np.ones(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        for place in range(room):
            busy = rows[(height > 0) & (height <= room)]
            if not len(busy):
                break
            height[busy] -= 1
            item = stack[busy, height[busy]]
            parents[busy, place] = above[busy, height[busy]]
            tokens[busy, place] = item
            lengths[busy] += 1
            grows = item >= self.n_terminals
            row, nonterminal = busy[grows], item[grows] - self.n_terminals
            drawn = np.searchsorted(line, nonterminal + rng.random(len(row)), side="right")
            head = np.clip(drawn - nonterminal * self.n_terminals, 0, self.n_terminals - 1)
            tokens[row, place] = head
            rule = rule_of[nonterminal, head]
            # Push the items so that the first one is on top.
            for i in range(self.max_rhs):
                has = i < sizes[rule]
                top = height[row[has]] + sizes[rule[has]] - 1 - i
                stack[row[has], top], above[row[has], top] = rules[rule[has], i], place
            height[row] += sizes[rule]
        return tokens, parents, np.where(height == 0, lengths, 0)

    def _asked(
        self, rng: np.random.Generator, tokens: np.ndarray, parents: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        """Return the position of the queried token, (n,): draw a parent of last occurrences, then one of these."""
        place = np.arange(tokens.shape[1])
        written = np.where(place < lengths[:, None], tokens, self.n_terminals)
        comes_last = first_and_previous(written[:, ::-1])[1][:, ::-1] < 0
        may_be = comes_last & (written < self.n_terminals) & (place > 0)  # the first token has no parent
        is_parent = np.zeros(tokens.shape, dtype=bool)
        row, child = np.nonzero(may_be)
        is_parent[row, parents[row, child]] = True
        chosen = one_of(rng, is_parent)
        return one_of(rng, may_be & (parents == chosen[:, None]))
