"""The verb `zoo check TARGET`."""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any

from zoo.errors import UsageError
from zoo.extras import require_extra
from zoo.report.files import check_place, write_atomically
from zoo.report.terminal import progress

SUMMARY = "check any sequence mixer, also one of your own, against the contract"

EXAMPLE = """\
from zoo.check import Adapter

class MyAdapter(Adapter):
    streams = True
    longest = None  # positions that one chunk may have; 1 for a step

    def whole(self, module, x):
        return module(x)  # (batch, seq, d_model) -> the same

    def chunk(self, module, x, state):  # state is None at the start
        return module(x, memory=state, return_memory=True)
"""
"""An adapter for a protocol that is not known."""

_EPILOG = """\
targets:
  attention               a registered mixer (zoo mixers)
  torch.nn:LSTM           a class, or a function that makes a module, in a package that can be imported
  path/to/file.py:MyMixer the same in a file

  d_model goes to the first positional parameter, unless an --option names it:
  zoo check torch.nn:LSTM --d_model 16 --option hidden_size=16 --option batch_first=true

known protocols: stream(x, state); (y, state) = module(x, state) as torch.nn.LSTM; step(x_t, state);
transformers' caches (past_key_values, cache_params); x-transformers' return_hiddens and cache. For any other, write
a class of ten lines and give it as --adapter path/to/adapter.py:MyAdapter:

{example}
exit status: 0 if no property fails, 1 if one fails, 2 if the command line is not valid.
"""

DTYPES = ("float32", "float64", "bfloat16", "float16")


def declare(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the verb to its parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = (
        "Check a sequence mixer, (batch, seq, d_model) to (batch, seq, d_out), property by property. Each failure\n"
        "shows what was done, what came out, what was expected, and the command that reproduces it."
    )
    parser.epilog = _EPILOG.format(example="".join(f"  {line}".rstrip() + "\n" for line in EXAMPLE.splitlines()))
    add = parser.add_argument
    add("target", metavar="TARGET", help="a registered mixer, package.module:Class or path/file.py:Class")
    add("--only", nargs="+", action="extend", default=[], metavar="PROPERTY", help="properties, also a,b; default all")
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="option of the class; repeatable")
    add("--d_model", type=int, default=16, metavar="N", help="width of the input; default 16")
    add("--seq_len", type=int, default=40, metavar="N", help="positions of most inputs, at least 8; default 40")
    add("--device", default="cpu", metavar="DEVICE", help="cpu or cuda; default cpu")
    add("--dtype", default="float32", metavar="DTYPE", help=f"{', '.join(DTYPES)}; default float32")
    add("--seed", type=int, default=0, metavar="N", help="seed of parameters and inputs; default 0")
    add("--looks_ahead", action="store_true", help="later positions may change earlier outputs, as in an encoder")
    add("--thorough", action="store_true", help="also 2048 positions, which takes minutes for slow modules")
    add("--adapter", metavar="PLACE:CLASS", help="an adapter of your own, see below")
    add("--json", type=Path, metavar="FILE", help="write the findings as JSON")
    add("--html", type=Path, metavar="FILE", help="write a page with the plots, which needs no network")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check, print the card, write the files; return 1 if a property fails, else 0."""
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
    """Return name and value of NAME=VALUE; the value is true, false, none, null, a Python literal, or text.

    Raises:
        UsageError: no NAME=VALUE.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(f"--option takes NAME=VALUE, got {text!r}")
    words = {"true": True, "false": False, "null": None, "none": None}
    if value.lower() in words:
        return name, words[value.lower()]
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
