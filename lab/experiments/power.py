"""The power of a check: the probability that it holds at its number of seeds, if its expected effect is true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lab.experiments.judge import region_of
from lab.experiments.spec import REGIONS, Spec, verb_of
from zoo.errors import UsageError
from zoo.evidence import Measured, within
from zoo.evidence.interval import FEWEST_SEEDS, of_share, of_shift, of_superiority

LEAST = 0.8
"""Minimum power of a check whose prediction is registered."""
_N_DRAWS = 1000


OF_SEEDS = (None, "diff", "ratio", "share", "lead", "solved", "sooner")
"""Quantities with a computed power: the metric itself (None), and quantities made of one number per seed."""


def _draw(verb: str | None, true: Any, n: int, rng: np.random.Generator) -> Measured:
    """Draw a measurement of a quantity on n seeds, given the true effect."""
    match verb:
        case "solved":
            return of_share(int(rng.binomial(n, true)), n)
        case "sooner":  # speeds with exponential times: the first is larger with probability `true`
            one, other = (share / rng.exponential(size=n) for share in (true, 1 - true))
            return of_superiority(one.tolist(), other.tolist())
        case "lead":
            return of_shift(rng.normal(true["value"], true["sd"], n).tolist())
        case _:
            return dict(enumerate(rng.normal(true["value"], true["sd"], n).tolist()))


def power(check: Mapping[str, Any], n_seeds: int) -> float:
    """Return the probability that a check holds, over seeded draws from its expected effect.

    Args:
        check: a check of a spec. Its `if_true` is a share for `solved` and `sooner`; for other quantities it is the
            value and the standard deviation over seeds, `{value: 0.3, sd: 0.1}`.
        n_seeds: number of seeds of each cell.

    Raises:
        UsageError: an effect that is missing or has the wrong form; fewer seeds than an interval needs.
    """
    verb = verb_of(check)
    if n_seeds < FEWEST_SEEDS:
        raise UsageError(f"{n_seeds} seeds, but an interval needs {FEWEST_SEEDS}")
    rng, region = np.random.default_rng(0), region_of(check, [], {})
    try:
        draws = (_draw(verb, check["if_true"], n_seeds, rng) for _ in range(_N_DRAWS))
        return sum(within("", measured, *region).verdict == "holds" for measured in draws) / _N_DRAWS
    except (TypeError, KeyError, ValueError):
        form = "a share such as 0.95" if verb in ("solved", "sooner") else "{value: NUMBER, sd: NUMBER}"
        raise UsageError(f"if_true, the expected effect, must be {form}; got {check.get('if_true')}") from None


def check_power(spec: Spec) -> None:
    """Check that each check has enough power to decide.

    Exact quantities, rankings over cells, and limits from a column are exempt.

    Raises:
        UsageError: a check without `if_true`, or one whose power is below `LEAST`.
    """
    n_seeds = min(len(grid.get("seed", [0])) for grid in spec.experiment.grids)
    for key, check in spec.checks.items():
        verb = verb_of(check)
        has_column = any(isinstance(value, Mapping) for name, value in check.items() if name in REGIONS)
        if verb not in OF_SEEDS or "take" in check or has_column:
            continue
        try:
            found = power(check, n_seeds)
        except UsageError as error:
            raise UsageError(f"{spec.name}: check {key}: {error}") from None
        if found < LEAST:
            raise UsageError(
                f"{spec.name}: check {key} has a power of {found:.2f} at {n_seeds} seeds, below {LEAST}: use more "
                "seeds or a wider region, or leave it out"
            )
