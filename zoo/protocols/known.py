"""Choose the adapter of a module: the first of these that finds what it needs."""

from __future__ import annotations

from torch import Tensor, nn

from zoo.protocols.adapter import Adapter, Forward
from zoo.protocols.lengths import Lengths
from zoo.protocols.ours import Stream
from zoo.protocols.pair import Pair
from zoo.protocols.step import Step
from zoo.protocols.transformers_cache import Embeddings, TransformersCache
from zoo.protocols.x_transformers_cache import XTransformersCache

PROTOCOLS = (Stream, TransformersCache, Embeddings, XTransformersCache, Lengths, Step, Pair)


def find_adapter(module: nn.Module, x: Tensor) -> Adapter:
    """Find the adapter for `module` by trying it on x; return one without chunks where no protocol is known."""
    for protocol in PROTOCOLS:
        if (found := protocol.find(module, x)) is not None:
            return found
    return Forward()
