"""`load_transformers`: convert layers and models of transformers to mixers and backbones with the same outputs."""

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
    """Convert a layer or a model of transformers, with its weights, to a mixer or a `Backbone`.

        mixer = zoo.load_transformers(theirs.model.layers[0].self_attn)     # a layer: a SequenceMixer
        model = zoo.load_transformers(theirs)                               # a language model: a Backbone
        logits = model(tokens)

    Models: the ...ForCausalLM of Mamba, FalconMamba, Mamba2, Jamba, Llama, Qwen3, Qwen3Moe, Qwen3Next, Qwen3_5,
    Qwen3_5Moe, DeepseekV3, KimiLinear, MiniMax, Zamba2, Bamba, GraniteMoeHybrid, FalconH1, NemotronH, OlmoHybrid,
    RecurrentGemma, Lfm2, xLSTM and Rwkv (RWKV-4). Layers: the mixers of these models. docs/transformers.md lists the
    supported configurations.

    Outputs, states and gradients of inputs agree. Weights are copied with their dtype, device and requires_grad, which
    must be equal for weights that we store as one parameter (queries, keys and values; gate and up). A tied head stays
    tied. Exceptions:

    - Multipliers (Granite, Falcon-H1, MiniMax) are multiplied into the preceding weight, whose gradient is then the
      original one divided by the multiplier.
    - Norms of Qwen3-Next, Qwen3.5 and RecurrentGemma store weight - 1; ours store the weight.
    - Parameters that only our layer has are frozen constants: ones for the norms of dt, B and C in FalconMamba, zeros
      for the bias of Kimi Linear's output gate.
    - RWKV's norm of the embeddings is applied to them once.
    - Weights that transformers never uses (low-rank maps of a Zamba2 without shared blocks) are omitted.
    - The embedding of a padding token, which transformers does not train, is trained like the others.

    Args:
        source: a layer or model, or the folder (or name) of a pretrained model, which transformers loads.
        verify: whether to run the original on seeded random input, in its dtype and eval mode, and compare every layer.

    Raises:
        ValueError: an unsupported module, a module with adapters or foreign layers, a configuration or weights that the
            zoo cannot express (the message has the field), outputs that differ (the message has the first such layer),
            a folder that transformers cannot load or that has missing or extra weights.
        ModuleNotFoundError: `source` is a folder and transformers is not installed; the message has the extra.
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
        raise ValueError(f"load_transformers does not support {found}; supported: {', '.join(valid)}")
    for path, module in theirs.named_modules():
        if not _own(module):
            found = f"{type(module).__module__}.{type(module).__qualname__}"
            raise ValueError(
                f"{kind}: {path} is a {found}, not a layer of torch or transformers; "
                "first merge adapters into the weights, and undo quantization"
            )
    weights = Weights(theirs)
    try:
        ours = read_model(theirs, weights) if kind in MODELS else _mixer(theirs, weights)
    except AttributeError as error:
        raise ValueError(f"{kind}: the module differs from the class in transformers: {error}") from error
    weights.fill(ours)
    if verify:
        _verify(theirs, ours)
    return ours.train(theirs.training)


def _verify(theirs: nn.Module, ours: SequenceMixer | Backbone) -> None:
    """Raise ValueError unless the outputs of `ours` and `theirs` agree.

    If a 16-bit model exceeds the bound, or transformers cannot run it, a copy in float32 decides. If a float32 model
    exceeds the bound, a copy in float64 decides: RecurrentGemma suffers from cancellation in 1 - a² for a close to 1.
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
    """Return a copy in a wider dtype, in which buffers that a cast had rounded are exact again."""
    wide: Any = copy.deepcopy(theirs).to(dtype)
    for held, module in zip(theirs.modules(), wide.modules(), strict=True):
        for name, exact in exact_buffers(held).items():
            module.get_buffer(name).copy_(exact)
    return wide


def _own(module: nn.Module) -> bool:
    """Return whether the class is defined by torch or transformers, unlike adapters and quantized layers."""
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
    except OSError:  # neither a folder nor a valid name of a model
        raise ValueError(
            f"transformers cannot load {os.fspath(source)!r}: no such folder, and no model of this name is available"
        ) from None
    if adapter is not None:
        raise ValueError(f"{source} has an adapter (adapter_config.json): first merge it and save the whole model")
    try:
        load: Any = AutoModelForCausalLM.from_pretrained
        theirs, loaded = load(source, output_loading_info=True, ignore_mismatched_sizes=True, trust_remote_code=False)
    except Exception as error:  # of many types: missing files, invalid formats, unknown configurations
        raise ValueError(f"transformers cannot load {source}: {' '.join(str(error).split())}") from error
    for names, misfit in (
        (loaded["mismatched_keys"], "weights of the wrong shape"),
        (loaded["missing_keys"], "missing weights"),
        (loaded["unexpected_keys"], "unexpected weights"),
    ):
        if names:
            paths = sorted(name if isinstance(name, str) else name[0] for name in names)
            raise ValueError(f"{source} has {misfit}: {few(paths)}; it must have exactly the model's weights")
    return theirs


def _mixer(theirs: Any, weights: Weights) -> SequenceMixer:
    options, table, fields = read_layer(theirs)
    expect(theirs, fields)
    weights.read(table)
    d_model = weights.found["out_proj.weight"].shape[0]
    with torch.device("meta"):
        return create_mixer(d_model=d_model, **options)
