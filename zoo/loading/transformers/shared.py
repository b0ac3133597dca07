"""Convert the shared transformer of Zamba2 to options and weights of `zoo.sharing.SharedTransformer`."""

from __future__ import annotations

from typing import Any

from zoo.loading.transformers.layers import read_shared_attention
from zoo.loading.transformers.reading import Part, Table, Take, Weights, eps_of, expect, norm_weight, take


def read_shared(theirs: Any, layers: str, weights: Weights) -> tuple[Part, dict[str, float]] | None:
    """Read the shared transformer of the layers below a path, and the epsilons of its norms; None without one.

    Without `tie_word_embeddings`, transformers gives each layer a separate transformer.
    """
    reading = [at for at, layer in enumerate(theirs.get_submodule(layers)) if hasattr(layer, "shared_transformer")]
    if not reading:
        return None
    paths = [f"{layers}.{at}.shared_transformer" for at in reading]
    config, n_blocks = theirs.config, len({id(theirs.get_submodule(path).input_layernorm.weight) for path in paths})
    adapted = config.use_shared_attention_adapter
    options: dict[str, Any] = {
        "layers": reading,
        "n_blocks": n_blocks,
        "d_channel": config.intermediate_size,
        "lora_rank": config.adapter_rank,
        "attention_lora_rank": config.adapter_rank if adapted else 0,
    }
    expect(config, {"hidden_act": (config.hidden_act, "gelu")})
    table: Table = {}
    eps: dict[str, float] = {}
    for number, path in enumerate(paths[:n_blocks]):
        block = theirs.get_submodule(path)
        attention = read_shared_attention(block.self_attn)
        expect(block.self_attn, attention.fields)
        options["attention"] = attention.options
        part: Table = {f"attention.{name}": it for name, it in attention.below("self_attn").table.items()}
        part |= {
            "input_norm.weight": norm_weight("input_layernorm", block.input_layernorm),
            "channel_norm.weight": norm_weight("pre_ff_layernorm", block.pre_ff_layernorm),
        }
        part |= take(
            channel__up_proj__weight="feed_forward.gate_up_proj.weight",
            channel__down_proj__weight="feed_forward.down_proj.weight",
        )
        table |= {f"transformers.{number}.{name}": it for name, it in Part({}, part, {}).below(path).table.items()}
        eps |= {f"{path}.{name}": eps_of(getattr(block, name)) for name in ("input_layernorm", "pre_ff_layernorm")}
    for number, at in enumerate(reading):
        path, ours = paths[number % n_blocks], f"readers.{number}"
        table[f"{ours}.out_proj.weight"] = Take((f"{layers}.{at}.linear.weight",))
        adapters = {"channel_lora": [f"{path}.feed_forward.gate_up_proj_adapter_list.{number}"]}
        if adapted:
            heads = f"{path}.self_attn.linear_{{}}_adapter_list.{number}"
            adapters["qkv_lora"] = [heads.format(letter) for letter in "qkv"]
        for name, lists in adapters.items():
            table[f"{ours}.{name}.down_proj.weight"] = Take(tuple(f"{adapter}.0.weight" for adapter in lists))
            for row, adapter in enumerate(lists):
                table[f"{ours}.{name}.up_proj.{row}.weight"] = Take((f"{adapter}.1.weight",))
        if adapted:  # the factor of the logits is multiplied into the queries, as in the shared projection
            attention, queries = theirs.get_submodule(path).self_attn, f"{ours}.qkv_lora.up_proj.0.weight"
            table[queries] = table[queries].scaled(attention.scaling * attention.head_dim**0.5)
        # Transformers that are not shared also have, but do not use, the maps of other layers.
        for lists in adapters.values():
            for other in (each for each in range(len(reading)) if each % n_blocks != number % n_blocks):
                for adapter in lists:
                    weights.leave_out(f"{adapter.rpartition('.')[0]}.{other}")
    return Part(options, table, {}), eps
