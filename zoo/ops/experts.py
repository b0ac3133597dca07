"""Mixture of experts without a capacity limit: routing, one matrix per expert, and load balance."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from zoo.coefficient import coefficient
from zoo.ops.precision import linear_dtype
from zoo.ops.transforms import transformable


def route(
    logits: Float[Tensor, "*batch n_experts"], top_k: int, normalize: bool = False
) -> tuple[Float[Tensor, "*batch n_experts"], Float[Tensor, "*batch top_k"], Int[Tensor, "*batch top_k"]]:
    """Return the top_k likeliest experts of each position under softmax(logits), weighted by their probabilities.

    The weights are not renormalised, as in Switch (Fedus et al. 2101.03961, eq. 2) and Jamba, unless `normalize` is
    set, as in Mixtral (2401.04088) and Qwen3. Weights and choices are coefficients.

    Returns:
        All probabilities, in at least float32; weights and choices, the likeliest first.
    """
    probability = torch.softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    weight, choice = probability.topk(top_k, dim=-1)
    if normalize:
        weight = weight / weight.sum(-1, keepdim=True)
    return probability, coefficient(weight), coefficient(choice)


def route_by_sigmoid(
    logits: Float[Tensor, "*batch n_experts"],
    preference: Float[Tensor, " n_experts"],
    top_k: int,
    normalize: bool = False,
    n_groups: int = 1,
    top_groups: int = 1,
    scale: float = 1.0,
) -> tuple[Float[Tensor, "*batch n_experts"], Float[Tensor, "*batch top_k"], Int[Tensor, "*batch top_k"]]:
    """`route` by s = sigmoid(logits), for each expert separately (DeepSeek-V3 2412.19437, eqs. 12 to 16).

    Experts form n_groups groups of neighbours. A group's score is the sum of its two largest s + preference. The
    experts with the largest s + preference in the top_groups best groups are chosen. The weights are scale times s,
    without the preference.

    Returns:
        s divided by its sum, in at least float32; weights and choices, the most preferred first.
    """
    score = torch.sigmoid(logits.to(torch.promote_types(logits.dtype, torch.float32)))
    preferred = score + preference
    if top_groups < n_groups:
        grouped = preferred.unflatten(-1, (n_groups, -1))
        best = grouped.topk(2, dim=-1).values.sum(-1)
        left_out = torch.ones_like(best, dtype=torch.bool).scatter(-1, best.topk(top_groups, dim=-1).indices, False)
        preferred = grouped.masked_fill(left_out.unsqueeze(-1), float("-inf")).flatten(-2)
    choice = preferred.topk(top_k, dim=-1).indices
    weight = score.gather(-1, choice)
    if normalize:
        weight = weight / weight.sum(-1, keepdim=True)
    return score / score.sum(-1, keepdim=True), coefficient(scale * weight), coefficient(choice)


class Load(NamedTuple):
    """Work that a router gives each expert, as sums over positions: loads of parts of a batch add up."""

    served: Float[Tensor, " n_experts"]  # positions that each expert serves
    likely: Float[Tensor, " n_experts"]  # sum of each expert's probabilities
    positions: Int[Tensor, ""]

    @property
    def share(self) -> Float[Tensor, " n_experts"]:
        """The share of positions that each expert serves."""
        return self.served / self.positions.clamp(min=1)

    @property
    def balance(self) -> Float[Tensor, ""]:
        """n_experts sum_e share_e mean(probability_e): top_k for an even load, more if likelier experts serve more.

        Fedus et al. 2101.03961, eqs. 4 to 6; with top_k above one the shares add up to top_k, as in transformers.
        Differentiable in the probabilities.
        """
        return self.share.shape[0] * (self.share * (self.likely / self.positions.clamp(min=1))).sum()


def count_load(
    probability: Float[Tensor, "*batch n_experts"],
    choice: Int[Tensor, "*batch top_k"],
    valid: Bool[Tensor, "*batch"] | None = None,
) -> Load:
    """Count the load of the experts.

    Args:
        probability, choice: results of `route`.
        valid: positions that count; default all.
    """
    n_experts = probability.shape[-1]
    served = (choice.unsqueeze(-1) == torch.arange(n_experts, device=choice.device)).any(-2).to(probability.dtype)
    counted = torch.ones_like(served[..., 0], dtype=torch.bool) if valid is None else valid
    served, likely = ((t * counted.unsqueeze(-1)).reshape(-1, n_experts).sum(0) for t in (served, probability))
    return Load(served, likely, counted.sum())


def grouped_linear(
    x: Float[Tensor, "rows d_in"], weight: Float[Tensor, "groups d_out d_in"], counts: Int[Tensor, " groups"]
) -> Float[Tensor, "rows d_out"]:
    """weight[g] x for each row, with rows sorted by group: the first counts[0] belong to group 0, and so on.

    On the CPU this is a loop over the groups, differentiable once. Elsewhere it is `grouped_in_blocks`, since the loop
    would have to wait for the counts. Under autocast it computes in autocast's dtype, like every linear map.
    """
    kind = linear_dtype(x)
    product = _differentiable_linear if x.device.type == "cpu" else grouped_in_blocks
    return product(x.to(kind), weight.to(kind), counts)


def grouped_in_blocks(
    x: Float[Tensor, "rows d_in"], weight: Float[Tensor, "groups d_out d_in"], counts: Int[Tensor, " groups"]
) -> Float[Tensor, "rows d_out"]:
    """`grouped_linear` as one batched product, whose shapes do not depend on the counts.

    The rows of each group fill blocks of ceil(rows / groups), the last one padded with zeros. For any counts there are
    at most 2 groups blocks: at most twice the work, and two copies of the matrices.
    """
    rows, groups = x.shape[0], weight.shape[0]
    size = max(1, -(-rows // groups))
    blocks = (counts + size - 1) // size
    row, block = torch.arange(rows, device=x.device), torch.arange(2 * groups, device=x.device)
    group = torch.searchsorted(counts.cumsum(0), row, right=True)
    place = ((blocks.cumsum(0) - blocks) * size - counts.cumsum(0) + counts)[group] + row
    padded = x.new_zeros(2 * groups * size, x.shape[1]).index_copy(0, place, x).unflatten(0, (2 * groups, size))
    # Blocks beyond the last group's are empty: any matrix will do.
    group_of_block = torch.searchsorted(blocks.cumsum(0), block, right=True).clamp(max=groups - 1)
    return (padded @ weight[group_of_block].mT).flatten(0, 1)[place]


# The sizes of the groups are data: custom ops hide them from compiled graphs and from shapes of meta tensors.


@torch.library.custom_op(
    "zoo::grouped_linear", mutates_args=(), schema="(Tensor x, Tensor weight, Tensor counts) -> Tensor"
)
def _grouped_linear(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    y = x.new_empty(x.shape[0], weight.shape[1])
    sizes = counts.tolist()
    for rows, w, out in zip(x.split(sizes), weight, y.split(sizes), strict=True):
        torch.mm(rows, w.t(), out=out)
    return y


@torch.library.custom_op(
    "zoo::grouped_outer", mutates_args=(), schema="(Tensor left, Tensor right, Tensor counts) -> Tensor"
)
def _grouped_outer(left: Tensor, right: Tensor, counts: Tensor) -> Tensor:
    """Sum over each group's rows of left right^T: the gradient of its matrix."""
    outer = left.new_empty(len(counts), left.shape[1], right.shape[1])
    sizes = counts.tolist()
    for rows, columns, out in zip(left.split(sizes), right.split(sizes), outer, strict=True):
        torch.mm(rows.t(), columns, out=out)
    return outer


@_grouped_linear.register_fake
def _(x: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@_grouped_outer.register_fake
def _(left: Tensor, right: Tensor, counts: Tensor) -> Tensor:
    return left.new_empty(counts.shape[0], left.shape[1], right.shape[1])


def _keep(ctx, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, counts = ctx.saved_tensors
    of_x = _differentiable_linear(grad, weight.transpose(1, 2), counts) if ctx.needs_input_grad[0] else None
    of_weight = _differentiable_outer(grad, x, counts) if ctx.needs_input_grad[1] else None
    return of_x, of_weight, None


_differentiable_outer = transformable(_grouped_outer)
_differentiable_linear = transformable(_grouped_linear, _keep, _differentiate)
