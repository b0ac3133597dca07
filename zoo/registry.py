"""The zoo: a name, where its class lives, and one line about it. Adding a mixer adds one entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zoo.naming import Registry

if TYPE_CHECKING:
    from zoo.contract import SequenceMixer

MIXERS = Registry(
    "mixer",
    {
        "attention": ("zoo.mixers.attention:Attention", "softmax attention: grouped heads, RoPE, ALiBi, sinks"),
        "sliding_attention": ("zoo.mixers.sliding_attention:SlidingAttention", "softmax attention within a window"),
        "factorized": ("zoo.mixers.factorized:Factorized", "scalar coefficients per head times shared value maps"),
        "linear_attention": ("zoo.mixers.linear_attention:LinearAttention", "attention with a feature map, no softmax"),
        "gated_linear_attention": (
            "zoo.mixers.gated_linear_attention:GatedLinearAttention",
            "linear attention with a decay for each key channel",
        ),
        "delta_net": ("zoo.mixers.delta_net:DeltaNet", "linear attention that overwrites: the delta rule"),
        "gated_delta_net": ("zoo.mixers.gated_delta_net:GatedDeltaNet", "the delta rule with a decay for each head"),
        "diagonal_ssm": ("zoo.mixers.diagonal_ssm:DiagonalSSM", "linear time-invariant SSM with diagonal dynamics"),
        "s4d": ("zoo.mixers.s4d:S4D", "a linear time-invariant diagonal SSM for each channel"),
        "selective_ssm": ("zoo.mixers.selective_ssm:SelectiveSSM", "the Mamba block: input-dependent dynamics"),
        "mamba3": ("zoo.mixers.mamba3:Mamba3", "the Mamba-3 block: trapezoid, rotating state, several ranks"),
        "ssd": ("zoo.mixers.ssd:SSD", "the Mamba-2 block: one decay per head, in matrix products"),
        "conv": ("zoo.mixers.conv:Conv", "causal convolution, short or as long as the sequence"),
        "lstm": ("zoo.mixers.lstm:LSTM", "long short-term memory"),
        "gru": ("zoo.mixers.gru:GRU", "gated recurrent unit"),
        "rnn": ("zoo.mixers.rnn:RNN", "plain recurrent network, tanh or linear"),
        "hybrid": ("zoo.mixers.hybrid:Hybrid", "Jamba-style layout over depth: SSM and attention layers by pattern"),
        "parallel_hybrid": ("zoo.mixers.parallel_hybrid:ParallelHybrid", "SSM and attention side by side in a layer"),
        "identity": ("zoo.mixers.identity:Identity", "no mixing: the control"),
    },
    aliases={"mamba": "selective_ssm", "mamba2": "ssd"},
)


def list_mixers() -> list[str]:
    """Names that `create_mixer` takes."""
    return list(MIXERS)


def mixer_class(name: str) -> type[SequenceMixer]:
    """The class behind a name.

    Raises:
        UnknownNameError: no such mixer; the message lists the names.
    """
    return MIXERS[name]


def create_mixer(name: str, d_model: int, **options: Any) -> SequenceMixer:
    """Build one mixer, an nn.Module (batch, seq, d_model) -> (batch, seq, d_out).

    >>> create_mixer("selective_ssm", d_model=64, d_state=8).d_inner
    128

    Raises:
        ValueError: unknown name or option, or options that do not fit together.
    """
    return mixer_class(name).create(d_model, options)


def create_layers(name: str, n_layers: int, d_model: int, **options: Any) -> list[SequenceMixer]:
    """The mixers of a stack, one a layer: n_layers times the same kind, or a hybrid's layout over depth.

    Raises:
        ValueError: as `create_mixer`; also n_layers too few to hold every member of a hybrid.
    """
    return mixer_class(name).create_layers(n_layers, d_model, options)
