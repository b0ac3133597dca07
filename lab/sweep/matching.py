"""Measure a model's parameters and state, and find the width at which they have a given size."""

from __future__ import annotations

import bisect
import functools
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from lab.build import build_task, model_options
from zoo.errors import UsageError, unknown

TOLERANCE = 0.05
SIZES = {"params": "params", "state": "state_bytes"}
"""Names in metrics.json of the quantities that --match accepts."""
STATE_OPTIONS = ("d_state", "d_inner", "window", "d_key", "d_head")
"""Options that set the size of a mixer's state at fixed d_model; --match uses the first one that the mixer has."""
WIDEST = 16384
REACH = 512
"""Number of widths to try for one that is divisible into heads."""
ROUNDS = 5
"""Alternations between the width for the parameters and the width for the state."""
UNITS = {"": 1, "B": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def target(quantity: str, value: Any) -> float:
    """Read a number to match, such as 1e6, 1M, 65536 or 64KiB.

    >>> target("state", "64KiB"), target("params", 1e6)
    (65536.0, 1000000.0)

    Raises:
        UsageError: a quantity other than params or state, or a number that is not positive.
    """
    if quantity not in tuple(SIZES):
        raise UsageError(unknown("quantity to match", quantity, tuple(SIZES)))
    number = re.fullmatch(r"(\d+\.?\d*(?:[eE][+-]?\d+)?) *([A-Za-z]*)", str(value))
    if number is None or number[2] not in UNITS or float(number[1]) <= 0:
        raise UsageError(f"--match {quantity}: expected a positive number such as 1e6, 1M or 64KiB, got {value}")
    return float(number[1]) * UNITS[number[2]]


def sizes(config: Mapping[str, Any], *wanted: str) -> dict[str, Any]:
    """Return `params` and `state_bytes`, or only the wanted ones, of the model of a complete configuration.

    The model is built without storage, so large models cost no memory.

    Raises:
        ValueError: options that the task or the model rejects.
    """
    from zoo.backbone import Backbone

    task = build_task(config)
    options = json.dumps(model_options(config, task, Backbone), sort_keys=True)
    return {size: _size(size, options, task.spec.seq_len) for size in wanted or SIZES.values()}


@functools.cache
def _size(size: str, options: str, seq_len: int) -> int | None:
    """Measure a model given its options as JSON; cached, since many runs of a grid share a model."""
    import torch

    from zoo.backbone import Backbone

    with torch.device("meta"):
        model = Backbone(**json.loads(options))
        if size == "params":
            return sum(p.numel() for p in model.parameters() if p.requires_grad)
        return model.state_bytes(seq_len)


def matched(
    config: Mapping[str, Any], match: Mapping[str, float], given: Iterable[str], declared: Iterable[str]
) -> dict[str, int]:
    """Return widths, by their flags, at which parameters or bytes of state match, within `TOLERANCE`.

    d_model sets the parameters; if divisibility by heads makes its steps too coarse, d_channel corrects the rest. The
    first of `STATE_OPTIONS` that the mixer has and that is not given sets the state; without one, d_model.

    Args:
        config: complete configuration.
        match: target number of "params" or "state".
        given: flags to keep.
        declared: flags that the mixer has.

    Raises:
        ValueError: the width is given, or none comes near enough.
    """
    given, declared = set(given), {*declared, "d_model", "d_channel"}
    knobs = {"params": ["d_model", "d_channel"], "state": [*(f"mixer.{name}" for name in STATE_OPTIONS), "d_model"]}
    for quantity in match:
        knobs[quantity] = [knob for knob in knobs[quantity] if knob in declared - given]
        if not knobs[quantity] or (quantity == "params" and "d_model" in given):
            raise ValueError(f"--match {quantity} chooses d_model: leave it out of the grid")
        if quantity == "state":
            del knobs[quantity][1:]
    if "state" in match and sizes(config, "state_bytes")["state_bytes"] is None:
        raise ValueError("--match state: the mixer does not stream, so the size of its state is unknown")
    found: dict[str, int] = {}
    config = dict(config)
    # Changing one width also changes the other quantity: alternate until both match.
    for _ in range(ROUNDS):
        before = dict(found)
        for quantity, wanted in match.items():
            for knob in knobs[quantity]:
                if (knob not in found and knob != "d_channel") or quantity in misses(config, match):
                    found[knob] = _width(config, knob, SIZES[quantity], wanted)
                    config = _with_width(config, knob, found[knob])
        if found == before or not misses(config, match):
            break
    if missed := misses(config, match):
        widths = " ".join(f"{knob}={width}" for knob, width in found.items())
        far = (
            f"{name} is {got:,}, {abs(got / match[name] - 1):.0%} from {match[name]:,.0f}"
            for name, got in missed.items()
        )
        raise ValueError(f"cannot match within {TOLERANCE:.0%}: at {widths} {', '.join(far)}")
    return found


def misses(config: Mapping[str, Any], match: Mapping[str, float]) -> dict[str, int]:
    """Return the sizes of a configuration that miss their target by more than `TOLERANCE`."""
    got = sizes(config, *(SIZES[name] for name in match))
    return {name: got[SIZES[name]] for name, wanted in match.items() if abs(got[SIZES[name]] / wanted - 1) > TOLERANCE}


def _width(config: Mapping[str, Any], knob: str, size: str, wanted: float) -> int:
    """Return the value of `knob` whose size is nearest, by bisection, since sizes grow with every width."""
    errors: list[Exception] = []

    @functools.cache
    def at(width: int) -> int | None:
        try:
            return sizes(_with_width(config, knob, width), size)[size]
        except ValueError as error:  # not every width divides into heads
            errors.append(error)
            return None

    def valid(widths: Iterable[int]) -> int | None:
        return next((width for width in widths if at(width) is not None), None)

    def from_here(width: int) -> float:
        found = valid(range(width, min(width + REACH, WIDEST)))
        return math.inf if found is None else at(found) or 0

    low = 1 + bisect.bisect_left(range(1, WIDEST), wanted, key=from_here)
    around = valid(range(low - 1, max(0, low - REACH), -1)), valid(range(low, min(low + REACH, WIDEST + 1)))
    candidates = [width for width in around if width is not None]
    if not candidates:
        raise UsageError(f"{config['mixer']['name']}: no {knob} is valid: {errors[-1]}")
    return min(candidates, key=lambda width: abs((at(width) or 0) - wanted))


def _with_width(config: Mapping[str, Any], knob: str, width: int) -> dict[str, Any]:
    if "." not in knob:
        return dict(config) | {knob: width}
    option, mixer = knob.removeprefix("mixer."), config["mixer"]
    having = {name: own for name, own in mixer.items() if isinstance(own, Mapping) and option in own}
    widened = {name: {**own, option: width} for name, own in having.items()} or {option: width}
    return {**config, "mixer": {**mixer, **widened}}
