"""Plots: one style, a fixed look for each mixer, and reproducible image files.

We use matplotlib without pyplot, so that no backend is chosen and figures are garbage-collected.
"""

from __future__ import annotations

import functools
import io
import math
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from zoo.errors import UsageError
from zoo.extras import require_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#770044", "#4400aa", "#bb22ff", "#665522", "#bb0077"),
)
"""Eleven colours that are distinguishable with any kind of colour blindness."""

MARKERS = (
    *(("o", "circle", "●"), ("s", "square", "■"), ("^", "triangle-up", "▲"), ("D", "diamond", "◆")),
    *(("v", "triangle-down", "▼"), ("X", "x", "✖"), ("P", "cross", "✚"), ("*", "star", "★")),
)
"""Eight markers: name in matplotlib, name in plotly, and character."""

_LISTED = (
    *("attention", "selective_ssm", "ssd", "lstm", "gated_delta_net", "hybrid", "delta_net", "diagonal_ssm"),
    *("linear_attention", "gated_linear_attention", "mamba3", "s4d", "gru", "rnn", "retnet", "min_gru", "mlstm"),
    *("conv", "delta_product", "slstm", "kda", "hyena", "min_lstm", "gated_attention", "rwkv7", "sliding_attention"),
    *("lru", "hgrn2", "s5", "gdn2", "rg_lru", "identity", "factorized", "lightning_attention", "capped_mlstm"),
    *("parallel_hybrid", "mla", "gated_conv", "differential_attention", "forgetting_attention", "path_attention"),
    *("head_hybrid", "moba", "nsa", "log_linear_gated_delta_net", "log_linear_ssd", "gsa", "comba", "mesa_net"),
    *("titans", "linoss", "rwkv6", "dsa", "deltaformer", "rwkv4"),
)
"""Mixers whose looks are given by their index, those compared most often first. Never reorder, only append."""
_OTHERS = 56  # index of the first look for unlisted mixers

KINDS: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
"""File formats, with the metadata to omit because it varies."""

_STYLE = {
    "axes.grid": True,
    "axes.titlesize": 11,
    "figure.constrained_layout.use": True,
    "figure.dpi": 110,
    "grid.alpha": 0.3,
    "legend.fontsize": 8,
    "legend.title_fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
}
_PANEL = (6.0, 4.2)  # inches; legible in TensorBoard's panes
_NAME, _NAME_LENGTH = 8, 28  # font size of a curve's name in points, and characters after which it wraps
_NEAR_THE_EDGE = 0.8  # lines that end beyond this share of the width are named beside the axes
_LEADER: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 2, "shrinkB": 3}  # from a name to its line
_DISTANCES = (5, 12, 20, 30, 42)  # tried distances in points from the end of a line to its name, within the axes
_COLOURED, _GREY = 8, "#c3c8ce"  # maximum number of coloured lines in a panel, and the colour of the others


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to draw in our style, whatever the user's matplotlib settings.

    Raises:
        MissingExtraError: on a call, if matplotlib is not installed.
    """

    @functools.wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> R:
        with require_extra("matplotlib.style").context(_STYLE, after_reset=True):
            return draw(*args, **options)

    return drawn


@styled
def new_figure(n_columns: int = 1, n_rows: int = 1, *, width: float = _PANEL[0]) -> tuple[Figure, list[Axes]]:
    """Return a figure with equal panels, and its axes row by row.

    Args:
        n_columns: number of columns of panels.
        n_rows: number of rows of panels.
        width: width of a panel in inches.
    """
    figure_size = (n_columns * width, n_rows * _PANEL[1])
    figure = require_extra("matplotlib.figure").Figure(figsize=figure_size)
    return figure, list(figure.subplots(n_rows, n_columns, squeeze=False).flat)


class Look(NamedTuple):
    """Colour and marker of a mixer, the same in all figures and pages.

    Attributes:
        colour: as #rrggbb.
        marker: name of the marker in matplotlib.
        symbol: name of the marker in plotly.
        glyph: the marker as a character.
    """

    colour: str
    marker: str
    symbol: str
    glyph: str


def nth_look(at: int) -> Look:
    """Return one of 88 looks, all different because the numbers of colours (11) and markers (8) are coprime."""
    return Look(COLOURS[at % len(COLOURS)], *MARKERS[at % len(MARKERS)])


def look_of(mixer: str) -> Look:
    """Return the look of a mixer, which depends only on its name."""
    if mixer in _LISTED:
        return nth_look(_LISTED.index(mixer))
    return nth_look(_OTHERS + zlib.crc32(mixer.encode()) % (len(COLOURS) * len(MARKERS) - _OTHERS))


def line_styles(mixers: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return matplotlib options for the line of each mixer.

    At most eight have their looks: user-defined mixers, then those compared most often. The other lines are grey, with
    labels that begin with "_", so that they are not named. Later lines are thinner, so that a line below another one
    remains visible.
    """
    order = {mixer: at for at, mixer in enumerate(_LISTED)}
    named = sorted(mixers, key=lambda mixer: order.get(mixer, -1))[:_COLOURED]  # user-defined mixers first
    styles: dict[str, dict[str, Any]] = {}
    for at, mixer in enumerate(mixers):
        look = look_of(mixer)
        width = {"linewidth": 3.0 - 2.0 * at / len(mixers)}
        shown = {"color": look.colour, "marker": look.marker, "markevery": 0.1, "label": mixer, "zorder": 3}
        styles[mixer] = shown | width if mixer in named else {"color": _GREY, "linewidth": 0.8, "label": f"_{mixer}"}
    return styles


