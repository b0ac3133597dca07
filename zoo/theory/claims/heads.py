"""Claims about head counts: how well H factorized heads approximate a map of interaction rank k."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from zoo.coefficient import coefficient
from zoo.evidence import Curve, Panel, at_least, at_most, equals, near, within
from zoo.mixers.factorized import Factorized
from zoo.theory.claims.claim import Findings, Settings, claim, redrawn
from zoo.theory.claims.cores import Core, Draw, drawn, drawn_system, toeplitz
from zoo.theory.convert import to_heads
from zoo.theory.lags import head_count as count_heads
from zoo.theory.lags import head_count_bound, lag_operators, weighted_rows
from zoo.theory.operator import interaction
from zoo.theory.rank import heads_needed, interaction_rank, tail_energies
from zoo.theory.teacher import balanced_teacher

_SOURCE = "Ghodsi, arXiv 2512.15115 (head counts); weighted Eckart-Young theorem"
_SEQ_LEN, _D_MODEL = 32, 6
_BATCH, _LR = 16, 5e-2
_STEEP_POLES = 8  # real poles of the teacher that is not balanced
_MOST_STATES = 128  # half of the 256 dimensions of the lag operators of 16 channels


def relative_error(lags: Tensor, other: Tensor) -> Tensor:
    """Return E|Y - Y'|^2 / E|Y|^2 of two time-invariant maps under white input, exactly."""
    miss, size = (weighted_rows(g).square().sum() for g in (other - lags, lags))
    return miss / size


def toeplitz_matrix(lags: Float[Tensor, "seq d_out d_in"]) -> Float[Tensor, "rows columns"]:
    """Return the matrix (seq * d_out, seq * d_in) of the causal map with these lag operators."""
    return rearrange(toeplitz(lags.movedim(0, -1)), "out d_in i j -> (i out) (j d_in)")


def minimised(points: Sequence[Tensor], loss: Callable[[], Tensor], **options: Any) -> float:
    """Minimise the loss over the points in place, by L-BFGS with a line search, and return the final loss."""
    optimizer = torch.optim.LBFGS(points, line_search_fn="strong_wolfe", **options)

    def step() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(step)
    with torch.no_grad():
        return loss().item()


def population_optimum(lags: Tensor, n_heads: int, generator: torch.Generator) -> float:
    """Return the relative error that L-BFGS reaches on the expected loss from a random start."""
    n, d_out, d_in = lags.shape
    a = 0.3 * torch.randn(n_heads, n, generator=generator, dtype=lags.dtype)
    v = torch.randn(n_heads, d_out, d_in, generator=generator, dtype=lags.dtype) / d_in**0.5
    a, v = (t.to(lags.device).requires_grad_() for t in (a, v))
    return minimised(
        [a, v],
        lambda: relative_error(lags, torch.einsum("ht,hpd->tpd", a, v)),
        max_iter=1500,
        history_size=30,
        tolerance_grad=1e-13,
        tolerance_change=1e-18,
    )


def trained_error(lags: Tensor, n_heads: int, settings: Settings, stream: int) -> float:
    """Train a `factorized` mixer on fresh white sequences by Adam, and return its exact relative error."""
    n, d_out, d_in = lags.shape
    mixer = drawn(settings, lambda: Factorized(d_in, n_heads, d_out, max_seq_len=n), 20, n_heads, stream)
    optimizer = torch.optim.Adam(mixer.parameters(), lr=_LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps, eta_min=_LR / 100)
    teacher, inputs = toeplitz_matrix(lags), Draw(settings, 21, n_heads, stream)
    size = _BATCH * teacher.square().sum()
    for _ in range(settings.steps):
        x = inputs(_BATCH, n, d_in)
        y = (x.flatten(1) @ teacher.T).view(_BATCH, n, d_out)
        loss = (mixer(x) - y).square().sum() / size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        learned = torch.einsum("ht,hpd->tpd", mixer.coefficients, mixer.value_maps)
        return relative_error(lags, learned).item()


