"""The registry of tasks. A new task is a file in a folder of `tasks/generators` and a line here."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from tasks.yours import SUFFIXES
from zoo.errors import UnknownNameError, unknown
from zoo.lookup import OpenRegistry
from zoo.targets import expanded, short

if TYPE_CHECKING:
    from tasks.base import Task


class _Tasks(OpenRegistry[tuple[str, str]]):
    """Registered tasks by name; also targets such as package.module:Class, and paths to data."""

    forms = "package.module:Class, path/file.py:Class, path/file.py:function or data (.npz, .parquet, .jsonl, a folder)"

    def is_path(self, name: object) -> TypeGuard[str]:
        """Return whether a name is a path, that is, not registered and no target; imports nothing."""
        if super().__contains__(name) or not isinstance(name, str):
            return False
        return "/" in name or name.endswith(SUFFIXES) or expanded(name).exists()

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self.is_path(name)

    def check(self, name: object) -> str:
        return os.path.normpath(expanded(name).absolute()) if self.is_path(name) else super().check(name)

    def entry(self, name: str) -> tuple[str, str]:
        return _describe(self.check(name)) if self.is_path(name) else super().entry(name)

    def __getitem__(self, name: str) -> type[Task]:
        return _adopt(path := self.check(name), Path(path)) if self.is_path(name) else super().__getitem__(name)


def _describe(target: str) -> tuple[str, str]:
    return target, f"{short(target)}, a task of your own"


def _adopt(target: str, found: Any) -> type[Task]:
    from tasks.yours.adopt import adopt

    return adopt(target, found)


GENERATORS = {
    "memory.adding:Adding": "add the two marked numbers, one in each half",
    "in_context.automata:Automata": "continue words of an automaton that is new in every sequence",
    "tracking.bracket:Bracket": "count the open brackets at every position of a balanced word",
    "structure.brevo:Brevo": "list a node's ancestors in a graph, parents before children",
    "memory.capo:Capo": "recall facts about people; counts the bits that a model's parameters hold",
    "recall.compositional:Compositional": "mqar with keys of two tokens, both of which matter",
    "copying.compression:Compression": "store a whole sequence, then recall its tokens by position",
    "copying.copying:Copying": "reproduce tokens in order after a stretch of blanks",
    "recall.forgetting:Forgetting": "mqar in which keys get a new value: the last one counts",
    "tracking.cycle_navigation:CycleNavigation": "follow steps on a circle and report where they end",
    "memory.delay:Delay": "reproduce band-limited noise after a fixed delay",
    "tracking.even_pairs:EvenPairs": "decide whether the number of bit changes is odd",
    "recall.fuzzy_recall:FuzzyRecall": "recall in which keys and values are words of several tokens",
    "tracking.group_words:GroupWords": "compute the product of every prefix of a word over a finite group",
    "real.images:Images": "classify images read pixel by pixel: handwritten digits, or any data set",
    "recall.in_context_recall:InContextRecall": "recall the value that a key had before",
    "in_context.in_context_regression:InContextRegression": "predict w · x from earlier pairs, w new in every sequence",
    "in_context.induction_heads:InductionHeads": "recall the token that followed the trigger before",
    "in_context.k_hop:KHop": "name the k-th successor of a node on a cycle of shuffled edges",
    "structure.lano:Lano": "predict the next token of sentences of a context-free grammar",
    "structure.mano:Mano": "compute an expression in prefix notation modulo 23",
    "structure.listops:ListOps": "evaluate a nested expression of list operations to a digit",
    "memory.memorization:Memorization": "memorise a fixed map from keys to values",
    "tracking.modular_arithmetic:ModularArithmetic": "compute an expression without brackets modulo five",
    "recall.mqar:MQAR": "multi-query associative recall: look up the value of a key seen before",
    "memory.needle:Needle": "recall the one relevant token, a fixed distance back among noise",
    "recall.noisy_recall:NoisyRecall": "recall among pairs of noise tokens",
    "tracking.parity:Parity": "report at every position the parity of the bits so far",
    "structure.pathfinder:Pathfinder": "decide whether two dots are the ends of one dashed path",
    "recall.planted_heads:PlantedHeads": "regress one of k orthogonal maps of the value of a key",
    "tracking.selectivbench:SelectivBench": "report the state of a grammar, even after gaps and wrong letters",
    "copying.selective_copying:SelectiveCopying": "reproduce in order the tokens scattered among blanks",
    "memory.ssm_teacher:SSMTeacher": "regress a linear time-invariant teacher of span dimension k",
    "recall.stacked_mqar:StackedMQAR": "mqar where a key and its value share one vector",
    "real.text:Text": "predict the next byte or character of your files or of any text data set",
    "structure.treecall:Treecall": "name the parent of a token in the syntax tree of a sentence",
}
"""Class of each task below `tasks.generators`, and a summary of one line; the file has the task's name."""

TASKS = _Tasks(
    "task",
    {
        target.partition(":")[0].rpartition(".")[2]: (f"tasks.generators.{target}", summary)
        for target, summary in GENERATORS.items()
    },
    group="zoo.tasks",
    describe=_describe,
    adopt=_adopt,
)


def list_tasks() -> list[str]:
    """Return the registered names, then those of entry points."""
    return [*TASKS, *TASKS.own]


def task_class(name: str) -> type[Task]:
    """Return the class registered under `name`.

    Raises:
        UnknownNameError: the name is not registered; the message lists the valid names.
    """
    return TASKS[name]


def create_task(name: str, **options: Any) -> Task:
    """Build the task `name` with options of its constructor.

    Raises:
        UnknownNameError: an unknown task, or an unknown option of the task.
        ValueError: an impossible combination of options.
    """
    cls = task_class(name)
    valid = inspect.signature(cls).parameters
    for option in options:
        if option not in valid:
            raise UnknownNameError(unknown(f"{name} option", option, valid))
    return cls(**options)
