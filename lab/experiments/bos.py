"""The mixer and the probe of the experiment sinks: attention with a learned first token that carries no content."""

from __future__ import annotations

from collections.abc import Callable

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lab.examples import Examples, examples
from lab.run.record import Run
from zoo.backbone import Backbone
from zoo.coefficient import recording
from zoo.loading.saved import load
from zoo.mixers.attention import Attention, AttentionState, Position
from zoo.ops.attention import attend

N_SEQUENCES = 256
"""Number of test sequences over which a term is averaged."""


class BosAttention(Attention):
    """Softmax attention over a sequence that begins with a learned token, one per layer.

    Like BOS in a causal model, the token is a first vector that does not depend on the input. The inputs and labels of
    the task stay as they are.

    Args:
        d_model: width of input and output.
        n_heads: number of heads.
        d_head: width of a head; default d_model / n_heads.
        position: none or rope.
    """

    undecayed = (*Attention.undecayed, "bos")
    intervene: Callable[[Tensor, Tensor], Tensor] | None = None
    """Maps the attention to the token, and the token's term in the output, to a change of the output."""

    def __init__(self, d_model: int, n_heads: int = 4, d_head: int | None = None, position: Position = "none") -> None:
        super().__init__(d_model, n_heads, d_head, position=position)
        self.bos = nn.Parameter(torch.ones(d_model))  # as large as a normalised vector

    def mix(self, x: Tensor, state: AttentionState, lengths: Tensor | None) -> tuple[Tensor, AttentionState]:
        if not state.keys.shape[2]:
            state = super().mix(self.bos.expand(len(x), 1, -1), state, None)[1]
        if self.intervene is None:
            return super().mix(x, state, lengths)
        with recording() as tape:
            y, after = super().mix(x, state, lengths)
        q, k = tape.kept
        weight = self._weight(q, k, state)
        term = self.out_proj(rearrange(weight * state.values[:, :, :1], "batch head seq d -> batch seq (head d)"))
        return y + self.intervene(weight, term), after

    def _weight(self, q: Tensor, k: Tensor, state: AttentionState) -> Float[Tensor, "batch n_heads seq 1"]:
        """Return the attention of each query to the first slot, the token's."""
        keys = torch.cat((state.keys, k), dim=2)
        first = F.pad(keys.new_ones(*keys.shape[:2], 1, 1), (0, 0, 0, keys.shape[2] - 1))
        return attend(q, keys, first, state.seen)


def sink(run: Run) -> tuple[float, float, float]:
    """Measure the effect of a run's learned tokens on its test sequences; see `measure_sink`."""
    return measure_sink(load(run.folder).eval(), examples(run.folder, "test", N_SEQUENCES))


def measure_sink(model: Backbone, found: Examples) -> tuple[float, float, float]:
    """Measure the weight on the learned tokens, and the rise of the loss if their terms are held or left out.

    The term of a position is sum_h W_O^h a^h v^h, with the attention a^h to the token and the token's constant values
    v^h. Both interventions act on all layers at once and leave the attention to other tokens unchanged. Holding the
    term at its mean over sequences, position by position, turns it into a bias. The rise of the loss then measures how
    much the layer computes by input-dependent weights on constants, as a hidden layer does.

    Args:
        model: model with `BosAttention` in each layer.
        found: sequences and labels.

    Returns:
        The mean weight at labelled positions, over heads and layers; the rise of the loss with the terms held, and with
        the terms left out. The loss is the cross-entropy in nats, or the squared error relative to an output of zero.
    """
    layers = [module for module in model.modules() if isinstance(module, BosAttention)]
    labelled = found.labels != -100 if found.loss == "cross_entropy" else ~found.labels[:, :, 0].isnan()
    weights = []

    def loss(change: Callable[[Tensor], Tensor]) -> float:
        def intervene(weight: Tensor, term: Tensor) -> Tensor:
            weights.append(weight.mean(1)[labelled].mean())
            return change(term)

        for layer in layers:
            layer.intervene = intervene
        with torch.no_grad():
            outputs, labels = model(found.inputs)[labelled], found.labels[labelled]
        if found.loss == "cross_entropy":
            return float(F.cross_entropy(outputs, labels))
        return float((outputs - labels).square().sum() / labels.square().sum())

    whole = loss(torch.zeros_like)
    weight = float(torch.stack(weights).mean())
    held, without = loss(lambda term: term.mean(0) - term), loss(torch.neg)
    return weight, held - whole, without - whole
