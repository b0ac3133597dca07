"""Table of the published initial distributions of parameters, each with the upstream file that draws it.

An entry has a mixer, a quantity computed from its parameters (in upstream's form: step sizes, not their logits) and
the law of that quantity. Linear maps that are not listed have torch's default initialisation, and norms start at one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from zoo.ops.diagonal import hippo_modes

Array = NDArray[np.float64]

MAMBA = "state-spaces/mamba e9594ce, mamba_ssm/modules/mamba_simple.py"
MAMBA2 = "state-spaces/mamba e9594ce, mamba_ssm/modules/mamba2.py"
MAMBA3 = "state-spaces/mamba e9594ce, mamba_ssm/modules/mamba3.py"
GATED_DELTA = "fla-org/flash-linear-attention bc3b101, fla/layers/gated_deltanet.py; NVlabs/GatedDeltaNet 5ddd1e4"
KDA = "fla-org/flash-linear-attention bc3b101, fla/layers/kda.py"
GDN2 = "fla-org/flash-linear-attention bc3b101, fla/layers/gdn2.py"
COMBA = "fla-org/flash-linear-attention bc3b101, fla/layers/comba.py"
MESA = "fla-org/flash-linear-attention bc3b101, fla/layers/mesa_net.py"
PRODUCT = "fla-org/flash-linear-attention bc3b101, fla/layers/gated_deltaproduct.py"
RWKV4 = "BlinkDL/RWKV-LM 083f950, RWKV-v4/src/model.py, RWKV_TimeMix in its first layer"
RWKV6 = "BlinkDL/RWKV-LM 524481d, RWKV-v5/src/model.py, RWKV_Tmix_x060 in its first layer"
RWKV = "fla-org/flash-linear-attention bc3b101, fla/layers/rwkv7.py, its first layer"
XLSTM = "NX-AI/xlstm 032a6fb, xlstm/blocks/mlstm/layer.py and cell.py"
XLSTM_7B = "transformers 5.23.0, models/xlstm/modeling_xlstm.py, in a model of one layer"
S4D = "state-spaces/s4 e757cef, models/s4/s4d.py"
LRU = "NicolasZucchet/minimal-LRU bbd71b1, lru/model.py"
LINOSS = "tk-rusch/linoss 83e6318, models/LinOSS.py"
S5 = "lindermanlab/S5 3c18fdb, s5/ssm.py, ssm_init.py"
ALIBI = "ofirpress/attention_with_linear_biases 4b92f28, fairseq/models/transformer.py"
GRIFFIN = "google-deepmind/recurrentgemma 2efa84d, recurrentgemma/torch/modules.py, layers.py"
DIFFERENTIAL = "microsoft/unilm 3aca927, Diff-Transformer/multihead_diffattn.py"
PATH = "fla-org/flash-linear-attention bc3b101, fla/layers/path_attn.py"
SLSTM = "NX-AI/xlstm 032a6fb, xlstm/blocks/slstm/layer.py, cell.py"
LFM2 = "transformers 5.23.0, models/lfm2/modeling_lfm2.py; linear maps and convolutions as torch starts them"
HYENA = "HazyResearch/zoology d88d6f5, zoology/mixers/hyena.py"
TORCH = "torch.nn.LSTM, GRU, RNN"
JOZEFOWICZ = "Jozefowicz, Zaremba, Sutskever 2015, section 2.2 (a forget bias of 1)"
IMPLICIT = "Poli et al. 2302.10866; HazyResearch/safari, src/models/sequence/hyena.py, ExponentialModulation"
OWN = "this project"


Law = Callable[[Array], Array]
"""A distribution, by its cumulative distribution function."""


@dataclass(frozen=True)
class Initial:
    mixer: str
    parameter: str
    read: Callable[[Any], Tensor]
    law: Law | float | list[float]  # numbers are the fixed values, along the last axis
    source: str
    options: dict[str, Any] = field(default_factory=dict)
    d_model: int = 64


def uniform(low: float, high: float) -> Law:
    return lambda t: (t - low) / (high - low)


def log_uniform(low: float, high: float) -> Law:
    return lambda t: np.log(t / low) / math.log(high / low)


def normal(std: float) -> Law:
    return lambda t: np.vectorize(math.erf)(t / std / math.sqrt(2)) / 2 + 0.5


def truncated_normal(std: float) -> Law:
    """Normal law truncated at two of its standard deviations, with standard deviation `std` after truncation."""
    whole, inside = normal(std / 0.87962566), math.erf(2**0.5)
    return lambda t: 0.5 + (whole(t) - 0.5) / inside


def within(fan_in: int) -> Law:
    """Uniform between ± fan_in^-1/2, as nn.Linear, nn.Conv1d and torch's recurrent layers draw."""
    return uniform(-(fan_in**-0.5), fan_in**-0.5)


