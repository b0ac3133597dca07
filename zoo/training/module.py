"""The LightningModule: any backbone, trained on any task that comes as plain batches."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import lightning as L
import torch
from jaxtyping import Float, Int, Shaped
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn import functional as F

from zoo.backbone import Backbone
from zoo.blocks import Experts, ResidualBlock
from zoo.contract import SequenceMixer
from zoo.modules import listed
from zoo.ops.time import valid_positions
from zoo.parallel import shard
from zoo.seeds import seeded
from zoo.targets import load
from zoo.training.events import log_split_scores
from zoo.training.metrics import UNLABELLED, ClassificationScores, RegressionScores, Results
from zoo.validate import require_choice

Loss = Literal["cross_entropy", "mse"]
Batch = Mapping[str, Tensor]
"""inputs: (batch, seq) int64 or (batch, seq, d_input) floating.
labels: (batch, seq) int64, -100 where unlabelled; for mse (batch, seq, n_outputs) floating, NaN where unlabelled.
lengths (optional): (batch,) int64, valid positions of each row. One (batch, seq) int64 array for each fact."""

LABELLED = "labelled"
"""Key under which a batch on its way to the device carries the numbers of its labelled positions."""

STREAM_ABOVE = 16_384
"""Longer sequences are validated and tested in chunks, in memory that does not grow with them but by the state."""
STREAM_CHUNK = 4_096


def warmup_cosine(step: int, warmup_steps: int, total_steps: int, final: float) -> float:
    """Return the factor on the learning rate at optimizer step `step` = 0 .. total_steps - 1.

    Rises linearly to 1 over warmup_steps, then falls along half a cosine to `final`, reached at the last step.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min(1.0, (step + 1 - warmup_steps) / max(1, total_steps - warmup_steps))
    return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2


