"""The probe of the experiment learned_heads: distil a trained layer into a few heads."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from lab.examples import examples
from lab.experiments.probes import DISTILLED_TO
from lab.run.record import Run
from zoo.contract import SequenceMixer
from zoo.loading.saved import load
from zoo.theory.convert import fit_heads, to_heads
from zoo.theory.lags import head_count_bound
from zoo.theory.layers import layer_inputs

N_SEQUENCES = 32
"""Number of validation sequences on which to fit the heads, and of test sequences on which to score them."""


@torch.no_grad()
def distilled(run: Run) -> list[float]:
    """Distil the last layer of a run, at its inputs on the run's task; see `distil`."""
    model = load(run.folder).double().eval()
    (mixer, x), (_, others) = (
        layer_inputs(model, examples(run.folder, split, N_SEQUENCES).inputs)[-1][1:] for split in ("validation", "test")
    )
    return distil(mixer, x, others)


def distil(
    mixer: SequenceMixer, x: Float[Tensor, "batch seq d_in"], others: Float[Tensor, "batch seq d_in"]
) -> list[float]:
    """Distil a layer into heads whose coefficients do not depend on the input.

    The bound is the theorem's, for inputs with the covariance of x that are independent between positions.

    Args:
        mixer: the layer.
        x: inputs on which heads are chosen and fitted.
        others: inputs on which heads are scored.

    Returns:
        For each number of heads: the bound, the relative squared error of the heads that attain it, and the error of
        heads fitted to the layer's outputs from that start.

    Raises:
        ValueError: a layer that is not linear and time-invariant.
    """
    lags = impulse_response(mixer, x.shape[1])
    y, wanted = mixer(x), mixer(others)
    if error(to_heads(lags), others, wanted) > 1e-12:
        raise ValueError(f"{type(mixer).__name__} is not linear and time-invariant, so it has no lag operators")
    covariance = x.flatten(0, 1).T @ x.flatten(0, 1) / x[..., 0].numel()
    found = []
    for n_heads in DISTILLED_TO:
        best = to_heads(lags, n_heads, covariance)
        errors = (error(heads, others, wanted) for heads in (best, fit_heads(best, x, y)))
        found += [head_count_bound(lags, n_heads, covariance), *errors]
    return found


def impulse_response(mixer: SequenceMixer, seq_len: int) -> Float[Tensor, "seq_len d_out d_in"]:
    """Return the lag operators of a linear time-invariant layer in float64."""
    impulses = torch.eye(mixer.d_model, dtype=torch.float64).unsqueeze(1)
    return mixer(F.pad(impulses, (0, 0, 0, seq_len - 1))).permute(1, 2, 0)


def error(heads: SequenceMixer, x: Tensor, y: Tensor) -> float:
    """Return the relative squared error of the heads' outputs at x."""
    return float((heads(x) - y).square().sum() / y.square().sum())