def named(name: str) -> Callable[[Any], Tensor]:
    return lambda model: model.get_parameter(name)


def _squared(mixer: Any, part: str) -> Tensor:
    """First row of W W^T of a projection; an orthogonal map has its squared gain first, then zeros."""
    weight = mixer.get_parameter(f"{part}_proj.weight")
    return (weight @ weight.T)[0]


def redrawn(read: Callable[[Any], Tensor], times: int) -> Callable[[Any], Tensor]:
    """Read `times` initialisations of a mixer and concatenate them: a single large mixer is slow to initialise."""

    def read_all(mixer: Any) -> Tensor:
        found = []
        for _ in range(times):
            mixer.reset_parameters()
            found.append(read(mixer).detach().clone())
        return torch.cat(found)

    return read_all


def squared_modulus(model: Any) -> Tensor:
    return (-2 * model.log_rate.exp()).exp()


def real_input_map(model: Any) -> Tensor:
    """B of an S5 from V^H B; the factor 2 is for the conjugate half of the modes."""
    modes = hippo_modes(2 * len(model.B))[1]
    return 2 * (modes @ torch.view_as_complex(model.B.detach()).to(modes.dtype)).real


STEPS = log_uniform(1e-3, 1e-1)
BIASED = {"position": "alibi"}
MANY = {"d_head": 1, "d_state": 4}  # one head per channel, for many step sizes
HEADS = {"d_head": 1, "n_heads": 1024}

