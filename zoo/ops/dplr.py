"""Linear recurrences with diagonal plus low-rank transitions: per step, the state decays, is erased and is written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from zoo.cores import core
from zoo.ops.carry import decayed_states, erased_states
from zoo.ops.chunked import chunk_decays, even, halvable, into_chunks, longest, running_sum
from zoo.ops.precision import DType, Product, as_type, full_precision, product_of, rounded_type
from zoo.ops.ranks import spread
from zoo.ops.ssd import CHUNK_OF_KERNELS, ssd, time_first
from zoo.ops.transforms import differentiable_again, kernels_suffice, loops_suffice, whole_in_export

# Powers of two. Longer chunks save states; they pay off without a solve and without decays per channel.
CHUNK, CHUNK_OF_PLAIN_DECAYS = 32, 64
KEYS_OF_KERNELS = 128  # most keys of the erasing kernels, which hold all keys of a state at once


@core("v", "batch head seq value")
@whole_in_export(
    "(Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? p, Tensor? r, Tensor state) -> (Tensor, Tensor)",
    lambda q, k, v, log_decay, p, r, state: (
        state.new_empty(*q.shape[:3], v.shape[3]),
        state.new_empty(state.shape),
    ),
)
def dplr(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    v: Float[Tensor, "batch value_heads seq d_value"],
    log_decay: Float[Tensor, "batch heads seq #d_key"] | None,
    p: Float[Tensor, "batch heads seq d_key"] | None,
    r: Float[Tensor, "batch heads seq d_key"] | None,
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """S_t = (I - p_t r_t^T) diag(exp(log_decay_t)) S_{t-1} + k_t v_t^T, y_t = S_t^T q_t.

    Diagonal plus low-rank transitions include linear attention (no decay, no erasure), gated linear attention (Yang et
    al. 2312.06635, eq. 3), the delta rule (2406.06484, eq. 4: p = k, r = beta k, values beta v), its gated forms
    (2412.06464, eq. 10; 2510.26692) and RWKV-7 (2503.14456, eq. 16). With S_0 the state that enters a chunk, G_tj =
    diag(a_{j+1} ... a_t) and u_t the value that step t erases,

        S_t = G_t0 S_0 + sum_{j <= t} G_tj (k_j v_j^T - p_j u_j^T),
        u_t = S_0^T G_t0 r_t + sum_{j < t} (r_t^T G_tj k_j) v_j - (r_t^T G_tj p_j) u_j,

    so one triangular solve per chunk replaces its product of transitions (the WY form), for all chunks at once; only
    the state goes from chunk to chunk. Nothing is ever divided by a decay. In float32, outputs and states are accurate
    to 1e-6 over thousands of positions, with one exception: without decay, if every step reflects the state on the same
    key (p . r = 2), roundoff accumulates to 1e-4 after 4,096 steps. With a float64 state everything is computed in
    float64.

    Args:
        q, k: queries and keys.
        v: values; a single head serves all heads if nothing is erased.
        log_decay: logarithms of the decays, at most zero for a stable recurrence, with one column per key channel or
            one column for all of them; None for no decay.
        p, r: erased direction, and direction along which the erased value is read; None, both of them, for no erasure.
            If p is the same tensor object as k, erasing and writing share their matrix products.
        state: S before the first position; the computation uses its dtype. Under autocast, operands of products are
            rounded to autocast's dtype (`chunk_product`). Sums and the state between chunks are not, nor are solves,
            except that the CUDA kernels round the inverse.

    Returns:
        Outputs, and S after the last position.

    Raises:
        ValueError: only one of p and r.
    """
    if (p is None) != (r is None):
        raise ValueError("p and r belong together: give both, or None for both")
    seq_len = q.shape[2]
    if seq_len == 1:
        decay = None if log_decay is None else as_type(state.dtype, log_decay).exp().mT
        return dplr_step(q, k, v, decay, p, r, state)
    kind, one_decay = rounded_type(state), log_decay is None or log_decay.shape[3] == 1
    if kind and p is None and one_decay and kernels_suffice(state):
        decay = q.new_zeros(q.shape[:3], dtype=state.dtype) if log_decay is None else log_decay.squeeze(3)
        return ssd(q, k, v.expand(-1, q.shape[1], -1, -1), decay, state)
    fits = one_decay and k.shape[3] <= KEYS_OF_KERNELS and not spread()
    if kind and p is k and r is not None and fits and kernels_suffice(state):
        with full_precision(q.device):
            step = q.new_zeros(*q.shape[:3], 1, dtype=torch.float32) if log_decay is None else log_decay.float()
            total = running_sum(into_chunks(step, CHUNK_OF_KERNELS).squeeze(4)).contiguous()
            return _Erasing.apply(kind, q, k, v, r, total, state)
    return _by_products(kind, q, k, v, log_decay, p, r, state)


def _by_products(
    kind: DType,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    p: Tensor | None,
    r: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    seq_len, product = q.shape[2], product_of(kind)
    if log_decay is not None and log_decay.shape[3] > 1:
        size = halvable(seq_len, longest(state, CHUNK))
    else:
        size = even(seq_len, longest(state, CHUNK_OF_PLAIN_DECAYS if p is None else CHUNK))
    reads, writes = ((q,), (k,)) if p is None or r is None else ((q, r), (k,) if p is k else (k, p))
    with full_precision(q.device):
        # Contiguous: each batched product would copy a strided tensor and keep the copy for the gradient.
        v = into_chunks(v.to(state.dtype), size).contiguous()
        if log_decay is not None:
            log_decay = into_chunks(log_decay.to(state.dtype), size)
        if log_decay is not None and log_decay.shape[4] > 1 and kernels_suffice(state):
            total = running_sum(log_decay.movedim(3, 4)).movedim(4, 3).contiguous()
            scores, reads, writes = _in_lists(_Decaying.apply(kind, len(reads), total, *reads, *writes), len(reads))
            over_chunk = total[:, :, :, -1:].float().exp().mT
        else:
            reads, writes = ([into_chunks(t.to(state.dtype), size).contiguous() for t in ts] for ts in (reads, writes))
            scores, reads, writes, over_chunk = _decayed_scores(product, reads, writes, log_decay)
        keys = _joined(writes, 3).mT
        if p is None:
            written = v
            entering, final = decayed_states(state, over_chunk, product(keys, v))
        else:
            # alone: the values that each position would write into an empty state; from_state: the map from the
            # entering state to the values that positions erase from it.
            if p is k:  # writing and erasing share a key: solve for the written minus the erased values
                alone, from_state = _solved(scores[1][0], v, reads[1])
            else:
                alone, from_state = _solved(scores[1][1], product(scores[1][0].tril(-1), v), reads[1])
                alone = torch.cat((v, -alone), dim=3)
                from_state = torch.cat((torch.zeros_like(from_state), from_state), dim=3)
            entering, written, final = erased_states(state, over_chunk, keys, from_state, alone, rounded=kind)
        y = product(_joined(scores[0], 4), written) + product(reads[0], entering)
    return y.flatten(2, 3)[:, :, :seq_len], final


def dplr_step(
    q: Float[Tensor, "batch heads 1 d_key"],
    k: Float[Tensor, "batch heads 1 d_key"],
    v: Float[Tensor, "batch value_heads 1 d_value"],
    decay: Float[Tensor, "batch heads #d_key 1"] | None,
    p: Float[Tensor, "batch heads 1 d_key"] | None,
    r: Float[Tensor, "batch heads 1 d_key"] | None,
    state: Float[Tensor, "batch heads d_key d_value"],
) -> tuple[Float[Tensor, "batch heads 1 d_value"], Float[Tensor, "batch heads d_key d_value"]]:
    """`dplr` of a single position, for decoding, given the decay itself: a dozen operations fewer.

    In float32 on the CPU, without gradients and with numba installed, it is one loop.
    """
    if not torch.is_grad_enabled() and loops_suffice(state):
        from zoo.ops import steps_numba

        return steps_numba.dplr(q, k, v, decay, p, r, state)
    kind = state.dtype
    with full_precision(q.device):
        keys, v = as_type(kind, k).mT, as_type(kind, v)
        if decay is not None:
            state = decay * state
        if p is not None and r is not None:
            erased = as_type(kind, r) @ state
            if p is k:
                v = v - erased
            else:
                state = torch.addcmul(state, as_type(kind, p).mT, erased, value=-1)
        state = torch.addcmul(state, keys, v)
        return as_type(kind, q) @ state, state


def _joined(tensors: list[Tensor], axis: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, axis)  # joining one would copy it


def _stacked(tensors: list[Tensor]) -> Tensor:
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(tensors)  # stacking one would copy it


def _solved(
    scores: Float[Tensor, "batch heads chunks size size"],
    alone: Float[Tensor, "batch heads chunks size d_value"],
    r: Float[Tensor, "batch heads chunks size d_key"],
) -> tuple[Float[Tensor, "batch heads chunks size d_value"], Float[Tensor, "batch heads chunks size d_key"]]:
    """Return (I + L)^-1 times both, where L is the scores below the diagonal; other scores are not read."""
    right = torch.cat((alone, r), dim=4)
    solved = torch.linalg.solve_triangular(scores, right, upper=False, unitriangular=True)
    alone, from_state = solved.split((alone.shape[4], r.shape[4]), dim=4)
    return alone, from_state


def _decayed_scores(
    product: Product,
    reads: list[Float[Tensor, "batch heads chunks size d_key"]],
    writes: list[Float[Tensor, "batch heads chunks size d_key"]],
    log_decay: Float[Tensor, "batch heads chunks size #d_key"] | None,
) -> tuple[list[list[Tensor]], list[Tensor], list[Tensor], Tensor]:
    """Return products of reads and writes times the decay between the two positions, zero above the diagonal.

    Returns:
        The products for each pair; the reads with the decays since the chunk's start; the writes with the decays until
        its end; the decays of the whole chunk, (batch, heads, chunks, 1 or d_key, 1).
    """
    if log_decay is not None and log_decay.shape[4] > 1:
        return _scores_by_halves(product, reads, writes, log_decay.exp())
    size = reads[0].shape[3]
    if log_decay is None:
        ones = torch.ones(size, size, dtype=reads[0].dtype, device=reads[0].device).tril()
        over = torch.ones(*reads[0].shape[:3], 1, 1, dtype=reads[0].dtype, device=reads[0].device)
        return [[ones * product(a, b.mT) for b in writes] for a in reads], reads, writes, over
    decay, since_start, until_end = chunk_decays(log_decay.squeeze(4))
    scores = [[decay * product(a, b.mT) for b in writes] for a in reads]
    since_start, until_end = since_start.unsqueeze(4), until_end.unsqueeze(4)
    return scores, [since_start * a for a in reads], [until_end * b for b in writes], since_start[:, :, :, -1:]


def _scores_by_halves(
    product: Product, reads: list[Tensor], writes: list[Tensor], decay: Float[Tensor, "batch heads chunks size d_key"]
) -> tuple[list[list[Tensor]], list[Tensor], list[Tensor], Tensor]:
    """`_decayed_scores` with a decay per channel, by joining neighbouring blocks of positions.

    Of two neighbouring blocks of equal size, the reads of the later one carry the decays since its start, and the
    writes of the earlier one the decays until its end. One matrix product then gives all pairs across the two blocks,
    which are joined into one. The size^2 d_key decays of a chunk's pairs never exist, and nothing is divided by a
    decay.
    """
    n_reads, n_writes = len(reads), len(writes)
    # (kinds, batch, heads, chunks, blocks, positions of a block, d_key); at first a block is one position.
    a, b = _stacked(reads), _stacked(writes)
    scores = torch.einsum("r...d,w...d->rw...", a, b)[..., None, None]
    a, b, over = (a * decay).unsqueeze(-2), b.unsqueeze(-2), decay.unsqueeze(-2)
    while a.shape[-3] > 1:
        (a_first, a_later), (b_first, b_later), (first, later) = (
            (t[..., ::2, :, :], t[..., 1::2, :, :]) for t in (a, b, over)
        )
        # (kinds of reads, kinds of writes, ..., i, j), from one product with kinds and positions in one axis.
        across = product(a_later.movedim(0, -3).flatten(-3, -2), b_first.movedim(0, -3).flatten(-3, -2).mT)
        across = across.unflatten(-2, (n_reads, -1)).unflatten(-1, (n_writes, -1)).movedim((-4, -2), (0, 1))
        upper = torch.cat((scores[..., ::2, :, :], torch.zeros_like(across)), dim=-1)
        scores = torch.cat((upper, torch.cat((across, scores[..., 1::2, :, :]), dim=-1)), dim=-2)
        a = torch.stack((a_first, a_later * first), dim=-3).flatten(-3, -2)
        b = torch.stack((b_first * later, b_later), dim=-3).flatten(-3, -2)
        over = first * later
    scores = scores.squeeze(-3)
    pairs = [[scores[r, w] for w in range(n_writes)] for r in range(n_reads)]
    return pairs, list(a.squeeze(-3)), list(b.squeeze(-3)), over.squeeze(-3).mT


def _in_lists(parts: Sequence[Tensor], n_reads: int) -> tuple[list[list[Tensor]], list[Tensor], list[Tensor]]:
    """Split a flat sequence into the scores of each read and write, the reads, and the writes."""
    n_writes = (len(parts) - n_reads) // (n_reads + 1)
    scores, decayed = parts[: n_reads * n_writes], parts[n_reads * n_writes :]
    rows = [list(scores[n : n + n_writes]) for n in range(0, len(scores), n_writes)]
    return rows, list(decayed[:n_reads]), list(decayed[n_reads:])


class _Decaying(torch.autograd.Function):
    """`_scores_by_halves` as a Triton kernel, from the sums of the log-decays; returns its results in a flat tuple."""

    @staticmethod
    def forward(ctx: Any, kind: DType, n_reads: int, total: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        ctx.kind, ctx.n_reads = kind, n_reads
        ctx.save_for_backward(total, *given)
        return tuple(_scores(total, [*given[:n_reads]], [*given[n_reads:]], kind or torch.float32))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        total, *others = given = ctx.saved_tensors
        if torch.is_grad_enabled():  # differentiated again: use the products, whose gradients allow it
            again = differentiable_again(
                partial(_scores_from_sums, ctx.kind, ctx.n_reads), given, ctx.needs_input_grad[2:], grads
            )
            return None, None, *again
        found = _scores_backward([*grads], total, others[: ctx.n_reads], others[ctx.n_reads :])
        return None, None, *found


def _scores_from_sums(kind: DType, n_reads: int, total: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
    decay = F.pad(total, (0, 0, 1, 0)).diff(dim=3).float().exp()
    chunks = [into_chunks(t.float(), total.shape[3]) for t in given]
    scores, reads, writes, _ = _scores_by_halves(product_of(kind), chunks[:n_reads], chunks[n_reads:], decay)
    decayed = (t.to(kind or t.dtype) for t in (*reads, *writes))
    return *(t for row in scores for t in row), *decayed


@torch.library.custom_op(
    "zoo::decayed_scores",
    mutates_args=(),
    schema="(Tensor total, Tensor[] reads, Tensor[] writes, ScalarType kind) -> Tensor[]",
)
def _scores(*given: Any) -> list[Tensor]:
    from zoo.ops import decays_triton

    return decays_triton.forward(*given)


@_scores.register_fake
def _(total: Tensor, reads: list[Tensor], writes: list[Tensor], kind: torch.dtype) -> list[Tensor]:
    scores = [total.new_empty(*total.shape[:4], total.shape[3], dtype=torch.float32) for _ in reads for _ in writes]
    return scores + [total.new_empty(total.shape, dtype=kind) for _ in (*reads, *writes)]


@torch.library.custom_op(
    "zoo::decayed_scores_backward",
    mutates_args=(),
    schema="(Tensor[] grads, Tensor total, Tensor[] reads, Tensor[] writes) -> Tensor[]",
)
def _scores_backward(*given: Any) -> list[Tensor]:
    from zoo.ops import decays_triton

    return decays_triton.backward(*given)


@_scores_backward.register_fake
def _(grads: list[Tensor], total: Tensor, reads: list[Tensor], writes: list[Tensor]) -> list[Tensor]:
    found = [time_first(t, t.shape[3], t.dtype) for t in (*reads, *writes)]
    return [total.new_empty(total.shape, dtype=torch.float32), *found]


class _Erasing(torch.autograd.Function):
    """`dplr` with p = k and one decay as Triton kernels, from the sums of the log-decays in each chunk."""

    @staticmethod
    def forward(ctx: Any, kind: DType, *given: Any) -> tuple[Tensor, Tensor]:
        y, final, *kept = _forward(*given, kind)
        ctx.kind = kind
        ctx.save_for_backward(*given, *kept)
        return y, final

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        given = ctx.saved_tensors[:6]
        if torch.is_grad_enabled():  # differentiated again: use the products, whose gradients allow it
            return None, *differentiable_again(partial(_from_sums, ctx.kind), given, ctx.needs_input_grad[1:], grads)
        return None, *_backward(*grads, *given[:5], *ctx.saved_tensors[6:])


def _from_sums(
    kind: DType, q: Tensor, k: Tensor, v: Tensor, r: Tensor, total: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    log_decay = F.pad(total, (1, 0)).diff(dim=3).flatten(2)[:, :, : q.shape[2]]
    return _by_products(kind, q, k, v, log_decay.unsqueeze(3), k, r, state)


@torch.library.custom_op(
    "zoo::delta_rule",
    mutates_args=(),
    schema="(Tensor q, Tensor k, Tensor v, Tensor r, Tensor total, Tensor state, ScalarType kind)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _forward(*given: Any) -> tuple[Tensor, ...]:
    from zoo.ops import delta_triton

    return delta_triton.forward(*given)


@_forward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, r: Tensor, total: Tensor, state: Tensor, kind: torch.dtype
) -> tuple[Tensor, ...]:
    kept = state.new_empty(*total.shape[:3], *state.shape[2:], dtype=kind)
    inverse = state.new_empty(*total.shape, total.shape[3], dtype=kind)
    y, w = (time_first(v, v.shape[3], dtype) for dtype in (state.dtype, kind))
    return y, state.new_empty(state.shape), kept, w, inverse


@torch.library.custom_op(
    "zoo::delta_rule_backward",
    mutates_args=(),
    schema="(Tensor grad_y, Tensor grad_final, Tensor q, Tensor k, Tensor v, Tensor r, Tensor total, Tensor kept,"
    " Tensor w, Tensor inverse) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _backward(*given: Any) -> tuple[Tensor, ...]:
    from zoo.ops import delta_triton

    return delta_triton.backward(*given)


@_backward.register_fake
def _(grad_y: Tensor, grad_final: Tensor, q: Tensor, k: Tensor, v: Tensor, r: Tensor, total: Tensor, *_: Any) -> Any:
    of_q, of_k, of_v, of_r = (time_first(v, t.shape[3], t.dtype) for t in (q, k, v, r))
    return of_q, of_k, of_v, of_r, torch.empty_like(total), grad_final.new_empty(grad_final.shape)
