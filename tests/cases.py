"""Cases of the contract suite: every registered mixer with its defaults, and with variants of its options.

To have a new mixer tested, register it and add its NumPy reference to tests/reference.py. Values for its options go
into `OPTIONS` below.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Container, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests import reference, slow
from tests.tolerances import assert_close
from zoo import create_mixer, list_mixers
from zoo.contract import SequenceMixer
from zoo.modules import listed
from zoo.state import state_tensors

D_MODEL = 8
LONGEST = 1024  # positions; no test uses a longer sequence


class Case(NamedTuple):
    """A registered mixer and its options."""

    name: str
    options: dict[str, Any]

    def create(self, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> SequenceMixer:
        """Create the mixer and add noise to every parameter: zeros and ones would hide errors."""
        return randomise(create_mixer(self.name, D_MODEL, **self.options), generator).to(dtype)

    def reference(self, mixer: SequenceMixer, x: Tensor) -> np.ndarray:
        """Expected output of the mixer, (batch, seq, d_out) in float64."""
        function = by_name(reference.REFERENCES, self.name)
        return np.stack([function(parameters(mixer), row, **self.options) for row in x.detach().double().numpy()])


STRETCHED, TRAINED = {"factor": 2.5}, {"original_max_position_embeddings": 12}
ROPES = [
    STRETCHED | {"rope_type": "linear"},
    STRETCHED | TRAINED | {"rope_type": "yarn"},
    STRETCHED | TRAINED | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    # Beyond the trained length dynamic rope is not causal, which breaks the contract; tests/ops/test_rope.py covers it.
    STRETCHED | {"rope_type": "dynamic", "original_max_position_embeddings": LONGEST},
]
OPTIONS: dict[str, dict[str, list[Any]]] = {
    "attention": {
        "n_heads": [2, 8],
        "n_kv_heads": [1, 2],
        "d_head": [3, 6],
        "position": ["rope", "alibi", "relative"],
        "sink": ["constant", "position", "bos"],
        "d_conv": [3, 4],
        "rope_base": [50.0],
        "rope_scaling": ROPES,
        "d_rope": [4],
        "qk_norm": ["head", "all"],
        "norm_eps": [0.1],
    },
    "sliding_attention": {
        "n_heads": [2],
        "n_kv_heads": [1, 2],
        "d_head": [4],
        "window": [2, 3, 20],
        "position": ["rope", "alibi"],
        "rope_base": [50.0],
        "d_rope": [2],
        "out_bias": [True],
    },
    "gated_attention": {
        "n_heads": [4],
        "n_kv_heads": [1, 2],
        "d_head": [5],
        "gate": ["head"],
        "d_rope": [0, 4],
        "rope_base": [50.0],
        "norm_eps": [0.1],
    },
    "differential_attention": {"n_heads": [1, 3], "d_head": [5], "depth": [3], "d_rope": [0, 4], "rope_base": [50.0]},
    "forgetting_attention": {"n_heads": [2], "n_kv_heads": [1, 2], "d_head": [3]},
    "path_attention": {
        "n_heads": [2],
        "n_kv_heads": [1, 2],
        "d_head": [3],
        "w_rank": [2],
        "d_conv": [1],
        "forget_gate": [True],
    },
    "deltaformer": {"n_heads": [2], "d_head": [3, 6], "d_rope": [0], "rope_base": [50.0]},
    "mla": {
        "n_heads": [2],
        "d_head": [3, 6],
        "d_latent": [3, 8],
        "d_rope": [0, 4],
        "d_query": [5],
        "rope_base": [50.0],
        "position": ["none"],
    },
    "dsa": {
        "n_heads": [2],
        "d_head": [3, 6],
        "d_latent": [3],
        "d_rope": [0, 4],
        "d_query": [5],
        "rope_base": [50.0],
        "n_index_heads": [1, 3],
        "d_index": [5],
        "top_k": [1, 2, 4],
    },
    "nsa": {
        "n_heads": [2],
        "n_kv_heads": [1, 2],
        "d_head": [3, 6],
        "block_size": [1, 2, 5],
        "top_k": [3],
        "window": [1, 7],
        "d_rope": [0],
        "rope_base": [50.0],
    },
    "moba": {
        "n_heads": [2],
        "n_kv_heads": [1, 2],
        "d_head": [3, 6],
        "block_size": [1, 2, 5],
        "top_k": [1, 2],
        "d_rope": [0],
        "rope_base": [50.0],
    },
    "factorized": {"n_heads": [2], "d_out": [5], "kernel": ["bilinear"], "d_head": [3]},
    "linear_attention": {"n_heads": [2], "d_head": [3], "feature_map": ["identity"], "normalize": [False]},
    "gated_linear_attention": {
        "n_heads": [1, 4],
        "d_head": [4],
        "d_key": [3],
        "gate_rank": [2],
        "output_gate": [False],
    },
    "retnet": {"n_heads": [1], "d_head": [6], "expand": [1]},
    "lightning_attention": {"n_heads": [4], "d_head": [3], "slope_scale": [0.25]},
    "hgrn2": {"n_heads": [4], "d_head": [3], "lower_bound": [0.5]},
    "gsa": {"n_heads": [1], "d_head": [6], "n_slots": [2, 5]},
    "mlstm": {"n_heads": [1, 4], "expand": [1], "d_conv": [1, 2], "d_block": [2, 8]},
    "capped_mlstm": {"n_heads": [4], "d_head": [3], "d_key": [5], "gate_cap": [0.5], "norm_eps": [0.1]},
    "delta_net": {"n_heads": [1], "d_head": [6], "d_conv": [1], "beta_max": [2.0]},
    "gated_delta_net": {
        "n_heads": [1, 4],
        "n_key_heads": [2],
        "d_head": [3, 6],
        "expand": [1],
        "d_conv": [2],
        "beta_max": [2.0],
        "norm_eps": [0.1],
    },
    "log_linear_gated_delta_net": {
        "n_heads": [1],
        "n_householder": [2],
        "d_head": [6],
        "expand": [1],
        "n_levels": [12],
    },
    "delta_product": {"n_heads": [1], "n_householder": [3], "d_head": [3], "expand": [1], "d_conv": [2]},
    "kda": {"n_heads": [1], "d_head": [6], "expand": [2], "d_conv": [2], "beta_max": [2.0]},
    "gdn2": {"n_heads": [1], "d_head": [6], "expand": [2], "d_conv": [1]},
    "comba": {"n_heads": [1], "d_head": [6], "expand": [1], "d_conv": [2]},
    "mesa_net": {"n_heads": [1], "d_head": [6], "d_conv": [2], "cg_steps": [1, 3]},
    "titans": {"n_heads": [1], "d_head": [6], "d_conv": [1]},
    "rwkv4": {"d_inner": [5]},
    "rwkv6": {"n_heads": [1], "d_head": [6], "d_key": [3], "mix_rank": [2], "decay_rank": [3]},
    "rwkv7": {"n_heads": [1], "decay_rank": [3], "gate_rank": [2]},
    "diagonal_ssm": {"init": ["real_log", "ring"], "d_state": [5, 6]},
    "lru": {"d_state": [6], "r_min": [0.5]},
    "s5": {"d_state": [6]},
    "linoss": {"d_state": [5], "scheme": ["symplectic"]},
    "s4d": {"d_state": [6], "output": ["none"]},
    "conv": {"kernel": ["implicit"], "d_conv": [1], "d_filter": [5], "n_frequencies": [3]},
    "selective_ssm": {
        "d_state": [4],
        "d_conv": [1],
        "expand": [1],
        "dt_rank": [3],
        "init": ["recall"],
        "norm_eps": [1e-3],
        "out_norm_eps": [1e-2],
    },
    "ssd": {
        "d_state": [3, 4],
        "d_head": [2, 4],
        "n_groups": [2],
        "d_conv": [1, 2],
        "expand": [1],
        "d_inner": [12],
        "norm_groups": [0, 4],
        "norm_eps": [0.1],
        "dt_floor": [0.02],
        "init": ["recall"],
    },
    "log_linear_ssd": {"d_state": [3], "d_head": [2, 4], "n_groups": [2], "d_conv": [1], "n_levels": [12]},
    "mamba3": {
        "d_state": [6, 8],
        "d_head": [4],
        "n_groups": [2],
        "rank": [3],
        "rotated": ["all"],
        "rate_map": ["softplus"],
    },
    "gated_conv": {"d_conv": [1]},
    "hyena": {"d_conv": [1], "d_filter": [5], "n_frequencies": [3]},
    "lstm": {"d_inner": [5]},
    "gru": {"d_inner": [5]},
    "rnn": {"d_inner": [5], "nonlinearity": ["linear"]},
    "slstm": {"n_heads": [1], "d_conv": [2]},
    "min_gru": {"d_inner": [5]},
    "min_lstm": {"d_inner": [5]},
    "rg_lru": {"d_inner": [6], "n_heads": [1, 3], "d_conv": [1, 2]},
    "head_hybrid": {"n_heads": [3], "n_softmax_heads": [2], "d_head": [5], "beta_max": [2.0]},
    "hybrid": {
        "pattern": [
            ("diagonal_ssm", {"name": "attention", "position": "alibi"}, "lstm"),
            ("linear_attention", {"name": "factorized", "kernel": "bilinear"}),
        ]
    },
    "parallel_hybrid": {
        "merge": ["sum"],
        "pattern": [("lstm", {"name": "attention", "position": "alibi"}, "diagonal_ssm")],
    },
}
"""Values of options other than the defaults; `variants` combines them."""


def variants(name: str, values: dict[str, list[Any]]) -> list[Case]:
    """Draw random combinations of options until every value of every option occurs in a valid case."""
    rng, found = random.Random(name), []
    missing = {(option, place) for option, choices in values.items() for place in range(len(choices))}
    for _ in range(2000):
        if not missing:
            break
        drawn = {option: rng.randrange(len(values[option])) for option in values if rng.random() < 0.5}
        if missing.isdisjoint(drawn.items()):
            continue
        case = Case(name, {option: values[option][place] for option, place in drawn.items()})
        with contextlib.suppress(ValueError):
            create_mixer(name, D_MODEL, **case.options)
            found.append(case)
            missing -= set(drawn.items())
    assert not missing, f"{name}: no valid options have {missing}"
    return found


DEFAULTS = [Case(name, {}) for name in list_mixers()]
ALONE = [Case("sliding_attention", {"window": 1})]  # not drawn: combined with alibi, the slopes would have no gradient
ALL_CASES = DEFAULTS + ALONE + [case for name, values in OPTIONS.items() for case in variants(name, values)]


def trained_by_outputs(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that the outputs train, without those that have their own loss."""
    apart = listed(module, "apart")
    return [p for name, p in module.named_parameters() if name not in apart]


