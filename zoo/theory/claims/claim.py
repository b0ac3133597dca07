"""The class `Claim`, a prediction with its measurement; the decorators that make one; and `Settings` of all claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from typing import TypeAlias

import torch

from zoo.evidence import Check, Evidence, Panel, Prediction, within
from zoo.evidence.interval import FEWEST_SEEDS
from zoo.report.numbers import Number
from zoo.theory.gradients import draw_seeds
from zoo.validate import require_seed


@dataclass(frozen=True)
class Settings:
    """Sizes of the measurements.

    Args:
        seed: seed of every draw.
        n_seeds: number of repetitions with different draws, five or more; medians are over these.
        steps: Adam steps in claims that train.
        seq_len: length of gradient profiles and of the table of heads for an error. Rates describe the tail,
            which sequences of fewer than about 200 positions do not reach.
        ranks: interaction ranks, from 1 to 16, of the teachers in claims about head counts.
        starts: random starts for a non-convex loss; times n_seeds where a minimum is sought.
        device: device of layers and tensors.

    Raises:
        ValueError: a size too small to measure anything.
    """

    seed: int = 0
    n_seeds: int = 5
    steps: int = 300
    seq_len: int = 256
    ranks: tuple[int, ...] = (1, 2, 4, 8)
    starts: int = 2
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("n_seeds", FEWEST_SEEDS), ("steps", 1), ("seq_len", 32), ("starts", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
        require_seed(self.seed)
        if not self.ranks or not all(1 <= rank <= 16 for rank in self.ranks):
            raise ValueError(f"ranks must be integers from 1 to 16, at least one, got {self.ranks}")

    def generator(self, *stream: int) -> torch.Generator:
        """Return a CPU generator for this seed and one use; the numbers in `stream` identify the use."""
        mixed = self.seed
        for use in stream:
            mixed = (mixed * 1_000_003 + use + 1) % (2**63 - 1)
        return torch.Generator().manual_seed(mixed)


QUICK = Settings()
FULL = Settings(n_seeds=9, steps=600, seq_len=1024, ranks=(1, 2, 4, 8, 12), starts=4)


@dataclass(frozen=True)
class Claim(Prediction):
    """A prediction of the theory.

    Args:
        measure: function that measures the evidence for the claim.
    """

    measure: Callable[[Settings], Evidence]


Findings: TypeAlias = Iterator[Check | Panel]
"""The checks and plots that a measurement yields."""


def claim(
    statement: str, source: str, refuted_by: str, slogan: bool = False
) -> Callable[[Callable[[Settings], Findings]], Claim]:
    """Decorate a measuring function: it becomes a `Claim` with its name and these attributes."""

    def named(measure: Callable[[Settings], Findings]) -> Claim:
        def gathered(settings: Settings) -> Evidence:
            found = list(measure(settings))
            checks = tuple(each for each in found if isinstance(each, Check))
            return Evidence(checks, tuple(each for each in found if isinstance(each, Panel)))

        return Claim(measure.__name__, statement, source, refuted_by, gathered, slogan=slogan)

    return named


def redrawn(measure: Callable[[Settings], Findings]) -> Callable[[Settings], Findings]:
    """Decorate a measurement with exact checks: it is repeated with n_seeds seeds, and its checks get an interval.

    Plots show the first seed.
    """

    @wraps(measure)
    def repeated(settings: Settings) -> Findings:
        samples: dict[tuple[str, Number, Number], dict[int, Number]] = {}
        for repeat, seed in enumerate(draw_seeds(settings.seed, settings.n_seeds)):
            for found in measure(replace(settings, seed=seed)):
                if isinstance(found, Check):
                    samples.setdefault((found.quantity, found.low, found.high), {})[repeat] = found.value
                elif repeat == 0:
                    yield found
        for (quantity, low, high), values in samples.items():
            yield within(quantity, values, low, high)

    return repeated
