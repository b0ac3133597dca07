"""What a run survives, and what it says of the rest: two processes on a folder, damage, signals, full disks, kills."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cli
import run_folder
import train

ROOT = Path(train.__file__).parent
SMALL = shlex.split(
    "--mixer lstm --d_model 16 --n_layers 1 --batch_size 8 --task.n_train 64 --task.n_val 16 --task.n_test 16 "
    "--task.seq_len 16 --task.n_pairs 2 --task.vocab_size 32 --trainer.max_steps 8 --trainer.val_check_interval 2 "
    "--trainer.accelerator cpu --trainer.log_every_n_steps 1 --figures_every 0 --trainer.enable_progress_bar false"
)
MEASURED = {"tokens_per_second", "seconds"}


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIXER_ZOO_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def command(run_dir: Path, *argv: str) -> list[str]:
    return [*SMALL, "--run_dir", str(run_dir), *argv]


def go(run_dir: Path, *argv: str) -> int:
    return train.main(command(run_dir, *argv))


def folder(run_dir: Path, *argv: str) -> Path:
    return run_folder.RunFolder.of(cli.parse(command(run_dir, *argv))).path


def results(path: Path) -> dict[str, Any]:
    """Metrics without those that a clock decides."""
    found = json.loads((path / "metrics.json").read_text(encoding="utf-8"))
    return {key: value for key, value in found.items() if key not in MEASURED}


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    text = capsys.readouterr().err
    assert re.fullmatch(r"train\.py: error: [^\n]+\n", text), text
    return text


# Two processes on one folder

HOLDER = """
import sys
from pathlib import Path
from run_folder import RunFolder
with RunFolder(Path(sys.argv[1]), sys.argv[2], 0).lock():
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder of our run."""
    name = str(folder(tmp_path).parent.relative_to(tmp_path))
    argv = [sys.executable, "-c", HOLDER, str(tmp_path), name]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_folder_in_use_is_refused_until_its_holder_ends(
    tmp_path: Path, holder: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for switch in ((), ("--overwrite",)):
        assert go(tmp_path, *switch) == 2
        assert f"{folder(tmp_path)} is in use by process {holder.pid} on {os.uname().nodename}; wait" in error_line(
            capsys
        )
    holder.kill()  # SIGKILL: nothing of ours can tidy up
    holder.wait()
    assert (folder(tmp_path) / "lock").exists()
    assert go(tmp_path) == 0
    assert not (folder(tmp_path) / "lock").exists()


def test_a_holder_that_ends_leaves_no_trace(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    holder.communicate()
    assert holder.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_in_use_is_still_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert go(tmp_path) == 0
    with run_folder.RunFolder.of(cli.parse(command(tmp_path))).lock():
        assert go(tmp_path) == 0
        assert go(tmp_path, "--test_only") == 0
    assert "this run is finished" in capsys.readouterr().out
