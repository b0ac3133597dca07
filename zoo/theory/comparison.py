"""The comparison table on paper: what each column is, cells as text, JSON and a Markdown page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zoo.theory.figures import comparison_figure, decay_text, rank_text, save_figure
from zoo.theory.measure import REL_ERRORS, STATE_LENGTHS, Gradient, Measurement, Sizes
from zoo.theory.report import require_extra, write_atomically

NOTHING = "–"

COLUMNS = (
    ("rank", "interaction rank k = dim span{W_ij}, measured"),
    ("predicted", "the rank that the mixer's algebra gives, in exact arithmetic"),
    (
        f"heads at {'/'.join(f'{100 * e:g}' for e in REL_ERRORS)} %",
        "fewest heads that leave that error of the operator",
    ),
    ("effective", "exp of the entropy of the spectrum's energies"),
    ("gradient rate, random", "slope of log J(τ) a token and its 95 % interval, on random input"),
    ("gradient rate, highway", "the same on the input that opens a highway, where one is known"),
    ("time", "exponent of the time of a training pass against length"),
    ("memory", "exponent of the bytes held between forward and backward"),
    ("input", "how much W moves between two random inputs: 0 fixed, 1.41 unrelated"),
    ("parameters", "trainable numbers"),
    *(
        (f"state at {length // 1024}k", f"bytes of the streaming state after {length:,} tokens")
        for length in STATE_LENGTHS
    ),
)
"""Heading and meaning of each column after the name."""


def cells(row: Measurement) -> list[str]:
    """One text for each of `COLUMNS`."""
    return [
        rank_text(row),
        NOTHING if row.predicted_rank is None else str(row.predicted_rank),
        "/".join(str(row.heads[error]) for error in REL_ERRORS),
        f"{row.effective_rank:.1f}",
        _rate(row.noise),
        _rate(row.highway),
        f"{row.cost.time_exponent:.2f}",
        f"{row.cost.memory_exponent:.2f}",
        f"{row.input_dependence:.2f}",
        f"{row.n_params:,}",
        *(_size(row.state_bytes[length]) for length in STATE_LENGTHS),
    ]


def _rate(gradient: Gradient | None) -> str:
    return NOTHING if gradient is None or gradient.decay is None else decay_text(gradient.decay)


def _size(n_bytes: int | None) -> str:
    if n_bytes is None:
        return NOTHING
    for unit, factor in (("MiB", 2**20), ("KiB", 2**10)):
        if n_bytes >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes} B"


def measurements_as_json(rows: Sequence[Measurement], sizes: Sizes, machine: str) -> str:
    """All that was measured, as JSON text: spectra, profiles and costs too; what is not finite is null."""
    content = {"machine": machine, "sizes": asdict(sizes), "rows": [_record(row) for row in rows]}
    return json.dumps(_plain(content), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


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
        "distances": gradient.profile.distances.tolist(),
        "median": gradient.profile.values.double().quantile(0.5, dim=0).tolist(),
        "seeds": len(gradient.profile.values),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def measurements_as_markdown(rows: Sequence[Measurement], sizes: Sizes, machine: str) -> str:
    """A page: where and at which sizes, the table, what its columns are, and the picture."""
    names = [name for name, _ in COLUMNS]
    below = [row.name for row in rows if row.as_predicted is False]
    lines = [
        "# Mixers, measured",
        "",
        f"{describe_sizes(sizes)} Measured in {sum(row.seconds for row in rows):.0f} s on {machine}.",
        "",
        f"| | {' | '.join(names)} |",
        f"|---|{'---:|' * len(names)}",
        *(f"| {row.name} | {' | '.join(cells(row))} |" for row in rows),
        "",
    ]
    if below:
        lines += [f"Rank other than predicted: {', '.join(below)}. {BELOW}", ""]
    lines += [*(f"- **{name}**: {meaning}" for name, meaning in COLUMNS), "", f"![{_CAPTION}](measure.png)", ""]
    return "\n".join(lines)


BELOW = (
    "The prediction counts directions in exact arithmetic; those below 1e-10 of the largest are not told from roundoff."
)

_CAPTION = "Error against heads, time against length, gradient against distance on random and on highway input"


def describe_sizes(sizes: Sizes) -> str:
    """The sizes in a sentence."""
    return (
        f"d_model {sizes.d_model}, {sizes.n_heads} heads, operators over {sizes.seq_len} tokens, gradients over "
        f"{sizes.gradient_len} ({sizes.n_seeds} draws), costs at {', '.join(f'{n:,}' for n in sizes.lengths)}, "
        f"seed {sizes.seed}."
    )


def write_measurements(
    rows: Sequence[Measurement], folder: str | Path, sizes: Sizes, machine: str
) -> tuple[Path, Path, Path]:
    """Write measure.md, measure.json and measure.png into `folder`, which is made; each file at once or not.

    Raises:
        MissingExtraError: matplotlib is not installed; before anything is written.
        OSError: the folder cannot be written.
    """
    require_extra("matplotlib.figure")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    page, data = folder / "measure.md", folder / "measure.json"
    picture = save_figure(comparison_figure(rows), folder / "measure.png")
    write_atomically(data, measurements_as_json(rows, sizes, machine).encode())
    write_atomically(page, measurements_as_markdown(rows, sizes, machine).encode())
    return page, data, picture
