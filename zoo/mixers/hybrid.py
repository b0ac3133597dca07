"""Jamba-style hybrids over depth: a pattern gives the mixer of each layer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Self

from torch import Tensor

from zoo.blocks import ResidualBlock, Stack
from zoo.contract import SequenceMixer
from zoo.errors import unknown
from zoo.ops.precision import Device, DType
from zoo.registry import MIXERS, create_mixer, mixer_class
from zoo.targets import label
from zoo.validate import require_positive

Pattern = Sequence[str | Mapping[str, Any]]
DEFAULT_PATTERN: tuple[str, ...] = ("selective_ssm", "attention")


class Hybrid(SequenceMixer):
    """Different mixers at different depths: a pattern of members, first layer first, which repeats.

        x_0 = x,    x_l = x_{l-1} + mixer_l(norm_l(x_{l-1})),    mixer_l = pattern[(l - 1) mod len(pattern)]

    In a backbone (`create_layers`), the pattern repeats over the backbone's layers, each followed by its channel mixer
    as usual. On its own (`create_mixer`), the mixer is one pass through the pattern, without channel mixers.

        python train.py --mixer hybrid --mixer.pattern '[diagonal_ssm, attention]' --mixer.attention.n_heads 2
        create_layers("hybrid", n_layers=16, d_model=64, pattern=["selective_ssm"] * 7 + ["attention"])

    `Hybrid.create`, and so both functions, also takes options of members: by member, `attention={"n_heads": 4}`, or
    bare, `n_heads=4`, which goes to every member that declares it. The options of a member `path/file.py:Class` are
    given under `Class`.

    In a backbone, channel mixers can be mixtures of experts, with any mixers:

        y_i = sum over the top_k likeliest e of p_e(x_i) SwiGLU_e(x_i),    p(x) = softmax(W_router x)
        zoo.Backbone({"name": "hybrid"}, n_layers=4, vocab_size=256, n_outputs=256, n_experts=16, top_k=2)

    Layers expert_offset, expert_offset + expert_period, ... have experts. No position is ever dropped, so decoding
    equals training. The weights p_e, the choice and the gates are coefficients; experts add nothing to the state.
    Training adds balance_weight times the load-balance loss (Fedus et al. 2101.03961, equations 4 to 6; the mean over
    the expert layers). It logs this loss as `train/balance_loss`, and the share of positions that each expert serves as
    `train/load/layer<l>/expert<e>`.

    Jamba is `python train.py --config configs/mixer/jamba.yaml`. Of its eight layers, layer 4 is attention without
    position encoding and the others are selective SSMs with RMSNorm on dt, B and C; layers 1, 3, 5 and 7 have 16
    experts, two per position.

    Coefficients. The members' coefficients, and 1/rms of each norm. W is the product over the blocks of I + W_member.

    State. The members' states, in order.

    Interaction rank. The product over the blocks of (member's rank + 1), at most d_model^2.

    Source. In the style of Jamba (Lieber et al. 2403.19887).

    Args:
        d_model: width of input and output.
        pattern: names of mixers, or mappings `{name: ..., option: value}`, first layer first.

    Raises:
        ValueError: an empty pattern, an unknown member, an option that no member declares, a hybrid within a hybrid.
    """

    def __init__(self, d_model: int, pattern: Pattern = DEFAULT_PATTERN) -> None:
        super().__init__(d_model)
        self.blocks = Stack(ResidualBlock(mixer) for mixer in _members(self.distribute(pattern, {}), d_model))

    @staticmethod
    def distribute(
        pattern: Pattern, options: Mapping[str, Any], owner: str = "hybrid", own: Sequence[str] = ("pattern",)
    ) -> list[dict[str, Any]]:
        """Return the pattern as complete entries `{name, **options}`, with `options` distributed to the members.

        An entry's own options take precedence over options given by member, and those over bare options.

        Args:
            pattern: the pattern.
            options: options of members, by member or bare.
            owner: name of the mixer that has the pattern, for errors.
            own: its own options, for errors.

        Raises:
            ValueError: as for the class.
        """
        is_list = isinstance(pattern, Sequence) and not isinstance(pattern, str)
        if not is_list or not all(isinstance(entry, str | Mapping) for entry in pattern):
            raise ValueError(
                f"pattern must be a list of names or of mappings {{'name': ..., **options}}, got {pattern!r}"
            )
        entries = [{"name": entry} if isinstance(entry, str) else dict(entry) for entry in pattern]
        if not entries:
            raise ValueError("pattern must name at least one mixer")
        for entry in entries:
            if "name" not in entry:
                raise ValueError(f"an entry of the pattern needs a name, got {entry}")
            if "d_model" in entry:
                raise ValueError(f"members take d_model from the hybrid: leave it out of {entry}")
            entry["name"] = MIXERS.check(entry["name"])
        members = {label(entry["name"]): entry["name"] for entry in entries}
        for entry in entries:
            if members[label(entry["name"])] != entry["name"]:
                raise ValueError(f"two members are called {label(entry['name'])}: rename one of the classes")
        keys = [members.get(key, MIXERS.check(key) if key in MIXERS else key) for key in options]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise ValueError(f"the options of {twice[0]} are given twice, under two of its names")
        options = dict(zip(keys, options.values(), strict=True))
        declared = {entry["name"]: member_options(entry["name"]) for entry in entries}
        for key, value in options.items():
            if key not in declared and not any(key in valid for valid in declared.values()):
                every = [*members, *dict.fromkeys(name for valid in declared.values() for name in valid)]
                raise ValueError(unknown(f"option of {owner}", key, [*own, *every]))
            if key in declared and not isinstance(value, Mapping):
                raise ValueError(f"options of the member {key} must be a mapping, got {value!r}")
        bare = {key: value for key, value in options.items() if key not in declared}
        return [
            {k: v for k, v in bare.items() if k in declared[entry["name"]]}
            | dict(options.get(entry["name"], {}))
            | entry
            for entry in entries
        ]

    @classmethod
    def create(cls, d_model: int, options: Mapping[str, Any]) -> Self:
        return cls(d_model, cls._pattern(options))

    @classmethod
    def create_layers(cls, n_layers: int, d_model: int, options: Mapping[str, Any]) -> list[SequenceMixer]:
        require_positive(n_layers=n_layers)
        pattern = cls._pattern(options)
        if n_layers < len(pattern):
            raise ValueError(f"n_layers={n_layers} cannot hold the {len(pattern)} layers of the hybrid's pattern")
        return _members([pattern[i % len(pattern)] for i in range(n_layers)], d_model)

    @classmethod
    def _pattern(cls, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        rest = dict(options)
        return cls.distribute(rest.pop("pattern", DEFAULT_PATTERN), rest)

    def rank_law(self, seq_len: int) -> int | None:
        return self.blocks.predicted_rank(seq_len)

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> tuple[Any, ...]:
        return self.blocks.empty_state(batch_size, dtype, device)

    def mix(self, x: Tensor, state: tuple[Any, ...], lengths: Tensor | None) -> tuple[Tensor, tuple[Any, ...]]:
        return self.blocks.stream(x, state, lengths)


def member_options(name: str) -> list[str]:
    """Return the names of the options that a member declares.

    Raises:
        ValueError: an unknown name, or another hybrid.
    """
    if name == "hybrid":
        raise ValueError("a hybrid cannot be a member of a hybrid: write its members into the pattern")
    return [option for option in inspect.signature(mixer_class(name)).parameters if option != "d_model"]


def _members(entries: Sequence[Mapping[str, Any]], d_model: int) -> list[SequenceMixer]:
    return [create_mixer(d_model=d_model, **entry) for entry in entries]
