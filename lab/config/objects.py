"""Options of Lightning's Trainer that are objects: loggers, callbacks and the like, given by class and arguments.

    --trainer.logger CSVLogger --trainer.logger.save_dir elsewhere --trainer.callbacks+=LearningRateMonitor
    trainer: {callbacks: [{class_path: EarlyStopping, init_args: {monitor: val/loss}}]}

jsonargparse knows the classes and their arguments; it is imported only if an option is given in this way.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from copy import deepcopy
from typing import Any

from lab.config.layers import Choice, Layer
from lab.config.options import Option, option_of
from lab.plain import Text, read_yaml
from zoo.errors import UsageError


def object_options(values: Iterable[tuple[str, Any]], options: Mapping[str, Option]) -> set[str]:
    """Return the options, by dotted name, for which one of these values names a class or sets an argument of one."""
    found = set()
    for key, value in values:
        name = option_of(key)
        if name in options and options[name].takes_objects and (key != name or _names_class(value)):
            found.add(name)
    return found


def _names_class(value: Any) -> bool:
    """Return whether a value is a capitalised name, a mapping with class_path, or a list with such items."""
    if isinstance(value, Text):
        return _names_class(value.readings[0])
    if isinstance(value, str):
        return re.fullmatch(r"(\w+\.)*[A-Z]\w*", value) is not None
    if isinstance(value, Mapping):
        return "class_path" in value
    return isinstance(value, list) and any(map(_names_class, value))


def read_objects(choice: Choice, names: Collection[str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return options of the Trainer after the lower layers and after all layers, as plain data, and the built objects.

    Args:
        choice: with the layers.
        names: of the options, dotted.

    Raises:
        UsageError: no such class, an argument that it does not take.
    """
    import jsonargparse
    from lightning.pytorch import Trainer

    parser = jsonargparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False, exit_on_error=False)
    others = [name for name in inspect.signature(Trainer).parameters if f"trainer.{name}" not in names]
    parser.add_class_arguments(Trainer, "trainer", as_group=False, skip={*others}, instantiate=False)

    def layered(layers: Iterable[Layer], below: Any) -> Any:
        for layer in layers:
            values = {key.removeprefix("trainer."): value for key, value in layer.values.items() if key in names}
            # Of a copy, since jsonargparse replaces mappings within it.
            below = _checked(f"{layer.source}: ", parser.parse_object, {"trainer": deepcopy(values)}, below)
        return below

    def plain(config: Any) -> dict[str, Any]:
        try:
            return read_yaml(parser.dump(config, skip_unset=False), "trainer")["trainer"]
        except (TypeError, ValueError) as error:  # an argument that YAML cannot spell, such as an enum's member
            given = re.search(r"class_path='([^']+)'", str(error))
            raise UsageError(f"{given[1] if given else 'a class'} has arguments that YAML cannot spell") from None

    lower = layered(choice.shipped, None)
    defaults = plain(lower)
    # The flags in their order, since --trainer.callbacks+ adds to the callbacks before it.
    words = [
        f"--{name}" if text is None else f"--{name}={text.typed}"
        for name, text in choice.flags
        if option_of(name) in names
    ]
    upper = _checked("", parser.parse_args, words, layered(choice.given[:-1], lower))
    return defaults, plain(upper), parser.instantiate(upper).trainer.as_dict()


def _checked(source: str, parse: Any, given: Any, below: Any) -> Any:
    try:
        return parse(given, namespace=below)
    except argparse.ArgumentError as error:
        raise UsageError(source + _shortened(str(error))) from None


def _shortened(message: str) -> str:
    """Return jsonargparse's message, which has a part for each type, as a line about the class that was meant."""
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
