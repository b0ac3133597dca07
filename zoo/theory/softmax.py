"""Convert linear time-invariant maps into softmax attention, and bound the error of heads without a sink.

A softmax row sums to one. Without a sink, a constant sequence therefore stays constant, and no number of heads equals a
map with memory (`softmax_floor`). With a zero-value sink a row may sum to less than one: any nonnegative function of
the lag is exact, and arbitrary signs need at most one more head (`to_softmax_heads`). Derivations are in the
docstrings; the question how many heads an SSM needs is from Ghodsi (2512.15115).
"""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from zoo.mixers.attention import Attention
from zoo.theory.convert import with_parameters
from zoo.theory.lags import check_lags, head_count, scaled, weighted_rows
from zoo.validate import require_real

LEAST_MARGIN = {torch.float64: 1e-3, torch.float32: 3e-2}
"""Smallest cosine in the nonnegative cone for which k heads are used; its inverse amplifies rounding errors."""

_NEGLIGIBLE = 1e-15  # relative size below which lags are dropped, since float64 does not resolve them in y
_TILT = 0.5  # tilt of the k nonnegative sequences away from the positive one, relative to the largest possible
_HEADROOM = 2.0  # normaliser over the largest sum of weights, so that the last sink logit does not cancel


def to_softmax_heads(lags: Float[Tensor, "seq_len d_out d_in"]) -> Attention:
    """Build softmax attention that equals y_i = sum_tau G_tau x_{i - tau}, with k or k + 1 heads (one for k = 0).

    A head with relative bias log w(tau) and a zero-value sink of logit log(c - sum_{tau <= i} w(tau)) has the
    normaliser c at every position i, so it weighs lag tau by w(tau) / c: any nonnegative sequence w is exact. Let R be
    the span of the k coefficient sequences of the map.

    k heads: if the nonnegative sequences of R span R, that is, if R contains a sequence that is positive at every lag
        at which R is not zero. We tilt it towards k independent directions such that it stays positive.
    k + 1 heads: otherwise. Each sequence is shifted by a constant until it is nonnegative, and one more head with
        uniform weights subtracts the constants.

    Queries and keys are zero, and values are the input, shared by all heads (n_kv_heads = 1). If the cone of
    nonnegative sequences is so narrow that precision would suffer (`LEAST_MARGIN`), we use k + 1 heads. Zero weights
    are biases of -infinity.

    Args:
        lags: operators by lag, square.

    Returns:
        A mixer with position relative and sink position, exact for sequences up to seq_len.

    Raises:
        ValueError: lags that are not real, finite and non-empty, or so large that their heads overflow the dtype; d_out
            different from d_in, which attention does not support.
    """
    check_lags("to_softmax_heads", lags)
    seq_len, d_model, d_in = lags.shape
    if d_model != d_in:
        raise ValueError(
            f"to_softmax_heads: attention maps d_model to d_model, so lags must be square, got d_out={d_model}, "
            f"d_in={d_in}; zoo.theory.to_heads accepts any shape"
        )
    weights, value_maps = _nonnegative_heads(scaled(lags), head_count(lags), LEAST_MARGIN[lags.dtype])
    n_heads = len(weights)
    total = weights.sum(1, keepdim=True)
    normaliser = torch.where(total > 0, _HEADROOM * total, 1.0)
    weights = weights / normaliser
    value_maps = normaliser[:, :, None] * value_maps * lags.double().abs().max()
    out_proj = rearrange(value_maps, "head out d -> out (head d)")
    if not out_proj.to(lags.dtype).isfinite().all():
        raise ValueError(f"to_softmax_heads: lags are too large, the value maps overflow {lags.dtype}")
    identity = torch.eye(d_model, dtype=torch.float64, device=lags.device)
    silent = identity.new_zeros((n_heads + 1) * d_model, d_model)
    return with_parameters(
        lambda: Attention(
            d_model, n_heads, d_model, n_kv_heads=1, position="relative", sink="position", max_seq_len=seq_len
        ),
        lags,
        {
            "qkv_proj.weight": torch.cat((silent, identity)),
            "out_proj.weight": out_proj,
            "relative_bias": torch.cat((weights.log(), weights.new_zeros(n_heads, 1)), dim=1),
            "sink_logit": (1 - weights.cumsum(1)).log(),
        },
    )


