"""Claims about gradients against distance: J(tau) = ||d y_n / d x_{n - tau}||_F, the true Jacobian, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from zoo.evidence import Curve, Estimate, Panel, Samples, at_least, at_most, near, paired, within
from zoo.evidence.interval import FEWEST_SEEDS
from zoo.mixers.attention import Attention
from zoo.mixers.diagonal_ssm import DiagonalSSM
from zoo.mixers.selective_ssm import SelectiveSSM
from zoo.theory.claims.claim import Findings, Settings, claim
from zoo.theory.claims.cores import (
    Core,
    Draw,
    averaging_stack,
    moving_average,
    needle_attention,
    normed_stack,
    switched_core,
)
from zoo.theory.gradients import GradientProfile, MakeInput, decay_rate, draw_seeds, gradient_profile

_SOURCE = "Ghodsi, arXiv 2512.15115 (gradient highway)"
_D_MODEL = 16
_RHO = 0.9
_SHARPNESS = 16.0
_WINDOW = 1024  # in longer windows a fresh diagonal_ssm does attenuate: J(4,096) / J(1) is .002
_CLOSED = -12.0  # closes the switch: softplus(-12 + b) is e^-12 (e^dt - 1), where dt is the step at a neutral switch
_CLOSED_RATES = (-1.6e-5, -6.4e-7)  # that step times A, for dt = .5 with A = -4 and for dt = .1 with A = -1


def profile_of(
    settings: Settings,
    make_layer: Callable[[int], nn.Module],
    make_input: MakeInput | None = None,
    seq_len: int | None = None,
) -> GradientProfile:
    """Measure the profile of layers made from a seed, in float64 on the settings' device."""
    return gradient_profile(
        lambda seed: make_layer(seed).double().to(settings.device),
        make_input,
        seeds=draw_seeds(settings.seed, settings.n_seeds),
        seq_len=seq_len or settings.seq_len,
    )


def _panel(title: str, profiles: Mapping[str, GradientProfile]) -> Panel:
    """Plot the median of J over seeds against distance, from distance one on."""
    curves = []
    for label, profile in profiles.items():
        medians = profile.values.double().quantile(0.5, dim=0)
        beyond = (profile.distances >= 1) & (medians > 0)
        curves.append(Curve(label, profile.distances[beyond].tolist(), medians[beyond].tolist()))
    return Panel(title, "distance tau (tokens)", "gradient norm J(tau)", curves)


def _level(profile: GradientProfile, beyond: float = 0.25) -> Samples:
    """Return by seed the median of J over distances from `beyond` times the length on."""
    far = profile.distances >= beyond * profile.seq_len
    return _by_seed(profile.values[:, far].double().quantile(0.5, dim=1))


def _exponent(levels: Mapping[int, Samples]) -> Samples:
    """Return by seed the exponent p of levels n^p, from the shortest to the longest length."""
    (short, first), *_, (long, last) = levels.items()
    return paired(lambda a, b: math.log(b / a) / math.log(long / short), first, last)


def _by_seed(values: Tensor) -> Samples:
    return dict(enumerate(values.double().tolist()))


def _end_over_start(profile: GradientProfile) -> tuple[str, Samples]:
    """Return the name and, by seed, the value of J at the last distance over J at the first distance >= 1."""
    start = int((profile.distances >= 1).long().argmax())
    first, last = (int(profile.distances[at]) for at in (start, -1))
    return f"J({last}) / J({first})", _by_seed(profile.values[:, -1] / profile.values[:, start])


def _rate(profile: GradientProfile) -> Estimate:
    """Return the decay rate per token, with its interval."""
    found = decay_rate(profile)
    return Estimate(found.rate, *found.interval)


def real_poles(poles: Tensor) -> DiagonalSSM:
    """Return a `diagonal_ssm` with these real poles in (0, 1) and its initial input and output maps."""
    mixer = DiagonalSSM(_D_MODEL, len(poles), init="real_log").double()
    rates = {"log_rate": (-poles.log()).log(), "log_dt": torch.zeros_like(poles)}
    mixer.load_state_dict({**mixer.state_dict(), **rates})
    return mixer


