"""Interchangeable sequence mixers on one contract. Importing this package imports nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.backbone import Backbone
    from zoo.blocks import Bidirectional
    from zoo.contract import SequenceMixer
    from zoo.loading.packing import run_left_padded, run_packed
    from zoo.loading.saved import load, load_mixer, save
    from zoo.loading.transformers import load_transformers
    from zoo.registry import create_layers, create_mixer, list_mixers, register
    from zoo.state import State, detach_state, map_state, move_state, reorder_state, state_nbytes

_HOMES = {
    "zoo.backbone": "Backbone",
    "zoo.blocks": "Bidirectional",
    "zoo.contract": "SequenceMixer",
    "zoo.loading.packing": "run_left_padded run_packed",
    "zoo.loading.saved": "load load_mixer save",
    "zoo.loading.transformers": "load_transformers",
    "zoo.registry": "create_layers create_mixer list_mixers register",
    "zoo.state": "State detach_state map_state move_state reorder_state state_nbytes",
}

__all__ = [
    "Backbone",
    "Bidirectional",
    "SequenceMixer",
    "State",
    "create_layers",
    "create_mixer",
    "detach_state",
    "list_mixers",
    "load",
    "load_mixer",
    "load_transformers",
    "map_state",
    "move_state",
    "register",
    "reorder_state",
    "run_left_padded",
    "run_packed",
    "save",
    "state_nbytes",
]
__version__ = "1.0.0"

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
