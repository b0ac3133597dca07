"""Read a run, finished or not, from its folder: configuration, metrics and curves."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lab.plain import flatten
from lab.run.files import CONFIG, ENVIRONMENT, EVENTS, FIRST_LOSS, FIRST_SCORE, HPARAMS, METRICS, RUNGS
from lab.run.identity import deciding_options
from lab.run.metrics import Metrics, State, state_of
from lab.run.score import SCORES
from zoo.report.files import parse_json, read_json
from zoo.report.numbers import Number
from zoo.targets import short

if TYPE_CHECKING:
    from zoo.backbone import Backbone

logger = logging.getLogger(__name__)

Curve: TypeAlias = list[tuple[int, float]]
"""(step, value), by step."""

LEAK = "looks_ahead"
"""Field of environment.json: how the model reads later positions; empty if it does not."""
MARK = " (looks ahead)"
MARKED = "The run is marked; --looks_ahead true silences this warning."
CHECKSUM, CHECKSUMS = "crc32", "files_crc32"
"""Fields of metrics.json: checksum of its other fields, and checksums of the other small files, by file name."""
_HEADER, _CHECKSUM = 12, 4  # bytes before and after a record of events: its length, and checksums


@dataclass(frozen=True)
class Run:
    """One run of train.py.

    Attributes:
        folder: folder of the run.
        config: content of config.yaml.
        metrics: content of metrics.json (`lab.run.metrics.Metrics`), with None for a number that is not finite. For an
            unfinished run, the last logged value of each curve.
        state: "tested"; "trained", with --no_test; "unfinished", either running or failed.
        trial: whether it is a trial of `sweep.py --tune` that was not picked.
        message: why a sweep's run failed.
        window: window of learning rates from which `sweep.py --tune` picked this run's (`lab.sweep.tuning.Window`).
        commit: commit of the code; empty outside a repository.
        leak: how the model reads later positions; empty if it does not.
        data: fingerprint of the task's data (`tasks.Task.fingerprint`); None if it was not recorded.
    """

    folder: Path
    config: dict[str, Any]
    metrics: Metrics
    state: State
    trial: bool = False
    message: str = ""
    window: Mapping[str, Any] | None = None
    commit: str = ""
    leak: str = ""
    data: Mapping[str, Any] | None = None

    @property
    def task(self) -> str:
        """The task's name in the registry; for your own task, file.function or the file's name."""
        return short(self.config["task"]["name"])

    @property
    def mixer(self) -> str:
        """The mixer's name in the registry; for your own mixer, file.Class; marked if it reads later positions."""
        return short(self.config["mixer"]["name"]) + (MARK if self.leak else "")

    @property
    def seed(self) -> int:
        """Seed of weights, data and order."""
        return self.config["seed"]

    @cached_property
    def options(self) -> dict[str, Any]:
        """Options of the configuration, by dotted name, without the seed and incidental options."""
        return {key: value for key, value in deciding_options(self.config).items() if key != "seed"}

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Logged scalars by the name of the metric, read on first access; empty if the events cannot be read."""
        return read_curves(self.folder)

    @property
    def model(self) -> Backbone:
        """The model with the weights that scored best in validation, without Lightning, in eval mode."""
        from zoo.loading.saved import load

        return load(self.folder)

    @property
    def step(self) -> int:
        """The optimizer step at which the metrics were measured: the best checkpoint's, or the last one logged."""
        if self.state == "unfinished":
            return max((curve[-1][0] for curve in self.curves.values()), default=0)
        return int(self.metrics.get("step") or 0)


