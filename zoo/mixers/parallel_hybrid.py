"""Hybrids in parallel: several mixers side by side in one layer."""

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

    The norms bring the members to one scale; their weights are the published beta_m. The pattern lists the members as
    in `hybrid`, by default a selective SSM and attention. `ParallelHybrid.create`, and so `create_mixer`, also takes
    options of members, as `Hybrid` does.

    Coefficients. The members' coefficients, and 1/rms of each output.

    State. The members' states; with attention among the members it grows with the sequence.

    Interaction rank. The sum of the members' ranks, at most d_model^2: 1/rms is one number per position and the norm's
    weights are constant, so the norms do not change a member's rank.

    Source. Hymba, Dong et al. 2411.13676, section 2.1. Here every member has its own projections, while Hymba's members
    share the two outer ones. merge sum follows Falcon-H1, Zuo et al. 2507.22448.

    Args:
        d_model: width of input and output.
        pattern: names of mixers, or mappings `{name: ..., option: value}`.
        merge: mean (of the normed outputs) or sum (of the outputs without norms).

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
        entries = Hybrid.distribute(pattern, rest, owner="parallel_hybrid", own=("pattern", "merge"))
        return cls(d_model, entries, merge)

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
