"""An adapter written out, for the help; it needs no torch to be read."""

from __future__ import annotations

EXAMPLE = """\
from zoo.check import Adapter

class MyAdapter(Adapter):
    streams = True
    longest = None  # positions that one chunk may have; 1 for a step

    def whole(self, module, x):
        return module(x)  # (batch, seq, d_model) -> the same

    def chunk(self, module, x, state):  # state is None at the start
        return module(x, memory=state, return_memory=True)
"""
"""The ten lines that teach the checks a protocol they do not know."""
