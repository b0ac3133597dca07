"""The options and results of runs in TensorBoard's HParams tab: the options that vary between the runs of a folder.

A run does not know at its start which others will be there. So the options for the tab are in a file of their own
(`lab.run.files.HPARAMS`), and each run that begins rewrites the files of all runs in the folder. However the runs were
started, every column of the tab then varies, except the columns that name a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from lab.plain import read_mapping
from lab.run.files import CONFIG, HPARAMS
from lab.run.folder import RunFolder
from lab.run.identity import deciding_options
from lab.run.metrics import is_tested, number_at
from lab.run.score import score_of
from zoo.errors import UsageError
from zoo.targets import short

NAMING = {"mixer": "mixer.name", "task": "task.name", "seed": "seed"}
"""Columns that name a run and are always shown: heading in the tab, and dotted name of the option."""
TESTED = {"task.n_val", "task.n_test", "task.test_lengths", "task.test_segments"}
"""Options of the data for validation and test: no hyper-parameters."""
LOCK, PATIENCE = ".hparams.lock", 60.0
"""A lock in the run_dir, and the seconds for which a run that begins waits for others that begin."""
HEADS = "mixer.n_heads"
"""The option of mixers that is compared across mixers; the others are compared within one mixer."""


def compare_options(folder: RunFolder) -> None:
    """Write the options by which TensorBoard compares a run that begins with the other runs of its run_dir.

    TensorBoard reads a run's options once: if it is open already, it shows new columns for earlier runs only after a
    restart. A run that cannot be read or written, such as in a read-only folder, stays as it is.
    """
    from filelock import FileLock

    from zoo.training import write_hparams

    # One process after the other, so that the last to write has read all configurations.
    lock = folder.run_dir / LOCK
    with suppress(OSError), FileLock(lock, timeout=PATIENCE):
        configs: dict[RunFolder, dict[str, Any]] = {}
        for each in (folder, *folder.siblings()):
            with suppress(UsageError, KeyError):
                config = deciding_options(read_mapping(each.path / CONFIG))
                configs[each] = {key: config[key] for key in NAMING.values()} | config
        columns = differing(list(configs.values()))
        for each, config in configs.items():
            named = {name: config[key] for name, key in NAMING.items()}
            options = {name: short(value) if isinstance(value, str) else value for name, value in named.items()}
            options |= {_shown(key): config[key] for key in columns if key in config}
            with suppress(OSError):
                write_hparams(each.path / HPARAMS, options, each.trial, (each.path / CONFIG).stat().st_mtime)
        lock.unlink()  # while it is held, as in `lab.run.lock`


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dotted names, sorted, of the options that have at least two values among runs of one mixer or task.

    The number of heads is compared across mixers; options of the model and of training across all runs.
    """
    values: dict[tuple[str, str], list[Any]] = {}
    for config in configs:
        for key, value in config.items():
            group = key.split(".")[0]
            kind = config[f"{group}.name"] if group in ("mixer", "task") and key != HEADS else ""
            seen = values.setdefault((key, kind), [])
            if value not in seen:
                seen.append(value)
    found = {key for (key, _), seen in values.items() if len(seen) > 1}
    return sorted(found - {*NAMING.values()} - TESTED)


def compared_results(metrics: Mapping[str, Any]) -> dict[str, int | float | None]:
    """Return the results of a run for the tab: the task's score, once tested, and sizes."""
    score = score_of([metrics], "test")
    tested = {score: number_at(metrics, "test", score)} if is_tested(metrics) else {}
    return tested | {"parameters": metrics["params"], "state_bytes": metrics["state_bytes"]}


def _shown(key: str) -> str:
    """Return the heading of an option, by the flag of its help: --mixer.help, --task.help, --model.help."""
    return key if key.split(".")[0] in ("mixer", "task", "trainer") else f"model.{key}"
