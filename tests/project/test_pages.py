"""The pages of the mixers are built from their docstrings, and the table's links resolve."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_the_site_is_built_and_no_link_leads_nowhere() -> None:
    python("tools/site.py")
    assert (ROOT / "build/site/api.html").is_file()


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