def whole_numbers() -> Any:
    """Return a tick locator for integers only."""
    return require_extra("matplotlib.ticker").MaxNLocator(integer=True)


def name_lines(*panels: Axes) -> None:
    """Write each line's name next to it in its colour, instead of a legend.

    A line that ends near the right edge is named beside the axes, other lines next to their ends. Names avoid each
    other, and within the axes points and lines too.
    """
    for axes in panels:
        axes.autoscale_view()
    within = [(axes, line) for axes in panels for line in _name_beside(axes)]
    if within:
        figure: Any = panels[0].figure
        figure.draw_without_rendering()  # computes the layout, which depends on the names beside the axes
    for axes, line in within:
        _name_within(axes, line)


def _named(line: Any) -> str:
    """Return the name of a line, wrapped; empty if it has none."""
    name = str(line.get_label())
    return "" if name.startswith("_") else fill(name, _NAME_LENGTH)


def _name_beside(axes: Axes) -> list[Any]:
    """Name the lines that end near the right edge beside the axes, ordered by end and mean; return the other lines."""
    into_axes, beside, others = (axes.transData + axes.transAxes.inverted()).transform, [], []
    for line in axes.get_lines():
        name, points = _named(line), into_axes(line.get_xydata())
        if not len(points):  # such as a curve of runs that all lack the number
            continue
        x, y = map(float, points[-1])
        if name and x >= _NEAR_THE_EDGE:
            beside.append((round(y, 2), float(points[:, 1].mean()), (x, y), line, name))
        elif name:
            others.append(line)
    beside.sort(key=lambda each: each[:2])
    lines = sum(1 + name.count("\n") for *_, name in beside)
    room = 72 * axes.bbox.height / axes.figure.dpi
    fontsize = min(_NAME, room / (1.3 * max(1, lines)))  # smaller if there are many, so that all fit
    height = 1.3 * fontsize / room
    half = [height * (1 + name.count("\n")) / 2 for *_, name in beside]
    places: list[float] = []
    for at, (y, *_) in enumerate(beside):
        places.append(max(y, places[-1] + half[at - 1] + half[at]) if places else y)
    top = 1.0 + height  # push names down again that would be above the axes
    for at in reversed(range(len(places))):
        places[at] = min(places[at], top - half[at])
        top = places[at] - half[at]
    for (*_, end, line, name), place in zip(beside, places, strict=True):
        arrow = _LEADER | {"color": line.get_color(), "relpos": (0, 0.5)}
        right: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "axes fraction", "va": "center"}
        axes.annotate(name, end, (1.03, place), color=line.get_color(), fontsize=fontsize, arrowprops=arrow, **right)
    return others


