"""What a user of the wheel gets: zoo alone, and every mixer with the core dependencies alone."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import zoo
from tests import ROOT

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
    _run(sys.executable, "-m", "build", "--wheel", "--outdir", made, ROOT)
    (path,) = made.glob("*.whl")
    return path


def _run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_holds_zoo_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    inside = {name for name in names if ".dist-info/" not in name}
    here = {
        str(p.relative_to(ROOT)) for p in (ROOT / "zoo").rglob("*") if p.suffix in {".py", ".pyi", ".html", ".typed"}
    }
    assert inside == here
    assert "zoo/py.typed" in inside
    assert wheel.name.startswith(f"mixer_zoo-{zoo.__version__}-py3-none-any")
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_every_mixer_runs_on_the_core_dependencies(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    _run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path)
    # -I: neither this directory nor PYTHONPATH nor the user's own packages are seen.
    assert _run(python, "-I", "-c", USE, cwd=tmp_path).split() == zoo.list_mixers()
