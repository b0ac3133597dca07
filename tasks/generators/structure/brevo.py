"""Brevo: list the ancestors of a node of a graph in topological order."""

from __future__ import annotations

import copy
from typing import Self

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.draws import distinct, one_of, weighted_distinct
from tasks.spec import IGNORED, TaskSpec

MOST_EDGES = 4
"""Maximum number of parents and of children of a node."""


class Brevo(Task):
    """List a node and all its ancestors in a graph, each node after its parents.

    Definition, with V = n_names and at most K = seq_len // 9 + 2 nodes: the number n of nodes is drawn from 3 ... K
    with probability proportional to 1 / (n + sqrt(K)). Their names are different numbers drawn from 0 ... V - 1. The
    first l nodes have no parents, l uniform in 1 ... (n - 1) // 4 + 1. Each later node draws parents among the earlier
    nodes with fewer than 4 children; their number is uniform in 1 ... 4, or in 1 ... the number of such nodes if that
    is smaller. The last node is the queried one. It and its ancestors are ordered from the last to the first: each step
    takes one uniformly among those whose children in this set have all been taken.

    Tokens 0 ... V - 1 are the names, then come ?, = and a blank. A sequence has the edges in random order, each a
    parent and its child; then ?, the queried node, =, and the ordered nodes without the last one, which is the queried
    node. Blanks fill the sequence from the left.

    In training, the labels at = and at each node after it are the next node. Usually several nodes could come next.
    Validation and test label only positions with a single choice, where just one unlisted node has all its parents
    listed. They also leave out the last position, where the queried node must follow. So every scored label is certain.

    Source: Brevo of Allen-Zhu, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon
    Layers", SSRN 5240330, with V = K = 70, 90 and 110, tested at n = K; facebookresearch/PhysicsLM4, commit 7580696,
    data-synthetic-pretrain/Brevo/brevo.py. Graphs, orders and training labels follow its distribution. The source adds
    an end token, and its Brevo2 spells names with several tokens.

    Reported: The authors report the share of graphs for which the model writes a valid list, in any order;
    `sequence_accuracy` is the share with all certain nodes right, each given the list before it.

    `depth` is the smallest number of edges from the queried node to a node without parents, `size` the number of nodes
    in the list, `place` the position of the label in the list, from 1.

    Prediction: The first node must be known before anything is written. A layer can step from nodes to their parents,
    so accuracy at place 1 falls with depth in shallow models. For each later node the model reads the edges again. A
    mixer with a fixed state must store all edges, because the question comes after them.

        >>> task = Brevo(seq_len=20, n_names=6)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(f"{task.input_text(token):>4}" for token in example["inputs"][0]))
           _    _    _    _    _    _    _    _    _    3    1    1    5    3    4    ?    5    =    3    1
        >>> print(*(f"{label:4d}" for label in example["labels"][0]))
        -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100 -100    3    1 -100

    Args:
        seq_len: length of a sequence; 9 more positions allow one more node.
        n_names: number of possible names, at least the maximum number of nodes.
    """

    _training = False

    def __init__(self, seq_len: int = 128, n_names: int = 32) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 18)
        self.n_names = self._whole("n_names", n_names, 4)
        self._demand(self.max_nodes <= self.n_names, "n_names must be >= seq_len // 9 + 2")

    @property
    def max_nodes(self) -> int:
        """Maximum number of nodes of a graph, such that its edges and answer always fit."""
        return self.seq_len // 9 + 2

    @property
    def spec(self) -> TaskSpec:
        return TaskSpec.tokens(
            self.seq_len, self.n_names + 3, self.n_names, chance=1 / self.n_names, facts=("depth", "size", "place")
        )

    def of_split(self, split: str) -> Self:
        """Return the task with the labels of training, or with only the certain labels."""
        task = copy.copy(self)
        task._training = split == "train"
        return task

    def input_text(self, token: int) -> str:
        return str(token) if token < self.n_names else "?=_"[token - self.n_names]

    def guess_among_read(self) -> float:
        """Return the accuracy of guessing among the nodes not listed yet, over 2,000 sequences."""
        drawn = self.of_split("test").sample(np.random.default_rng(0), 2_000)
        row, at = np.nonzero(drawn["labels"] != IGNORED)
        known = np.zeros((len(drawn["inputs"]), self.n_names + 3), dtype=bool)
        np.put_along_axis(known, drawn["inputs"], True, axis=1)
        # All nodes that were read, except the queried one and the place - 1 listed before.
        return float((1 / (known[:, : self.n_names].sum(axis=1)[row] - drawn["place"][row, at])).mean())

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        rows, most, v = np.arange(n), self.max_nodes, self.n_names
        edges, asked = self._graphs(rng, n)
        ordered, size, depth = self._orders(rng, edges, asked)
        names = distinct(rng, n, v, most)

        row, child, parent = np.nonzero(edges)
        # Shuffle the edges of each row: the integer part of the sort key is the row.
        order = np.argsort(row + rng.random(len(row)))
        written = np.stack([parent, child], axis=1)[order]
        n_edges = edges.sum(axis=(1, 2))
        begin = self.seq_len - 2 * n_edges - 2 - size
        place = np.arange(self.seq_len)
        answers = self.seq_len - size[:, None] + np.arange(most)  # positions of the ordered nodes as labels

        inputs = np.full((n, self.seq_len), v + 2)
        is_edge = (place >= begin[:, None]) & (place < (begin + 2 * n_edges)[:, None])
        inputs[is_edge] = names[row[order, None], written].reshape(-1)
        inputs[rows, begin + 2 * n_edges] = v
        inputs[rows, begin + 2 * n_edges + 1] = names[rows, asked]
        inputs[rows, begin + 2 * n_edges + 2] = v + 1
        exists = np.arange(most) < size[:, None]
        next_name = np.take_along_axis(names, ordered, axis=1)
        before_last = np.arange(most) < size[:, None] - 1
        row, at = np.nonzero(before_last)
        inputs[row, answers[row, at] + 1] = next_name[row, at]

        labelled = exists if self._training else before_last & (self._choices(edges, ordered, size) == 1)
        row, at = np.nonzero(labelled)
        labels = np.full((n, self.seq_len), IGNORED)
        labels[row, answers[row, at]] = next_name[row, at]
        facts = {fact: np.full((n, self.seq_len), -1, dtype=np.int32) for fact in self.spec.facts}
        for fact, values in (("depth", depth[row]), ("size", size[row]), ("place", at + 1)):
            facts[fact][row, answers[row, at]] = values
        return {"inputs": inputs, "labels": labels, **facts}

    def _graphs(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the edges, bool (n, child, parent), and the queried node, (n,)."""
        sizes = np.arange(3, self.max_nodes + 1)
        weights = 1 / (sizes + np.sqrt(self.max_nodes))
        n_nodes = rng.choice(sizes, size=n, p=weights / weights.sum())
        n_leaves = rng.integers(1, (n_nodes - 1) // 4 + 2)
        edges = np.zeros((n, self.max_nodes, self.max_nodes), dtype=bool)
        n_children = np.zeros((n, self.max_nodes), dtype=np.int64)
        for node in range(1, self.max_nodes):
            free = n_children[:, :node] < MOST_EDGES
            most = np.minimum(free.sum(axis=1), MOST_EDGES)
            grows = (node >= n_leaves) & (node < n_nodes)
            n_parents = np.where(grows, rng.integers(1, np.maximum(most, 1) + 1), 0)
            drawn = weighted_distinct(rng, n, free.astype(np.float64), min(node, MOST_EDGES))
            row, which = np.nonzero(np.arange(drawn.shape[1]) < n_parents[:, None])
            edges[row, node, drawn[row, which]] = True
            n_children += edges[:, node]
        return edges, n_nodes - 1

    def _orders(
        self, rng: np.random.Generator, edges: np.ndarray, asked: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the ordered nodes (n, max_nodes), their number (n,), and the depth of the last one (n,)."""
        n, most = len(edges), self.max_nodes
        rows = np.arange(n)
        needed = np.zeros((n, most), dtype=bool)
        needed[rows, asked] = True
        depths = np.zeros((n, most), dtype=np.int64)
        for node in range(most - 1, 0, -1):
            needed |= edges[:, node] & needed[:, node, None]
        for node in range(1, most):
            nearest = np.where(edges[:, node], depths, most).min(axis=1)
            depths[:, node] = np.where(edges[:, node].any(axis=1), nearest + 1, 0)
        size = needed.sum(axis=1)
        n_children = (edges & needed[:, :, None]).sum(axis=1)
        left, backwards = needed, np.zeros((n, most), dtype=np.int64)
        for step in range(most):
            ready = left & (n_children == 0)
            busy = rows[step < size]
            node = one_of(rng, ready[busy])
            left[busy, node] = False
            n_children[busy] -= edges[busy, node]
            backwards[busy, size[busy] - 1 - step] = node
        return backwards, size, depths[rows, asked]

    def _choices(self, edges: np.ndarray, ordered: np.ndarray, size: np.ndarray) -> np.ndarray:
        """Return the number of nodes that could come at each place of the order, (n, max_nodes)."""
        rows, most = np.arange(len(edges)), self.max_nodes
        left = np.zeros(ordered.shape, dtype=bool)
        row, at = np.nonzero(np.arange(most) < size[:, None])
        left[row, ordered[row, at]] = True
        missing, choices = edges.sum(axis=2), np.zeros(ordered.shape, dtype=np.int64)
        for step in range(most):
            choices[:, step] = (left & (missing == 0)).sum(axis=1)
            busy = rows[step < size]
            left[busy, ordered[busy, step]] = False
            missing[busy] -= edges[busy, :, ordered[busy, step]]
        return choices