TABLE = [
    # selective_ssm: d_inner 128, dt_rank 4.
    Initial("selective_ssm", "dt", lambda m: F.softplus(m.dt_proj.bias), STEPS, MAMBA, d_model=512),
    Initial("selective_ssm", "dt_proj.weight", named("dt_proj.weight"), within(9), MAMBA, {"dt_rank": 9}, 128),
    Initial("selective_ssm", "A", lambda m: m.A_log.exp(), [1.0, 2.0, 3.0, 4.0, 5.0], MAMBA, {"d_state": 5}),
    Initial("selective_ssm", "D", named("D"), 1.0, MAMBA),
    Initial("selective_ssm", "conv.weight", named("conv.weight"), within(4), MAMBA, d_model=256),
    Initial("selective_ssm", "conv.bias", named("conv.bias"), within(9), MAMBA, {"d_conv": 9}, 512),
    # ssd.
    Initial("ssd", "dt", lambda m: F.softplus(m.dt_bias), STEPS, MAMBA2, MANY, 512),
    Initial("ssd", "A", lambda m: m.A_log.exp(), uniform(1, 16), MAMBA2, MANY, 512),
    Initial("ssd", "D", named("D"), 1.0, MAMBA2),
    # mamba3.
    Initial("mamba3", "dt", lambda m: F.softplus(m.dt_bias), STEPS, MAMBA3, MANY, 512),
    Initial("mamba3", "B_bias", named("B_bias"), 1.0, MAMBA3, {"rank": 2}),
    Initial("mamba3", "C_bias", named("C_bias"), 1.0, MAMBA3, {"rank": 2}),
    Initial("mamba3", "D", named("D"), 1.0, MAMBA3),
    Initial("mamba3", "m^u, m^z, m^o", lambda m: m.rank_mix.movedim(0, -1), [0.25, 1.0, 0.25], MAMBA3, {"rank": 4}),
    # gated_delta_net.
    Initial("gated_delta_net", "dt", lambda m: F.softplus(m.dt_bias), STEPS, GATED_DELTA, HEADS, 4),
    Initial("gated_delta_net", "A", lambda m: m.A_log.exp(), uniform(0, 16), GATED_DELTA, HEADS, 4),
    # head_hybrid, as gated_delta_net.
    Initial("head_hybrid", "dt", lambda m: F.softplus(m.dt_bias), STEPS, GATED_DELTA, {**HEADS, "n_heads": 1025}, 4),
    Initial("head_hybrid", "A", lambda m: m.A_log.exp(), uniform(0, 16), GATED_DELTA, {**HEADS, "n_heads": 1025}, 4),
    # kda, gdn2 and delta_product.
    Initial("kda", "dt", lambda m: F.softplus(m.dt_bias), STEPS, KDA, {}, 1024),
    Initial("kda", "A", lambda m: m.A_log.exp(), uniform(1, 16), KDA, {"n_heads": 1024}, 1024),
    Initial("gdn2", "dt", lambda m: F.softplus(m.dt_bias), STEPS, GDN2, {}, 1024),
    Initial("delta_product", "dt", lambda m: F.softplus(m.dt_bias), STEPS, PRODUCT, HEADS, 4),
    Initial("delta_product", "A", lambda m: m.A_log.exp(), uniform(0, 16), PRODUCT, HEADS, 4),
    # comba and mesa_net.
    Initial("comba", "dt", lambda m: F.softplus(m.dt_bias), STEPS, COMBA, HEADS, 4),
    Initial("comba", "A", lambda m: m.A_log.exp(), uniform(0, 16), COMBA, HEADS, 4),
    *[Initial("comba", name, named(name), 1.0, COMBA) for name in ("D", "feedback")],
    Initial("mesa_net", "ridge", lambda m: 0.25 + F.softplus(m.ridge), 1.0, MESA),
    # rwkv4
    Initial("rwkv4", "time_mix_r", lambda m: m.shift[0], [(n / 6) ** 0.5 for n in range(6)], RWKV4, {}, 6),
    Initial("rwkv4", "time_mix_k, _v", lambda m: m.shift[1:], [n / 6 for n in range(6)], RWKV4, {}, 6),
    Initial("rwkv4", "time_decay", named("decay"), [-5 + 8 * (n / 5) ** 0.7 for n in range(6)], RWKV4, {}, 6),
    Initial("rwkv4", "time_first", named("bonus"), [math.log(0.3) + n / 2 for n in (0, 1, -1, 0)], RWKV4, {}, 4),
    Initial("rwkv4", "W_v W_v^T", lambda m: _squared(m, "v"), [1.0, *[0.0] * 7], RWKV4, {}, 8),
    # rwkv6: two heads of 3 channels.
    Initial("rwkv6", "time_maa_x", named("mu"), [1 - n / 6 for n in range(6)], RWKV6, {}, 6),
    Initial("rwkv6", "time_maa_w to _v", lambda m: m.mix_bias[1:4], [1 - n / 6 for n in range(6)], RWKV6, {}, 6),
    Initial("rwkv6", "time_maa_r", lambda m: m.mix_bias[0], [1 - (n / 6) ** 0.5 for n in range(6)], RWKV6, {}, 6),
    Initial("rwkv6", "time_maa_g", lambda m: m.mix_bias[4], [1 - (n / 6) ** 0.5 for n in range(6)], RWKV6, {}, 6),
    Initial("rwkv6", "decay", named("decay_up.bias"), [-6 + 5 * (n / 5) ** 0.7 for n in range(6)], RWKV6, {}, 6),
    Initial("rwkv6", "time_faaaa", named("bonus"), [0.0, 0.1, -0.1], RWKV6, {}, 6),
    *[Initial("rwkv6", f"{n}.weight", named(f"{n}.weight"), within(10_000), RWKV6) for n in ("mix_up", "decay_up")],
    *[
        Initial("rwkv6", f"W_{n} W_{n}^T", lambda m, n=n: _squared(m, n), [g**2, *[0.0] * 7], RWKV6, {}, 8)
        for n, g in (("r", 1.0), ("k", 0.1), ("v", 1.0), ("gate", 0.1))
    ],
    # rwkv7: two heads of 3 channels.
    Initial("rwkv7", "x_r", lambda m: m.shift[0], [1 - (n / 6) ** 0.2 for n in range(6)], RWKV, {}, 6),
    Initial("rwkv7", "x_w", lambda m: m.shift[1], [1 - (n / 6) ** 0.9 for n in range(6)], RWKV, {}, 6),
    Initial("rwkv7", "x_k and x_v", lambda m: m.shift[2:4], [1 - (n / 6) ** 0.7 for n in range(6)], RWKV, {}, 6),
    Initial("rwkv7", "w0", named("decay_up.bias"), [-8.0, -4.3, -0.6, -4.4, -0.7, 3.0], RWKV, {}, 6),
    Initial("rwkv7", "a0", named("rate_up.bias"), [-0.69, -0.31, 0.07, -0.45, -0.07, 0.31], RWKV, {}, 6),
    Initial("rwkv7", "k_k", named("kappa_scale"), [0.76 - 0.02 * n for n in range(6)], RWKV, {}, 6),
    Initial("rwkv7", "k_a", named("key_rate"), 1.02, RWKV),
    Initial("rwkv7", "r_k", named("bonus"), -0.04, RWKV),
    Initial("rwkv7", "W_k W_k^T", lambda m: _squared(m, "k"), [0.01, *[0.0] * 7], RWKV, {}, 8),
    Initial(
        "rwkv7",
        "U_g U_g^T",
        lambda m: (m.gate_up.weight @ m.gate_up.weight.T)[0],
        [0.02, *[0.0] * 7],
        RWKV,
        {"gate_rank": 16},
        8,
    ),
    # mlstm.
    Initial("mlstm", "in_proj.weight", named("in_proj.weight"), normal((2 / 5 / 64) ** 0.5), XLSTM),
    *[
        Initial("mlstm", f"B_{name}", named(f"{name}_blocks"), normal((2 / 5 / 256) ** 0.5), XLSTM, {}, 256)
        for name in "qkv"
    ],
    Initial("mlstm", "out_proj.weight", named("out_proj.weight"), normal(2 / 8), XLSTM),
    Initial("mlstm", "gate_proj.weight", named("gate_proj.weight"), 0.0, XLSTM),
    Initial("mlstm", "b_i", lambda m: m.gate_proj.bias[:1024], normal(0.1), XLSTM, {"n_heads": 1024}, 1024),
    Initial("mlstm", "b_f", lambda m: m.gate_proj.bias[4:], [3.0, 4.0, 5.0, 6.0], XLSTM, {"n_heads": 4}),
    Initial("mlstm", "skip", named("skip"), 1.0, XLSTM),
    Initial("mlstm", "norm_weight", named("norm_weight"), 1.0, XLSTM),
    # capped_mlstm.
    Initial("capped_mlstm", "W_qkv", lambda m: m.in_proj.weight[:128], normal((2 / 5 / 64) ** 0.5), XLSTM_7B),
    Initial("capped_mlstm", "W_o", lambda m: m.in_proj.weight[128:], 0.0, XLSTM_7B),
    Initial("capped_mlstm", "out_proj.weight", named("out_proj.weight"), normal(2 / 8), XLSTM_7B),
    Initial("capped_mlstm", "gate_proj.weight", named("gate_proj.weight"), 0.0, XLSTM_7B),
    Initial("capped_mlstm", "b_i", lambda m: m.gate_proj.bias[:2], -10.0, XLSTM_7B, {"input_bias": -10.0}),
    Initial("capped_mlstm", "b_f", lambda m: m.gate_proj.bias[4:], [3.0, 4.0, 5.0, 6.0], XLSTM_7B, {"n_heads": 4}),
    Initial("capped_mlstm", "norm_weight", named("norm_weight"), 1.0, XLSTM_7B),
    # s4d.
    Initial("s4d", "dt", lambda m: m.log_dt.exp(), STEPS, S4D, {"d_state": 2}, 2048),
    Initial("s4d", "-Re A", lambda m: m.log_rate.exp(), 0.5, S4D),
    Initial("s4d", "Im A", named("frequency"), [0.0, math.pi, 2 * math.pi], S4D, {"d_state": 6}),
    Initial("s4d", "C, each part", named("C"), normal(0.5**0.5), S4D),
    Initial("s4d", "D", named("D"), normal(1.0), S4D, {"d_state": 2}, 2048),
    # diagonal_ssm.
    Initial("diagonal_ssm", "dt", lambda m: m.log_dt.exp(), STEPS, S4D, {"d_state": 4096}, 2),
    Initial("diagonal_ssm", "-Re A", lambda m: m.log_rate.exp(), 0.5, S4D),
    Initial("diagonal_ssm", "Im A", named("frequency"), [0.0, math.pi, 2 * math.pi], S4D, {"d_state": 6}),
    Initial("diagonal_ssm", "B, each part", named("B"), normal(64**-0.5), OWN),
    Initial("diagonal_ssm", "C, each part", named("C"), normal(32**-0.5), OWN),
    Initial("diagonal_ssm", "D", named("D"), 1.0, OWN),
    # factorized.
    Initial("factorized", "value_maps", named("value_maps"), normal(64**-0.5), OWN),
    Initial("factorized", "coefficients", named("coefficients"), normal(4**-0.5 / 4), OWN),
    # conv: the implicit filter decays to 1 % within 0.3 to 1.5 times the longest sequence.
    Initial(
        "conv",
        "decays",
        lambda m: m.filter.log_rate.exp() / math.log(100),
        [1 / 0.3, (1 / 0.3 + 1 / 1.5) / 2, 1 / 1.5],
        IMPLICIT,
        {"kernel": "implicit"},
        3,
    ),
    # lru, and diagonal_ssm initialised as one.
    *[
        Initial(name, parameter, read, law, LRU, {"d_state": 4096, "r_min": 0.5, "r_max": 0.9, **start}, 2)
        for name, start in (("lru", {}), ("diagonal_ssm", {"init": "ring"}))
        for parameter, read, law in (
            ("|lambda|^2", squared_modulus, uniform(0.25, 0.81)),
            ("arg lambda", named("frequency"), uniform(0, 2 * math.pi)),
        )
    ],
    Initial(
        "lru",
        "gamma / sqrt(1 - |lambda|^2)",
        lambda m: m.log_gain.exp() / (1 - squared_modulus(m)).sqrt(),
        1.0,
        LRU,
        {"d_state": 6, "r_max": 0.95},
    ),
    Initial("lru", "B, each part", named("B"), normal(128**-0.5), LRU),
    Initial("lru", "C of Re(C h), each part", lambda m: 2 * m.C, normal(32**-0.5), LRU),
    Initial("lru", "D", named("D"), normal(1.0), LRU, {"d_state": 2}, 2048),
    Initial("linoss", "stiffness", named("stiffness"), uniform(0, 1), LINOSS, {"d_state": 2048}, 2),
    Initial("linoss", "dt_logit", named("dt_logit"), uniform(0, 1), LINOSS, {"d_state": 2048}, 2),
    Initial("linoss", "B", named("B"), within(64), LINOSS),
    Initial("linoss", "C", named("C"), within(64), LINOSS),
    Initial("linoss", "D", named("D"), normal(1.0), LINOSS, {"d_state": 2}, 2048),
    # s5: B before V^H is applied, and C V, whose real and imaginary parts are sums of many truncated normal draws.
    Initial("s5", "dt", redrawn(lambda m: m.log_dt.exp(), 16), STEPS, S5, {"d_state": 128}, 2),
    Initial("s5", "-Re A", lambda m: m.log_rate.exp(), 0.5, S5),
    Initial("s5", "B before V^H", real_input_map, truncated_normal(64**-0.5), S5),
    Initial("s5", "C, each part", named("C"), normal(64**-0.5), S5),
    Initial("s5", "D", named("D"), normal(1.0), S5, {"d_state": 2}, 2048),
    # Attention.
    Initial("attention", "slopes", named("slopes"), [2.0**-4, 2.0**-8, 2.0**-2], ALIBI, {"n_heads": 3, **BIASED}, 6),
    *[
        Initial("differential_attention", name, named(name), normal(0.1), DIFFERENTIAL, {"d_head": 512}, 4)
        for name in ("lambda_q", "lambda_k")
    ],
    Initial("path_attention", "conv.weight", named("conv.weight"), within(3), PATH, {"n_heads": 32, "d_head": 16}),
    Initial("gated_conv", "conv.weight", named("conv.weight"), within(3), LFM2, d_model=512),
    Initial("hyena", "filter.layers.0.weight", named("filter.layers.0.weight"), within(3), HYENA, {"d_filter": 512}),
    *[Initial("hyena", name, named(name), within(3), HYENA, {}, 512) for name in ("conv.weight", "conv.bias")],
    Initial("hyena", "filter.frequency", named("filter.frequency"), 1.0, HYENA),
    Initial("hyena", "D", named("D"), normal(1.0), HYENA, {}, 1024),
    # Linear recurrence.
    Initial("rg_lru", "in_proj.weight", named("in_proj.weight"), normal(64**-0.5), GRIFFIN),
    Initial("rg_lru", "out_proj.weight", named("out_proj.weight"), normal(96**-0.5), GRIFFIN, {"d_inner": 96}),
    Initial("rg_lru", "gate_weight", named("gate_weight"), normal(16**-0.5), GRIFFIN, {"n_heads": 4}),
    Initial("rg_lru", "conv.weight", named("conv.weight"), normal(0.05), GRIFFIN, {"d_conv": 4}, 512),
    *[
        Initial("rg_lru", name, named(name), 0.0, GRIFFIN)
        for name in ("in_proj.bias", "out_proj.bias", "gate_bias", "conv.bias")
    ],
    Initial(
        "rg_lru",
        "a^2 at r = 1/8",
        lambda m: (-2 * F.softplus(m.rate)).exp(),
        uniform(0.81, 0.998001),
        GRIFFIN,
        {"d_inner": 2048},
    ),
    # Nonlinear recurrence.
    Initial("slstm", "weight", named("weight"), normal((2 / 5 / 64) ** 0.5), SLSTM),
    Initial("slstm", "recurrent", named("recurrent"), 0.0, SLSTM),
    Initial("slstm", "norm_weight", named("norm_weight"), 1.0, SLSTM),
    Initial("slstm", "bias of i, z, o", lambda m: m.bias[[0, 2, 3]], 0.0, SLSTM),
    Initial("slstm", "bias of f", lambda m: m.bias[1], [5.0, 5 - 12 * 0.5**0.3, -7.0], SLSTM, {"n_heads": 2}, 6),
    *[Initial("slstm", name, named(name), within(4), SLSTM, {}, 1024) for name in ("conv.weight", "conv.bias")],
    Initial("lstm", "bias, i f g o", lambda m: m.bias.view(4, -1).T, [0.0, 1.0, 0.0, 0.0], JOZEFOWICZ),
    Initial(
        "lstm", "bias, i f g o", lambda m: m.bias.view(4, -1).T, [0.0, 3.0, 0.0, 0.0], JOZEFOWICZ, {"forget_bias": 3.0}
    ),
    *[
        Initial(name, "recurrent", named("recurrent"), within(32), TORCH, {"d_inner": 32})
        for name in ("lstm", "gru", "rnn")
    ],
]
