"""Measurements besides the verdicts: what a module costs, and how far back its gradient reaches."""

from __future__ import annotations

from typing import Any

import torch

from zoo.check.adapters.carried import run, tensors_of
from zoo.check.finding import NotApplicableError, Observation, describe_error
from zoo.check.subject import Subject
from zoo.theory.costs import complexity
from zoo.theory.gradients import FEWEST_SEEDS, decay_rate, gradient_profile
from zoo.theory.operator import OperatorError

_COST_LENGTHS = (128, 256, 512)
_PROFILE_LENGTH = 128
_STATE_LENGTHS = (16, 64)


def costs(subject: Subject) -> Observation:
    """Measure how time and memory of a forward and backward pass grow with length, as exponents."""
    try:
        found = complexity(subject.plain, _COST_LENGTHS, repeats=2)
    except (ValueError, RuntimeError, IndexError) as error:
        raise NotApplicableError(
            f"no training pass at {max(_COST_LENGTHS)} positions: {describe_error(error)}"
        ) from None
    said = f"time ~ length^{found.time_exponent:.2f}, memory ~ length^{found.memory_exponent:.2f}"
    kept = f"{found.bytes[-1] / 2**20:.3g} MiB kept for the backward pass of {found.lengths[-1]} positions"
    measured = {"lengths": found.lengths, "seconds": found.seconds, "bytes": found.bytes}
    lines = [
        "from zoo.theory import complexity",
        f"print(complexity(module, {_COST_LENGTHS}, d_in={subject.d_model}, repeats=2))",
    ]
    return Observation(
        True, f"training passes at {_COST_LENGTHS} positions", f"{said}; {kept}", "a measurement", lines, measured
    )


def state_size(subject: Subject) -> Observation:
    """Measure the bytes of the state after a short and after a longer sequence."""
    subject.require_stream()
    module, sizes = subject.module(), {}
    with torch.no_grad():
        for n in _STATE_LENGTHS:
            _, state = run(subject.adapter, module, subject.draw(1, n))
            own = {id(p) for p in module.parameters()}
            held = {id(t): t.numel() * t.element_size() for t in tensors_of(state) if id(t) not in own}
            sizes[n] = sum(held.values())
    first, last = sizes.values()
    found = f"{last} bytes, the same at both lengths" if first == last else f"{first} and {last} bytes: it grows"
    did = f"a row of {_STATE_LENGTHS[0]} and one of {_STATE_LENGTHS[1]} positions were streamed"
    return Observation(True, did, found, "a measurement", (), {"bytes": sizes})


def gradient_decay(subject: Subject) -> Observation:
    """Measure the gradient against distance: the norm of d y_n / d x_(n - tau), and its rate on random input."""
    try:
        profile = gradient_profile(subject.plain, seeds=FEWEST_SEEDS, seq_len=_PROFILE_LENGTH)
    except (OperatorError, ValueError, RuntimeError, IndexError) as error:
        raise NotApplicableError(
            f"no gradient profile at {_PROFILE_LENGTH} positions: {describe_error(error)}"
        ) from None
    median = profile.values.double().quantile(0.5, dim=0)
    measured: dict[str, Any] = {"distances": profile.distances.tolist(), "median": median.tolist()}
    try:
        rate = decay_rate(profile)
        said = f"log-slope {rate.rate:.3g} per position ({rate.interval[0]:.3g} to {rate.interval[1]:.3g})"
        said += "" if rate.half_distance is None else f", halved every {rate.half_distance:.3g} positions"
        measured["rate"] = rate.rate
    except ValueError:
        reach = int((median > 0).nonzero().max()) if bool((median > 0).any()) else 0
        said = f"no rate, the reach is too short: the gradient ends after {reach} positions"
    lines = [
        "from zoo.theory import decay_rate, gradient_profile",
        f"module.d_model = {subject.d_model}",
        f"print(decay_rate(gradient_profile(module, seeds={FEWEST_SEEDS}, seq_len={_PROFILE_LENGTH})))",
    ]
    did = f"gradients of the last of {_PROFILE_LENGTH} positions were taken"
    return Observation(True, did, said, "a measurement", lines, measured)
