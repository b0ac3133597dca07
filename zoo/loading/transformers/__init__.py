"""Weights of transformers' layers and models in the zoo's own: the same numbers out, on the one contract."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from torch import nn

from zoo.backbone import Backbone
from zoo.contract import SequenceMixer
from zoo.extras import how_to_install
from zoo.loading.transformers.check import departure
from zoo.loading.transformers.layers import LAYERS, read_layer
from zoo.loading.transformers.models import MODELS, read_model
from zoo.loading.transformers.reading import Weights, exact_buffers, expect, few
from zoo.registry import create_mixer

__all__ = ["LAYERS", "MODELS", "load_transformers"]


def load_transformers(source: nn.Module | str | os.PathLike[str], *, verify: bool = True) -> SequenceMixer | Backbone:
    """Build the mixer or model that one of transformers is, with its weights: outputs, gradients and states agree.

        mixer = zoo.load_transformers(theirs.model.layers[0].self_attn)     # a layer: a SequenceMixer
        model = zoo.load_transformers(theirs)                               # a language model: a Backbone
        logits = model(tokens)

    Models: the ...ForCausalLM of Mamba, FalconMamba, Mamba2, Jamba, Llama, Qwen3, Qwen3Moe, Qwen3Next, Qwen3_5,
    Qwen3_5Moe, DeepseekV3, KimiLinear, MiniMax, Zamba2, Bamba, GraniteMoeHybrid, FalconH1, NemotronH, OlmoHybrid,
    RecurrentGemma, Lfm2, xLSTM and Rwkv (RWKV-4). Layers: their mixers. docs/transformers.md lists the supported
    configurations. Every weight is copied, in its dtype, on its device, with its requires_grad; those that are one
    parameter here (queries, keys and values; gate and up) must agree in these. A multiplier that transformers applies
    in passing (Granite, Falcon-H1, MiniMax) is multiplied into the weight before it, a norm that stores its weight less
    one (Qwen3-Next, Qwen3.5, RecurrentGemma) gets the one: outputs and gradients of inputs are the same, and the
    gradient of such a weight is theirs divided by the multiplier. A head whose weight is the embedding's still is. What
    a layer of ours has and theirs lacks is a frozen constant: ones for the norms of dt, B and C in FalconMamba, zeros
    for the bias of Kimi Linear's output gate. RWKV's norm of the embeddings is computed into them, once. What
    transformers never runs (low-rank maps of a Zamba2 without shared blocks) is left out. The embedding of a padding
    token, which transformers leaves out of training, is a parameter like the others.

    Args:
        source: the layer or model, or the folder (or name) of a pretrained model, which transformers loads.
        verify: run theirs on seeded random input, in its dtype and eval mode, and compare every layer with ours.

    Raises:
        ValueError: another kind of module, one with adapters or layers that are not transformers' own, a configuration
            or weights that the zoo cannot express (names the field), outputs that differ (names the first layer whose
            do), or a folder that transformers cannot load or that does not hold exactly the model's weights.
        ModuleNotFoundError: a folder is given and transformers is not installed; names the extra that brings it.
    """
    if not isinstance(source, (nn.Module, str, os.PathLike)):
        raise ValueError(
            f"source must be a layer or model of transformers, or a folder, got {type(source).__name__}: {source!r}"
        )
    theirs = source if isinstance(source, nn.Module) else _pretrained(source)
    kind = type(theirs).__name__
    if not _own(theirs) or kind not in {*LAYERS, *MODELS}:
        found = kind if _own(theirs) else f"{type(theirs).__module__}.{type(theirs).__qualname__}"
        valid = MODELS if hasattr(theirs, "get_input_embeddings") else LAYERS
        raise ValueError(f"load_transformers cannot read {found}; it reads {', '.join(valid)}")
    for path, module in theirs.named_modules():
        if not _own(module):
            found = f"{type(module).__module__}.{type(module).__qualname__}"
            raise ValueError(
                f"{kind}: {path} is a {found}, which is no layer of torch or transformers itself; "
                "merge adapters into the weights, and undo quantization, first"
            )
    weights = Weights(theirs)
    try:
        ours = read_model(theirs, weights) if kind in MODELS else _mixer(theirs, weights)
    except AttributeError as error:
        raise ValueError(f"{kind}: not built as transformers builds it: {error}") from error
    weights.fill(ours)
    if verify:
        _verify(theirs, ours)
    return ours.train(theirs.training)


def _verify(theirs: nn.Module, ours: SequenceMixer | Backbone) -> None:
    """Raise ValueError unless ours has their outputs.

    A copy in float32 decides about a 16-bit model that rounds to more than the bound, or that transformers cannot run.
    A copy in float64 decides about a float32 model that does: RecurrentGemma loses digits in 1 - a² for a close to 1.
    """
    dtypes = {parameter.dtype for parameter in theirs.parameters()}
    size = min(dtype.itemsize for dtype in dtypes)
    try:
        found = departure(theirs, ours)
    except ValueError as error:
        if size > 2 or len(dtypes) > 1:
            raise
        found = str(error)
    if not found:
        return
    if size > 4:
        raise ValueError(found)
    try:
        load_transformers(_widened(theirs, torch.float32 if size <= 2 else torch.float64))
    except ValueError as error:
        raise ValueError(error if size <= 2 else found) from None


def _widened(theirs: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy whose buffers are exact again where a cast only rounded them."""
    wide: Any = copy.deepcopy(theirs).to(dtype)
    for held, module in zip(theirs.modules(), wide.modules(), strict=True):
        for name, exact in exact_buffers(held).items():
            module.get_buffer(name).copy_(exact)
    return wide


def _own(module: nn.Module) -> bool:
    """Whether the class is exactly one of torch's or transformers': adapters and quantized layers are others."""
    return type(module).__module__.startswith(("torch.nn.modules.", "transformers.models.", "transformers.activations"))


def _pretrained(source: str | os.PathLike[str]) -> nn.Module:
    try:
        from transformers import AutoModelForCausalLM
        from transformers.utils.peft_utils import find_adapter_config_file
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"loading a pretrained model needs transformers: {how_to_install('transformers', 'transformers')}",
            name="transformers",
        ) from None
    try:
        adapter = find_adapter_config_file(os.fspath(source))
    except OSError:  # neither a folder nor a name that a model could have
        raise ValueError(
            f"transformers cannot load {os.fspath(source)!r}: no such folder, and no model of that name within reach"
        ) from None
    if adapter is not None:
        raise ValueError(f"{source} holds an adapter (adapter_config.json): merge it and save the whole model first")
    try:
        load: Any = AutoModelForCausalLM.from_pretrained
        theirs, loaded = load(source, output_loading_info=True, ignore_mismatched_sizes=True, trust_remote_code=False)
    except Exception as error:  # of many kinds: files, their format, unknown configurations
        raise ValueError(f"transformers cannot load {source}: {' '.join(str(error).split())}") from error
    for names, misfit in (
        (loaded["mismatched_keys"], "has in another shape"),
        (loaded["missing_keys"], "lacks"),
        (loaded["unexpected_keys"], "holds, beyond the model,"),
    ):
        if names:
            paths = sorted(name if isinstance(name, str) else name[0] for name in names)
            raise ValueError(f"{source} {misfit} {few(paths)}; valid is exactly the model's weights")
    return theirs


def _mixer(theirs: Any, weights: Weights) -> SequenceMixer:
    options, table, fields = read_layer(theirs)
    expect(theirs, fields)
    weights.read(table)
    d_model = weights.found["out_proj.weight"].shape[0]
    with torch.device("meta"):
        return create_mixer(d_model=d_model, **options)
