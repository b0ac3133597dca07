"""Tests, in folders as the rooms they test. Shared parts are imported as `tests.reference`, `tests.tolerances`."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
"""The project's folder."""


def run_python(text: str, scope: dict[str, Any]) -> None:
    """Run the Python blocks of a Markdown page in the current folder; one that begins with a file's name is written."""
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if re.match(r"# \S+\.py$", block, re.MULTILINE):
            Path(block.splitlines()[0].removeprefix("# ")).write_text(block)
        else:
            exec(compile(block, "page.md", "exec"), scope)
