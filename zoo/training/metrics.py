"""Metrics that are exact over a whole split: sums are kept, and divided once at the end."""

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
    """A metric of sums over everything seen, on all processes."""

    full_state_update = False

    def keep(self, name: str, size: tuple[int, ...] = (), dtype: torch.dtype = torch.float32) -> None:
        """Keep a sum of this name and shape, from zero on."""
        self.add_state(name, torch.zeros(size, dtype=dtype), dist_reduce_fx="sum")


class Ratio(Sums):
    """Sum of a part over the sum of a whole, such as squared errors over squared labels; nan if there was nothing.

    Args:
        size: shape of both sums.
        part: dtype of the part. float32 counts exactly up to 2^24 only; int64 exists on every device.
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
        # Not in place: sums of float64 losses are float64.
        self.part = self.part + part.detach()
        self.whole = self.whole + whole

    def compute(self) -> Tensor:
        """Return the ratio."""
        return self.part / self.whole


class Mean(Ratio):
    """Mean over labels, from the means over batches: the last batch may be short."""

    def __init__(self) -> None:
        super().__init__(whole=torch.int64)

    def update(self, mean: Float[Tensor, ""], labels: int) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Add the mean of a number of labels."""
        super().update(mean * labels, labels)


class Perplexity(Mean):
    """exp of the mean cross-entropy: the number of equally likely tokens among which choosing would be as hard.

    It is computed from the cross-entropies: torchmetrics' own perplexity takes the logarithm of a softmax, and is
    infinite after one confident error whose probability rounds to zero.
    """

    def compute(self) -> Float[Tensor, ""]:
        """Return the perplexity; 1 is certainty."""
        return super().compute().exp()


class MacroAccuracy(Sums):
    """Mean over the classes of the share of their labels that is right, over everything seen.

    A class that was guessed but never asked for counts as 0; a class without guess or label does not count. The result
    equals torchmetrics' `MulticlassAccuracy(n_classes)` with its defaults. Each update of that metric fills a matrix of
    classes by classes, half a gigabyte at a vocabulary of 8,192; this one keeps three numbers per class.

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
        """Count answers; pass only labelled positions, so that every label is a class."""
        # Not bincount, which waits for the device to tell it the largest class.
        self.right = self.right.index_add(0, labels, (guesses == labels).long())
        self.asked = self.asked.index_add(0, labels, torch.ones_like(labels))
        self.guessed = self.guessed.index_add(0, guesses, torch.ones_like(labels))

    def compute(self) -> Float[Tensor, ""]:
        """Return the mean, between 0 and 1; nan if there was no label."""
        share = self.right / self.asked.clamp(min=1)
        return share[(self.asked > 0) | (self.guessed > 0)].mean()


class R2(R2Score):
    """1 - (sum of squared errors) / (sum of squared deviations from the mean), summed over all channels."""

    def __init__(self) -> None:
        super().__init__(multioutput="variance_weighted")

    def update(self, outputs: Tensor, labels: Tensor) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Add a batch; in the widest type, as a sum of squares less the square of a sum loses the digits of both."""
        wide = widest(labels.device)
        super().update(outputs.to(wide), labels.to(wide))

    def compute(self) -> Float[Tensor, ""]:
        """Return the share of the variance that is explained; nan if only one position was labelled."""
        return super().compute() if self.total >= 2 else torch.full((), float("nan"), device=self.total.device)


class Bucketed(Ratio):
    """A ratio by the size of a fact, in buckets whose upper bounds are the powers of two.

    A fact f >= 0 falls in the bucket of the smallest power of two that is at least f (0 and 1 share the first); answers
    with a negative fact (unknown) are left out.

    Args:
        dtype: dtype of the sums.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__((N_BUCKETS,), dtype, dtype)

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, part: Shaped[Tensor, " answers"], whole: Shaped[Tensor, " answers"], fact: Int[Tensor, " answers"]
    ) -> None:
        """Add the part and the whole of each answer."""
        bucket = torch.searchsorted(2 ** torch.arange(N_BUCKETS, device=fact.device), fact).clamp(max=N_BUCKETS - 1)
        bucket = torch.where(fact >= 0, bucket, N_BUCKETS)
        # Masks, as bincount with weights has no deterministic kernel on GPUs.
        super().update(*(torch.stack([(t * (bucket == i)).sum() for i in range(N_BUCKETS)]) for t in (part, whole)))

    def by_bound(self) -> dict[int, float]:
        """{upper bound of the bucket: ratio}, ascending, empty buckets left out."""
        return {2**i: value for i, value in enumerate(self.compute().tolist()) if value == value}


class Scores(nn.Module):
    """The metrics of one split; its children have the names that they are logged by.

    Args:
        score: name of the score that is split by facts.
        facts: names of the facts.
        dtype: dtype of the sums that are split by facts.
    """

    def __init__(self, score: str, facts: Sequence[str], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.score = score
        self.by_fact = nn.ModuleDict({fact: Bucketed(dtype) for fact in facts})

    def means(self) -> Iterator[tuple[str, Metric]]:
        """Return the metrics over the whole split, with their names."""
        return ((name, metric) for name, metric in self.named_children() if isinstance(metric, Metric))

    def split(self, part: Tensor, whole: Tensor, batch: Mapping[str, Tensor], at: Tensor) -> None:
        """Add the part and the whole of each answer, at the positions `at`, to the metrics by facts."""
        for fact, metric in self.by_fact.items():
            assert isinstance(metric, Bucketed)
            metric.update(part, whole, batch[fact].flatten()[at])

    def results(self) -> Results:
        """Return all scores, nested; the metrics by facts begin anew."""
        found: Results = {name: metric.compute().item() for name, metric in self.means()}
        for fact, metric in self.by_fact.items():
            assert isinstance(metric, Bucketed)
            found[f"by_{fact}"] = [{"at_most": bound, self.score: v} for bound, v in metric.by_bound().items()]
            metric.reset()
        return found


class ClassificationScores(Scores):
    """Loss and accuracies, and with `perplexity` perplexity and bits per token."""

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
    """Mean squared error, relative squared error (0 is exact, 1 is the error of predicting zero) and R²."""

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
