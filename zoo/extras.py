"""Import optional packages: those of an extra, and packages of the repository that are not part of the library."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class MissingExtraError(ImportError):
    """A package of an extra is not installed."""


def require_extra(module: str, extra: str = "report") -> Any:
    """Import a module from a package of an extra.

    Raises:
        MissingExtraError: the package is not installed; the message gives the command to install it.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        raise MissingExtraError(f"{package} is not installed: {how_to_install(package, extra)}") from error


def how_to_install(package: str, extra: str) -> str:
    """Return the commands to install a package, or its whole extra from a clone (the project is not on PyPI)."""
    distribution = {"yaml": "pyyaml"}.get(package, package.replace("_", "-"))
    return f"pip install {distribution}, or the whole extra: pip install 'path/to/the/clone[{extra}]'"


def find_module(name: str) -> Any:
    """Return the module, or None if its package is not installed; a failing import inside the package still raises."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        return None
