"""The comparison table on paper: what each column is, cells as text, JSON and a Markdown page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from zoo.report.files import as_json, write_all
from zoo.report.markdown import table
from zoo.report.numbers import NOTHING, Number, size
from zoo.report.plots import as_png
from zoo.theory.figures import comparison_figure, heads_text, rank_text, rate_text
from zoo.theory.measure import REL_ERRORS, SKETCH, STATE_LENGTHS, Gradient, Measurement, Sizes

if TYPE_CHECKING:
    from zoo.theory.model_heads import LayerHeads

    Row: TypeAlias = Measurement | LayerHeads

BELOW = (
    "The prediction counts directions in exact arithmetic; those below 1e-10 of the largest are not told from roundoff."
)
_CAPTION = "Error against heads, time against length, gradient against distance on random and on highway input"


class Column(NamedTuple):
    """A column of the table: its heading, what it is, and its cell in a row."""

    heading: str
    meaning: str
    cell: Callable[[Any], str]


def cells(columns: Sequence[Column], rows: Sequence[Row]) -> tuple[list[str], list[list[str]], str]:
    """Return headings, rows and alignment of a table whose first column is the names of the rows."""
    texts = [[row.name, *(column.cell(row) for column in columns)] for row in rows]
    return ["", *(column.heading for column in columns)], texts, "l" + "r" * len(columns)


def or_nothing(value: Number | None, digits: int = 0) -> str:
    """Write a number with so many decimals, and None as a dash."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def _state(length: int) -> Column:
    meaning = f"bytes of the streaming state after {length:,} tokens, float32"
    return Column(f"state at {length // 1024}k", meaning, lambda row: size(row.state_bytes[length]))


HEADS = Column(
    f"heads, {'/'.join(f'{100 * error:g}' for error in REL_ERRORS)} %",
    "fewest heads that leave that relative error of the operator; ≥ where only some source positions are read",
    heads_text,
)
GROUPS: Mapping[str, tuple[Column, ...]] = {
    "Operator": (
        Column("rank", "interaction rank k = dim span{W_ij}, measured", rank_text),
        Column(
            "predicted",
            "the rank that the mixer's algebra gives, in exact arithmetic",
            lambda row: or_nothing(row.predicted_rank),
        ),
        HEADS,
        Column(
            "effective rank",
            "exp of the entropy of the spectrum's energies",
            lambda row: or_nothing(row.effective_rank, 1),
        ),
        Column(
            "‖c‖/‖y‖",
            "share of the output that is in c (biases) and not in W: the other columns here say nothing about it",
            lambda row: or_nothing(row.offset_share, 2),
        ),
        Column(
            "input dependence",
            "how far W moves between two random inputs: 0 fixed, 1.41 orthogonal",
            lambda row: or_nothing(row.input_dependence, 2),
        ),
    ),
    "Gradient": (
        Column(
            "rate on random input",
            "slope of log J(τ) per token, 95 % interval; negative where gradients vanish; 0 beyond τ: none arrives",
            lambda row: rate_text(row.noise),
        ),
        Column(
            "rate on highway input",
            "the same on the mixer's own input that opens a highway; – where none is known",
            lambda row: rate_text(row.highway),
        ),
    ),
    "Cost": (
        Column(
            "time",
            "exponent of a forward and backward pass against length",
            lambda row: f"{row.cost.time_exponent:.2f}",
        ),
        Column(
            "memory",
            "exponent of the bytes held between the two against length",
            lambda row: f"{row.cost.memory_exponent:.2f}",
        ),
        Column("parameters", "trainable numbers", lambda row: f"{row.n_params:,}"),
        *map(_state, STATE_LENGTHS),
    ),
}
"""Columns of the table by group; a terminal shows a group at a time."""


def measurements_as_json(rows: Sequence[Measurement], sizes: Sizes, machine: str) -> str:
    """Return all that was measured, as JSON text: spectra, profiles and costs too; what is not finite is null."""
    content = {"machine": machine, "sizes": asdict(sizes), "rows": [_record(row) for row in rows]}
    return as_json(content)


def _record(row: Measurement) -> dict[str, Any]:
    record = {name: value for name, value in vars(row).items() if name not in ("noise", "highway", "cost")}
    gradients = {"gradient_random": row.noise, "gradient_highway": row.highway}
    return record | {
        "as_predicted": row.as_predicted,
        **{name: None if gradient is None else _gradient(gradient) for name, gradient in gradients.items()},
        "cost": row.cost._asdict(),
    }


