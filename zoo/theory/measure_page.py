"""The page of `zoo measure`: what each column means, JSON and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zoo.report.files import as_json, write_all
from zoo.report.numbers import size
from zoo.report.page import Column, Page, page_as_markdown
from zoo.report.plots import as_png
from zoo.theory.columns import HEADS, or_nothing, rank_text, rate_text, remarks, spectrum_record
from zoo.theory.figures import comparison_figure
from zoo.theory.gradients import Gradient
from zoo.theory.measure import STATE_LENGTHS, Measurement, Sizes

BELOW = (
    "The prediction counts directions in exact arithmetic; those below 1e-10 of the largest cannot be told from "
    "roundoff."
)


def _state(length: int) -> Column:
    meaning = f"bytes of the streaming state after {length:,} tokens, float32"
    return Column(f"state at {length // 1024}k", meaning, lambda row: size(row.state_bytes[length]))


TABLES: Mapping[str, tuple[Column, ...]] = {
    "Operator": (
        Column("rank", "interaction rank k = dim span{W_ij}, measured", lambda row: rank_text(row.read)),
        Column(
            "predicted",
            "the rank that the mixer's algebra gives, in exact arithmetic",
            lambda row: or_nothing(row.predicted_rank),
        ),
        HEADS,
        Column(
            "effective rank",
            "exp of the entropy of the spectrum's energies",
            lambda row: or_nothing(row.read.effective_rank, 1),
        ),
        Column(
            "‖c‖/‖y‖",
            "share of the output that is in c (biases) and not in W; the other columns of this table ignore it",
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
            "slope of log J(τ) per token, 95 % interval; negative if gradients vanish; 0 beyond τ: none arrives",
            lambda row: rate_text(row.noise),
        ),
        Column(
            "rate on highway input",
            "the same on the mixer's own input that opens a highway; – if none is known",
            lambda row: rate_text(row.highway),
        ),
    ),
    "Cost": (
        Column(
            "time exponent",
            "p if a forward and backward pass takes time ~ length^p; near 0 or below where fixed costs dominate",
            lambda row: f"{row.cost.time_exponent:.2f}",
        ),
        Column(
            "memory exponent",
            "the same of the bytes held between the two",
            lambda row: f"{row.cost.memory_exponent:.2f}",
        ),
        Column("parameters", "trainable numbers", lambda row: f"{row.n_params:,}"),
        *map(_state, STATE_LENGTHS),
    ),
}


def measure_page(rows: Sequence[Measurement], sizes: Sizes, machine: str) -> Page:
    """Return the page of a comparison: sizes and machine, a table by group of columns, remarks."""
    missed = [row.name for row in rows if row.as_predicted is False]
    notes = [f"Rank other than predicted: {', '.join(missed)}. {BELOW}"] if missed else []
    return Page(
        title="Mixers, measured",
        tables=TABLES,
        rows=rows,
        lead=[f"{describe_sizes(sizes)} The rows took {sum(row.seconds for row in rows):.0f} s in all on {machine}."],
        notes=notes + remarks({row.name: row.read for row in rows}),
        caption="Error against heads, time against length, gradient against distance on random and on highway input",
    )


def describe_sizes(sizes: Sizes) -> str:
    """Return the sizes in a sentence."""
    cut = "" if sizes.cut_to is None else f" Cut to the {sizes.cut_to:,} positions that the model takes."
    heads = "" if sizes.n_heads is None else f"{sizes.n_heads} heads, "
    return (
        f"d_model {sizes.d_model}, {heads}operators over {sizes.seq_len} tokens, gradients over "
        f"{sizes.gradient_len} ({sizes.n_seeds} draws), costs at {', '.join(f'{n:,}' for n in sizes.lengths)}, "
        f"seed {sizes.seed}.{cut}"
    )


def measurements_as_json(rows: Sequence[Measurement], sizes: Sizes, machine: str) -> str:
    """Return all measurements as JSON text, spectra and profiles included; a number that is not finite is null."""
    return as_json({"machine": machine, "sizes": asdict(sizes), "rows": [*map(_record, rows)]})


def _record(row: Measurement) -> dict[str, Any]:
    plain = {name: value for name, value in vars(row).items() if name not in ("read", "noise", "highway", "cost")}
    return {
        **plain,
        **spectrum_record(row.read),
        "spectrum": row.read.values.tolist(),
        "effective_rank": row.read.effective_rank,
        "as_predicted": row.as_predicted,
        "gradient_random": _gradient(row.noise),
        "gradient_highway": None if row.highway is None else _gradient(row.highway),
        "cost": row.cost._asdict(),
    }


def _gradient(gradient: Gradient) -> dict[str, Any]:
    return {
        "decay": None if gradient.decay is None else gradient.decay._asdict(),
        "reach": gradient.reach,
        "distances": gradient.profile.distances.tolist(),
        "median": gradient.profile.median.tolist(),
        "seeds": len(gradient.profile.values),
    }


def write_measurements(rows: Sequence[Measurement], folder: str | Path, sizes: Sizes, machine: str) -> list[Path]:
    """Write measure.md, measure.json and measure.png into `folder`, which is made; each file at once or not.

    Raises:
        MissingExtraError: matplotlib is not installed; before anything is written.
        OSError: the folder cannot be written.
    """
    contents = {
        "measure.md": page_as_markdown(measure_page(rows, sizes, machine), "measure.png"),
        "measure.json": measurements_as_json(rows, sizes, machine),
        "measure.png": as_png(comparison_figure(rows)),
    }
    return write_all(folder, contents)
