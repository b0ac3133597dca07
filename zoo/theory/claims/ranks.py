"""Claims about the interaction rank of cores, of configured mixers, of gated layers and of two layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zoo.blocks import ResidualBlock, Stack
from zoo.evidence import at_most, equals
from zoo.mixers.attention import Attention
from zoo.mixers.gated_attention import GatedAttention
from zoo.mixers.linear_attention import LinearAttention
from zoo.registry import MIXERS, create_mixer
from zoo.theory.claims.claim import Findings, Settings, claim, redrawn
from zoo.theory.claims.cores import (
    Core,
    Draw,
    delta_rule,
    drawn,
    drawn_delta_rule,
    drawn_system,
    gated,
    gated_linear_attention,
    recurrent_network,
    selective_core,
    state_space_duality,
    written_delta_rule,
)
from zoo.theory.lags import head_count
from zoo.theory.operator import interaction
from zoo.theory.rank import interaction_rank

_SEQ_LEN = 20
_SOURCE = "Ghodsi, arXiv 2512.15115; table of the definition k = dim span{W_ij}"


def rank_at_draw(layer: nn.Module, draw: Draw, d_model: int) -> int:
    """Return the interaction rank of a float64 layer at one random input."""
    return int(interaction_rank(interaction(layer, draw(1, _SEQ_LEN, d_model)).operator[0]))


@claim(
    "The interaction rank of a mechanism follows from its algebra: the number of independent residues of an SSM, the "
    "query heads of attention, one per head with decays on the key side, one per channel with decays on the value "
    "side. A linear-attention head of width d_head has rank one, not d_head: the width enters phi(q_i) . phi(k_j), not "
    "the span of W_ij.",
    _SOURCE,
    "A core with another numerical rank (float64, relative threshold 1e-10).",
)
@redrawn
def rank_of_cores(settings: Settings) -> Findings:
    """Measure the ranks of cores."""
    draw = Draw(settings, 1)
    d_out, d_in, n = 4, 3, 24

    def system(poles: Tensor, d_out: int = d_out, d_in: int = d_in) -> int:
        return head_count(drawn_system(draw, poles, d_out, d_in, n))

    def real(*poles: float) -> Tensor:
        return torch.tensor(poles, dtype=torch.float64, device=draw.device)

    def ring(pairs: int) -> Tensor:
        angles = math.pi * (torch.arange(pairs, dtype=torch.float64, device=draw.device) + 0.5) / pairs
        return torch.polar(torch.full_like(angles, 0.95), angles)

    dense = draw(5, 5)
    dense = dense * 0.95 / torch.linalg.eigvals(dense).abs().max()
    jordan = 0.8 * torch.eye(5, dtype=torch.float64, device=draw.device)
    jordan = jordan + torch.diag(jordan.new_ones(4), 1)
    delay = torch.diag(jordan.new_ones(5), -1)
    kernels, per_channel = draw(7, d_out, d_in), torch.diag_embed(draw(7, 5))
    yield equals("SSM with one channel, 16 poles", system(real(*torch.linspace(-0.9, 0.9, 16).tolist()), 1, 1), 1)
    yield equals("SSM 3 to 4 channels, 4 distinct poles", system(real(0.9, 0.5, -0.3, -0.8)), 4)
    yield equals("SSM 3 to 4 channels, poles 0.5 and 0", system(real(0.5, 0.0)), 2)
    for pairs in (1, 2, 3):
        yield equals(f"SSM, {pairs} complex pairs", system(ring(pairs)), 2 * pairs)
    yield equals("SSM, 8 complex pairs: min(N, n, d_out d_in)", system(ring(8)), d_out * d_in)
    yield equals("SSM, A = 0.9 I, 16 states", system(real(*[0.9] * 16)), 1)
    yield equals("SSM, 8 states at 0.9 and 8 at 0.5", system(real(*[0.9] * 8, *[0.5] * 8)), 2)
    yield equals("SSM, one Jordan block of 5", system(jordan), 5)
    yield equals("delay line of 6", system(delay), 6)
    yield equals("linear recurrent network, 5 states", system(dense), 5)
    yield equals("convolution of width 7, full", head_count(kernels), 7)
    yield equals("convolution of width 7, depthwise, 5 channels", head_count(per_channel), 5)
    for n_heads in (1, 2, 4):
        layer = drawn(settings, lambda h=n_heads: Attention(8, h), 2, n_heads)
        yield equals(f"softmax attention, {n_heads} heads", rank_at_draw(layer, draw, 8), n_heads)
    shared = drawn(settings, lambda: Attention(8, 4, n_kv_heads=1), 3)
    yield equals("4 query heads, one key-value head", rank_at_draw(shared, draw, 8), 4)
    for name, core, k in (
        ("gated linear attention, one head, 8 key channels", gated_linear_attention(draw, 8, 8), 1),
        ("delta rule, one head", drawn_delta_rule(draw, 8), 1),
        ("Mamba-2, 2 heads", state_space_duality(draw, 8, 2, 4), 2),
        ("Mamba-1, 8 channels", selective_core(draw, 8, 4), 8),
    ):
        yield equals(name, rank_at_draw(core, draw, 8), k)
    network = recurrent_network(draw, 4, 6)
    yield equals("tanh network, 4 channels, 6 units", rank_at_draw(network, draw, 4), 16)
    for d_head in (2, 4, 8, 16):
        layer = drawn(settings, lambda d=d_head: LinearAttention(8, 1, d_head=d), 10, d_head)
        yield equals(f"linear attention, one head of width {d_head}", rank_at_draw(layer, draw, 8), 1)


_CONFIGURED: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "attention": (8, {"n_heads": 4}),
    "factorized": (8, {"n_heads": 3}),
    "linear_attention": (8, {"n_heads": 4}),
    # Distant poles, because the lag operators of many slow poles are numerically dependent.
    "diagonal_ssm": (8, {"d_state": 8, "init": "ring"}),
    "hybrid": (16, {}),  # narrower ones reach d_model^2, the rank of any generic operator
    "linoss": (4, {"d_state": 6}),
    "rwkv7": (8, {"gate_rank": 3}),
    "s4d": (4, {"d_state": 4, "dt_min": 0.1, "dt_max": 1.0}),
    **dict.fromkeys(("ssd", "log_linear_ssd"), (4, {"d_state": 4, "d_head": 4})),
}
"""d_model and options of mixers that are not measured with their defaults at d_model 4."""

_DRAWN = {"capped_mlstm": "in_proj.weight"}
"""Weights that we draw, because the published initialisation makes some gates independent of the input."""


@claim(
    "Every registered mixer, as configured, has the interaction rank that its parts predict. For some, such as s4d and "
    "lstm, that is d_model^2, the maximum, which any generic operator has. Measured at one draw of weights and input.",
    _SOURCE,
    "A mixer whose measured operator has another rank.",
)
def rank_of_mixers(settings: Settings) -> Findings:
    """Measure the ranks of all registered mixers."""
    for stream, name in enumerate(MIXERS):
        d_model, options = _CONFIGURED.get(name, (4, {}))
        draw = Draw(settings, 4, stream)
        mixer = drawn(settings, lambda n=name, d=d_model, o=options: create_mixer(n, d, **o), 5, stream)
        if name in _DRAWN:
            weight = mixer.get_parameter(_DRAWN[name])
            weight.data = draw(*weight.shape)
        described = ", ".join([f"d_model={d_model}", *(f"{key}={value}" for key, value in options.items())])
        predicted = mixer.predicted_rank(_SEQ_LEN)
        if predicted is None:
            raise NotImplementedError(f"{type(mixer).__name__} has no rank_law")
        yield equals(f"{name} ({described})", rank_at_draw(mixer, draw, d_model), predicted)


@claim(
    "An elementwise gate multiplies the rank by the width it acts on, and a scalar gate does not change it; two layers "
    "of H heads have rank H^2, with residuals (H + 1)^2. Head counts therefore describe one ungated layer.",
    "Derived from W = g * W' and W = W2 W1",
    "Another rank, for H in {1, 2, 4} gated heads and {1, 2, 3} stacked heads.",
)
@redrawn
def gates_and_depth(settings: Settings) -> Findings:
    """Measure the ranks of gated layers and of two layers."""
    draw, d_model = Draw(settings, 6), 8
    for n_heads in (1, 2, 4):
        attention = drawn(settings, lambda h=n_heads: Attention(8, h), 7, n_heads)
        to_gate, to_scale = draw.square(d_model, d_model), draw.square(1, d_model)
        wide = gated(attention, lambda x, w=to_gate: torch.sigmoid(x @ w.T))
        narrow = gated(attention, lambda x, w=to_scale: torch.sigmoid(x @ w.T))
        yield equals(f"{n_heads} heads, gate on 8 channels", rank_at_draw(wide, draw, d_model), n_heads * d_model)
        yield equals(f"{n_heads} heads, one scalar gate", rank_at_draw(narrow, draw, d_model), n_heads)
    dual = state_space_duality(draw, d_model, 2, 4)
    to_gate = draw.square(d_model, d_model)
    closed = gated(dual, lambda x: torch.sigmoid(x @ to_gate.T))
    yield equals("Mamba-2, 2 heads of 4 channels, gate on 8", rank_at_draw(closed, draw, d_model), d_model)
    for n_heads in (1, 2, 3):

        def heads(h: int = n_heads) -> Attention:
            return Attention(d_model, h, d_head=4)

        plain = drawn(settings, lambda: Stack([heads(), heads()]), 8, n_heads)
        residual = drawn(settings, lambda: Stack([ResidualBlock(heads()), ResidualBlock(heads())]), 9, n_heads)
        yield equals(f"two layers of {n_heads} heads", rank_at_draw(plain, draw, d_model), n_heads**2)
        of_residual = rank_at_draw(residual, draw, d_model)
        yield equals(f"two residual layers of {n_heads} heads", of_residual, (n_heads + 1) ** 2)


@claim(
    "A write gate per channel, inside the recurrence, raises the rank of a delta rule's core from H to H d_value (from "
    "Kimi Delta Attention to Gated DeltaNet 2), as an output gate per channel does for attention. An erase gate per "
    "channel does not raise it, and write and output gate together raise it no further than one of them.",
    "Derived from W_ij = alpha_ij diag(w_j) V",
    "Another rank, for (H, d_value) in {(1, 4), (2, 4), (3, 2)}, or for gated attention with H in {1, 2, 4}.",
)
@redrawn
def write_gate(settings: Settings) -> Findings:
    """Measure the ranks of a delta rule's core and of gated attention, with gates per head and per channel."""
    draw, d_model, d_key = Draw(settings, 13), 8, 5
    for n_heads, d_value in ((1, 4), (2, 4), (3, 2)):
        wide, case = n_heads * d_value, f"{n_heads} heads of {d_value} value channels"

        def core(erase: int, write: int, n_heads: int = n_heads, d_value: int = d_value) -> Core:
            return written_delta_rule(draw, d_model, n_heads, d_key, d_value, erase, write)

        to_gate = draw.square(wide, d_model)
        both = gated(core(d_key, d_value), lambda x, w=to_gate: torch.sigmoid(x @ w.T))
        for name, layer, rank in (
            ("gates per head", core(1, 1), n_heads),
            ("erase gate per channel", core(d_key, 1), n_heads),
            ("write gate per channel", core(1, d_value), wide),
            ("both per channel", core(d_key, d_value), wide),
            ("both, and an output gate per channel", both, wide),
        ):
            yield equals(f"{case}, {name}", rank_at_draw(layer, draw, d_model), rank)
    for n_heads in (1, 2, 4):
        case = f"gated attention, {n_heads} heads"
        narrow = drawn(settings, lambda h=n_heads: GatedAttention(d_model, h, gate="head"), 14, n_heads)
        wide = drawn(settings, lambda h=n_heads: GatedAttention(d_model, h, gate="channel"), 14, n_heads)
        yield equals(f"{case}, gate per head", rank_at_draw(narrow, draw, d_model), n_heads)
        yield equals(f"{case}, gate per channel", rank_at_draw(wide, draw, d_model), d_model)


