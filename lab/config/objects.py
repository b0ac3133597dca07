"""Options of Lightning's Trainer that are objects: loggers, callbacks and the like, given by class and arguments.

    --trainer.logger CSVLogger --trainer.logger.save_dir elsewhere --trainer.callbacks+=LearningRateMonitor
    trainer: {callbacks: [{class_path: EarlyStopping, init_args: {monitor: val/loss}}]}

Which classes there are, and what their arguments may be, jsonargparse knows; it is imported only where an option is
given so.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from lab.config.layers import Layer, Text, UsageError, read_yaml


def names_object(key: str, value: Any) -> bool:
    """Return whether a value names a class: a capitalised name, a mapping with class_path, or a list with such items.

    Raises:
        UsageError: a flag whose list or mapping is not YAML.
    """
    if isinstance(value, Text) and value[:1] in ("[", "{"):
        value = read_yaml(value, f"--{key}")
    if isinstance(value, str):
        return re.fullmatch(r"(\w+\.)*[A-Z]\w*", value) is not None
    if isinstance(value, Mapping):
        return "class_path" in value
    return isinstance(value, list) and any(names_object(key, each) for each in value)


@dataclass(frozen=True)
class Objects:
    """Options of the Trainer that are objects, by name.

    Attributes:
        defaults: as the lower layers have them, as plain data.
        config: as all layers have them, as plain data.
        built: the objects of `config`.
    """

    defaults: dict[str, Any]
    config: dict[str, Any]
    built: dict[str, Any]


def read_objects(
    names: Iterable[str],
    shipped: Iterable[Layer],
    given: Iterable[Layer],
    flags: Iterable[tuple[str, Text | None]],
) -> Objects:
    """Return what the layers say of some options of the Trainer, that are objects.

    Args:
        names: of the options, such as logger.
        shipped: the lower layers.
        given: the upper ones, flags left out.
        flags: of the command line, in their order, for `--trainer.callbacks+` adds to what was said before.

    Raises:
        UsageError: no such class, an argument that it does not take.
    """
    names = set(names)
    if not names:
        return Objects({}, {}, {})
    import jsonargparse
    from lightning.pytorch import Trainer

    parser = jsonargparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False, exit_on_error=False)
    others = inspect.signature(Trainer).parameters.keys() - names
    parser.add_class_arguments(Trainer, "trainer", as_group=False, skip={*others}, instantiate=False)

    def layered(layers: Iterable[Layer], below: Any) -> Any:
        for layer in layers:
            values = {key: value for key, value in layer.group("trainer").items() if key in names}
            # Of a copy, since jsonargparse replaces mappings within it.
            below = _checked(f"{layer.source}: ", parser.parse_object, {"trainer": deepcopy(values)}, below)
        return below

    def plain(config: Any) -> dict[str, Any]:
        return read_yaml(parser.dump(config, skip_unset=False), "trainer")["trainer"]

    lower = layered(shipped, None)
    defaults = plain(lower)
    words = [
        f"--{name}" if value is None else f"--{name}={value}"
        for name, value in flags
        if name.startswith("trainer.") and name.rstrip("+").split(".")[1] in names
    ]
    upper = _checked("", parser.parse_args, words, layered(given, lower))
    return Objects(defaults, plain(upper), parser.instantiate(upper).trainer.as_dict())


def _checked(source: str, parse: Any, given: Any, below: Any) -> Any:
    try:
        return parse(given, namespace=below)
    except argparse.ArgumentError as error:
        raise UsageError(source + _shortened(str(error))) from None


def _shortened(message: str) -> str:
    """Return what jsonargparse says of a value, type by type, in a line about the class that was meant."""
    message = " ".join(message.split())
    key = re.search(r'Parser key "([^"]+)"', message)
    if key is None:
        return message
    if problem := re.search(r"Problem with given class_path '([\w.]+)': (.*?) (?:- |Given value)", message):
        name = re.sub(r"^lightning\.(.*\.)?", "", problem[1])
        return f"{key[1]}: {name}: {problem[2]}; see --{key[1]}.help {name}"
    if "NestedArg(" in message:
        return f"{key[1]}: name the class before its arguments: --{key[1]} CLASS; see --{key[1]}.help CLASS"
    value = re.search(r"Given value: (.*)$", message)
    return f"{key[1]}: no such class, got {value[1] if value else message}; see --{key[1]}.help CLASS"
