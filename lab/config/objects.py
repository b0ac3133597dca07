"""Options of Lightning's Trainer that are objects: loggers, callbacks and the like, given by class and arguments.

    --trainer.logger CSVLogger --trainer.logger.save_dir elsewhere --trainer.callbacks+=LearningRateMonitor
    trainer: {callbacks: [{class_path: EarlyStopping, init_args: {monitor: val/loss}}]}

jsonargparse finds the classes and their arguments; it is imported only if such an option is given.
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
    """Return the dotted names of the options that get an object: a value is a class, or an argument of one."""
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
    """Return the Trainer's object options: the recipe's and the final ones as plain data, then the built objects.

    Args:
        choice: command line with its layers.
        names: dotted names of the options.

    Raises:
        UsageError: an unknown class or an invalid argument.
    """
    import jsonargparse
    from lightning.pytorch import Trainer

    parser = jsonargparse.ArgumentParser(usage=argparse.SUPPRESS, add_help=False, exit_on_error=False)
    others = [name for name in inspect.signature(Trainer).parameters if f"trainer.{name}" not in names]
    parser.add_class_arguments(Trainer, "trainer", as_group=False, skip={*others}, instantiate=False)

    def layered(layers: Iterable[Layer], below: Any) -> Any:
        for layer in layers:
            values = {key.removeprefix("trainer."): value for key, value in layer.values.items() if key in names}
            # jsonargparse replaces mappings within its input, so it gets a copy.
            below = _checked(f"{layer.source}: ", parser.parse_object, {"trainer": deepcopy(values)}, below)
        return below

    def plain(config: Any) -> dict[str, Any]:
        try:
            return read_yaml(parser.dump(config, skip_unset=False), "trainer")["trainer"]
        except (TypeError, ValueError) as error:  # an argument without YAML form, such as an enum's member
            given = re.search(r"class_path='([^']+)'", str(error))
            raise UsageError(f"{given[1] if given else 'a class'} has arguments that YAML cannot represent") from None

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
    """Reduce jsonargparse's message, which covers every type of the union, to one line about the intended class."""
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
