"""The identity of a run: the options that decide its result, and the folder name made from them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from lab.plain import digest, flatten
from zoo.targets import is_target
from zoo.targets import short as short_name

INCIDENTAL = {
    "figures_every",
    "looks_ahead",
    "run_dir",
    "task.cache",
    "task.cache_dir",
    "trainer.default_root_dir",
    "trainer.detect_anomaly",
    "trainer.enable_autolog_hparams",
    "trainer.enable_checkpointing",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.inference_mode",
    "trainer.limit_predict_batches",
    "trainer.log_every_n_steps",
    "trainer.logger",
    "trainer.model_registry",
    "trainer.num_sanity_val_steps",
    "trainer.profiler",
}
"""Options that do not change a result, with their sub-options (trainer.logger.init_args.save_dir). Runs that differ
only in these options are the same run."""

WATCHING = {
    "DeviceStatsMonitor",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "RichModelSummary",
    "RichProgressBar",
    "TQDMProgressBar",
    "ThroughputMonitor",
}
"""Lightning's callbacks that do not change a run's result; any other, such as EarlyStopping, does."""

LONGEST_NAME, CUT_NAME = 40, 28
"""Longest name of a task or mixer with its options, and length to which a longer one is cut: TensorBoard's column is
narrow."""
LAST_NAMED = {f"task.{name}" for name in ("n_train", "n_val", "n_test", "test_lengths", "test_segments")}
"""Options for the amount of data: last in a folder's name, so the first to be cut."""

FIRST_NAMED = "trainer.strategy"
"""Option that comes first in a folder's name, so the last to be cut: it reveals a run of several processes."""


def deciding_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that decide a run's result, with the seed, by dotted name."""
    trainer = dict(config.get("trainer") or {})
    if "callbacks" in trainer:
        given = trainer["callbacks"]
        each = given if isinstance(given, list) else [] if given is None else [given]
        trainer["callbacks"] = [one for one in each if _class_name(one) not in WATCHING] or None
        config = {**config, "trainer": trainer}
    incidental = tuple(f"{key}." for key in INCIDENTAL)
    return {key: value for key, value in flatten(config) if not f"{key}.".startswith(incidental)}


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None."""
    return {key: value for key, value in options.items() if value is not None}


def _class_name(callback: Any) -> str:
    path = callback.get("class_path", "") if isinstance(callback, Mapping) else callback
    return str(path).rpartition(".")[2]


def run_name(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return `<task>/<mixer>`, each with the options that are not default: mqar-n_pairs8/attention-n_heads2.

    Options of the mixer come before options of model and training. A long name is cut and ends with a digest.
    """
    values, usual, absent = deciding_options(config), deciding_options(defaults), object()
    named = {"seed", "mixer.name", "task.name"}
    differing = [key for key in sorted(values.keys() - named) if values[key] != usual.get(key, absent)]
    parts = []
    for group in ("task", "mixer"):
        keys = [key for key in differing if key.startswith("task.") == (group == "task")]
        keys.sort(key=lambda key: (key in LAST_NAMED, key != FIRST_NAMED, not key.startswith(f"{group}.")))
        short = {key: key.removeprefix(f"{group}.").removeprefix("trainer.") for key in keys}
        # The model and some mixers share an option such as d_conv: then the mixer's keeps its prefix.
        short = {key: key if name != key and name in values else name for key, name in short.items()}
        parts.append(_folder_name(config[group]["name"], {short[key]: values[key] for key in keys}))
    return "/".join(parts)


def _folder_name(name: str, differing: Mapping[str, Any]) -> str:
    shown = short_name(name)
    parts = [shown, *(f"{key}{_value_name(value)}" for key, value in differing.items())]
    whole = "-".join(parts)
    # Files of several folders may share a short name: a digest of their paths distinguishes them.
    is_unique = shown == name and not _has_target(differing)
    if is_unique and _safe(whole) == whole and len(whole) <= LONGEST_NAME:
        return whole
    named = differing if shown == name else [name, differing]
    ending = digest(named, 8)
    room = CUT_NAME - len(ending) - 1
    kept = _safe(parts[0])[:room]
    for part in map(_safe, parts[1:]):  # cut only between options, never within a number
        if len(kept) + 1 + len(part) > room:
            break
        kept = f"{kept}-{part}"
    return f"{kept}-{ending}"


def _has_target(value: Any) -> bool:
    if isinstance(value, list | Mapping):
        return any(map(_has_target, value.values() if isinstance(value, Mapping) else value))
    return is_target(value)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name)


def _value_name(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return repr(value)
    if isinstance(value, list):
        items = [(text, len(list(same))) for text, same in itertools.groupby(map(_value_name, value))]
        return "_" + "+".join(f"{n}x" * (n > 1) + text.removeprefix("_") for text, n in items)
    if isinstance(value, Mapping) and "class_path" in value:
        return f"_{value['class_path'].rpartition('.')[2]}({value.get('init_args')})"
    if isinstance(value, Mapping):
        return "_" + ".".join(f"{key}{_value_name(each)}" for key, each in value.items())
    if value is None or isinstance(value, bool):
        return f"_{value}".lower()
    return f"_{short_name(value) if is_target(value) else value}"
