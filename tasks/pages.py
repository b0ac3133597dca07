"""Render the page of a task from its class: definition, worked example, options, prediction; and the table of tasks."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import numpy as np

from tasks.base import Task
from tasks.data.splits import split_rng
from tasks.registry import TASKS, list_tasks, task_class
from tasks.spec import IGNORED, TaskSpec
from zoo.docstrings import arguments, paragraphs
from zoo.report.markdown import sentence, table

CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "task"
PER_LINE = 16
LONGEST = 128
"""Maximum number of printed positions; of a longer example the first and the last half of them are printed."""


def definition(cls: type[Task]) -> str:
    """Return the docstring up to its worked example, without the paragraphs that become class attributes."""
    return "\n\n".join(p for p in paragraphs(cls) if not p.startswith(("Source:", "Prediction:", "Reported:")))


def worked(cls: type[Task]) -> Task:
    """Return the task that the docstring's example assigns to `task`; without an example, the default task."""
    found = re.search(rf">{{3}} task = ({cls.__name__}\(.*)", cls.__doc__ or "")
    if found is None:
        return cls()
    call = cast(ast.Call, ast.parse(found[1], mode="eval").body)
    arguments = map(ast.literal_eval, call.args)
    return cls(*arguments, **{str(each.arg): ast.literal_eval(each.value) for each in call.keywords})


def options(cls: type[Task]) -> list[tuple[str, str, str]]:
    """Return (name, default or "required", meaning) of each option, in the constructor's order."""
    meanings = arguments(cls)
    parameters = inspect.signature(cls).parameters.values()
    defaults = {p.name: "required" if p.default is p.empty else repr(p.default) for p in parameters}
    return [(name, default, meanings.get(name, "")) for name, default in defaults.items()]


def facts(spec: TaskSpec) -> list[tuple[str, str]]:
    """Return the spec in words, as pairs of a title and a text."""
    kind = f"tokens 0 ... {spec.vocab_size - 1}" if spec.vocab_size else f"vectors of {spec.d_input}"
    answer = f"one of {spec.n_outputs} classes" if spec.loss == "cross_entropy" else f"{spec.n_outputs} numbers"
    where = "their number varies" if spec.labelled is None else f"{spec.labelled} per sequence"
    lines = [("inputs", f"{kind}, {spec.seq_len} positions"), ("answers", f"{answer}; labelled positions: {where}")]
    if spec.chance is not None:
        lines.append(("chance", f"{spec.chance:.4g}, the accuracy of the best guess that ignores the input"))
    if spec.facts:
        lines.append(("facts", ", ".join(spec.facts)))
    return lines


def example(task: Task, seed: int) -> list[str]:
    """Return a seeded training example as lines: inputs, and labels and facts below them."""
    arrays = task.of_split("train").sample(split_rng(seed, "train", 0), 1)
    rows = {"position": [str(i) for i in range(task.spec.seq_len)]}
    inputs, labels = arrays["inputs"][0], arrays["labels"][0]
    rows |= dict(_written("input", inputs, task.input_text))
    rows |= dict(_written("label", labels, task.label_text))
    for fact in task.spec.facts:
        rows[fact] = ["" if value < 0 else str(value) for value in arrays[fact][0]]
    return list(_in_lines(rows, task.spec.seq_len))


def _written(name: str, values: np.ndarray, text: Callable[[int], str]) -> Iterator[tuple[str, list[str]]]:
    if values.dtype.kind == "f":
        for channel in range(values.shape[1]):
            title = name if values.shape[1] == 1 else f"{name} {channel}"
            yield title, ["" if np.isnan(v) else f"{v:.2f}" for v in values[:, channel]]
    else:
        yield name, ["" if v == IGNORED else text(int(v)) for v in values]


