"""The heads of a model on paper: a table, plots, JSON and one page that needs no network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from zoo.report.files import as_json
from zoo.report.numbers import NOTHING
from zoo.report.plots import as_png, legend_beside, legend_columns, line_style, new_figure, styled
from zoo.theory.comparison import HEADS, Column, cells, describe_sketches, describe_unread, or_nothing
from zoo.theory.figures import rank_text, rate_text
from zoo.theory.measure import GRADIENT_SKETCH, WIDE
from zoo.theory.model_heads import KEPT, LayerHeads

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Reading:
    """What was read, and how.

    Attributes:
        model: its path.
        where: the sequences at which operators were read, in words.
        score: what the model's score is, and on which sequences, in words; empty where no layer was cut.
        chance: the score of answers without the input.
    """

    model: str
    where: str
    score: str
    chance: float


def _functional(row: LayerHeads) -> str:
    if row.cut is None or row.cut.whole <= 0:
        return NOTHING
    least = row.cut.functional_heads
    return f"> {max(row.cut.scores)}" if least is None else str(least)


def _state(row: LayerHeads) -> str:
    return NOTHING if row.state_size is None else "/".join(str(rank) for rank in row.state_size.rank.tolist())


_TICKS = (0, 1, 2, 4, 8, 16, 32, 64)

COLUMNS = (
    Column("heads", "heads that the mixer has", lambda row: or_nothing(row.n_heads)),
    Column(
        "rank",
        "interaction rank: heads that copy the layer exactly; ≥ where a sketch could see no more",
        rank_text,
    ),
    HEADS,
    Column(
        "functional heads",
        f"the layer cut to its best operators: how many keep {100 * KEPT:g} % of the model's score",
        _functional,
    ),
    Column("state size", "effective state size at a quarter, a half and three quarters of the sequence", _state),
    Column(
        "gradient rate",
        "slope of log J(τ) per token, 95 % interval; 0 beyond τ: none arrives; of layers wider than "
        f"{WIDE} channels J(τ) is estimated from {GRADIENT_SKETCH} random directions of the output",
        lambda row: rate_text(row.gradient),
    ),
)


def heads_as_json(rows: Sequence[LayerHeads], reading: Reading) -> str:
    """Return all that was measured, as JSON text."""
    return as_json({**asdict(reading), "layers": [*map(_record, rows)]})


def _record(row: LayerHeads) -> dict[str, Any]:
    state, decay, cut = row.state_size, row.gradient.decay, row.cut
    return {
        "name": row.name,
        "n_heads": row.n_heads,
        "rank": row.rank,
        "rank_limit": row.rank_limit,
        "sources": row.sources,
        "heads": row.heads,
        "functional_heads": None if cut is None else cut.functional_heads,
        "score": None if cut is None else cut.whole,
        "score_by_heads": None if cut is None else cut.scores,
        "state_size": None if state is None else dict(zip(state.positions.tolist(), state.rank.tolist(), strict=True)),
        "gradient_rate": None if decay is None else {"rate": decay.rate, "interval": decay.interval},
    }


@styled
def heads_figure(rows: Sequence[LayerHeads], reading: Reading) -> Figure:
    """Score against the operators that are left of one layer, and gradient against distance; a line per layer."""
    figure, (scores, gradients) = new_figure(2, legends=legend_columns(len(rows)))
    for at, row in enumerate(rows):
        style = line_style(at, len(rows))
        if row.cut is not None:
            counts = sorted(row.cut.scores)
            scores.plot(counts, [row.cut.scores[count] for count in counts], label=row.name, marker="o", **style)
        profile = row.gradient.profile
        median = profile.values.double().quantile(0.5, dim=0)
        gradients.plot(profile.distances.cpu(), median.cpu(), label=row.name, **style)
    if (cut := next((row.cut for row in rows if row.cut is not None), None)) is not None:
        scores.axhline(KEPT * cut.whole, color="0.4", linestyle=":", linewidth=1.0)
        scores.axhline(reading.chance, color="0.4", linestyle="--", linewidth=1.0)
    most = max((max(row.cut.scores) for row in rows if row.cut is not None), default=1)
    ticks = [tick for tick in _TICKS if tick <= most]
    scores.set_xscale("symlog", linthresh=4)
    scores.set_xlim(-0.3, 1.1 * most + 0.3)
    scores.set_xticks(ticks, [str(count) for count in ticks], minor=False)
    scores.set_xticks([], minor=True)
    scores.set(title="the model with one layer cut", xlabel="operators left of the layer", ylabel="score")
    gradients.set(yscale="log", title="gradient of a layer", xlabel="distance τ (tokens)", ylabel="J(τ)")
    legend_beside(gradients, "layer")
    return figure


def heads_page(rows: Sequence[LayerHeads], reading: Reading) -> str:
    """Return one HTML page: what was read, the table, what its columns are, and the plots, which are part of it."""
    picture = base64.b64encode(as_png(heads_figure(rows, reading))).decode()
    headings, lines, _ = cells(COLUMNS, rows)
    body = (
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(text)}</td>' for text in texts)}</tr>"
        for name, *texts in lines
    )
    meanings = (f"<dt>{escape(column.heading)}</dt><dd>{escape(column.meaning)}</dd>" for column in COLUMNS)
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            f"<title>Heads of {escape(reading.model)}</title>",
            "<style>:root{color-scheme:light dark}"
            "body{font-family:sans-serif;margin:2em auto;max-width:75em;padding:0 1em}"
            "table{border-collapse:collapse;display:block;overflow-x:auto}"
            "th,td{border-bottom:1px solid #888;padding:.3em .8em;text-align:right}th:first-child{text-align:left}"
            "img{max-width:100%}dt{font-weight:bold}</style></head><body>",
            f"<h1>Heads of {escape(reading.model)}</h1>",
            *(f"<p>{escape(line)}</p>" for line in describe(rows, reading)),
            f"<table><tr>{''.join(f'<th>{escape(heading)}</th>' for heading in headings)}</tr>",
            *body,
            f'</table>\n<p><img alt="Scores of cut layers, gradients" src="data:image/png;base64,{picture}"></p>\n<dl>',
            *meanings,
            "</dl></body></html>\n",
        )
    )


def describe(rows: Sequence[LayerHeads], reading: Reading) -> list[str]:
    """Return what was read, how it was scored and what the whole model scores, in sentences."""
    lines = [f"Operators are read at {reading.where}."]
    if (whole := next((row.cut.whole for row in rows if row.cut is not None), None)) is not None:
        lines.append(f"Score: {reading.score}; the whole model has {whole:.3g}, chance {reading.chance:.3g}.")
        if whole <= 0:
            lines.append("That leaves nothing to keep: functional heads are not counted.")
    return [*lines, *filter(None, [describe_sketches(rows), describe_unread(rows)])]
