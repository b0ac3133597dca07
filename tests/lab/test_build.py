"""Building the task and model of a configuration, their sizes, and trivial guesses at the task."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lab.build import build, build_task, model_options, trivial_guess
from lab.config import parse
from lab.sweep.matching import sizes
from zoo.backbone import Backbone
from zoo.training import SequenceModule

NEEDLE = "--task needle --task.distance 6 --task.n_distractors 2 --d_model 8 --trainer.accelerator cpu"
COMMANDS = (
    f"--mixer lstm {NEEDLE}",
    f"--mixer attention {NEEDLE} --n_experts 2 --d_conv 3",
    "--mixer factorized --task ssm_teacher",
    "--mixer hybrid --task mqar --n_layers 3 --backbone bare --d_channel 0",
)


def config_of(argv: str) -> dict[str, Any]:
    return parse(argv.split()).config


@pytest.mark.parametrize("argv", COMMANDS)
def test_the_built_model_is_the_trained_one(argv: str) -> None:
    config = config_of(argv)
    task, model = build(config)
    with torch.device("meta"):
        trained = SequenceModule(**model_options(config, task, Backbone, SequenceModule)).backbone
    shapes = {name: tensor.shape for name, tensor in trained.state_dict().items()}
    assert {name: tensor.shape for name, tensor in model.state_dict().items()} == shapes
    assert model.options == trained.options
    found = sizes(config)
    assert found["params"] == sum(p.numel() for p in trained.parameters() if p.requires_grad)
    assert found["state_bytes"] == trained.state_bytes(task.spec.seq_len)


def test_options_of_the_data_are_not_passed_to_the_task() -> None:
    config = config_of(f"--mixer lstm {NEEDLE} --task.n_train 7")
    assert config["task"]["n_train"] == 7
    assert build_task(config).options()["n_distractors"] == 2


@pytest.mark.parametrize("guess", ["guess_among_read", "guess_without_order"])
def test_a_trivial_guess_is_none_for_tasks_without_one(guess: str) -> None:
    mqar = {"name": "mqar", "n_pairs": 4, "seq_len": 32}
    assert trivial_guess({"task": mqar}, guess) == 0.25
    assert trivial_guess({"task": mqar | {"mixture": [{"seq_len": 64}]}}, guess) is None
    assert trivial_guess({"task": mqar | {"n_pairs": 40}}, guess) is None  # invalid options
    assert trivial_guess({"task": {"name": "text", "path": "/nowhere"}}, guess) is None
    assert trivial_guess({"task": {"name": "./mqar.npz"}}, guess) is None
