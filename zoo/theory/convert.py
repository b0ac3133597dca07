"""From the lag operators of a linear time-invariant map to a working mixer of factorized heads.

The conversions into softmax attention are in `zoo.theory.softmax`. Every conversion computes in float64, returns a
mixer in the dtype and on the device of its input, and draws nothing: torch's global generator is left alone.
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
    """Build factorized heads that equal y_i = sum_tau G_tau x_{i - tau}, or come as close as that many heads can.

    The value maps V_h are the leading right singular vectors of the matrix with rows sqrt(n - tau) vec(G_tau), n =
    seq_len; sqrt(n - tau) is there because n - tau pairs of positions lie tau apart. The coefficients are a_h(tau) =
    <G_tau, V_h>. By the theorem of Eckart and Young no other n_heads heads with coefficients free of the input have a
    smaller error under white input, and `zoo.theory.head_count_bound` is that error (head counts: Ghodsi 2512.15115).

    Args:
        lags: operators by lag, G_0 first.
        n_heads: heads of the result; default the interaction rank k = dim span{G_tau} (at least one head). The
            result is exact from k heads on; those beyond k have zero coefficients.
        covariance: of one input vector, S: G_tau S^(1/2) and V_h S^(1/2) then take the places of G_tau and V_h.
            Default: the identity.

    Returns:
        A mixer d_in -> d_out with kernel toeplitz, for sequences up to seq_len.

    Raises:
        ValueError: lags that are not a real, finite, non-empty (seq_len, d_out, d_in), or so large that their
            coefficients overflow the dtype; n_heads below 1; a covariance as `head_count_bound` refuses it.
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
    """Fit factorized heads to the outputs `y` at `x`, by least squares for coefficients and value maps in turns.

    Each half of a round has an exact solution, so that the squared error never rises. The result is as good as `heads`,
    from which it starts, or a better local minimum.

    Args:
        heads: with kernel toeplitz, of sequences as long as x.
        x: inputs.
        y: what the heads ought to return.
        rounds: how often both are solved for.

    Returns:
        New heads.
    """
    assert heads.coefficients is not None
    value_maps, coefficients = (t.detach().double() for t in (heads.value_maps, heads.coefficients))
    n_heads, seq_len = coefficients.shape
    x, targets = x.double(), y.double()
    lagged = torch.stack([F.pad(x, (0, 0, lag, 0))[:, :seq_len] for lag in range(seq_len)])
    for _ in range(rounds):
        # A regressor for each coefficient, V_h x_{i - tau}, and its products with the others and with the targets.
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
    """Return the smallest solution: regressors may be dependent."""
    return torch.linalg.lstsq(regressors, targets, driver="gelsd").solution


def with_parameters(build: Callable[[], M], like: Tensor, parameters: Mapping[str, Tensor]) -> M:
    """Build the module and fill in `parameters` (all of them), in the dtype and on the device of `like`."""
    with torch.device("meta"):
        mixer = build()
    given = {name: value.detach().to(like).contiguous() for name, value in parameters.items()}
    mixer.load_state_dict(given, strict=True, assign=True)
    return mixer
