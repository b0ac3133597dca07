"""Ridge regression on all keys so far: queries are replaced by solutions, computed by conjugate gradients."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.ops.carry import decayed_states
from zoo.ops.chunked import chunk_decays, halvable, into_chunks, longest
from zoo.ops.precision import full_precision
from zoo.ops.transforms import differentiable_again, kernels_suffice, readable, whole_in_export

CHUNK = 32


@whole_in_export(
    "(Tensor q, Tensor k, Tensor strength, Tensor log_decay, Tensor ridge, Tensor state, int cg_steps)"
    " -> (Tensor, Tensor)",
    lambda q, k, strength, log_decay, ridge, state, cg_steps: (
        state.new_empty(q.shape),
        state.new_empty(state.shape),
    ),
)
def ridge_queries(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    strength: Float[Tensor, "batch heads seq"],
    log_decay: Float[Tensor, "batch heads seq"],
    ridge: Float[Tensor, "heads d_key"],
    state: Float[Tensor, "batch heads d_key d_key"],
    cg_steps: int,
) -> tuple[Float[Tensor, "batch heads seq d_key"], Float[Tensor, "batch heads d_key d_key"]]:
    """(H_t + diag(ridge))^-1 q_t with H_t = exp(log_decay_t) H_{t-1} + strength_t k_t k_t^T, all positions at once.

    von Oswald et al. 2506.05233, section 3. Conjugate gradients (Hestenes and Stiefel 1952), started at zero, need H_t
    only in products with vectors. Such a product is linear attention with keys as values: a masked quadratic form
    within the chunk, plus the state that enters it. The number of operations grows with the steps, not with the length.

    Args:
        q, k: queries and keys.
        strength: weights of the keys, at least zero.
        log_decay: logarithm of the decay, at most zero.
        ridge: diagonal of the ridge, positive.
        state: H before the first position; the computation uses its dtype.
        cg_steps: conjugate gradient steps, at least one. After d_key steps the solution is exact except for roundoff,
            and at most 2 d_key are taken.

    Returns:
        The solutions, and H after the last position.
    """
    kind, seq_len = state.dtype, q.shape[2]
    size = halvable(seq_len, longest(state, CHUNK))
    with full_precision(q.device):
        q, k, weights = (into_chunks(t.to(kind), size) for t in (q, k, torch.stack((strength, log_decay), dim=3)))
        strength, log_decay = weights.unbind(4)
        between, since_start, until_end = chunk_decays(log_decay)
        written = (k * (strength * until_end).unsqueeze(4)).mT @ k
        entering, final = decayed_states(state, since_start[..., -1:].unsqueeze(4), written)
        given = q, k, between * strength.unsqueeze(3), since_start, entering, ridge.to(kind)
        steps = min(cg_steps, 2 * k.shape[4])
        x = _Kernel.apply(*(t.contiguous() for t in given), steps) if kernels_suffice(q) else _loop(*given, steps)
    return x.flatten(2, 3)[:, :, :seq_len], final


def _loop(
    q: Tensor, k: Tensor, weights: Tensor, since_start: Tensor, entering: Tensor, ridge: Tensor, steps: int
) -> Tensor:
    """Solve for the queries of each chunk, (batch, heads, chunks, size, d_key), at once.

    The operator is diag(ridge) + since_start entering + sum_j weights_ij k_j k_j^T.
    """
    ridge, since_start = ridge.view(-1, 1, 1, k.shape[4]), since_start.unsqueeze(4)
    x, residual, direction = torch.zeros_like(q), q, q
    square = _square(q)
    # Below the floor a residual is roundoff; added to the denominators, it prevents dividing roundoff by roundoff.
    floor = square.detach() * torch.finfo(q.dtype).eps ** 2 + torch.finfo(q.dtype).tiny
    settles = readable(q)
    for _ in range(steps):
        if settles and not (square > floor).any():
            break
        carried = torch.addcmul(ridge * direction, since_start, direction @ entering)
        image = carried + (direction @ k.mT * weights) @ k
        length = square / ((direction * image).sum(-1, keepdim=True) + floor)
        x = torch.addcmul(x, length, direction)
        residual = torch.addcmul(residual, length, image, value=-1)
        before, square = square, _square(residual)
        direction = torch.addcmul(residual, square / (before + floor), direction)
    return x


class _Kernel(torch.autograd.Function):
    """`_loop` as a Triton kernel."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *tensors, ctx.steps = given
        ctx.save_for_backward(*tensors)
        return _solved(*given)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        given = [*ctx.saved_tensors, ctx.steps]
        if torch.is_grad_enabled():  # differentiated again: use the loop, whose gradients allow it
            return differentiable_again(_loop, given, ctx.needs_input_grad, grads)
        *of_others, of_ridge = _solved_backward(grads[0].contiguous(), *given)
        return *of_others, of_ridge.sum((0, 2)), None


# The kernels are custom ops, so that a compiler sees one operation.

_GIVEN = "Tensor q, Tensor k, Tensor weights, Tensor since_start, Tensor entering, Tensor ridge, int steps"


@torch.library.custom_op("zoo::conjugate_gradients", mutates_args=(), schema=f"({_GIVEN}) -> Tensor")
def _solved(*given: Any) -> Tensor:
    from zoo.ops import ridge_triton

    return ridge_triton.forward(*given)


@_solved.register_fake
def _(*given: Any) -> Tensor:
    return torch.empty_like(given[0])


@torch.library.custom_op(
    "zoo::conjugate_gradients_backward",
    mutates_args=(),
    schema=f"(Tensor grad, {_GIVEN}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _solved_backward(*given: Any) -> tuple[Tensor, ...]:
    from zoo.ops import ridge_triton

    return ridge_triton.backward(*given)


@_solved_backward.register_fake
def _(grad: Tensor, *given: Any) -> tuple[Tensor, ...]:
    return *(torch.empty_like(t) for t in given[:5]), torch.empty_like(given[1][:, :, :, 0])


def _square(t: Tensor) -> Tensor:
    return (t * t).sum(-1, keepdim=True)
