"""Run published layers in float64, and record their outputs, gradients and states for tests/upstream.

    python tools/record_upstream.py CHECKOUTS [NAME ...]

CHECKOUTS contains a clone of each repository in `SOURCES`, named by its key and at its commit. Install einops, triton,
transformers, pytest (for flash-linear-attention and mamba), jax, flax (minimal-LRU, S5), equinox (linoss), and the
dependencies of titans-pytorch.

Layers are the authors' modules. CUDA and Triton kernels are replaced by the plain Python references of the same
repository, and float32 by float64. Each record is made in a separate process.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import importlib.metadata
import json
import math
import subprocess
import sys
import types
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

RECORDS = Path(__file__).parents[1] / "tests" / "upstream" / "records"
SOURCES = {
    "flash-linear-attention": ("fla-org/flash-linear-attention", "bc3b101dcb713ddc5bd8924b66754eb68b5ccf89"),
    "mamba": ("state-spaces/mamba", "e9594ce1c732d97440f0332fdc43170a2294dbfa"),
    "mamba-softplus": ("state-spaces/mamba", "a14b1dff0454a3bc27d9eb31355dc01e4b2490ec"),
    "s4": ("state-spaces/s4", "e757cef57d89e448c413de7325ed5601aceaac13"),
    "minimal-LRU": ("NicolasZucchet/minimal-LRU", "bbd71b1104c399ec0d13819527d791949e66f599"),
    "S5": ("lindermanlab/S5", "3c18fdb6b06414da35e77b94b9cd855f6a95ef17"),
    "linoss": ("tk-rusch/linoss", "83e6318469cf9e5f78290ed5f5fe8db7cfb6e667"),
    "PhysicsLM4": ("facebookresearch/PhysicsLM4", "75806965208c55e9f7f2e2363d3793d2da75d2e4"),
    "minGRU-pytorch": ("lucidrains/minGRU-pytorch", "38b26e119a2e85e70ea53825dc09b91b021afa06"),
    "xlstm": ("NX-AI/xlstm", "032a6fb8ee19a8c0db80ae6111ff4744a09414a9"),
    "zoology": ("HazyResearch/zoology", "d88d6f5474f36998d82d5c3bd58a190248d0a669"),
    "fast-transformers": ("idiap/fast-transformers", "2ad36b97e64cb93862937bd21fcc9568d989561f"),
    "log-linear-attention": ("HanGuo97/log-linear-attention", "7f8644159c1406fae1ad863829a5b3a4fbf63022"),
    "titans-pytorch": ("lucidrains/titans-pytorch", "cc016ebca455a003749be4cab715acd88fea4d38"),
    "MoBA": ("MoonshotAI/MoBA", "61e456bc956c5a25fd9c84e5496b661329cb1b72"),
    "attention_with_linear_biases": (
        "ofirpress/attention_with_linear_biases",
        "4b92f28a005ead2567abe2359f633e73e08f3833",
    ),
    "transformers": ("huggingface/transformers", "5.23.0"),  # the installed release; no clone is needed
}
SHORT, LONG = (2, 7), (1, 70)  # batch and length; 70 is more than one chunk of any op

FLA = "flash-linear-attention"
State = dict[str, Tensor]
Run = Callable[[Tensor], tuple[Tensor, State]]
"""A layer as a function of its input: output and final state."""


class Layer(NamedTuple):
    """A layer to record: its repository, its files there, and the function that makes it."""

    source: str
    files: tuple[str, ...]
    make: Callable[[], tuple[nn.Module, Run]]


LAYERS: dict[str, Layer] = {}


def layer(name: str, source: str, *files: str) -> Callable[[Callable[[], tuple[nn.Module, Run]]], Any]:
    """Register a function that makes a module and its `Run`, as the record `name`."""

    def register(make: Callable[[], tuple[nn.Module, Run]]) -> Any:
        LAYERS[name] = Layer(source, files, make)
        return make

    return register


# The layers.

LINEAR = "fast_transformers/recurrent/attention/self_attention"


@layer("linear_attention", "fast-transformers", f"{LINEAR}/linear_attention.py", f"{LINEAR}/attention_layer.py")
def linear_attention() -> tuple[nn.Module, Run]:
    root = LINEAR.replace("/", ".")
    inner = importlib.import_module(f"{root}.linear_attention").RecurrentLinearAttention(3)
    module = importlib.import_module(f"{root}.attention_layer").RecurrentAttentionLayer(inner, 6, 2)
    for projection in (module.query_projection, module.key_projection, module.value_projection, module.out_projection):
        projection.bias = None

    def run(x: Tensor) -> tuple[Tensor, State]:
        state, outputs = None, []
        for u in x.unbind(1):
            y, state = module(u, u, u, state)
            outputs.append(y)
        return torch.stack(outputs, 1), {"S": state[0], "z": state[1]}

    return module, run


@layer("gated_linear_attention", FLA, "fla/layers/gla.py", "fla/ops/gla/naive.py")
def gated_linear_attention() -> tuple[nn.Module, Run]:
    file, state = _with_naive_gla("layers.gla")
    file.FusedRMSNormGated = _GatedNorm
    module = file.GatedLinearAttention(hidden_size=8, num_heads=2, gate_low_rank_dim=3)
    return module, lambda x: (module(x)[0], state)


@layer("log_linear_ssd", FLA, "fla/layers/log_linear_mamba2.py", "fla/ops/log_linear_attn/naive.py")
def log_linear_ssd() -> tuple[nn.Module, Run]:
    """Make a layer with a tree of 8 levels, for up to 128 positions, and two groups of keys."""
    file, naive = _fla("layers.log_linear_mamba2"), _fla("ops.log_linear_attn.naive").naive_log_linear_attn
    file.MAX_NUM_LEVELS, norm = 8, _fla("modules.layernorm_gated").rms_norm_ref

    def kernel(q: Tensor, k: Tensor, v: Tensor, g: Tensor, level_scales: Tensor, **_: Any) -> tuple[Tensor, None]:
        q, k = (t.repeat_interleave(v.shape[2] // t.shape[2], 2) for t in (q, k))
        return naive(q, k, v, g, level_scales), None

    def conv(x: Tensor, weight: Tensor, bias: Tensor, **_: Any) -> Tensor:
        return F.silu(F.conv1d(F.pad(x, (3, 0)), weight.unsqueeze(1), bias, groups=len(weight)))

    file.chunk_log_linear_attn, file.rmsnorm_fn, file.causal_conv1d_fn = kernel, norm, conv
    _fla("modules.layernorm_gated").rmsnorm_fn = norm
    options = {"state_size": 3, "n_groups": 2, "use_conv_bias": True, "use_bias": False}
    module = file.LogLinearMamba2(hidden_size=4, num_heads=4, head_dim=2, **options)
    module.causal_conv1d_fn = conv
    return module, lambda x: (module.cuda_kernels_forward(x)[0], {})


@layer("gsa", FLA, "fla/layers/gsa.py", "fla/ops/gsa/naive.py")
def gsa() -> tuple[nn.Module, Run]:
    file, naive, norm = _fla("layers.gsa"), _fla("ops.gsa.naive").naive_recurrent_gsa, _fla("modules.layernorm")
    state: State = {}

    def kernel(**given: Any) -> tuple[Tensor, Any]:
        given = {name: given[name] for name in ("q", "k", "v", "s", "g", "scale")}
        y, (state["keys"], state["values"]) = naive(**given, output_final_state=True)
        return y, None

    file.fused_recurrent_gsa = file.chunk_gsa = kernel
    file.RMSNorm, file.SwishFeatureMap = _Norm, nn.SiLU
    file.rms_norm_linear = lambda x, weight, bias, w, b: F.linear(norm.rms_norm_ref(x, weight, bias, eps=1e-5), w, b)
    module = file.GatedSlotAttention(hidden_size=6, num_heads=2, num_slots=5, layer_idx=0)
    module.g_norm.bias = None
    return module, lambda x: (module(x)[0], state)


@layer("hgrn2", FLA, "fla/layers/hgrn2.py", "fla/ops/gla/naive.py")
def hgrn2() -> tuple[nn.Module, Run]:
    file, state = _with_naive_gla("layers.hgrn2")
    norm = _fla("modules.layernorm").rms_norm_ref
    file.swish = F.silu
    file.rms_norm_linear = lambda x, weight, bias, w, b: F.linear(norm(x, weight, bias, eps=1e-5), w, b)
    module, bound = file.HGRN2Attention(hidden_size=6, expand_ratio=3, layer_idx=1), torch.tensor(0.25)
    return module, lambda x: (module(x, lower_bound=bound)[0], state)


@layer("delta_net", FLA, "fla/layers/delta_net.py", "fla/ops/delta_rule/naive.py")
def delta_net() -> tuple[nn.Module, Run]:
    naive = _fla("ops.delta_rule.naive").delta_rule_recurrence

    def kernel(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        y, S = naive(*(t.transpose(1, 2) for t in (q, k, v, beta)))
        return y.transpose(1, 2), S

    return _delta("layers.delta_net", "DeltaNet", "delta_rule", kernel)


NEGATIVE = {"head_dim": 3, "expand_v": 2, "allow_neg_eigval": True}
PATH = "fla/ops/gated_delta_rule"


@layer("gated_delta_net", FLA, "fla/layers/gated_deltanet.py", f"{PATH}/naive.py", f"{PATH}/gate.py")
def gated_delta_net() -> tuple[nn.Module, Run]:
    naive = _fla("ops.gated_delta_rule.naive").naive_recurrent_gated_delta_rule
    gate = _fla("ops.gated_delta_rule.gate").naive_gdn_gate

    def kernel(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor, **_: Any
    ) -> tuple[Tensor, Tensor]:
        return naive(q, k, v, 2 * beta.sigmoid(), gate(g, A_log, dt_bias), output_final_state=True)

    return _delta("layers.gated_deltanet", "GatedDeltaNet", "gated_delta_rule", kernel, **NEGATIVE)


HGDN = [f"hattention/{name}.py" for name in ("modeling_h_gated_deltanet", "gated_delta_rule_apis", "recurrent")]


@layer("log_linear_gated_delta_net", "log-linear-attention", *HGDN)
def log_linear_gated_delta_net() -> tuple[nn.Module, Run]:
    """Make a layer with a tree of 8 levels, for up to 128 positions, on flash-linear-attention's GatedDeltaNet."""
    checkout = Path(sys.path[0])
    sys.path.insert(0, str(checkout.parent / FLA))
    file = _fla("layers.gated_deltanet")
    file.ShortConvolution, file.RMSNorm, file.FusedRMSNormGated = _ShortConv, _Norm, _GatedNorm
    package = types.ModuleType("hattention")
    package.__path__ = [str(checkout / "hattention")]  # without the imports of its __init__.py
    stubs = {  # imports of the layer that are not used here: kernels, and a model
        "hattention": package,
        "hattention.kernel": mock.MagicMock(),
        "hattention.modeling_hattention": types.SimpleNamespace(MAX_NUM_LEVELS=8, LAMBDA_LEVEL_FIXED=True),
        "causal_conv1d": mock.MagicMock(),
        "mamba_ssm.ops.triton.ssd_combined": mock.MagicMock(),
    }
    with mock.patch.dict(sys.modules, stubs):
        layers = importlib.import_module("hattention.modeling_h_gated_deltanet")
        api, recurrent = (
            importlib.import_module(f"hattention.{name}") for name in ("gated_delta_rule_apis", "recurrent")
        )
    read = recurrent.HState.dot

    def dot(held: Any, other: Tensor) -> Tensor:
        apart = copy.copy(held)
        apart.states = held.states.clone()  # the next position overwrites the original
        return read(apart, other)

    def kernel(q: Tensor, k: Tensor, v: Tensor, b: Tensor, g: Tensor, **given: Any) -> tuple[Tensor, Any]:
        form = {"base": given["level_base"], "htype": given["htype"], "hstruct": given["hstruct"]}
        return recurrent.hattention_recurrent(_unit(q), _unit(k), v, g.exp(), b, given["l"], **form)

    recurrent.HState.dot = dot
    api.hattention_prefill, api.torch = kernel, types.SimpleNamespace(float32=None)  # it rejects float32
    layer = layers.HGatedDeltaNet(hidden_size=6, num_heads=2, head_dim=4, layer_idx=0)

    def run(x: Tensor) -> tuple[Tensor, State]:
        y = layer(x, use_cache=True)[0]
        convs = (layer.q_conv1d, layer.k_conv1d, layer.v_conv1d)
        return y, {"conv": torch.cat([conv.last for conv in convs], 2)}

    return layer, run


