"""`SequenceModule`, the LightningModule that trains a `Backbone` on batches of tensors."""

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
lengths (optional): (batch,) int64, number of valid positions of each row.
One (batch, seq) int64 array for each fact."""

LABELLED = "labelled"
"""Key of a batch's labelled positions, added before it moves to the device."""

STREAM_ABOVE = 16_384
"""Longer sequences without `lengths` are validated and tested in chunks, so that only the state grows with length."""
STREAM_CHUNK = 4_096


def warmup_cosine(step: int, warmup_steps: int, total_steps: int, final: float) -> float:
    """Return the factor of the learning rate at optimizer step `step` = 0 .. total_steps - 1.

    It rises linearly to 1 over warmup_steps, then falls along half a cosine to `final` at the last step.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = min(1.0, (step + 1 - warmup_steps) / max(1, total_steps - warmup_steps))
    return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2


class BetweenSteps(Callback):
    """Base class of callbacks that `SequenceModule` calls between two training batches, where Lightning has no hook.

    Raises:
        TypeError: from `Trainer.fit`, if the module is not a `SequenceModule`.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if not isinstance(pl_module, SequenceModule):
            raise TypeError(f"{type(self).__name__} needs a SequenceModule, got {type(pl_module).__name__}")

    def between_steps(self, trainer: L.Trainer) -> None:
        """Run between two batches: after logging and any validation that is due, before the next batch."""


