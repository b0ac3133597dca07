"""Plots: one style, colours that a mixer keeps, and PNG files that are the same bytes for the same picture.

matplotlib is used without pyplot: no backend is chosen and no figure outlives its reference.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from zoo.extras import require_extra
from zoo.report.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")

COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
    *("#6a3d9a", "#8c564b", "#444444", "#b2a000", "#e31a1c", "#17a398"),
)
"""Twelve colours, chosen to be told apart by colour-blind readers too."""

KINDS: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
"""Formats of pictures, with the metadata that each would change from day to day."""

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
_NAME, _NAME_LENGTH, _NEAR_THE_EDGE = 8, 28, 0.8  # points and characters of a line's name; share of the width
_LEGEND, _LEGEND_LINES = 1.6, 18  # width and length of a column of a legend beside the axes


def styled(draw: Callable[P, R]) -> Callable[P, R]:
    """Let a function draw in the one style, whatever the user's own settings are.

    Raises:
        MissingExtraError: when it is called and matplotlib is not installed.
    """

    @functools.wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> R:
        with require_extra("matplotlib.style").context(_STYLE, after_reset=True):
            return draw(*args, **options)

    return drawn


@styled
def new_figure(
    n_columns: int = 1, n_rows: int = 1, *, legends: int = 0, width: float = _PANEL[0]
) -> tuple[Figure, list[Axes]]:
    """Return a figure of equal panels, and its axes row by row.

    Args:
        n_columns: panels side by side.
        n_rows: panels one below the other.
        legends: columns of legend beside each panel, to make room for; see `legend_columns`.
        width: width of a panel, in inches.
    """
    figure_size = (n_columns * (width + _LEGEND * legends), n_rows * _PANEL[1])
    figure = require_extra("matplotlib.figure").Figure(figsize=figure_size)
    return figure, list(figure.subplots(n_rows, n_columns, squeeze=False).flat)


def colours(names: Iterable[str], known: Iterable[str] = ()) -> dict[str, str]:
    """Return a colour for each name; a known name has its own in all figures, unless an earlier one here has the same.

    Args:
        names: the names of a figure or of a comparison.
        known: all names that keep their colours, such as the registered mixers; the others come after them.
    """
    order, free, found = {name: at for at, name in enumerate(known)}, [], {}
    for name in sorted(set(names), key=lambda name: (order.get(name, len(order)), name)):
        free = free or list(COLOURS)
        own = COLOURS[order[name] % len(COLOURS)] if name in order else free[0]
        found[name] = own if own in free else free[0]
        free.remove(found[name])
    return found


def line_style(at: int, count: int) -> dict[str, Any]:
    """Return colour, dashes and width, thinner for later lines: one under another shows at its sides."""
    return {"color": f"C{at % 10}", "linestyle": ("-", "--", ":")[at // 10 % 3], "linewidth": 3.0 - 2.0 * at / count}


def whole_numbers() -> Any:
    """Return a locator that marks an axis at integers only."""
    return require_extra("matplotlib.ticker").MaxNLocator(integer=True)


def name_lines(axes: Axes) -> None:
    """Name each line in its colour instead of in a legend: at its end, or to the right of the axes if it reaches there.

    Names to the right are moved off one another; lines that end at one place are in the order of their means.
    """
    axes.autoscale_view()
    into_axes, beside = (axes.transData + axes.transAxes.inverted()).transform, []
    for line in axes.get_lines():
        name, points = fill(str(line.get_label()), _NAME_LENGTH), into_axes(line.get_xydata())
        x, y = map(float, points[-1])
        if name.startswith("_"):
            continue
        if x >= _NEAR_THE_EDGE:
            beside.append((round(y, 2), float(points[:, 1].mean()), (x, y), line, name))
        else:
            near: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "center"}
            axes.annotate(name, (x, y), (6, 0), color=line.get_color(), fontsize=_NAME, **near)
    beside.sort(key=lambda each: each[:2])
    height = 1.3 * _NAME / 72 / (axes.bbox.height / axes.figure.dpi)
    half = [height * (1 + name.count("\n")) / 2 for *_, name in beside]
    places: list[float] = []
    for at, (y, *_) in enumerate(beside):
        places.append(max(y, places[-1] + half[at - 1] + half[at]) if places else y)
    top = 1.0 + height  # a stack that would leave the axes is pushed down again
    for at in reversed(range(len(places))):
        places[at] = min(places[at], top - half[at])
        top = places[at] - half[at]
    for (*_, end, line, name), place in zip(beside, places, strict=True):
        arrow = {"arrowstyle": "-", "color": line.get_color(), "linewidth": 0.5, "shrinkA": 2, "shrinkB": 3}
        arrow["relpos"] = (0, 0.5)
        right: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "axes fraction", "va": "center"}
        axes.annotate(name, end, (1.03, place), color=line.get_color(), fontsize=_NAME, arrowprops=arrow, **right)


def legend_beside(axes: Axes, title: str) -> None:
    """Draw a legend to the right of the axes, so that it covers no line."""
    columns = legend_columns(len(axes.get_legend_handles_labels()[1]))
    axes.legend(title=title, ncols=columns, loc="upper left", bbox_to_anchor=(1.0, 1.02))


def legend_columns(lines: int) -> int:
    """Return the number of columns of a legend beside its axes."""
    return -(-lines // _LEGEND_LINES)


def as_png(figure: Figure) -> bytes:
    """Return the figure as a PNG file, the same bytes for the same picture."""
    return as_image(figure, "png")


def as_image(figure: Figure, kind: str) -> bytes:
    """Return the figure as a file, one of `KINDS`, the same bytes for the same picture; text stays text."""
    content, settings = io.BytesIO(), {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "zoo"}
    with require_extra("matplotlib").rc_context(settings):
        figure.savefig(content, format=kind, metadata=KINDS[kind])
    return content.getvalue()


def save_png(figure: Figure, path: str | Path) -> Path:
    """Write a PNG, whole or not at all; the folder is made.

    Raises:
        OSError: the file cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, as_png(figure))
    return path