def label(case: Case) -> str:
    """Test id of a case, such as `attention-sink=bos-position=alibi`."""
    shown = {key: value for key, value in case.options.items() if key != "pattern"}
    shown |= {key: value["rope_type"] for key, value in shown.items() if key == "rope_scaling"}
    options = (f"{key}={value}" for key, value in shown.items())
    pattern = (e if isinstance(e, str) else e["name"] for e in case.options.get("pattern", ()))
    return "-".join([case.name, *options, *pattern])


KINDS = ("attention", "sliding_attention", "linear_attention", "selective_ssm", "conv", "lstm", "hybrid")
"""One mixer per kind of state. Wrappers of mixers are tested with these by default, with all in the slow tests."""

ALIKE = {
    **dict.fromkeys(("gated_attention", "differential_attention", "forgetting_attention", "mla"), "attention"),
    **dict.fromkeys(("linear_attention", "hgrn2"), "gated_linear_attention"),
    **dict.fromkeys(("lru", "s5", "linoss"), "diagonal_ssm"),
    "lightning_attention": "retnet",
    "capped_mlstm": "mlstm",
    **dict.fromkeys(("gated_delta_net", "log_linear_gated_delta_net"), "delta_product"),
    "log_linear_ssd": "ssd",
    "gdn2": "kda",
    "comba": "rwkv7",
    "rwkv6": "gated_linear_attention",
    "gsa": "gated_linear_attention",
    "min_lstm": "min_gru",
    "gated_conv": "conv",
    **dict.fromkeys(("hybrid", "parallel_hybrid", "head_hybrid"), "their members"),
}
"""{mixer: the mixer whose op it shares}, for mixers without an op of their own."""

