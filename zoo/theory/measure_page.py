"""The page of `zoo measure`: its columns with their explanations, as Markdown and JSON."""

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

BELOW = "The prediction is for exact arithmetic; directions below 1e-10 of the largest cannot be told from roundoff."


def _state(length: int) -> Column:
    meaning = f"bytes of the streaming state after {length:,} tokens, float32"
    return Column(f"state at {length // 1024}k", meaning, lambda row: size(row.state_bytes[length]))


TABLES: Mapping[str, tuple[Column, ...]] = {
    "Operator": (
        Column("rank", "interaction rank k = dim span{W_ij}, measured", lambda row: rank_text(row.read)),
        Column(
            "predicted",
            "the rank by the mixer's algebra, in exact arithmetic",
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
            "share of the output that is in c (biases) and not in W; rank, heads and input dependence describe only W",
            lambda row: or_nothing(row.offset_share, 2),
        ),
        Column(
            "input dependence",
            "distance of W between two random inputs: 0 fixed, 1.41 orthogonal",
            lambda row: or_nothing(row.input_dependence, 2),
        ),
    ),
    "Gradient": (
        Column(
            "rate on random input",
            "slope of log J(τ) per token, 95 % interval; negative if gradients vanish; 0 beyond τ: no gradient there",
            lambda row: rate_text(row.noise),
        ),
        Column(
            "rate on highway input",
            "the same on an input that the mixer constructs to keep the gradient; – if it has none",
            lambda row: rate_text(row.highway),
        ),
    ),
    "Cost": (
        Column(
            "time exponent",
            "p in time ~ length^p of a forward and backward pass; near 0 or below if fixed costs dominate",
            lambda row: f"{row.cost.time_exponent:.2f}",
        ),
        Column(
            "memory exponent",
            "the same for the bytes held between the two passes",
            lambda row: f"{row.cost.memory_exponent:.2f}",
        ),
        Column("parameters", "trainable parameters", lambda row: f"{row.n_params:,}"),
        *map(_state, STATE_LENGTHS),
    ),
}


def measure_page(rows: Sequence[Measurement], sizes: Sizes, machine: str) -> Page:
    """Return the page of a comparison: sizes and machine, a table per group of columns, remarks."""
    missed = [row.name for row in rows if row.as_predicted is False]
    notes = [f"Rank other than predicted: {', '.join(missed)}. {BELOW}"] if missed else []
    return Page(
        title="Mixers, measured",
        tables=TABLES,
        rows=rows,
        lead=[f"{describe_sizes(sizes)} All rows took {sum(row.seconds for row in rows):.0f} s on {machine}."],
        notes=notes + remarks({row.name: row.read for row in rows}),
        caption="Error against heads, time against length, gradient against distance on random and on highway input",
    )


def describe_sizes(sizes: Sizes) -> str:
    """Return the sizes as a sentence."""
    cut = "" if sizes.cut_to is None else f" Reduced to the model's longest sequence, {sizes.cut_to:,} positions."
    heads = "" if sizes.n_heads is None else f"{sizes.n_heads} heads, "
    return (
        f"d_model {sizes.d_model}, {heads}operators over {sizes.seq_len} tokens, gradients over "
        f"{sizes.gradient_len} ({sizes.n_seeds} draws), costs at {', '.join(f'{n:,}' for n in sizes.lengths)}, "
        f"seed {sizes.seed}.{cut}"
    )


def measurements_as_json(rows: Sequence[Measurement], sizes: Sizes, machine: str) -> str:
    """Return all measurements as JSON text, with spectra and profiles; numbers that are not finite become null."""
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
    """Write measure.md, measure.json and measure.png into `folder`, creating it; each file is written atomically.

    Raises:
        MissingExtraError: matplotlib is not installed; raised before anything is written.
        OSError: the folder cannot be written.
    """
    contents = {
        "measure.md": page_as_markdown(measure_page(rows, sizes, machine), "measure.png"),
        "measure.json": measurements_as_json(rows, sizes, machine),
        "measure.png": as_png(comparison_figure(rows)),
    }
    return write_all(folder, contents)
