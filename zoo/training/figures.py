"""`TheoryFigures`, a callback that logs the operator of each layer to TensorBoard during or after training."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule

from zoo.backbone import Backbone
from zoo.report.plots import as_pixels
from zoo.theory.figures import (
    gradient_decay_figure,
    heads_over_training_figure,
    operator_figure,
    spectrum_figure,
)
from zoo.theory.gradients import FEWEST_SEEDS, fitted, profile_at
from zoo.theory.layers import LayerInput, layer_inputs
from zoo.theory.operator import OperatorError
from zoo.theory.spectra import operator_norms, spectrum_at

_LOG = logging.getLogger(__name__)
FEWEST_POSITIONS = 8
_SKETCH = 8  # size of the sketch of wide layers, for quick readings


class TheoryFigures(Callback):
    """Log the operator of each layer at a validation example: heat map, spectrum, gradient against distance, heads.

    Scalars: `theory/layer <i>/heads for <e> %` and `theory/layer <i>/interaction rank`. At the end, a picture
    `theory/layer <i>` with the operator, its spectrum, the gradient and, after two readings or more, the heads over
    training. We read each layer's mixer at its input, on a copy in float64 on the CPU, so that neither training nor its
    random numbers change.

    Args:
        every_n_steps: optimizer steps between two readings; start and end of training are read too. Default: only the
            end.
        max_seq_len: number of positions to read, from the start of the example; fewer if an example is shorter.
        n_examples: validation examples for the gradient; its rate and interval need at least five.

    Raises:
        ValueError: a size below its minimum.
    """

    def __init__(self, every_n_steps: int | None = None, max_seq_len: int = 32, n_examples: int = FEWEST_SEEDS) -> None:
        for name, value, least in (
            ("every_n_steps", every_n_steps, 1),
            ("max_seq_len", max_seq_len, FEWEST_POSITIONS),
            ("n_examples", n_examples, 2),
        ):
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        self.every_n_steps, self.max_seq_len, self.n_examples = every_n_steps, max_seq_len, n_examples
        self.steps: list[int] = []
        """Optimizer steps at which the layers were read."""
        self.heads: dict[str, dict[float, list[int | float]]] = {}
        """Layer -> relative error -> heads needed, at each of `steps`; NaN where the layer could not be read."""
        self._inputs: Tensor | None = None

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.every_n_steps is not None:
            self._read(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = trainer.global_step
        if self.every_n_steps is not None and step % self.every_n_steps == 0 and step not in self.steps:
            self._read(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._read(trainer, pl_module, figures=True)

    def _read(self, trainer: L.Trainer, module: L.LightningModule, figures: bool = False) -> None:
        loggers = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if not loggers:
            return
        backbone = module.backbone
        assert isinstance(backbone, Backbone)
        sharded = isinstance(backbone, FSDPModule)
        weights = get_model_state_dict(backbone, options=StateDictOptions(full_state_dict=True)) if sharded else {}
        if not trainer.is_global_zero:
            return
        # Only the iterator of the loader draws from torch's generators here; the fork restores them.
        with torch.random.fork_rng(devices=[]):
            inputs = self._examples(trainer)
            if inputs is None:
                return
            step = trainer.global_step
            again = step in self.steps
            if not again:
                self.steps.append(step)
            model = Backbone(**backbone.options) if sharded else copy.deepcopy(backbone)
            if sharded:
                model.load_state_dict(weights)
            model = model.cpu().double().eval()
            for at, layer in enumerate(layer_inputs(model, inputs)):
                self._log_layer(loggers, step, f"theory/layer {at}", layer, again, figures)

    def _log_layer(
        self, loggers: list[TensorBoardLogger], step: int, tag: str, layer: LayerInput, again: bool, figures: bool
    ) -> None:
        name, mixer, x = layer
        try:
            read = spectrum_at(mixer, x[:1], sketch=_SKETCH)
        except OperatorError as error:
            _LOG.warning("%s: no figures of its operator: %s", name, error)
            for counts in self.heads.get(name, {}).values():
                if not again:
                    counts.append(math.nan)
            return
        assert read.rank is not None
        scalars = {f"{tag}/interaction rank": read.rank}
        scalars |= {f"{tag}/heads for {100 * error:g} %": count for error, count in read.heads.items()}
        missed = len(self.steps) if again else len(self.steps) - 1
        history = self.heads.setdefault(name, {error: [math.nan] * missed for error in read.heads})
        for error, counts in history.items():
            if not again:
                counts.append(read.heads[error])
        panels = []
        if figures:
            panels = [
                operator_figure(operator_norms(mixer, x[:1]), f"{name}, operator"),
                spectrum_figure(read, f"{name}, spectrum"),
                gradient_decay_figure(fitted(profile_at(mixer, x)), f"{name}, gradient"),
            ]
            if len(self.steps) > 1:
                panels.append(heads_over_training_figure(self.steps, history, f"{name}, heads needed"))
        for logger in loggers:
            if not again:
                for scalar, value in scalars.items():
                    logger.experiment.add_scalar(scalar, value, step)
            if panels:
                logger.experiment.add_image(tag, as_pixels(*panels), step, dataformats="HWC")  # one card

    def _examples(self, trainer: L.Trainer) -> Tensor | None:
        """Return the longest examples of the first validation batch, without padding; None without validation data."""
        if self._inputs is None:
            loaders = trainer.val_dataloaders
            if isinstance(loaders, list | tuple):
                loaders = loaders[0] if loaders else None
            batch = None if loaders is None else next(iter(loaders), None)
            if not isinstance(batch, Mapping) or len(batch["inputs"]) == 0:
                return None
            inputs, lengths = batch["inputs"], batch.get("lengths")
            if lengths is not None:
                longest = lengths.argsort(descending=True, stable=True)[: self.n_examples]
                inputs = inputs[longest, : max(FEWEST_POSITIONS, int(lengths[longest].min()))]
            self._inputs = inputs[: self.n_examples, : self.max_seq_len].cpu()
        return self._inputs
