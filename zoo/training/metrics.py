"""Metrics over a whole split: they keep sums over all batches and divide once at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torchmetrics import Metric, R2Score

from zoo.ops.precision import widest

N_BUCKETS = 32
UNLABELLED = -100

Results: TypeAlias = dict[str, Any]
"""Scores of a split, nested: {"accuracy": 0.97, "loss": 0.1, "by_distance": [{"at_most": 8, "accuracy": 0.99}, ...]}"""


class Sums(Metric):
    """Base class of metrics whose states are sums over all batches and processes."""

    full_state_update = False

    def keep(self, name: str, size: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> None:
        """Add a state, a sum of this name and shape that starts at zero."""
        self.add_state(name, torch.zeros(size, dtype=dtype), dist_reduce_fx="sum")


class Ratio(Sums):
    """Ratio of two sums, part / whole, such as squared errors over squared labels; NaN without data.

    Args:
        size: shape of both sums.
        part: dtype of the part. Use int64 for counts, which float32 holds exactly only up to 2^24.
        whole: dtype of the whole.
    """

    part: Tensor
    whole: Tensor

    def __init__(
        self, size: tuple[int, ...] = (), part: torch.dtype = torch.float32, whole: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.keep("part", size, part)
        self.keep("whole", size, whole)

    def update(self, part: Tensor, whole: Tensor | int) -> None:
        """Add to both sums."""
        # Not in place, so that sums of float64 losses become float64.
        self.part = self.part + part.detach()
        self.whole = self.whole + whole

    def compute(self) -> Tensor:
        """Return the ratio."""
        return self.part / self.whole


class Mean(Ratio):
    """Mean over all labels, from means over batches of different sizes."""

    def __init__(self) -> None:
        super().__init__(whole=torch.int64)

    def update(self, mean: Float[Tensor, ""], labels: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Add a batch's mean over its `labels` labels."""
        super().update(mean * labels, labels)


class Perplexity(Mean):
    """Perplexity, exp of the mean cross-entropy.

    torchmetrics' perplexity takes the logarithm of a softmax, so that one confident error whose probability rounds to
    zero makes it infinite.
    """

    def compute(self) -> Float[Tensor, ""]:
        """Return the perplexity."""
        return super().compute().exp()


class MacroAccuracy(Sums):
    """Macro-averaged accuracy: the accuracy (recall) of each class, averaged over the classes.

    A class that was predicted but never occurs as a label counts as 0; a class without predictions and labels does not
    count. The result equals torchmetrics' `MulticlassAccuracy(n_classes)` with its defaults. Each update of that metric
    fills a matrix of classes by classes, half a gigabyte at a vocabulary of 8,192; this one keeps three numbers per
    class.

    Args:
        n_classes: number of classes.
    """

    right: Tensor
    asked: Tensor
    guessed: Tensor

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        self.n_classes = n_classes
        for name in ("right", "asked", "guessed"):
            self.keep(name, (n_classes,), torch.int64)

    def update(self, guesses: Int[Tensor, " answers"], labels: Int[Tensor, " answers"]) -> None:
        """Count the guesses at labelled positions; every label must be a class."""
        # Not bincount, which waits for the device to compute the largest class.
        self.right = self.right.index_add(0, labels, (guesses == labels).long())
        self.asked = self.asked.index_add(0, labels, torch.ones_like(labels))
        self.guessed = self.guessed.index_add(0, guesses, torch.ones_like(labels))

    def compute(self) -> Float[Tensor, ""]:
        """Return the mean, between 0 and 1; NaN without labels."""
        share = self.right / self.asked.clamp(min=1)
        return share[(self.asked > 0) | (self.guessed > 0)].mean()


class R2(R2Score):
    """R², 1 - (sum of squared errors) / (sum of squared deviations from the mean), with sums over all channels."""

    def __init__(self) -> None:
        super().__init__(multioutput="variance_weighted")

    def update(self, outputs: Tensor, labels: Tensor) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Add a batch, in the widest dtype: the sum of squares minus the squared sum suffers from cancellation."""
        wide = widest(labels.device)
        super().update(outputs.to(wide), labels.to(wide))

    def compute(self) -> Float[Tensor, ""]:
        """Return the explained share of the variance; NaN with fewer than two labelled positions."""
        return super().compute() if self.total >= 2 else torch.full((), float("nan"), device=self.total.device)


class Bucketed(Ratio):
    """A ratio split by a fact, such as distance, in buckets whose upper bounds are powers of two.

    A fact f >= 0 falls into the bucket of the smallest power of two >= f (0 and 1 share the first). Answers with a
    negative fact (unknown) are ignored.

    Args:
        dtype: dtype of the sums.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__((N_BUCKETS,), dtype, dtype)

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, part: Shaped[Tensor, " answers"], whole: Shaped[Tensor, " answers"], fact: Int[Tensor, " answers"]
    ) -> None:
        """Add part and whole of each answer."""
        bucket = torch.searchsorted(2 ** torch.arange(N_BUCKETS, device=fact.device), fact).clamp(max=N_BUCKETS - 1)
        bucket = torch.where(fact >= 0, bucket, N_BUCKETS)
        # Masks, because bincount with weights has no deterministic kernel on GPUs.
        super().update(*(torch.stack([(t * (bucket == i)).sum() for i in range(N_BUCKETS)]) for t in (part, whole)))

    def by_bound(self) -> dict[int, float]:
        """Return {upper bound of the bucket: ratio}, ascending, without empty buckets."""
        return {2**i: value for i, value in enumerate(self.compute().tolist()) if value == value}