@claim(
    "The best H heads with input-independent coefficients reach exactly the weighted Eckart-Young bound: positive for "
    "H < k, zero from H = k on. Training attains it on balanced teachers. On eight real poles with random residues, "
    "whose spectrum decays steeply, training with six or eight heads does not attain it, even in four times the steps.",
    _SOURCE,
    "An optimum that is off the bound by 1e-3 for H < k, or above 1e-12 at H = k; Adam that is off by more than 2 % on "
    "a balanced teacher; on the steep one, Adam within a factor of two of the bound with six heads or below 1e-6 with "
    "eight, in four times the steps too.",
)
def head_count(settings: Settings) -> Findings:
    """Measure error against heads: bound, optimum of the expected loss, Adam."""
    curves: list[Curve] = []
    for k in settings.ranks:
        lags = balanced_teacher(k, _D_MODEL, _SEQ_LEN, seed=settings.seed).to(settings.device)
        heads = range(1, k + 2)
        bounds = [head_count_bound(lags, h) for h in heads]
        trained = []
        for h, bound in zip(heads, bounds, strict=True):
            starts = range(settings.n_seeds) if h <= k else ()
            best = {repeat: population_optimum(lags, h, settings.generator(22, k, h, repeat)) for repeat in starts}
            found = {repeat: trained_error(lags, h, settings, 100 * k + repeat) for repeat in range(settings.n_seeds)}
            trained.append(median(found.values()))
            if h < k:
                over = {repeat: error / bound for repeat, error in found.items()}
                best_over = {repeat: error / bound for repeat, error in best.items()}
                yield near(f"k={k}, H={h}: optimum of the expected loss / bound", best_over, 1, 1e-3)
                yield near(f"k={k}, H={h}: Adam / bound", over, 1, 0.02)
            if h == k:
                yield at_most(f"k={k}, H={h}: optimum of the expected loss", best, 1e-12)
                yield at_most(f"k={k}, H={h}: Adam", found, 1e-6)
        exact = [bound if h < k else 0.0 for h, bound in zip(heads, bounds, strict=True)]
        curves += [Curve(f"k = {k}: bound", heads, exact), Curve(f"k = {k}: trained", heads, trained, "points")]
    poles = torch.linspace(0.1, 0.95, _STEEP_POLES, dtype=torch.float64, device=settings.device)
    steep = [drawn_system(Draw(settings, 23, n), poles, _D_MODEL, _D_MODEL, _SEQ_LEN) for n in range(settings.n_seeds)]

    fewer, case = _STEEP_POLES - 2, f"{_STEEP_POLES} real poles, drawn residues"
    for times, label in ((1, "Adam"), (4, "Adam, four times the steps")):
        longer = replace(settings, steps=times * settings.steps)
        below, exactly = (
            {n: trained_error(lags, h, longer, 2000 + n) for n, lags in enumerate(steep)} for h in (fewer, _STEEP_POLES)
        )
        over = {n: error / head_count_bound(steep[n], fewer) for n, error in below.items()}
        yield at_least(f"{case}, H={fewer}: {label} / bound", over, 2)
        yield at_least(f"{case}, H={_STEEP_POLES}: {label}", exactly, 1e-6)
    yield Panel(
        "Balanced SSMs of rank k: the error is gone at H = k",
        "heads H",
        "relative squared error (zero drawn at 1e-14)",
        curves,
        whole_x=True,
        lowest=1e-14,
    )


@claim(
    "One factorized head has interaction rank one for any coefficients; its error on a balanced SSM of rank k grows "
    "towards 1 - 1/k.",
    _SOURCE,
    "A single head of rank above one, or with an error below half of 1 - 1/k.",
)
@redrawn
def one_head_gap(settings: Settings) -> Findings:
    """Compare the operator of one head with the operators of SSMs of growing rank."""
    errors = []
    for k in settings.ranks:
        lags = balanced_teacher(k, _D_MODEL, _SEQ_LEN, seed=settings.seed).to(settings.device)
        one, exact = to_heads(lags, 1), to_heads(lags)
        x = Draw(settings, 30, k)(1, _SEQ_LEN, _D_MODEL)
        near_it, map_itself = (interaction(mixer, x).operator[0] for mixer in (one, exact))
        error = ((near_it - map_itself).square().sum() / map_itself.square().sum()).item()
        errors.append(error)
        yield equals(f"k={k}: rank of the SSM", int(interaction_rank(map_itself)), k)
        yield equals(f"k={k}: rank of one head", int(interaction_rank(near_it)), 1)
        if k == 1:
            yield at_most("k=1: relative squared error of one head", error, 1e-20)
        else:
            # The k singular values of a balanced map are similar, so the first has little more than 1/k of the energy.
            yield within(f"k={k}: relative squared error of the best head", error, 0.5 * (1 - 1 / k), 1 - 1 / k)
    if len(errors) > 1:
        growth = min(after - before for before, after in pairwise(errors))
        yield at_least("least growth of that from one k to the next", growth, 0)
    yield Panel(
        "Error of one factorized head on an SSM",
        "interaction rank k of the SSM",
        "relative squared error",
        (
            Curve("best single head", settings.ranks, errors, "points"),
            Curve("1 - 1/k", settings.ranks, [1 - 1 / k for k in settings.ranks], "dashed"),
        ),
        log_y=False,
        whole_x=True,
    )


