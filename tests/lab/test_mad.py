"""configs/experiment/mad.yaml is the published protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.config import parse
from lab.sweep.experiment import read_experiment
from lab.sweep.grid import expand
from tests import ROOT


@pytest.mark.slow
def test_mads_grid_begins_with_the_published_shapes_and_changes_one_thing_at_a_time() -> None:
    points = {"compression": 11, "fuzzy_recall": 11, "in_context_recall": 11}
    points |= {"memorization": 6, "noisy_recall": 14, "selective_copying": 13}  # in athms/mad-lab's configs/tasks
    experiment = read_experiment(ROOT / "configs" / "experiment" / "mad.yaml").overridden({"mixer": ["identity"]})
    assert experiment.tune == {"lr": [1e-4, 5e-4, 1e-3], "weight_decay": [0.0, 0.1]}
    by_task: dict[str, list[dict[str, Any]]] = {}
    for configuration, _ in expand(experiment, Path("runs")):
        config = configuration.command.config
        by_task.setdefault(config["task"]["name"], []).append(config)
    assert {task: len(configs) for task, configs in by_task.items()} == points
    for task, configs in by_task.items():
        name = "selective_copying-mad" if task == "selective_copying" else task
        published = parse(["--config", str(ROOT / f"configs/task/published/{name}.yaml")]).config
        steps = published["trainer"]["max_steps"] * published["batch_size"]
        assert steps == configs[0]["trainer"]["max_epochs"] * published["task"]["n_train"]
        for key in ("d_model", "n_layers", "d_channel", "batch_size", "beta2", "warmup_steps", "final_lr", "task"):
            assert configs[0][key] == published[key], (task, key)
        own = configs[0]["task"]
        assert all(sum(each["task"][key] != own[key] for key in own) == 1 for each in configs[1:]), task