@claim(
    "The gradient through a time-invariant SSM decays exponentially, at log rho per token for spectral radius rho.",
    _SOURCE,
    "A tail rate whose interval is more than 1 % away from log rho.",
)
def gradient_lti(settings: Settings) -> Findings:
    """Measure rates of SSMs with a known spectral radius."""
    profiles = {}
    for rho in (0.9, 0.99, 0.999):
        poles = rho * torch.tensor([0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
        profile = profiles[f"SSM, largest pole {rho}"] = profile_of(settings, lambda _, p=poles: real_poles(p))
        quantity = f"largest pole {rho}: rate per token, log rho = {math.log(rho):.5f}"
        yield near(quantity, _rate(profile), math.log(rho), 0.01)
    yield _panel("SSMs: J falls by log rho a token", profiles)


def needle_in_noise(seq_len: int, others: float, channel: int, last: float) -> MakeInput:
    """Return a generator of inputs: noise with a needle at the given distance from the end.

    Channel 0 is one at the needle and `others` elsewhere; `channel` of the last position is set to `last`. Attention
    uses channel 0 as key and channel 1 of the last position as query; a switched core uses channel 0 as its switch.
    """

    def make(generator: torch.Generator, distance: int) -> Tensor:
        x = torch.randn(seq_len, _D_MODEL, generator=generator, dtype=torch.float64)
        x[:, 0] = others
        x[-1 - distance] = torch.randn(_D_MODEL, generator=generator, dtype=torch.float64)
        x[-1 - distance, 0] = 1
        x[-1, channel] = last
        return x

    return make


@claim(
    "The gradient through attention does not depend on distance: it is of order one from a selected position, and of "
    "order 1/n from an unselected one.",
    _SOURCE,
    "A rate whose interval exceeds ±0.1/n on a needle or ±1/n on noise, or a level on noise that is not about n^-1.",
)
def gradient_attention(settings: Settings) -> Findings:
    """Measure attention on a needle and on noise."""
    n = settings.seq_len
    needle = profile_of(
        settings,
        lambda _: needle_attention(torch.randn(_D_MODEL, _D_MODEL, dtype=torch.float64) / _D_MODEL**0.5, _SHARPNESS),
        needle_in_noise(n, 0.0, channel=1, last=1.0),
    )
    noise = {at: profile_of(settings, lambda _: Attention(_D_MODEL, 1), seq_len=at) for at in (n // 4, n // 2, n)}
    levels = {length: _level(profile) for length, profile in noise.items()}
    kept, ratio = _end_over_start(needle)
    over = paired(lambda a, b: a / b, _level(needle), levels[n])
    yield within(f"needle, n = {n}: rate per token", _rate(needle), -0.1 / n, 0.1 / n)
    yield within(f"noise, n = {n}: rate per token", _rate(noise[n]), -1 / n, 1 / n)
    yield within(f"needle: {kept}", ratio, 0.95, 1.05)
    yield within(f"noise: exponent of the level of J in n, from {n // 4} to {n}", _exponent(levels), -1.2, -0.8)
    yield at_least(f"needle over noise: level of J at n = {n}", over, n / 10)
    on_noise = {f"attention, noise of {length} tokens": profile for length, profile in noise.items()}
    yield _panel("Attention: flat in distance, 1/n unless selected", {"attention, selected needle": needle} | on_noise)


def between_gates(settings: Settings, seq_len: int, between: float) -> GradientProfile:
    """Profile switched cores whose switch is `between` from needle to end; step sizes are .1 to .5 at a neutral one."""

    def make(seed: int) -> Core:
        return switched_core(Draw(settings, 70, seed), _D_MODEL, 4, (0.1, 0.5))

    return profile_of(settings, make, needle_in_noise(seq_len, between, channel=0, last=0.0), seq_len)


@claim(
    "If the gates of a selective SSM are closed between two tokens (dt near 0), the gradient decays like its states, "
    "by dt |A|: between 6.4e-7 and 1.6e-5 per token for this core. The rate is measured over the length of the "
    "settings, by default 256 tokens; a reach of about 10^5 tokens is extrapolated from it.",
    "h_t = exp(dt A) h_{t-1} + dt B u with dt near zero; Gu and Dao, arXiv 2312.00752",
    "A rate whose interval leaves the range of dt A with gates closed, or no decay with gates open.",
)
def gradient_closed_gates(settings: Settings) -> Findings:
    """Measure a selective core with closed and with open gates."""
    n = settings.seq_len
    closed, open_ = (between_gates(settings, n, between) for between in (_CLOSED, 0.0))
    kept, ratio = _end_over_start(closed)
    yield within(f"gates closed between, n = {n}: rate per token", _rate(closed), *_CLOSED_RATES)
    yield within(f"gates closed: {kept}", ratio, 0.9, 1.1)
    yield at_most("gates open: rate per token", _rate(open_), -0.08)
    profiles = {"selective, gates closed": closed, "selective, gates open": open_}
    yield _panel("Selective SSM: closed gates are a highway", profiles)


def _average() -> Core:
    return moving_average(nn.init.orthogonal_(torch.empty(_D_MODEL, _D_MODEL, dtype=torch.float64)), _RHO)


def averages(n_layers: int, residual: bool, attention_at: int | None = None) -> Core:
    """Stack moving averages with pole rho, each after a norm; layer `attention_at` is attention."""
    layers = [_average() if at != attention_at else Attention(_D_MODEL, 4).double() for at in range(n_layers)]
    return normed_stack(layers, residual)


@claim(
    "One attention layer puts a floor of order 1/n under the gradient of a stack of decaying layers.",
    _SOURCE,
    "A rate outside ±1/n, a level below 0.1/n or not about n^-1, or a stack without attention that reaches 1 % of the "
    "level. Levels are medians over the far quarter; over the far three quarters, the window we measured first, they "
    "fall as n^-1.36.",
)
def gradient_hybrid(settings: Settings) -> Findings:
    """Measure four residual layers of moving averages, with and without an attention layer among them."""
    n = settings.seq_len
    alone = profile_of(settings, lambda _: averages(4, residual=True))
    hybrids = {
        length: profile_of(settings, lambda _: averages(4, residual=True, attention_at=2), seq_len=length)
        for length in (n // 4, n // 2, n)
    }
    hybrid, levels = hybrids[n], {length: _level(profile, 0.75) for length, profile in hybrids.items()}
    far, without = levels[n], _level(alone, 0.75)
    yield within(f"one attention layer of four, n = {n}: rate per token", _rate(hybrid), -1 / n, 1 / n)
    # We chose this window after a measurement: over the far three quarters the exponent was -1.36 (interval -1.42 to
    # -1.26), outside the limits, because the averages have not decayed there at the shorter lengths.
    yield at_least(f"level of J at the far quarter, times n = {n}", paired(lambda level: level * n, far), 0.1)
    yield within(f"its exponent in n, from {n // 4} to {n}", _exponent(levels), -1.2, -0.8)
    yield at_most("the same without attention, over the level with it", paired(lambda a, b: a / b, without, far), 1e-2)
    profiles = {"4 averages": alone, "3 averages, 1 attention": hybrid}
    yield _panel("One attention layer puts a floor under a stack", profiles)


@claim(
    "Residuals do not change the exponent: L layers that decay at log rho give tau^(L-1) rho^tau with or without them.",
    "Binomial expansion of (I + A)^L",
    "A rate whose interval is more than 6 % off the rate of tau^(L-1) rho^tau on the same window, L = 1, 2, 4.",
)
def gradient_residuals(settings: Settings) -> Findings:
    """Measure stacks of moving averages of growing depth, with and without residuals."""
    profiles = {}
    for n_layers in (1, 2, 4):
        for residual in (False, True):
            name = f"{n_layers} averages, {'residual' if residual else 'plain'}"
            profile = profiles[name] = profile_of(settings, lambda _, n=n_layers, r=residual: averages(n, r))
            # L averages weigh lag tau by about tau^(L - 1) rho^tau; the power changes the rate in this window.
            taus = profile.distances.double()
            law = (taus.clamp(min=1).log() * (n_layers - 1) + taus * math.log(_RHO)).exp()
            predicted = decay_rate(profile._replace(values=law.expand(FEWEST_SEEDS, -1))).rate
            yield near(f"{name}: rate per token, rho = {_RHO}", _rate(profile), predicted, 0.06)
    yield _panel("Residuals keep the exponent", profiles)


def likeness(layer: Core, x: Tensor) -> float:
    """Return the mean cosine between neighbouring tokens after the layer, in the second half of the sequences."""
    with torch.no_grad():
        directions = nn.functional.normalize(layer(x), dim=2)[:, x.shape[1] // 2 :]
    return (directions[:, 1:] * directions[:, :-1]).sum(2).mean().item()


@claim(
    "In a stack of averages, a channel with A = 1 prevents the decay of the gradient, and one with A = 0 prevents "
    "over-smoothing, where neighbouring tokens become alike; each has only its own effect. If the layers mix channels "
    "(random orthogonal maps, no residual), A = 1 still works and A = 0 does not.",
    "Wang et al., arXiv 2501.00658; four layers of linear averages over 8 channels",
    "A gradient that decays with A = 1; a cosine between neighbouring tokens above 0.5 with A = 0 and channels apart, "
    "or below 0.9 with channels mixed; or a stack without these channels that does as well.",
)
def polarised_channels(settings: Settings) -> Findings:
    """Measure four layers of averages with a channel of pole one, a channel of pole zero, both, and none."""
    n, d_model, n_layers = 128, 8, 4
    profiles = {}
    for mixed in (False, True):
        for label, ends in (
            ("no such channel", {}),
            ("A = 1", {0: 1.0}),
            ("A = 0", {-1: 0.0}),
            ("both", {0: 1.0, -1: 0.0}),
        ):
            poles = torch.linspace(0.5, 0.8, d_model, dtype=torch.float64, device=settings.device)
            for at, pole in ends.items():
                poles[at] = pole

            def stack(seed: int, poles: Tensor = poles, mixed: bool = mixed) -> Core:
                draw, one = Draw(settings, 95, seed), torch.eye(d_model).to(poles)
                turn = [torch.linalg.qr(draw(d_model, d_model)).Q if mixed else one for _ in range(n_layers)]
                return averaging_stack(poles, turn)

            case = f"channels {'mixed' if mixed else 'apart'}, {label}"
            profile = profiles[case] = profile_of(settings, stack, seq_len=n)
            alike = {
                seed: likeness(stack(seed), Draw(settings, 96, seed)(8, n, d_model)) for seed in range(settings.n_seeds)
            }
            quantity, rate = f"{case}: rate of the gradient per token", _rate(profile)
            yield at_least(quantity, rate, -1 / n) if 0 in ends else at_most(quantity, rate, -0.1)
            quantity, apart = f"{case}: cosine of neighbouring tokens", -1 in ends and not mixed
            yield at_most(quantity, alike, 0.5) if apart else at_least(quantity, alike, 0.9)
    yield _panel("Four layers of averages, poles from .5 to .8", profiles)


@claim(
    "'SSMs attenuate: over a long window their gradient vanishes' (J at the end of the window below 1 % of J(1), for "
    "windows of up to 1,024 tokens).",
    "The dichotomy of attention and SSMs read as a law",
    "SSMs whose gradient does not decay: poles near one, the usual initialisation, closed gates.",
    slogan=True,
)
def slogan_ssm_attenuates(settings: Settings) -> Findings:
    """Measure three SSMs whose gradients hardly decay over the window."""
    n = min(settings.seq_len, _WINDOW)
    slow = torch.full((4,), 1 - 1 / (4 * n), dtype=torch.float64)
    profiles = {
        f"pole {slow[0].item():.4f}": profile_of(settings, lambda _: real_poles(slow), seq_len=n),
        "diagonal_ssm as initialised": profile_of(settings, lambda _: DiagonalSSM(_D_MODEL), seq_len=n),
        "selective, gates closed": between_gates(settings, n, _CLOSED),
    }
    for name, profile in profiles.items():
        kept, ratio = _end_over_start(profile)
        yield at_most(f"{name}: {kept}", ratio, 0.01)
    yield _panel("SSMs that do not attenuate over the window", profiles)


@claim(
    "'A selective SSM lies between a fixed SSM and attention' (here: by the decay rate of its gradient, at equal step "
    "sizes).",
    "The usual ordering of the three; for recall it depends on state size, initialisation and schedule",
    "A selective SSM whose gradient decays faster than the fixed one's.",
    slogan=True,
)
def slogan_selective_between(settings: Settings) -> Findings:
    """Measure rates of a fixed SSM, a selective SSM with the same step sizes, and attention."""
    fixed = profile_of(settings, lambda _: DiagonalSSM(_D_MODEL, dt_min=0.1, dt_max=0.5))
    selective = profile_of(settings, lambda _: SelectiveSSM(_D_MODEL, dt_min=0.1, dt_max=0.5))
    attention = profile_of(settings, lambda _: Attention(_D_MODEL, 1))
    fastest, flat = _rate(fixed).low, _rate(attention).high  # the widest range that both intervals allow
    quantity = "rate per token of selective_ssm on noise, between those of the other two"
    yield within(quantity, _rate(selective), fastest, flat)
    profiles = {"diagonal_ssm": fixed, "selective_ssm": selective, "attention": attention}
    yield _panel("Step sizes .1 to .5, noise", profiles)
