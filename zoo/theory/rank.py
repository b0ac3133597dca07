"""Interaction rank of a layer's operator, its spectrum, and the heads needed for a given error.

The rank k = dim span{W_ij} is the rank of the (seq^2, d_out d_in) matrix with rows vec(W_ij); no sum of fewer than k
heads f_h(i, j) V_h equals W (Ghodsi 2512.15115). We compute the whole spectrum: the rank counts singular values above a
threshold, and the heads for an error follow from the tail.

Rows are triangularised as they stream by (TSQR: Demmel et al. 0808.2664), in memory (d_out d_in)^2. A Gram matrix would
be simpler, but squaring loses half of the digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from zoo.theory.lags import RANK_RTOL
from zoo.theory.operator import Replayed, replayed
from zoo.validate import require_positive, require_real

_SKETCH_COLUMNS = 1024  # an SVD of this size takes about a second


def interaction_rank(
    operator: Float[Tensor, "*batch seq seq d_out d_in"], rtol: float | None = None
) -> int | Int[Tensor, " batch"]:
    """Return dim span{W_ij}: the number of singular values of the stack of vec(W_ij) above rtol times the largest.

    Args:
        operator: W as `interaction` returns it, with or without a batch.
        rtol: see `spectrum_rank`.

    Returns:
        An integer, or for a batch a tensor with one integer per row.

    Raises:
        ValueError: an operator of another shape, not real or not finite; rtol outside [0, 1).
    """
    return spectrum_rank(operator_spectrum(operator), rtol)


def operator_spectrum(
    operator: Float[Tensor, "*batch seq seq d_out d_in"],
) -> Float[Tensor, "*batch singular"]:
    """Return the singular values of the matrix of all vec(W_ij), (seq^2, d_out d_in), largest first, in W's dtype.

    Raises:
        ValueError: see `interaction_rank`.
    """
    check_operator(operator)
    rows = operator.double().flatten(-2).flatten(-3, -2)
    return torch.linalg.svdvals(rows).to(operator.dtype)


def check_operator(operator: Tensor) -> None:
    """Raise ValueError unless the operator is a finite real (seq, seq, d_out, d_in), with or without a batch."""
    form = "W of zoo.theory.interaction(layer, x), (seq, seq, d_out, d_in) or (batch, seq, seq, d_out, d_in)"
    require_real("operator", operator, form, (4, 5))
    if operator.shape[-4] != operator.shape[-3]:
        raise ValueError(f"operator must be {form}, got {tuple(operator.shape)}")


def span_spectrum(
    layer: nn.Module,
    x: Float[Tensor, "*batch seq d_in"],
    sketch: int | None = None,
    *,
    channels: int | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*batch singular"]:
    """Return the singular values of the operator span of `layer` at `x`, without holding the operator.

    Exact (no sketch): seq * d_out backward passes, many at a time, read every W_ij and merge it into a triangle of
    (d_out d_in)^2 numbers. The values equal `operator_spectrum(interaction(layer, x).operator)`.

    Sketch: W is contracted over output positions with m = `sketch` Gaussian vectors h, Y_j = sum_i h_i W_ij / sqrt(m),
    in m * d_out passes. The energy is unbiased, E sum_j vec(Y_j) vec(Y_j)^T = sum_ij vec(W_ij) vec(W_ij)^T. The rank is
    exact almost surely if m >= k, and m = 8 gives the leading values to about ten per cent. The vectors are Gaussian
    because random signs can cancel exactly. If m < k, each source position shows at most m directions, and the heads of
    a slowly decaying spectrum are underestimated: for values 1/s, k = 64 and m = 16, we count 22 to 29 heads for 10 %
    at seq = 8, and 29 to 32 at seq = 32, instead of 31. An operator that reads one source position shows rank m.

    Wide layers are also contracted over channels: `channels` = s Gaussian vectors replace the d_out unit vectors, with
    m * s passes and a triangle of (s d_in)^2 numbers. Ranks are then at most s d_in, and head counts above about half
    of that are even lower.

    Args:
        layer: any layer that `interaction` accepts.
        x: input at which the coefficients are recorded, with or without a batch.
        sketch: number of Gaussian vectors over time; None for the exact spectrum.
        channels: number of Gaussian vectors over channels, for a sketch; at the layer's width or above, each channel
            is probed separately. Default: a number that gives about 1,024 columns.
        generator: generator of the Gaussian vectors, on the CPU; default seed 0.

    Returns:
        At most min(rows, columns) singular values, largest first, in x's dtype.

    Raises:
        OperatorError, ValueError: see `interaction`; also sizes that are not positive.
    """
    require_positive(sketch=sketch, channels=channels)
    if channels is not None and sketch is None:
        raise ValueError("channels is an option of a sketch: give sketch too")
    if not isinstance(x, Tensor):
        raise ValueError(f"x must be a tensor, (batch, seq, d_in) or (seq, d_in), got {type(x).__name__}")
    batched = x if x.ndim == 3 else x.unsqueeze(0)
    with replayed(layer, batched) as held:
        if sketch is None:
            blocks = (block for _, block in held.rows())
        else:
            source = torch.Generator().manual_seed(0) if generator is None else generator
            blocks = _sketches(held, sketch, channels, source)
        spectrum = torch.linalg.svdvals(triangle(block.flatten(-2).flatten(1, -2) for block in blocks)).to(x.dtype)
    return spectrum if x.ndim == 3 else spectrum[0]


def _sketches(
    held: Replayed, sketch: int, channels: int | None, generator: torch.Generator
) -> Iterator[Float[Tensor, "batch few seq d_out d_in"]]:
    """Yield sum_i h_i Q W_ij for a few vectors h at a time; the rows of Q are the vectors over channels."""
    like, d_out = held.offset, held.d_out
    count = min(d_out, max(8, _SKETCH_COLUMNS // held.d_in) if channels is None else channels)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=like.dtype).to(like.device)

    over_time = draw(sketch, held.seq_len) / sketch**0.5
    over_channels = torch.eye(d_out).to(like) if count == d_out else draw(count, d_out) / count**0.5
    for some in over_time.split(max(1, held.probes_at_once() // count)):
        probes = torch.einsum("mt,sw->mstw", some, over_channels).flatten(0, 1).unsqueeze(1)
        image = held.rmatvec(probes.expand(-1, held.batch, -1, -1))
        yield rearrange(image, "(few out) batch seq d_in -> batch few seq out d_in", few=len(some))


def triangle(blocks: Iterable[Float[Tensor, "*batch _rows columns"]]) -> Float[Tensor, "*batch few columns"]:
    """Return a float64 matrix with the same Gram matrix as all rows: the R of their QR decomposition, or few rows.

    Rows are gathered up to four times the number of columns, since few large factorisations are faster.
    """

    def merged() -> Tensor:
        stacked = torch.cat(waiting, dim=-2)
        return torch.linalg.qr(stacked, mode="r")[1] if stacked.shape[-2] > stacked.shape[-1] else stacked

    waiting: list[Tensor] = []
    for block in blocks:
        waiting.append(block.double())
        if sum(rows.shape[-2] for rows in waiting) >= 4 * block.shape[-1]:
            waiting = [merged()]
    return merged()


def spectrum_rank(spectrum: Float[Tensor, "*batch singular"], rtol: float | None = None) -> int | Int[Tensor, " batch"]:
    """Count the singular values above rtol times the largest; 0 for a zero operator.

    Args:
        spectrum: singular values, with or without a batch.
        rtol: relative threshold; default 1e-10 in float64, 1e-5 in float32. A layer's roundoff is about 1e-15 (1e-7 in
            float32) of the largest value, so these thresholds give the rank of exact arithmetic. Smooth spectra (many
            real poles) cross any threshold gradually: use `heads_needed` for those.

    Raises:
        ValueError: a spectrum that is empty, negative or not finite; rtol outside [0, 1).
    """
    _check_spectrum(spectrum)
    if rtol is None:
        rtol = RANK_RTOL[spectrum.dtype]
    if not 0 <= rtol < 1:
        raise ValueError(f"rtol must lie in [0, 1), got {rtol}")
    return _integers((spectrum > rtol * spectrum.amax(-1, keepdim=True)).sum(-1))


def heads_needed(spectrum: Float[Tensor, "*batch singular"], rel_error: float) -> int | Int[Tensor, " batch"]:
    """Return the smallest number of heads H with sqrt(sum_{s > H} sigma_s^2 / sum_s sigma_s^2) <= rel_error.

    This is the error of the operator in Frobenius norm, by Eckart and Young. It equals the relative root-mean-square
    error of the output under white input that is independent of the coefficients.

    Args:
        spectrum: singular values, with or without a batch.
        rel_error: error in norm (not squared), between 0 and 1 and above sqrt(k) eps, the roundoff of k singular values
            in the spectrum's dtype; below that, rounding errors would be counted as heads.

    Raises:
        ValueError: a spectrum that is empty, negative or not finite; rel_error outside (0, 1) or below roundoff.
    """
    if not 0 < rel_error < 1:
        raise ValueError(f"rel_error must lie in (0, 1), got {rel_error}")
    _check_spectrum(spectrum)
    roundoff = spectrum.shape[-1] ** 0.5 * torch.finfo(spectrum.dtype).eps
    if rel_error < roundoff:
        raise ValueError(
            f"rel_error {rel_error:g} is below the roundoff of a {spectrum.dtype} spectrum, {roundoff:.1e}: "
            "compute the spectrum in float64, or allow a larger error"
        )
    tail = tail_energies(spectrum)
    return _integers((tail > rel_error**2).sum(-1))


def tail_energies(spectrum: Float[Tensor, "*batch singular"]) -> Float[Tensor, "*batch singular"]:
    """Return sum_{s > H} sigma_s^2 / sum_s sigma_s^2, the squared error of the best H heads, for H = 0, 1, ...

    Raises:
        ValueError: a spectrum that is empty, negative or not finite.
    """
    return _energy(spectrum).flip(-1).cumsum(-1).flip(-1)


def effective_rank(spectrum: Float[Tensor, "*batch singular"]) -> float | Float[Tensor, " batch"]:
    """Return exp of the entropy of sigma^2 / sum sigma^2 (Roy and Vetterli 2007, on energies); 0 for a zero operator.

    Raises:
        ValueError: a spectrum that is empty, negative or not finite.
    """
    energy = _energy(spectrum)
    entropy = torch.special.entr(energy).sum(-1)
    return _numbers(torch.where(energy.sum(-1) > 0, entropy.exp(), 0.0))


def stable_rank(spectrum: Float[Tensor, "*batch singular"]) -> float | Float[Tensor, " batch"]:
    """Return sum sigma^2 / max sigma^2, which is at most the rank; 0 for a zero operator.

    Raises:
        ValueError: a spectrum that is empty, negative or not finite.
    """
    energy = _energy(spectrum)
    return _numbers(torch.where(energy.sum(-1) > 0, 1 / energy.amax(-1), 0.0))


def _energy(spectrum: Tensor) -> Float[Tensor, "*batch singular"]:
    """Return sigma^2 / sum sigma^2 in float64, largest first; zeros for a zero operator."""
    _check_spectrum(spectrum)
    sigma = spectrum.double().sort(dim=-1, descending=True).values
    # Scale first, since squares of very small or large values leave the range of floating point.
    energy = (sigma / sigma[..., :1].clamp(min=torch.finfo(torch.float64).tiny)).square()
    return energy / energy.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def _check_spectrum(spectrum: Tensor) -> None:
    require_real(
        "spectrum, of zoo.theory.span_spectrum(layer, x),", spectrum, "(singular,) or (batch, singular)", (1, 2)
    )
    if (spectrum < 0).any():
        raise ValueError(f"spectrum must not be negative, got {float(spectrum.min()):.3g}")


def _integers(count: Tensor) -> int | Tensor:
    return count if count.ndim else int(count)


def _numbers(value: Tensor) -> float | Tensor:
    return value if value.ndim else float(value)
