"""The zoo: each mixer's name, class, summary, family and source. Adding a mixer adds one entry."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.lookup import OpenRegistry
from zoo.targets import absolute, short

if TYPE_CHECKING:
    from zoo.contract import SequenceMixer


class Mixer(NamedTuple):
    """An entry of the zoo.

    Attributes:
        home: `module:Class`, of a mixer of your own also `path/file.py:Class`.
        summary: a line about it.
        family: mixers that share their mathematics. "time-invariant": a fixed convolution over positions, whatever the
            input; "softmax", "delta rule" and "hybrid" can look up the token that followed a symbol before.
        year: year of the publication; None if not given.
        source: publication of the mathematics, by its arXiv number if it has one; empty if not given.
        options: options of the class that the name sets.
    """

    home: str
    summary: str
    family: str
    year: int | None
    source: str
    options: Mapping[str, Any] = MappingProxyType({})


OWN = "your own"
"""The family of a mixer that names none."""


def _describe(target: str) -> Mixer:
    return Mixer(target, f"{short(target)}, a mixer of your own", OWN, None, "")


def _adopt(target: str, found: Any) -> type[SequenceMixer]:
    from zoo.adapters.adopted import adopt

    return adopt(target, found)


MIXERS: OpenRegistry[Mixer] = OpenRegistry(
    "mixer",
    {
        "attention": Mixer(
            "zoo.mixers.attention:Attention",
            "softmax attention: grouped heads, RoPE, ALiBi, sinks",
            "softmax",
            2017,
            "1706.03762",
        ),
        "sliding_attention": Mixer(
            "zoo.mixers.sliding_attention:SlidingAttention",
            "softmax attention within a window",
            "softmax",
            2020,
            "2004.05150",
        ),
        "gated_attention": Mixer(
            "zoo.mixers.gated_attention:GatedAttention",
            "softmax attention with normed queries and keys, output gated",
            "softmax",
            2025,
            "2505.06708",
        ),
        "differential_attention": Mixer(
            "zoo.mixers.differential_attention:DifferentialAttention",
            "attention whose heads subtract one softmax from another",
            "softmax",
            2024,
            "2410.05258",
        ),
        "forgetting_attention": Mixer(
            "zoo.mixers.forgetting_attention:ForgettingAttention",
            "attention whose logits fall by a gate of each later position (FoX)",
            "softmax",
            2025,
            "2503.02130",
        ),
        "path_attention": Mixer(
            "zoo.mixers.path_attention:PathAttention",
            "attention whose keys are moved by each later position (PaTH)",
            "softmax",
            2025,
            "2505.16381",
        ),
        "factorized": Mixer(
            "zoo.mixers.factorized:Factorized",
            "scalar coefficients per head times shared value maps",
            "control",
            2025,
            "2512.15115",
        ),
        "linear_attention": Mixer(
            "zoo.mixers.linear_attention:LinearAttention",
            "attention with a feature map, no softmax",
            "linear attention",
            2020,
            "2006.16236",
        ),
        "gated_linear_attention": Mixer(
            "zoo.mixers.gated_linear_attention:GatedLinearAttention",
            "linear attention with a decay for each key channel",
            "linear attention",
            2023,
            "2312.06635",
        ),
        "retnet": Mixer(
            "zoo.mixers.retnet:RetNet",
            "retention: rotary linear attention with a fixed decay for each head",
            "linear attention",
            2023,
            "2307.08621",
        ),
        "lightning_attention": Mixer(
            "zoo.mixers.lightning_attention:LightningAttention",
            "linear attention of MiniMax-01: SiLU, a fixed decay for each head",
            "linear attention",
            2025,
            "2501.08313",
        ),
        "hgrn2": Mixer(
            "zoo.mixers.hgrn2:HGRN2",
            "gated linear attention with keys tied to the decays",
            "linear attention",
            2024,
            "2404.07904",
        ),
        "mlstm": Mixer(
            "zoo.mixers.mlstm:MLSTM",
            "the matrix memory of xLSTM: exponential gates, a normaliser",
            "linear attention",
            2024,
            "2405.04517",
        ),
        "capped_mlstm": Mixer(
            "zoo.mixers.capped_mlstm:CappedMLSTM",
            "the mLSTM of xLSTM 7B: bounded gates, no convolution",
            "linear attention",
            2025,
            "2503.13427",
        ),
        "delta_net": Mixer(
            "zoo.mixers.delta_net:DeltaNet",
            "linear attention that overwrites: the delta rule",
            "delta rule",
            2024,
            "2406.06484",
        ),
        "gated_delta_net": Mixer(
            "zoo.mixers.delta_product:DeltaProduct",
            "the delta rule with a decay for each head",
            "delta rule",
            2024,
            "2412.06464",
            {"n_householder": 1, "beta_max": 1.0},
        ),
        "delta_product": Mixer(
            "zoo.mixers.delta_product:DeltaProduct",
            "several steps of the gated delta rule for each position",
            "delta rule",
            2025,
            "2502.10297",
        ),
        "kda": Mixer(
            "zoo.mixers.kda:KimiDelta",
            "Kimi Delta Attention: the delta rule with a decay for each key channel",
            "delta rule",
            2025,
            "2510.26692",
        ),
        "gdn2": Mixer(
            "zoo.mixers.kda:KimiDelta",
            "Gated DeltaNet 2: kda with erase and write gates for each channel",
            "delta rule",
            2026,
            "2605.22791",
            {"gates": "channel"},
        ),
        "rwkv7": Mixer(
            "zoo.mixers.rwkv7:RWKV7",
            "the delta rule with gates per channel, on inputs that are shifted",
            "delta rule",
            2025,
            "2503.14456",
        ),
        "diagonal_ssm": Mixer(
            "zoo.mixers.diagonal_ssm:DiagonalSSM",
            "linear time-invariant SSM with diagonal dynamics",
            "time-invariant",
            2022,
            "2206.11893",
        ),
        "lru": Mixer(
            "zoo.mixers.diagonal_ssm:DiagonalSSM",
            "linear recurrent unit: diagonal_ssm on a ring with learned gains",
            "time-invariant",
            2023,
            "2303.06349",
            {"init": "lru"},
        ),
        "s5": Mixer(
            "zoo.mixers.diagonal_ssm:DiagonalSSM",
            "S5: diagonal_ssm started in the eigenvectors of HiPPO",
            "time-invariant",
            2022,
            "2208.04933",
            {"init": "s5"},
        ),
        "s4d": Mixer(
            "zoo.mixers.s4d:S4D",
            "a linear time-invariant diagonal SSM for each channel",
            "time-invariant",
            2022,
            "2206.11893",
        ),
        "conv": Mixer(
            "zoo.mixers.conv:Conv",
            "causal convolution, short or as long as the sequence",
            "time-invariant",
            2023,
            "2302.10866",
        ),
        "selective_ssm": Mixer(
            "zoo.mixers.selective_ssm:SelectiveSSM",
            "the Mamba block: input-dependent dynamics",
            "selective state space",
            2023,
            "2312.00752",
        ),
        "ssd": Mixer(
            "zoo.mixers.ssd:SSD",
            "the Mamba-2 block: one decay per head, in matrix products",
            "selective state space",
            2024,
            "2405.21060",
        ),
        "mamba3": Mixer(
            "zoo.mixers.mamba3:Mamba3",
            "the Mamba-3 block: trapezoid, rotating state, several ranks",
            "selective state space",
            2026,
            "2603.15569",
        ),
        "gated_conv": Mixer(
            "zoo.mixers.gated_conv:GatedConv",
            "LFM2's short convolution between two gates",
            "gated convolution",
            2025,
            "2511.23404",
        ),
        "hyena": Mixer(
            "zoo.mixers.hyena:Hyena",
            "Hyena of order two: a long implicit convolution between two gates",
            "gated convolution",
            2023,
            "2302.10866",
        ),
        "lstm": Mixer(
            "zoo.mixers.lstm:LSTM", "long short-term memory", "recurrent net", 1997, "Hochreiter and Schmidhuber"
        ),
        "slstm": Mixer(
            "zoo.mixers.slstm:SLSTM",
            "sLSTM of xLSTM: exponential gates, memory that mixes within a head",
            "recurrent net",
            2024,
            "2405.04517",
        ),
        "gru": Mixer("zoo.mixers.gru:GRU", "gated recurrent unit", "recurrent net", 2014, "1406.1078"),
        "rnn": Mixer("zoo.mixers.rnn:RNN", "plain recurrent network, tanh or linear", "recurrent net", 1990, "Elman"),
        "min_gru": Mixer(
            "zoo.mixers.minimal_recurrence:MinimalRecurrence",
            "a GRU whose gate does not see the state: a linear recurrence",
            "linear recurrent net",
            2024,
            "2410.01201",
        ),
        "min_lstm": Mixer(
            "zoo.mixers.minimal_recurrence:MinimalRecurrence",
            "min_gru with forget and input gate, normed to add up to one",
            "linear recurrent net",
            2024,
            "2410.01201",
            {"cell": "lstm"},
        ),
        "rg_lru": Mixer(
            "zoo.mixers.rg_lru:RGLRU",
            "Griffin's recurrent block: a real-gated linear recurrent unit",
            "linear recurrent net",
            2024,
            "2402.19427",
        ),
        "hybrid": Mixer(
            "zoo.mixers.hybrid:Hybrid",
            "Jamba-style layout over depth: SSM and attention layers by pattern",
            "hybrid",
            2024,
            "2403.19887",
        ),
        "parallel_hybrid": Mixer(
            "zoo.mixers.parallel_hybrid:ParallelHybrid",
            "SSM and attention side by side in a layer",
            "hybrid",
            2024,
            "2411.13676",
        ),
        "head_hybrid": Mixer(
            "zoo.mixers.head_hybrid:HeadHybrid",
            "softmax in some heads of a layer, a gated delta rule in the others",
            "hybrid",
            2026,
            "2606.20097",
        ),
        "identity": Mixer("zoo.mixers.identity:Identity", "no mixing: the control", "control", 2025, "2512.15115"),
    },
    aliases={"mamba": "selective_ssm", "mamba2": "ssd"},
    group="zoo.mixers",
    describe=_describe,
    adopt=_adopt,
)


def list_mixers() -> list[str]:
    """Return the names that `create_mixer` takes: built-in ones first, then those of `register` and of packages."""
    return [*MIXERS, *MIXERS.own]


def register(
    name: str,
    mixer: type | str,
    *,
    summary: str = "",
    family: str = OWN,
    year: int | None = None,
    source: str = "",
    **options: Any,
) -> None:
    """Give a mixer of your own a name, by which `create_mixer`, `Backbone` and a hybrid's pattern know it from now on.

        zoo.register("mine", MyMixer)
        zoo.register("wide", "path/file.py:MyMixer", expand=4)

    A package that is installed names its mixers for every process by entry points of the group `zoo.mixers`.

    Args:
        name: an identifier that no other mixer has.
        mixer: a class of torch.nn.Module, or `package.module:Class` or `path/file.py:Class`, imported on first use.
        summary: a line about it.
        family: see `Mixer`; so are year and source.
        year: of the publication.
        source: of the mathematics.
        **options: that the name sets.

    Raises:
        UsageError: a name that is taken, or none.
        ValueError: an object that is no class of torch.nn.Module.
    """
    if isinstance(mixer, str):
        home, found = absolute(mixer), None
    else:
        home, found = f"{getattr(mixer, '__module__', '')}:{getattr(mixer, '__qualname__', mixer)}", mixer
        _adopt(home, found)
    entry = Mixer(home, summary or _describe(home).summary, family, year, source, MappingProxyType(options))
    MIXERS.add(name, entry, found)


def mixer_class(name: str) -> type[SequenceMixer]:
    """Return the class of a name, of `package.module:Class` or of `path/file.py:Class`.

    Raises:
        UnknownNameError: no such mixer; the message lists the names.
        UsageError: no such module, file or class, or a class of another kind.
    """
    return MIXERS[name]


def create_mixer(name: str, d_model: int, **options: Any) -> SequenceMixer:
    """Build one mixer, an nn.Module (batch, seq, d_model) -> (batch, seq, d_out).

    >>> create_mixer("selective_ssm", d_model=64, d_state=8).d_inner
    128

    Args:
        name: any of `list_mixers`, or `package.module:Class` or `path/file.py:Class`, a mixer of your own.
        d_model: width of input and output.
        **options: of the mixer.

    Raises:
        ValueError: unknown name or option, or options that do not fit together.
    """
    return mixer_class(name).create(d_model, {**MIXERS.entry(name).options, **options})


def create_layers(name: str, n_layers: int, d_model: int, **options: Any) -> list[SequenceMixer]:
    """Return the mixers of a stack, one per layer: n_layers times the same kind, or a hybrid's layout over depth.

    Raises:
        ValueError: as `create_mixer`; also n_layers too few to hold every member of a hybrid.
    """
    return mixer_class(name).create_layers(n_layers, d_model, {**MIXERS.entry(name).options, **options})
