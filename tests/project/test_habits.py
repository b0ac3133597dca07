"""The commands, the pinned set and the metadata keep their word."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import zoo
from tests import ROOT, run_python
from tests.project.test_doors import OURS, imports

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
MODULE_OF = {"pillow": "PIL", "pyyaml": "yaml", "scikit-learn": "sklearn"}
WITH_TORCH = {"triton"}  # torch's builds for CUDA require it, each in one version: an extra could only contradict them


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


def _imported(*parts: str) -> Iterator[tuple[str, str]]:
    for part in parts:
        for path in [ROOT / part] if part.endswith(".py") else sorted((ROOT / part).rglob("*.py")):
            for each in imports(path.read_text(), "x", package=False):
                top = each.target.split(".")[0]
                # A test may import by string what it has just written.
                if not each.by_string and top not in OURS and top not in sys.stdlib_module_names:
                    yield top, f"{path.relative_to(ROOT)}:{each.line}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "extras"),
    [
        (("zoo", "tasks"), ("fast", "hub", "report", "train", "transformers")),
        (("lab", "train.py", "sweep.py"), ("report", "train", "ray")),
        (("tests", "benchmarks"), ("hub", "report", "train", "bench", "dev")),
    ],
)
def test_every_imported_package_is_declared(parts: tuple[str, ...], extras: tuple[str, ...]) -> None:
    declared = _requirements(PROJECT["dependencies"], *(EXTRAS[name] for name in extras))
    modules = {MODULE_OF.get(each.name, each.name.replace("-", "_")) for each in declared} | WITH_TORCH
    assert [f"{where} imports {top}" for top, where in _imported(*parts) if top not in modules] == []


def _with_examples() -> list[str]:
    paths = [path for part in ("zoo", "tasks", "lab") for path in sorted((ROOT / part).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if ">>> " in path.read_text()]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize("module", _with_examples())
def test_the_examples_in_docstrings_are_true(module: str) -> None:
    done = doctest.testmod(importlib.import_module(module))
    assert done.attempted > 0
    assert done.failed == 0


TRAINED = ("Truncated back-propagation through time", "Inside transformers' Trainer")
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
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "```python" in page
    run_python(page, {})


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()  # what the format requires
    assert cited["authors"]
    assert (cited["version"], cited["license"]) == (zoo.__version__, PROJECT["license"])
    assert cited["keywords"] == PROJECT["keywords"]
    assert (ROOT / "README.md").read_text(encoding="utf-8").startswith(f"# {cited['title']}\n")


def test_the_hooks_need_no_other_repository() -> None:
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]


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


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def _make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # The tests may themselves have been started by make, which hands its own settings down.
    outer = {"VENV", "ARGS", "PYTHON", "UV", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"}
    inherited = {name: value for name, value in os.environ.items() if name not in outer}
    return subprocess.run(["make", *arguments], cwd=ROOT, env=inherited, capture_output=True, text=True)


@needs_make
def test_an_old_python_is_refused_in_one_clear_line(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.1 && exit 0\nexit 1\n')
    old.chmod(0o755)
    for python, found in ((old, "Python 3.9.1"), (tmp_path / "none", "missing")):
        done = _make("train", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}")
        assert done.returncode == 2
        assert done.stderr.splitlines()[0] == (
            f"'{python}' is {found}, but Python 3.11 or newer is needed; name one: make train PYTHON=/path/to/python"
        )
        assert not (tmp_path / "venv").exists()


@needs_make
def test_make_train_passes_its_flags_on() -> None:
    assert _make("-n", "train").stdout.splitlines()[-1] == ".venv/bin/python train.py --mixer hybrid"
    done = _make("-n", "train", "ARGS=--mixer attention --mixer.n_heads 4")
    assert done.stdout.splitlines()[-1] == ".venv/bin/python train.py --mixer attention --mixer.n_heads 4"


@needs_make
def test_make_setup_does_nothing_when_it_is_up_to_date_and_runs_again_when_the_pins_change(tmp_path: Path) -> None:
    stamps = [tmp_path / ".installed-train", tmp_path / ".installed"]
    for stamp in stamps:
        stamp.touch()
    assert _make("-q", "setup", f"VENV={tmp_path}").returncode == 0
    for stamp in stamps:
        os.utime(stamp, (0, 0))
        assert _make("-q", "setup", f"VENV={tmp_path}").returncode == 1
        stamp.touch()


@needs_make
@pytest.mark.parametrize(
    ("command", "extras"), [("train", ["train"]), ("setup", ["train", "train,dev"]), ("test", ["train", "train,dev"])]
)
@pytest.mark.parametrize("uv", ["", "/opt/bin/uv"])
def test_a_command_installs_what_it_needs_and_no_more(command: str, extras: list[str], uv: str, tmp_path: Path) -> None:
    printed = _make("-n", command, f"VENV={tmp_path}", f"UV={uv}").stdout
    assert re.findall(r"-e '\.\[(.*)\]'$", printed, re.MULTILINE) == extras
    by_uv = [line for line in printed.splitlines() if f"{uv} pip install" in line and uv]
    assert len(by_uv) == len(extras) * bool(uv)
    # Torch is found by pip's configuration, which uv does not read.
    assert all(re.search(r"-m pip install .* --no-deps torch && /opt/bin/uv pip install", line) for line in by_uv)
    assert all("-c constraints.txt -e" in line for line in printed.splitlines() if " -e '." in line)


def _commands() -> set[str]:
    database = _make("-pRrn", "help").stdout  # what make knows of its targets
    return set(re.findall(r"^\.PHONY: (.*)$", database, re.MULTILINE)[0].split())


@needs_make
def test_make_help_names_every_command() -> None:
    assert {line.split()[1] for line in _make("help").stdout.splitlines()} == _commands()


@needs_make
def test_ci_runs_commands_that_there_are() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    called = re.findall(r"^\s*make ([a-z-]+)", script.read_text(), re.MULTILINE)
    assert list(dict.fromkeys(called)) == ["setup", "lint", "types", "test", "test-slow"]
    assert set(called) <= _commands()


@needs_make
@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_a_document_points_at_files_and_commands_that_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []
    # A command stands at the start of a line of a block, or in backquotes.
    commands = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
    assert commands <= _commands()
