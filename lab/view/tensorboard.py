"""Show a comparison in TensorBoard: runs with short names, means over seeds with bands, a colour per mixer.

TensorBoard reads a temporary folder with links to the runs' events: nothing is written to the run folders.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from urllib.parse import quote

from lab.run.files import EVENTS
from lab.view.charts import charts_of
from lab.view.rows import Group, mixers_of
from zoo.extras import require_extra
from zoo.report.events import write_events
from zoo.signals import SCHEDULER, handled

_EVERY = 10.0  # seconds between searches for new event files
_BAND = ("value", "lower", "upper")
MIXER = r"^(?:[^/]+/)?([^/ ]+)"
"""Matches the mixer in the name of a run, so that its runs share a colour."""


def show_in_tensorboard(groups: Sequence[Group], port: int | None) -> None:
    """Print the address and serve until Ctrl-C or SIGTERM, then delete TensorBoard's folder.

    Curves of running runs grow; runs that start later are not shown.

    Args:
        groups: the tasks to compare.
        port: port to serve on; None for TensorBoard's choice.

    Raises:
        ValueError: the port is taken or invalid.
        MissingExtraError: tensorboard is not installed.
    """
    with (
        handled(SCHEDULER, _exit),
        tempfile.TemporaryDirectory(prefix="zoo-compare-") as folder,
    ):
        address = serve(Path(folder), port)
        # Start the server before drawing anything, so that a taken port is reported at once.
        link = lay_out(groups, Path(folder))
        print(f"TensorBoard at {address} (Ctrl-C ends it)", flush=True)
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(_EVERY)
                link()


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def serve(folder: Path, port: int | None) -> str:
    """Start TensorBoard on a folder, until this process ends; return an address that shows a colour per mixer.

    Raises:
        ValueError: the port is taken or invalid.
        MissingExtraError: tensorboard is not installed.
    """
    program = require_extra("tensorboard.program")
    server = program.TensorBoard()
    where = [] if port is None else ["--port", str(port)]
    server.configure(argv=[None, "--logdir", str(folder), "--reload_interval", "5", "--load_fast", "false", *where])
    try:
        return f"{server.launch()}?smoothing=0&runColorGroup={quote(f'regex:{MIXER}')}"
    except (program.TensorBoardServerException, OverflowError) as error:
        raise ValueError(f"TensorBoard cannot serve: {' '.join(str(error).split())}") from None


def lay_out(groups: Sequence[Group], folder: Path) -> Callable[[], None]:
    """Fill a folder for TensorBoard; return a function that adds links to new event files.

    `<task>/<configuration>/seed<k>` are the runs. `<mixer>` has the means over seeds of all its configurations, which
    Custom Scalars shows with bands, one category per task; their steps are the abscissae of the charts. The events of
    the means have the oldest times, so they come first in the list of runs and get the first colours.

    Raises:
        MissingExtraError: tensorboard is not installed.
    """
    layout_pb2 = require_extra("tensorboard.plugins.custom_scalar.layout_pb2")
    proto = require_extra("tensorboard.compat.proto.summary_pb2")
    rows = [(group, row) for group in groups for row in group.rows]
    places = [folder / _safe(group.title) / _safe(row.label) for group, row in rows]
    homes = [(run, place / f"seed{run.seed}") for place, (_, row) in zip(places, rows, strict=True) for run in row.runs]

    def link() -> None:
        for run, own in homes:
            own.mkdir(parents=True, exist_ok=True)
            for events in run.folder.glob(f"{EVENTS}*"):
                if not (there := own / events.name).is_symlink():
                    there.symlink_to(events.resolve())

    link()
    points: dict[str, list[tuple[int, Any]]] = {mixer: [] for mixer in mixers_of(groups)}
    categories = []
    for group in groups:
        charts = []
        for chart in charts_of(group):
            if chart.kind == "rate":  # steps are whole numbers
                continue
            bands = {}
            for each in chart.series:
                # Without the mixer, since its run has its name: TensorBoard warns about runs that lack others' tags.
                tag = f"means/{group.title}: {chart.title}{each.label.removeprefix(each.mixer)}"
                tags = [tag, f"{tag}: low", f"{tag}: high"]
                bands[tag] = layout_pb2.MarginChartContent.Series(**dict(zip(_BAND, tags, strict=True)))
                for x, *values in zip(each.x, each.y, *each.band(chart.log_y), strict=True):
                    if x == chart.without:  # steps cannot be labelled "none"
                        continue
                    new = [proto.Summary.Value(tag=t, simple_value=y) for t, y in zip(tags, values, strict=True)]
                    points[each.mixer].append((int(x), proto.Summary(value=new)))
            margin = layout_pb2.MarginChartContent(series=bands.values())
            charts.append(layout_pb2.Chart(title=chart.title, margin=margin))
        categories.append(layout_pb2.Category(title=group.title, chart=charts[::-1]))  # the page reverses them
    layout = layout_pb2.Layout(category=categories).SerializeToString()
    for at, (mixer, own) in enumerate(points.items()):
        (folder / _safe(mixer)).mkdir(exist_ok=True)
        shown = [(0, _configuration(layout))] if at == 0 else []
        write_events(folder / _safe(mixer) / f"{EVENTS}0", [*shown, *own], float(at + 1))
    return link


def _configuration(layout: bytes) -> Any:
    """Return a layout of Custom Scalars as a summary."""
    proto = require_extra("tensorboard.compat.proto.summary_pb2")
    tensor = require_extra("tensorboard.compat.proto.tensor_pb2").TensorProto
    metadata = require_extra("tensorboard.plugins.custom_scalar.metadata")
    value = proto.Summary.Value(tag=metadata.CONFIG_SUMMARY_TAG, metadata=metadata.create_summary_metadata())
    value.tensor.CopyFrom(tensor(dtype="DT_STRING", string_val=[layout], tensor_shape={}))
    return proto.Summary(value=[value])


def _safe(name: str) -> str:
    return name.replace("/", "_")
