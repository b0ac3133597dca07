"""The command `zoo check TARGET`."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any

from zoo.errors import UsageError
from zoo.extras import require_extra
from zoo.report.files import check_place, write_atomically
from zoo.report.terminal import progress

SUMMARY = "check any sequence mixer, such as your own, against the contract"

EXAMPLE = """\
from zoo.check import Adapter

class MyAdapter(Adapter):
    streams = True
    longest = None  # maximum length of a chunk; 1 for a module that decodes step by step

    def whole(self, module, x):
        return module(x)  # (batch, seq, d_model) -> (batch, seq, d_out)

    def chunk(self, module, x, state):  # state is None at the start
        return module(x, memory=state, return_memory=True)
"""
"""Example of an adapter for an unknown protocol."""

_EPILOG = """\
targets:
  attention               a registered mixer (zoo mixers)
  torch.nn:LSTM           a class, or a function that makes a module, from an importable package
  path/to/file.py:MyMixer a class or function from a file

  d_model is passed to width parameters such as dim, hidden_size or d_model, or else to the first positional one:
  zoo check torch.nn:LSTM --d_model 16 --option batch_first=true

known protocols: stream(x, state); (y, state) = module(x, state) as in torch.nn.LSTM; step(x_t, state);
caches of transformers (past_key_values, cache_params); return_hiddens and cache of x-transformers. For other
protocols, write an adapter of ten lines and give it as --adapter path/to/adapter.py:MyAdapter:

{example}
exit status: 0 if no property fails, 1 if one fails, 2 if the command line is invalid.
"""

DTYPES = ("float32", "float64", "bfloat16", "float16")


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the command to its parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Check a sequence mixer, (batch, seq, d_model) to (batch, seq, d_out), property by property. For each\n"
        "failure, print the test, its result, the expected result, and the command that reproduces it."
    )
    parser.epilog = _EPILOG.format(example="".join(f"  {line}".rstrip() + "\n" for line in EXAMPLE.splitlines()))
    add = parser.add_argument
    add("target", metavar="TARGET", help="a registered mixer, package.module:Class or path/file.py:Class")
    add(
        "--only",
        nargs="+",
        action="extend",
        default=[],
        metavar="PROPERTY",
        help="properties to check, separated by spaces or commas; default all",
    )
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="option of the class; repeatable")
    add("--d_model", type=int, default=16, metavar="N", help="width of the input; default 16")
    add("--seq_len", type=int, default=40, metavar="N", help="length of most inputs, at least 8; default 40")
    add("--device", default="cpu", metavar="DEVICE", help="cpu or cuda; default cpu")
    add("--dtype", default="float32", metavar="DTYPE", help=f"{', '.join(DTYPES)}; default float32")
    add("--seed", type=int, default=0, metavar="N", help="seed of parameters and inputs; default 0")
    add("--looks_ahead", action="store_true", help="the module is not causal, such as an encoder")
    add("--thorough", action="store_true", help="also check 2048 positions, which takes minutes for slow modules")
    add("--adapter", metavar="PLACE:CLASS", help="your own adapter, see below")
    add("--json", type=Path, metavar="FILE", help="write the findings as JSON")
    add("--html", type=Path, metavar="FILE", help="write a self-contained page with plots")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check the target, print the report, write the files; return 1 if a property fails, else 0."""
    options = dict(read_option(text) for text in arguments.option)
    if arguments.dtype not in DTYPES:
        raise UsageError(f"--dtype must be one of {', '.join(DTYPES)}, got {arguments.dtype!r}")
    for path in (arguments.json, arguments.html):
        if path is not None:
            check_place(path)
    require_extra("rich.table")
    if arguments.html is not None:
        require_extra("matplotlib.figure")
    import torch

    from zoo.check.checker import check, properties
    from zoo.check.report import as_html, print_card

    only = [each.name for each in properties(*(name for text in arguments.only for name in text.strip(",").split(",")))]
    shared = ("d_model", "seq_len", "device", "seed", "looks_ahead", "adapter", "thorough")
    setting = {name: getattr(arguments, name) for name in shared}
    with progress(len(only)) as advance:
        report = check(
            arguments.target,
            only=only,
            options=options,
            dtype=getattr(torch, arguments.dtype),
            progress=advance,
            **setting,
        )
    print_card(report)
    if arguments.json is not None:
        write_atomically(arguments.json, report.to_json())
    if arguments.html is not None:
        write_atomically(arguments.html, as_html(report))
    return 1 if report.failed else 0


def read_option(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE, where the value is true, false, none, null, a Python literal, or else text.

    Raises:
        UsageError: the text is not NAME=VALUE.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--option needs NAME=VALUE, got {text!r}")
    words = {"true": True, "false": False, "null": None, "none": None}
    if value.lower() in words:
        return name, words[value.lower()]
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
