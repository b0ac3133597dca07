"""The commands, the pinned set and the metadata keep their word."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import zoo
from tests import ROOT, run_python

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def _requirements(*lists: list[str]) -> list[Requirement]:
    requirements = [Requirement(line) for lines in lists for line in lines]
    return [each for each in requirements if each.name != PROJECT["name"]]


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_every_pin_is_one_public_version() -> None:
    """A local version ("+cpu"), an address or a path would tie the set to one machine."""
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


TRAINED = (
    "A DataLoader of your own, with Lightning",
    "Truncated back-propagation through time",
    "Inside transformers' Trainer",
)
REUSE = [part for part in (ROOT / "docs/reuse.md").read_text().split("\n## ")[1:] if "```python" in part]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param((ROOT / "README.md").read_text(), id="README", marks=pytest.mark.slow),
        *(
            pytest.param(part, id=title, marks=pytest.mark.slow if title in TRAINED else ())
            for part in REUSE
            for title in [part.partition("\n")[0]]
        ),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:The 'train_dataloader' does not have many workers")
@pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers")
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "```python" in page
    run_python(page, {})


@pytest.mark.parametrize("package", ["zoo", "tasks", "lab"])
def test_the_page_lists_every_public_name(package: str) -> None:
    imports = re.findall(rf"^from {package} import ([^#\n]+)", REUSE[-1], re.MULTILINE)
    listed = [name.strip() for names in imports for name in names.split(",")]
    assert sorted(listed) == sorted(importlib.import_module(package).__all__)


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()  # what the format requires
    assert cited["authors"]
    assert (cited["version"], cited["license"]) == (zoo.__version__, PROJECT["license"])
    assert cited["keywords"] == PROJECT["keywords"]
    assert (ROOT / "README.md").read_text(encoding="utf-8").startswith(f"# {cited['title']}\n")


def _hook(name: str, path: Path) -> int:
    """The exit status of a hook's command on one file."""
    (hooks,) = (repo["hooks"] for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"])
    (entry,) = (hook["entry"] for hook in hooks if hook["id"] == name)
    command = entry.replace(".venv/bin/python", sys.executable)
    return subprocess.run(f'{command} "{path}"', shell=True, cwd=ROOT, capture_output=True).returncode


@pytest.mark.parametrize(
    ("hook", "good", "bad"),
    [("yaml", "a: [1, 2]", "a: [1"), ("toml", "a = 1", "a ="), ("large-files", "", "x" * 2**21)],
)
def test_a_hook_lets_good_files_through_and_stops_bad_ones(hook: str, good: str, bad: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(good)
    assert _hook(hook, path) == 0
    path.write_text(bad)
    assert _hook(hook, path) != 0


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_a_document_links_to_files_that_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("statement", ["import zoo; zoo.list_mixers()", "import tasks; tasks.list_tasks()"])
def test_listing_names_needs_only_the_standard_library(statement: str) -> None:
    """With `-S` Python sees no installed package, so any import of torch, numpy or lightning fails."""
    subprocess.run([sys.executable, "-S", "-c", statement], cwd=ROOT, check=True)
