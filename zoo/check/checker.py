"""`check`: every property of one module, in a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from zoo.check.adapters.adapter import Adapter
from zoo.check.catalogue import properties
from zoo.check.finding import Report
from zoo.check.subject import Factory, Subject


def check(
    module_or_factory: nn.Module | Factory,
    *,
    d_model: int,
    seq_len: int = 40,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    adapter: Adapter | None = None,
    only: Iterable[str] = (),
    source: Sequence[str] | None = None,
    options_of: Factory | None = None,
    looks_ahead: bool = False,
    name: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Check a module against the whole contract of a sequence mixer.

    Args:
        module_or_factory: a module (batch, seq, d_model) -> (batch, seq, d_out), which is copied and stays as it is; or
            a class or function that makes one, called with d_model (where it has a positional parameter) and `options`:
            then its options are checked too.
        d_model: width of the input.
        seq_len: positions, at least 8, where a property does not say otherwise.
        options: keywords for the class or function.
        device, dtype: of module and input.
        adapter: how to stream it; default: found by trying, see `zoo.check.Adapter`.
        only: names of properties; default all.
        source: Python lines that make `module`, for the findings.
        options_of: class or function whose signature has the options, where `module_or_factory` hides them.
        looks_ahead: whether later positions may change earlier outputs, as in an encoder.
        name: what the report calls it.
        progress: called with each property's name before it is checked.

    Returns:
        The report: findings as plain data.

    Raises:
        ValueError: sizes, options or a module that cannot be checked; an unknown property.
    """
    chosen = properties(*only)
    subject = Subject(
        module_or_factory,
        d_model=d_model,
        seq_len=seq_len,
        options=options,
        device=device,
        dtype=dtype,
        adapter=adapter,
        source=source,
        options_of=options_of,
        looks_ahead=looks_ahead,
    )
    findings = []
    for each in chosen:
        if progress is not None:
            progress(each.name)
        findings.append(each.find(subject))
    setting = {
        "d_model": d_model,
        "seq_len": seq_len,
        "options": {
            key: value if isinstance(value, (int, float, str, type(None))) else repr(value)
            for key, value in subject.options.items()
        },
        "device": device,
        "dtype": str(dtype).removeprefix("torch."),
        "protocol": subject.adapter.name,
        "torch": torch.__version__,
    }
    return Report(name or subject.name, setting, tuple(findings))
