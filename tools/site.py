"""Stage the pages of the site, and build it: `make docs`.

Pages come from where they are kept: the README is the first one, docs/ is taken as it is, and a page for each mixer,
each task and all public names is made anew. Links follow; one to a file that is no page becomes its name.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jupytext

from lab.view.cells import task_names
from lab.view.leaderboard import Board, as_data, groups_of
from zoo.registry import MIXERS
from zoo.report.files import read_json
from zoo.report.page import render
from zoo.report.plots import look_of

ROOT = Path(__file__).resolve().parent.parent
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
KEPT = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/learning.md", "benchmarks/first_run.md")
"""Pages outside docs/, besides the README."""
PACKAGES = ("zoo", "tasks", "lab")
KERNEL = """\
---
jupyter:
  kernelspec: {name: python3, display_name: Python 3, language: python}
---
"""


def main() -> int:
    """Build the site; return the exit status, 1 if a link leads nowhere."""
    for package in PACKAGES[:2]:
        subprocess.run([sys.executable, "-m", package, "pages"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("templates", "*.csv", "*.yaml"))
    for name in KEPT:
        (PAGES / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, PAGES / name)
    shutil.copy(ROOT / "README.md", PAGES / "index.md")
    (PAGES / "gallery.html").write_text(gallery(), encoding="utf-8")
    (PAGES / "gallery.json").unlink()  # it is in the page
    (PAGES / "api.md").write_text(api(), encoding="utf-8")
    for page in PAGES.rglob("*.md"):
        page.write_text(with_links(page), encoding="utf-8")
    for page in (PAGES / "tutorials").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.with_suffix(".ipynb").write_text(notebook(text), encoding="utf-8")
        title, _, rest = text.partition("\n")
        link = f"[This page as a notebook]({page.stem}.ipynb), to be opened in the folder of the clone."
        page.write_text(f"{title}\n\n{link}\n{rest}", encoding="utf-8")
    program = Path(sys.executable).with_name("zensical")
    status = subprocess.run([program, "build", "--strict"], cwd=ROOT, check=False).returncode
    # What a search from disk needs is asked of a server: it is put beside the pages (iframe-worker 1.0.4, MIT).
    shutil.copy(ROOT / "tools/iframe-worker/shim.js", SITE / "assets/shim.js")
    for page in SITE.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        here = os.path.relpath(SITE / "assets/shim.js", page.parent)
        page.write_text(text.replace("https://unpkg.com/iframe-worker/shim", here), encoding="utf-8")
    return status


def notebook(text: str) -> str:
    """Return a tutorial as a notebook. Blocks that run are its cells; one with the name of a file writes it."""
    body = re.sub(r"^```\w+\n(?=# (\S+\.\w+)\n)", r"```python\n%%writefile \1\n", text, flags=re.MULTILINE)
    found = jupytext.reads(f"{KERNEL}{body}", "md")
    for number, cell in enumerate(found.cells):
        cell["id"] = f"cell{number}"  # drawn at random otherwise
    return jupytext.writes(found, "ipynb")


def gallery() -> str:
    """Return the page of the gallery, with the scores of the leaderboard."""
    data, board = read_json(PAGES / "gallery.json"), as_data(groups_of(Board(ROOT / "docs").shown, task_names()))
    scores = {mixer["name"]: mixer["cells"] for mixer in board["mixers"]}
    items = [
        item
        | {
            "scores": scores.get(name := item["name"], {}),
            "look": look_of(name)._asdict(),
            "models": MIXERS.entry(name).models,
        }
        for item in data["items"]
    ]
    return render(ROOT / "tools" / "gallery.html", explorer=data | {"items": items, "tasks": board["tasks"]})


def api() -> str:
    """Return the page of all public names, which mkdocstrings fills from their docstrings."""
    lines = ["# API", ""]
    for package in PACKAGES:
        names = sorted(importlib.import_module(package).__all__)
        lines += [f"## {package}", "", *(line for name in names for line in (f"::: {package}.{name}", ""))]
    return "\n".join(lines)


def with_links(page: Path) -> str:
    """Return the text of a staged page, its links leading to staged files."""
    name = page.relative_to(PAGES).as_posix()
    source = ROOT / ("README.md" if name == "index.md" else name if name in KEPT else f"docs/{name}")

    def link(found: re.Match[str]) -> str:
        text, target, _, anchor = found["text"], *found["target"].partition("#")
        if not target or "://" in target:
            return found[0]
        there = Path(os.path.normpath(source.parent / target)).relative_to(ROOT).as_posix()
        staged = PAGES / ("index.md" if there == "README.md" else there.removeprefix("docs/"))
        if not staged.is_file():
            return text.removeprefix("!")[1:-1]
        return f"{text}({os.path.relpath(staged, page.parent)}{'#' if anchor else ''}{anchor})"

    return re.sub(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s]+)\)", link, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    sys.exit(main())
