"""Ridge regression over the keys seen so far: queries solved for, by conjugate gradients."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.ops.carry import decayed_states
from zoo.ops.chunked import chunk_decays, halvable, into_chunks
from zoo.ops.precision import full_precision
from zoo.ops.transforms import readable, whole_in_export

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

    von Oswald et al. 2506.05233, section 3. Conjugate gradients (Hestenes and Stiefel 1952) from zero need H_t only in
    products with vectors, and such a product is linear attention with keys as values: a chunk's masked quadratic form
    and the state that enters it. The number of operations grows with the steps, not with the length.

    Args:
        q, k: queries and keys.
        strength: weights of the keys, at least zero.
        log_decay: logarithm of the decay, at most zero.
        ridge: diagonal of the ridge, positive.
        state: H before the first position; its dtype is the one computed in.
        cg_steps: steps, at least one. After d_key of them the solution is exact but for roundoff, and after twice as
            many none is taken any more.

    Returns:
        The solutions, and H after the last position.
    """
    kind, seq_len = state.dtype, q.shape[2]
    size = halvable(seq_len, CHUNK)
    with full_precision(q.device):
        q, k, weights = (into_chunks(t.to(kind), size) for t in (q, k, torch.stack((strength, log_decay), dim=3)))
        strength, log_decay = weights.unbind(4)
        between, since_start, until_end = chunk_decays(log_decay)
        written = (k * (strength * until_end).unsqueeze(4)).mT @ k
        entering, final = decayed_states(state, since_start[..., -1:].unsqueeze(4), written)
        between, since_start = between * strength.unsqueeze(3), since_start.unsqueeze(4)
        ridge = ridge.to(kind).view(-1, 1, 1, k.shape[4])
        x, residual, direction = torch.zeros_like(q), q, q
        square = _square(q)
        # Below it the residual is roundoff: the denominators keep it from being divided by itself.
        floor = square.detach() * torch.finfo(kind).eps ** 2 + torch.finfo(kind).tiny
        settles = readable(q) and not torch._C._get_tracing_state()  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        for _ in range(min(cg_steps, 2 * k.shape[4])):
            if settles and not (square > floor).any():
                break
            carried = torch.addcmul(ridge * direction, since_start, direction @ entering)
            image = carried + (direction @ k.mT * between) @ k
            length = square / ((direction * image).sum(-1, keepdim=True) + floor)
            x = torch.addcmul(x, length, direction)
            residual = torch.addcmul(residual, length, image, value=-1)
            before, square = square, _square(residual)
            direction = torch.addcmul(residual, square / (before + floor), direction)
    return x.flatten(2, 3)[:, :, :seq_len], final


def _square(t: Tensor) -> Tensor:
    return (t * t).sum(-1, keepdim=True)
