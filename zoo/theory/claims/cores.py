"""Minimal cores that the claims measure: one mechanism each, without the convolutions and norms of a mixer.

Each core is a loop over positions, written from its recurrence with its coefficients marked, so that
`zoo.theory.interaction` can read its operator. They are meant for tens of positions in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from zoo.coefficient import coefficient
from zoo.contract import SequenceMixer
from zoo.ops.activation import rms_norm, tanh
from zoo.ops.scan import selective_scan
from zoo.theory.claims.claim import Settings
from zoo.theory.gradients import drawn_from
from zoo.theory.lags import lag_operators

M = TypeVar("M", bound=nn.Module)
Rule = Callable[[Float[Tensor, "batch seq d_in"]], Float[Tensor, "batch seq d_out"]]


class Core(nn.Module):
    """A function on sequences as a layer.

    Args:
        d_model: width of the input.
        rule: the function.
        parts: layers that the function calls, registered as submodules.
        like: a tensor with the dtype and device of the input; needed if there are no parts.
    """

    def __init__(self, d_model: int, rule: Rule, parts: Sequence[nn.Module] = (), like: Tensor | None = None) -> None:
        super().__init__()
        self.d_model, self.rule = d_model, rule
        self.parts = nn.ModuleList(parts)
        self.like = None if like is None else nn.Parameter(like.detach().clone(), requires_grad=False)

    def forward(self, x: Float[Tensor, "batch seq d_in"]) -> Float[Tensor, "batch seq d_out"]:
        return self.rule(x)


def drawn(settings: Settings, build: Callable[[], M], *stream: int) -> M:
    """Build a module with parameters drawn from the settings' seed, in float64 on the settings' device."""
    seed = settings.generator(*stream).initial_seed()
    return drawn_from(seed, lambda _: build()).double().to(settings.device)


class Draw:
    """A stream of standard normal draws in float64, on the device of the settings."""

    def __init__(self, settings: Settings, *stream: int) -> None:
        self.generator, self.device = settings.generator(*stream), settings.device

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.device)

    def square(self, width: int, d_in: int) -> Tensor:
        """Return a random (width, d_in) that preserves the scale of vectors."""
        return self(width, d_in) / d_in**0.5


def drawn_system(draw: Draw, poles: Tensor, d_out: int, d_in: int, seq_len: int) -> Tensor:
    """Return lag operators with these poles and random residues; complex poles get their conjugates."""
    n = len(poles)
    b, c = draw(n, d_in), draw(d_out, n)
    if not poles.is_complex():
        return lag_operators(poles, b, c, seq_len)
    return conjugated(poles, torch.complex(b, draw(n, d_in)), torch.complex(c, draw(d_out, n)), seq_len)


def conjugated(poles: Tensor, b: Tensor, c: Tensor, seq_len: int) -> Tensor:
    """Return the lag operators of complex poles and maps, completed by their conjugates."""
    poles, b, c = torch.cat((poles, poles.conj())), torch.cat((b, b.conj())), torch.cat((c, c.conj()), dim=1)
    return lag_operators(poles, b, c, seq_len)


def toeplitz(sequence: Float[Tensor, "*shape seq"]) -> Float[Tensor, "*shape seq seq"]:
    """Return the causal matrix whose entry (i, j) is `sequence[i - j]`."""
    lag = torch.arange(sequence.shape[-1], device=sequence.device)
    return sequence[..., (lag[:, None] - lag).clamp(min=0)].tril()


def gated_linear_attention(draw: Draw, d_model: int, d_key: int) -> Core:
    """Gated linear attention: S_t = diag(a_t) S_{t-1} + k_t v_t^T, y_t = S_t^T q_t (Yang et al. 2312.06635)."""
    to_q, to_k, to_a = (draw.square(d_key, d_model) for _ in range(3))
    to_v = draw.square(d_model, d_model)

    def rule(x: Tensor) -> Tensor:
        q, k, a = coefficient(x @ to_q.T), coefficient(x @ to_k.T), coefficient(torch.sigmoid(x @ to_a.T))
        v, state, y = x @ to_v.T, x.new_zeros(len(x), d_key, d_model), []
        for t in range(x.shape[1]):
            state = a[:, t, :, None] * state + k[:, t, :, None] * v[:, t, None]
            y.append(torch.einsum("bk,bkv->bv", q[:, t], state))
        return torch.stack(y, dim=1)

    return Core(d_model, rule, like=to_v)


def delta_rule(to_q: Tensor, to_k: Tensor, to_v: Tensor, step: Rule) -> Core:
    """Delta rule with unit keys: S_t = (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T, y_t = S_t^T q_t (2406.06484).

    Args:
        to_q, to_k, to_v: projections of the input, (d_key, d_model) and (d_value, d_model).
        step: function from the input to b_t, (batch, seq, 1).
    """

    def rule(x: Tensor) -> Tensor:
        q, k, b = coefficient(x @ to_q.T), coefficient(nn.functional.normalize(x @ to_k.T, dim=-1)), step(x)
        b, v = coefficient(b), x @ to_v.T
        state, y = x.new_zeros(len(x), len(to_k), len(to_v)), []
        for t in range(x.shape[1]):
            missing = v[:, t] - torch.einsum("bk,bkv->bv", k[:, t], state)
            state = state + (b[:, t] * k[:, t])[:, :, None] * missing[:, None]
            y.append(torch.einsum("bk,bkv->bv", q[:, t], state))
        return torch.stack(y, dim=1)

    return Core(to_k.shape[1], rule, like=to_v)


def drawn_delta_rule(draw: Draw, d_model: int) -> Core:
    """Delta rule with random projections and b_t = 2 sigmoid(w x_t)."""
    to_q, to_k, to_v = (draw.square(d_model, d_model) for _ in range(3))
    to_b = draw.square(1, d_model)
    return delta_rule(to_q, to_k, to_v, lambda x: 2 * torch.sigmoid(x @ to_b.T))


def written_delta_rule(
    draw: Draw, d_model: int, n_heads: int, d_key: int, d_value: int, erase: int, write: int
) -> Core:
    """Delta rule with decay, erase and write gates, for several heads.

        S_t = (I - k_t (e_t * k_t)^T) diag(a_t) S_{t-1} + k_t (w_t * v_t)^T,   y_t = S_t^T q_t

    With one erase and one write gate per head this is the recurrence of Kimi Delta Attention (2510.26692), except that
    the two gates are independent; with d_key and d_value gates per head, the recurrence of Gated DeltaNet 2
    (2605.22791).

    Args:
        draw: source of the projections.
        d_model, n_heads, d_key, d_value: widths.
        erase: erase gates per head, 1 or d_key.
        write: write gates per head, 1 or d_value.
    """
    to_q, to_k, to_a = (draw.square(n_heads * d_key, d_model) for _ in range(3))
    to_e, to_w = draw.square(n_heads * erase, d_model), draw.square(n_heads * write, d_model)
    to_v = draw.square(n_heads * d_value, d_model)

    def rule(x: Tensor) -> Tensor:
        q, k, a, e, w, v = ((x @ t.T).unflatten(2, (n_heads, -1)) for t in (to_q, to_k, to_a, to_e, to_w, to_v))
        k = nn.functional.normalize(k, dim=-1)
        q, k, a, e, w = (coefficient(t) for t in (q, k, torch.sigmoid(a), torch.sigmoid(e), torch.sigmoid(w)))
        state, y = x.new_zeros(len(x), n_heads, d_key, d_value), []
        for t in range(x.shape[1]):
            state = a[:, t, :, :, None] * state
            written = w[:, t] * v[:, t] - torch.einsum("bhk,bhkv->bhv", e[:, t] * k[:, t], state)
            state = state + k[:, t, :, :, None] * written[:, :, None]
            y.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state).flatten(1))
        return torch.stack(y, dim=1)

    return Core(d_model, rule, like=to_v)


def state_space_duality(draw: Draw, d_model: int, n_heads: int, d_state: int) -> Core:
    """Mamba-2's SSM: a scalar decay per head, channels split among heads (Dao and Gu 2405.21060)."""
    to_b, to_c = draw.square(d_state, d_model), draw.square(d_state, d_model)
    to_a = draw.square(n_heads, d_model)

    def rule(x: Tensor) -> Tensor:
        b, c, a = coefficient(x @ to_b.T), coefficient(x @ to_c.T), coefficient(torch.sigmoid(x @ to_a.T))
        u = x.unflatten(2, (n_heads, -1))
        state, y = x.new_zeros(len(x), n_heads, d_state, d_model // n_heads), []
        for t in range(x.shape[1]):
            state = a[:, t, :, None, None] * state + torch.einsum("bs,bhc->bhsc", b[:, t], u[:, t])
            y.append(torch.einsum("bs,bhsc->bhc", c[:, t], state).flatten(1))
        return torch.stack(y, dim=1)

    return Core(d_model, rule, like=to_a)


def selective_core(draw: Draw, d_inner: int, d_state: int) -> Core:
    """Mamba-1's selective scan: a decay per channel and state (Gu and Dao 2312.00752)."""
    to_dt = draw.square(d_inner, d_inner)
    return _scan(draw, d_inner, d_state, lambda x: x @ to_dt.T - 2)


def switched_core(draw: Draw, d_inner: int, d_state: int, dt: tuple[float, float]) -> Core:
    """Mamba-1's scan with channel 0 as a switch: dt = softplus(x[0] + b), with dt in the range `dt` for x[0] = 0."""
    log_steps = torch.linspace(math.log(dt[0]), math.log(dt[1]), d_inner, dtype=torch.float64, device=draw.device)
    offset = log_steps.exp().expm1().log()
    return _scan(draw, d_inner, d_state, lambda x: x[..., :1] + offset)


def _scan(draw: Draw, d_inner: int, d_state: int, step: Rule) -> Core:
    """Mamba-1's scan with dt = softplus(step(x))."""
    to_b, to_c = draw.square(d_state, d_inner), draw.square(d_state, d_inner)
    rates = -torch.arange(1, d_state + 1, dtype=torch.float64, device=draw.device).repeat(d_inner, 1)

    def rule(x: Tensor) -> Tensor:
        dt = coefficient(nn.functional.softplus(step(x)))
        return selective_scan(x, dt, rates, coefficient(x @ to_b.T), coefficient(x @ to_c.T))[0]

    return Core(d_inner, rule, like=to_b)


def recurrent_network(draw: Draw, d_model: int, d_state: int) -> Core:
    """Vanilla RNN: h_t = tanh(U h_{t-1} + W x_t), y_t = C h_t."""
    recurrent, into, out = 0.6 * draw(d_state, d_state), draw(d_state, d_model), draw(d_model, d_state)

    def rule(x: Tensor) -> Tensor:
        h, y = x.new_zeros(len(x), d_state), []
        for t in range(x.shape[1]):
            h = tanh(h @ recurrent.T + x[:, t] @ into.T)
            y.append(h @ out.T)
        return torch.stack(y, dim=1)

    return Core(d_model, rule, like=into)


def gated(layer: SequenceMixer | Core, gate: Rule) -> Core:
    """Gated layer: gate(x) * layer(x), with the whole gate as a coefficient."""
    return Core(layer.d_model, lambda x: coefficient(gate(x)) * layer(x), [layer])


def needle_attention(to_value: Tensor, sharpness: float) -> Core:
    """Causal attention softmax_j(sharpness x_i[1] x_j[0]) V x_j: channel 0 is the key, channel 1 the query."""

    def rule(x: Tensor) -> Tensor:
        query, key = coefficient(x[..., 1:2]), coefficient(x[..., 0:1])
        logits = sharpness * query @ key.mT
        later = torch.ones_like(logits, dtype=torch.bool).triu(1)
        return torch.softmax(logits.masked_fill(later, -torch.inf), dim=-1) @ (x @ to_value.T)

    return Core(to_value.shape[1], rule, like=to_value)


def moving_average(to_value: Tensor, rho: float) -> Core:
    """Exponential moving average: y_i = (1 - rho) sum_tau rho^tau V x_{i - tau}."""

    def rule(x: Tensor) -> Tensor:
        weights = (1 - rho) * rho ** torch.arange(x.shape[1], dtype=x.dtype, device=x.device)
        return toeplitz(weights) @ (x @ to_value.T)

    return Core(to_value.shape[1], rule, like=to_value)


def averaging_stack(poles: Tensor, maps: Sequence[Tensor]) -> Core:
    """Stack of averages: x <- A(V x) for each map V; A averages each channel with its pole a.

    The weights are max(1 - a, 1/n) a^tau for n positions: a pole of one gives the running sum divided by n, a pole of
    zero the channel itself.
    """

    def rule(x: Tensor) -> Tensor:
        lag = torch.arange(x.shape[1], device=x.device)
        shares = (1 - poles).clamp(min=1 / len(lag))[:, None] * poles[:, None] ** lag
        weights = toeplitz(shares)
        for each in maps:
            x = torch.einsum("dij,bjd->bid", weights, x @ each.T)
        return x

    return Core(len(poles), rule, like=poles)


def normed_stack(layers: Sequence[SequenceMixer | Core], residual: bool) -> Core:
    """Stack of layers of one width, each after an RMS norm, with or without residuals."""

    def rule(x: Tensor) -> Tensor:
        for layer in layers:
            y = layer(rms_norm(x, x.new_ones(x.shape[-1])))
            x = x + y if residual else y
        return x

    return Core(layers[0].d_model, rule, layers)
