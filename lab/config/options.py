"""Options are the parameters of constructors: their names, types and defaults, and which values a type takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from lab.config.layers import Text, UsageError, read_yaml

NO_DEFAULT = inspect.Parameter.empty
PLAIN = {int, float, str, bool, type(None), Path, Any}


@dataclass(frozen=True)
class Option:
    """One option of a run.

    Attributes:
        key: dotted name, as in flags.
        hint: the annotation of the constructor's parameter.
        default: of the parameter, or what a registry's entry sets; `NO_DEFAULT` where the value belongs to others, as
            a bare option of a hybrid's members does.
        owner: the class whose docstring describes it.
        section: the heading under which help shows it.
    """

    key: str
    hint: Any
    default: Any
    owner: type | None
    section: str

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self.key.rpartition(".")[2]

    @property
    def takes_objects(self) -> bool:
        """Whether the type has values that YAML cannot spell: instances of classes."""
        return not all(_is_plain(each) or each is timedelta for each in alternatives(self.hint))


def options_of(owner: type, prefix: str, section: str, skip: Iterable[str] = ()) -> list[Option]:
    """Return the parameters of a constructor as options `<prefix><parameter>`."""
    parameters = inspect.signature(owner, eval_str=True).parameters
    return [
        Option(f"{prefix}{name}", Any if each.annotation is NO_DEFAULT else each.annotation, default, owner, section)
        for name, each in parameters.items()
        for default in (list(each.default) if isinstance(each.default, tuple) else each.default,)
        if name not in set(skip) and each.kind is not each.VAR_KEYWORD
    ]


def fit(value: Any, hint: Any) -> Any:
    """Return the value as a type takes it; text is YAML, or a word where the type takes one, or items without brackets.

    >>> fit(Text("64,256"), list[int]), fit(Text("1e-3"), float), fit(Text("5"), str), fit(5, float)
    ([64, 256], 0.001, '5', 5.0)

    Raises:
        ValueError: the type does not take the value; says what it takes.
    """
    for reading in _readings(value, hint) if isinstance(value, Text) else [value]:
        if takes(hint, reading):
            return reading
        if type(reading) is int and takes(hint, float(reading)):
            return float(reading)
    raise ValueError(f"expected {expected(hint)}; got {value}")


def _readings(text: Text, hint: Any) -> list[Any]:
    readings: list[Any] = []
    lists = any(get_origin(each) is list for each in alternatives(hint))
    for spelling in (text, f"[{text}]") if lists else (text,):
        try:
            readings.append(read_yaml(spelling, ""))
        except UsageError:
            continue
    return [*readings[:1], str(text), *readings[1:]]


def takes(hint: Any, value: Any) -> bool:
    """Return whether plain data is of a type: what beartype says, but that True is no integer and every item counts."""
    from beartype.door import is_bearable

    if value == [] and any(get_origin(each) is list for each in alternatives(hint)):
        return True
    for each in filter(_is_plain, alternatives(hint)):
        if isinstance(value, bool) and each is not bool and each is not Any and get_origin(each) is not Literal:
            continue
        if isinstance(value, list) and get_origin(each) in (list, Sequence):
            if all(takes(get_args(each)[0], item) for item in value):
                return True
        elif is_bearable(value, each):
            return True
    return False


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union; of another type that itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _is_plain(hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return True
    if get_origin(hint) in (list, dict, Sequence, Mapping):
        return all(_is_plain(inner) for each in get_args(hint) for inner in alternatives(each))
    return hint in PLAIN


def expected(hint: Any) -> str:
    """Return a type in words: int; one of 'none', 'rope'; one of int, null."""
    names = type_names(hint)
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def type_names(hint: Any) -> list[str]:
    """Return the types of a union, and the words of a Literal, as a person writes them."""
    return [name for each in alternatives(hint) for name in _names(each)]


def _names(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [repr(each) for each in get_args(hint)]
    if hint is type(None):
        return ["null"]
    name = getattr(get_origin(hint) or hint, "__name__", str(hint))
    inner = [" | ".join(type_names(one)) for one in get_args(hint)]
    return [f"{name}[{', '.join(inner)}]" if inner else name]
