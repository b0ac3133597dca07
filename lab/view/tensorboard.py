"""TensorBoard over a comparison: runs named so that they sort, means over seeds as bands, learning curves as a picture.

TensorBoard is given a folder of its own, which links to the runs' events: nothing is written where runs are kept.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn
from urllib.parse import quote

from lab.run.files import EVENTS
from lab.view.charts import Chart, charts_of, colours
from lab.view.picture import overview_figure
from lab.view.rows import Group
from zoo.extras import require_extra
from zoo.signals import SCHEDULER, handled

_EVERY = 10.0  # seconds between two looks for new events
CONFIGURATION = r"^(.*)/(?:mean|seed\d+)$"
"""Matches the shared part of the names of a configuration's runs, which get one colour."""


def show_in_tensorboard(groups: Sequence[Group], port: int | None, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C, or SIGTERM; the folder that TensorBoard is given is deleted at the end.

    Curves of runs under way grow; runs that begin later are not shown.

    Args:
        groups: the tasks to compare.
        port: port to serve on; None for TensorBoard's own choice.
        say: gets the line with the address.

    Raises:
        ValueError: the port is taken, or none.
        MissingExtraError: tensorboard or matplotlib is not installed.
    """
    with (
        handled(SCHEDULER, _exit),
        tempfile.TemporaryDirectory(prefix="zoo-compare-") as folder,
    ):
        address = serve(Path(folder), port)
        # The server is up before anything is drawn: a port that is taken is known at once.
        link = lay_out(groups, Path(folder))
        say(f"TensorBoard at {address}?runColorGroup={quote(f'regex:{CONFIGURATION}')} (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(_EVERY)
                link()


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def serve(folder: Path, port: int | None) -> str:
    """Start TensorBoard over a folder, until this process ends, and return its address.

    Raises:
        ValueError: the port is taken, or none.
        MissingExtraError: tensorboard is not installed.
    """
    program = require_extra("tensorboard.program")
    server = program.TensorBoard()
    where = [] if port is None else ["--port", str(port)]
    server.configure(argv=[None, "--logdir", str(folder), "--reload_interval", "5", "--load_fast", "false", *where])
    try:
        return server.launch()
    except (program.TensorBoardServerException, OverflowError) as error:
        raise ValueError(f"TensorBoard cannot serve: {' '.join(str(error).split())}") from None


def lay_out(groups: Sequence[Group], folder: Path) -> Callable[[], None]:
    """Fill a folder for TensorBoard; returns a function that links to events that have come since.

    `<task>/<configuration>/seed<k>` are the runs. `<task>/<configuration>/mean` has the means over seeds, under tags
    that begin with the task; Custom Scalars shows them with bands, one category per task, whose steps are the abscissae
    of the charts. `overview` has the picture.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    from torch.utils.tensorboard import SummaryWriter

    def home(group: Group, label: str, run: str) -> Path:
        return folder / group.title.replace("/", "_") / label.replace("/", "_") / run

    rows = [(group, row) for group in groups for row in group.rows]
    homes = [(run, home(group, row.label, f"seed{run.seed}")) for group, row in rows for run in row.runs]

    def link() -> None:
        for run, own in homes:
            own.mkdir(parents=True, exist_ok=True)
            for events in run.folder.glob(f"{EVENTS}*"):
                if not (there := own / events.name).is_symlink():
                    there.symlink_to(events.resolve())

    link()
    layout, known = {}, colours(groups)
    for group in groups:
        charts = [chart for chart in charts_of(group, known) if chart.kind != "rate"]  # steps are whole numbers
        layout[group.title] = {chart.title: ["Margin", _tags(group, chart)] for chart in charts}
        for chart in charts:
            for each in chart.series:
                low, high = each.band(chart.log_y)
                with SummaryWriter(home(group, each.label, "mean")) as writer:
                    for tag, values in zip(_tags(group, chart), (each.y, low, high), strict=True):
                        for x, value in zip(each.x, values, strict=True):
                            writer.add_scalar(tag, value, int(x))
    with SummaryWriter(folder / "overview") as writer:
        writer.add_figure("Learning curves", overview_figure(groups), close=False)
        writer.add_custom_scalars(layout)
    return link


def _tags(group: Group, chart: Chart) -> list[str]:
    """Return mean, lower and upper end of the band."""
    tag = f"{group.title}/{chart.title}"
    return [tag, f"spread of {tag}/low", f"spread of {tag}/high"]
