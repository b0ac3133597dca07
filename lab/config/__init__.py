"""A run's configuration: layers of plain data bound to the signatures of constructors.

`choose` finds the names in a command line without importing torch; `Options` has what the constructors of that mixer,
that task, the model and Lightning's Trainer declare; `parse` does both and lays the values over each other.
"""

from lab.config.bind import Options
from lab.config.choice import GROUPS, REGISTRIES, choose, with_members
from lab.config.command import Command, parse
from lab.config.layers import UsageError, flag_text, read_flags, read_layer, read_yaml, write_yaml

__all__ = [
    "GROUPS",
    "PROGRAM",
    "REGISTRIES",
    "Command",
    "Options",
    "UsageError",
    "choose",
    "flag_text",
    "parse",
    "read_flags",
    "read_layer",
    "read_yaml",
    "with_members",
    "write_yaml",
]

PROGRAM = "train.py"
