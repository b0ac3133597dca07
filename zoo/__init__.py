"""Interchangeable sequence mixers on one contract. Importing this package imports nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.naming import lazy_names

if TYPE_CHECKING:
    from zoo.backbone import Backbone
    from zoo.contract import SequenceMixer, State, detach_state, map_state, move_state, reorder_state, state_nbytes
    from zoo.registry import create_layers, create_mixer, list_mixers
    from zoo.saved import load

_HOMES = {
    "Backbone": "zoo.backbone",
    "SequenceMixer": "zoo.contract",
    "State": "zoo.contract",
    "create_layers": "zoo.registry",
    "create_mixer": "zoo.registry",
    "detach_state": "zoo.contract",
    "list_mixers": "zoo.registry",
    "load": "zoo.saved",
    "map_state": "zoo.contract",
    "move_state": "zoo.contract",
    "reorder_state": "zoo.contract",
    "state_nbytes": "zoo.contract",
}

__all__ = [
    "Backbone",
    "SequenceMixer",
    "State",
    "create_layers",
    "create_mixer",
    "detach_state",
    "list_mixers",
    "load",
    "map_state",
    "move_state",
    "reorder_state",
    "state_nbytes",
]
__version__ = "0.1.0"

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
