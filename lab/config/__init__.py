"""A run's configuration: layers of plain data, bound to the parameters of constructors.

`parse` (command) reads the layers of a command line (layers) and binds their values (bind) to the options of the mixer,
the task, the model and Lightning's Trainer (options). Callbacks and loggers become objects (objects).
"""

from lab.config.command import Command, parse
from lab.config.layers import GROUPS, REGISTRIES, choose, read_flags
from lab.config.options import Option, declared

__all__ = ["GROUPS", "PROGRAM", "REGISTRIES", "Command", "Option", "choose", "declared", "parse", "read_flags"]

PROGRAM = "train.py"
