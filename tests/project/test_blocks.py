"""Code blocks of the documentation run (see tools/blocks.py); commands for other machines are parsed.

test_pages.py runs the tutorials, as notebooks.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tools import blocks
from zoo.registry import MIXERS

TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
PAGES = {page: text for page, text in TEXTS.items() if blocks.BLOCK.search(text) and "/tutorials/" not in page}
ELSEWHERE = {
    page: "".join(f"({code})\n" for code in codes)
    for page, text in TEXTS.items()
    if (codes := re.findall(r"^```(?:shell|bash)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
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
"""{command: flags that make it end within seconds}."""


def _short(module: str, argv: list[str]) -> list[str]:
    more = SHORT.get(module, SHORT.get(f"{module} {argv[0]}", "")).split()
    for flag in more:
        if flag in argv and flag.startswith("--"):
            at = argv.index(flag)
            del argv[at : at + 2]
    if argv == ["measure"]:  # would measure all mixers
        more += ["--mixer", "lstm"]
    return argv + more


def _ends(main: Any, argv: list[str]) -> Any:
    try:
        return main(argv)
    except SystemExit as end:
        return end.code


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:The '(train|val)_dataloader' does not have many workers")
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    languages = set(re.findall(r"^```(\w+)$", PAGES[page], re.MULTILINE))
    assert languages <= {"python", "py", "sh", "yaml", "toml", "text", "shell", "bash"}
    empty: Any = {"_own": {}, "_objects": {}, "_looked": True}
    for name, value in empty.items():
        monkeypatch.setattr(MIXERS, name, value)
    monkeypatch.setenv("MIXER_ZOO_CACHE", str(tmp_path / "cache"))
    blocks.clone(tmp_path / "clone")
    monkeypatch.chdir(tmp_path / "clone")
    if "runs/mqar/hybrid" in PAGES[page]:  # a small version of the run that `make train` leaves
        blocks.run("```sh\npython train.py --mixer hybrid --d_model 8 --task.seq_len 16 --run_dir first\n```", _short)
        Path("runs/mqar/hybrid").mkdir(parents=True)
        (run,) = Path("first").glob("*/*/seed0")
        run.rename("runs/mqar/hybrid/seed0")
    blocks.run(PAGES[page], _short)


class Parsed(BaseException):
    """Raised after a command's arguments are parsed, instead of running it."""


@pytest.mark.slow
@pytest.mark.parametrize("page", ELSEWHERE)
def test_the_commands_for_other_machines_can_be_parsed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell records every command of the blocks instead of running it; then ours parse their arguments."""
    note = 'PATH=/nowhere\ncommand_not_found_handle() { printf "%s\\0" "$@" >> noted; printf "\\n" >> noted; }\n'
    code = ELSEWHERE[page].replace("NAME", "copying")
    blocks.clone(tmp_path / "clone")
    monkeypatch.chdir(tmp_path / "clone")
    home = {"HOME": str(tmp_path), "SLURM_ARRAY_TASK_ID": "4"}
    subprocess.run(["bash", "-c", note + code], env=os.environ | home, check=True)

    parse = argparse.ArgumentParser.parse_args

    def only_parse(self: argparse.ArgumentParser, *given: Any) -> None:
        parse(self, *given)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", only_parse)
    for line in Path("noted").read_text(encoding="utf-8").splitlines():
        words = line.split("\0")[:-1]
        for start, module in blocks.COMMANDS.items():
            name = start[start[0] == "python" :]  # torchrun and srun replace "python"
            at = next((at for at in range(len(words)) if tuple(words[at : at + len(name)]) == name), None)
            if at is not None:
                more = {"lab.training": ["--print_config"], "lab.sweep.sweep": ["--dry_run"]}.get(module, [])
                with contextlib.suppress(Parsed):
                    assert not _ends(importlib.import_module(module).main, [*words[at + len(name) :], *more]), words


@pytest.mark.parametrize("package", ["zoo", "tasks", "lab"])
def test_the_page_lists_every_public_name(package: str) -> None:
    imports = re.findall(
        rf"^from {package} import ([^#\n]+)", PAGES["docs/reuse.md"].partition("## Public names")[2], re.M
    )
    listed = [name.strip() for names in imports for name in names.split(",")]
    assert sorted(listed) == sorted(importlib.import_module(package).__all__)
