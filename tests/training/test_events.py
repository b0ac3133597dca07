"""Event files of runs, read back as TensorBoard's HParams tab and charts read them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.data.provider import ListHyperparametersResult
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

from tests.training import small
from zoo.training import CurveLogger, log_result, write_hparams

FILE = "events.out.tfevents.0.hparams"


@dataclass(frozen=True)
class Tab:
    """TensorBoard's HParams tab: options and metrics in order, and {trial: {name: value}} of both."""

    columns: list[str]
    metrics: list[str]
    options: dict[str, dict[str, Any]]
    numbers: dict[str, dict[str, Any]]


def hparams_tab(folder: Path) -> Tab:
    """The HParams tab that TensorBoard shows for a folder of runs."""
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
        [info.name.tag for info in found.metric_infos],
        {
            trial.name: {name: getattr(value, value.WhichOneof("kind")) for name, value in trial.hparams.items()}
            for trial in trials(success, api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_RUNNING)
        },
        {trial.name: {each.name.tag: each.value for each in trial.metric_values} for trial in trials(success)},
    )


def train(
    folder: Path, options: dict[str, Any], trial: str, result: dict[str, int | float | None] | None = None
) -> Any:
    """Make a tiny run that logs its options and result to TensorBoard, and return its test metrics."""
    logger = CurveLogger(folder, name="", version="", default_hp_metric=False, first={"test/loss": "Score/loss"})
    trainer = small.trainer(folder, logger=logger)
    module, data = small.module(), small.data(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_hparams(folder / FILE, options, trial, started=1.0)
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data, verbose=False)
    log_result(trainer, result or {})
    return module.results["test"]


def test_the_hparams_tab_lists_options_that_vary_first(tmp_path: Path) -> None:
    shared = {"model.batch_size": 8, "task.n_pairs": 2}
    result = {"accuracy": 0.5, "perplexity": None, "parameters": 100, "state_bytes": 8}
    train(tmp_path / "a" / "seed0", {"mixer": "attention", "mixer.n_heads": 2, **shared, "seed": 0}, "1a2b-0 a", result)
    train(tmp_path / "b" / "seed1", {"mixer": "lstm", **shared, "model.d_channel": None, "seed": 1}, "3c4d-1 b", result)
    tab = hparams_tab(tmp_path)
    assert tab.columns == ["mixer", "seed", "mixer.n_heads", "model.batch_size", "task.n_pairs"]
    assert tab.metrics[1:4] == ["result/accuracy", "result/parameters", "result/state_bytes"]
    assert "epoch" not in tab.metrics
    assert set(tab.numbers) == {"1a2b-0 a", "3c4d-1 b"}
    assert [tab.numbers["1a2b-0 a"][name] for name in tab.metrics[1:4]] == [0.5, 100, 8]


def test_options_are_numbers_and_strings_and_the_latest_ones_count(tmp_path: Path) -> None:
    options = {"c": 1, "d": [1, 2], "e": True, "f": None, "g": 0.5, "h": "x"}
    write_hparams(tmp_path / FILE, options | {"i": 3}, "a", started=1.0)
    assert hparams_tab(tmp_path).options["a"].keys() == {*"cdeghi"}
    write_hparams(tmp_path / FILE, options, "a", started=1.0)
    assert hparams_tab(tmp_path).options == {"a": {"c": 1, "d": "[1, 2]", "e": True, "g": 0.5, "h": "x"}}
    before = (tmp_path / FILE).stat().st_ino
    write_hparams(tmp_path / FILE, dict(reversed(options.items())), "a", started=1.0)
    assert (tmp_path / FILE).stat().st_ino == before  # not rewritten
    assert [file.name for file in tmp_path.iterdir()] == [FILE]


def test_curves_are_written_once_and_scores_by_fact_have_their_own_chart(tmp_path: Path) -> None:
    tested = train(tmp_path, {"mixer": "attention"}, "a", {"parameters": 3})
    curves = small.curves(tmp_path)
    assert not {"epoch", "hp_metric", "test/loss"} & curves.keys()
    assert min(curves) == "Score/loss"  # the first chart
    assert curves["test/accuracy"] == [(4, pytest.approx(tested["accuracy"]))]
    split = curves["test_accuracy_by_distance/<=4"]
    assert [value for _, value in split] == pytest.approx([tested["by_distance"][0]["accuracy"]])
    assert not [tag for tag in curves if tag.startswith("test/accuracy_by")]
    assert curves["result/parameters"] == [(4, 3)]
