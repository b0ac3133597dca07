"""Modules with `coefficient` marks: check that W x + c is the output; measure rank, heads and state of W."""

from __future__ import annotations

import torch
from torch import Tensor

from zoo.check.comparison import compared
from zoo.check.finding import NotApplicableError, Observation, describe_error
from zoo.check.subject import Plain, Subject
from zoo.coefficient import recording
from zoo.theory.operator import Interaction, OperatorError, interaction
from zoo.theory.rank import effective_rank, heads_needed, operator_spectrum, spectrum_rank
from zoo.theory.state_size import effective_state_size

_LENGTH = 12
_WIDEST = 32  # d_model up to which the whole operator is read: some seconds

MARKING = (
    "the module has no zoo.coefficient.coefficient marks: put coefficient(t) around whatever depends on the input and "
    "is not what is mixed over time (queries and keys, gates, decays, 1/rms), in code that makes no random choice"
)


def operator(subject: Subject) -> Observation:
    """Check that the operator that is read off the module gives its output: W x + c = y."""
    read, x, y = _read(subject)
    lines = [
        "from zoo.theory import interaction",
        f"module, x = module.double(), draw(1, {_LENGTH}, {subject.d_model}, dtype=torch.float64)",
        "a = interaction(module, x).apply(x)",
        f"b = {subject.adapter.whole_line}",
    ]
    share = float(read.offset.norm() / y.norm()) if bool(y.any()) else 0.0
    seen = compared(f"W and c were read at {_LENGTH} positions and applied to them", read.apply(x), y, lines)
    return Observation(seen.passed, seen.did, f"{seen.found}; |c| / |y| = {share:.2g}", seen.expected, seen.lines)


def rank(subject: Subject) -> Observation:
    """Measure interaction rank, heads needed for an error, and the effective state size half way."""
    read, _, _ = _read(subject)
    spectrum = operator_spectrum(read.operator[0])
    half = _LENGTH // 2
    state = int(effective_state_size(read.operator[0], [half]).rank)
    heads = {f"{error:g}": heads_needed(spectrum, error) for error in (0.1, 0.01)}
    found = (
        f"rank {spectrum_rank(spectrum)}, {heads['0.1']} heads for an error of 10 %, {heads['0.01']} for 1 %, "
        f"effective rank {float(effective_rank(spectrum)):.3g}; effective state size {state} "
        f"at position {half}"
    )
    lines = [
        "from zoo.theory import heads_needed, span_spectrum, spectrum_rank",
        f"x = draw(1, {_LENGTH}, {subject.d_model}, dtype=torch.float64)",
        "spectrum = span_spectrum(module.double(), x)[0]",
        "print(spectrum_rank(spectrum), heads_needed(spectrum, 0.1), heads_needed(spectrum, 0.01))",
    ]
    measured = {"spectrum": spectrum.tolist(), "heads": heads, "state": state}
    return Observation(True, f"the operator was read at {_LENGTH} positions", found, "a measurement", lines, measured)


def _read(subject: Subject) -> tuple[Interaction, Tensor, Tensor]:
    """Return W and c in float64, with the input and the output that they belong to.

    Raises:
        NotApplicableError: the module has no marks and is not affine, or is too wide to be read whole.
    """
    if subject.d_model > _WIDEST:
        raise NotApplicableError(f"the whole operator is read up to d_model {_WIDEST}: check at a smaller width")
    module = subject.module(torch.float64)
    plain, x = Plain(module, subject.adapter, subject.d_model), subject.draw(1, _LENGTH, dtype=torch.float64)
    try:
        with torch.no_grad(), recording() as tape:
            plain(x)
    except Exception as error:  # a stranger's module may raise anything
        raise NotApplicableError(f"W is read in float64, which it refuses: {describe_error(error)}") from error
    try:
        read = interaction(plain, x)
    except (OperatorError, ValueError, RuntimeError):
        if tape.kept:
            raise
        raise NotApplicableError(MARKING) from None
    with torch.no_grad():
        return read, x, plain(x)
