"""The registry of mixers (`create_mixer`, `register`): name, class, summary, family and source, one entry each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from zoo.lookup import OpenRegistry
from zoo.targets import absolute, short

if TYPE_CHECKING:
    from zoo.contract import SequenceMixer


OWN = "your own"
"""Default family of user-defined mixers."""


class Mixer(NamedTuple):
    """An entry of the registry.

    Attributes:
        home: `module:Class`; for user-defined mixers also `path/file.py:Class`.
        summary: one-line description.
        year: year of publication; None if not given.
        source: publication of the mathematics, by arXiv number if it has one; empty if not given.
        options: options of the class that this name sets; `create_mixer` can override them.
        family: mixers with the same mathematics. "time-invariant" mixers are fixed convolutions, whatever the input;
            "softmax", "delta rule" and "hybrid" mixers can recall the token that followed an earlier symbol.
        models: released models that use the mixer; empty if we know of none.
    """

    home: str
    summary: str
    year: int | None = None
    source: str = ""
    options: Mapping[str, Any] = MappingProxyType({})
    family: str = OWN
    models: str = ""


def _describe(target: str) -> Mixer:
    return Mixer(target, f"{short(target)}, your own mixer")


def _adopt(target: str, found: Any) -> type[SequenceMixer]:
    from zoo.adapters.adopted import adopt

    return adopt(target, found)


def _family(family: str, /, **mixers: Mixer) -> dict[str, Mixer]:
    """Return the entries of a family, with homes in `zoo.mixers`; a bare class is in the file named after the mixer."""
    found = {}
    for name, mixer in mixers.items():
        home = mixer.home if ":" in mixer.home else f"{name}:{mixer.home}"
        found[name] = mixer._replace(home=f"zoo.mixers.{home}", family=family)
    return found


_BUILT_IN = (
    _family(
        "softmax",
        attention=Mixer(
            "Attention",
            "softmax attention: grouped heads, RoPE, ALiBi, sinks",
            2017,
            "1706.03762",
            models="GPT-2, Llama 3, Qwen3",
        ),
        sliding_attention=Mixer(
            "SlidingAttention",
            "softmax attention within a window",
            2020,
            "2004.05150",
            models="Mistral 7B, RecurrentGemma",
        ),
        gated_attention=Mixer(
            "GatedAttention",
            "softmax attention with normed queries and keys and an output gate",
            2025,
            "2505.06708",
            models="Qwen3-Next, Qwen3.5",
        ),
        differential_attention=Mixer(
            "DifferentialAttention",
            "attention whose heads are differences of two softmaxes",
            2024,
            "2410.05258",
            models="Motif 2.6B",
        ),
        forgetting_attention=Mixer(
            "ForgettingAttention",
            "softmax attention with a data-dependent forget gate (FoX)",
            2025,
            "2503.02130",
        ),
        path_attention=Mixer(
            "PathAttention", "softmax attention with Householder position encoding (PaTH)", 2025, "2505.16381"
        ),
        deltaformer=Mixer(
            "DeltaFormer", "softmax attention to values corrected by a softmax delta rule", 2025, "2505.19488"
        ),
        mla=Mixer(
            "LatentAttention",
            "attention with low-rank latent keys and values (MLA)",
            2024,
            "2405.04434",
            models="DeepSeek-V3, Kimi K2, Kimi Linear",
        ),
        dsa=Mixer(
            "SparseLatentAttention",
            "mla to the positions that a light indexer selects (DSA)",
            2025,
            "2512.02556",
            models="DeepSeek-V3.2, GLM-5",
        ),
        nsa=Mixer(
            "NativeSparseAttention",
            "attention to compressed blocks, the best blocks and a window (NSA)",
            2025,
            "2502.11089",
        ),
        moba=Mixer(
            "BlockAttention",
            "attention to the best few blocks of positions (MoBA)",
            2025,
            "2502.13189",
        ),
    )
    | _family(
        "control",
        factorized=Mixer("Factorized", "scalar coefficients per head times shared value maps", 2025, "2512.15115"),
    )
    | _family(
        "linear attention",
        linear_attention=Mixer("LinearAttention", "attention with a feature map, no softmax", 2020, "2006.16236"),
        gated_linear_attention=Mixer(
            "GatedLinearAttention", "linear attention with a decay for each key channel", 2023, "2312.06635"
        ),
        rwkv4=Mixer("RWKV4", "decaying weighted averages of each channel's past", 2023, "2305.13048", models="RWKV-4"),
        rwkv6=Mixer(
            "RWKV6",
            "linear attention: data-dependent decays and token shift",
            2024,
            "2404.05892",
            models="RWKV-6",
        ),
        retnet=Mixer(
            "RetNet", "retention: rotary linear attention with a fixed decay for each head", 2023, "2307.08621"
        ),
        lightning_attention=Mixer(
            "LightningAttention",
            "linear attention of MiniMax-01: SiLU, a fixed decay for each head",
            2025,
            "2501.08313",
            models="MiniMax-01, MiniMax-M1",
        ),
        hgrn2=Mixer("HGRN2", "gated linear attention with keys tied to the decays", 2024, "2404.07904"),
        gsa=Mixer(
            "GatedSlotAttention", "softmax attention over a fixed number of gated slots (GSA)", 2024, "2409.07146"
        ),
        mlstm=Mixer("MLSTM", "the matrix memory of xLSTM: exponential gates, a normaliser", 2024, "2405.04517"),
        capped_mlstm=Mixer(
            "CappedMLSTM", "the mLSTM of xLSTM 7B: bounded gates, no convolution", 2025, "2503.13427", models="xLSTM 7B"
        ),
    )
    | _family(
        "delta rule",
        delta_net=Mixer("DeltaNet", "linear attention that overwrites: the delta rule", 2024, "2406.06484"),
        gated_delta_net=Mixer(
            "delta_product:DeltaProduct",
            "the delta rule with a decay for each head",
            2024,
            "2412.06464",
            {"n_householder": 1, "beta_max": 1.0},
            models="Qwen3-Next, Qwen3.5, Olmo Hybrid",
        ),
        log_linear_gated_delta_net=Mixer(
            "delta_product:DeltaProduct",
            "gated_delta_net with a state for each level of a Fenwick tree",
            2025,
            "2506.04761",
            {"n_householder": 1, "beta_max": 1.0, "n_levels": 15},
        ),
        delta_product=Mixer(
            "DeltaProduct", "several steps of the gated delta rule for each position", 2025, "2502.10297"
        ),
        kda=Mixer(
            "KimiDelta",
            "Kimi Delta Attention: the delta rule with a decay for each key channel",
            2025,
            "2510.26692",
            models="Kimi Linear",
        ),
        gdn2=Mixer(
            "kda:KimiDelta",
            "Gated DeltaNet 2: kda with erase and write gates for each channel",
            2026,
            "2605.22791",
            {"gates": "channel"},
        ),
        comba=Mixer("Comba", "gated_delta_net with partial erasure and corrected queries", 2025, "2506.02475"),
        mesa_net=Mixer(
            "MesaNet", "linear attention that solves least squares over the keys so far", 2025, "2506.05233"
        ),
        titans=Mixer("Titans", "a linear memory learned by gradient steps with momentum", 2024, "2501.00663"),
        rwkv7=Mixer(
            "RWKV7",
            "the delta rule with gates per channel and token shift",
            2025,
            "2503.14456",
            models="RWKV-7",
        ),
    )
    | _family(
        "time-invariant",
        diagonal_ssm=Mixer("DiagonalSSM", "linear time-invariant SSM with diagonal dynamics", 2022, "2206.11893"),
        lru=Mixer(
            "diagonal_ssm:DiagonalSSM",
            "linear recurrent unit: diagonal_ssm on a ring with learned gains",
            2023,
            "2303.06349",
            {"init": "lru"},
        ),
        s5=Mixer(
            "diagonal_ssm:DiagonalSSM",
            "S5: diagonal_ssm initialised in the eigenbasis of HiPPO",
            2022,
            "2208.04933",
            {"init": "s5"},
        ),
        linoss=Mixer("LinOSS", "LinOSS: forced harmonic oscillators, damped or undamped", 2024, "2410.03943"),
        s4d=Mixer("S4D", "a linear time-invariant diagonal SSM for each channel", 2022, "2206.11893"),
        conv=Mixer("Conv", "causal convolution, short or as long as the sequence", 2023, "2302.10866"),
    )
    | _family(
        "selective state space",
        selective_ssm=Mixer(
            "SelectiveSSM",
            "the Mamba block: input-dependent dynamics",
            2023,
            "2312.00752",
            models="Mamba, Falcon Mamba, Jamba",
        ),
        ssd=Mixer(
            "SSD",
            "the Mamba-2 block: one decay per head, in matrix products",
            2024,
            "2405.21060",
            models="Mamba-2, Nemotron-H, Granite 4, Zamba2",
        ),
        log_linear_ssd=Mixer(
            "ssd:SSD", "ssd with a state for each level of a Fenwick tree", 2025, "2506.04761", {"n_levels": 15}
        ),
        mamba3=Mixer("Mamba3", "the Mamba-3 block: trapezoid, rotating state, several ranks", 2026, "2603.15569"),
    )
    | _family(
        "gated convolution",
        gated_conv=Mixer("GatedConv", "LFM2's short convolution between two gates", 2025, "2511.23404", models="LFM2"),
        hyena=Mixer(
            "Hyena",
            "Hyena of order two: a long implicit convolution between two gates",
            2023,
            "2302.10866",
            models="HyenaDNA",
        ),
    )
    | _family(
        "recurrent net",
        lstm=Mixer("LSTM", "long short-term memory", 1997, "Hochreiter and Schmidhuber"),
        slstm=Mixer("SLSTM", "sLSTM of xLSTM: exponential gates, recurrence within each head", 2024, "2405.04517"),
        gru=Mixer("GRU", "gated recurrent unit", 2014, "1406.1078"),
        rnn=Mixer("RNN", "plain recurrent network, tanh or linear", 1990, "Elman"),
    )
    | _family(
        "linear recurrent net",
        min_gru=Mixer(
            "minimal_recurrence:MinimalRecurrence",
            "a GRU whose gate does not see the state: a linear recurrence",
            2024,
            "2410.01201",
        ),
        min_lstm=Mixer(
            "minimal_recurrence:MinimalRecurrence",
            "min_gru with forget and input gates that sum to one",
            2024,
            "2410.01201",
            {"cell": "lstm"},
        ),
        rg_lru=Mixer(
            "RGLRU",
            "Griffin's recurrent block: a real-gated linear recurrent unit",
            2024,
            "2402.19427",
            models="RecurrentGemma",
        ),
    )
    | _family(
        "hybrid",
        hybrid=Mixer(
            "Hybrid",
            "Jamba-style layout over depth: SSM and attention layers by pattern",
            2024,
            "2403.19887",
            models="Jamba, Nemotron-H, Granite 4",
        ),
        parallel_hybrid=Mixer(
            "ParallelHybrid", "SSM and attention side by side in a layer", 2024, "2411.13676", models="Hymba, Falcon-H1"
        ),
        head_hybrid=Mixer(
            "HeadHybrid", "softmax attention in some heads, the gated delta rule in others", 2026, "2606.20097"
        ),
    )
    | _family(
        "control",
        identity=Mixer("Identity", "no mixing: the control", 2025, "2512.15115"),
    )
)

MIXERS: OpenRegistry[Mixer] = OpenRegistry(
    "mixer",
    _BUILT_IN,
    aliases={"mamba": "selective_ssm", "mamba2": "ssd"},
    group="zoo.mixers",
    describe=_describe,
    adopt=_adopt,
)


def list_mixers() -> list[str]:
    """Return the registered names: built-in ones first, then those from `register` and from entry points."""
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
    """Register your own mixer under a name, for `create_mixer`, `Backbone` and a hybrid's pattern.

        zoo.register("mine", MyMixer)
        zoo.register("wide", "path/file.py:MyMixer", expand=4)

    The registration lasts for this process. An installed package registers its mixers permanently by entry points of
    the group `zoo.mixers`.

    Args:
        name: an identifier that no other mixer has.
        mixer: a subclass of torch.nn.Module, or `package.module:Class` or `path/file.py:Class`, imported on first use.
        summary: one-line description.
        family: see `Mixer`.
        year: year of publication.
        source: publication of the mathematics.
        **options: options of the class that this name sets; `create_mixer` can override them.

    Raises:
        UsageError: the name is taken, or is not an identifier.
        ValueError: an object that is not a subclass of torch.nn.Module.
    """
    if isinstance(mixer, str):
        home, found = absolute(mixer), None
    else:
        home, found = f"{getattr(mixer, '__module__', '')}:{getattr(mixer, '__qualname__', mixer)}", mixer
        _adopt(home, found)
    entry = Mixer(home, summary or _describe(home).summary, year, source, MappingProxyType(options), family)
    MIXERS.add(name, entry, found)


def mixer_class(name: str) -> type[SequenceMixer]:
    """Return the class for a name, `package.module:Class` or `path/file.py:Class`.

    Raises:
        UnknownNameError: no such mixer; the message lists the names.
        UsageError: no such module, file or class, or an unsuitable class.
    """
    return MIXERS[name]


def create_mixer(name: str, d_model: int, **options: Any) -> SequenceMixer:
    """Build one mixer, an nn.Module (batch, seq, d_model) -> (batch, seq, d_out).

    >>> create_mixer("selective_ssm", d_model=64, d_state=8).d_inner
    128

    Args:
        name: a name from `list_mixers`, or your own class as `package.module:Class` or `path/file.py:Class`.
        d_model: width of input and output.
        **options: options of the mixer.

    Raises:
        ValueError: unknown name or option, or options that cannot be combined.
    """
    return mixer_class(name).create(d_model, {**MIXERS.entry(name).options, **options})


def create_layers(name: str, n_layers: int, d_model: int, **options: Any) -> list[SequenceMixer]:
    """Build the mixers of a stack, one per layer: all of the same kind, or a hybrid's layout over depth.

    Raises:
        ValueError: the errors of `create_mixer`; fewer layers than a hybrid has members.
    """
    return mixer_class(name).create_layers(n_layers, d_model, {**MIXERS.entry(name).options, **options})