class Scores(nn.Module):
    """The metrics of one split; the names of its child modules are the logged names.

    Args:
        score: name of the score that is split by facts.
        facts: names of the facts.
        dtype: dtype of the sums that are split by facts.
    """

    def __init__(self, score: str, facts: Sequence[str], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.score = score
        # A list, because a ModuleDict refuses names such as "type" or "a.b".
        self.facts, self.by_fact = list(facts), nn.ModuleList(Bucketed(dtype) for _ in facts)

    def means(self) -> Iterator[tuple[str, Metric]]:
        """Return names and metrics of the scores over the whole split."""
        return ((name, metric) for name, metric in self.named_children() if isinstance(metric, Metric))

    def split(self, part: Tensor, whole: Tensor, batch: Mapping[str, Tensor], at: Tensor) -> None:
        """Add part and whole of each answer, at the positions `at`, to the scores by fact."""
        for fact, metric in zip(self.facts, self.by_fact, strict=True):
            assert isinstance(metric, Bucketed)
            metric.update(part, whole, batch[fact].flatten()[at])

    def results(self) -> Results:
        """Return all scores, nested, and reset the scores by fact."""
        found: Results = {name: metric.compute().item() for name, metric in self.means()}
        for fact, metric in zip(self.facts, self.by_fact, strict=True):
            assert isinstance(metric, Bucketed)
            found[f"by_{fact}"] = [{"at_most": bound, self.score: v} for bound, v in metric.by_bound().items()]
            metric.reset()
        return found


class ClassificationScores(Scores):
    """Loss and accuracies; with `perplexity`, also perplexity and bits per token."""

    def __init__(self, n_outputs: int, facts: Sequence[str], perplexity: bool) -> None:
        super().__init__("accuracy", facts, torch.int64)
        self.loss, self.accuracy, self.accuracy_macro = Mean(), Mean(), MacroAccuracy(n_outputs)
        self.sequence_accuracy = Ratio(part=torch.int64, whole=torch.int64)
        self.perplexity, self.bits_per_token = (Perplexity(), Mean()) if perplexity else (None, None)

    def update(
        self,
        loss: Float[Tensor, ""],
        outputs: Float[Tensor, "answers n_outputs"],
        labels: Int[Tensor, " answers"],
        at: Int[Tensor, " answers"],
        batch: Mapping[str, Tensor],
    ) -> None:
        """Add a batch: its loss, outputs and labels at the labelled positions `at`, numbered row by row."""
        n, guesses = labels.numel(), outputs.argmax(-1)
        right = guesses == labels
        self.loss.update(loss, n)
        self.accuracy.update(right.float().mean() if n else right.float().sum(), n)
        self.accuracy_macro.update(guesses, labels)
        if self.perplexity is not None and self.bits_per_token is not None:
            self.perplexity.update(loss, n)
            self.bits_per_token.update(loss / math.log(2), n)
        row, none = at // batch["labels"].shape[1], at.new_zeros(len(batch["labels"]))
        asked, missed = (none.index_add(0, row, counted.long()) for counted in (torch.ones_like(right), ~right))
        self.sequence_accuracy.update(((asked > 0) & (missed == 0)).sum(), (asked > 0).sum())
        self.split(right.long(), torch.ones_like(labels), batch, at)


class RegressionScores(Scores):
    """Mean squared error, relative squared error (1 is the error of predicting zero) and R²."""

    def __init__(self, facts: Sequence[str]) -> None:
        super().__init__("relative_squared_error", facts)
        self.loss, self.relative_squared_error, self.r2 = Mean(), Ratio(), R2()

    def update(
        self,
        loss: Float[Tensor, ""],
        outputs: Float[Tensor, "answers n_outputs"],
        labels: Shaped[Tensor, "answers n_outputs"],
        at: Int[Tensor, " answers"],
        batch: Mapping[str, Tensor],
    ) -> None:
        """Add a batch: its loss, outputs and labels at the labelled positions `at`, numbered row by row."""
        self.loss.update(loss, labels.numel())
        error, power = (outputs - labels).square(), labels.square()
        self.relative_squared_error.update(error.sum(), power.sum())
        self.r2.update(outputs, labels)
        self.split(error.sum(-1), power.sum(-1), batch, at)
