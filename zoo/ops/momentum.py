"""The delta rule with momentum: a linear memory trained by gradient steps, with memory and momentum as one state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from zoo.cores import core
from zoo.ops.carry import erased_states
from zoo.ops.chunked import chunk_decays, even, into_chunks, longest
from zoo.ops.precision import chunk_product, full_precision, rounded_type
from zoo.ops.time import without_padding
from zoo.ops.transforms import whole_in_export

CHUNK = 32


@core("v", "batch head seq value")
@whole_in_export(
    "(Tensor q, Tensor k, Tensor v, Tensor rate, Tensor log_keep, Tensor log_momentum, Tensor memory, Tensor momentum,"
    " Tensor? lengths) -> (Tensor, Tensor, Tensor)",
    lambda q, k, v, rate, log_keep, log_momentum, memory, momentum, lengths: (
        memory.new_empty(v.shape),
        memory.new_empty(memory.shape),
        memory.new_empty(memory.shape),
    ),
)
def momentum_delta_rule(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq d_key"],
    v: Float[Tensor, "batch heads seq d_value"],
    rate: Float[Tensor, "batch heads seq"],
    log_keep: Float[Tensor, "batch heads seq"],
    log_momentum: Float[Tensor, "batch heads seq"],
    memory: Float[Tensor, "batch heads d_key d_value"],
    momentum: Float[Tensor, "batch heads d_key d_value"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[
    Float[Tensor, "batch heads seq d_value"],
    Float[Tensor, "batch heads d_key d_value"],
    Float[Tensor, "batch heads d_key d_value"],
]:
    """S_t = exp(log_keep_t) S_{t-1} + Z_t, y_t = S_t^T q_t, where Z_t = exp(log_momentum_t) Z_{t-1} + k_t u_t^T.

    With u_t = rate_t (v_t - S_{t-1}^T k_t), k_t u_t^T is a descent step on |S^T k_t - v_t|^2 / 2 at S_{t-1}, with
    momentum and weight decay (Behrouz et al. 2501.00663, eq. 9, 10 and 13). Decay and gradient both see S_{t-1}.

    Let A_tj and E_tj be the products of the kept shares and of the momenta of the positions after j up to t, and S_0,
    Z_0 the states that enter a chunk. Then

        S_t = A_t0 S_0 + (A E)_t0 Z_0 + sum_{j <= t} (A E)_tj k_j u_j^T,

    so a chunk is computed as in `dplr` with the matrix A E in place of its decays: one triangular solve gives all u.
    The doubled state (S, Z), in which Z feeds S, goes from chunk to chunk. Nothing is divided by a decay or a momentum.

    Args:
        q, k: queries and keys, keys of length one or shorter.
        v: values.
        rate: step sizes, 0 to 1.
        log_keep: logarithm of the kept share of the memory, one minus the weight decay.
        log_momentum: logarithm of the share of a step that the next one repeats; minus infinity, or anything below
            -1000, for none: the delta rule.
        memory, momentum: S and Z before the first position; the computation uses their dtype.
        lengths: valid positions of each row; padding leaves both states as they are.

    Returns:
        Outputs, and S and Z after the last position.
    """
    kind, seq_len, d_key = memory.dtype, q.shape[2], q.shape[3]
    taken = torch.ones_like(rate)  # share of Z that is added to the memory
    *rates, taken = without_padding(lengths, rate, log_keep, log_momentum, taken)
    size, product, rounded = even(seq_len, longest(memory, CHUNK)), chunk_product(memory), rounded_type(memory)
    with full_precision(q.device):
        rates = torch.stack([t.to(kind) for t in rates], dim=3)
        q, k, v, rates, taken = (into_chunks(t.to(kind), size) for t in (q, k, v, rates, taken.unsqueeze(3)))
        rate, logs = rates.split((1, 2), dim=4)
        # Decays of memory and momentum: between positions, since the chunk's start and until its end.
        betweens, since, until = chunk_decays(logs.movedim(4, 0))
        decay = since[..., -1].movedim(0, 3)
        (kept, lasting), (kept_since, lasting_since) = betweens.unbind(0), since.unsqueeze(5).unbind(0)
        kept = kept * taken.mT  # padding adds nothing to the memory
        between = kept @ lasting
        # Shares of the entering memory and momentum in S_t, then in S_{t-1}.
        from_momentum = kept @ lasting_since
        into = torch.cat((kept_since, from_momentum), dim=4)
        first = torch.eye(2, dtype=kind, device=q.device)[0].expand(*into.shape[:3], 1, 2)
        into_before = torch.cat((first, into[..., :-1, :]), dim=3)
        across = F.pad(from_momentum[..., -1, :], (0, 1))
        decay, across = (t.unsqueeze(4).expand(*t.shape, d_key).flatten(3).unsqueeze(4) for t in (decay, across))
        scores = rate * F.pad(between[..., :-1, :], (0, 0, 1, 0)) * product(k, k.mT)
        right = rate * torch.cat((v, _doubled(k, into_before)), dim=4)
        solved = torch.linalg.solve_triangular(scores, right, upper=False, unitriangular=True)
        alone, from_state = solved.split((v.shape[4], 2 * d_key), dim=4)
        keys = _doubled(k, torch.stack((between[..., -1, :], until[1]), dim=4)).mT
        state = torch.cat((memory, momentum), dim=2)
        entering, written, final = erased_states(state, decay, keys, from_state, alone, across, rounded)
        y = product(between * product(q, k.mT), written) + product(_doubled(q, into), entering)
    memory, momentum = (t.clone() for t in final.split(d_key, dim=2))  # outputs of a custom op must not share memory
    return y.flatten(2, 3)[:, :, :seq_len], memory, momentum


def _doubled(
    t: Float[Tensor, "*batch size d"], weights: Float[Tensor, "*batch size 2"]
) -> Float[Tensor, "*batch size twice_d"]:
    """Return two copies of `t` side by side, each with a weight per position."""
    return (t.unsqueeze(-2) * weights.unsqueeze(-1)).flatten(-2)