def _name_within(axes: Axes, line: Any) -> None:
    """Name a line where its name covers the fewest points, lines and names, as near to its end as possible."""
    np = require_extra("numpy")
    drawn = [axes.transData.transform(other.get_xydata()) for other in axes.get_lines()]
    steps = np.linspace(0, 1, 30)[:, None, None]  # points along each line
    marks = np.concatenate([*drawn, *((xy[:-1] + steps * (xy[1:] - xy[:-1])).reshape(-1, 2) for xy in drawn)])
    marks = marks[np.isfinite(marks).all(1)]
    boxes = [text.get_window_extent() for text in axes.texts]
    end = tuple(axes.transData.transform(line.get_xydata()[-1]))
    name = axes.annotate(
        _named(line), end, xycoords="figure pixels", color=line.get_color(), fontsize=_NAME, ha="center", va="center"
    )
    extent, point, inside = name.get_window_extent(), axes.figure.dpi / 72, axes.get_window_extent().padded(-3)
    best: tuple[float, float, Any] = (math.inf, 0.0, None)
    for far in _DISTANCES:
        for angle in np.arange(16) * np.pi / 8:
            way = np.array([np.cos(angle), np.sin(angle)])
            centre = end + way * (far * point + np.array([extent.width, extent.height]) / 2)
            low, high = (centre + sign * np.array([extent.width, extent.height]) / 2 for sign in (-1, 1))
            covered = float(((marks > low - 2) & (marks < high + 2)).all(1).sum())
            covered += 100 * sum(
                box.x0 < high[0] and box.x1 > low[0] and box.y0 < high[1] and box.y1 > low[1] for box in boxes
            )
            covered += 100 * float(
                low[0] < inside.x0 or low[1] < inside.y0 or high[0] > inside.x1 or high[1] > inside.y1
            )
            if (covered, far) < best[:2]:
                best = (covered, far, centre)
    name.remove()
    offset = (best[2] - end) / point
    arrow = _LEADER | {"color": line.get_color()} if best[1] > _DISTANCES[0] else None
    near: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "center", "arrowprops": arrow}
    axes.annotate(_named(line), line.get_xydata()[-1], offset, color=line.get_color(), fontsize=_NAME, **near)


def as_pixels(*figures: Figure) -> Any:
    """Return figures of equal size as an array (height, width, 3) of bytes, two per row; an empty place is white."""
    np, canvas = require_extra("numpy"), require_extra("matplotlib.backends.backend_agg").FigureCanvasAgg
    panels = []
    for figure in figures:
        drawn = canvas(figure)
        drawn.draw()
        panels.append(np.asarray(drawn.buffer_rgba())[..., :3])
    columns = min(2, len(panels))
    panels += [np.full_like(panels[0], 255)] * (len(panels) % columns)
    rows = [np.concatenate(panels[at : at + columns], axis=1) for at in range(0, len(panels), columns)]
    return np.concatenate(rows)


def require_kind(flag: str, path: Path) -> None:
    """Raise UsageError for a file name whose suffix is not in `KINDS`."""
    if path.suffix[1:] not in KINDS:
        raise UsageError(f"{flag} needs a file name in .{', .'.join(KINDS)}, got {path.name}")


def as_png(figure: Figure) -> bytes:
    """Return the figure as a PNG file; equal pictures give equal bytes."""
    return as_image(figure, "png")


def as_image(figure: Figure, kind: str) -> bytes:
    """Return the figure as a file of a format in `KINDS`, with text as text; equal pictures give equal bytes."""
    content, settings = io.BytesIO(), {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "zoo"}
    with require_extra("matplotlib").rc_context(settings):
        figure.savefig(content, format=kind, metadata=KINDS[kind])
    return content.getvalue()
