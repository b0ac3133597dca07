"""Format numbers, sizes, durations and option values as text."""

from __future__ import annotations

import itertools
import math
from typing import Any, TypeAlias

Number: TypeAlias = int | float

NOTHING = "–"
"""Text for a missing number."""


def number(value: Number | None, digits: int = 4) -> str:
    """Format a number: integers and numbers from 1,000 to 1,000,000 as integers, others to `digits` significant digits.

    >>> [number(value) for value in (12345, 8.0, 1234.5, 0.0123456, 1e-9, None)]
    ['12,345', '8', '1,234', '0.01235', '1e-09', '–']
    """
    if value is None:
        return NOTHING
    if math.isfinite(value) and abs(value) < 1e15 and (value == int(value) or 1e3 <= abs(value) < 1e6):
        return f"{round(value):,}"
    return f"{value:.{digits}g}"


def size(n_bytes: int | None) -> str:
    """Format a number of bytes in the largest binary unit that gives at least 1.

    >>> [size(n) for n in (320, 1536, 8 * 2**20, None)]
    ['320 B', '1.5 KiB', '8 MiB', '–']
    """
    if n_bytes is None:
        return NOTHING
    power = min(max(n_bytes, 1).bit_length() - 1, 49) // 10
    return f"{n_bytes / 2 ** (10 * power):,.1f}".removesuffix(".0") + f" {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def duration(seconds: Number) -> str:
    """Format seconds; minutes from two minutes on, hours from two hours on.

    >>> [duration(seconds) for seconds in (47.2, 300, 9000)]
    ['47 s', '5 min', '2.5 h']
    """
    minutes, hours = seconds / 60, seconds / 3600
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if hours < 2 else f"{hours:.1f} h"


def count(n: int, noun: str) -> str:
    """Format a count with its noun: 1 run, 2 runs."""
    return f"{n:,} {noun}{'s' if n != 1 else ''}"


def plain(value: Any) -> str:
    """Format an option's value; repeated neighbours in a list are counted.

    >>> plain(["attention", "attention", "lstm"]), plain(True), plain(None), plain(1e-3)
    ('2×attention+lstm', 'true', 'none', '0.001')
    """
    if isinstance(value, list):
        repeated = [(text, len(list(same))) for text, same in itertools.groupby(map(plain, value))]
        return "+".join(f"{n}×{text}" if n > 1 else text for text, n in repeated)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