CHOOSING = ("moba", "nsa", "dsa")
"""Mixers that attend to a top-k selection. Rounding can change which of two near-equal scores wins, so reduced
precision is tested only with the defaults, which select all positions of a short sequence."""

OF_THEIR_OWN_OP = tuple(name for name in list_mixers() if name not in ALIKE)
"""One mixer per op, for slow tests that depend only on the op, such as Inductor's (half a minute each)."""


def drawn(test: str) -> list[Case]:
    """Every mixer with its defaults, and one variant of each mixer that has any, drawn with the test's name as seed."""
    rng, found = random.Random(test), list(DEFAULTS)
    for name in list_mixers():
        if several := [case for case in ALL_CASES if case.name == name and case.options]:
            found.append(rng.choice(several))
    return found


def some_variants(test: str) -> list[Case]:
    """One variant each of twelve mixers, drawn with the test's name as seed."""
    return random.Random(test).sample(drawn(test)[len(DEFAULTS) :], 12)


def cases(
    *,
    variants: bool | Literal["slow"] = True,
    names: Container[str] | None = None,
    by_default: Container[str] | None = None,
) -> Callable[[Callable[..., None]], Any]:
    """Parametrise a test over every registered mixer, or only over `names`.

    Args:
        variants: whether to include the variants; "slow" adds one variant of twelve mixers to the slow tests, for
            behaviour that options hardly affect.
        names: names of the mixers; default all.
        by_default: names of the mixers in the default run, the others being slow; for behaviour of the base class;
            default all.
    """

    def is_slow(case: Case) -> bool:
        return bool(case.options and variants == "slow") or (by_default is not None and case.name not in by_default)

    def decorate(test: Callable[..., None]) -> Any:
        few = [*DEFAULTS, *some_variants(test.__name__)]
        table = few if variants == "slow" else ALL_CASES if variants else DEFAULTS
        chosen = [
            slow(case, unless=not is_slow(case), id=label(case)) for case in table if not names or case.name in names
        ]
        return pytest.mark.parametrize("case", chosen)(test)

    return decorate


