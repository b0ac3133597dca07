"""Every code block of the pages runs. tools/blocks.py describes how; a block's language exempts it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tools import blocks
from zoo.registry import MIXERS

PAGES = {
    path.relative_to(ROOT).as_posix(): text
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if blocks.BLOCK.search(text := path.read_text(encoding="utf-8"))
}
SHORT = {
    "lab.training": "--trainer.max_steps 8 --trainer.accelerator cpu --batch_size 1 --task.n_train 16 --task.n_val 4 "
    "--task.n_test 4 --figures_every 0",
    "lab.sweep.sweep": "--dry_run",
    "lab.__main__ leaderboard": "--budget_minutes 0",
    "zoo.__main__ measure": "--lengths 8 16 --seq_len 16 --gradient_len 16 --seeds 5 --out measured",
    "zoo.__main__ check": "--only causality",
    "zoo.__main__ claims": "--page claims.md",
    "zoo.__main__ heads": "--sequences 1 --functional never --processes 1",
    "zoo.__main__ figure": "--seq_len 32 --seeds 5",
}
"""Flags that make a command of a page end within seconds. Tutorials run as they are."""


def _short(module: str, argv: list[str]) -> list[str]:
    more = SHORT.get(module, SHORT.get(f"{module} {argv[0]}", "")).split()
    for flag in more:
        if flag in argv and flag.startswith("--"):
            at = argv.index(flag)
            del argv[at : at + 2]
    if argv == ["measure"]:  # of all mixers
        more += ["--mixer", "lstm"]
    return argv + more


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:The '(train|val)_dataloader' does not have many workers")
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    languages = set(re.findall(r"^```(\w+)$", PAGES[page], re.MULTILINE))
    assert languages <= {"python", "sh", "yaml", "toml", "text", "shell", "bash"}
    empty: Any = {"_own": {}, "_objects": {}, "_looked": True}
    for name, value in empty.items():
        monkeypatch.setattr(MIXERS, name, value)
    monkeypatch.setenv("MIXER_ZOO_CACHE", str(tmp_path / "cache"))
    blocks.clone(tmp_path / "clone")
    monkeypatch.chdir(tmp_path / "clone")
    if "/tutorials/" in page:
        blocks.run(PAGES[page])
        return
    if "runs/mqar/hybrid" in PAGES[page]:  # which `make train` leaves behind, larger
        blocks.run("```sh\npython train.py --mixer hybrid --d_model 8 --task.seq_len 16 --run_dir first\n```", _short)
        Path("runs/mqar/hybrid").mkdir(parents=True)
        (run,) = Path("first").glob("*/*/seed0")
        run.rename("runs/mqar/hybrid/seed0")
    blocks.run(PAGES[page], _short)


@pytest.mark.parametrize("package", ["zoo", "tasks", "lab"])
def test_the_page_lists_every_public_name(package: str) -> None:
    imports = re.findall(
        rf"^from {package} import ([^#\n]+)", PAGES["docs/reuse.md"].partition("## Public names")[2], re.M
    )
    listed = [name.strip() for names in imports for name in names.split(",")]
    assert sorted(listed) == sorted(importlib.import_module(package).__all__)
