"""The layers of a backbone and their inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from zoo.backbone import Backbone
from zoo.blocks import ResidualBlock, Stack
from zoo.contract import SequenceMixer
from zoo.registry import MIXERS, mixer_class


class LayerInput(NamedTuple):
    """A mixer inside a backbone, and its input."""

    name: str
    mixer: SequenceMixer
    x: Tensor  # (batch, seq, d_model)


def layer_inputs(backbone: Backbone, inputs: Shaped[Tensor, "batch seq *d_input"]) -> list[LayerInput]:
    """Return the mixer of each layer with its input, which in a residual block is often the normed stream.

    Args:
        backbone: the model, run in its current mode and without gradients.
        inputs: tokens, or vectors, which are cast to the model's dtype.
    """
    found = []
    with torch.no_grad():
        for at, (layer, x) in enumerate(zip(backbone.layers.chain(), streams(backbone, inputs), strict=False)):
            mixer, reaching = (layer.mixer, layer.mixer_input(x)) if isinstance(layer, ResidualBlock) else (layer, x)
            found.append(LayerInput(f"layer {at}: {_mixer_name(mixer)}", mixer, reaching))
    return found


@torch.no_grad()
def streams(backbone: Backbone, inputs: Shaped[Tensor, "batch seq *d_input"]) -> Iterator[Tensor]:
    """Yield the residual stream before each layer, and after the last one."""
    if inputs.is_floating_point():
        inputs = inputs.to(next(backbone.parameters()).dtype)
    x = backbone.embed(inputs)
    yield x
    for layer in backbone.layers.chain():
        x = layer(x)
        yield x


def random_inputs(
    backbone: Backbone, batch_size: int, seq_len: int, generator: torch.Generator
) -> Shaped[Tensor, "batch seq *d_input"]:
    """Draw uniform tokens from the vocabulary, or standard normal vectors, in the model's dtype and on its device."""
    like = next(backbone.parameters())
    if backbone.vocab_size is not None:
        return torch.randint(backbone.vocab_size, (batch_size, seq_len), generator=generator).to(like.device)
    width = backbone.d_model if backbone.in_proj is None else backbone.in_proj.in_features
    return torch.randn(batch_size, seq_len, width, generator=generator, dtype=torch.float64).to(like)


def _mixer_name(mixer: SequenceMixer) -> str:
    """Return the registered name of a mixer; for a stack, the joined names of its members."""
    if isinstance(mixer, Stack):
        return " + ".join(_mixer_name(member) for member in mixer.chain())

    def matches(name: str) -> bool:
        options = MIXERS.entry(name).options.items()
        return mixer_class(name) is type(mixer) and all(getattr(mixer, key, None) == value for key, value in options)

    # The most specific entry wins: one with options over the class alone.
    named = sorted(filter(matches, MIXERS), key=lambda name: len(MIXERS.entry(name).options))
    return named[-1] if named else type(mixer).__name__
