"""Check that every option of a constructor changes outputs, parameters, states or the inputs that are refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor

from zoo.check.adapters.carried import tensors_of
from zoo.check.finding import NotApplicableError, Observation
from zoo.check.subject import Subject, undrawn

PLACES = ("device", "dtype", "layer_idx", "name")
"""Options that say where a module lives or what it is called, and change no number."""

_LENGTH = 24


def options_matter(subject: Subject) -> Observation:
    """Check that every option with a plain value changes something, by itself or together with another option."""
    if subject.factory is None:
        raise NotApplicableError("a module was given, not the class or function that takes options")
    others = {name: list(_others(value, hint)) for name, value, hint in _plain_options(subject)}
    others = {name: values for name, values in others.items() if values}
    if not others:
        raise NotApplicableError("the constructor has no options with plain defaults")
    base = _fingerprint(subject, {})
    ignored = [
        name
        for name, values in others.items()
        if not any(_differs(_fingerprint(subject, {name: value}), base) for value in values)
        and not _matters_beside_another(subject, name, others)
    ]
    name = ignored[0] if ignored else next(iter(others))
    value = others[name][0]
    lines = [
        "# the same again with one option changed, from the same seed",
        f"# {name}={value!r} in place of its default",
        *(_with_option(line, name, value) for line in subject.source),
    ]
    return Observation(
        not ignored,
        f"each of {', '.join(others)} was given other values",
        f"nothing changes with {', '.join(ignored)}" if ignored else "each changes something",
        "other outputs, parameters, states or refusals for every option",
        lines,
    )


def _plain_options(subject: Subject) -> Iterator[tuple[str, Any, Any]]:
    signature = subject.signature()
    for name, p in signature.parameters.items():
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL, p.POSITIONAL_ONLY) or p.default is p.empty or name in PLACES:
            continue
        yield name, subject.options.get(name, p.default), subject.hints().get(name)


def _others(now: Any, hint: Any) -> Iterator[Any]:
    """Yield values other than `now`, of the same kind; the first ones are the likeliest to be taken."""
    choices = [c for h in (hint, *get_args(hint)) if get_origin(h) is Literal for c in get_args(h)]
    if choices:
        yield from (choice for choice in choices if choice != now)
    elif isinstance(now, bool):
        yield not now
    elif isinstance(now, int):
        yield from (value for value in (2 * now, now + 1, 1, 2, 4) if value != now)
    elif isinstance(now, float):
        yield from (value for value in (2 * now, now / 2, 0.97 * now, 0.25, 0.5) if value != now)
    elif now is None and any(h in (int, float) for h in (hint, *get_args(hint))):
        yield from (1, 2, 3, 4, 0.5)


def _matters_beside_another(subject: Subject, name: str, others: Mapping[str, list[Any]]) -> bool:
    """Tell whether the option changes something once another one is changed: a rotary base needs rotation."""
    for beside, values in others.items():
        if beside == name:
            continue
        for value in values:
            base = _fingerprint(subject, {beside: value})
            if base is None:
                continue
            if any(_differs(_fingerprint(subject, {beside: value, name: own}), base) for own in others[name]):
                return True
    return False


def _fingerprint(subject: Subject, options: Mapping[str, Any]) -> list[Tensor] | str | None:
    """Return parameters, buffers, outputs in both modes and state; what a call refuses; None where it is not built."""
    try:
        module = subject.make(options).to(subject.device, subject.dtype)
    except Exception:  # noqa: BLE001 - a value that cannot be says nothing
        return None
    found = [t.detach() for t in itertools.chain(module.parameters(), module.buffers())]
    x = subject.draw(seq_len=_LENGTH)
    try:
        for mode in (False, True):
            with torch.no_grad(), undrawn():
                found.append(subject.whole(module.train(mode), x))
        if subject.adapter.streams:
            with torch.no_grad():
                _, state = subject.adapter.chunk(module.eval(), x[:, :1], None)
            found.extend(tensors_of(state))
    except Exception as error:  # noqa: BLE001 - what is refused is a change too
        return type(error).__name__
    return found


def _differs(a: list[Tensor] | str | None, b: list[Tensor] | str | None) -> bool:
    if a is None or b is None:
        return False
    if isinstance(a, str) or isinstance(b, str):
        return a != b
    alike = len(a) == len(b) and all(
        s.shape == t.shape and s.dtype == t.dtype and torch.equal(s, t) for s, t in zip(a, b, strict=True)
    )
    return not alike


def _with_option(line: str, name: str, value: Any) -> str:
    return line[:-1] + f", {name}={value!r})" if line.startswith("module = ") and line.endswith(")") else line
