"""TheoryFigures logs figures and numbers of layers to TensorBoard, and does not change training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader

from tests.training import small
from zoo.backbone import Backbone
from zoo.report.plots import as_pixels, new_figure
from zoo.theory import spectra
from zoo.theory.layers import layer_inputs
from zoo.theory.operator import OperatorError, interaction
from zoo.theory.rank import interaction_rank
from zoo.training import figures
from zoo.training.figures import TheoryFigures


def fit(folder: Path, callback: L.Callback | None, logged: bool = True, **options: Any) -> Any:
    """Train two layers for eight steps with a `TheoryFigures` callback, or without one."""
    logger = small.tensorboard(folder / "events") if logged else False
    module = small.module(n_layers=2, **options)
    callbacks = [] if callback is None else [callback]
    trainer = small.trainer(folder, *callbacks, max_steps=8, logger=logger)
    trainer.fit(module, datamodule=small.data(folder))
    return module


def events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder / "events")).Reload()


def test_at_the_end_of_fit_every_layer_has_its_figures_and_numbers(tmp_path: Path) -> None:
    module = fit(tmp_path, TheoryFigures(max_seq_len=8, n_examples=2))
    found = events(tmp_path)
    assert set(found.Tags()["images"]) == {"theory/layer 0", "theory/layer 1"}
    (image,) = found.Images("theory/layer 0")
    assert image.encoded_image_string.startswith(b"\x89PNG")
    assert image.step == 8
    # The rank is that of the trained layer at the first validation example, computed here from the whole operator.
    data = small.data(tmp_path)
    data.setup("fit")
    example = next(iter(data.val_dataloader()))["inputs"][:1]
    backbone = module.backbone.double().eval()
    for at, (_, mixer, x) in enumerate(layer_inputs(backbone, example)):
        (scalar,) = found.Scalars(f"theory/layer {at}/interaction rank")
        assert scalar.value == interaction_rank(interaction(mixer, x).operator[0])


@pytest.mark.slow
@pytest.mark.usefixtures("unpainted")
def test_heads_over_training_are_logged_as_curves_and_in_a_figure(tmp_path: Path) -> None:
    callback = TheoryFigures(every_n_steps=4, max_seq_len=8, n_examples=2)
    fit(tmp_path, callback)
    assert callback.steps == [0, 4, 8]
    found = events(tmp_path)
    points = found.Scalars("theory/layer 1/heads for 1 %")
    assert [point.step for point in points] == [0, 4, 8]
    assert [point.value for point in points] == callback.heads["layer 1: attention"][0.01]
    (image,) = found.Images("theory/layer 1")
    height, width, _ = as_pixels(new_figure()[0]).shape
    assert (image.step, image.height, image.width) == (8, 2 * height, 2 * width)  # four panels


@pytest.mark.usefixtures("unpainted")
def test_padding_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, read = small.data(tmp_path, small.Echo(seq_len=16)), []
    data.setup("fit")
    batch = next(iter(data.val_dataloader()))
    batch["lengths"] = torch.full((len(batch["inputs"]),), 3)
    batch["lengths"][1], batch["lengths"][4] = 9, 10

    def recorded(model: Backbone, inputs: torch.Tensor) -> Any:
        read.append(inputs)
        return layer_inputs(model, inputs)

    monkeypatch.setattr(figures, "layer_inputs", recorded)
    trainer = small.trainer(tmp_path, TheoryFigures(n_examples=2), max_steps=1, logger=small.tensorboard(tmp_path))
    trainer.fit(
        small.module(), train_dataloaders=data.train_dataloader(), val_dataloaders=DataLoader([batch], batch_size=None)
    )
    assert torch.equal(read[-1], batch["inputs"][[4, 1], :9])


@pytest.mark.usefixtures("unpainted")
def test_a_reading_that_fails_leaves_a_gap_in_the_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def spectrum_at(*args: Any, **options: Any) -> Any:
        calls.append(args)
        if len(calls) in (1, 4):  # layer 0 at step 0, layer 1 at step 4
            raise OperatorError("not affine")
        return spectra.spectrum_at(*args, **options)

    monkeypatch.setattr(figures, "spectrum_at", spectrum_at)
    callback = TheoryFigures(every_n_steps=4, max_seq_len=8, n_examples=2)
    fit(tmp_path, callback)
    assert callback.steps == [0, 4, 8]
    gaps = {name: [value != value for value in heads[0.01]] for name, heads in callback.heads.items()}
    assert gaps == {"layer 0: attention": [True, False, False], "layer 1: attention": [False, True, False]}
    assert set(events(tmp_path).Tags()["images"]) == {"theory/layer 0", "theory/layer 1"}


@pytest.mark.usefixtures("unpainted")
def test_the_callback_does_not_change_training(tmp_path: Path) -> None:
    """Weights are bitwise equal, although steps draw from torch's generator."""
    watched, alone = (
        fit(tmp_path / name, callback, cls=small.NoisyModule)
        for name, callback in (("watched", TheoryFigures(4, 8, 2)), ("alone", None))
    )
    small.assert_identical(small.weights(watched.backbone), small.weights(alone.backbone))
    assert watched.draws == alone.draws
    assert watched.backbone.training == alone.backbone.training


def test_without_tensorboard_nothing_is_measured(tmp_path: Path) -> None:
    callback = TheoryFigures(every_n_steps=1)
    fit(tmp_path, callback, logged=False)
    assert callback.steps == []


@pytest.mark.parametrize("options", [{"every_n_steps": 0}, {"max_seq_len": 4}, {"n_examples": 1}])
def test_sizes_too_small_are_refused(options: dict[str, int]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        TheoryFigures(**options)
