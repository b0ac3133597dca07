"""Documentation pages of the mixers, and their index, rendered from registry entries and class docstrings."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Literal, NamedTuple, get_args, get_origin, get_type_hints

from zoo.docstrings import arguments, titled
from zoo.registry import MIXERS, Mixer
from zoo.report.markdown import sentence, table

SECTIONS = ("Coefficients", "State", "Interaction rank", "Source", "Not here")
"""Titled paragraphs of a mixer's docstring, in order; the optional last one lists unimplemented parts of the paper."""
REQUIRED = SECTIONS[:-1]
_ARXIV = re.compile(r"\b\d{4}\.\d{4,5}\b")


class Option(NamedTuple):
    """A constructor argument of a registered mixer; the registered name may override the default of the class."""

    name: str
    kind: str
    default: object


def options(name: str) -> list[Option]:
    """Return the constructor arguments of a registered mixer, in their order."""
    cls, set_here = MIXERS[name], MIXERS.entry(name).options
    known = get_type_hints(cls.__init__)

    def option(parameter: inspect.Parameter) -> Option:
        kind = known.get(parameter.name, parameter.annotation)  # user-defined mixers may lack annotations
        literal = get_origin(kind) is Literal
        shown = (
            " | ".join(map(repr, get_args(kind)))
            if literal
            else getattr(parameter.annotation, "__name__", str(parameter.annotation))
        )
        default = set_here.get(parameter.name, parameter.default)
        return Option(parameter.name, shown, default)

    return [option(parameter) for parameter in inspect.signature(cls).parameters.values()]


def markdown(name: str) -> str:
    """Return the page of a mixer.

    Raises:
        MissingExtraError: docstring_parser is not installed.
        ValueError: the class's docstring lacks a paragraph of `REQUIRED`, or has them in the wrong order.
    """
    entry, cls = MIXERS.entry(name), MIXERS[name]
    free, sections = titled(cls, SECTIONS)
    if [*sections] != [title for title in SECTIONS if title in sections] or not {*REQUIRED} <= sections.keys():
        wanted = ", ".join(f"{title!r}" for title in REQUIRED)
        raise ValueError(f"the docstring of {cls.__name__} must have paragraphs that begin with {wanted}, in order")
    blocks = [f"# {name}", f"*{sentence(MIXERS.summary(name))}*", _origin(cls, entry)]
    blocks += [_paragraph(paragraph) for paragraph in free]
    blocks += [_paragraph(f"**{title}.** {text}") for title, text in sections.items()]
    meanings = arguments(cls)
    blocks += ["## Options", "\n".join(_option(option, meanings.get(option.name, "")) for option in options(name))]
    blocks.append("Made by `python -m zoo pages` from the class's docstring.")
    return "\n\n".join(blocks) + "\n"


def index(folder: Path) -> str:
    """Return the index page, with a table per family.

    Args:
        folder: folder of the page; links to the mixers' source files are relative to it.
    """
    lines = ["# Mixers", ""]
    lines += ["`zoo mixers NAME` shows one of them; `zoo pages` writes a page of each into this folder.", ""]
    links = {name: Path(os.path.relpath(inspect.getfile(MIXERS[name]), folder)).as_posix() for name in MIXERS}
    for family in dict.fromkeys(MIXERS.entry(name).family for name in MIXERS):
        rows = []
        for name in MIXERS:
            entry = MIXERS.entry(name)
            if entry.family != family:
                continue
            source = entry.source
            if _ARXIV.fullmatch(source):
                links[source] = _address(source)
                source = f"[{source}]"
            rows.append((f"[{name}]", str(entry.year), source, MIXERS.summary(name)))
        lines += [f"## {family}", "", *table(("mixer", "year", "source", "summary"), rows), ""]
    lines += [f"[{label}]: {address}" for label, address in links.items()]
    return "\n".join([*lines, "", "Made by `python -m zoo pages`.", ""])


def pages(folder: Path) -> dict[str, str]:
    """Return all pages as {file name: text}; for `folder` see `index`."""
    return {"README.md": index(folder), **{f"{name}.md": markdown(name) for name in MIXERS}}


def _origin(cls: type, entry: Mixer) -> str:
    home = f"`{cls.__module__}.{cls.__name__}`"
    if entry.options:
        home += " with " + ", ".join(f"`{name}: {value}`" for name, value in entry.options.items())
    models = f" Models with it: {entry.models}." if entry.models else ""
    return _paragraph(f"Family: {entry.family}. Published: {entry.year}, {entry.source}. Class: {home}.{models}")


def _option(option: Option, meaning: str) -> str:
    default = "" if option.default is inspect.Parameter.empty else f", default {option.default!r}"
    return _paragraph(f"- `{option.name}` (`{option.kind}`{default}): {meaning}")


def _paragraph(text: str) -> str:
    """Join prose into one line and link arXiv numbers; return indented text (code) unchanged."""
    if text.startswith("    "):
        return text
    return _ARXIV.sub(lambda found: f"[{found[0]}]({_address(found[0])})", " ".join(text.split()))


def _address(arxiv: str) -> str:
    return f"https://arxiv.org/abs/{arxiv}"
