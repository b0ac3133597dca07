"""`python -m tasks VERB`: show, measure and export tasks.

    list                 names, one per line
    show NAME            definition, options, a worked example, chance, prediction
    stats NAME           distribution of the labels, and speed of generation
    export NAME          write examples as Parquet or JSON lines, or upload them to the Hugging Face hub
    pages                write docs/tasks/

Options of a task are flags: python -m tasks show mqar --n_pairs 2 --seq_len 16 --vocab_size 32.
NAME is a registered task, package.module:Class, path/file.py:Class, path/file.py:function, or a path to data.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.registry import TASKS, list_tasks
from zoo.errors import UsageError, unknown
from zoo.report.numbers import size
from zoo.report.terminal import Parser, ends_unread, fail, listing, make_console, make_facts

if TYPE_CHECKING:
    from tasks.base import Arrays, Task

ROOT = Path(__file__).resolve().parent.parent
USUAL_N = 10_000
FORMATS = ("parquet", "jsonl", "hub")


@ends_unread
def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit status: 0 done, 2 invalid command line."""
    try:
        arguments, flags = _parser().parse_known_args(argv)
        if arguments.verb is None:
            _parser().print_help()
            return 0
        arguments.run(arguments, flags)
    except (ValueError, TypeError, ImportError, OSError) as error:  # TypeError: a class of your own, as in train.py
        return fail("tasks", error, 2)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m tasks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", metavar="verb", parser_class=Parser)

    def verb(name: str, run: Callable[..., None], about: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=about, description=about)
        added.set_defaults(run=run)
        return added

    verb("list", _list, "names, one per line")
    verb("pages", _pages, "write docs/tasks/")
    for name, run, about in (
        ("show", _show, "definition, options, a worked example, chance, prediction"),
        ("stats", _stats, "distribution of the labels, and speed of generation"),
        ("export", _export, "write examples as Parquet or JSON lines, or upload them to the Hugging Face hub"),
    ):
        added = verb(name, run, f"{about}; options of the task are flags too")
        added.add_argument("name", metavar="NAME", help=f"a registered task, {TASKS.forms}")
        added.add_argument("--seed", type=int, default=0, help="seed of the data; default 0")
        if name == "show":
            added.add_argument("--markdown", action="store_true", help="print it as a Markdown page")
        else:
            added.add_argument("--split", default="train", help="train, validation or test; default train")
            added.add_argument("--n", type=int, help=f"number of examples; default {USUAL_N:,}, or all if fewer")
        if name == "export":
            added.add_argument("--format", choices=FORMATS, default="parquet")
            added.add_argument("--out", help="file to write, or USER/NAME of the data set on the hub")
            added.add_argument("--private", action="store_true", help="make the data set on the hub private")
    return parser


def _task(arguments: argparse.Namespace, flags: Sequence[str]) -> Task:
    """Return the task of the command line, with the options of its flags."""
    cls = TASKS[arguments.name]
    parameters = inspect.signature(cls).parameters
    given: dict[str, Any] = {}
    for flag, value in _pairs(flags):
        if flag not in parameters:
            raise UsageError(unknown(f"{arguments.name} option", flag, parameters))
        given[flag] = value
    if not given:
        return cls()
    from jsonargparse import ArgumentError, ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(cls, fail_untyped=False)
    try:
        parsed = parser.parse_args([f"--{flag}={value}" for flag, value in given.items()])
    except ArgumentError as error:
        key = re.search(r'Parser key "([^"]+)"', str(error))
        if key is None or key[1] not in given:
            raise UsageError(" ".join(str(error).split())) from None
        hint = inspect.signature(cls, eval_str=True).parameters[key[1]].annotation
        expected = hint.__name__ if isinstance(hint, type) else str(hint).removeprefix("typing.")
        raise UsageError(f"--{key[1]}: expected {expected}, got {given[key[1]]}") from None
    return cls(**parsed.as_dict())


def _pairs(flags: Sequence[str]) -> list[tuple[str, str]]:
    pairs, rest = [], iter(flags)
    for flag in rest:
        if not flag.startswith("--"):
            raise UsageError(f"unexpected argument {flag!r}")
        name, equals, value = flag.removeprefix("--").partition("=")
        value = value if equals else next(rest, None)
        if value is None:
            raise UsageError(f"--{name} needs a value")
        pairs.append((name, value))
    return pairs


def _refuse(flags: Sequence[str]) -> None:
    if flags:
        raise UsageError(f"unexpected argument {flags[0]!r}")


def _list(arguments: argparse.Namespace, flags: Sequence[str]) -> None:
    _refuse(flags)
    print(*listing({name: TASKS.summary(name) for name in list_tasks()}, indent=""), sep="\n")