def _nonnegative_heads(lags: Tensor, k: int, least_margin: float) -> tuple[Tensor, Tensor]:
    """Return weights (n_heads, seq_len) >= 0 and value maps (n_heads, d_out, d_in) with sum_h w_h(tau) V_h = G_tau.

    Args:
        lags: operators by lag, in float64 and of rank k.
        k: rank of the lags; n_heads is k or k + 1 (1 for k = 0).
        least_margin: see `positive_combination`.
    """
    stack = lags.flatten(1)
    if k == 0:  # an attention layer has at least one head
        return stack.new_ones(1, len(stack)), stack.new_zeros(1, *lags.shape[1:])
    directions = torch.linalg.svd(stack, full_matrices=False).Vh[:k]
    # Products with the rows, unlike left singular vectors, keep the relative precision of small lags.
    sequences = stack @ directions.T
    size = sequences.norm(dim=1, keepdim=True)
    present = (size > _NEGLIGIBLE * size.max()).squeeze(1)
    sequences = torch.where(present[:, None], sequences, 0.0)
    positive = positive_combination(sequences[present] / size[present], least_margin)
    if positive is not None:
        mix = _tilted(positive)
        weights, value_maps = sequences @ mix, torch.linalg.solve(mix, directions)
        weights = weights.clamp(min=0)
    else:
        shift = (-sequences.amin(0)).clamp(min=0)
        even = sequences.new_ones(len(sequences), 1)
        weights = torch.cat(((sequences + shift).clamp(min=0), even), dim=1)
        value_maps = torch.cat((directions, -(shift @ directions)[None]))
    return weights.T, value_maps.view(-1, *lags.shape[1:])


def _tilted(positive: Tensor) -> Tensor:
    """Return (k, k) with columns positive + _TILT q_h; the q_h are corners of a simplex orthogonal to `positive`."""
    k = len(positive)
    across = torch.linalg.svd(positive[None]).Vh[1:]
    corners = torch.linalg.svd(torch.ones_like(positive)[None]).Vh[1:]
    return positive[:, None] + _TILT * across.T @ corners / (1 - 1 / max(2, k)) ** 0.5


def positive_combination(rows: Float[Tensor, "n_rows k"], least_margin: float) -> Float[Tensor, " k"] | None:
    """Return the shortest c with rows @ c >= 1, for rows of unit length; None unless 1 / |c| > least_margin.

    c exists if and only if zero is outside the convex hull of the rows; it is p / |p|^2 for the hull's point p nearest
    to zero. p is found as a nonnegative least-squares problem by the active-set method of Lawson and Hanson (Solving
    Least Squares Problems, 1974, chapter 23): the residual of [rows^T; 1] w = [0; 1], w >= 0, is (-c, 1) up to scale.
    """
    matrix = torch.cat((rows.T, rows.new_ones(1, len(rows))))
    target = rows.new_zeros(rows.shape[1] + 1)
    target[-1] = 1
    residual = target - matrix @ _nonnegative_least_squares(matrix, target)
    c = -residual[:-1]
    least = (rows @ c).min()
    if not least > least_margin * c.norm():
        return None
    return c / least


def _nonnegative_least_squares(matrix: Tensor, target: Tensor) -> Tensor:
    """Return argmin |matrix w - target| over w >= 0."""
    w = matrix.new_zeros(matrix.shape[1])
    active = torch.zeros(matrix.shape[1], dtype=torch.bool, device=matrix.device)
    roundoff = 1e-14 * matrix.abs().max() * target.norm()
    for _ in range(3 * sum(matrix.shape)):
        gain = (matrix.T @ (target - matrix @ w)).masked_fill(active, -torch.inf)
        best = int(gain.argmax())
        if not gain[best] > roundoff:
            break
        active[best] = True
        while True:
            trial = torch.zeros_like(w)
            trial[active] = torch.linalg.pinv(matrix[:, active]) @ target
            leaving = active & (trial <= 0)
            if not leaving.any():
                w = trial
                break
            step = (w[leaving] / (w[leaving] - trial[leaving])).min()
            w = torch.where(active, w + step * (trial - w), 0.0)
            active &= w > 0
    return w


