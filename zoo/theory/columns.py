"""Text for table cells about a layer, and remarks on estimates; shared by the pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from zoo.report.numbers import NOTHING, Number
from zoo.report.page import Column
from zoo.theory.gradients import DecayRate, Gradient
from zoo.theory.spectra import REL_ERRORS, SKETCH, SpectrumRead

HEADS = Column(
    f"heads, {'/'.join(f'{100 * error:g}' for error in REL_ERRORS)} %",
    "fewest heads that approximate the operator to that relative error; ≥ if only some source positions are read",
    lambda row: heads_text(row.read),
)


def or_nothing(value: Number | None, digits: int = 0) -> str:
    """Return a number with a fixed number of decimals; a dash for None."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def rank_text(read: SpectrumRead) -> str:
    """Return the measured rank, with ≥ if it reaches the limit of a sketch."""
    if read.rank is None:
        return NOTHING
    return f"{'≥ ' if read.rank == read.limit else ''}{read.rank}"


def heads_text(read: SpectrumRead) -> str:
    """Return the heads for each error, with ≥ if the spectrum is estimated from some source positions."""
    return f"{'' if read.sources is None else '≥ '}{'/'.join(map(str, read.heads.values()))}" or NOTHING


def rate_text(gradient: Gradient | None) -> str:
    """Return the decay rate with its interval, or the distance beyond which the gradient is zero."""
    if gradient is None:
        return NOTHING
    if gradient.reach is not None:
        return f"0 beyond τ = {gradient.reach}"
    return NOTHING if gradient.decay is None else decay_text(gradient.decay)


def decay_text(decay: DecayRate) -> str:
    """Return `-0.105 [-0.106, -0.104]`, with two to four decimals, enough to tell the ends of the interval apart."""
    low, high = decay.interval
    spread = max(high - low, 1e-4)
    digits = min(4, max(2, 1 - math.floor(math.log10(spread))))
    rate, low, high = (f"{value + 0.0:.{digits}f}" for value in (decay.rate, low, high))
    return f"{rate} [{low}, {high}]".replace("-0." + "0" * digits, "0." + "0" * digits)


def spectrum_record(read: SpectrumRead) -> dict[str, Any]:
    """Return a spectrum as JSON data, without its singular values."""
    return {"rank": read.rank, "rank_limit": read.limit, "sources": read.sources, "heads": read.heads}


def remarks(reads: Mapping[str, SpectrumRead]) -> list[str]:
    """Return sentences about the rows, {name: spectrum}, that are estimated or could not be measured."""
    sketched = [name for name, read in reads.items() if read.limit is not None and read.sources is None]
    unread = [name for name, read in reads.items() if read.rank is None]
    sampled: dict[int, list[str]] = {}
    for name, read in reads.items():
        if read.sources is not None:
            sampled.setdefault(read.sources, []).append(name)
    sentences = [
        f"Read at {count} random source positions, which suffice for the rank. Heads (≥) count only the operator's "
        f"columns there; the whole operator may need several times as many: {', '.join(names)}."
        for count, names in sampled.items()
    ]
    if sketched:
        sentences.append(
            f"Read by a random sketch (m = {SKETCH}), which underestimates the heads of slowly decaying spectra, by up "
            f"to 30 % on short sequences: {', '.join(sketched)}."
        )
    if unread:
        sentences.append(
            f"No operator could be read, so no heads are counted, for {', '.join(unread)}: mark the input-dependent "
            "factors with zoo.coefficient.coefficient; zoo check shows more."
        )
    return sentences
