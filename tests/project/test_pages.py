"""The pages of the mixers are those that their docstrings make."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests import ROOT
from zoo import __main__ as command
from zoo import docstrings, pages
from zoo.lookup import Registry
from zoo.registry import MIXERS, Mixer, list_mixers

FOLDER = ROOT / "docs" / "mixers"


@pytest.mark.parametrize("name", list_mixers())
def test_every_mixer_has_a_page_that_is_up_to_date(name: str) -> None:
    assert (FOLDER / f"{name}.md").read_text(encoding="utf-8") == pages.markdown(name), "python -m zoo pages"


def test_the_list_of_mixers_is_up_to_date_and_no_page_is_left_of_a_mixer_that_is_gone() -> None:
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == pages.index(), "python -m zoo pages"
    assert {path.name for path in FOLDER.iterdir()} == pages.pages().keys()


@pytest.mark.parametrize("name", list_mixers())
def test_a_page_explains_every_option_and_reads_at_120_columns(name: str) -> None:
    assert [option.name for option in pages.options(name) if not option.meaning] == []
    page = pages.markdown(name)
    assert max(map(len, page.splitlines())) <= 120
    # A line of prose that began with a sign would be read as a list or a quotation.
    prose = page.partition("## Options")[0]
    assert re.findall(r"^(?:[-+*>] |#+ |=+$|\d+[.)] ).*", prose.partition("\n")[2], re.MULTILINE) == []


def test_a_page_has_the_options_that_its_entry_sets() -> None:
    gates = {name: {o.name: o.default for o in pages.options(name)}["gates"] for name in ("kda", "gdn2")}
    assert gates == {"kda": "head", "gdn2": "channel"}
    assert "`zoo.mixers.kda.KimiDelta` with `gates: channel`" in " ".join(pages.markdown("gdn2").split())


def test_the_list_links_every_page_and_every_paper() -> None:
    text = pages.index()
    defined = dict(re.findall(r"^\[([^]]+)\]: (\S+)$", text, re.MULTILINE))
    used = set(re.findall(r"\[([^]]+)\](?!:)", text))
    assert used == defined.keys()
    assert {name: f"{name}.md" for name in MIXERS}.items() <= defined.items()


def test_the_verb_writes_all_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["pages", "--out", str(tmp_path / "a" / "b")]) == 0
    assert {path.name: path.read_text() for path in (tmp_path / "a" / "b").iterdir()} == pages.pages()
    assert len(capsys.readouterr().out.splitlines()) == len(MIXERS) + 1


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
    assert docstrings.arguments(Whole) == {
        "one": "a thing or two.",
        "two": "a thing or two.",
        "three": "another: with a colon.",
    }
    assert docstrings.arguments(type("Bare", (), {})) == {}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "State. None.\n\n    ",
            "",
            "must have paragraphs that begin with 'Coefficients', 'State', ",
        ),
        (
            "Interaction rank. 1.\n\n    Source. Nobody.",
            "Source. Nobody.\n\n    Interaction rank. 1.",
            "'Source', in order",
        ),
        ("State. None.", "Nothing is kept.", "'Nothing is kept.' stands below 'Coefficients' and has no title"),
        ("State. None.", "State. None.\n\n    State. None.", "Whole says 'State' twice"),
    ],
)
def test_a_docstring_without_its_paragraphs_is_refused(
    old: str, new: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Whole.__doc__ or ""
    assert old in text
    monkeypatch.setattr(sys.modules[__name__], "Flawed", type("Whole", (), {"__doc__": text.replace(old, new)}), False)
    entry = Mixer(f"{__name__}:Flawed", "what it is", "control", 2000, "nobody")
    monkeypatch.setattr(pages, "MIXERS", Registry("mixer", {"flawed": entry}))
    with pytest.raises(ValueError, match=re.escape(says)):
        pages.markdown("flawed")
