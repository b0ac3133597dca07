"""The wheel contains only zoo, and every mixer runs with only the core dependencies."""

from __future__ import annotations

import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import zoo
from tests import ROOT, python

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

USE = """
import importlib.util
import warnings

for absent in ("tasks", "train", "lightning", "datasets", "tensorboard", "jsonargparse", "numpy"):
    assert importlib.util.find_spec(absent) is None, f"{absent} is visible: this environment is not clean"

import torch
import zoo

warnings.simplefilter("error")
for name in zoo.__all__:
    getattr(zoo, name)
for name in zoo.list_mixers():
    x = torch.randn(2, 5, 16, requires_grad=True)
    mixer = zoo.create_mixer(name, d_model=16)
    y = mixer(x)
    assert y.shape == x.shape and y.isfinite().all(), name
    y.sum().backward()
    first, state = mixer.stream(x[:, :3])
    last, _ = mixer.stream(x[:, 3:], state)
    torch.testing.assert_close(torch.cat([first, last], 1), y, rtol=1e-4, atol=1e-5)
    print(name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wheel")
    python("-m", "build", "--wheel", "--outdir", str(made), str(ROOT))
    (path,) = made.glob("*.whl")
    return path


def test_the_wheel_contains_only_zoo(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    inside = {name for name in names if ".dist-info/" not in name}
    kinds = {".py", ".pyi", ".html", ".css", ".typed"}
    here = {str(p.relative_to(ROOT)) for p in (ROOT / "zoo").rglob("*") if p.suffix in kinds}
    assert inside == here
    assert "zoo/py.typed" in inside
    assert wheel.name.startswith(f"mixer_zoo-{zoo.__version__}-py3-none-any")
    assert any(name.endswith("licenses/LICENSE") for name in names)


def _link_with_dependencies(folder: Path, requirements: list[str]) -> None:
    """Link the installed packages of these requirements and of their requirements into the folder."""
    seen = set[str]()
    while requirements:
        requirement = Requirement(requirements.pop())
        if requirement.name in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(requirement.name)
        package = metadata.distribution(requirement.name)
        requirements += package.requires or []
        for name in {file.parts[0] for file in package.files or () if file.parts[0] != ".."}:
            if not (folder / name).exists():
                (folder / name).symlink_to(Path(str(package.locate_file(name))))


def test_every_mixer_runs_on_the_core_dependencies(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    (info,) = tmp_path.glob("*.dist-info")
    _link_with_dependencies(tmp_path, metadata.Distribution.at(info).requires or [])
    # With -I and -S Python sees only the linked packages.
    program = f"import sys; sys.path.append({str(tmp_path)!r})\n{USE}"
    assert python("-I", "-S", "-c", program).stdout.split() == zoo.list_mixers()