def _gradient(gradient: Gradient) -> dict[str, Any]:
    return {
        "decay": None if gradient.decay is None else gradient.decay._asdict(),
        "reach": gradient.reach,
        "distances": gradient.profile.distances.tolist(),
        "median": gradient.profile.values.double().quantile(0.5, dim=0).tolist(),
        "seeds": len(gradient.profile.values),
    }


def measurements_as_markdown(rows: Sequence[Measurement], sizes: Sizes, machine: str) -> str:
    """Return a page: where and at which sizes, the table, what its columns are, and the picture."""
    columns = [column for group in GROUPS.values() for column in group]
    lines = [
        "# Mixers, measured",
        "",
        f"{describe_sizes(sizes)} Measured in {sum(row.seconds for row in rows):.0f} s on {machine}.",
        "",
        *table(*cells(columns, rows)),
        "",
        *(line for remark in remarks(rows) for line in (remark, "")),
        *(f"- **{column.heading}**: {column.meaning}" for column in columns),
        "",
        f"![{_CAPTION}](measure.png)",
        "",
    ]
    return "\n".join(lines)


def remarks(rows: Sequence[Measurement]) -> list[str]:
    """Return what a reader of the table must know, in sentences."""
    return [*filter(None, (describe_unread(rows), describe_misses(rows), describe_sketches(rows)))]


def describe_misses(rows: Sequence[Measurement]) -> str:
    """Return which rows have another rank than predicted, in a sentence, and why that may be; empty where none has."""
    missed = [row.name for row in rows if row.as_predicted is False]
    return f"Rank other than predicted: {', '.join(missed)}. {BELOW}" if missed else ""


def describe_unread(rows: Sequence[Row]) -> str:
    """Say which rows have no operator that could be read, and what to do; empty where every row has one."""
    unread = [row.name for row in rows if row.rank is None]
    if not unread:
        return ""
    return (
        f"No operator could be read, and so no heads counted, of {', '.join(unread)}: mark what depends on the input "
        "with zoo.coefficient.coefficient; zoo check says more."
    )


def describe_sketches(rows: Sequence[Row]) -> str:
    """Return which rows were read by a sketch or a sample, and what that means; empty where none was."""
    sketched = [row.name for row in rows if row.rank_limit is not None and row.sources is None]
    sampled: dict[int, list[str]] = {}
    for row in rows:
        if row.sources is not None:
            sampled.setdefault(row.sources, []).append(row.name)
    sentences = [
        f"Read at {count} source positions, drawn with a seed, which show the rank; heads (≥) are those that "
        f"the operator's columns there take, the whole operator may take several times as many: "
        f"{', '.join(names)}."
        for count, names in sampled.items()
    ]
    if sketched:
        sentences.append(
            f"Read by a random sketch (m = {SKETCH}), which puts the heads of slowly falling spectra low, up to 30 % "
            f"over few positions: {', '.join(sketched)}."
        )
    return " ".join(sentences)


def describe_sizes(sizes: Sizes) -> str:
    """Return the sizes in a sentence."""
    cut = "" if sizes.cut_to is None else f" Cut to the {sizes.cut_to:,} positions that the model takes."
    heads = "" if sizes.n_heads is None else f"{sizes.n_heads} heads, "
    return (
        f"d_model {sizes.d_model}, {heads}operators over {sizes.seq_len} tokens, gradients over "
        f"{sizes.gradient_len} ({sizes.n_seeds} draws), costs at {', '.join(f'{n:,}' for n in sizes.lengths)}, "
        f"seed {sizes.seed}.{cut}"
    )


def write_measurements(rows: Sequence[Measurement], folder: str | Path, sizes: Sizes, machine: str) -> list[Path]:
    """Write measure.md, measure.json and measure.png into `folder`, which is made; each file at once or not.

    Raises:
        MissingExtraError: matplotlib is not installed; before anything is written.
        OSError: the folder cannot be written.
    """
    contents = {
        "measure.md": measurements_as_markdown(rows, sizes, machine),
        "measure.json": measurements_as_json(rows, sizes, machine),
        "measure.png": as_png(comparison_figure(rows)),
    }
    return write_all(folder, contents)