@layer("kda", FLA, "fla/layers/kda.py", "fla/ops/kda/naive.py", "fla/ops/kda/gate.py")
def kda() -> tuple[nn.Module, Run]:
    naive, gate = _fla("ops.kda.naive").naive_recurrent_kda, _fla("ops.kda.gate").naive_kda_gate

    def kernel(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor, **_: Any
    ) -> tuple[Tensor, Tensor]:
        g = gate(g, A_log, dt_bias, output_dtype=torch.float64)
        return naive(q, k, v, g, 2 * beta.sigmoid(), output_final_state=True)

    return _delta("layers.kda", "KimiDeltaAttention", "kda", kernel, **NEGATIVE)


@layer("gdn2", FLA, "fla/layers/gdn2.py", "fla/ops/gdn2/naive.py")
def gdn2() -> tuple[nn.Module, Run]:
    naive = _fla("ops.gdn2.naive").naive_recurrent_gdn2

    def kernel(q: Tensor, k: Tensor, v: Tensor, g: Tensor, b: Tensor, w: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        return naive(q, k, v, g, b, w, output_final_state=True)

    return _delta("layers.gdn2", "GatedDeltaNet2", "gdn2", kernel, **NEGATIVE)


@layer("comba", FLA, "fla/layers/comba.py", "fla/ops/comba/naive.py")
def comba() -> tuple[nn.Module, Run]:
    naive = _fla("ops.comba.naive").naive_chunk_comba  # the recurrent form there decays before it erases

    def kernel(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        return naive(q, k, v, k * decay.sigmoid().view(-1, 1), g, beta, output_final_state=True)

    module, run = _delta("layers.comba", "Comba", "comba", kernel, head_dim=3)
    decay = module.decay
    return module, run


@layer("mesa_net", FLA, "fla/layers/mesa_net.py", "fla/ops/mesa_net/naive.py")
def mesa_net() -> tuple[nn.Module, Run]:
    file, naive = _fla("layers.mesa_net"), _fla("ops.mesa_net.naive").naive_mesa_net_exact
    state: State = {}

    def kernel(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, lamb: Tensor, **_: Any) -> Any:
        y, state["H"], state["S"] = naive(_unit(q), _unit(k), v, g, lamb, beta)
        return y, state["H"], state["S"]

    file.chunk_mesa_net, file.ShortConvolution, file.RMSNorm = kernel, _ShortConv, _Norm
    module = file.MesaNet(hidden_size=6, num_heads=2, head_dim=3)

    def run(x: Tensor) -> tuple[Tensor, State]:
        y = module(x)[0]
        return y, {**state, "conv": torch.cat([conv.last for conv in (module.q_conv1d, module.k_conv1d)], 2)}

    return module, run


@layer("titans", "titans-pytorch", "titans_pytorch/neural_memory.py", "titans_pytorch/memory_models.py")
def titans() -> tuple[nn.Module, Run]:
    """Make a layer whose memory is one matrix, initially zero, with a gradient step per position and unit q and k."""
    file = importlib.import_module("titans_pytorch.neural_memory")
    module = file.NeuralMemory(
        dim=6,
        dim_head=3,
        heads=2,
        chunk_size=1,
        batch_size=1,
        model=file.MemoryMLP(3, depth=1),
        activation=nn.SiLU(),
        default_step_transform_max_lr=3 / 2,  # the loss is the mean of 3 squares, in the paper half their sum
        pre_rmsnorm=False,
        post_rmsnorm=True,
        mem_model_norm_add_residual=False,
    )
    for name, held in (("memory_model", module.memory_model), ("memory_model_parameters", [torch.zeros(2, 3, 3)])):
        delattr(module, name)
        module.__dict__[name] = held  # not parameters, since the initial memory is not learned
    module.q_norm, module.k_norm = _Unit(3**-0.5), _Unit(1.0)
    module.multihead_rmsnorm = file.MultiheadRMSNorm(3, 1)  # one weight for both heads
    module.multihead_rmsnorm.rmsnorm.eps = 1e-5

    def run(x: Tensor) -> tuple[Tensor, State]:
        y, memory = module(x)
        S, Z = (t["weights.0"].view(len(x), 2, 3, 3) for t in memory.states)
        return y, {"S": S, "Z": Z}

    return module, run


class _Unit(nn.Module):
    def __init__(self, length: float) -> None:
        super().__init__()
        self.length = length

    def forward(self, x: Tensor) -> Tensor:
        return self.length * _unit(x)


@layer("delta_product", FLA, "fla/layers/gated_deltaproduct.py", "fla/ops/gated_delta_product/naive.py")
def delta_product() -> tuple[nn.Module, Run]:
    naive = _fla("ops.gated_delta_product.naive").naive_recurrent_gated_delta_product

    def kernel(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, num_householder: int, **_: Any
    ) -> tuple[Tensor, Tensor]:
        given = {"output_final_state": True, "num_householder": num_householder}
        return naive(q * q.shape[3] ** -0.5, k, v, g, beta, None, None, **given)

    options = {"head_dim": 3, "num_householder": 2}
    module, run = _delta("layers.gated_deltaproduct", "GatedDeltaProduct", "gated_delta_product", kernel, **options)
    module.eval = module.train  # in eval mode, the layer runs short sequences by another kernel
    return module, run


@layer("retnet", FLA, "fla/layers/multiscale_retention.py", "fla/ops/retention/naive.py", "fla/modules/rotary.py")
def retnet() -> tuple[nn.Module, Run]:
    _rotate_by_reference()
    file, naive = _fla("layers.multiscale_retention"), _fla("ops.retention.naive").naive_retention

    def kernel(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> tuple[Tensor, None]:
        return naive(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2), None

    file.fused_recurrent_retention = file.chunk_retention = kernel
    file.FusedRMSNormGated = _GatedNorm
    module = file.MultiScaleRetention(hidden_size=8, num_heads=2)
    return module, lambda x: (module(x)[0], {})


@layer("rwkv6", FLA, "fla/layers/rwkv6.py", "fla/modules/token_shift.py", "fla/ops/rwkv6/recurrent_naive.py")
def rwkv6() -> tuple[nn.Module, Run]:
    file, naive = _fla("layers.rwkv6"), _fla("ops.rwkv6.recurrent_naive").naive_recurrent_rwkv6
    shift, state = _fla("modules.token_shift").token_shift_ref, {}

    def kernel(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        given = (t.transpose(1, 2) for t in (r, k, v, w))
        y, state["S"] = naive(*given, u, scale=1.0, output_final_state=True)
        return y.transpose(1, 2), state["S"]

    def shifted(x: Tensor, *_: Any) -> Tensor:
        state["last"] = x[:, -1:]
        return shift(x)

    class Norm(nn.GroupNorm):
        def __init__(self, groups: int, width: int, eps: float, **_: Any) -> None:
            super().__init__(groups, width, eps)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flatten(0, 1)).view_as(x)

    file.fused_recurrent_rwkv6 = file.chunk_rwkv6 = kernel
    file.token_shift, file.GroupNorm, file.ACT2FN = shifted, Norm, {"swish": F.silu}
    module = file.RWKV6Attention(hidden_size=8, num_heads=2, proj_low_rank_dim=3, gate_low_rank_dim=5, layer_idx=0)
    return module, lambda x: (module(x)[0], state)


RWKV = ("fused_addcmul", "fused_k_update", "gate_output_correction")


@layer(
    "rwkv7",
    FLA,
    "fla/layers/rwkv7.py",
    "fla/modules/token_shift.py",
    "fla/ops/generalized_delta_rule/dplr/naive.py",
    *(f"fla/ops/rwkv7/{name}.py" for name in RWKV),
)
def rwkv7() -> tuple[nn.Module, Run]:
    file, naive = _fla("layers.rwkv7"), _fla("ops.generalized_delta_rule.dplr.naive").dplr_recurrence
    shift, (addcmul, update, correction) = (
        _fla("modules.token_shift").token_shift_ref,
        (_fla(f"ops.rwkv7.{name}") for name in RWKV),
    )
    state: State = {}

    def shifted(x: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        state["last"] = x[:, -1:]
        return shift(x), state["last"]

    def chunked(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        r, w, k, v, a, b = (t.transpose(1, 2) for t in (r * r.shape[3] ** 0.5, w, k, v, a, b))  # naive divides by it
        y, state["S"] = naive(r, k, v, a, b, w)
        return y.transpose(1, 2), state["S"]

    file.token_shift, file.chunk_rwkv7 = shifted, chunked
    file.fused_mul_recurrent_rwkv7 = lambda kk, a, **given: chunked(a=-kk, b=kk * a, **given)
    file.fused_addcmul_rwkv7 = addcmul.torch_addcmul_rwkv7
    file.fused_k_rwkv7 = update.k_update_ref
    file.gate_output_correction = correction.gate_output_correction_ref
    ranks = {f"{name}_low_rank_dim": 3 for name in ("decay", "gate", "a", "v")}
    module = file.RWKV7Attention(hidden_size=8, head_dim=4, layer_idx=0, num_hidden_layers=2, **ranks)
    return module, lambda x: (module(x)[0], state)


@layer("forgetting_attention", FLA, "fla/layers/forgetting_attn.py", "fla/ops/forgetting_attn/naive.py")
def forgetting_attention() -> tuple[nn.Module, Run]:
    file, naive = _fla("layers.forgetting_attn"), _fla("ops.forgetting_attn.naive").naive_forgetting_attn
    state: State = {}

    def kernel(q: Tensor, k: Tensor, v: Tensor, f: Tensor, **_: Any) -> Tensor:
        state.update(k=k, v=v, f=f)  # the contents of the cache
        return naive(q, k, v, f)

    file.parallel_forgetting_attn = kernel
    module = file.ForgettingAttention(hidden_size=8, num_heads=4, num_kv_heads=2)
    return module, lambda x: (module(x)[0], state)


@layer("path_attention", FLA, "fla/layers/path_attn.py", "fla/ops/path_attn/naive.py")
def path_attention() -> tuple[nn.Module, Run]:
    file, naive = _fla("layers.path_attn"), _fla("ops.path_attn.naive").naive_path_attn
    state: State = {}

    def kernel(q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, g: Tensor, **_: Any) -> tuple[Tensor, None]:
        state.update(v=v, g=g)  # the contents of the cache, except the transformed keys
        return naive(q, k, v, w, beta, g, q.shape[3] ** -0.5), None

    file.parallel_path_attn, file.ShortConvolution = kernel, _ShortConv
    file.l2_norm = lambda w, **_: _unit(w)
    module = file.PaTHAttention(hidden_size=8, num_heads=4, num_kv_heads=2, use_forget_gate=True)
    return module, lambda x: (module(x)[0], {**state, "conv": module.w_conv1d.last})


@layer("deltaformer", FLA, "fla/layers/deltaformer.py", "fla/ops/deltaformer/naive.py")
def deltaformer() -> tuple[nn.Module, Run]:
    _rotate_by_reference()
    file, naive = _fla("layers.deltaformer"), _fla("ops.deltaformer.naive")
    state, attend = {}, naive.naive_causal_attention_bhtd

    def second_stage(q: Tensor, k: Tensor, u: Tensor) -> Tensor:
        state.update(k=k, u=u)
        return attend(q, k, u)

    def kernel(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, **_: Any) -> Tensor:
        return naive.naive_deltaformer_attn(q, k, v, beta.clamp(-1, 1))  # clamped as in the zoo

    naive.naive_causal_attention_bhtd, file.deltaformer_attn = second_stage, kernel
    module = file.DeltaFormerAttention(hidden_size=8, num_heads=2, rope_theta=50.0)
    return module, lambda x: (module(x)[0], state)


@layer("mlstm", "xlstm", *(f"xlstm/blocks/mlstm/{name}.py" for name in ("layer", "cell", "backends")))
def mlstm() -> tuple[nn.Module, Run]:
    file = importlib.import_module("xlstm.blocks.mlstm.layer")
    step = importlib.import_module("xlstm.blocks.mlstm.backends").recurrent_step_stabilized_simple
    sizes = {"embedding_dim": 6, "num_heads": 2, "context_length": max(SHORT[1], LONG[1])}
    module = file.mLSTMLayer(file.mLSTMLayerConfig(**sizes, round_proj_up_to_multiple_of=4))
    state: State = {}

    def recurrent(**given: Tensor) -> Tensor:
        q, k, v, *gates = (given[name] for name in ("queries", "keys", "values", "igate_preact", "fgate_preact"))
        rows, width = q.shape[:2], q.shape[3]
        memory = q.new_zeros(*rows, width, width), q.new_zeros(*rows, width, 1), q.new_zeros(*rows, 1, 1)
        outputs = []
        for t in range(q.shape[2]):
            now = (part[:, :, t : t + 1].clone() for part in (q, k, v, *gates))  # the step modifies them in place
            y, memory = step(*memory, *now)
            outputs.append(y)
        state.update(zip("Cnm", memory, strict=True))
        return torch.cat(outputs, 2)

    def run(x: Tensor) -> tuple[Tensor, State]:
        state["conv"] = module.proj_up(x)[:, -3:, : module.config._inner_embedding_dim]
        return module(x), state

    module.mlstm_cell.backend_fn = recurrent
    return module, run


@layer("slstm", "xlstm", *(f"xlstm/blocks/slstm/{name}.py" for name in ("layer", "cell", "src/vanilla/slstm")))
def slstm() -> tuple[nn.Module, Run]:
    file = importlib.import_module("xlstm.blocks.slstm.layer")
    module = file.sLSTMLayer(file.sLSTMLayerConfig(embedding_dim=6, num_heads=2, backend="vanilla"))

    def run(x: Tensor) -> tuple[Tensor, State]:
        y, state = module(x, return_last_state=True)
        return y, {"conv": state["conv_state"], "cell": state["slstm_state"]}

    return module, run


@layer("selective_ssm", "mamba", "mamba_ssm/modules/mamba_simple.py", "mamba_ssm/ops/selective_scan_interface.py")
def selective_ssm() -> tuple[nn.Module, Run]:
    file = importlib.import_module("mamba_ssm.modules.mamba_simple")
    file.selective_scan_fn = importlib.import_module("mamba_ssm.ops.selective_scan_interface").selective_scan_ref
    module = file.Mamba(4, d_state=3, dt_rank=2, layer_idx=0)
    return module, _with_cache(module, "conv", "h")


@layer(
    "ssd",
    "mamba",
    *(f"mamba_ssm/{name}.py" for name in ("modules/mamba2", "modules/ssd_minimal", "ops/triton/layernorm_gated")),
)
def ssd() -> tuple[nn.Module, Run]:
    file = importlib.import_module("mamba_ssm.modules.mamba2")
    minimal = importlib.import_module("mamba_ssm.modules.ssd_minimal").ssd_minimal_discrete

    def kernel(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt_bias: Tensor, **_: Any) -> Any:
        dt, copies = F.softplus(dt + dt_bias).unsqueeze(3), x.shape[2] // B.shape[2]
        B, C = (t.repeat_interleave(copies, 2) for t in (B, C))
        y, h = minimal(dt * x, dt.squeeze(3) * A, B, C, block_len=7)
        return y + D.view(-1, 1) * x, h

    file.mamba_chunk_scan_combined, file.RMSNormGated = kernel, _mamba_norm()
    module = file.Mamba2(4, d_state=3, headdim=2, ngroups=2, layer_idx=0)
    return module, _with_cache(module, "conv", "h")


SISO = ("mamba_ssm/modules/mamba3.py", "tests/ops/triton/test_mamba3_siso.py")
MIMO = ("mamba_ssm/modules/mamba3.py", "tests/ops/tilelang/test_mamba3_mimo.py")


@layer("mamba3", "mamba", *SISO)
@layer("mamba3_softplus", "mamba-softplus", *SISO)
def mamba3() -> tuple[nn.Module, Run]:
    sys.modules.setdefault("selective_scan_cuda", types.ModuleType("selective_scan_cuda"))  # March's release imports it
    step = _mamba_test("triton", "test_mamba3_siso").mamba3_siso_step_ref
    file, state = _mamba3("mamba3_siso_combined", step, {}, ("angle", "h", "k", "u"))
    module = file.Mamba3(4, d_state=8, headdim=4)
    return module, lambda x: (module(x), state)


@layer("mamba3_ranks", "mamba", *MIMO)
def mamba3_ranks() -> tuple[nn.Module, Run]:
    step = _mamba_test("tilelang", "test_mamba3_mimo").mamba3_MIMO_step_ref
    mixed = {"MIMO_V": "MIMO_V", "MIMO_Z": "MIMO_Z", "MIMO_O": "MIMO_Out"}
    file, state = _mamba3("mamba3_mimo_combined", step, mixed, ("angle", "h", "k", "v"))
    module = file.Mamba3(3, d_state=4, headdim=3, rope_fraction=1.0, is_mimo=True, mimo_rank=2)
    return module, lambda x: (module(x), state)


@layer("s4d", "s4", "models/s4/s4d.py")
def s4d() -> tuple[nn.Module, Run]:
    module = importlib.import_module("models.s4.s4d").S4D(4, d_state=6, transposed=False)
    return module, lambda x: (module(x)[0], {})


@layer("hyena", "zoology", "zoology/mixers/hyena.py")
def hyena() -> tuple[nn.Module, Run]:
    module = importlib.import_module("zoology.mixers.hyena").Hyena(d_model=4, l_max=80, filter_order=5, emb_dim=5)
    features = module.filter_fn.pos_emb
    fixed = features.z.detach()  # cosines and sines of the lags; the authors train them at a rate of 1e-5
    del features.z
    features.register_buffer("z", fixed)
    return module, lambda x: (module(x), {})


def minimal_recurrence(name: str) -> tuple[nn.Module, Run]:
    module = getattr(importlib.import_module(f"minGRU_pytorch.{name}"), name)(6, expansion_factor=1.5)

    def run(x: Tensor) -> tuple[Tensor, State]:
        y, h = module(x, return_next_prev_hidden=True)
        return y, {"h": h}

    return module, run


layer("min_gru", "minGRU-pytorch", "minGRU_pytorch/minGRU.py")(partial(minimal_recurrence, "minGRU"))
layer("min_lstm", "minGRU-pytorch", "minGRU_pytorch/minLSTM.py")(partial(minimal_recurrence, "minLSTM"))


@layer("sink", "transformers", "models/gpt_oss/modeling_gpt_oss.py")
def sink() -> tuple[nn.Module, Run]:
    module = _transformers("GptOss", "gpt_oss", num_key_value_heads=2, attention_bias=False)
    nn.init.zeros_(module.sinks)

    def run(x: Tensor) -> tuple[Tensor, State]:
        unturned = torch.ones(1, x.shape[1], 2), torch.zeros(1, x.shape[1], 2)
        return module(x, unturned, _causal(x))[0], {}

    return module, run


@layer("lightning_attention", "transformers", "models/minimax/modeling_minimax.py")
def lightning_attention() -> tuple[nn.Module, Run]:
    file = importlib.import_module("transformers.models.minimax.modeling_minimax")
    sizes = {"hidden_size": 12, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 3}
    kinds = {"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 4}
    config = file.MiniMaxConfig(**sizes, **kinds, block_size=16)
    module = file.MiniMaxLightningAttention(config, layer_idx=2)
    module.config = config

    def run(x: Tensor) -> tuple[Tensor, State]:
        y, S = module(x, None, None)
        return y, {"S": S}

    return module, run


@layer("rwkv4", "transformers", "models/rwkv/modeling_rwkv.py")
def rwkv4() -> tuple[nn.Module, Run]:
    file = importlib.import_module("transformers.models.rwkv.modeling_rwkv")
    module = file.RwkvSelfAttention(file.RwkvConfig(hidden_size=6, attention_hidden_size=10, num_hidden_layers=1))
    for vector in (weight for name, weight in module.named_parameters() if name.startswith("time_")):
        nn.init.constant_(vector, 0.5)  # otherwise initialised by the model around the layer

    def run(x: Tensor) -> tuple[Tensor, State]:
        state = [x.new_zeros(len(x), width, 1) for width in (6, 6, 10, 10, 10)]
        state[4] -= 1e30
        with torch.no_grad():  # it writes to the state in place
            _, *state = module(x, state=state, use_cache=True)[1]
        names = ("last", "numerator", "denominator", "largest")
        return module(x)[0], {name: part[:, :, 0] for name, part in zip(names, state, strict=True)}

    return module, run


@layer("differential_attention", "transformers", "models/diffllama/modeling_diffllama.py")
def differential_attention() -> tuple[nn.Module, Run]:
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 6, "num_hidden_layers": 3, "rms_norm_eps": 1e-5}
    parameters = {"rope_type": "default", "rope_theta": 50.0}
    module = _transformers("DiffLlama", "diffllama", 2, **sizes, rope_parameters=parameters)
    rope = importlib.import_module("transformers.models.diffllama.modeling_diffllama").DiffLlamaRotaryEmbedding
    turned = rope(module.config)

    def run(x: Tensor) -> tuple[Tensor, State]:
        return module(x, turned(x, torch.arange(x.shape[1])[None]), _causal(x))[0], {}

    return module, run


@layer("nsa", FLA, "fla/layers/nsa.py", "fla/ops/nsa/naive.py")
def nsa() -> tuple[nn.Module, Run]:
    _rotate_by_reference()
    naive = _fla("ops.nsa.naive")
    state: State = {}

    def softmax(t: Tensor, dim: int) -> Tensor:  # upstream's, without NaN gradients in fully masked rows
        blind = t.isinf().all(dim, keepdim=True)
        return t.masked_fill(blind, 0.0).softmax(dim).masked_fill(blind, 0.0)

    def windowed(q: Tensor, k: Tensor, v: Tensor, window_size: tuple[int, int], **_: Any) -> Tensor:
        lag = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
        mask = (lag >= 0) & (lag <= window_size[0])
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)

    def means(t: Tensor, size: int, *_: Any) -> Tensor:
        return F.pad(t, (0, 0, 0, 0, 0, -t.shape[1] % size)).unflatten(1, (-1, size)).mean(2)

    def kernel(**given: Any) -> Tensor:
        state.update(k=given["k"], v=given["v"])  # the contents of the cache
        with mock.patch.object(torch, "softmax", softmax):
            return naive.naive_nsa(**given)

    naive.flash_attn_func, naive.mean_pooling = windowed, means
    file = _fla("layers.nsa")
    file.parallel_nsa = kernel
    sizes = {"hidden_size": 8, "num_heads": 32, "num_kv_heads": 2, "head_dim": 2}
    module = file.NativeSparseAttention(**sizes, block_size=4, block_counts=4, window_size=5, rope_theta=50.0)
    return module, lambda x: (module(x)[0], state)


@layer("mla", "transformers", "models/deepseek_v3/modeling_deepseek_v3.py")
def mla() -> tuple[nn.Module, Run]:
    latents = {"q_lora_rank": 5, "kv_lora_rank": 6, "qk_nope_head_dim": 3, "v_head_dim": 3, "qk_rope_head_dim": 4}
    parameters = {"rope_type": "default", "rope_theta": 50.0}
    sizes = {"num_key_value_heads": 4, "head_dim": 4, "rope_parameters": parameters}
    module = _transformers("DeepseekV3", "deepseek_v3", **latents, **sizes)
    file = importlib.import_module("transformers.models.deepseek_v3.modeling_deepseek_v3")
    turned = file.DeepseekV3RotaryEmbedding(module.config)

    def run(x: Tensor) -> tuple[Tensor, State]:
        cache = importlib.import_module("transformers").DynamicCache()
        y = module(x, turned(x, torch.arange(x.shape[1])[None]), _causal(x), past_key_values=cache)[0]
        return y, {"c": cache.layers[0].keys, "k": cache.layers[0].values}

    return module, run


@layer("dsa", "transformers", "models/deepseek_v32/modeling_deepseek_v32.py")
def dsa() -> tuple[nn.Module, Run]:
    """Make a layer with eight index heads; with fewer, many positions tie at a score of zero."""
    latents = {"q_lora_rank": 5, "kv_lora_rank": 6, "qk_nope_head_dim": 3, "v_head_dim": 3, "qk_rope_head_dim": 4}
    index = {"index_topk": 3, "index_n_heads": 8, "index_head_dim": 6}
    parameters = {"rope_type": "default", "rope_theta": 50.0}
    sizes = {"num_key_value_heads": 4, "head_dim": 4, "rope_parameters": parameters}
    module = _transformers("DeepseekV32", "deepseek_v32", **latents, **index, **sizes)
    file = importlib.import_module("transformers.models.deepseek_v32.modeling_deepseek_v32")
    turned = file.DeepseekV32RotaryEmbedding(module.config)

    def run(x: Tensor) -> tuple[Tensor, State]:
        cache = importlib.import_module("transformers").DynamicCache(config=module.config)
        positions = torch.arange(x.shape[1])[None]
        y = module(x, turned(x, positions), _causal(x), past_key_values=cache, position_ids=positions)[0]
        (held,) = cache.layers
        return y, {"c": held.keys, "k": held.values, "index": held.indexer_keys}

    return module, run


@layer("moba", "MoBA", "moba/moba_naive.py", "moba/wrapper.py")
def moba() -> tuple[nn.Module, Run]:
    importlib.import_module("transformers.modeling_utils")  # before flash_attn is stubbed below
    interface = types.SimpleNamespace(_flash_attn_varlen_forward=None, _flash_attn_varlen_backward=None)
    flash = types.SimpleNamespace(flash_attn_func=None, flash_attn_varlen_func=None, flash_attn_interface=interface)
    with mock.patch.dict(sys.modules, {"flash_attn": flash, "flash_attn.flash_attn_interface": interface}):
        upstream = importlib.import_module("moba")
    upstream.register_moba(upstream.MoBAConfig(moba_chunk_size=4, moba_topk=2))
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "attn_implementation": "moba_naive"}
    parameters = {"rope_type": "default", "rope_theta": 50.0}
    module = _transformers("Llama", "llama", **sizes, rope_parameters=parameters)
    turned = importlib.import_module("transformers.models.llama.modeling_llama").LlamaRotaryEmbedding(module.config)

    def run(x: Tensor) -> tuple[Tensor, State]:
        cache = importlib.import_module("transformers").DynamicCache()
        y = module(x, turned(x, torch.arange(x.shape[1])[None]), None, past_key_values=cache)[0]
        return y, {"k": cache.layers[0].keys, "v": cache.layers[0].values}

    return module, run


# Replacements of kernels.


def _unit(t: Tensor) -> Tensor:
    """Normalise queries or keys as flash-linear-attention's kernels do (fla/modules/l2norm.py)."""
    return t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt()


class _Norm(nn.Module):
    """RMSNorm of flash-linear-attention, computed by its `rms_norm_ref`."""

    def __init__(self, hidden_size: int, elementwise_affine: bool = True, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(hidden_size)), eps

    def forward(self, x: Tensor) -> Tensor:
        return _fla("modules.layernorm").rms_norm_ref(x, self.weight, None, eps=self.eps)


class _GatedNorm(_Norm):
    """FusedRMSNormGated of flash-linear-attention: the norm, times silu or sigmoid of the gate."""

    def __init__(self, hidden_size: int, activation: str = "swish", **options: Any) -> None:
        super().__init__(hidden_size, **options)
        self.nonlinearity = {"swish": F.silu, "sigmoid": torch.sigmoid}[activation]

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return super().forward(x) * self.nonlinearity(gate)


class _ShortConv(nn.Module):
    """ShortConvolution of flash-linear-attention: depthwise, causal, with SiLU; keeps its last inputs."""

    backend = None

    def __init__(self, hidden_size: int, kernel_size: int, bias: bool, activation: str) -> None:
        super().__init__()
        assert (bias, activation) == (False, "silu")
        self.weight = nn.Parameter(torch.empty(hidden_size, 1, kernel_size).uniform_(-0.5, 0.5))

    def forward(self, x: Tensor, **_: Any) -> tuple[Tensor, Tensor]:
        width = self.weight.shape[2]
        padded = F.pad(x.transpose(1, 2), (width - 1, 0))
        self.last = padded[:, :, 1 - width :].transpose(1, 2)
        return F.silu(F.conv1d(padded, self.weight, groups=len(self.weight))).transpose(1, 2), self.last


def _mamba_norm() -> type[nn.Module]:
    """Return mamba's gated RMSNorm, computed by its `rms_norm_ref`."""
    file = importlib.import_module("mamba_ssm.ops.triton.layernorm_gated")

    class Norm(file.RMSNorm):
        def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
            options = {"group_size": self.group_size, "norm_before_gate": self.norm_before_gate}
            return file.rms_norm_ref(x, self.weight, None, z=z, eps=self.eps, **options)

    return Norm


def _fla(name: str) -> Any:
    """Import a module of flash-linear-attention, without autotuning its kernels."""
    triton = importlib.import_module("triton")
    triton.autotune = triton.heuristics = lambda *_, **__: lambda kernel: kernel
    return importlib.import_module(f"fla.{name}")


def _rotate_by_reference() -> None:
    """Replace the Triton kernel in flash-linear-attention's rotary module by the reference in the same file."""
    rotary = _fla("modules.rotary")
    rotary.rotary_embedding = lambda x, cos, sin, **_: rotary.rotary_embedding_ref(
        x, cos[: x.shape[1]], sin[: x.shape[1]]
    )


def _with_naive_gla(name: str) -> tuple[Any, State]:
    """Import a file of layers that use the reference of gated linear attention; also return a dict for the state."""
    file, naive = _fla(name), _fla("ops.gla.naive").naive_recurrent_gla
    state: State = {}

    def kernel(q: Tensor, k: Tensor, v: Tensor, gk: Tensor | None = None, g: Tensor | None = None, **_: Any) -> Any:
        y, state["S"] = naive(q, k, v, g if gk is None else gk, output_final_state=True)
        return y, state["S"]

    file.fused_recurrent_gla = file.chunk_gla = kernel
    return file, state


def _mamba_test(folder: str, name: str) -> Any:
    """Import a test file of mamba, which contains the references of Mamba-3."""
    (root,) = (path for path in sys.path if (Path(path) / "mamba_ssm").is_dir())
    sys.path.insert(0, str(Path(root) / "tests" / "ops" / folder))
    return importlib.import_module(name)


def _delta(module: str, name: str, op: str, kernel: Callable[..., tuple[Tensor, Tensor]], **options: Any) -> Any:
    """Make a delta-rule layer whose kernel is replaced by a reference on normalised queries and keys."""
    file, state = _fla(module), {}

    def normalised(q: Tensor, k: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        y, state["S"] = kernel(_unit(q), _unit(k), **given)
        return y, state["S"]

    for kind in ("chunk", "fused_recurrent"):
        setattr(file, f"{kind}_{op}", normalised)
    file.ShortConvolution, file.RMSNorm, file.FusedRMSNormGated = _ShortConv, _Norm, _GatedNorm
    layer = getattr(file, name)(hidden_size=6, num_heads=2, **options)

    def run(x: Tensor) -> tuple[Tensor, State]:
        y = layer(x, use_cache=True)[0]
        convs = (layer.q_conv1d, layer.k_conv1d, layer.v_conv1d)
        return y, {**state, "conv": torch.cat([conv.last for conv in convs], 2)}

    return layer, run


def _mamba3(op: str, step: Callable[..., Any], mixed: dict[str, str], kept: tuple[str, ...]) -> tuple[Any, State]:
    """Import Mamba-3 with a reference as its kernel; also return a dict for the final state."""
    file, state = importlib.import_module("mamba_ssm.modules.mamba3"), {}
    names = ("Q", "K", "V", "ADT", "DT", "Trap", "Q_bias", "K_bias", "Angles", "D", "Z")

    def kernel(**given: Any) -> Tensor:
        named = {name: name for name in names} | mixed
        y, states = step(**{theirs: given[name] for theirs, name in named.items()})
        state.update(zip(kept, states, strict=True))
        return y

    setattr(file, op, kernel)
    file.RMSNormGated = _mamba_norm()
    return file, state


def _transformers(kind: str, name: str, layer_idx: int = 0, **options: Any) -> nn.Module:
    """Make an attention layer of transformers, with its eager implementation."""
    file = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    sizes = {"hidden_size": 12, "num_attention_heads": 4, "num_hidden_layers": 1, "head_dim": 4}
    config = getattr(file, f"{kind}Config")(**{**sizes, "attn_implementation": "eager", **options})
    return getattr(file, f"{kind}Attention")(config, layer_idx)


def _causal(x: Tensor) -> Tensor:
    """Return a causal mask (1, 1, seq, seq): minus infinity above the diagonal."""
    return torch.full((1, 1, x.shape[1], x.shape[1]), -torch.inf).triu(1)


def _with_cache(layer: nn.Module, *names: str) -> Callable[[Tensor], tuple[Tensor, State]]:
    def run(x: Tensor) -> tuple[Tensor, State]:
        cache = types.SimpleNamespace(key_value_memory_dict={}, seqlen_offset=0)
        y = layer(x, inference_params=cache)
        return y, dict(zip(names, cache.key_value_memory_dict[0], strict=True))

    return run


# Recording.


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Replace float32 by float64 where upstream requests float32 explicitly."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            mock.patch.multiple(torch, float32=torch.float64, float=torch.float64),
            mock.patch.object(Tensor, "float", Tensor.double),
        ):
            yield
    finally:
        torch.set_default_dtype(before)


def record_layer(name: str, checkouts: Path) -> None:
    source, files, make = LAYERS[name]
    sys.path.insert(0, str(checkouts / source))
    seed = zlib.crc32(name.encode())
    torch.manual_seed(seed)
    with in_float64():
        layer, run = make()
        layer = layer.double().eval()
        weights = dict(layer.named_parameters())
        with torch.no_grad():
            for weight in weights.values():
                weight.add_(0.3 * torch.randn(weight.shape))
            if name == "mamba3_softplus":
                lower_rates(layer)
        config = getattr(layer, "config", layer)
        width = next((getattr(config, key) for key in ("d_model", "hidden_size", "h") if hasattr(config, key)), 6)
        for batch, length in (SHORT, LONG):
            x = torch.randn(batch, length, width)
            x[..., 0] = 1.0  # acts as a bias of the projections
            x.requires_grad_()
            y, state = run(x)
            dy = torch.randn(y.shape)
            grads = torch.autograd.grad(y, [x, *weights.values()], dy, materialize_grads=True)
            arrays = {"x": x, "y": y, "dy": dy, "dx": grads[0]}
            arrays |= {f"weight.{key}": weight for key, weight in weights.items()}
            arrays |= {f"grad.{key}": grad for key, grad in zip(weights, grads[1:], strict=True)}
            arrays |= {f"state.{key}": tensor for key, tensor in state.items()}
            save(f"{name}-{length}", source, files, seed, {key: t.detach().numpy() for key, t in arrays.items()})


def lower_rates(layer: Any) -> None:
    """Set logits of Mamba-3's rates near -9 and -9.6, so that softplus lies above and below the floor of 1e-4."""
    first = 2 * layer.d_inner + 2 * layer.d_state * layer.num_bc_heads + layer.nheads
    rates = layer.in_proj.weight[first : first + layer.nheads]
    rates.mul_(0.1)[:, 0] = torch.tensor([-9.0, -9.6])


def record_lru(name: str, checkouts: Path) -> None:
    """Record minimal-LRU's LRU: `lru` with a free gamma, `ring` with gamma as the initial function of nu and theta."""
    sys.path.insert(0, str(checkouts / "minimal-LRU"))
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    file = importlib.import_module("lru.model")
    layer, seed = file.LRU(d_hidden=5, d_model=4, r_min=0.5, r_max=0.95), zlib.crc32(name.encode())
    rng = np.random.default_rng(seed)
    shapes = {"nu_log": 5, "theta_log": 5, "B_re": (5, 4), "B_im": (5, 4), "C_re": (4, 5), "C_im": (4, 5), "D": 4}
    weights = {key: rng.normal(size=shape) for key, shape in shapes.items()}
    weights["nu_log"] = weights["nu_log"] / 2 - 1.5  # moduli near 0.8
    if name == "lru":
        weights["gamma_log"] = rng.normal(size=5)

    def run(weights: dict[str, Any], x: Any) -> Any:
        gamma = {"gamma_log": file.gamma_log_init(None, (weights["nu_log"], weights["theta_log"]))}
        return jax.vmap(lambda row: layer.apply({"params": {**gamma, **weights}}, row))(x)

    for length, arrays in recorded_by_jax(run, weights, rng):
        save(f"{name}-{length}", "minimal-LRU", ("lru/model.py",), seed, arrays)


def record_s5(checkouts: Path) -> None:
    """Record S5's SSM with random parameters (one pole per conjugate pair), and its initial frequencies."""
    sys.path.insert(0, str(checkouts / "S5"))
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    jax.numpy.DeviceArray = jax.Array  # its name when S5 was written
    ssm, start = importlib.import_module("s5.ssm"), importlib.import_module("s5.ssm_init")
    modes, _, _, vectors, _ = start.make_DPLR_HiPPO(10)
    half = {"Lambda_re_init": modes[:5].real, "Lambda_im_init": modes[:5].imag}
    half |= {"V": vectors[:, :5], "Vinv": vectors[:, :5].conj().T}
    steps = {"dt_min": 0.001, "dt_max": 0.1, "discretization": "zoh"}
    layer = ssm.S5SSM(H=4, P=5, C_init="trunc_standard_normal", **steps, **half)
    seed = zlib.crc32(b"s5")
    rng = np.random.default_rng(seed)
    shapes = {"Lambda_re": 5, "Lambda_im": 5, "B": (5, 4, 2), "C": (4, 5, 2), "D": 4, "log_step": (5, 1)}
    weights = {key: rng.normal(size=shape) for key, shape in shapes.items()}
    weights["Lambda_re"] = -np.exp(weights["Lambda_re"] / 2)
    weights["log_step"] -= 1
    frequencies = {f"start.{n}": np.sort(np.asarray(start.make_DPLR_HiPPO(n)[0].imag)) for n in (2, 6, 16)}

    def run(weights: dict[str, Any], x: Any) -> Any:
        return jax.vmap(lambda row: layer.apply({"params": weights}, row))(x)

    for length, arrays in recorded_by_jax(run, weights, rng):
        save(f"s5-{length}", "S5", ("s5/ssm.py", "s5/ssm_init.py"), seed, arrays | frequencies)


def record_linoss(name: str, scheme: str, checkouts: Path) -> None:
    """Record LinOSS's layer with random parameters; one stiffness is negative, which counts as zero."""
    sys.path.insert(0, str(checkouts / "linoss"))
    jax, eqx = importlib.import_module("jax"), importlib.import_module("equinox")
    jax.config.update("jax_enable_x64", True)
    layer = importlib.import_module("models.LinOSS").LinOSSLayer(5, 4, scheme, key=jax.random.PRNGKey(0))
    seed = zlib.crc32(name.encode())
    rng = np.random.default_rng(seed)
    weights = {"A_diag": np.array([0.02, 0.3, 0.9, 2.5, -0.1]), "steps": rng.normal(size=5)}
    weights |= {key: rng.normal(size=shape) for key, shape in {"B": (5, 4, 2), "C": (4, 5, 2), "D": 4}.items()}

    def run(weights: dict[str, Any], x: Any) -> Any:
        made = eqx.tree_at(lambda each: [getattr(each, key) for key in weights], layer, list(weights.values()))
        return jax.vmap(made)(x)

    for length, arrays in recorded_by_jax(run, weights, rng):
        save(f"{name}-{length}", "linoss", ("models/LinOSS.py",), seed, arrays)


def recorded_by_jax(
    run: Callable[[dict[str, Any], Any], Any], weights: dict[str, Any], rng: np.random.Generator
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the arrays of a record at each length, for a function of weights and an input with four channels."""
    jax = importlib.import_module("jax")
    for batch, length in (SHORT, LONG):
        x = rng.normal(size=(batch, length, 4))
        y, back = jax.vjp(run, weights, x)
        dy = rng.normal(size=y.shape)
        grads, dx = back(dy)
        arrays = {"x": x, "y": y, "dy": dy, "dx": dx}
        arrays |= {f"weight.{key}": weight for key, weight in weights.items()}
        arrays |= {f"grad.{key}": grad for key, grad in grads.items()}
        yield length, {key: np.asarray(array) for key, array in arrays.items()}


def record_slopes(checkouts: Path) -> None:
    """Record ALiBi's slopes for 1 to 24 heads; only the function inside fairseq's TransformerDecoder is run."""
    path = "fairseq/models/transformer.py"
    tree = ast.parse((checkouts / "attention_with_linear_biases" / path).read_text())
    (function,) = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "get_slopes")
    scope: dict[str, Any] = {"math": math}
    exec(compile(ast.Module([function], []), path, "exec"), scope)
    arrays = {f"slopes.{n}": np.array(scope["get_slopes"](n)) for n in range(1, 25)}
    save("alibi", "attention_with_linear_biases", (path,), None, arrays)


def record_canon(checkouts: Path) -> None:
    """Record a Canon layer as PhysicsLM4's models use it, with their default configuration."""
    sys.path.insert(0, str(checkouts / "PhysicsLM4/huggingface"))
    file, seed = importlib.import_module("canon_helper"), zlib.crc32(b"canon")
    config = {"canon_kernel": 4, "canon_bias": False, "canon_activation": False, "canon_residual": True}
    torch.manual_seed(seed)
    layer = file.create_canon(5, types.SimpleNamespace(**config)).double()
    x = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)
    y = file.apply_canon("canonA", layer, x, None, 0, None)
    dy = torch.randn(y.shape, dtype=torch.float64)
    dx, grad = torch.autograd.grad(y, [x, layer.weight], dy)
    arrays = {"x": x, "y": y, "dy": dy, "dx": dx, "weight": layer.weight, "grad": grad}
    arrays = {key: tensor.detach().numpy() for key, tensor in arrays.items()}
    save("canon", "PhysicsLM4", ("huggingface/canon_helper.py",), seed, arrays)


def save(name: str, source: str, files: tuple[str, ...], seed: int | None, arrays: dict[str, np.ndarray]) -> None:
    repository, commit = SOURCES[source]
    about = {"repository": repository, "commit": commit, "files": files, "seed": seed}
    assert all(array.dtype == np.float64 for array in arrays.values()), name
    RECORDS.mkdir(exist_ok=True)
    np.savez_compressed(RECORDS / f"{name}.npz", about=np.array(json.dumps(about)), **arrays)


def check_source(source: str, checkouts: Path) -> None:
    """Exit unless the clone is at its commit, or the installed release is the recorded one."""
    repository, commit = SOURCES[source]
    if source == "transformers":
        found = importlib.metadata.version(source)
    else:
        command = ["git", "-C", str(checkouts / source), "rev-parse", "HEAD"]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if found != commit:
        sys.exit(f"{checkouts / source} must be {repository} at {commit}, is {found or 'absent'}")


def main() -> None:
    recorders: dict[str, tuple[str, Callable[[Path], None]]] = {
        **{name: ("minimal-LRU", partial(record_lru, name)) for name in ("ring", "lru")},
        "s5": ("S5", record_s5),
        "linoss": ("linoss", partial(record_linoss, "linoss", "IM")),
        "linoss_symplectic": ("linoss", partial(record_linoss, "linoss_symplectic", "IMEX")),
        "alibi": ("attention_with_linear_biases", record_slopes),
        "canon": ("PhysicsLM4", record_canon),
        **{name: (layer.source, partial(record_layer, name)) for name, layer in LAYERS.items()},
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(recorders)}; default all")
    given = parser.parse_args()
    names = given.names or list(recorders)
    unknown = set(names) - set(recorders)
    if unknown:
        parser.error(f"no record {', '.join(sorted(unknown))}; choose from {', '.join(recorders)}")
    for name in names:
        source, recorder = recorders[name]
        check_source(source, given.checkouts)
        if len(names) == 1:
            recorder(given.checkouts)
        else:  # two commits of one repository cannot be imported into one process
            subprocess.run([sys.executable, __file__, given.checkouts, name], check=True)


if __name__ == "__main__":
    main()
