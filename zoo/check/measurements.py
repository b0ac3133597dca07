"""The property `operator` (needs `coefficient` marks), and measurements: rank, costs, state size, gradient decay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from zoo.adapters.states import run, tensors_of
from zoo.check.outcome import NotApplicableError, Outcome, Outcomes, describe_error, equal
from zoo.check.property import checks
from zoo.check.subject import Subject
from zoo.coefficient import recording
from zoo.theory.costs import complexity
from zoo.theory.gradients import FEWEST_SEEDS, Gradient, decay_rate, gradient_profile
from zoo.theory.operator import Interaction, OperatorError, interaction
from zoo.theory.rank import effective_rank, heads_needed, operator_spectrum, spectrum_rank
from zoo.theory.state_size import effective_state_size

_LENGTH = 12
_WIDEST = 32  # maximum d_model for reading the whole operator, which takes some seconds
_COST_LENGTHS = (128, 256, 512)
_PROFILE_LENGTH = 128
_STATE_LENGTHS = (16, 64)

MARKING = (
    "the module has no zoo.coefficient.coefficient marks: wrap everything that depends on the input, except the values "
    "that are mixed, in coefficient(t): queries and keys, gates, decays, 1/rms; the code must be deterministic"
)


@checks("operator")
def operator(subject: Subject) -> Outcomes:
    """Check that the operator read off the module reproduces its output: W x + c = y."""
    read, x, y = _read(subject)
    share = float(read.offset.norm() / y.norm()) if bool(y.any()) else 0.0
    seen = equal(f"W and c were read for an input of {_LENGTH} positions and applied to it", read.apply(x), y)
    yield replace(seen, found=f"{seen.found}; |c| / |y| = {share:.2g}")


@checks("operator", measures=True)
def rank(subject: Subject) -> Outcomes:
    """Measure interaction rank, heads needed for a given error, and effective state size in the middle."""
    read, _, _ = _read(subject)
    spectrum, half = operator_spectrum(read.operator[0]), _LENGTH // 2
    state = int(effective_state_size(read.operator[0], [half]).rank)
    heads = {f"{error:g}": heads_needed(spectrum, error) for error in (0.1, 0.01)}
    found = (
        f"rank {spectrum_rank(spectrum)}, {heads['0.1']} heads for an error of 10 %, {heads['0.01']} for 1 %, "
        f"effective rank {float(effective_rank(spectrum)):.3g}; effective state size {state} "
        f"at position {half}"
    )
    measured = {"spectrum": spectrum.tolist(), "heads": heads, "state": state}
    yield _measured(f"the operator was read at {_LENGTH} positions", found, measured)


def _read(subject: Subject) -> tuple[Interaction, Tensor, Tensor]:
    """Return W and c in float64, with their input and output.

    Raises:
        NotApplicableError: the module has no marks and is not affine, or is too wide.
    """
    if subject.d_model > _WIDEST:
        raise NotApplicableError(f"the operator is read only up to d_model {_WIDEST}: check a smaller width")
    plain, x = subject.plain(torch.float64), subject.draw(1, _LENGTH, dtype=torch.float64)
    try:
        with torch.no_grad(), recording() as tape:
            plain(x)
    except Exception as error:  # a foreign module may raise anything
        raise NotApplicableError(f"W is read in float64, which the module refuses: {describe_error(error)}") from error
    try:
        read = interaction(plain, x)
    except (OperatorError, ValueError, RuntimeError):
        if tape.kept:
            raise
        raise NotApplicableError(MARKING) from None
    with torch.no_grad():
        return read, x, plain(x)


@checks("measurements", measures=True, slow=True)
def costs(subject: Subject) -> Outcomes:
    """Measure the exponents with which time and memory of a forward and backward pass grow with length."""
    try:
        cost = complexity(subject.plain(), _COST_LENGTHS, repeats=2)
    except (ValueError, RuntimeError, IndexError) as error:
        raise NotApplicableError(
            f"no training pass at {max(_COST_LENGTHS)} positions: {describe_error(error)}"
        ) from None
    found = (
        f"time ~ length^{cost.time_exponent:.2f}, memory ~ length^{cost.memory_exponent:.2f}; "
        f"{cost.bytes[-1] / 2**20:.3g} MiB kept for the backward pass of {cost.lengths[-1]} positions"
    )
    measured = {"lengths": cost.lengths, "seconds": cost.seconds, "bytes": cost.bytes}
    yield _measured(f"training passes at {_COST_LENGTHS} positions", found, measured)


@checks("measurements", measures=True)
def state_size(subject: Subject) -> Outcomes:
    """Measure the size of the state after a short and a longer sequence."""
    subject.require_stream()
    module, sizes = subject.module(), {}
    own = {id(p) for p in module.parameters()}
    for n in _STATE_LENGTHS:
        with torch.no_grad():
            _, state = run(subject.protocol, module, subject.draw(1, n))
        held = {id(t): t.numel() * t.element_size() for t in tensors_of(state) if id(t) not in own}
        sizes[n] = sum(held.values())
    first, last = sizes.values()
    found = f"{last} bytes, the same at both lengths" if first == last else f"{first} and {last} bytes: it grows"
    did = f"{_STATE_LENGTHS[0]} and {_STATE_LENGTHS[1]} positions were streamed"
    yield _measured(did, found, {"bytes": sizes})


@checks("measurements", measures=True)
def gradient_decay(subject: Subject) -> Outcomes:
    """Measure how the gradient decays with distance tau: the norm of d y_n / d x_(n - tau) on random input."""
    try:
        profile = gradient_profile(subject.plain(), seeds=FEWEST_SEEDS, seq_len=_PROFILE_LENGTH)
    except (OperatorError, ValueError, RuntimeError, IndexError) as error:
        raise NotApplicableError(
            f"no gradient profile at {_PROFILE_LENGTH} positions: {describe_error(error)}"
        ) from None
    median = profile.values.double().quantile(0.5, dim=0)
    measured: dict[str, Any] = {"distances": profile.distances.tolist(), "median": median.tolist()}
    try:
        rate = decay_rate(profile)
        found = f"log-slope {rate.rate:.3g} per position ({rate.interval[0]:.3g} to {rate.interval[1]:.3g})"
        found += "" if rate.half_distance is None else f", halved every {rate.half_distance:.3g} positions"
        measured["rate"] = rate.rate
    except ValueError:
        reach = Gradient(profile, None).reach
        few, zero = "too few distances are above roundoff", f"the gradient vanishes beyond {reach} positions"
        found = f"no decay rate: {few if reach is None else zero}"
    yield _measured(f"gradient of the last of {_PROFILE_LENGTH} outputs", found, measured)


def _measured(did: str, found: str, measured: dict[str, Any]) -> Outcome:
    return Outcome(True, did, found, "a measurement", measured)