def parity_machine(settings: Settings) -> Core:
    """Build a delta rule that computes parity in a state of one number: b_t = 2 flips its sign, b_t = 0 keeps it.

    The input (batch, seq, 2) is the bit, and a one at the first position. There v = 1 and b = 1, or b = -1 if the first
    bit is set, so that the state starts at +1 or -1.
    """

    def step(x: Tensor) -> Tensor:
        bit, first = x[..., :1], x[..., 1:2]
        return torch.where(first > 0, 1 - 2 * bit, 2 * bit)

    # q and k are the constant appended to the input; v marks the first position.
    _, first, constant = torch.eye(3, dtype=torch.float64, device=settings.device)[:, None]
    core = delta_rule(constant, constant, first, step)
    return Core(2, lambda x: core(nn.functional.pad(x, (0, 1), value=1.0)), [core])


@claim(
    "'A layer of interaction rank one is too weak to track a state; it is at chance on parity.'",
    "Reading the rank as expressive power; steps of two: Grazzi et al., arXiv 2411.12537",
    "A delta rule with a state of one number and steps 0 or 2: it has rank one (at 20 positions) and computes the "
    "parity of all bits over the settings' length, by default 256.",
    slogan=True,
)
@redrawn
def slogan_rank_is_power(settings: Settings) -> Findings:
    """Measure rank and parity accuracy of a delta rule with one number of state."""
    n_rows = 64
    bits = torch.randint(0, 2, (n_rows, settings.seq_len), generator=settings.generator(12)).double()
    first = torch.zeros_like(bits)
    first[:, 0] = 1
    x = torch.stack((bits, first), dim=-1).to(settings.device)
    machine = parity_machine(settings)
    odd = machine(x)[..., 0] < 0
    accuracy = (odd.cpu() == (bits.cumsum(1) % 2 == 1)).double().mean().item()
    rank = int(interaction_rank(interaction(machine, x[:1, :_SEQ_LEN]).operator[0]))
    quantity = f"accuracy on parity over {settings.seq_len} positions, interaction rank {rank}"
    yield at_most(quantity, accuracy if rank == 1 else math.nan, 0.6)
