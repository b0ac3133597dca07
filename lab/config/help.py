"""The output of `--help` and `--GROUP.help`."""

from __future__ import annotations

import itertools
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from lab.config.options import NO_DEFAULT, Option, type_names
from lab.plain import flag_text
from tasks.registry import TASKS
from zoo.lookup import OpenRegistry
from zoo.registry import MIXERS
from zoo.report.terminal import listing

HELP = """\
usage: train.py [--mixer NAME] [--task NAME] [--config FILE] [--FLAG VALUE ...]

Train one sequence mixer on one task, test the best checkpoint, print one table.

mixers:
{mixers}
  or your own, package.module:Class or path/file.py:Class; its options: --mixer.help path/file.py:Class

tasks:
{tasks}
  or your own, {own_tasks}

common flags:
  --d_model N  --n_layers N       size of the model          --lr X          peak learning rate
  --mixer.OPTION VALUE            see --mixer.help           --batch_size N  sequences per step
  --task.OPTION VALUE             see --task.help            --seed N        weights, data and order
  --task.n_train N (n_val, n_test)  number of examples       --run_dir DIR   where runs are kept
  --task.test_lengths 64,256,1024 test at further lengths    --task.fresh true  always new examples
  --task.mixture "{{seq_len: 32}}, {{seq_len: 64}}"  several shapes at once, tested separately
  --trainer.OPTION VALUE          Lightning's own names: --trainer.max_steps 200, --trainer.accelerator gpu,
                                  --trainer.precision bf16-mixed; see --trainer.help
  --compile true                  train through torch.compile
  --config FILE                   YAML with the same names; may be repeated, later files win, flags win over files
  --ckpt_path FILE                resume from a checkpoint, or test it
  --test_only                     test a finished run, or --ckpt_path, without training
  --stop_at 100 (or 0.25)         stop after 100 steps (or a quarter of all), validate, add the result to rungs.json;
                                  the same command without this flag resumes as if it had never stopped
  --no_test                       do not test; the same command without this flag then tests the run
  --overwrite                     replace the run if it exists
  --traceback                     print the full traceback of an error, for example in your own mixer

more help:
  --mixer.help [NAME]  options of a mixer           --trainer.help  options of Lightning's Trainer
  --task.help [NAME]   options of a task            --model.help    options of the model and its training
  --print_config       print the complete YAML of this run and stop; --config reads it back

To resume a stopped run, repeat the command, without --overwrite and --ckpt_path: with them it starts over.
Exit status: 0 done; 1 failed; 2 invalid command line; 75 stopped by SIGTERM or SIGUSR1, state saved: schedule the same
command again; 130 Ctrl-C.

Values come from the constructors' defaults, then configs/default.yaml, configs/mixer/NAME.yaml, configs/task/NAME.yaml
(the recipe for that mixer and that task), then --config files, then flags; later ones win.

examples:
  train.py --mixer hybrid
  train.py --mixer attention --mixer.n_heads 2 --task needle --task.distance 64
  train.py --mixer hybrid --mixer.pattern '[diagonal_ssm, attention]' --mixer.attention.n_heads 2
  train.py --config my.yaml --seed 1
"""


def overview() -> str:
    """Return the overview of mixers, tasks and common flags, without importing torch or jsonargparse."""
    return HELP.format(mixers=_table(MIXERS), tasks=_table(TASKS), own_tasks=TASKS.forms)


def _table(registry: OpenRegistry) -> str:
    return "\n".join(listing({name: registry.summary(name) for name in (*registry, *registry.own)}))


def describe(options: Iterable[Option], recipe: Mapping[str, Any]) -> str:
    """Return each option's flag, type and default, and its description in the constructor's docstring.

    Args:
        options: options in output order.
        recipe: values that configs/ sets, by dotted name.
    """
    width = min(shutil.get_terminal_size().columns, 120)
    lines: list[str] = []
    for section, of_section in itertools.groupby(options, lambda option: option.section):
        lines += ["", f"{section}:"]
        for option in of_section:
            facts = f"  --{option.key}  {_facts(option, recipe)}"
            lines += textwrap.wrap(facts, width, subsequent_indent=" " * 6, break_on_hyphens=False)
            named = f"set by --{option.key.split('.')[0]}"
            text = named if option.owner is None else _descriptions(option.owner).get(option.name, "")
            lines += textwrap.wrap(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join([*lines[1:], ""])


def _facts(option: Option, recipe: Mapping[str, Any]) -> str:
    facts = [" | ".join(type_names(option.hint))]
    if option.default is not NO_DEFAULT:
        facts.append(f"default {flag_text(option.default)}")
        if (value := recipe.get(option.key, option.default)) != option.default:
            facts.append(f"{flag_text(value)} in the recipe")
    if option.takes_objects:
        facts.append(f"arguments of a class: --{option.key}.help CLASS")
    return "; ".join(facts)


@cache
def _descriptions(owner: type) -> dict[str, str]:
    """Return the description of each parameter in a class's docstring or its constructor's, on one line."""
    from docstring_parser import parse

    found: dict[str, str] = {}
    for text in (owner.__doc__, owner.__init__.__doc__):
        for each in parse(text or "").params:
            described = " ".join((each.description or "").split())
            found |= dict.fromkeys(each.arg_name.split(", "), described)
    return found
