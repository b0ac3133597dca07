"""What the contract suite runs: every registered mixer with its defaults, and the variants below, one line each.

A new mixer is tested once it is registered and has a reference of its name in tests/reference.py; a line here adds a
variant of its options.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests import reference, slow
from tests.tolerances import assert_close
from zoo import create_mixer, list_mixers
from zoo.contract import SequenceMixer
from zoo.state import state_tensors

D_MODEL = 8
LONGEST = 1024  # what mixers with a longest sequence are given
STRETCHED, TRAINED = {"factor": 2.5}, {"original_max_position_embeddings": 12}
BANDS = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
# Beyond the trained length dynamic rope is not causal, and no mixer of the contract: see tests/ops/test_rope.py.
DYNAMIC = {"rope_type": "dynamic", "original_max_position_embeddings": LONGEST}


class Case(NamedTuple):
    """A registered mixer and its options."""

    name: str
    options: dict[str, Any]

    def create(self, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> SequenceMixer:
        """The mixer with every parameter drawn anew: nothing stays at zero or one, where an error would not show."""
        return randomise(create_mixer(self.name, D_MODEL, **self.options), generator).to(dtype)

    def reference(self, mixer: SequenceMixer, x: Tensor) -> np.ndarray:
        """What the mixer ought to return, (batch, seq, d_out) in float64."""
        function = by_name(reference.REFERENCES, self.name)
        return np.stack([function(parameters(mixer), row, **self.options) for row in x.detach().double().numpy()])


VARIANTS = [
    Case("attention", {"n_heads": 2, "d_head": 3}),
    Case("attention", {"n_heads": 4, "n_kv_heads": 2}),
    Case("attention", {"position": "rope", "d_head": 6}),
    Case("attention", {"position": "rope", "rope_base": 100.0}),
    Case("attention", {"position": "rope", "rope_base": 50.0, "rope_scaling": STRETCHED | {"rope_type": "linear"}}),
    Case("attention", {"position": "rope", "d_head": 8, "rope_scaling": STRETCHED | TRAINED | {"rope_type": "yarn"}}),
    Case("attention", {"position": "rope", "d_head": 6, "rope_scaling": STRETCHED | TRAINED | BANDS}),
    Case("attention", {"position": "rope", "d_head": 4, "rope_scaling": STRETCHED | DYNAMIC}),
    Case("attention", {"position": "alibi"}),
    Case("attention", {"position": "relative", "max_seq_len": LONGEST}),
    Case("attention", {"sink": "constant"}),
    Case("attention", {"sink": "position", "max_seq_len": LONGEST}),
    Case("attention", {"sink": "bos", "position": "alibi"}),
    Case("attention", {"sink": "bos", "position": "relative", "max_seq_len": LONGEST}),
    Case("attention", {"d_conv": 3}),
    Case("attention", {"position": "rope", "d_head": 6, "d_rope": 4, "qk_norm": "head", "norm_eps": 0.1}),
    Case("attention", {"qk_norm": "all", "n_kv_heads": 2}),
    Case("attention", {"n_kv_heads": 1, "position": "rope", "sink": "position", "d_conv": 4, "max_seq_len": LONGEST}),
    Case("sliding_attention", {"window": 3, "n_kv_heads": 2}),
    Case("sliding_attention", {"window": 1}),
    Case("sliding_attention", {"window": 5, "position": "rope", "d_head": 4}),
    Case("sliding_attention", {"window": 20, "position": "alibi"}),
    Case(
        "sliding_attention",
        {"window": 4, "position": "rope", "n_heads": 2, "d_rope": 2, "rope_base": 50.0, "out_bias": True},
    ),
    Case("gated_attention", {"gate": "head", "n_heads": 4, "n_kv_heads": 2, "d_rope": 0, "norm_eps": 0.1}),
    Case("gated_attention", {"n_heads": 4, "n_kv_heads": 1, "d_head": 5, "d_rope": 4, "rope_base": 50.0}),
    Case("differential_attention", {"n_heads": 3, "d_head": 5, "d_rope": 4, "rope_base": 50.0, "depth": 3}),
    Case("differential_attention", {"n_heads": 1, "d_rope": 0}),
    Case("forgetting_attention", {"n_heads": 4, "n_kv_heads": 2, "d_head": 3}),
    Case("path_attention", {"n_heads": 4, "n_kv_heads": 2, "d_head": 3, "w_rank": 2, "d_conv": 1}),
    Case("path_attention", {"n_heads": 2, "forget_gate": True}),
    Case("factorized", {"d_out": 5}),
    Case("factorized", {"kernel": "bilinear"}),
    Case("factorized", {"kernel": "bilinear", "d_out": 5, "n_heads": 2, "d_head": 3}),
    Case("linear_attention", {"normalize": False}),
    Case("linear_attention", {"feature_map": "identity", "normalize": False}),
    Case("linear_attention", {"n_heads": 2, "d_head": 3}),
    Case("diagonal_ssm", {"init": "real_log", "d_state": 5}),
    Case("diagonal_ssm", {"init": "ring", "d_state": 6}),
    Case("lru", {"d_state": 6, "r_min": 0.5, "r_max": 0.9}),
    Case("s5", {"d_state": 6}),
    Case("s4d", {"d_state": 6}),
    Case("s4d", {"output": "none", "d_state": 4}),
    Case("selective_ssm", {"d_state": 4, "d_conv": 1, "expand": 1, "dt_rank": 3}),
    Case("selective_ssm", {"norm_eps": 1e-6}),
    Case("selective_ssm", {"init": "recall", "norm_eps": 1e-3, "out_norm_eps": 1e-2}),
    Case("ssd", {"init": "recall", "d_state": 4}),
    Case("ssd", {"d_state": 3, "d_head": 4, "n_groups": 2, "norm_groups": 4, "d_conv": 2, "norm_eps": 0.1}),
    Case("ssd", {"d_state": 4, "d_head": 2, "expand": 1, "d_conv": 1}),
    Case("ssd", {"d_state": 4, "d_head": 3, "d_inner": 12, "norm_groups": 0, "dt_floor": 0.02}),
    Case("gated_linear_attention", {"n_heads": 3, "d_head": 4, "d_key": 3, "gate_rank": 2}),
    Case("gated_linear_attention", {"n_heads": 1, "output_gate": False}),
    Case("delta_net", {"n_heads": 2, "d_head": 6, "d_conv": 1}),
    Case("delta_net", {"n_heads": 1, "beta_max": 2.0}),
    Case("gated_delta_net", {"n_heads": 1, "d_head": 6, "expand": 1, "d_conv": 2, "beta_max": 2.0}),
    Case("gated_delta_net", {"n_heads": 4, "n_key_heads": 2, "d_head": 3, "norm_eps": 0.1}),
    Case("kda", {"n_heads": 1, "d_head": 6, "expand": 2, "d_conv": 2, "beta_max": 2.0}),
    Case("gdn2", {"n_heads": 1, "d_head": 6, "expand": 2, "d_conv": 1}),
    Case("delta_product", {"n_heads": 1, "n_householder": 3, "d_head": 3, "expand": 1, "d_conv": 2}),
    Case("retnet", {"n_heads": 1, "d_head": 6, "expand": 1}),
    Case("lightning_attention", {"n_heads": 4, "d_head": 3, "slope_scale": 0.25}),
    Case("hgrn2", {"n_heads": 3, "d_head": 3, "lower_bound": 0.5}),
    Case("rwkv7", {"n_heads": 1, "decay_rank": 3, "gate_rank": 2}),
    Case("mlstm", {"n_heads": 4, "expand": 1, "d_conv": 2, "d_block": 2}),
    Case("mlstm", {"n_heads": 1, "d_conv": 1, "d_block": 16}),
    Case("capped_mlstm", {"n_heads": 4, "d_head": 3, "d_key": 5, "gate_cap": 0.5, "norm_eps": 0.1}),
    Case("conv", {"d_conv": 1}),
    Case("conv", {"kernel": "implicit", "d_filter": 5, "n_frequencies": 3, "max_seq_len": LONGEST}),
    Case("mamba3", {"d_state": 8, "d_head": 4, "n_groups": 2, "rate_map": "softplus"}),
    Case("mamba3", {"d_state": 6, "d_head": 4, "rank": 3, "rotated": "all"}),
    Case("lstm", {"d_inner": 5}),
    Case("gru", {"d_inner": 5}),
    Case("rnn", {"d_inner": 5}),
    Case("rnn", {"nonlinearity": "linear"}),
    Case("slstm", {"n_heads": 1, "d_conv": 2}),
    Case("gated_conv", {"d_conv": 1}),
    Case("hyena", {"d_conv": 1, "d_filter": 5, "n_frequencies": 3, "max_seq_len": LONGEST}),
    Case("min_gru", {"d_inner": 5}),
    Case("min_lstm", {"d_inner": 5}),
    Case("rg_lru", {"d_inner": 6, "n_heads": 3, "d_conv": 2}),
    Case("rg_lru", {"n_heads": 1, "d_conv": 1}),
    Case("head_hybrid", {"n_heads": 3, "n_softmax_heads": 2, "d_head": 5, "beta_max": 2.0}),
    Case("hybrid", {"pattern": ("diagonal_ssm", {"name": "attention", "position": "alibi"}, "lstm")}),
    Case("hybrid", {"pattern": ("linear_attention", {"name": "factorized", "kernel": "bilinear"})}),
    Case("parallel_hybrid", {"merge": "sum"}),
    Case("parallel_hybrid", {"pattern": ("lstm", {"name": "attention", "position": "alibi"}, "diagonal_ssm")}),
]


DEFAULTS = [Case(name, {}) for name in list_mixers()]
ALL_CASES = DEFAULTS + VARIANTS


def label(case: Case) -> str:
    """`attention-sink=bos-position=alibi`: how a case is called in the test report."""
    shown = {key: value for key, value in case.options.items() if key not in ("max_seq_len", "pattern")}
    shown |= {key: value["rope_type"] for key, value in shown.items() if key == "rope_scaling"}
    options = (f"{key}={value}" for key, value in shown.items())
    pattern = (e if isinstance(e, str) else e["name"] for e in case.options.get("pattern", ()))
    return "-".join([case.name, *options, *pattern])


KINDS = ("attention", "sliding_attention", "linear_attention", "selective_ssm", "conv", "lstm", "hybrid")
"""A mixer for each kind of state: what is built of mixers is tested with these by default, with all when slow."""

ALIKE = {
    **dict.fromkeys(("gated_attention", "differential_attention", "forgetting_attention"), "attention"),
    **dict.fromkeys(("linear_attention", "hgrn2"), "gated_linear_attention"),
    **dict.fromkeys(("lru", "s5"), "diagonal_ssm"),
    "lightning_attention": "retnet",
    "capped_mlstm": "mlstm",
    "gated_delta_net": "delta_product",
    "gdn2": "kda",
    "min_lstm": "min_gru",
    "gated_conv": "conv",
    **dict.fromkeys(("hybrid", "parallel_hybrid", "head_hybrid"), "their members"),
}
"""Mixers that mix positions by the op of another one."""

OF_THEIR_OWN_OP = tuple(name for name in list_mixers() if name not in ALIKE)
"""For what takes long and depends on the op: Inductor needs half a minute for each."""


def cases(
    *,
    variants: bool | Literal["slow"] = True,
    names: Container[str] | None = None,
    by_default: Container[str] | None = None,
) -> pytest.MarkDecorator:
    """Parametrise a test over every registered mixer, or over `names` alone.

    Args:
        variants: whether over the variants too; "slow" where their options can hardly matter.
        names: of mixers; default all.
        by_default: mixers that the default run has, all others being slow; for what the base class does; default all.
    """
    table = ALL_CASES if variants else DEFAULTS

    def is_slow(case: Case) -> bool:
        return bool(case.options and variants == "slow") or (by_default is not None and case.name not in by_default)

    chosen = (case for case in table if names is None or case.name in names)
    return pytest.mark.parametrize("case", [slow(case, unless=not is_slow(case), id=label(case)) for case in chosen])


every_kind = pytest.mark.parametrize("name", [slow(name, unless=name in KINDS) for name in list_mixers()])


def by_name(table: dict[str, Any], name: str) -> Any:
    """The reference of a mixer, or a failure that says what to write."""
    if name not in table:
        pytest.fail(f"mixer {name!r} is registered and has no reference: write one in tests/reference.py")
    return table[name]


def parameters(module: nn.Module) -> reference.Parameters:
    """The module's parameters as float64 arrays, under their state_dict names."""
    return {name: tensor.double().numpy() for name, tensor in module.state_dict().items()}


def randomise(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Add noise to every parameter, those that start at zero or one included; stable dynamics stay stable."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return module


def assert_states_close(actual: Any, expected: Any) -> None:
    """Assert that two states are built alike and hold the same numbers, counts exactly."""
    assert type(actual) is type(expected)
    for a, b in zip(state_tensors(actual), state_tensors(expected), strict=True):
        assert a.dtype == b.dtype
        if a.is_complex():
            a, b = torch.view_as_real(a), torch.view_as_real(b)
        assert_close(a, b) if a.is_floating_point() else torch.testing.assert_close(a, b, rtol=0, atol=0)


def in_chunks(mixer: Any, x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Any]:
    """The outputs of `stream`, chunk after chunk, and the last state."""
    outputs, state = [], None
    for chunk in x.split(sizes, dim=1):
        y, state = mixer.stream(chunk, state)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


def draw(*shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
