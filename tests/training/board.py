"""TensorBoard's HParams tab, as its server reads a folder of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.data.provider import ListHyperparametersResult
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups


@dataclass(frozen=True)
class Tab:
    """What the tab shows.

    Attributes:
        columns: the options, in their order: those first in which runs differ.
        constant: of these the ones in which they do not.
        metrics: names of numbers, in their order.
        options: of each trial, by its name.
        numbers: likewise, of trials that are over.
    """

    columns: list[str]
    constant: set[str]
    metrics: list[str]
    options: dict[str, dict[str, Any]]
    numbers: dict[str, dict[str, Any]]


def hparams_tab(folder: Path) -> Tab:
    """What TensorBoard shows when it is started on a folder of runs."""
    events = EventMultiplexer()
    events.AddRunsFromDirectory(str(folder)).Reload()
    provider = MultiplexerDataProvider(events, str(folder))
    tab, asked = backend_context.Context(TBContext(data_provider=provider)), RequestContext()
    found = tab.experiment_from_metadata(
        asked, "", True, tab.hparams_metadata(asked, ""), ListHyperparametersResult([], [])
    )

    def trials(*statuses: Any) -> Any:
        request = api_pb2.ListSessionGroupsRequest(allowed_statuses=statuses, slice_size=99)
        return list_session_groups.Handler(asked, tab, "", request).run().session_groups

    success = api_pb2.STATUS_SUCCESS
    return Tab(
        [info.name for info in found.hparam_infos],
        {info.name for info in found.hparam_infos if not info.differs},
        [info.name.tag for info in found.metric_infos],
        {
            trial.name: {name: getattr(value, value.WhichOneof("kind")) for name, value in trial.hparams.items()}
            for trial in trials(success, api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_RUNNING)
        },
        {trial.name: {each.name.tag: each.value for each in trial.metric_values} for trial in trials(success)},
    )