every_kind = pytest.mark.parametrize("name", [slow(name, unless=name in KINDS) for name in list_mixers()])


def by_name(table: dict[str, Any], name: str) -> Any:
    """The reference of a mixer; fail with an instruction if it has none."""
    if name not in table:
        pytest.fail(f"mixer {name!r} is registered but has no reference: add one to tests/reference.py")
    return table[name]


def parameters(module: nn.Module) -> reference.Parameters:
    """The module's state_dict as float64 arrays."""
    return {name: tensor.double().numpy() for name, tensor in module.state_dict().items()}


def randomise(module: nn.Module, generator: torch.Generator) -> nn.Module:
    """Add noise to every parameter, small enough that stable dynamics stay stable."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return module


def assert_states_close(actual: Any, expected: Any) -> None:
    """Assert that two states have the same types and close values; integers must be equal."""
    assert type(actual) is type(expected)
    for a, b in zip(state_tensors(actual), state_tensors(expected), strict=True):
        assert a.dtype == b.dtype
        if a.is_complex():
            a, b = torch.view_as_real(a), torch.view_as_real(b)
        assert_close(a, b) if a.is_floating_point() else torch.testing.assert_close(a, b, rtol=0, atol=0)


def in_chunks(mixer: Any, x: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Any]:
    """Outputs of `stream` over successive chunks of these sizes, and the last state."""
    outputs, state = [], None
    for chunk in x.split(sizes, dim=1):
        y, state = mixer.stream(chunk, state)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


def draw(*shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def assert_rows_alone(
    run: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor, spans: Sequence[Any], generator: torch.Generator
) -> None:
    """Assert that each row of `run(x)` equals the module's output on that row's span alone, and is zero elsewhere.

    Gradients are compared too. A span is a slice or a mask of positions.
    """
    x, parameters = x.requires_grad_(), trained_by_outputs(module)
    y = run(x)
    weights = draw(*y.shape, generator=generator)
    of_x, *of_parameters = torch.autograd.grad((y * weights).sum(), [x, *parameters])
    expected = [torch.zeros_like(p) for p in parameters]
    for row, span in enumerate(spans):
        outside = torch.ones(x.shape[1], dtype=torch.bool)
        outside[span] = False
        assert not y[row, outside].any()
        assert not of_x[row, outside].any()
        if outside.all():
            continue
        alone = x.detach()[row : row + 1, span].requires_grad_()
        y_alone = module(alone)
        assert_close(y[row, span], y_alone[0])
        of_alone, *of_row = torch.autograd.grad((y_alone[0] * weights[row, span]).sum(), [alone, *parameters])
        assert_close(of_x[row, span], of_alone[0])
        expected = [a + b for a, b in zip(expected, of_row, strict=True)]
    assert_close(of_parameters, expected)
