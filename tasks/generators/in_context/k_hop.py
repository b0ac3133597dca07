"""K-hop: follow k edges around a cycle that is listed as shuffled edges."""

from __future__ import annotations

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.draws import distinct, shuffled
from tasks.generators.placing import fact_at, labels_at
from tasks.spec import TaskSpec


class KHop(Task):
    """Follow a cycle of nodes for k steps from a queried node.

    Definition, with V = n_names, K = max_hops, Q = n_questions and n = seq_len/2 - Q nodes: n names, drawn from
    0 ... V - 1 without replacement, form a cycle. The edge of a node is two tokens, the node and its successor; the n
    edges come first, in random order. Then come Q questions of two tokens: V + k - 1 for k, drawn uniformly from
    1 ... K, then a node, no node twice. The label there is the k-th successor of the node. Since K < n, it is never the
    node itself. At another length the number of nodes changes.

    With k = 1 this is associative recall in which every token is both a key and a value.

    Source: Depo of Allen-Zhu, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon
    Layers", SSRN 5240330, where names are words of several tokens, the number of nodes is drawn for each sequence, and
    the answers are part of the text.

    `hops` is k.

    Prediction: A layer of attention looks up one hop, or doubles the hops of the layer below: k hops need a depth of
    about log2 k. A mixer with a fixed state must store all edges before the question comes. For composing functions
    that appear one after the other in the text, no number of linear layers replaces a missing layer of attention (Ye et
    al., arXiv 2602.01763).

        >>> task = KHop(seq_len=16, n_names=10, max_hops=3, n_questions=2)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{task.input_text(token):>4}" for token in example["inputs"][0]))
           3    0    6    5    5    2    8    6    2    3    0    8   +3    2   +2    0
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100    8 -100    6

    Args:
        seq_len: length of a sequence, even: two positions per node and two per question.
        n_names: number of possible names, at least the number of nodes.
        max_hops: the largest k, less than the number of nodes.
        n_questions: questions per sequence, at most the number of nodes.
    """

    def __init__(self, seq_len: int = 64, n_names: int = 256, max_hops: int = 8, n_questions: int = 8) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.n_names = self._whole("n_names", n_names, 2)
        self.max_hops = self._whole("max_hops", max_hops, 1)
        self.n_questions = self._whole("n_questions", n_questions, 1)
        self._demand(self.seq_len % 2 == 0, "seq_len must be even")
        self._demand(self.n_questions <= self.n_nodes, "4 * n_questions must be <= seq_len")
        self._demand(self.max_hops < self.n_nodes, "max_hops must be < seq_len / 2 - n_questions")
        self._demand(self.n_nodes <= self.n_names, "n_names must be >= seq_len / 2 - n_questions")

    @property
    def n_nodes(self) -> int:
        """Number of nodes on the cycle."""
        return self.seq_len // 2 - self.n_questions

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.tokens(
            self.seq_len, self.n_names + self.max_hops, self.n_names, labelled=self.n_questions, facts=("hops",)
        )

    def input_text(self, token: int) -> str:
        return str(token) if token < self.n_names else f"+{token - self.n_names + 1}"

    def guess_among_read(self) -> float:
        return 1 / (self.n_nodes - 1)

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        cycle = distinct(rng, n, self.n_names, self.n_nodes)
        edges = shuffled(rng, n, self.n_nodes)
        asked = distinct(rng, n, self.n_nodes, self.n_questions)
        hops = rng.integers(1, self.max_hops + 1, size=(n, self.n_questions))

        def node(place: np.ndarray) -> np.ndarray:
            return np.take_along_axis(cycle, place % self.n_nodes, axis=1)

        inputs = np.empty((n, self.seq_len), dtype=np.int64)
        listed = 2 * self.n_nodes
        inputs[:, 0:listed:2], inputs[:, 1:listed:2] = node(edges), node(edges + 1)
        inputs[:, listed::2], inputs[:, listed + 1 :: 2] = self.n_names + hops - 1, node(asked)
        positions = np.arange(listed + 1, self.seq_len, 2)
        labels = labels_at(positions, node(asked + hops), self.seq_len)
        return {"inputs": inputs, "labels": labels, "hops": fact_at(positions, hops, self.seq_len)}