def _real_poles(n_poles: int, seq_len: int, device: str) -> Tensor:
    """Return real poles with timescales from 1 to seq_len, evenly spaced in the logarithm."""
    where = (torch.arange(n_poles, dtype=torch.float64, device=device) + 0.5) / n_poles
    return torch.exp(-torch.exp(-where * math.log(seq_len)))


@claim(
    "For an error of 0.1 %, SSMs with 128 real poles need at most 2 log n heads (measured at one length, with random "
    "residues); two families of oscillating SSMs need nearly one head per state. So N poles do not always need about N "
    "heads, and the error does not always drop visibly at N: with N - 1 heads it can already be below 0.1 %.",
    "Observed; exact spectra of p = d = 16 systems",
    "Real poles that need more than 2 log n heads for 0.1 %; oscillating ones that need fewer heads than 60 % of their "
    "states for 10 %; or 8 real poles for which seven heads have an error above 0.1 %.",
)
@redrawn
def heads_for_an_error(settings: Settings) -> Findings:
    """Count the heads that real and oscillating poles need for errors of 10, 1 and 0.1 per cent."""
    n = settings.seq_len
    states = min(n // 2, _MOST_STATES)
    draw, device = Draw(settings, 40), settings.device
    pairs = torch.arange(states // 2, dtype=torch.float64, device=device)
    angles = math.pi * torch.rand(states // 2, generator=settings.generator(41), dtype=torch.float64).to(device)
    ring = torch.polar(torch.full_like(angles, 1 - 1 / (4 * n)), angles)
    s4d = torch.exp(torch.complex(torch.full_like(pairs, -0.5), math.pi * pairs) * 2 / states)
    families = {
        "real poles, timescales 1 to n": _real_poles(states, n, device),
        "oscillating poles near the unit circle": ring,
        "S4D-Lin, one step size": s4d,
    }
    curves = []
    for name, poles in families.items():
        spectrum = torch.linalg.svdvals(weighted_rows(drawn_system(draw, poles, 16, 16, n)))
        for error, logs, share in ((0.1, 1, 0.6), (0.01, 1.5, 0.8), (0.001, 2, 0.85)):
            quantity = f"{name}, {states} states, n = {n}: heads for {100 * error:g} %"
            needed = int(heads_needed(spectrum, error))
            if name.startswith("real"):  # about log n log(1/error) heads, an observation
                yield at_most(quantity, needed, math.ceil(logs * math.log(n)))
            else:
                yield at_least(quantity, needed, math.ceil(share * states))
        errors = tail_energies(spectrum).sqrt().clamp(min=1e-16).tolist()[: states + 1]
        curves.append(Curve(name, range(len(errors)), errors))
    draw, poles = Draw(settings, 61), torch.linspace(0.95, -0.8, 8, dtype=torch.float64, device=device)
    smooth = lag_operators(poles, draw(8, _D_MODEL), draw(_D_MODEL, 8), _SEQ_LEN)
    quantity = "8 real poles, drawn residues: least relative squared error of 7 heads"
    yield at_most(quantity, head_count_bound(smooth, 7), 1e-3)
    yield Panel(f"{states} states, as many as heads would be exact", "heads", "relative error (norm)", curves)


def turning_layer(lags: Float[Tensor, "seq 2 2"]) -> Core:
    """Build two heads with value maps I and the quarter turn J, and f_1 = u^T G u, f_2 = (J u)^T G u at u = x / |x|.

    G x = f_1(x) x + f_2(x) J x for every x in the plane, so the heads equal any map of two channels, of any rank.
    """
    turn = lags.new_tensor([[0.0, -1.0], [1.0, 0.0]])

    def rule(x: Tensor) -> Tensor:
        unit = x / x.norm(dim=-1, keepdim=True)
        image = torch.einsum("tac,bjc->bjta", lags, unit)
        along = coefficient(torch.einsum("bjta,bja->bjt", image, unit))
        across = coefficient(torch.einsum("bjta,bja->bjt", image, unit @ turn.T))
        n = x.shape[1]
        lag = torch.arange(n, device=x.device)[:, None] - torch.arange(n, device=x.device)
        source = torch.arange(n, device=x.device).expand(n, n)
        held = [torch.where(lag >= 0, f[:, source, lag.clamp(min=0)], 0.0) for f in (along, across)]
        return held[0] @ x + held[1] @ (x @ turn.T)

    return Core(2, rule, like=lags)


def _fewest_values() -> dict[str, Tensor]:
    """Return sets of fewer value maps than the rank, whose images of any x != 0 still span the output space."""
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    two = torch.eye(2, dtype=torch.float64)
    flip = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))
    i, j = torch.kron(two, turn), torch.kron(turn, flip)
    values = {
        "I and a quarter turn": torch.stack((two, turn)),
        "the four unit quaternions": torch.stack((torch.eye(4, dtype=torch.float64), i, j, i @ j)),
    }
    for width in (3, 6):
        rows, columns = torch.meshgrid(torch.arange(width), torch.arange(width), indexing="ij")
        hankel = torch.stack([(rows + columns == h).double() for h in range(2 * width - 1)])
        values[f"{2 * width - 1} Hankel maps"] = hankel
    return values


@claim(
    "The head-count theorem holds for operators (or for outputs, if coefficients are continuous at zero): on unit "
    "inputs, two heads with input-dependent coefficients reproduce every output of a map of rank four. 'Fewer than k "
    "heads cannot reproduce the outputs of a map of rank k' is also false for random maps of full rank.",
    "Constructed: value maps I and J in the plane; quaternions and Hankel maps in 3, 4 and 6 dimensions",
    "An output error above 1e-12, an operator of another rank, or fewer heads whose output error on unit inputs "
    "reaches the operator-level bound.",
)
@redrawn
def outputs_need_fewer(settings: Settings) -> Findings:
    """Measure operator and outputs of {I, J}; fit random maps with coefficients solved for at each input."""
    draw = Draw(settings, 50)
    lags = draw(_SEQ_LEN, 2, 2)
    layer = turning_layer(lags)
    x = draw(8, _SEQ_LEN, 2)
    x = x / x.norm(dim=-1, keepdim=True)
    wanted = (x.flatten(1) @ toeplitz_matrix(lags).T).view_as(x)
    error = ((layer(x) - wanted).norm() / wanted.norm()).item()
    rank = int(interaction_rank(interaction(layer, x[:1]).operator[0]))
    yield equals("rank of the map", count_heads(lags), 4)
    yield equals("rank of the two-head layer", rank, 2)
    yield at_least("operator-level bound for two heads (relative squared error)", head_count_bound(lags, 2), 0.1)
    yield at_most("relative error of its outputs on unit inputs", error, 1e-12)
    for stream, (name, values) in enumerate(_fewest_values().items()):
        draw = Draw(settings, 51, stream)
        values, width = values.to(settings.device), values.shape[1]
        lags = draw(_SEQ_LEN, width, width)
        x = draw(500, width)
        x = x / x.norm(dim=1, keepdim=True)
        reached = torch.einsum("hpd,xd->xph", values, x)
        wanted = torch.einsum("tpd,xd->xpt", lags, x)
        found = reached @ (torch.linalg.pinv(reached) @ wanted)
        error = ((found - wanted).square().sum() / wanted.square().sum()).item()
        spectrum = torch.linalg.svdvals(lags.flatten(1)).square()
        bound = (spectrum[len(values) :].sum() / spectrum.sum()).item()
        quantity = f"{name}, H = {len(values)} for k = {count_heads(lags)}: relative squared error of outputs / bound"
        yield at_most(quantity, error / bound, 1)
