"""The checker behind zoo's shape and type annotations while the tests run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Beartype, except that `Self` passes: it is refused outside a decorated class, and functions come here singly."""
    hints = function.__annotations__
    function.__annotations__ = {name: Any if hint is Self else hint for name, hint in hints.items()}
    return beartype(function)
