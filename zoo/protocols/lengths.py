"""Modules that must be told how long each row is."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from zoo.protocols.adapter import Adapter, first_tensor


class Lengths(Adapter):
    """`module(x, lengths=lengths)`, where it does not do without."""

    name = "forward with lengths"
    whole_line = "module(x, lengths=torch.full((len(x),), x.shape[1]))"

    @classmethod
    def find(cls, module: nn.Module, x: Tensor) -> Adapter | None:
        """Return the adapter if the module has a parameter `lengths` without a default."""
        takes = inspect.signature(module.forward).parameters.get("lengths")
        return cls() if takes is not None and takes.default is takes.empty else None

    def whole(self, module: nn.Module, x: Tensor) -> Tensor:
        return first_tensor(module(x, lengths=torch.full((len(x),), x.shape[1], device=x.device)))
