"""Mixer pages are built from docstrings; the site's links resolve, and its pages work in a browser."""

from __future__ import annotations

import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
import torch
from filelock import FileLock
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

import tools.site
from tests import ROOT, python
from tests.browser import WIDTHS, fits_every_screen, opened, reached_by_keyboard
from tools import blocks
from zoo import Backbone, docstrings, pages
from zoo import __main__ as command
from zoo.lookup import Registry
from zoo.registry import MIXERS, Mixer, list_mixers
from zoo.theory.model_heads import measure_heads
from zoo.theory.model_heads_page import Reading, heads_as_html


@pytest.mark.parametrize("name", list_mixers())
def test_a_page_explains_every_option(name: str) -> None:
    meanings = docstrings.arguments(MIXERS[name])
    assert [option.name for option in pages.options(name) if not meanings.get(option.name)] == []
    page = pages.markdown(name)
    assert all(f"**{title}.** " in page for title in pages.REQUIRED)


def test_the_table_in_the_repository_links_every_mixer_and_every_paper() -> None:
    """If it fails, run `python -m zoo pages`."""
    folder = ROOT / "docs" / "mixers"
    text = (folder / "README.md").read_text(encoding="utf-8")
    defined = dict(re.findall(r"^\[([^]]+)\]: (\S+)$", text, re.MULTILINE))
    assert set(re.findall(r"\[([^]]+)\](?!:)", text)) == defined.keys()
    assert all((folder / defined[name]).is_file() for name in MIXERS)


def test_zoo_pages_writes_all_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    assert command.main(["pages", "--out", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == {"README.md", *(f"{name}.md" for name in MIXERS)}
    assert (folder / "kda.md").read_text(encoding="utf-8") == pages.markdown("kda")
    assert len(capsys.readouterr().out.splitlines()) == len(MIXERS) + 1


def test_the_page_of_the_api_has_every_name_that_pages_import() -> None:
    shown = set(re.findall(r"^::: (\S+)$", tools.site.api(), re.MULTILINE))
    pages_of_users = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages_of_users)
    imports = re.findall(r"^from ((?:zoo|tasks|lab)\b\S*) import ([\w, ]+)", text, re.MULTILINE)
    named = {f"{module}.{name}" for module, names in imports for name in re.findall(r"\w+", names)}
    assert named
    assert named - {"zoo.parallel"} <= shown  # a module; the page has its functions


@pytest.mark.parametrize("name", list_mixers())
def test_the_usage_of_each_mixer_in_the_gallery_runs(name: str) -> None:
    exec(tools.site.USAGE.format(name=name), {})


def test_arxiv_numbers_in_text_become_links() -> None:
    html = '<p title="arXiv 1.1">by arXiv 2312.00752 <a href="#">arXiv 2312.00752</a> <code>arXiv 2312.00752</code></p>'
    link = '<a href="https://arxiv.org/abs/2312.00752">arXiv 2312.00752</a>'
    assert tools.site.with_papers(html) == html.replace("by arXiv 2312.00752", f"by {link}")


@pytest.fixture(scope="session")
def site(testrun_uid: str) -> Path:
    """The folder of the site, built once for all test processes."""
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    stamp = build / "tested"
    with FileLock(build / "tested.lock"):
        if not stamp.exists() or stamp.read_text() != testrun_uid:
            python("-m", "tools.site")
            stamp.write_text(testrun_uid)
    return build / "site"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "index.html",
        "tutorials/experiment.html",
        "findings.html",
        "leaderboard_table.html",
        "leaderboard.html",
        "results.html",
        "theory.html",
        "choosing.html",
        "mamba_heads.html",
        "api.html",
        "mixers/ssd.html",
        "gallery.html",
        "gallery.html#attention,ssd",
    ],
)
def test_a_page_of_the_site_fits_every_screen_in_both_colours(page: str, site: Path, browser: Any) -> None:
    fits_every_screen(browser, f"{site.as_uri()}/{page}")


