"""A Lightning strategy for sharded training (FSDP2), with the same checkpoints as on one device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy, Strategy, StrategyRegistry
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

SHARDED = "model_parallel"
"""Name of the strategy in Lightning's registry: Lightning allows some precisions only for strategies given by name."""


class Sharded(ModelParallelStrategy):
    """Shard parameters, gradients and optimizer state over all devices (by `SequenceModule.configure_model`).

    The first process writes a checkpoint as one file with whole tensors, in the parameter order of an optimizer on one
    device. So it can be loaded on any number of devices, with any strategy.
    """

    def __init__(self) -> None:
        super().__init__(tensor_parallel_size=1, save_distributed_checkpoint=False)

    @property
    def lightning_restore_optimizer(self) -> bool:
        return True

    def setup_environment(self) -> None:
        # The warning is about views as outputs, such as states; none of them is changed in place.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the state with whole tensors on the CPU, on the first process; all processes must call this method."""

        def whole(t: Tensor, _: Tensor) -> Tensor:
            if not isinstance(t, DTensor):
                return t
            full = t.full_tensor()
            return full.cpu() if self.is_global_zero else full.new_empty(0)

        return _mapped(whole, optimizer.state_dict(), optimizer)

    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        return Strategy.load_checkpoint(self, checkpoint_path, weights_only)

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        assert self.model is not None
        options = StateDictOptions(full_state_dict=True, strict=strict)
        set_model_state_dict(self.model, checkpoint["state_dict"], options=options)

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            optimizer.load_state_dict(_mapped(_part, state, optimizer))


def _part(t: Tensor, p: Tensor) -> Tensor:
    """Return this process's shard of an optimizer's tensor; unchanged if the shapes differ or nothing is sharded."""
    if not isinstance(p, DTensor) or t.shape != p.shape:
        return t
    return distribute_tensor(t.to(p.device), p.device_mesh, p.placements, src_data_rank=None)


def _mapped(fn: Callable[[Tensor, Tensor], Tensor], state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Map the tensors of an optimizer's state_dict by `fn(tensor, its parameter)`."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    mapped = {
        number: {name: fn(t, parameters[number]) if isinstance(t, Tensor) else t for name, t in entries.items()}
        for number, entries in state["state"].items()
    }
    return {**state, "state": mapped}


StrategyRegistry.register(SHARDED, Sharded, "FSDP2 over all devices", override=True)
