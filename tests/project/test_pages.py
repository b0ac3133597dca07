"""The pages of the mixers are built from their docstrings, and the table's links resolve."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from tests import ROOT, python
from zoo import __main__ as command
from zoo import docstrings, pages
from zoo.lookup import Registry
from zoo.registry import MIXERS, Mixer, list_mixers


@pytest.mark.parametrize("name", list_mixers())
def test_a_page_explains_every_option(name: str) -> None:
    meanings = docstrings.arguments(MIXERS[name])
    assert [option.name for option in pages.options(name) if not meanings.get(option.name)] == []
    page = pages.markdown(name)
    assert all(f"**{title}.** " in page for title in pages.REQUIRED)


def test_a_page_has_the_options_that_its_entry_sets() -> None:
    gates = {name: {o.name: o.default for o in pages.options(name)}["gates"] for name in ("kda", "gdn2")}
    assert gates == {"kda": "head", "gdn2": "channel"}
    assert "`zoo.mixers.kda.KimiDelta` with `gates: channel`" in pages.markdown("gdn2")


def test_the_table_in_the_repository_links_every_mixer_and_every_paper() -> None:
    """`python -m zoo pages` writes it anew."""
    folder = ROOT / "docs" / "mixers"
    text = (folder / "README.md").read_text(encoding="utf-8")
    defined = dict(re.findall(r"^\[([^]]+)\]: (\S+)$", text, re.MULTILINE))
    assert set(re.findall(r"\[([^]]+)\](?!:)", text)) == defined.keys()
    assert all((folder / defined[name]).is_file() for name in MIXERS)


def test_the_verb_writes_all_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    assert command.main(["pages", "--out", str(folder)]) == 0
    assert {path.name for path in folder.iterdir()} == {"README.md", *(f"{name}.md" for name in MIXERS)}
    assert (folder / "kda.md").read_text(encoding="utf-8") == pages.markdown("kda")
    assert len(capsys.readouterr().out.splitlines()) == len(MIXERS) + 1


@pytest.fixture(scope="module")
def site() -> Path:
    """The site, built with a check that no link leads nowhere."""
    python("tools/site.py")
    return ROOT / "build" / "site"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["index.html", "results.html", "api.html", "gallery.html", "gallery.html#attention,ssd"]
)
def test_a_page_of_the_site_fits_every_screen_in_both_colours(page: str, site: Path, browser: Any) -> None:
    for width, colour in itertools.product((390, 800, 1400), ("light", "dark")):
        media = {"features": [{"name": "prefers-color-scheme", "value": colour}]}
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get("about:blank")
        browser.get(f"{site.as_uri()}/{page}")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert [entry["message"] for entry in browser.get_log("browser")] == []
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_the_site_is_searched_from_disk(site: Path, browser: Any) -> None:
    browser.get((site / "index.html").as_uri())
    browser.find_element("css selector", ".md-search__button").click()
    waiting = WebDriverWait(browser, 20)
    waiting.until(lambda _: browser.switch_to.active_element.tag_name == "div")  # which holds the field
    browser.switch_to.active_element.send_keys("starts_of_mamba")

    def opened(_: Any) -> bool:
        browser.switch_to.active_element.send_keys(Keys.ENTER)  # opens the first hit once there is one
        return "results.html" in browser.current_url

    waiting.until(opened)


@pytest.mark.slow
def test_the_gallery_is_explored_by_keyboard(site: Path, browser: Any) -> None:
    def shown(selector: str) -> list[str]:
        return browser.execute_script(
            "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector
        )

    browser.get("about:blank")
    browser.get((site / "gallery.html").as_uri())
    assert shown(".card h2") == list_mixers()
    browser.find_element("id", "find").send_keys("delta rule")
    assert set(shown(".card h2")) < set(list_mixers())
    browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    (chosen,) = shown(".side h2")
    assert browser.current_url.endswith(f"#{chosen}")
    before = shown(".side svg")[0]
    browser.switch_to.active_element.send_keys(Keys.ARROW_LEFT)  # the query position has the focus
    assert shown("#at") == ["30"]
    assert shown(".side svg")[0] != before


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


def test_a_docstring_is_read_in_parts() -> None:
    free, sections = docstrings.titled(Whole, pages.SECTIONS)
    assert free == ["What it is.", "    y = x", "More of it,\nin two lines."]
    assert sections["Coefficients"] == "None. No offset."
    assert [*sections] == [*pages.REQUIRED]
    shared = "a thing or two."
    assert docstrings.arguments(Whole) == {"one": shared, "two": shared, "three": "another: with a colon."}
    assert docstrings.arguments(type("Bare", (), {})) == {}
    assert docstrings.arguments(type("Odd", (), {"__doc__": "Do.\n\nArgs:\n    no colon"})) == {}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("State. None.\n\n    ", "", "'Coefficients', 'State', "),
        ("Interaction rank. 1.\n\n    Source. Nobody.", "Source. Nobody.\n\n    Interaction rank. 1.", "in order"),
        ("State. None.", "Nothing is kept.", "'Nothing is kept.', below 'Coefficients'"),
        ("State. None.", "State. None.\n\n    State. None.", "'State'"),
    ],
)
def test_a_docstring_without_its_paragraphs_is_refused(
    old: str, new: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Whole.__doc__ or "").replace(old, new)
    monkeypatch.setattr(sys.modules[__name__], "Flawed", type("Whole", (), {"__doc__": text}), False)
    entry = Mixer(f"{__name__}:Flawed", "what it is", 2000, "nobody", family="control")
    monkeypatch.setattr(pages, "MIXERS", Registry("mixer", {"flawed": entry}))
    with pytest.raises(ValueError, match=re.escape(says)):
        pages.markdown("flawed")