class SequenceModule(L.LightningModule):
    """A backbone with its loss, metrics and optimizer.

    All hyper-parameters are plain data and stored in checkpoints. So `SequenceModule.load_from_checkpoint(path)` needs
    no data module, and `zoo.load` does not need Lightning.

    Logged in training at each step, in validation and test over the split, as `<stage>/<name>`:

    - `loss`, and `accuracy` (`relative_squared_error` for mse).
    - In validation and test also `accuracy_macro`, the mean of the classes' accuracies, and `sequence_accuracy`, the
      share of sequences with all labels right (`r2` for mse). With the option perplexity, `perplexity` and
      `bits_per_token`.
    - In training `own_loss`, the mean of the losses that mixers define (dsa), which is added to the training loss. With
      experts, `balance_loss` and `load/layer<l>/expert<e>`, the share of positions that chose the expert.

    The scores of the last validation and test are in `results`, nested; test scores are also split by facts.

    Args:
        balance_weight: weight of the experts' load-balancing loss (the mean over the expert layers).
        loss: cross_entropy or mse, over the labelled positions.
        facts: names of the batch's arrays by which test scores are split, such as distance.
        perplexity: whether to report perplexity and bits per token.
        seed: seed of the initial weights.
        lr: learning rate at the end of the warm-up.
        slow_lr: factor of the learning rate for parameters that mixers list in `slow`, which are mostly their dynamics.
            The authors of S4D, S5 and LRU use 0.1 to 0.5, the authors of RWKV 2. None trains all parameters at lr.
        optimizer: a class of torch.optim, such as AdamW or SGD, or your own: `package.module:Class`.
        weight_decay: weight decay of matrices, except embeddings and parameters that mixers list in `undecayed`; norms
            and biases have none.
        beta1: decay rate of the mean gradient: the first of the optimizer's betas, or its momentum.
        beta2: decay rate of the squared gradient, for optimizers with betas.
        warmup_steps: optimizer steps of linear warm-up, before the cosine.
        final_lr: learning rate at the end of the cosine, as a fraction of lr.
        compile: run the backbone through torch.compile.
        **model: options of `Backbone`: mixer, n_outputs, vocab_size or d_input, d_model, n_layers and so on.

    Raises:
        ValueError: a hyper-parameter out of range, or an option that `Backbone` rejects.
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
        model, facts = self.backbone.options, list(facts)  # all options, with their defaults
        # logger=False, because `write_hparams` writes the options to compare runs by.
        self.save_hyperparameters(logger=False)
        if compile:
            # In place, because a compiled wrapper would add a prefix to the keys of the state_dict.
            self.backbone.compile()
        n_outputs = self.backbone.n_outputs
        self._optimizer()  # raises for an invalid optimizer before anything is written
        self.loss: Loss = loss
        self.balance_weight = balance_weight
        # Only test scores are split by facts.
        self.scores = nn.ModuleDict(
            {
                stage: ClassificationScores(n_outputs, split_by, perplexity)
                if loss == "cross_entropy"
                else RegressionScores(split_by)
                for stage, split_by in (("val", ()), ("test", facts))
            }
        )
        self.results: dict[str, Results] = {}
        """Scores of the last validation and test by stage ("val", "test"), nested."""

    def forward(
        self, inputs: Shaped[Tensor, "batch seq *d_input"], lengths: Tensor | None = None
    ) -> Float[Tensor, "batch seq n_outputs"]:
        """Return logits, or regressed values, at every position."""
        return self.backbone(inputs, lengths)

    def predict_labelled(
        self, batch: Batch
    ) -> tuple[Float[Tensor, "n n_outputs"], Shaped[Tensor, "*n_outputs"], Int[Tensor, " n"]]:
        """Return outputs (at least float32) and labels at the n labelled positions, and these positions."""
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
        """Return the indices row * seq + position of the labelled positions, row by row.

        If the labels are not on the CPU, the host waits for the device, which counts them.
        """
        labels, lengths = batch["labels"], batch.get("lengths")
        at = labels != UNLABELLED if self.loss == "cross_entropy" else ~labels[:, :, 0].isnan()
        if lengths is not None and self.loss == "mse":
            at &= valid_positions(lengths, at.shape[1])
        return at.flatten().nonzero().squeeze(1)

    def _stream(
        self, inputs: Shaped[Tensor, "batch seq *d_input"], at: Int[Tensor, " selected"]
    ) -> Float[Tensor, "selected n_outputs"]:
        """Compute `backbone(inputs, None, at)` chunk by chunk."""
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
        # Lightning warns that this module's hook takes precedence over the data module's.
        warnings.filterwarnings("ignore", "You have overridden `on_before_batch_transfer` in `LightningModule`")

    def configure_model(self) -> None:
        """Shard the backbone if the strategy is model_parallel."""
        if self.device_mesh is not None and not isinstance(self.backbone, FSDPModule):
            shard(self.backbone, self.device_mesh["data_parallel"])

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Find the labelled positions on the host, before the batch moves to the device, to avoid waiting for it.

        In training, also call the `BetweenSteps` callbacks: Lightning resumes exactly from a checkpoint written here.
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
            ValueError: the trainer has neither max_steps nor max_epochs, which the cosine needs.
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
        """Build the optimizer with groups of parameters: with or without weight decay, slow or not."""
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
        # Over lists of tensors, which is torch's default on GPUs only, a step takes half the time on a CPU.
        means = {"betas": (h["beta1"], h["beta2"]), "momentum": h["beta1"], "foreach": True}
        means = {name: value for name, value in means.items() if name in inspect.signature(cls).parameters}
        return cls([g for g in groups if g["params"]], lr=h["lr"], **means)

    def _balance(self) -> Tensor | None:
        """Return the weighted load-balancing loss, None without experts; log it unweighted, and each expert's load."""
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
        """Name of the score that is logged besides the loss."""
        return "accuracy" if self.loss == "cross_entropy" else "relative_squared_error"

    def _share(self, n: int, dtype: torch.dtype) -> Tensor | float:
        """Return this process's number of labels n over the mean of all processes; 1 for a single process.

        Gradients and logged numbers are means over the processes. With this weight they are means over all labels.
        """
        if _n_processes() == 1:
            return 1.0
        # Filled on the device, because copying a number from the host would wait for it.
        total = self.trainer.strategy.reduce(torch.full((), n, dtype=dtype, device=self.device), reduce_op="sum")
        assert isinstance(total, Tensor)
        return n * _n_processes() / total.clamp(min=1)

    def _judge(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return loss, and accuracy or relative squared error, of a batch; zeros if it has no labels."""
        if labels.numel() == 0:
            # One of several devices may get no row of the last batch. A mean over nothing would be NaN on all devices.
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
    """Return the number of processes of this run; 1 without a process group."""
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
