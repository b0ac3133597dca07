"""Run the code blocks of pages and update the outputs shown: `python -m tools.blocks docs/tutorials/*.md`.

Each page runs from top to bottom in a fresh clone. The language of a block decides how it is handled:

    python        run, in one scope per page; written to a file instead if it begins with a name (`# my_mixers.py`)
    sh            run, as commands of one shell
    yaml, toml    parsed, and written if the first line is a file name
    text          after another block: its output, which this command writes
    shell, bash   not run: commands for another machine, servers, job scripts; a test checks their flags
    py            not run: needs packages that the tests do not install
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(python|sh|yaml|toml)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)
"""Language, code, and the output shown on the page, if any."""
NAMED = re.compile(r"# (\S+\.\w+)\n")
COMMANDS = {
    ("python", "train.py"): "lab.training",
    ("python", "sweep.py"): "lab.sweep.sweep",
    ("python", "-m", "lab"): "lab.__main__",
    ("python", "-m", "tasks"): "tasks.__main__",
    ("zoo",): "zoo.__main__",
}
"""Commands that run in this process, which has their imports already, and their modules."""
AUTHOR = {f"GIT_{who}_{what}": "reader" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

Change = Callable[[str, list[str]], list[str]]


def clone(folder: Path) -> None:
    """Clone the project into the folder, like the reader of a page."""
    subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(folder)], check=True)


def run(text: str, change: Change = lambda _, argv: argv) -> list[str]:
    """Run the blocks of a page in the current folder; return the output of each.

    Args:
        text: text of the page.
        change: function (module, arguments) -> arguments that adapts each command.

    Raises:
        AssertionError: a command failed.
    """
    scope: dict[str, Any] = {"__name__": "page"}
    return [_run(language, code, scope, change) for language, code, _ in BLOCK.findall(text)]


def _run(language: str, code: str, scope: dict[str, Any], change: Change) -> str:
    if named := NAMED.match(code):
        Path(named[1]).parent.mkdir(parents=True, exist_ok=True)
        Path(named[1]).write_text(code, encoding="utf-8")
    if language in ("yaml", "toml"):
        (yaml.safe_load if language == "yaml" else tomllib.loads)(code)
        return ""
    with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors:
        if language == "sh":
            status = _shell(code, change)
            assert status == 0, f"{code}exit status {status}\n{output.getvalue()}{errors.getvalue()}"
        elif not named:
            exec(compile(code, "page", "exec"), scope)
    return output.getvalue()


def _shell(code: str, change: Change) -> int:
    """Run shell commands; return the exit status of the first that fails, or 0."""
    lines = [shlex.split(line, comments=True) for line in code.replace("\\\n", " ").splitlines()]
    commands = [(_command(words), words) for words in lines if words]
    if any(start is None or {"&&", "|", ";", "||"} & set(words) for start, words in commands):
        # The subprocess runs the clone's code, which is the last commit.
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        settings = os.environ | AUTHOR | {"PATH": path, "PYTHONPATH": str(Path.cwd()), "COLUMNS": "100"}
        done = subprocess.run(["bash", "-ec", code], env=settings, capture_output=True, text=True, check=False)
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        return done.returncode
    for start, words in commands:
        assert start is not None
        module = COMMANDS[start]
        words = [path for word in words for path in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
        try:
            if status := importlib.import_module(module).main(change(module, words[len(start) :])):
                return status
        except SystemExit as end:  # of --help
            if end.code:
                return 2
    return 0


def _command(words: Sequence[str]) -> tuple[str, ...] | None:
    return next((start for start in COMMANDS if tuple(words[: len(start)]) == start), None)


def write(page: Path) -> None:
    """Run a page; write its outputs into its `text` blocks, and the images that it links into `figures`."""
    text, figures = page.read_text(encoding="utf-8"), page.resolve().parent / "figures"
    with tempfile.TemporaryDirectory() as folder:
        clone(Path(folder) / "clone")
        with contextlib.chdir(Path(folder) / "clone"):
            outputs = iter([output.replace(f"{Path.cwd()}/", "") for output in run(text)])
            figures.mkdir(exist_ok=True)
            for name in re.findall(r"!\[[^]]*\]\(figures/([^)]+)\)", text):
                newest = max(Path().rglob(name), key=lambda path: path.stat().st_mtime)  # the clone has an old one too
                shutil.copy(newest, figures)

    def shown(block: re.Match[str]) -> str:
        language, code, output = block.groups()
        new = "\n".join(line.rstrip() for line in next(outputs).strip("\n").splitlines())
        return f"```{language}\n{code}```" + ("" if output is None else f"\n\n```text\n{new}\n```")

    page.write_text(BLOCK.sub(shown, text), encoding="utf-8")


if __name__ == "__main__":
    match sys.argv[1:]:
        case [page]:
            write(Path(page))
        case pages:  # one process per page, because the fork server of a sweep keeps the code of the page's clone
            for page in pages:
                subprocess.run([sys.executable, "-m", "tools.blocks", page], check=True)