def _in_lines(rows: dict[str, list[str]], seq_len: int) -> Iterator[str]:
    """Yield blocks of `PER_LINE` positions, without the middle of a long example."""
    shown = [*range(seq_len)]
    if seq_len > LONGEST:
        shown = [*range(LONGEST // 2), *range(seq_len - LONGEST // 2, seq_len)]
    title = max(map(len, rows))
    width = max(len(cells[i]) for cells in rows.values() for i in shown)
    for start in range(0, len(shown), PER_LINE):
        here = shown[start : start + PER_LINE]
        if start == LONGEST // 2 and seq_len > LONGEST:
            yield from (f"... {seq_len - LONGEST:,} positions ...", "")
        for name, cells in rows.items():
            if name == "position" or any(cells[i] for i in here):
                yield f"{name:<{title}}  {' '.join(f'{cells[i]:>{width}}' for i in here)}".rstrip()
        yield ""


def recipes(name: str) -> list[str]:
    """Return the YAML files with this task's recipe and published shapes, relative to the root of the repository."""
    if name not in list_tasks():
        return []
    files = [CONFIGS / f"{name}.yaml", *sorted((CONFIGS / "published").glob(f"{name}*.yaml"))]
    others = [other for other in list_tasks() if other.startswith(f"{name}_")]
    files = [file for file in files if not any(file.stem.startswith(other) for other in others)]
    return [str(file.relative_to(CONFIGS.parents[1])) for file in files if file.is_file()]


def markdown(name: str, seed: int = 0, task: Task | None = None) -> str:
    """Return the page of a task.

    Args:
        name: registered name.
        seed: seed of the worked example.
        task: task that the page describes; default: the task at its defaults, with the docstring's example.
    """
    cls = task_class(name)
    small, whole = (worked(cls), cls()) if task is None else (task, task)
    title = "At its defaults" if task is None else "With these options"
    lines = [f"# {name}", "", f"*{sentence(TASKS.summary(name))}*", "", definition(cls), ""]
    lines += ["## Example", "", f"`{small!r}`, seed {seed}:", "", "```", *example(small, seed)[:-1], "```", ""]
    lines += [f"## {title}", "", *(f"- {fact}: {text}" for fact, text in facts(whole.spec)), ""]
    rows = [(f"`{option}`", f"`{default}`", meaning) for option, default, meaning in options(cls)]
    lines += table(("option", "default", "meaning"), rows)
    source = "\n\n".join(text for text in (sentence(cls.source), cls.reported) if text)
    for title, text in (("Prediction", cls.prediction), ("Source", source)):
        if text:
            lines += ["", f"## {title}", "", text]
    lines.append("")
    if files := recipes(name):
        lines += ["## Recipes", "", *(f"- [{file}](../../{file}): {_first_comment(file)}" for file in files), ""]
    if task is None:
        lines += [f"Made by `python -m tasks show {name} --seed {seed} --markdown`.", ""]
    return "\n".join(lines)


def index() -> str:
    """Return the page that lists all tasks; its links lead to their sources."""
    rows = []
    for name in TASKS:
        cls = task_class(name)
        chance = cls().spec.chance
        level = "regression" if chance is None else f"{chance:.4g}"
        rows.append((f"[{name}](../../{cls.__module__.replace('.', '/')}.py)", TASKS.summary(name), level))
    lines = [
        "# Tasks",
        "",
        "`python -m tasks show NAME` shows the page of a task; `python -m tasks pages` writes all of",
    ]
    lines += ["them into this folder. [mixtures.md](mixtures.md) describes training on several shapes at once.", ""]
    lines += table(("task", "goal", "chance at its defaults"), rows)
    return "\n".join([*lines, "", "Made by `python -m tasks pages`.", ""])


def pages() -> dict[str, str]:
    """Return {file name: text} of all pages."""
    return {"README.md": index(), **{f"{name}.md": markdown(name) for name in TASKS}}


def wrapped(text: str, width: int) -> str:
    """Wrap each paragraph to a width."""
    return "\n\n".join(textwrap.fill(" ".join(paragraph.split()), width) for paragraph in text.split("\n\n"))


def _first_comment(file: str) -> str:
    lines = (CONFIGS.parents[1] / file).read_text(encoding="utf-8").splitlines()
    comment = [line.lstrip("# ") for line in lines if line.startswith("#")]
    return " ".join(comment) or "its recipe"
