"""Capo: store biographies of a fixed population in the parameters; measures bits of knowledge per parameter."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tasks.base import Arrays, Task
from tasks.generators.placing import labels_at
from tasks.spec import TaskSpec

KINDS = {
    "first": 400,
    "middle": 400,
    "last": 1000,
    "born": 1,
    "month": 12,
    "day": 28,
    "year": 200,
    "from": 1,
    "city": 200,
    "at": 1,
    "university": 300,
    "in": 1,
    "field": 100,
    "for": 1,
    "employer": 263,
}
"""The kinds of tokens in a biography, in order, with the number of tokens of each kind; a kind of one token is a fixed
word."""

SIZES = np.array([*KINDS.values()])
FIRST = np.cumsum(SIZES) - SIZES
"""First token of each kind."""

N_NAMES = 3
FACTS = N_NAMES + np.flatnonzero(SIZES[N_NAMES:] > 1)
"""Positions of the facts in a biography."""


class Capo(Task):
    """Recall facts about people from their names; the parameters must store all facts.

    Definition: A population of N = n_people people is drawn once, by people_seed, and is the same in all sequences and
    splits. A biography has 15 tokens: a first name (of 400), a middle name (of 400) and a last name (of 1,000), then
    five sentences, each a fixed word and its facts:

        born month (of 12) day (of 28) year (of 200), from city (of 200), at university (of 300), in field (of 100),
        for employer (of 263).

    Full names are drawn without replacement, facts uniformly. A sequence consists of biographies of people drawn
    uniformly. The labels are the seven facts of each biography, at the positions before them.

    The facts of all people are N log2(12 * 28 * 200 * 200 * 300 * 100 * 263) = 46.6 N bits. At a mean loss per label,
    the model knows 46.6 N - 7 N loss / ln 2 of them: `learned_bits`. The capacity of a model is this number divided by
    the number of its parameters, at an N that no longer raises it.

    Source: Capo of Allen-Zhu, "Physics of Language Models: Part 4.1, Architecture Design and the Magic of Canon
    Layers", SSRN 5240330: the data bioS of Allen-Zhu and Li, "Physics of Language Models: Part 3.3, Knowledge Capacity
    Scaling Laws", arXiv 2404.05405; facebookresearch/PhysicsLM4, commit 7580696,
    data-synthetic-pretrain/Capo-bioS-bioR, for the numbers of values and the order of the sentences.

    In the source a biography is English text: each sentence is drawn from some fifty wordings at every exposure, names
    and facts have several tokens, and the employer's city has a sentence too, although it follows from the employer.
    Here each sentence has one wording, so the task measures capacity but not invariance to wording. The source counts
    another log2(400 * 400 * 1000 / N) bits per name; here names are not predicted.

    Reported: The authors report bits per parameter: about 2 after 1,000 exposures of each person, about 1 after 100
    (Part 3.3).

    Prediction: A mixer only has to move the name to the positions of the labels, so a memory of 14 positions suffices.
    The capacity then follows the number of parameters, most of which are in channel mixers and embeddings.

        >>> task = Capo(n_people=3)
        >>> example = task.sample(np.random.default_rng(0), 1)
        >>> print(*(task.input_text(token) for token in example["inputs"][0]))
        first340 middle99 last874 born month11 day7 year163 from city134 at university0 in field39 for employer225
        >>> print(*example["labels"][0])
        -100 -100 -100 1812 1820 2004 -100 2176 -100 2243 -100 2583 -100 2870 -100
        >>> round(task.learned_bits(0.0), 1)
        139.8

    Args:
        seq_len: length of a sequence, 15 per biography.
        n_people: size of the population.
        people_seed: seed of the population; the same for all splits and data seeds.
    """

    def __init__(self, seq_len: int = 15, n_people: int = 1000, people_seed: int = 0) -> None:
        self.seq_len = self._whole("seq_len", seq_len, 1)
        self.n_people = self._whole("n_people", n_people, 1)
        self.people_seed = self._whole("people_seed", people_seed, 0)
        self._demand(self.seq_len % len(KINDS) == 0, f"seq_len must be a multiple of {len(KINDS)}")
        n_names = int(SIZES[:N_NAMES].prod())
        self._demand(self.n_people <= n_names, f"n_people must be <= {n_names}, the full names")

    @cached_property
    def biographies(self) -> np.ndarray:
        """The tokens of each person's biography, int64 (n_people, 15)."""
        rng = np.random.default_rng(self.people_seed)
        sizes = SIZES[:N_NAMES]
        names = np.unravel_index(rng.choice(sizes.prod(), size=self.n_people, replace=False), sizes)
        tokens = np.tile(FIRST, (self.n_people, 1))
        tokens[:, :N_NAMES] += np.stack(names, axis=1)
        tokens[:, FACTS] += rng.integers(SIZES[FACTS], size=(self.n_people, len(FACTS)))
        return tokens

    @property
    def spec(self) -> TaskSpec:
        commonest = np.bincount(self.biographies[:, FACTS].reshape(-1)).max()
        return TaskSpec.tokens(
            self.seq_len,
            int(SIZES.sum()),
            chance=float(commonest / (self.n_people * len(FACTS))),
            labelled=self.seq_len // len(KINDS) * len(FACTS),
        )

    def input_text(self, token: int) -> str:
        place = int(np.searchsorted(FIRST, token, side="right")) - 1
        return f"{[*KINDS][place]}{token - FIRST[place] if SIZES[place] > 1 else ''}"

    def label_text(self, label: int) -> str:
        return self.input_text(label)

    def learned_bits(self, loss: float) -> float:
        """Return the bits of facts that a model knows, given its cross-entropy `loss` in nats per label."""
        return float(self.n_people * (np.log2(SIZES[FACTS]).sum() - len(FACTS) * loss / np.log(2)))

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        people = rng.integers(self.n_people, size=(n, self.seq_len // len(KINDS)))
        inputs = self.biographies[people].reshape(n, self.seq_len)
        facts = (len(KINDS) * np.arange(people.shape[1])[:, None] + FACTS).reshape(-1)
        return {"inputs": inputs, "labels": labels_at(facts - 1, inputs[:, facts], self.seq_len)}
