"""The page of a report: everything in one file, nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from tests.check.planted import EmptyMemory
from zoo.__main__ import main
from zoo.check import Finding, Report, check
from zoo.check.page import page

SEEN = ("causality", "chunked", "one_by_one", "rank", "gradient_decay", "padding")


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_holds_findings_plots_and_lines_and_needs_no_network() -> None:
    report = check(EmptyMemory, d_model=8, only=SEEN)
    text = page(report)
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert len(reader.sources) == 2  # streamed against whole, gradient; the operator is not marked
    assert all(source.startswith("data:image/png;base64,") for source in reader.sources)
    assert not re.search(r"https?://|@import|<script", text)
    for finding in report.findings:
        assert f"<code>{finding.property}</code>" in text
    assert "<details open>" in text
    assert "module = EmptyMemory(8)" in text
    assert page(report) == text


def test_what_a_module_says_is_shown_and_not_run() -> None:
    finding = Finding("causality", "failed", "<script>alert(1)</script> & more", "print('<b>')")
    text = page(Report("<i>name</i>", {"d_model": 8}, (finding,)))
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in text
    assert "<i>name</i>" not in text
    assert "<b>" not in text


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    file = tmp_path / "found.html"
    arguments = ["--only", "rank", "gradient_decay", "--d_model", "8", "--html", str(file)]
    assert main(["check", "linear_attention", *arguments]) == 0
    assert file.read_text().count("data:image/png") == 2
