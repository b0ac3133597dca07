"""What TensorBoard is told of runs: read back as its HParams tab and its charts read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.data.provider import ListHyperparametersResult
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

from tests.training import small
from zoo.training import CurveLogger, HParams, log_result


def train(
    folder: Path, options: dict[str, Any], trial: str, result: dict[str, int | float | None] | None = None
) -> Any:
    """A tiny run that tells TensorBoard its options and result; its test's metrics."""
    logger = CurveLogger(folder, name="", version="", default_hp_metric=False)
    trainer = small.trainer(folder, HParams(options, trial), logger=logger)
    module, data = small.module(), small.data(folder)
    trainer.fit(module, datamodule=data)
    tested = trainer.test(module, datamodule=data, verbose=False)[0]
    log_result(trainer, result or {})
    return tested


def hparams_tab(folder: Path) -> tuple[list[str], list[str], dict[str, dict[str, Any]]]:
    """What the tab over a folder of runs shows: its options and metrics in their order, {trial: numbers}."""
    events = EventMultiplexer()
    events.AddRunsFromDirectory(str(folder)).Reload()
    provider = MultiplexerDataProvider(events, str(folder))
    tab, asked = backend_context.Context(TBContext(data_provider=provider)), RequestContext()
    found = tab.experiment_from_metadata(
        asked, "", True, tab.hparams_metadata(asked, ""), ListHyperparametersResult([], [])
    )
    statuses = [api_pb2.STATUS_SUCCESS]
    request = api_pb2.ListSessionGroupsRequest(allowed_statuses=statuses, slice_size=9)
    trials = list_session_groups.Handler(asked, tab, "", request).run().session_groups
    numbers = {t.name: {value.name.tag: value.value for value in t.metric_values} for t in trials}
    return [info.name for info in found.hparam_infos], [info.name.tag for info in found.metric_infos], numbers


def test_hparams_tab_shows_first_what_differs_between_runs(tmp_path: Path) -> None:
    shared = {"model.batch_size": 8, "task.n_pairs": 2}
    result = {"accuracy": 0.5, "perplexity": None, "parameters": 100, "state_bytes": 8}
    train(tmp_path / "a" / "seed0", {"mixer": "attention", "mixer.n_heads": 2, **shared, "seed": 0}, "1a2b-0 a", result)
    train(tmp_path / "b" / "seed1", {"mixer": "lstm", **shared, "model.d_channel": None, "seed": 1}, "3c4d-1 b", result)
    options, metrics, trials = hparams_tab(tmp_path)
    assert options == ["mixer", "seed", "mixer.n_heads", "model.batch_size", "model.d_channel", "task.n_pairs"]
    assert metrics[:3] == ["result/accuracy", "result/parameters", "result/state_bytes"]
    assert "epoch" not in metrics
    assert set(trials) == {"1a2b-0 a", "3c4d-1 b"}
    assert [trials["1a2b-0 a"][name] for name in metrics[:3]] == [0.5, 100, 8]


def test_options_are_numbers_and_strings() -> None:
    options = {"c": 1, "d": [1, 2], "e": True, "f": None, "g": 0.5, "h": "x"}
    assert HParams(options, "").options == {"c": 1, "d": "[1, 2]", "e": True, "f": "None", "g": 0.5, "h": "x"}


def test_curves_are_written_once_and_scores_that_are_split_apart(tmp_path: Path) -> None:
    tested = train(tmp_path, {"mixer": "attention"}, "a", {"parameters": 3})
    events = EventAccumulator(str(tmp_path)).Reload()
    tags = events.Tags()["scalars"]
    assert not {"epoch", "hp_metric"} & set(tags)
    assert [(e.step, e.value) for e in events.Scalars("test/accuracy")] == [(4, pytest.approx(tested["test/accuracy"]))]
    split = events.Scalars("test_accuracy_by_distance/<=4")
    assert [e.value for e in split] == pytest.approx([tested["test/accuracy_by_distance/<=4"]])
    assert not [tag for tag in tags if tag.startswith("test/accuracy_by")]
    assert [(e.step, e.value) for e in events.Scalars("result/parameters")] == [(4, 3)]
