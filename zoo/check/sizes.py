"""The property `large_sizes`: a wider module, and if `thorough` a long sequence in two chunks."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from zoo.check.calls import LONGEST, lengths, rows_independent
from zoo.check.outcome import NotApplicableError, Outcomes
from zoo.check.property import checks
from zoo.check.streaming import one_by_one, partition
from zoo.check.subject import Subject

_WIDTH = 96
"""More than a block of 64 channels, and not a power of two."""


@checks("calls")
def large_sizes(subject: Subject) -> Outcomes:
    """Check that rows, lengths and streaming are right at width 96, and with --thorough for 2048 positions."""
    checked = False
    for outcome in _wide(subject):
        checked = True
        yield replace(outcome, did=f"at a width of {_WIDTH}, {outcome.did}")
    if subject.thorough and subject.protocol.streams and subject.protocol.longest != 1 and subject.takes(LONGEST):
        checked = True
        yield partition(subject, [LONGEST // 2 + 1, LONGEST // 2 - 1])
    if not checked:
        raise NotApplicableError(f"the width cannot be set to {_WIDTH}")


def _wide(subject: Subject) -> Outcomes:
    if isinstance(subject.made_of, nn.Module):
        return
    try:
        wide = subject.of_width(_WIDTH)
    except ValueError:  # an option sets the width
        return
    yield from rows_independent(wide)
    yield from lengths(wide)
    if wide.protocol.streams:
        yield from one_by_one(wide)
