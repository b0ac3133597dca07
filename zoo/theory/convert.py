"""Convert the lag operators of a linear time-invariant map into a mixer of factorized heads.

`zoo.theory.softmax` converts mixers into softmax attention. Every conversion computes in float64, returns a mixer in
the dtype and on the device of its input, and draws no random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from zoo.contract import SequenceMixer
from zoo.mixers.factorized import Factorized
from zoo.ops.toeplitz import toeplitz_mix
from zoo.theory.lags import check_lags, head_count, scaled, square_root, weighted_rows
from zoo.validate import require_positive

M = TypeVar("M", bound=SequenceMixer)


def to_heads(
    lags: Float[Tensor, "seq_len d_out d_in"],
    n_heads: int | None = None,
    covariance: Float[Tensor, "d_in d_in"] | None = None,
) -> Factorized:
    """Build factorized heads that equal y_i = sum_tau G_tau x_{i - tau}, or the best approximation by `n_heads` heads.

    The value maps V_h are the leading right singular vectors of the matrix with rows sqrt(n - tau) vec(G_tau), n =
    seq_len; the weights count the n - tau pairs of positions at distance tau. The coefficients are a_h(tau) =
    <G_tau, V_h>. By the theorem of Eckart and Young, no other n_heads heads with input-independent coefficients have a
    smaller error under white input; `zoo.theory.head_count_bound` returns that error (head counts: Ghodsi 2512.15115).

    Args:
        lags: operators by lag, G_0 first.
        n_heads: number of heads; default the interaction rank k = dim span{G_tau} (at least one head). The result is
            exact for n_heads >= k; heads beyond k have zero coefficients.
        covariance: covariance S of one input vector; G_tau S^(1/2) and V_h S^(1/2) then replace G_tau and V_h.
            Default: the identity.

    Returns:
        A mixer d_in -> d_out with kernel toeplitz, for sequences up to seq_len.

    Raises:
        ValueError: lags that are not a real, finite, non-empty (seq_len, d_out, d_in), or so large that their
            coefficients overflow the dtype; n_heads below 1; an invalid covariance, see `head_count_bound`.
    """
    check_lags("to_heads", lags)
    require_positive(n_heads=n_heads)
    seq_len, d_out, d_in = lags.shape
    if n_heads is None:
        n_heads = max(1, head_count(lags))
    root = None if covariance is None else square_root("to_heads", covariance, d_in)
    stack = (lags.double() if root is None else lags.double() @ root).flatten(1)
    directions = torch.linalg.svd(weighted_rows(scaled(stack)), full_matrices=False).Vh[:n_heads]
    value_maps, coefficients = stack.new_zeros(n_heads, d_out * d_in), stack.new_zeros(n_heads, seq_len)
    coefficients[: len(directions)] = directions @ stack.T
    if root is not None:
        directions = (directions.view(-1, d_out, d_in) @ torch.linalg.pinv(root, hermitian=True)).flatten(1)
    value_maps[: len(directions)] = directions
    if not coefficients.to(lags.dtype).isfinite().all():
        raise ValueError(f"to_heads: lags are too large, the coefficients overflow {lags.dtype}")
    return with_parameters(
        lambda: Factorized(d_in, n_heads, d_out, max_seq_len=seq_len),
        lags,
        {"value_maps": value_maps.view(n_heads, d_out, d_in), "coefficients": coefficients},
    )


def fit_heads(
    heads: Factorized,
    x: Float[Tensor, "batch seq d_in"],
    y: Float[Tensor, "batch seq d_out"],
    rounds: int = 4,
) -> Factorized:
    """Fit factorized heads to the outputs `y` at `x`, by alternating least squares for coefficients and value maps.

    Both problems are solved exactly, so the squared error never rises: the result is at least as good as `heads`.

    Args:
        heads: starting point, with kernel toeplitz, for sequences as long as x.
        x: inputs.
        y: target outputs.
        rounds: number of alternations.

    Returns:
        New heads.
    """
    assert heads.coefficients is not None
    value_maps, coefficients = (t.detach().double() for t in (heads.value_maps, heads.coefficients))
    n_heads, seq_len = coefficients.shape
    x, targets = x.double(), y.double()
    lagged = torch.stack([F.pad(x, (0, 0, lag, 0))[:, :seq_len] for lag in range(seq_len)])
    for _ in range(rounds):
        # The regressor of a_h(tau) is V_h x_{i - tau}; the normal equations need its products with all the others.
        regressors = torch.einsum("hpd,tbid->htbip", value_maps, lagged).flatten(2).flatten(0, 1)
        products = regressors @ torch.cat((regressors, targets.reshape(1, -1))).T
        coefficients = _least_squares(products[:, :-1], products[:, -1:]).view(n_heads, seq_len)
        gathered = rearrange(toeplitz_mix(coefficients, x, seq_len), "head batch seq d -> (batch seq) (head d)")
        maps = _least_squares(gathered, targets.flatten(0, 1))
        value_maps = rearrange(maps, "(head d) p -> head p d", head=n_heads)
    return with_parameters(
        lambda: Factorized(heads.d_model, n_heads, heads.d_out, max_seq_len=seq_len),
        heads.value_maps,
        {"value_maps": value_maps, "coefficients": coefficients},
    )


def _least_squares(regressors: Tensor, targets: Tensor) -> Tensor:
    """Return the least-squares solution of minimal norm, since regressors may be linearly dependent."""
    return torch.linalg.lstsq(regressors, targets, driver="gelsd").solution


def with_parameters(build: Callable[[], M], like: Tensor, parameters: Mapping[str, Tensor]) -> M:
    """Build a module and set all of its parameters, in the dtype and on the device of `like`."""
    with torch.device("meta"):
        mixer = build()
    given = {name: value.detach().to(like).contiguous() for name, value in parameters.items()}
    mixer.load_state_dict(given, strict=True, assign=True)
    return mixer
