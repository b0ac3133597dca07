"""Verify a converted model: compare its outputs with the original, layer by layer."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from zoo.backbone import Backbone
from zoo.contract import SequenceMixer
from zoo.loading.transformers.layers import LAYERS
from zoo.loading.transformers.models import stages_of
from zoo.loading.transformers.reading import join
from zoo.ops.precision import widest
from zoo.registry import MIXERS

ALLOWED = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Bounds of `_miss` by the dtype of our output. For float64 too, transformers computes norms in float32."""

_SEQ_LEN = 32


def departure(theirs: Any, ours: SequenceMixer | Backbone) -> str | None:
    """Run both on random input; return a message about the first layer whose outputs differ, or None.

    Each of our layers gets the original's input. Over the whole depth roundoff would accumulate, in bfloat16 to the
    size of the output.

    Raises:
        ValueError: one of them cannot be run.
    """
    stages = dict(stages_of(theirs, ours) if isinstance(ours, Backbone) else [("", ours)])
    x, options = _random_input(theirs, ours)
    dtype = ours.get_parameter("embedding.weight" if isinstance(ours, Backbone) else "out_proj.weight").dtype
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), _recorded(theirs, stages) as outputs:
            theirs(x, **options)
            ours.eval()
            for path, stage in stages.items():
                y = stage(x)
                miss, allowed = _miss(y, outputs[path]), ALLOWED[y.dtype]
                if not miss <= allowed:
                    return (
                        f"{join(type(theirs).__name__, path)} and its conversion differ: relative error {miss:.1e} on "
                        f"random input, allowed {allowed:.0e} in {y.dtype}; some part does not match its "
                        "configuration (verify=False skips this check)"
                    )
                x = outputs[path].to(dtype)  # the original may keep the residual in float32
    except (RuntimeError, AttributeError, TypeError, ValueError, LookupError) as error:
        dtypes = sorted({str(parameter.dtype) for parameter in theirs.parameters()})
        raise ValueError(
            f"{type(theirs).__name__}: cannot be run in {' and '.join(dtypes)} to verify the conversion: "
            f"{' '.join(str(error).split())}; {'cast it to one dtype, or ' * (len(dtypes) > 1)}give verify=False"
        ) from error
    return None


@contextmanager
def _recorded(theirs: Any, paths: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Record the original's outputs by path, without dropout; training flags are restored afterwards.

    RWKV runs in training mode: a pass in training mode undoes the halving of weights, which eval mode repeats.
    """
    outputs: dict[str, Tensor] = {}

    def record(path: str) -> Callable[..., None]:
        def hook(_module: object, _inputs: object, output: Any) -> None:
            if not isinstance(output, Tensor):  # a model's output may begin with an auxiliary loss
                output = output[0] if isinstance(output, tuple) else output.logits
            outputs[path] = output

        return hook

    training = {module: module.training for module in theirs.modules()}
    hooks = [theirs.get_submodule(path).register_forward_hook(record(path)) for path in paths]
    config: Any = getattr(theirs, "config", None)
    experts = getattr(config, "_experts_implementation", None)
    try:
        # RWKV in eval mode scales the residual stream, but not the epsilons of norms.
        theirs.train(hasattr(config, "rescale_every"))
        if experts is not None:
            config._experts_implementation = "eager"  # the only one that supports float64
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()
        for module, flag in training.items():
            module.training = flag
        if experts is not None:
            config._experts_implementation = experts


def _random_input(theirs: Any, ours: SequenceMixer | Backbone) -> tuple[Tensor, dict[str, Any]]:
    """Return random tokens for a model, or vectors for a layer, and the other arguments of the call."""
    generator = torch.Generator().manual_seed(0)
    config: Any = getattr(theirs, "config", None)
    longest = getattr(config, "max_position_embeddings", None) or _SEQ_LEN + 1
    seq_len = max(1, min(_SEQ_LEN, longest - 1))  # below the length at which dynamic rope keeps a state
    if getattr(config, "mode", "") == "train":  # xLSTM needs whole chunks
        seq_len = math.ceil(seq_len / config.chunk_size) * config.chunk_size
    if isinstance(ours, Backbone):
        assert ours.embedding is not None
        tokens = torch.randint(ours.embedding.num_embeddings, (2, seq_len), generator=generator)
        return tokens.to(ours.embedding.weight.device), {"use_cache": False}
    like = ours.get_parameter("out_proj.weight")
    x = torch.randn(2, seq_len, ours.d_model, generator=generator).to(like)
    positions = torch.arange(seq_len, device=x.device)[None]
    taken = inspect.signature(theirs.forward).parameters
    options: dict[str, Any] = dict.fromkeys(("attention_mask", "position_embeddings"))
    options |= {"position_ids": positions, "use_cache": False}
    options = {argument: value for argument, value in options.items() if argument in taken}
    if MIXERS.entry(LAYERS[type(theirs).__name__].mixer).family != "softmax":
        return x, options
    if theirs.config._attn_implementation in (None, "eager", "sdpa"):  # other implementations are causal by default
        lag = positions.T - positions
        hidden = (lag < 0) | (lag >= ours.options.get("window", seq_len))
        mask = x.new_zeros(hidden.shape).masked_fill(hidden, torch.finfo(x.dtype).min)
        options["attention_mask"] = mask[None, None]
    family, code = type(theirs).__name__.removesuffix("Attention"), sys.modules[type(theirs).__module__]
    rotary = getattr(code, f"{family}TextRotaryEmbedding", getattr(code, f"{family}RotaryEmbedding", None))
    if rotary is not None and "position_embeddings" in taken:  # rope belongs to the model, not to the layer
        turned = ours.options.get("position") != "none"
        options["position_embeddings"] = rotary(theirs.config).to(x.device)(x, positions) if turned else None
    return x, options


def _miss(ours: Tensor, theirs: Tensor) -> float:
    """Return the RMS of the difference, relative to `theirs`; NaN if either has a NaN."""
    wide = widest(theirs.device)
    difference, size = (t.square().mean().sqrt().item() for t in (ours.to(wide) - theirs.to(wide), theirs.to(wide)))
    return difference / size if size else float(difference > 0)
