"""Several mixers side by side in one layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from zoo.blocks import RMSNorm
from zoo.contract import SequenceMixer
from zoo.mixers.hybrid import DEFAULT_PATTERN, Hybrid, Pattern
from zoo.ops.precision import Device, DType
from zoo.registry import create_mixer
from zoo.validate import require_choice

Merge = Literal["mean", "sum"]


class ParallelState(NamedTuple):
    members: tuple[Any, ...]  # the states of the members, in order


class ParallelHybrid(SequenceMixer):
    """Mixers side by side in one layer: all members read the same input.

        y = mean_m RMSNorm_m(mixer_m(x))                           merge mean
        y = sum_m mixer_m(x)                                       merge sum

    The norms bring the members to one scale and their weights are the published beta_m. The pattern names the members,
    by default a selective SSM and attention, as `hybrid` does. `ParallelHybrid.create` (and so `create_mixer`) also
    takes options of members, as `Hybrid` does.

    Coefficients. Those of the members, and 1/rms of each output.

    State. The members' states together; with attention among them it grows with the sequence.

    Interaction rank. The sum of the members' ranks, at most d_model^2: 1/rms is one number per position and the norm's
    weights are fixed, so that a member's maps stay as many as they were.

    Source. Hymba, Dong et al. 2411.13676, section 2.1. Every member keeps its own projections, where Hymba shares the
    two outer ones. The sum is that of Falcon-H1, Zuo et al. 2507.22448.

    Args:
        d_model: width of input and output.
        pattern: names of mixers, or mappings `{name: ..., option: value}`.
        merge: mean, of normed outputs, or sum, of the outputs as they are.

    Raises:
        ValueError: an empty pattern, an unknown member, an option that no member declares, a hybrid as a member, a
            member whose output has another width, an unknown merge.
    """

    def __init__(self, d_model: int, pattern: Pattern = DEFAULT_PATTERN, merge: Merge = "mean") -> None:
        super().__init__(d_model)
        require_choice("merge", merge, Merge)
        entries = Hybrid.distribute(pattern, {})
        self.members = nn.ModuleList(create_mixer(d_model=d_model, **entry) for entry in entries)
        for entry, member in zip(entries, self.mixers(), strict=True):
            if member.d_out != d_model:
                raise ValueError(f"members need d_out = d_model = {d_model}, {entry['name']} has {member.d_out}")
        self.norms = nn.ModuleList(RMSNorm(d_model) for _ in entries if merge == "mean")

    @classmethod
    def create(cls, d_model: int, options: Mapping[str, Any]) -> Self:
        rest = dict(options)
        pattern, merge = rest.pop("pattern", DEFAULT_PATTERN), rest.pop("merge", "mean")
        return cls(d_model, Hybrid.distribute(pattern, rest), merge)

    def mixers(self) -> list[SequenceMixer]:
        """Return the members, in order."""
        return cast(list[SequenceMixer], list(self.members))

    def rank_law(self, seq_len: int) -> int | None:
        ranks = [mixer.predicted_rank(seq_len) for mixer in self.mixers()]
        known = [rank for rank in ranks if rank is not None]
        return sum(known) if len(known) == len(ranks) else None

    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> ParallelState:
        return ParallelState(tuple(member.empty_state(batch_size, dtype, device) for member in self.mixers()))

    def mix(self, x: Tensor, state: ParallelState, lengths: Tensor | None) -> tuple[Tensor, ParallelState]:
        streamed = (m.stream(x, before, lengths) for m, before in zip(self.mixers(), state.members, strict=True))
        outputs, states = zip(*streamed, strict=True)
        if not self.norms:
            return torch.stack(outputs).sum(0), ParallelState(states)
        outputs = [norm(y) for norm, y in zip(self.norms, outputs, strict=True)]
        return torch.stack(outputs).mean(0), ParallelState(states)
