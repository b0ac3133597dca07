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

ROOT = Path(__file__).resolve().parent.parent
PAGES, SITE = ROOT / "build" / "pages", ROOT / "build" / "site"
KEPT = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/learning.md", "benchmarks/first_run.md")
"""Pages outside docs/, besides the README."""
PACKAGES = ("zoo", "tasks", "lab")


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
    gallery = (ROOT / "tools" / "gallery.html").read_text(encoding="utf-8")
    data = (PAGES / "gallery.json").read_text(encoding="utf-8").replace("</", "<\\/")
    (PAGES / "gallery.html").write_text(gallery.replace("/*DATA*/", data), encoding="utf-8")
    (PAGES / "api.md").write_text(api(), encoding="utf-8")
    for page in PAGES.rglob("*.md"):
        page.write_text(with_links(page), encoding="utf-8")
    program = Path(sys.executable).with_name("zensical")
    status = subprocess.run([program, "build", "--strict"], cwd=ROOT, check=False).returncode
    # What a search from disk needs is asked of a server: it is put beside the pages (iframe-worker 1.0.4, MIT).
    shutil.copy(ROOT / "tools/iframe-worker/shim.js", SITE / "assets/shim.js")
    for page in SITE.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        here = os.path.relpath(SITE / "assets/shim.js", page.parent)
        page.write_text(text.replace("https://unpkg.com/iframe-worker/shim", here), encoding="utf-8")
    return status


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
