"""Project files are consistent: pinned versions, docstring examples, citation, links."""

from __future__ import annotations

import doctest
import importlib
import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import zoo
from tests import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def _requirements(*lists: list[str]) -> list[Requirement]:
    requirements = [Requirement(line) for lines in lists for line in lines]
    return [each for each in requirements if each.name != PROJECT["name"]]


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_every_pin_is_one_public_version() -> None:
    """A local version ("+cpu"), a URL or a path would tie the set to one machine."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 50
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)] == []


def test_every_declared_dependency_is_pinned_within_its_bounds() -> None:
    pins = {canonicalize_name(name): Version(version) for name, version in _pins().items()}
    declared = _requirements(PROJECT["dependencies"], *(EXTRAS[name] for name in ("hub", "report", "train", "dev")))
    found = [(each, pins.get(canonicalize_name(each.name))) for each in declared]
    assert [str(each) for each, pin in found if pin is None or pin not in each.specifier] == []


def _with_examples() -> list[str]:
    paths = [path for part in ("zoo", "tasks", "lab") for path in sorted((ROOT / part).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if ">>> " in path.read_text()]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("module", _with_examples())
def test_the_examples_in_docstrings_are_true(module: str) -> None:
    done = doctest.testmod(importlib.import_module(module))
    assert done.attempted > 0
    assert done.failed == 0


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()  # required by the format
    assert (cited["version"], cited["license"]) == (zoo.__version__, PROJECT["license"])


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_a_document_links_to_files_that_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []
