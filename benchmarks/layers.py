"""Whole layers and their peers in other libraries, with the same widths and independent weights.

Forms take x (batch, seq, d_model) and the layer's parameters. tests/upstream compares the outputs of mla, dsa,
lightning_attention, rwkv4 and titans with these peers; the peer of nsa differs, because it compresses by a trained map.
transformers (extra `bench`) runs as installed, with torch's fused kernel for softmax attention. titans-pytorch and
native-sparse-attention-pytorch are in no extra; they are left out unless you install them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.peers import Form, transformers_model
from benchmarks.recurrences import Sizes
from zoo.registry import create_mixer

Peer = tuple[nn.Module, Callable[[Tensor], dict[str, Any]]]
"""A layer, and a function from its input to the other arguments of its call."""


class Pair(NamedTuple):
    """A mixer and its peer.

    Attributes:
        package: package of the peer.
        options: function from sizes to the mixer's options.
        peer: function from sizes to the peer.
    """

    package: str
    options: Callable[[Sizes], dict[str, Any]]
    peer: Callable[[Sizes], Peer]


def _heads(n: Sizes) -> dict[str, int]:
    return {"n_heads": n.heads, "d_head": n.d_head}


def _latents(n: Sizes) -> dict[str, int]:
    d_model = n.heads * n.d_head
    return {"d_latent": d_model // 2, "d_query": d_model // 2, "d_rope": n.d_head // 2}


def _index(n: Sizes) -> dict[str, int]:
    return {"n_index_heads": 4, "d_index": n.d_head, "top_k": min(64, n.seq_len)}


def _deepseek(n: Sizes, kind: str, name: str, **more: Any) -> Peer:
    file, ours = transformers_model(name), _latents(n)
    config = getattr(file, f"{kind}Config")(
        hidden_size=n.heads * n.d_head,
        num_attention_heads=n.heads,
        num_key_value_heads=n.heads,
        num_hidden_layers=1,
        head_dim=ours["d_rope"],
        q_lora_rank=ours["d_query"],
        kv_lora_rank=ours["d_latent"],
        qk_nope_head_dim=n.d_head,
        v_head_dim=n.d_head,
        qk_rope_head_dim=ours["d_rope"],
        attn_implementation="sdpa",
        **more,
    )
    rotary, positions = getattr(file, f"{kind}RotaryEmbedding")(config), torch.arange(n.seq_len).unsqueeze(0)
    mask = torch.ones(n.seq_len, n.seq_len, dtype=torch.bool).tril().view(1, 1, n.seq_len, n.seq_len) if more else None

    def arguments(x: Tensor) -> dict[str, Any]:
        found = {"position_embeddings": rotary(x, positions), "attention_mask": mask}
        return {**found, "position_ids": positions} if more else found

    return getattr(file, f"{kind}Attention")(config, 0), arguments


def deepseek_v3(n: Sizes) -> Peer:
    """Multi-head latent attention of DeepSeek-V3, which materialises keys and values of all heads."""
    return _deepseek(n, "DeepseekV3", "deepseek_v3")


def deepseek_v32(n: Sizes) -> Peer:
    """Sparse attention of DeepSeek-V3.2, which masks all pairs of positions."""
    ours = _index(n)
    index = {"index_topk": ours["top_k"], "index_n_heads": ours["n_index_heads"], "index_head_dim": ours["d_index"]}
    return _deepseek(n, "DeepseekV32", "deepseek_v32", **index)


def minimax(n: Sizes) -> Peer:
    """Lightning attention of MiniMax, in blocks of 256."""
    file = transformers_model("minimax")
    sizes = {"hidden_size": n.heads * n.d_head, "num_attention_heads": n.heads, "head_dim": n.d_head}
    config = file.MiniMaxConfig(**sizes, num_hidden_layers=1, layer_types=["linear_attention"])
    return file.MiniMaxLightningAttention(config, 0), lambda x: {"position_embeddings": None, "attention_mask": None}


def rwkv(n: Sizes) -> Peer:
    """Time mixing of RWKV-4, a Python loop over positions."""
    file = transformers_model("rwkv")
    config = file.RwkvConfig(hidden_size=n.heads * n.d_head, vocab_size=8, num_hidden_layers=2)
    return file.RwkvModel(config).blocks[0].attention, lambda x: {}


def titans_pytorch(n: Sizes) -> Peer:
    """Linear memory of titans-pytorch, with a gradient step per position."""
    file = importlib.import_module("titans_pytorch.neural_memory")
    memory, sizes = file.MemoryMLP(n.d_head, depth=1), {"dim": n.heads * n.d_head, "dim_head": n.d_head}
    plain = {"pre_rmsnorm": False, "post_rmsnorm": True, "mem_model_norm_add_residual": False}
    return file.NeuralMemory(**sizes, **plain, heads=n.heads, model=memory, activation=nn.SiLU()), lambda x: {}


def native_sparse_attention(n: Sizes) -> Peer:
    """Native sparse attention with three chosen blocks besides the query's block, like our top_k 4."""
    layer = importlib.import_module("native_sparse_attention_pytorch").SparseAttention
    blocks = {"compress_block_size": 32, "compress_block_sliding_stride": 32, "selection_block_size": 32}
    sizes = {"dim": n.heads * n.d_head, "dim_head": n.d_head, "heads": n.heads, "sliding_window_size": 64}
    return layer(**sizes, **blocks, num_selected_blocks=3, causal=True, norm=False), lambda x: {}


PAIRS: dict[str, Pair] = {
    "mla": Pair("transformers", lambda n: _heads(n) | _latents(n), deepseek_v3),
    "dsa": Pair("transformers", lambda n: _heads(n) | _latents(n) | _index(n), deepseek_v32),
    "lightning_attention": Pair("transformers", _heads, minimax),
    "rwkv4": Pair("transformers", lambda n: {}, rwkv),
    "titans": Pair("titans_pytorch", lambda n: _heads(n) | {"d_conv": 1}, titans_pytorch),
    "nsa": Pair("native_sparse_attention_pytorch", _heads, native_sparse_attention),
}


def available() -> list[str]:
    """Return the mixers whose peer is installed."""
    return [name for name, pair in PAIRS.items() if importlib.util.find_spec(pair.package)]


def forms(name: str, n: Sizes, generator: torch.Generator) -> dict[str, tuple[Form, tuple[Tensor, ...]]]:
    """Return {library: (form, inputs)}, ours first."""
    pair, x = PAIRS[name], n.per_channel(generator)
    mixer = create_mixer(name, x.shape[2], **pair.options(n)).eval()
    peer, arguments = pair.peer(n)
    return {
        "zoo": (_form(mixer, lambda x: {}), (x, *mixer.parameters())),
        pair.package: (_form(peer.eval(), arguments), (x, *peer.parameters())),
    }


def _form(module: nn.Module, arguments: Callable[[Tensor], dict[str, Any]]) -> Form:
    names = [name for name, _ in module.named_parameters()]

    def form(x: Tensor, *parameters: Tensor) -> Tensor:
        found = functional_call(module, dict(zip(names, parameters, strict=True)), (x,), arguments(x))
        return found if isinstance(found, Tensor) else found[0]

    return form
