"""The page of `zoo heads`: its columns with their explanations, as JSON and as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zoo.report.files import as_json
from zoo.report.numbers import NOTHING
from zoo.report.page import Column, Page, as_html
from zoo.theory.columns import HEADS, or_nothing, rank_text, rate_text, remarks, spectrum_record
from zoo.theory.explorer import DECADES, rounded
from zoo.theory.gradients import GRADIENT_SKETCH, WIDE
from zoo.theory.model_heads import EXPLORED, KEPT, LayerHeads


@dataclass(frozen=True)
class Reading:
    """Descriptions of the model, the sequences and the score.

    Attributes:
        model: path of the model.
        where: the sequences at which operators were read, in words.
        score: the score and its sequences, in words; empty if no layer was cut.
        chance: score of answers that ignore the input.
    """

    model: str
    where: str
    score: str
    chance: float


def _functional(row: LayerHeads) -> str:
    if row.cut is None or not row.cut.whole > 0:
        return NOTHING
    least = row.cut.functional_heads
    return f"> {max(row.cut.scores)}" if least is None else str(least)


def _state(row: LayerHeads) -> str:
    return NOTHING if row.state_size is None else "/".join(str(rank) for rank in row.state_size.rank.tolist())


COLUMNS = (
    Column("heads", "heads of the mixer", lambda row: or_nothing(row.n_heads)),
    Column(
        "rank",
        "interaction rank: heads that copy the layer exactly; ≥ if it reaches the limit of a sketch",
        lambda row: rank_text(row.read),
    ),
    HEADS,
    Column(
        "functional heads",
        f"fewest of the layer's best operators that keep {100 * KEPT:g} % of the model's score; 0: it needs none",
        _functional,
    ),
    Column("state size", "effective state size at a quarter, a half and three quarters of the sequence", _state),
    Column(
        "gradient rate",
        "slope of log J(τ) per token, 95 % interval; 0 beyond τ: no gradient there; in layers wider than "
        f"{WIDE} channels J(τ) is estimated from {GRADIENT_SKETCH} random directions of the output",
        lambda row: rate_text(row.gradient),
    ),
)


def model_heads_page(rows: Sequence[LayerHeads], reading: Reading) -> Page:
    """Return the page of a model: the sequences, the score, a row per layer."""
    lead = [f"Operators are read at {reading.where}."]
    if (whole := next((row.cut.whole for row in rows if row.cut is not None), None)) is not None:
        lead.append(f"Score: {reading.score}; the uncut model has {whole:.3g}, chance {reading.chance:.3g}.")
        if not whole > 0:
            lead.append("Functional heads are not counted, because the uncut score is not positive.")
    title = f"Heads of {reading.model}"
    return Page(
        title,
        {title: COLUMNS},
        rows,
        lead,
        remarks({row.name: row.read for row in rows}),
        f"The layers at the first sequence (up to {EXPLORED} positions)",
    )


def heads_as_html(rows: Sequence[LayerHeads], reading: Reading) -> str:
    """Return one HTML page with the explorer; the rows must have been measured with `explore=True`.

    Raises:
        MissingExtraError: jinja2 is not installed.
    """
    items = [_item(row, reading) for row in rows]
    data = {"noun": "layer", "decades": DECADES, "inputs": [reading.where], "items": items}
    return as_html(model_heads_page(rows, reading), explorer=data)


def _item(row: LayerHeads, reading: Reading) -> dict[str, Any]:
    """Return a layer as an item of the explorer's data."""
    profile = row.gradient.profile
    pairs = zip(profile.distances.tolist(), profile.median.tolist(), strict=True)
    gradient = [(tau, rounded(value)) for tau, value in pairs]
    variant: dict[str, Any] = {"option": "", "gradient": gradient, "inputs": {reading.where: row.explored}}
    if row.cut is not None:
        scores = [(count, rounded(score)) for count, score in sorted(row.cut.scores.items())]
        variant["cut"] = {"whole": row.cut.whole, "chance": reading.chance, "scores": scores}
    return {"name": row.name, "variants": [variant]}


def heads_as_json(rows: Sequence[LayerHeads], reading: Reading) -> str:
    """Return all measurements as JSON text."""
    return as_json({**asdict(reading), "layers": [*map(_record, rows)]})


def _record(row: LayerHeads) -> dict[str, Any]:
    state, decay, cut = row.state_size, row.gradient.decay, row.cut
    return {
        "name": row.name,
        "n_heads": row.n_heads,
        **spectrum_record(row.read),
        "functional_heads": None if cut is None else cut.functional_heads,
        "score": None if cut is None else cut.whole,
        "score_by_heads": None if cut is None else cut.scores,
        "state_size": None if state is None else dict(zip(state.positions.tolist(), state.rank.tolist(), strict=True)),
        "gradient_rate": None if decay is None else {"rate": decay.rate, "interval": decay.interval},
    }