def _show(arguments: argparse.Namespace, flags: Sequence[str]) -> None:
    TASKS.check(arguments.name)
    from tasks import pages

    task = _task(arguments, flags) if flags else None
    if arguments.markdown:
        print(pages.markdown(arguments.name, arguments.seed, task), end="")
        return
    cls = TASKS[arguments.name]
    small = pages.worked(cls) if task is None else task
    print(f"{arguments.name}: {TASKS.summary(arguments.name)}\n")
    print(pages.wrapped(pages.definition(cls), 100) + "\n")
    print(f"{small!r}, seed {arguments.seed}:\n")
    print("\n".join(pages.example(small, arguments.seed)))
    whole = cls() if task is None else task
    print("at its defaults" if task is None else "with these options")
    for title, text in pages.facts(whole.spec):
        print(f"  {title:<12}{text}")
    print("\noptions")
    for option, default, meaning in pages.options(cls):
        print(f"  {option} = {default}" + (f": {meaning}" if meaning else ""))
    for title, text in (
        ("prediction", cls.prediction),
        ("source", f"{cls.source}\n\n{cls.reported}".strip()),
    ):
        if text:
            print(f"\n{title}\n{pages.wrapped(text, 100)}")
    for file in pages.recipes(arguments.name):
        print(f"recipe: {file}")


def _sized_task(arguments: argparse.Namespace, flags: Sequence[str]) -> Task:
    """Return the task of the command line, and replace a missing --n by its default."""
    from tasks.data.splits import at_most, split_rng

    task = _task(arguments, flags)
    split_rng(arguments.seed, arguments.split, 0)  # raises for an unknown split
    arguments.n = at_most(task, arguments.split, USUAL_N) if arguments.n is None else arguments.n
    # Inputs and labels take eight bytes each, all in memory.
    needed = 16 * arguments.n * task.spec.seq_len * (task.spec.d_input or 1)
    if needed > (there := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
        raise UsageError(f"--n {arguments.n} needs about {size(needed)} of memory, but this machine has {size(there)}")
    return task


def _examples(task: Task, arguments: argparse.Namespace) -> Arrays:
    from tasks.data.splits import sample_split

    return sample_split(task, arguments.split, arguments.n, arguments.seed)


def _stats(arguments: argparse.Namespace, flags: Sequence[str]) -> None:
    import numpy as np

    from tasks.yours.arrays import known

    task = _sized_task(arguments, flags)
    start = time.perf_counter()
    arrays = _examples(task, arguments)
    seconds = time.perf_counter() - start
    labels, spec = arrays["labels"], task.of_split(arguments.split).spec
    labelled = known(labels)
    answers, count = labels[labelled], labelled.sum(axis=1)
    facts = [
        ("examples", f"{len(labels):,} of {arguments.split}, {len(labels) / seconds:,.0f} per second"),
        ("different inputs", f"{len({row.tobytes() for row in arrays['inputs']}):,}"),
        ("labels per sequence", f"{count.min():,} to {count.max():,}, mean {count.mean():.4g}"),
    ]
    if spec.chance is None:
        facts.append(("labels", f"mean {answers.mean():.4g}, variance {answers.var():.4g}"))
    else:
        share = np.bincount(answers, minlength=spec.n_outputs) / len(answers)
        entropy = -(share[share > 0] * np.log2(share[share > 0])).sum()
        facts += [
            ("classes that occur", f"{np.count_nonzero(share):,} of {spec.n_outputs:,}"),
            ("entropy of the labels", f"{entropy:.4g} bits"),
            ("majority guesser", f"{share.max():.4f}   (chance {spec.chance:.4f})"),
        ]
        for label in np.argsort(-share, kind="stable")[: min(5, np.count_nonzero(share))]:
            facts.append((f"label {task.label_text(int(label))}", f"{100 * share[label]:.2f} %"))
    for name in spec.facts:
        values = arrays[name][labelled]
        values = values[values >= 0]  # training also labels positions without a fact
        found = f"{values.min():,} to {values.max():,}, mean {values.mean():.4g}" if len(values) else "unknown"
        facts.append((name, found))
    make_console().print(make_facts(facts))


def _export(arguments: argparse.Namespace, flags: Sequence[str]) -> None:
    from tasks.data import export

    if arguments.private and arguments.format != "hub":
        raise UsageError("--private is for a data set on the hub: it needs --format hub")
    task = _sized_task(arguments, flags)
    if arguments.format == "hub":
        if arguments.out is None:
            raise UsageError("--format hub needs the data set's name: --out USER/NAME")
        where = export.push_to_hub(task, _examples(task, arguments), arguments.split, arguments.out, arguments.private)
    else:
        default = f"{task.name}-{arguments.split}-{arguments.n}-seed{arguments.seed}.{arguments.format}"
        file = Path(arguments.out or default)
        if not file.parent.is_dir():
            raise UsageError(f"no such folder: {file.parent}")
        about = {"task": arguments.name, "options": task.options(), "split": arguments.split, "seed": arguments.seed}
        write = export.write_parquet if arguments.format == "parquet" else export.write_jsonl
        write(file, _examples(task, arguments), about)
        where = str(file)
    print(where)


def _pages(arguments: argparse.Namespace, flags: Sequence[str]) -> None:
    _refuse(flags)
    from tasks import pages
    from zoo.report.files import write_all

    print(*write_all(ROOT / "docs" / "tasks", pages.pages()), sep="\n")


if __name__ == "__main__":
    sys.exit(main())
