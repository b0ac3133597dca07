"""From the lag operators of a linear time-invariant map to a working mixer of factorized heads.

The conversions into softmax attention are in `zoo.theory.softmax`. Every conversion computes in float64, returns a
mixer in the dtype and on the device of its input, and draws nothing: torch's global generator is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.contract import SequenceMixer
from zoo.mixers.factorized import Factorized
from zoo.theory.lags import check_lags, head_count, scaled, weighted_rows
from zoo.validate import require_positive

M = TypeVar("M", bound=SequenceMixer)


def to_heads(lags: Float[Tensor, "seq_len d_out d_in"], n_heads: int | None = None) -> Factorized:
    """Build factorized heads that equal y_i = sum_tau G_tau x_{i - tau}, or come as close as that many heads can.

    The value maps V_h are the leading right singular vectors of the matrix with rows sqrt(n - tau) vec(G_tau), n =
    seq_len; sqrt(n - tau) is there because n - tau pairs of positions lie tau apart. The coefficients are a_h(tau) =
    <G_tau, V_h>. By the theorem of Eckart and Young no other n_heads heads with coefficients free of the input have a
    smaller error under white input, and `zoo.theory.head_count_bound` is that error (head counts: Ghodsi 2512.15115).

    Args:
        lags: operators by lag, G_0 first.
        n_heads: heads of the result; default the interaction rank k = dim span{G_tau} (at least one head). The
            result is exact from k heads on; those beyond k have zero coefficients.

    Returns:
        A mixer d_in -> d_out with kernel toeplitz, for sequences up to seq_len.

    Raises:
        ValueError: lags that are not a real, finite, non-empty (seq_len, d_out, d_in), or so large that their
            coefficients overflow the dtype; n_heads below 1.
    """
    check_lags("to_heads", lags)
    require_positive(n_heads=n_heads)
    seq_len, d_out, d_in = lags.shape
    if n_heads is None:
        n_heads = max(1, head_count(lags))
    stack = lags.double().flatten(1)
    directions = torch.linalg.svd(weighted_rows(scaled(stack)), full_matrices=False).Vh[:n_heads]
    value_maps, coefficients = stack.new_zeros(n_heads, d_out * d_in), stack.new_zeros(n_heads, seq_len)
    value_maps[: len(directions)] = directions
    coefficients[: len(directions)] = directions @ stack.T
    if not coefficients.to(lags.dtype).isfinite().all():
        raise ValueError(f"to_heads: lags are too large, the coefficients overflow {lags.dtype}")
    return with_parameters(
        lambda: Factorized(d_in, n_heads, d_out, max_seq_len=seq_len),
        lags,
        {"value_maps": value_maps.view(n_heads, d_out, d_in), "coefficients": coefficients},
    )


def with_parameters(build: Callable[[], M], like: Tensor, parameters: Mapping[str, Tensor]) -> M:
    """Build the module and fill in `parameters` (all of them), in the dtype and on the device of `like`."""
    with torch.device("meta"):
        mixer = build()
    given = {name: value.detach().to(like).contiguous() for name, value in parameters.items()}
    mixer.load_state_dict(given, strict=True, assign=True)
    return mixer
