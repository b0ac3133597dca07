"""Stage the pages of the site and build it: `make docs`.

The README is the first page, docs/ is copied, and the pages of mixers, tasks and public names are generated. Links are
rewritten; a link to a file outside the site becomes plain text.
"""

from __future__ import annotations

import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
from nbformat.v4 import new_output

from lab.view.cells import task_names
from lab.view.leaderboard import PAGE, SORTABLE, Leaderboard, as_data, groups_of
from zoo.registry import MIXERS
from zoo.report.files import read_json
from zoo.report.page import render
from zoo.report.plots import look_of

ROOT = Path(__file__).resolve().parent.parent
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
ELSEWHERE = {
    "README.md": "index.md",
    "CITATION.cff": "CITATION.txt",
    "LICENSE": "LICENSE.txt",
    **{name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/learning.md", "benchmarks/first_run.md")},
}
"""File outside docs/ -> its name on the site."""
PUBLIC: dict[str, tuple[str, ...]] = {
    "zoo": (),
    "zoo.theory": (),
    "zoo.training": (),
    "zoo.check": (),
    "zoo.parallel": ("sequence", "shard"),
    "zoo.coefficient": ("coefficient",),
    "zoo.ops": (),
    "zoo.ops.linear_recurrence": ("linear_recurrence",),
    "zoo.ops.time": ("valid_positions",),
    "tasks": (),
    "tasks.datamodule": ("TaskDataModule",),
    "lab": (),
}
"""Package -> its public names on the API page; empty for all of `__all__`."""
ARXIV = re.compile(r"<(a|code|pre|script|title)\b.*?</\1>|<[^>]*>|arXiv:?\s(\d{4}\.\d{4,5})", re.DOTALL)
"""Elements to skip, tags, and arXiv numbers in the text of a page."""
USAGE = """\
import torch
from zoo import create_mixer

mixer = create_mixer("{name}", d_model=64)
x = torch.randn(2, 100, 64)
y, state = mixer.stream(x)
"""
"""Example of a mixer's use on its card in the gallery."""
KERNEL = """\
---
jupyter:
  kernelspec: {name: python3, display_name: Python 3, language: python}
---
"""


def main() -> int:
    """Build the site; return the exit status, 1 if a link is broken."""
    for package in ("zoo", "tasks"):
        subprocess.run([sys.executable, "-m", package, "pages"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("templates", "*.csv", "*.yaml"))
    for name, staged in ELSEWHERE.items():
        (PAGES / staged).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, PAGES / staged)
    shutil.copytree(ROOT / "tools/theme", PAGES / "theme")
    (PAGES / "gallery.html").write_text(gallery(), encoding="utf-8")
    (PAGES / "gallery.json").unlink()  # the page contains it
    (PAGES / "api.md").write_text(api(), encoding="utf-8")
    for page in PAGES.rglob("*.md"):
        page.write_text(with_links(page), encoding="utf-8")
    board, frame = PAGES / PAGE, f'<iframe src="{SORTABLE}" title="Leaderboard"></iframe>'
    board.write_text(re.sub(r"^!\[.*\)$", frame, board.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE))
    for name in MIXERS:
        page = PAGES / "mixers" / f"{name}.md"
        link = f"[Its card in the gallery](../gallery.html#{name})"
        page.write_text(page.read_text(encoding="utf-8").replace("\n\n", f"\n\n{link}\n\n", 1), encoding="utf-8")
    for page in (PAGES / "tutorials").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.with_suffix(".ipynb").write_text(notebook(text), encoding="utf-8")
        title, _, rest = text.partition("\n")
        link = f"[This page as a notebook]({page.stem}.ipynb); open it in the folder of your clone."
        page.write_text(f"{title}\n\n{link}\n{rest}", encoding="utf-8")
    program = Path(sys.executable).with_name("zensical")
    status = subprocess.run([program, "build", "--strict"], cwd=ROOT, check=False).returncode
    for name in ("404.html", "sitemap.xml"):  # both need the site's address, which does not exist yet
        (SITE / name).unlink()
    # Ship the script that search needs on file:// instead of loading it from a server (iframe-worker 1.0.4, MIT).
    shutil.copy(ROOT / "tools/iframe-worker/shim.js", SITE / "assets/shim.js")
    for page in SITE.rglob("*.html"):
        here = os.path.relpath(SITE / "assets/shim.js", page.parent)
        text = page.read_text(encoding="utf-8").replace("https://unpkg.com/iframe-worker/shim", here)
        page.write_text(with_papers(text), encoding="utf-8")
    return status


def notebook(text: str) -> str:
    """Return a tutorial as a notebook with outputs. Blocks become cells; a block with a file name writes the file."""
    body = re.sub(r"^```\w+\n(?=# (\S+\.\w+)\n)", r"```python\n%%writefile \1\n", text, flags=re.MULTILINE)
    found = jupytext.reads(f"{KERNEL}{body}", "md")
    for cell, after in itertools.pairwise(found.cells):
        shown = re.match(r"```text\n(.*?)^```\s*", after.source, re.DOTALL | re.MULTILINE)
        if cell.cell_type == "code" and shown:
            cell["outputs"] = [new_output("stream", name="stdout", text=shown[1])]
            after["source"] = after.source[shown.end() :]
    found["cells"] = [cell for cell in found.cells if cell.source]
    for number, cell in enumerate(found.cells):
        cell["id"] = f"cell{number}"  # random by default
        # A cell stops at the first line that fails.
        cell["source"] = re.sub(r"^%%sh$", "%%sh -e", cell.source, count=1, flags=re.MULTILINE)
    return jupytext.writes(found, "ipynb")


def gallery() -> str:
    """Return the page of the gallery, with scores from the leaderboard."""
    data, board = read_json(PAGES / "gallery.json"), as_data(groups_of(Leaderboard(ROOT / "docs").shown, task_names()))
    scores = {mixer["name"]: mixer["cells"] for mixer in board["mixers"]}
    items = [
        item
        | {
            "scores": scores.get(name := item["name"], {}),
            "look": look_of(name)._asdict(),
            "usage": USAGE.format(name=name),
        }
        for item in data["items"]
    ]
    return render(ROOT / "tools" / "gallery.html", explorer=data | {"items": items, "tasks": board["tasks"]})


def api() -> str:
    """Return the page of all public names; mkdocstrings inserts their docstrings."""
    lines = ["# API", "", "For mixers, with equations and sources, see [their pages](mixers/README.md).", ""]
    for package, chosen in PUBLIC.items():
        names = chosen or sorted(importlib.import_module(package).__all__)
        lines += [f"## {package}", "", *(line for name in names for line in (f"::: {package}.{name}", ""))]
    return "\n".join(lines)


def with_papers(html: str) -> str:
    """Return a page with each arXiv number in its text linked."""

    def link(found: re.Match[str]) -> str:
        return f'<a href="https://arxiv.org/abs/{found[2]}">{found[0]}</a>' if found[2] else found[0]

    return ARXIV.sub(link, html)


def with_links(page: Path) -> str:
    """Return the text of a staged page, with its links rewritten to staged files."""
    name = page.relative_to(PAGES).as_posix()
    origins = {staged: origin for origin, staged in ELSEWHERE.items()}
    source = ROOT / origins.get(name, f"docs/{name}")

    def moved(address: str) -> str | None:
        target, _, anchor = address.partition("#")
        if not target or "://" in target:
            return address
        there = Path(os.path.normpath(source.parent / target)).relative_to(ROOT).as_posix()
        staged = PAGES / ELSEWHERE.get(there, there.removeprefix("docs/"))
        return f"{os.path.relpath(staged, page.parent)}{'#' if anchor else ''}{anchor}" if staged.is_file() else None

    def link(found: re.Match[str]) -> str:
        address = moved(found["target"])
        return f"{found['text']}({address})" if address else found["text"].removeprefix("!")[1:-1]

    def definition(found: re.Match[str]) -> str:  # a mixer's label links to its source on GitHub, to its page here
        return f"[{found['label']}]: {moved(found['target']) or found['label'] + '.md'}"

    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^\[(?P<label>[^\]]+)\]: (?P<target>\S+)$", definition, text, flags=re.MULTILINE)
    return re.sub(r"(?P<text>!?\[[^\]]*\])\((?P<target>[^)\s]+)\)", link, text)


if __name__ == "__main__":
    sys.exit(main())
