"""The tasks by name. Adding one is a class in a file of its own and a line here."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from zoo.naming import UnknownNameError, unknown
from zoo.targets import OpenRegistry, short

if TYPE_CHECKING:
    from tasks.base import Task

SUFFIXES = (".npz", ".parquet", ".arrow", ".feather")
"""How the names of files of data end."""


class _Tasks(OpenRegistry[tuple[str, str]]):
    """The tasks by name, those that targets name, and paths of data."""

    forms = "package.module:Class, path/file.py:Class, path/file.py:function or data (.npz, .parquet, a folder)"

    def is_path(self, name: object) -> TypeGuard[str]:
        """Tell whether a name, which is neither registered nor a target, is a path; imports nothing."""
        if super().__contains__(name) or not isinstance(name, str):
            return False
        return "/" in name or name.endswith(SUFFIXES) or Path(name).expanduser().exists()

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self.is_path(name)

    def check(self, name: object) -> str:
        return os.path.normpath(Path(name).expanduser().absolute()) if self.is_path(name) else super().check(name)

    def entry(self, name: str) -> tuple[str, str]:
        return _describe(self.check(name)) if self.is_path(name) else super().entry(name)

    def __getitem__(self, name: str) -> type[Task]:
        return _adopt(path := self.check(name), Path(path)) if self.is_path(name) else super().__getitem__(name)


def _describe(target: str) -> tuple[str, str]:
    return target, f"{short(target)}, a task of your own"


def _adopt(target: str, found: Any) -> type[Task]:
    from tasks.external import adopt

    return adopt(target, found)


TASKS = _Tasks(
    "task",
    {
        "adding": ("tasks.adding:Adding", "add the two numbers that are marked, one in each half"),
        "automata": ("tasks.automata:Automata", "continue words of an automaton that is new in every sequence"),
        "bracket": ("tasks.bracket:Bracket", "count the open brackets at every position of a balanced word"),
        "compositional": (
            "tasks.compositional:Compositional",
            "mqar with keys of two tokens, neither of which is enough",
        ),
        "compression": ("tasks.compression:Compression", "hold a whole sequence, give its tokens back by place"),
        "copying": ("tasks.copying:Copying", "say tokens again, in order, after a stretch of blanks"),
        "forgetting": ("tasks.forgetting:Forgetting", "mqar where keys get a new value: the last one counts"),
        "cycle_navigation": ("tasks.cycle_navigation:CycleNavigation", "walk on a circle and say where the walk ends"),
        "delay": ("tasks.delay:Delay", "say a band-limited noise again, a fixed time later"),
        "even_pairs": ("tasks.even_pairs:EvenPairs", "say whether the changes between neighbouring bits are odd"),
        "fuzzy_recall": ("tasks.fuzzy_recall:FuzzyRecall", "recall where keys and values are words of several tokens"),
        "group_words": ("tasks.group_words:GroupWords", "multiply out a word over a finite group, prefix by prefix"),
        "images": ("tasks.images:Images", "classify images read pixel by pixel: handwritten digits, or any data set"),
        "in_context_recall": ("tasks.in_context_recall:InContextRecall", "name the value that a key had before"),
        "in_context_regression": (
            "tasks.in_context_regression:InContextRegression",
            "predict w · x from pairs read before, w new in every sequence",
        ),
        "induction_heads": ("tasks.induction_heads:InductionHeads", "name the token that followed the trigger before"),
        "k_hop": ("tasks.k_hop:KHop", "name the k-th successor of a node on a cycle of shuffled edges"),
        "listops": ("tasks.listops:ListOps", "compute the digit that a nested expression of lists comes to"),
        "memorization": ("tasks.memorization:Memorization", "memorise one map from keys to values"),
        "modular_arithmetic": (
            "tasks.modular_arithmetic:ModularArithmetic",
            "compute an expression without brackets modulo five",
        ),
        "mqar": ("tasks.mqar:MQAR", "multi-query associative recall: look up the value of a key seen before"),
        "needle": ("tasks.needle:Needle", "name the one relevant token, a fixed distance back among noise"),
        "noisy_recall": ("tasks.noisy_recall:NoisyRecall", "recall among pairs of noise tokens"),
        "parity": ("tasks.parity:Parity", "say at every position whether the ones so far are odd"),
        "pathfinder": ("tasks.pathfinder:Pathfinder", "say whether two dots are the ends of one dashed path"),
        "selective_copying": (
            "tasks.selective_copying:SelectiveCopying",
            "say the tokens among blanks again, in order",
        ),
        "ssm_teacher": ("tasks.ssm_teacher:SSMTeacher", "regress a linear time-invariant teacher of span dimension k"),
        "stacked_mqar": ("tasks.stacked_mqar:StackedMQAR", "mqar where a key and its value share one vector"),
        "text": ("tasks.text:Text", "the next byte or character of a user's files or of any data set of text"),
        "treecall": ("tasks.treecall:Treecall", "name the parent of a token in the tree that a grammar wrote"),
    },
    group="zoo.tasks",
    describe=_describe,
    adopt=_adopt,
)


def list_tasks() -> list[str]:
    """Return the registered names, those of entry points last."""
    return [*TASKS, *TASKS.own]


def task_class(name: str) -> type[Task]:
    """Return the class registered under `name`.

    Raises:
        UnknownNameError: the name is not registered; the message lists those that are.
    """
    return TASKS[name]


def create_task(name: str, **options: Any) -> Task:
    """Build the task `name` from its constructor's options.

    Raises:
        UnknownNameError: no such task, or no such option of this task.
        ValueError: the options describe a shape that cannot exist.
    """
    cls = task_class(name)
    valid = inspect.signature(cls).parameters
    for option in options:
        if option not in valid:
            raise UnknownNameError(unknown(f"{name} option", option, valid))
    return cls(**options)