class BetweenSteps(Callback):
    """A callback that `SequenceModule` calls between two batches of training, for which Lightning has no hook.

    Raises:
        TypeError: out of `Trainer.fit`, for another module.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if not isinstance(pl_module, SequenceModule):
            raise TypeError(f"{type(self).__name__} needs a SequenceModule, got {type(pl_module).__name__}")

    def between_steps(self, trainer: L.Trainer) -> None:
        """Run after a batch is done and logged, and after a validation that is due, before the next batch begins."""


class SequenceModule(L.LightningModule):
    """A backbone with its loss, metrics and optimizer. Every hyper-parameter is plain data.

    So a checkpoint describes its own content: `SequenceModule.load_from_checkpoint(path)` needs no data module, and
    `zoo.load` needs no lightning.

    It logs `<stage>/loss` and `<stage>/accuracy` (`<stage>/relative_squared_error` for mse), for stage train (each
    step), val and test (over the split); for val and test also `accuracy_macro`, the mean over the classes of their
    accuracies, and `sequence_accuracy`, the share of sequences whose every label is answered (`r2` for mse), and with
    perplexity `perplexity` and `bits_per_token`. If mixers have losses of their own (dsa), their mean is added to the
    training loss and logged as `train/own_loss`. With experts also `train/balance_loss` and
    `train/load/layer<l>/expert<e>`, the share of positions that it served. The scores of the last validation and test
    are in `results`, nested; the test's are also split by facts.

    Args:
        balance_weight: weight, in the training loss, of the experts' load-balance loss (a mean over the expert layers).
        loss: cross_entropy or mse, over the labelled positions.
        facts: names of the batch's arrays that the test score is split by, such as distance.
        perplexity: report the perplexity and the bits per token of the labels.
        seed: seed of the initial weights.
        lr: learning rate at the end of the warm-up.
        slow_lr: factor on it for the parameters that a mixer lists in `slow`, its dynamics: the authors of S4D, S5 and
            LRU train them at a tenth to a half of the rate, those of RWKV at twice the rate; None trains all at lr.
        optimizer: a class of torch.optim, such as AdamW or SGD, or your own: `package.module:Class`.
        weight_decay: decay of matrices; none of norms, biases, embeddings and some parameters of mixers.
        beta1: decay rate of the mean gradient: the first of the optimizer's betas, or its momentum.
        beta2: decay rate of the squared gradient, for optimizers that have betas.
        warmup_steps: optimizer steps of linear warm-up; a cosine follows.
        final_lr: where the cosine ends, as a fraction of lr.
        compile: run the backbone through torch.compile.
        **model: the options of `Backbone`: mixer, n_outputs, vocab_size or d_input, d_model, n_layers and so on.

    Raises:
        ValueError: a hyper-parameter out of range, or an option that `Backbone` refuses.
    """

    def __init__(
        self,
        *,
        balance_weight: float = 1e-3,
        loss: Loss = "cross_entropy",
        facts: Sequence[str] = (),
        perplexity: bool = False,
        seed: int = 0,
        lr: float = 5e-3,
        slow_lr: float | None = None,
        optimizer: str = "AdamW",
        weight_decay: float = 0.1,
        beta1: float = 0.9,
        beta2: float = 0.98,
        warmup_steps: int = 50,
        final_lr: float = 0.05,
        compile: bool = False,  # noqa: A002 (the flag's name)
        **model: Any,
    ) -> None:
        super().__init__()
        require_choice("loss", loss, Loss)
        _require_at_least_zero(lr=lr, weight_decay=weight_decay, warmup_steps=warmup_steps, final_lr=final_lr)
        _require_at_least_zero(balance_weight=balance_weight, slow_lr=slow_lr or 0.0)
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0 <= beta < 1:
                raise ValueError(f"{name} must lie in [0, 1), got {beta}")
        with seeded(seed):
            self.backbone = Backbone(**model)
        model, facts = self.backbone.options, list(facts)  # all of them, defaults too
        # logger=False: `write_hparams` tells TensorBoard of those that runs are compared by.
        self.save_hyperparameters(logger=False)
        if compile:
            # In place: a compiled wrapper would put its own prefix before every key of the state_dict.
            self.backbone.compile()
        n_outputs = self.backbone.n_outputs
        self._optimizer()  # an optimizer that does not fit is refused before anything is written
        self.loss: Loss = loss
        self.balance_weight = balance_weight
        # Scores are split by facts at test alone.
        self.scores = nn.ModuleDict(
            {
                stage: ClassificationScores(n_outputs, split_by, perplexity)
                if loss == "cross_entropy"
                else RegressionScores(split_by)
                for stage, split_by in (("val", ()), ("test", facts))
            }
        )
        self.results: dict[str, Results] = {}
        """The scores of the last validation and test, nested, by stage: "val", "test"."""

    def forward(
        self, inputs: Shaped[Tensor, "batch seq *d_input"], lengths: Tensor | None = None
    ) -> Float[Tensor, "batch seq n_outputs"]:
        """Return logits, or regressed values, at every position."""
        return self.backbone(inputs, lengths)

    def predict_labelled(
        self, batch: Batch
    ) -> tuple[Float[Tensor, "n n_outputs"], Shaped[Tensor, "*n_outputs"], Int[Tensor, " n"]]:
        """Return outputs (at least float32) and labels at the n positions of `labelled`, and these positions."""
        inputs, labels, lengths = batch["inputs"], batch["labels"], batch.get("lengths")
        at = batch[LABELLED] if LABELLED in batch else self.labelled(batch)
        chunks = inputs.shape[1] > STREAM_ABOVE and self.backbone.layers.streams
        if chunks and lengths is None and not self.training:
            outputs = self._stream(inputs, at)
        elif len(at) == inputs.shape[:2].numel():
            outputs = self.backbone(inputs, lengths).flatten(0, 1)
        else:
            outputs = self.backbone(inputs, lengths, at)
        return _at_least_float32(outputs), labels.flatten(0, 1)[at], at

    def labelled(self, batch: Batch) -> Int[Tensor, " labelled"]:
        """Return the numbers row * seq + position of the labelled positions, row by row.

        Their count is a value: where the labels are not on the CPU, the host waits for the device.
        """
        labels, lengths = batch["labels"], batch.get("lengths")
        at = labels != UNLABELLED if self.loss == "cross_entropy" else ~labels[:, :, 0].isnan()
        if lengths is not None and self.loss == "mse":
            at &= valid_positions(lengths, at.shape[1])
        return at.flatten().nonzero().squeeze(1)

    def _stream(
        self, inputs: Shaped[Tensor, "batch seq *d_input"], at: Int[Tensor, " selected"]
    ) -> Float[Tensor, "selected n_outputs"]:
        """`backbone(inputs, None, at)`, chunk by chunk."""
        row, position = at // inputs.shape[1], at % inputs.shape[1]
        outputs, state, first = at.new_empty(0), None, 0
        for x in inputs.split(STREAM_CHUNK, 1):
            y, state = self.backbone.stream(x, state)
            outputs = outputs if first else y.new_empty(len(at), y.shape[2])
            here = (first <= position) & (position < first + x.shape[1])
            outputs[here] = y[row[here], position[here] - first]
            first += x.shape[1]
        return outputs

    def setup(self, stage: str) -> None:
        # Lightning warns that it calls this module's hook and not the data module's.
        warnings.filterwarnings("ignore", "You have overridden `on_before_batch_transfer` in `LightningModule`")

    def configure_model(self) -> None:
        """Shard the backbone if the strategy is model_parallel."""
        if self.device_mesh is not None and not isinstance(self.backbone, FSDPModule):
            shard(self.backbone, self.device_mesh["data_parallel"])

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Find the labelled positions where they cost no wait: on the host, before the batch moves to the device.

        In training also call the callbacks that save or stop between two batches: from here Lightning resumes exactly.
        """
        for callback in self.trainer.callbacks if self.trainer.training else ():  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(callback, BetweenSteps):
                callback.between_steps(self.trainer)
        return {**batch, LABELLED: self.labelled(batch)}

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        mixers = [module for module in self.backbone.modules() if isinstance(module, SequenceMixer)]
        for mixer in mixers:
            mixer.warming_up = self.global_step < self.hparams["warmup_steps"]
        outputs, labels, _ = self.predict_labelled(batch)
        loss, score = self._judge(outputs, labels)
        share = self._share(labels.numel(), loss.dtype)
        loss, score = share * loss, share * score
        self.log("train/loss", loss.detach(), sync_dist=True)
        self.log(f"train/{self.score_name}", score, sync_dist=True)
        if own := [mixer.own_loss for mixer in mixers if mixer.own_loss is not None]:
            own_loss = torch.stack(own).mean()
            self.log("train/own_loss", own_loss.detach())
            loss = loss + own_loss
        balance = self._balance()
        return loss if balance is None else loss + balance

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate("test", batch)

    def on_validation_epoch_end(self) -> None:
        self.results["val"] = self._scores("val").results()

    def on_test_epoch_end(self) -> None:
        self.results["test"] = self._scores("test").results()
        log_split_scores(self.trainer, self.results["test"])

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Build the optimizer and the schedule `warmup_cosine`.

        Raises:
            ValueError: the trainer has no max_steps and no max_epochs, so that the cosine has no end.
        """
        h, optimizer = self.hparams, self._optimizer()
        total = self.trainer.estimated_stepping_batches
        if math.isinf(total):
            raise ValueError("the learning rate schedule needs an end: give trainer.max_steps or trainer.max_epochs")
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: warmup_cosine(step, h["warmup_steps"], int(total), h["final_lr"])
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _optimizer(self) -> torch.optim.Optimizer:
        """Build the optimizer with groups of parameters: decayed or spared, slow or not."""
        h = self.hparams
        spared, slow, factor = self.backbone.no_weight_decay(), set(), 1.0
        if h["slow_lr"] is not None:
            slow, factor = listed(self.backbone, "slow"), h["slow_lr"]
        named = [(name, p) for name, p in self.backbone.named_parameters() if p.requires_grad]
        groups = [
            {
                "params": [p for name, p in named if (name in spared, name in slow) == (is_spared, is_slow)],
                "weight_decay": 0.0 if is_spared else h["weight_decay"],
                "lr": h["lr"] * (factor if is_slow else 1.0),
            }
            for is_slow in (False, True)
            for is_spared in (False, True)
        ]
        name = h["optimizer"]
        cls = load(name if ":" in name else f"torch.optim:{name}", _is_optimizer)
        if not _is_optimizer(cls):
            raise ValueError(f"optimizer must be a torch.optim.Optimizer, got {name}")
        means = {"betas": (h["beta1"], h["beta2"]), "momentum": h["beta1"]}
        means = {name: value for name, value in means.items() if name in inspect.signature(cls).parameters}
        return cls([g for g in groups if g["params"]], lr=h["lr"], **means)

    def _balance(self) -> Tensor | None:
        """Return the experts' part of the loss, None without experts; logs it, unweighted, and each expert's load."""
        losses = []
        for layer, block in enumerate(self.backbone.layers.chain()):
            experts = block.channel if isinstance(block, ResidualBlock) else None
            if isinstance(experts, Experts) and experts.balance_loss is not None and experts.load is not None:
                losses.append(experts.balance_loss)
                loads = {f"train/load/layer{layer}/expert{e}": load for e, load in enumerate(experts.load)}
                self.log_dict(loads)
        if not losses:
            return None
        loss = torch.stack(losses).mean()
        self.log("train/balance_loss", loss.detach())
        return self.balance_weight * loss

    @property
    def score_name(self) -> str:
        """The score that is logged besides the loss."""
        return "accuracy" if self.loss == "cross_entropy" else "relative_squared_error"

    def _share(self, n: int, dtype: torch.dtype) -> Tensor | float:
        """Return this process's n labels over the average of all processes, 1 for a single process.

        Gradients and logged numbers are means over the processes: weighed by this they are means over all labels.
        """
        if _n_processes() == 1:
            return 1.0
        # Filled on the device: a copy of a number from the host waits for it.
        total = self.trainer.strategy.reduce(torch.full((), n, dtype=dtype, device=self.device), reduce_op="sum")
        assert isinstance(total, Tensor)
        return n * _n_processes() / total.clamp(min=1)

    def _judge(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss, and accuracy or relative squared error, of a batch; zeros of no weight if it is empty."""
        if labels.numel() == 0:
            # One of several devices may get no row of the last batch: a mean over nothing would be nan for all.
            return outputs.sum(), outputs.detach().sum()
        if self.loss == "cross_entropy":
            return F.cross_entropy(outputs, labels), (outputs.argmax(-1) == labels).float().mean()
        error = F.mse_loss(outputs, labels)
        return error, error.detach() / labels.square().mean()

    def _scores(self, stage: Literal["val", "test"]) -> ClassificationScores | RegressionScores:
        scores = self.scores[stage]
        assert isinstance(scores, ClassificationScores | RegressionScores)
        return scores

    def _evaluate(self, stage: Literal["val", "test"], batch: Batch) -> None:
        outputs, labels, at = self.predict_labelled(batch)
        scores = self._scores(stage)
        scores.update(self._judge(outputs, labels)[0], outputs, labels, at, batch)
        for name, metric in scores.means():
            self.log(f"{stage}/{name}", metric, on_epoch=True, batch_size=labels.numel(), prog_bar=stage == "val")


def _n_processes() -> int:
    """Count the processes of this training run; 1 also without a trainer."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1


def _is_optimizer(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, torch.optim.Optimizer)


def _at_least_float32(t: Tensor) -> Tensor:
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _require_at_least_zero(**values: float | int) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number >= 0, got {value}")
