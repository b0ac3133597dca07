"""Figures of measurements: operators, spectra, gradients, heads over training, and mixers side by side.

Figures of one layer are sized to be legible in TensorBoard.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.report.plots import line_styles, name_lines, new_figure, styled, whole_numbers
from zoo.theory.columns import decay_text, rank_text
from zoo.theory.gradients import DecayRate, Gradient, GradientProfile, fit_window
from zoo.theory.rank import tail_energies
from zoo.theory.spectra import SpectrumRead

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from zoo.theory.measure import Measurement

_DECADES = 6  # range of a heat map; smaller values get its lowest colour
_LEAST_ERROR = 1e-7  # lower end of the error axis
_LEAST_SIGMA = 1e-17
_LEAST_GRADIENT = 1e-10  # lower end of the gradient axis, relative to the largest gradient


@styled
def operator_figure(norms: Float[Tensor, "seq seq"], title: str) -> Figure:
    """Draw a heat map of ||W_ij||_F over output i and source j, relative to the largest, on a log scale.

    Args:
        norms: see `zoo.theory.spectra.operator_norms`.
        title: title of the figure.
    """
    figure, (axes,) = new_figure()
    largest = float(norms.max()) or 1.0
    relative = (norms.double().cpu() / largest).clamp(min=10.0**-_DECADES).log10()
    relative[torch.ones_like(relative).triu(1).bool()] = math.nan  # the future: no part of the map
    image = axes.imshow(relative.numpy(), cmap="viridis", vmin=-_DECADES, vmax=0, interpolation="nearest")
    axes.grid(visible=False)
    bar = figure.colorbar(image, ax=axes, extend="min")
    bar.set_label(rf"$\log_{{10}}$ of $\Vert W_{{ij}} \Vert_F$ / {largest:.2g} (the largest)")
    axes.set(title=title, xlabel="source position j (tokens)", ylabel="output position i (tokens)")
    return figure


@styled
def spectrum_figure(read: SpectrumRead, title: str) -> Figure:
    """Draw the singular values of the operator span, and mark its rank.

    Args:
        read: a spectrum with values.
        title: title of the figure.
    """
    figure, (axes,) = new_figure()
    assert read.rank is not None
    shown = min(len(read.values), max(8, math.ceil(1.5 * read.rank)))
    values = read.values.double()[:shown] / (float(read.values[0]) or 1.0)
    axes.semilogy(range(1, shown + 1), values.clamp(min=_LEAST_SIGMA).tolist(), marker="o", linewidth=1, color="C0")
    label = f"interaction rank k {'≥' if read.rank == read.limit else '='} {read.rank}"
    axes.axvline(read.rank + 0.5, color="C3", linestyle="--", linewidth=1.4, label=label)
    axes.set(xlim=(0.5, shown + 0.5), ylim=(None, 3), title=title, xlabel="index s of the singular value")
    axes.set_ylabel(r"singular value $\sigma_s / \sigma_1$ of the operator span")
    axes.xaxis.set_major_locator(whole_numbers())
    axes.legend()
    return figure


@styled
def gradient_decay_figure(gradient: Gradient, title: str) -> Figure:
    """Draw J against distance: median and range over draws, and the exponential over the distances it was fitted to."""
    figure, (axes,) = new_figure()
    taus, values = _drawable(gradient.profile)
    low, median, high = ([float(column.quantile(q)) for column in values.T] for q in (0.0, 0.5, 1.0))
    axes.fill_between(taus.tolist(), low, high, color="C0", alpha=0.2, linewidth=0, label="range of the draws")
    axes.plot(taus.tolist(), median, color="C0", label="median of the draws")
    if gradient.decay is not None:
        where, fit = fitted_line(gradient.profile, gradient.decay)
        label = f"fit: rate {decay_text(gradient.decay)} per token"
        axes.plot(where.tolist(), fit.tolist(), color="C3", linestyle="--", label=label)
    _name_gradient_axes(axes, title)
    axes.legend()
    return figure


@styled
def heads_over_training_figure(
    steps: Sequence[int], heads: Mapping[float, Sequence[int | float]], title: str
) -> Figure:
    """Draw the heads needed for each relative error against the training step.

    Args:
        steps: training steps at which the operator was measured.
        heads: relative error -> heads at each of the steps.
        title: title of the figure.
    """
    figure, (axes,) = new_figure()
    for at, (error, counts) in enumerate(heads.items()):
        axes.plot(steps, counts, marker="o", color=f"C{at}", label=f"for an error of {100 * error:g} %")
    axes.set(ylim=(0, None), title=title, xlabel="training step", ylabel="heads needed")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(whole_numbers())
    axes.legend()
    return figure


@styled
def comparison_figure(rows: Sequence[Measurement]) -> Figure:
    """Compare mixers: error against heads, cost against length, gradients on random and on highway input."""
    figure, (errors, costs, noise, highway) = new_figure(2, 2)
    styles = line_styles([row.name for row in rows])
    for row in rows:
        style = styles[row.name]
        name = style.pop("label")
        if row.read.rank is not None:
            heads, error = error_by_heads(row.read.values)
            in_sight = [max(each, _LEAST_ERROR) for each in error]
            errors.plot(heads, in_sight, **style, label=f"{name}, k = {rank_text(row.read)}")
        costs.plot(row.cost.lengths, row.cost.seconds, **style, label=f"{name}, {row.cost.time_exponent:.1f}")
    for axes in (errors, costs):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
    errors.set(xlabel="heads H", ylabel="relative error of the best H heads", ylim=(_LEAST_ERROR, 2))
    errors.set_title("Error against number of heads; k, the interaction rank")
    costs.set(
        xlabel="length (tokens)", ylabel="forward and backward pass (s)", title="Time against length, and exponent"
    )
    _draw_gradients(noise, highway, {row.name: (row.noise, row.highway) for row in rows})
    name_lines(errors, costs, noise, highway)
    return figure


@styled
def gradient_comparison_figure(gradients: Mapping[str, tuple[Gradient, Gradient | None]]) -> Figure:
    """Draw the gradients of several mixers against distance, on random input and on highway input.

    Args:
        gradients: name -> (gradient on random input, gradient on highway input or None if the mixer has none).
    """
    figure, (noise, highway) = new_figure(2)
    _draw_gradients(noise, highway, gradients)
    name_lines(noise, highway)
    return figure


def _draw_gradients(noise: Axes, highway: Axes, gradients: Mapping[str, tuple[Gradient, Gradient | None]]) -> None:
    styles, medians = (
        line_styles([*gradients]),
        {name: _medians(random.profile) for name, (random, _) in gradients.items()},
    )
    reached = [value for _, median in medians.values() for value in median]
    most = max(reached, default=1.0)  # empty if no mixer mixes positions
    least = max(min(reached, default=1.0) / 3, most * _LEAST_GRADIENT)
    for name, (_, offered) in gradients.items():
        style = styles[name]
        taus, median = medians[name]
        if seen := sum(1 for _ in itertools.takewhile(lambda value: value >= least, median)):
            noise.plot(taus[:seen], median[:seen], **style)  # until it falls below the axis
        if offered is not None:
            highway.plot(taus, median, color=style["color"], linewidth=1, alpha=0.6, linestyle=":")
            highway.plot(*_medians(offered.profile), **style)
    _name_gradient_axes(noise, "Gradient on random input")
    _name_gradient_axes(highway, "Gradient on highway input (dotted: random input)")
    noise.set_ylim(least, most * 5)
    if not highway.lines:
        highway.text(0.5, 0.5, "no highway known", ha="center", va="center", transform=highway.transAxes)


def _name_gradient_axes(axes: Axes, title: str) -> None:
    axes.set(yscale="log", title=title, xlabel="distance τ (tokens)")
    axes.set_ylabel(r"gradient norm $J(\tau) = \Vert\partial y_n / \partial x_{n-\tau}\Vert_F$")


def _medians(profile: GradientProfile) -> tuple[list[int], list[float]]:
    """Return the distances that a gradient reaches, and the medians there."""
    reached = _reached(profile)
    return profile.distances[reached].tolist(), profile.median[reached].tolist()


def _reached(profile: GradientProfile) -> Tensor:
    """Mask the distances >= 1 with a nonzero median: nothing is drawn beyond a finite receptive field."""
    return (profile.distances >= 1) & (profile.median > 0)


def _drawable(profile: GradientProfile) -> tuple[Tensor, Tensor]:
    """Return the distances that a gradient reaches, and positive values (seed, distance) for a log axis.

    Zeros of single draws are replaced by the smallest positive value.
    """
    reached = _reached(profile)
    values = profile.values[:, reached].double()
    positive = values[values > 0]
    return profile.distances[reached], values.clamp(min=float(positive.min()) if len(positive) else 1.0)


def fitted_line(profile: GradientProfile, decay: DecayRate) -> tuple[Tensor, Tensor]:
    """Return (taus, values) of the exponential with rate `decay.rate`, over the distances it was fitted to."""
    window, _ = fit_window(profile)
    taus, log_j = profile.distances[window].double(), profile.median[window].log()
    return taus, (log_j.mean() + decay.rate * (taus - taus.mean())).exp()


def error_by_heads(spectrum: Float[Tensor, " singular"]) -> tuple[list[int], list[float]]:
    """Return H = 1, 2, ... and the relative error (in norm) of the best H heads, down to the end of the error axis."""
    left = [*tail_energies(spectrum.double()).sqrt()[1:].tolist(), 0.0]
    shown = 1 + sum(error > _LEAST_ERROR for error in left)
    return list(range(1, shown + 1)), [max(error, _LEAST_ERROR / 10) for error in left[:shown]]
