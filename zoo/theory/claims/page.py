"""Reports on claims: a folder of verdicts, the page docs/claims.md, and the two figures of docs/theory.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zoo.evidence import Panel, Verdict
from zoo.evidence.page import RULE, panels_figure, section, verdict_record
from zoo.report.files import as_json, write_all
from zoo.report.markdown import table
from zoo.report.plots import as_png
from zoo.theory.claims import CLAIMS, claims_by_paper
from zoo.theory.claims.claim import QUICK, Settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_report(verdicts: Sequence[Verdict], folder: str | Path) -> list[Path]:
    """Write claims.json, claims.md and a PNG per plot into `folder`, creating it; each file is written atomically.

    Returns:
        The files, claims.md first.

    Raises:
        MissingExtraError: matplotlib is not installed; raised before anything is written.
        OSError: the folder cannot be written.
    """
    plots = {name: as_png(panels_figure([panel])) for verdict in verdicts for name, panel in _plots(verdict).items()}
    pages = {"claims.md": verdicts_as_markdown(verdicts), "claims.json": as_json([*map(verdict_record, verdicts)])}
    return write_all(folder, pages | plots)


def verdicts_as_markdown(verdicts: Sequence[Verdict]) -> str:
    """Return a page: a summary, then each claim with its checks and links to the plots of `write_report`."""
    unexpected = [f"{each.claim.name} ({each.status})" for each in verdicts if not each.as_expected]
    lines = ["# Claims and verdicts", ""]
    lines += [
        f"{len(verdicts)} claims, {len(verdicts) - len(unexpected)} with the expected verdict"
        + (f"; others: {', '.join(unexpected)}." if unexpected else "."),
        "",
        RULE,
        "",
        *table(
            ("claim", "verdict", "seconds"),
            [(f"[{v.claim.name}](#{v.claim.name})", v.status, f"{v.seconds:.1f}") for v in verdicts],
            "llr",
        ),
        "",
    ]
    for verdict in verdicts:
        lines += section(verdict_record(verdict), list(_plots(verdict)))
    return "\n".join(lines)


def _plots(verdict: Verdict) -> dict[str, Panel]:
    """Return {file name: panel}."""
    name, panels = verdict.claim.name, verdict.evidence.panels
    return {f"{name}{'' if at == 0 else f'-{at + 1}'}.png": panel for at, panel in enumerate(panels)}


def claims_page() -> str:
    """Return the text of docs/claims.md: all claims, sorted by the papers that they cite. Nothing is measured."""
    intro = (
        "`zoo claims` measures these predictions, listed by paper with the outcome that would refute each. A *slogan* "
        "is a common statement that our measurement refutes. `zoo claims NAME` measures one claim, "
        "`zoo claims --paper NUMBER` all claims of a paper."
    )
    lines = ["# Claims", "", intro, ""]
    for paper, names in claims_by_paper().items():
        lines += [f"## [{paper}](https://arxiv.org/abs/{paper})" if paper else "## Of this project", ""]
        for claim in (CLAIMS[name] for name in names):
            refuted = f"{'Refuted' if claim.slogan else 'Would be refuted'} by: {claim.refuted_by}"
            lines += [f"- `{claim.name}`: {claim.statement} {refuted} Source: {claim.source}."]
        lines += [""]
    return "\n".join([*lines, "Made by `zoo claims --page docs/claims.md`.", ""])


def staircase_figure(settings: Settings = QUICK) -> Figure:
    """Measure the claim `head_count` and draw error against heads: trained errors, the bound, and zero from H = k on.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    return panels_figure(CLAIMS["head_count"].measure(settings).panels)


def gradient_figure(settings: Settings = QUICK) -> Figure:
    """Measure and draw gradient against distance in four plots: LTI SSMs, attention, a gated SSM, and a hybrid stack.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    names = ("gradient_lti", "gradient_attention", "gradient_closed_gates", "gradient_hybrid")
    panels = [panel for name in names for panel in CLAIMS[name].measure(settings).panels]
    return panels_figure(panels, n_rows=2)
