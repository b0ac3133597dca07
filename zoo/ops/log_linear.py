"""Recurrences with a logarithmic number of states: a Fenwick tree over the positions so far."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from zoo.cores import core
from zoo.ops.delta_rule import delta_product
from zoo.ops.ssd import ssd
from zoo.ops.time import valid_positions
from zoo.ops.transforms import readable

_CLEARED = -1e4  # a log-decay that leaves nothing


def tree_positions(
    seen: Int[Tensor, " batch"], seq_len: int, n_levels: int, lengths: Int[Tensor, " batch"] | None
) -> tuple[Bool[Tensor, "batch 1 level seq"], Bool[Tensor, "batch 1 level seq"], Bool[Tensor, "batch 1 level seq"]]:
    """Return where each level of a Fenwick tree restarts, is written and is read (Guo et al. 2506.04761, section 3.1).

    Position t reads its own value at level 0. At level l, if bit l - 1 of t is set, it reads the 2^(l-1) positions that
    have the same higher bits as t and a zero in that bit. So level l restarts at multiples of 2^l, is written in the
    first half of that period and is read in the second.

    Args:
        seen: positions of each row before the first.
        seq_len: number of positions.
        n_levels: levels of the tree, which holds 2^(n_levels - 1) positions.
        lengths: valid positions of each row; beyond them no level restarts.

    Returns:
        Three masks with an axis for heads.
    """
    position = seen.unsqueeze(1) + torch.arange(seq_len, device=seen.device)
    period = 2 ** torch.arange(n_levels, device=seen.device).unsqueeze(1)
    phase = position.unsqueeze(1) % period
    restarts, read = phase == 0, phase >= period // 2
    written = restarts | ~read
    if lengths is not None:
        restarts = restarts & valid_positions(lengths, seq_len).unsqueeze(1)
    return restarts.unsqueeze(1), written.unsqueeze(1), read.unsqueeze(1)


@core("v", "batch head seq value")
def log_linear_ssd(
    q: Float[Tensor, "batch groups seq d_key"],
    k: Float[Tensor, "batch groups seq d_key"],
    v: Float[Tensor, "batch heads seq d_value"],
    log_decay: Float[Tensor, "batch heads seq"],
    weights: Float[Tensor, "batch heads level seq"],
    seen: Int[Tensor, " batch"],
    state: Float[Tensor, "batch heads level d_key d_value"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads level d_key d_value"]]:
    """y_t = sum_l weights_t^l S_t^l^T q_t, with S_t^l the state of `ssd` over level l of a Fenwick tree.

    Each level is a recurrence whose decay is zero where it restarts and whose values are zero where it is not written,
    so one call of `ssd` computes all levels as heads. Time and memory are `ssd`'s times the number of levels; on a CPU,
    a sequence of n positions that starts from the empty state needs ceil(log2 n) + 2 levels.

    Args:
        q, k, v, log_decay: as in `ssd`.
        weights: weight of each level at each position.
        seen: positions of each row before the first.
        state: state of each level before the first position; the computation uses its dtype.
        lengths: valid positions of each row; padding must have values of zero and log-decays of zero.

    Returns:
        Outputs, and the states after the last position.
    """
    n_levels = _distinct(seen, v.shape[2], weights.shape[2])
    values, decays, read = _apart(v, log_decay, seen, n_levels, lengths)
    y, final = ssd(q, k, values, decays, state[:, :, :n_levels].flatten(1, 2))
    return _read(y, weights[:, :, :n_levels] * read), _all_levels(final, n_levels, weights.shape[2])


@core("v", "batch head seq part value", "batch head seq value")
def log_linear_delta_product(
    q: Float[Tensor, "batch heads seq d_key"],
    k: Float[Tensor, "batch heads seq steps d_key"],
    v: Float[Tensor, "batch heads seq steps d_value"],
    beta: Float[Tensor, "batch heads seq steps"],
    log_decay: Float[Tensor, "batch heads seq"],
    weights: Float[Tensor, "batch heads level seq"],
    seen: Int[Tensor, " batch"],
    state: Float[Tensor, "batch heads level d_key d_value"],
    lengths: Int[Tensor, " batch"] | None = None,
) -> tuple[Float[Tensor, "batch heads seq d_value"], Float[Tensor, "batch heads level d_key d_value"]]:
    """`log_linear_ssd` for the delta rule: levels decay and are erased as in `delta_product`, and written in turn.

    Args:
        q, k, v, beta, log_decay: as in `delta_product`.
        weights, seen, state, lengths: as in `log_linear_ssd`; padding must have strengths of zero.

    Returns:
        Outputs, and the states after the last position.
    """
    n_levels = _distinct(seen, v.shape[2], weights.shape[2])
    values, decays, read = _apart(v, log_decay, seen, n_levels, lengths)
    q, k, beta = (t.repeat_interleave(n_levels, 1) for t in (q, k, beta))
    y, final = delta_product(q, k, values, beta, decays, state[:, :, :n_levels].flatten(1, 2))
    return _read(y, weights[:, :, :n_levels] * read), _all_levels(final, n_levels, weights.shape[2])


def _distinct(seen: Int[Tensor, " batch"], seq_len: int, n_levels: int) -> int:
    """Count the levels to compute.

    In a sequence that starts from the empty state, levels that are never read are equal, and one of them is enough. If
    a row has earlier positions, or the values of `seen` cannot be read, all levels are computed.
    """
    if not readable(seen) or seen.any():
        return n_levels
    return min(n_levels, (seq_len - 1).bit_length() + 2)


def _all_levels(
    final: Float[Tensor, "batch heads_levels d_key d_value"], n_levels: int, most: int
) -> Float[Tensor, "batch heads level d_key d_value"]:
    """Return the states with an axis for `most` levels, by repeating the last computed one."""
    final = final.unflatten(1, (-1, n_levels))
    if most == n_levels:
        return final
    return torch.cat((final, final[:, :, -1:].expand(-1, -1, most - n_levels, -1, -1)), dim=2)


def _apart(
    v: Float[Tensor, "batch heads seq ..."],
    log_decay: Float[Tensor, "batch heads seq"],
    seen: Int[Tensor, " batch"],
    n_levels: int,
    lengths: Int[Tensor, " batch"] | None,
) -> tuple[Tensor, Tensor, Bool[Tensor, "batch 1 level seq"]]:
    """Return values and log-decays with one head per level, and the mask of the levels that are read."""
    restarts, written, read = tree_positions(seen, v.shape[2], n_levels, lengths)
    values = v.unsqueeze(2) * written.view(*written.shape, *(1,) * (v.ndim - 3))
    return values.flatten(1, 2), log_decay.unsqueeze(2).masked_fill(restarts, _CLEARED).flatten(1, 2), read


def _read(
    y: Float[Tensor, "batch heads_levels seq d_value"], weights: Float[Tensor, "batch heads level seq"]
) -> Float[Tensor, "batch heads seq d_value"]:
    return (y.unflatten(1, weights.shape[1:3]) * weights.to(y.dtype).unsqueeze(4)).sum(2)
