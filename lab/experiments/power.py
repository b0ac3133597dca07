"""The power of a check: the probability that it holds at its number of seeds, if the effect that it names is true."""

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
"""A check of less power is refused when its prediction is registered."""
_N_DRAWS = 1000


OF_SEEDS = (None, "diff", "ratio", "share", "lead", "solved", "sooner")
"""The quantities that a power is computed for: the metric itself, and those made of one number per seed."""


def _draw(verb: str | None, true: Any, n: int, rng: np.random.Generator) -> Measured:
    """Draw what a quantity measures on n seeds, if the effect is true."""
    match verb:
        case "solved":
            return of_share(int(rng.binomial(n, true)), n)
        case "sooner":  # quotients of exponential times: the first is the larger with the probability that is asked for
            one, other = (share / rng.exponential(size=n) for share in (true, 1 - true))
            return of_superiority(one.tolist(), other.tolist())
        case "lead":
            return of_shift(rng.normal(true["value"], true["sd"], n).tolist())
        case _:
            return dict(enumerate(rng.normal(true["value"], true["sd"], n).tolist()))


def power(check: Mapping[str, Any], n_seeds: int) -> float:
    """Return the probability that a check holds, over seeded draws from the effect that it names.

    Args:
        check: a check of a spec. Its `if_true` is a share for `solved` and `sooner`, and for the other quantities value
            and standard deviation over seeds, `{value: 0.3, sd: 0.1}`.
        n_seeds: number of seeds of each cell.

    Raises:
        UsageError: no effect, or one in another form; fewer seeds than an interval needs.
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
        raise UsageError(f"if_true, the effect that it expects, must be {form}; got {check.get('if_true')}") from None


def check_power(spec: Spec) -> None:
    """Refuse checks that could not decide.

    Exact quantities, rankings over cells, and limits that are a column's value are not looked at.

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
                f"{spec.name}: check {key} has a power of {found:.2f} at {n_seeds} seeds, below {LEAST}: give it more "
                "seeds, a wider region, or leave it out"
            )