def read_run(folder: Path, entry: Mapping[str, Any]) -> Run:
    """Read a run; `entry` is its entry in the index of its sweep, empty outside a sweep.

    Raises:
        ValueError: a missing configuration, or files that train.py did not write; the message omits the folder.
    """
    config, metrics = read_config(folder), read_metrics(folder)
    environment = read_fields(folder / ENVIRONMENT)
    if not environment and (folder / ENVIRONMENT).exists():
        raise ValueError(f"{ENVIRONMENT} is damaged, so it is unknown whether the model looks ahead")
    commit, leak = (str(environment.get(key) or "") for key in ("git", LEAK))
    trial, data = entry.get("kind") == "trial", environment.get("data")
    if metrics is not None:
        state, window = state_of(metrics), entry.get("window")
        return Run(folder, config, metrics, state, trial, window=window, commit=commit, leak=leak, data=data)
    message = str(entry.get("message") or "") if entry.get("state") == "failed" else ""
    run = Run(folder, config, {}, "unfinished", trial, message, commit=commit, leak=leak, data=data)
    planned = {name: entry[name] for name in ("params", "state_bytes") if isinstance(entry.get(name), int)}
    run.metrics.update(planned)
    for split in ("train", "val"):
        logged = {name: curve[-1][1] for name in SCORES if (curve := run.curves.get(f"{split}/{name}"))}
        run.metrics.update({split: logged} if logged else {})
    return run


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.yaml of a run.

    Raises:
        ValueError: a missing file, or one that train.py did not write; the message omits the folder.
    """
    import yaml

    try:
        # The parser of libyaml, if PyYAML was built with it, is ten times faster.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        config = yaml.load((folder / CONFIG).read_text(encoding="utf-8"), loader)
    except FileNotFoundError:
        raise ValueError(f"no {CONFIG}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{CONFIG} cannot be read: {one_line(error)}") from None
    values = dict(flatten(config)) if isinstance(config, dict) else {}
    for name, kind in (("mixer.name", str), ("task.name", str), ("seed", int)):
        if not isinstance(values.get(name), kind):
            raise ValueError(f"{CONFIG} was not written by train.py: it has no {name}")
    return config


def read_curves(folder: Path) -> dict[str, Curve]:
    """Return the scalars of a folder's TensorBoard events by name.

    Steps that a resumed run repeats appear once; both files hold the same numbers.

    If the events cannot be read, warn and return no curves. If a file of a finished run is cut short, warn and return
    the points before the cut.
    """
    curves: dict[str, dict[int, float]] = {}
    try:
        for file in sorted(folder.glob(f"{EVENTS}*")):
            if file.name == HPARAMS:
                continue
            for event in _events(file.read_bytes(), folder if (folder / METRICS).is_file() else None):
                for value in event.summary.value:
                    if value.HasField("simple_value"):
                        curves.setdefault(value.tag, {})[event.step] = value.simple_value
    except Exception as error:  # noqa: BLE001 (foreign bytes raise errors of many types)
        logger.warning("no curves of %s: its events cannot be read: %s", folder, one_line(error))
        return {}
    names = {tag: tag.replace(FIRST_SCORE, "val/").replace(FIRST_LOSS, "train/loss") for tag in curves}
    return {names[tag]: sorted(curve.items()) for tag, curve in curves.items()}


def _events(content: bytes, finished: Path | None) -> Iterator[Any]:
    """Yield the events of a file, up to a record that is still being written.

    TensorBoard's own reader computes each record's checksum in Python, which takes a second for a few pictures.

    Args:
        content: bytes of the file.
        finished: folder of the run if it is finished; an incomplete record then gives a warning.

    Raises:
        ValueError: not a file of events.
        DecodeError: a record that is not an event.
    """
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

    at, end = 0, 0
    while at + _HEADER <= len(content):
        end = at + _HEADER + int.from_bytes(content[at : at + 8], "little")
        if end + _CHECKSUM > len(content):
            break
        yield Event.FromString(content[at + _HEADER : end])
        at = end + _CHECKSUM
    if finished and 0 < at < len(content):
        logger.warning("%s: a file of events is cut short, its later points are lost", finished)
    if not at and end:
        raise ValueError("not an event file of TensorBoard")


def read_metrics(folder: Path) -> Metrics | None:
    """Read metrics.json of a run's folder; None if the run is not finished.

    Raises:
        ValueError: metrics.json, or a file whose checksum it records, is damaged, or train.py did not write it; the
            message begins with the file's name.
    """
    try:
        text = (folder / METRICS).read_text(encoding="utf-8")
        found = parse_json(text)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{METRICS} cannot be read: {one_line(error)}") from None
    if not isinstance(found, dict) or "params" not in found:
        raise ValueError(f"{METRICS} was not written by train.py: it has no params")
    kept, others = found.pop(CHECKSUM, None), text.rpartition(f',\n "{CHECKSUM}"')[0] + "\n}\n"
    if kept not in (None, checksum(others.encode())):
        raise ValueError(f"{METRICS} is damaged: its content does not match its checksum")
    for name, recorded in found.pop(CHECKSUMS, {}).items():
        if recorded != checksum_of(folder / name):
            raise ValueError(f"{name} is damaged, or was changed after the run: it does not match its checksum")
    return _numbers(found)


def checksum(content: bytes) -> str:
    """Return the CRC-32 of a file's content; for metrics.json, of its content without the checksum, its last field."""
    return f"{zlib.crc32(content):08x}"


def checksum_of(file: Path) -> str | None:
    """Return the CRC-32 of a file; None if it cannot be read."""
    try:
        return checksum(file.read_bytes())
    except OSError:
        return None


def read_rungs(folder: Path) -> list[Metrics]:
    """Read the metrics that `RunFolder.write_rung` wrote: an entry per value of --stop_at, in its field "stop_at"."""
    try:
        found = read_json(folder / RUNGS)
    except (OSError, ValueError):
        return []
    return found if isinstance(found, list) else []


def rung_at(folder: Path, stop_at: float) -> Metrics | None:
    """Return the entry of one value of --stop_at: 1 is the first step, 1.0 the end."""
    return next((each for each in read_rungs(folder) if same_stop(each["stop_at"], stop_at)), None)


def same_stop(a: float, b: float) -> bool:
    """Return whether two values of --stop_at are the same step, or the same share of all steps."""
    return a == b and isinstance(a, int) == isinstance(b, int)


def read_fields(file: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file; empty if there is no such file, or it cannot be read."""
    try:
        found = read_json(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def one_line(error: Exception) -> str:
    """Return an error on one line, without the name of the file."""
    return " ".join(str(getattr(error, "strerror", None) or error).split())


def _numbers(value: Any) -> Any:
    """Replace each value that is not a number, flag, mapping or list by None."""
    if isinstance(value, Mapping):
        return {name: _numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return value if isinstance(value, Number) else None