def ema_as_alibi(
    poles: Float[Tensor, " n_poles"],
    B: Float[Tensor, "n_poles d_model"] | None = None,
    C: Float[Tensor, "d_model n_poles"] | None = None,
) -> Attention:
    """Build exponential moving averages, or a whole diagonal SSM with poles in (0, 1), as ALiBi heads of width one.

    A head of slope -log lambda, with a zero-value token before the first position whose logit is -log(1 - lambda), has
    the normaliser sum_{tau <= i} lambda^tau + lambda^(i+1) / (1 - lambda) = 1 / (1 - lambda) at every position i. It
    computes (1 - lambda) sum_tau lambda^tau v_{i - tau} at any length, without approximation.

    Args:
        poles: poles strictly between 0 and 1, one per head.
        B, C: input and output map of y_i = sum_s C_s sum_tau poles_s^tau B_s x_{i - tau}. Default: one average per
            channel, d_model = n_poles, y_i[c] = (1 - poles_c) sum_tau poles_c^tau x_{i - tau}[c].

    Returns:
        A mixer with position alibi and sink bos, n_poles heads, for sequences of any length.

    Raises:
        ValueError: poles that are not a real vector in (0, 1), one of B and C without the other, shapes that do not
            fit, entries that are not finite.
    """
    require_real("ema_as_alibi: poles", poles, "(n_poles,)", (1,))
    if not ((poles > 0) & (poles < 1)).all():
        worst = poles[~((poles > 0) & (poles < 1))][0].item()
        raise ValueError(
            f"ema_as_alibi: poles must lie strictly between 0 and 1, got {worst:g}; an ALiBi head weighs lag tau by "
            "lambda^tau > 0 and must decay (to_softmax_heads accepts other poles)"
        )
    if (B is None) != (C is None):
        raise ValueError("ema_as_alibi: give both B and C, or neither")
    n_poles, pole = len(poles), poles.double()
    if B is None or C is None:
        B, C = torch.diag(1 - pole), torch.eye(n_poles, dtype=torch.float64, device=poles.device)
    d_model = B.shape[1] if B.ndim == 2 else 0
    if B.shape != (n_poles, d_model) or C.shape != (d_model, n_poles) or d_model == 0:
        raise ValueError(
            f"ema_as_alibi: B must be ({n_poles}, d_model) and C (d_model, {n_poles}), "
            f"got {tuple(B.shape)} and {tuple(C.shape)}"
        )
    if B.is_complex() or C.is_complex() or not (B.isfinite().all() and C.isfinite().all()):
        raise ValueError("ema_as_alibi: B and C must be real and finite")
    return with_parameters(
        lambda: Attention(d_model, n_poles, d_head=1, position="alibi", sink="bos"),
        poles,
        {
            "qkv_proj.weight": torch.cat((torch.zeros_like(B).double().repeat(2, 1), B.double())),
            "out_proj.weight": C.double() / (1 - pole),
            "slopes": -pole.log(),
            "sink_logit": -torch.log1p(-pole)[:, None],
        },
    )


def softmax_floor(lags: Float[Tensor, "seq_len d_out d_in"]) -> float:
    """Return a lower bound on the relative squared error of sink-free softmax heads with input-independent logits.

    The rows of sink-free heads sum to one, so sum_j W_ij = S is the same at every position i, for any logits. The map
    itself has R_i = sum_{tau <= i} G_tau. The smallest change of row i that turns R_i into S spreads evenly over its
    i + 1 entries and costs |S - R_i|^2 / (i + 1), so under white input

        E|Y - Yhat|^2 >= min_S sum_i |S - R_i|_F^2 / (i + 1),   S = sum_i R_i / (i + 1) / sum_i 1 / (i + 1).

    k + 1 heads with free position logits attain the bound. Content-dependent logits can do better. The bound is zero
    only for a map without memory (G_tau = 0 for tau >= 1).

    Args:
        lags: operators by lag, G_0 first; seq_len is the length of the sequences.

    Returns:
        The bound divided by E|Y|^2 = sum_tau (seq_len - tau) |G_tau|_F^2, in [0, 1).

    Raises:
        ValueError: lags that are not real, finite and non-empty; a map whose output is zero.
    """
    check_lags("softmax_floor", lags)
    stack = scaled(lags).flatten(1)
    seq_len = len(stack)
    energy = weighted_rows(stack).square().sum()
    if not energy > 0:
        raise ValueError("softmax_floor: the map's output is zero, its relative error is undefined")
    reached = stack.cumsum(0)
    spread = 1 / torch.arange(1, seq_len + 1, dtype=torch.float64, device=lags.device)[:, None]
    shared = (spread * reached).sum(0) / spread.sum()
    return ((spread * (reached - shared).square()).sum() / energy).item()