class Links(HTMLParser):
    """The link targets and the anchors of a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors = {"__top"}
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        self.anchors |= {value or "" for name, value in attrs if name in ("id", "name")}


@pytest.mark.slow
def test_every_link_of_the_site_resolves(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html")}
    assert pages
    for page, links in pages.items():
        for address in links.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            there = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert there.is_file(), (page.name, address)
            if there in pages and parts.fragment and there.name != "gallery.html":  # its anchors select mixers
                assert unquote(parts.fragment) in pages[there].anchors, (page.name, address)


CELLS = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        shell.run_cell("".join(cell["source"])).raise_error()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)  # takes minutes even on idle cores
@pytest.mark.parametrize("name", sorted(page.stem for page in (ROOT / "docs" / "tutorials").glob("*.md")))
def test_a_tutorial_runs_as_a_notebook(name: str, site: Path, tmp_path: Path) -> None:
    cells = nbformat.read(site / "tutorials" / f"{name}.ipynb", as_version=4).cells
    text = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    outputs = [output for _, _, output in blocks.BLOCK.findall(text) if output]
    assert [cell.outputs[0].text for cell in cells if cell.get("outputs")] == outputs
    blocks.clone(tmp_path / "clone")
    here = Path(sys.executable).parent  # first on the PATH, so that shell cells call this Python
    python(
        *("-c", CELLS, str(site / "tutorials" / f"{name}.ipynb")),
        cwd=tmp_path / "clone",
        env=os.environ | {"PATH": f"{here}{os.pathsep}{os.environ['PATH']}"},
    )


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("page", "controls"),
    [
        ("gallery.html", "select, input, .card a"),
        ("leaderboard_table.html", "select, input, button, a, .cell"),
        ("findings.html", "a[href], button:not(.md-top), .md-header__button, .md-sidebar-button"),
        ("gallery.html#attention,ssd", "#one :is(select, input, button, a[href])"),
        ("results.html", "article :is(summary, button)"),
    ],
)
def test_the_keyboard_reaches_everything(page: str, controls: str, width: int, site: Path, browser: Any) -> None:
    opened(browser, f"{site.as_uri()}/{page}", width)
    assert reached_by_keyboard(browser, controls)


@pytest.mark.slow
@pytest.mark.parametrize("key", [Keys.ENTER, Keys.SPACE])
@pytest.mark.parametrize("width", WIDTHS[:2])
def test_the_keyboard_opens_the_drawer_and_the_search(width: int, key: str, site: Path, browser: Any) -> None:
    opened(browser, f"{site.as_uri()}/findings.html", width)
    links = ".md-sidebar--primary .md-nav__link"
    reachable = "return [...document.querySelectorAll(arguments[0])].some(e => !e.closest('[inert]'))"
    assert not browser.execute_script(reachable, links)
    browser.find_element("css selector", ".md-header__button[for=__drawer]").send_keys(key)
    assert reached_by_keyboard(browser, f"{links}, .md-header__button")
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not browser.execute_script(reachable, links)
    browser.find_element("css selector", ".md-header__button[for=__search]").send_keys(key)
    WebDriverWait(browser, 20).until(lambda _: browser.switch_to.active_element.tag_name == "div")  # the search field's


@pytest.mark.slow
def test_the_search_works_from_disk(site: Path, browser: Any) -> None:
    opened(browser, (site / "index.html").as_uri(), WIDTHS[-1])
    browser.find_element("css selector", ".md-search__button").click()
    waiting = WebDriverWait(browser, 20)
    waiting.until(lambda _: browser.switch_to.active_element.tag_name == "div")  # the search field's
    browser.switch_to.active_element.send_keys("starts_of_mamba")

    def found(_: Any) -> bool:
        browser.switch_to.active_element.send_keys(Keys.ENTER)  # opens the first hit once there is one
        return "results.html" in browser.current_url

    waiting.until(found)


def shown(browser: Any, selector: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
    return browser.execute_script(script, selector)


@pytest.mark.slow
def test_the_gallery_can_be_used_by_keyboard(site: Path, browser: Any) -> None:
    opened(browser, (site / "gallery.html").as_uri(), WIDTHS[-1])
    assert shown(browser, ".card h2") == list_mixers()
    for by in Select(browser.find_element("id", "sort")).options:
        by.click()
        assert sorted(shown(browser, ".card h2")) == sorted(list_mixers())
    Select(browser.find_element("id", "sort")).select_by_visible_text("state at 65,536")
    assert shown(browser, ".card h2")[0] == "identity"  # no state
    browser.find_element("id", "find").send_keys("delta rule")
    assert set(shown(browser, ".card h2")) < set(list_mixers())
    browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    (chosen,) = shown(browser, ".side h2")
    assert browser.current_url.endswith(f"#{chosen}")
    assert shown(browser, ".usage") == [tools.site.USAGE.format(name=chosen)]
    before = shown(browser, ".side svg")[0]
    browser.switch_to.active_element.send_keys(Keys.ARROW_LEFT)  # the query position has the focus
    assert shown(browser, "#at") == ["30"]
    assert shown(browser, ".side svg")[0] != before
    browser.find_element("id", "add").click()
    assert shown(browser, ".side h2")[0] == chosen
    browser.back()
    WebDriverWait(browser, 20).until(lambda _: shown(browser, ".side h2") == [chosen])
    browser.back()
    WebDriverWait(browser, 20).until(lambda _: browser.find_element("id", "list").is_displayed())
    assert browser.switch_to.active_element.text == chosen


@pytest.mark.slow
def test_the_page_of_a_models_layers_can_be_used_like_the_gallery(tmp_path: Path, browser: Any) -> None:
    model = Backbone(mixer={"name": "hybrid", "n_heads": 2}, d_model=8, n_layers=2, vocab_size=12, n_outputs=12)
    x = torch.randint(12, (3, 10), generator=torch.Generator().manual_seed(0))
    rows = measure_heads(model, x, x, explore=True)
    (tmp_path / "heads.html").write_text(heads_as_html(rows, Reading("a model", "3 sequences", "agreement", 0.1)))
    browser.get_log("browser")  # clear the messages of earlier pages
    opened(browser, (tmp_path / "heads.html").as_uri(), WIDTHS[-1])
    assert shown(browser, ".side h2") == [rows[0].name]
    assert len(shown(browser, ".side svg")) == 5  # including the scores of the truncated layer
    layer = browser.find_element("id", "item0")
    layer.send_keys(rows[1].name)
    assert shown(browser, ".side h2") == [rows[1].name]
    assert browser.switch_to.active_element.get_attribute("id") == "item0"  # although everything was redrawn
    whole = browser.execute_script("return document.querySelector('canvas').toDataURL()")
    Select(browser.find_element("id", "head0")).select_by_index(2)
    assert browser.execute_script("return document.querySelector('canvas').toDataURL()") != whole
    fits_every_screen(browser, browser.current_url)


class Whole:
    """What it is.

        y = x

    More of it,
    in two lines.

    Coefficients. None. No offset.

    State. None.

    Interaction rank. 1.

    Source. Nobody.

    Args:
        one, two: a thing
            or two.
        three: another: with a colon.

    Raises:
        ValueError: never.
    """


def test_a_docstring_is_split_into_its_sections() -> None:
    free, sections = docstrings.titled(Whole, pages.SECTIONS)
    assert free == ["What it is.", "    y = x", "More of it,\nin two lines."]
    assert sections["Coefficients"] == "None. No offset."
    assert [*sections] == [*pages.REQUIRED]
    shared = "a thing or two."
    assert docstrings.arguments(Whole) == {"one": shared, "two": shared, "three": "another: with a colon."}
    assert docstrings.arguments(type("Bare", (), {})) == {}
    assert docstrings.arguments(type("Odd", (), {"__doc__": "Do.\n\nArgs:\n    no colon"})) == {}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("State. None.\n\n    ", "", "'Coefficients', 'State', "),
        ("Interaction rank. 1.\n\n    Source. Nobody.", "Source. Nobody.\n\n    Interaction rank. 1.", "in order"),
        ("State. None.", "Nothing is kept.", "'Nothing is kept.', below 'Coefficients'"),
    ],
)
def test_a_docstring_without_its_required_sections_is_refused(
    old: str, new: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Whole.__doc__ or "").replace(old, new)
    monkeypatch.setattr(sys.modules[__name__], "Flawed", type("Whole", (), {"__doc__": text}), False)
    entry = Mixer(f"{__name__}:Flawed", "what it is", 2000, "nobody", family="control")
    monkeypatch.setattr(pages, "MIXERS", Registry("mixer", {"flawed": entry}))
    with pytest.raises(ValueError, match=re.escape(message)):
        pages.markdown("flawed")
