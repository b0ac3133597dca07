"""A run's configuration: layers of plain data bound to the parameters of constructors.

The road of a value: `parse` (command), layers, bind to options, a configuration; objects are Lightning's callbacks and
loggers.
"""

from lab.config.command import Command, parse
from lab.config.layers import (
    GROUPS,
    REGISTRIES,
    UsageError,
    choose,
    flag_text,
    read_flags,
    read_layer,
    read_yaml,
    write_yaml,
)
from lab.config.options import declared

__all__ = [
    "GROUPS",
    "PROGRAM",
    "REGISTRIES",
    "Command",
    "UsageError",
    "choose",
    "declared",
    "flag_text",
    "parse",
    "read_flags",
    "read_layer",
    "read_yaml",
    "write_yaml",
]

PROGRAM = "train.py"
