"""What a person reads of a mixer: its equation, what is a coefficient, its state and rank, its options, its source.

All of it is made from the registry's entry and the class's docstring.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Literal, NamedTuple, get_args, get_origin, get_type_hints

from zoo.docstrings import arguments, titled
from zoo.registry import MIXERS, Mixer
from zoo.report.markdown import sentence, table

SECTIONS = ("Coefficients", "State", "Interaction rank", "Source", "Not here")
"""Titled paragraphs of a mixer's docstring, in their order; the last is for what the authors have and we have not."""
REQUIRED = SECTIONS[:-1]
_WIDTH = 120
_ARXIV = re.compile(r"\b\d{4}\.\d{4,5}\b")


class Option(NamedTuple):
    """An argument of a mixer's constructor: its default is that of the registered name, its meaning the docstring's."""

    name: str
    kind: str
    default: object
    meaning: str


def options(name: str) -> list[Option]:
    """Return what the constructor of a registered mixer takes, in its order."""
    cls, set_here = MIXERS[name], MIXERS.entry(name).options
    known, meanings = get_type_hints(cls.__init__), arguments(cls)

    def option(parameter: inspect.Parameter) -> Option:
        kind = known.get(parameter.name, parameter.annotation)  # of a mixer of your own it may have none
        literal = get_origin(kind) is Literal
        shown = (
            " | ".join(map(repr, get_args(kind)))
            if literal
            else getattr(parameter.annotation, "__name__", str(parameter.annotation))
        )
        default = set_here.get(parameter.name, parameter.default)
        return Option(parameter.name, shown, default, meanings.get(parameter.name, ""))

    return [option(parameter) for parameter in inspect.signature(cls).parameters.values()]


def markdown(name: str) -> str:
    """Return the page of a mixer.

    Raises:
        ValueError: its class's docstring has not the paragraphs that `REQUIRED` names, in that order.
    """
    entry, cls = MIXERS.entry(name), MIXERS[name]
    free, sections = titled(cls, SECTIONS)
    if [*sections] != [title for title in SECTIONS if title in sections] or not {*REQUIRED} <= sections.keys():
        wanted = ", ".join(f"{title!r}" for title in REQUIRED)
        raise ValueError(f"the docstring of {cls.__name__} must have paragraphs that begin with {wanted}, in order")
    blocks = [f"# {name}", f"*{sentence(MIXERS.summary(name))}*", _origin(cls, entry)]
    blocks += [_paragraph(paragraph) for paragraph in free]
    blocks += [_paragraph(f"**{title}.** {text}") for title, text in sections.items()]
    blocks += ["## Options", "\n".join(_option(option) for option in options(name))]
    blocks.append("Made by `python -m zoo pages` from the class's docstring.")
    return "\n\n".join(blocks) + "\n"


def index() -> str:
    """Return the page that lists all mixers, a table for each family."""
    lines, links = ["# Mixers", ""], {name: f"{name}.md" for name in MIXERS}
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
        lines += [f"## {family}", "", *table(("mixer", "year", "source", "what it is"), rows), ""]
    lines += [f"[{label}]: {address}" for label, address in links.items()]
    return "\n".join([*lines, "", "Made by `python -m zoo pages`.", ""])


def pages() -> dict[str, str]:
    """{file name: text} of all pages."""
    return {"README.md": index(), **{f"{name}.md": markdown(name) for name in MIXERS}}


def _origin(cls: type, entry: Mixer) -> str:
    home = f"`{cls.__module__}.{cls.__name__}`"
    if entry.options:
        home += " with " + ", ".join(f"`{name}: {value}`" for name, value in entry.options.items())
    return _paragraph(f"Family: {entry.family}. Published: {entry.year}, {entry.source}. Class: {home}.")


def _option(option: Option) -> str:
    default = "" if option.default is inspect.Parameter.empty else f", {option.default!r} unless given"
    text = f"`{option.name}` (`{option.kind}`{default}): {option.meaning}"
    return _filled(text, first="- ", rest="  ")


def _paragraph(text: str) -> str:
    """Break prose into lines; what is indented is code, and stays as it is."""
    return text if text.startswith("    ") else _filled(text)


def _filled(text: str, first: str = "", rest: str = "") -> str:
    linked = _ARXIV.sub(lambda found: f"[{found[0]}]({_address(found[0])})", " ".join(text.split()))
    # A line that began with a sign would be a list or a quotation.
    glued = re.sub(r" (?=(?:[*+-]|>=?) )", "\0", linked)
    lines = textwrap.fill(
        glued, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    return lines.replace("\0", " ")


def _address(arxiv: str) -> str:
    return f"https://arxiv.org/abs/{arxiv}"
