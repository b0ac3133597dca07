"""Random transformers configurations: supported ones load with the same logits, others are refused."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.mixers.test_transformers import KINDS, ROPES, build, drawn, in_float64, rope
from zoo import Backbone, load_transformers

__all__ = ["in_float64"]

VALUES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("state_size", "mamba_d_state", "ssm_state_size"), (1, 3, 8)),
    **dict.fromkeys(
        ("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim", "conv1d_width", "conv_L_cache"), (2, 3, 4)
    ),
    **dict.fromkeys(("chunk_size", "mamba_chunk_size", "block_size"), (2, 4, 16)),
    **dict.fromkeys(("n_groups", "mamba_n_groups", "mamba_ngroups"), (1, 2, 4)),
    **dict.fromkeys(("expand", "mamba_expand"), (1, 2, 3)),
    **dict.fromkeys(("time_step_rank", "mamba_dt_rank"), (1, 2, 5)),
    **dict.fromkeys(("moe_intermediate_size", "shared_intermediate_size", "shared_expert_intermediate_size"), (5, 12)),
    **dict.fromkeys(("kv_lora_rank", "linear_head_dim", "adapter_rank"), (2, 5)),
    **dict.fromkeys(
        ("embedding_multiplier", "residual_multiplier", "logits_scaling", "key_multiplier"), (0.5, 1.0, 3.0)
    ),
    **dict.fromkeys(("attention_in_multiplier", "attention_out_multiplier", "ssm_out_multiplier"), (0.4, 1.0, 1.7)),
    **dict.fromkeys(("mlp_alpha_factor", "linear_attn_alpha_factor", "full_attn_beta_factor"), (0.6, 1.0, 2.0)),
    **dict.fromkeys(
        ("use_shared_attention_adapter", "use_mem_rope", "norm_topk_prob", "rope_interleave"), (True, False)
    ),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon", "norm_eps"), (1e-6, 1e-5, 1e-2)),
    "attention_window_size": (1, 4, 20),
    "decoder_sparse_step": (1, 2),
    "logits_soft_cap": (0.5, 30.0),
    "num_experts_per_tok": (1, 2, 3),
    "num_mem_blocks": (1, 2, 3),
    "position_embedding_type": ("rope", "nope"),
    "q_lora_rank": (None, 4),
    "qk_dim_factor": (0.5, 1.0),
    "routed_scaling_factor": (1.0, 2.5),
    "tie_word_embeddings": (True, False),
    "vocab_size": (19, 33),
}
"""{field: values that the zoo supports, whatever the other fields}."""
TIED = {"Mamba2": ("expand",), "Rwkv": ("layer_norm_epsilon", "tie_word_embeddings")}
"""{family: fields that stay at their value}: other fields determine them, or the zoo supports only that value."""
ORDERS = ("layer_types", "layers_block_type", "block_types")
BEYOND = {
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias", "conv_bias"), True),
    **dict.fromkeys(("attention_dropout", "router_jitter_noise"), 0.1),
    **dict.fromkeys(("hidden_act", "hidden_activation", "mlp_hidden_act"), "relu"),
    "use_conv_bias": False,
    "time_step_limit": (0.0, 0.5),
}
"""{field: a value that transformers accepts and the zoo does not support}."""
ROPED = ("Llama", "Qwen3", "Qwen3Moe", "DeepseekV3", "MiniMax", "OlmoHybrid", "FalconH1", "Lfm2")
GROUPED = ("Jamba", *ROPED[:3], *ROPED[4:], "Bamba", "GraniteMoeHybrid", "NemotronH", "Zamba2")
GENERAL = ("rms_norm_eps", "layer_norm_epsilon", "norm_eps", "tie_word_embeddings", "vocab_size", "norm_topk_prob")


def options_of(kind: str, rng: random.Random) -> tuple[dict[str, Any], str]:
    """Draw a configuration; with probability 1/4 it has an unsupported field, whose name is returned too."""
    import transformers

    fields = getattr(transformers, f"{kind}Config").__dataclass_fields__
    options = dict(rng.choice(KINDS[kind]))
    for field in (field for field in VALUES if field in options or (field in GENERAL and field in fields)):
        if field not in TIED.get(kind, ()) and rng.random() < 0.5:
            options[field] = rng.choice(VALUES[field])
    for field in ORDERS:
        if field in options and kind != "NemotronH":
            order = rng.choices(options[field], k=rng.randint(0, 2)) + rng.sample(options[field], len(options[field]))
            options |= {field: order, "num_hidden_layers": len(order)}
    if kind in ROPED and rng.random() < 0.5:
        options |= rope(rng.choice([name for name in ROPES if (kind, name) != ("DeepseekV3", "dynamic")]))
    if kind in GROUPED and not options.get("use_shared_attention_adapter"):  # the adapter needs n_kv_heads = n_heads
        heads = rng.choice((2, 4))
        options |= {"num_attention_heads": heads, "num_key_value_heads": rng.choice((1, 2, heads))}
    if rng.random() < 0.75:
        return options, ""
    beyond = rng.choice([field for field in BEYOND if field in fields] or [""])
    return options | ({beyond: BEYOND[beyond]} if beyond else {}), beyond


def loaded(theirs: Any, beyond: str) -> Backbone | None:
    """Load a model, or return None if it has an unsupported field and is refused in one line."""
    try:
        return load_transformers(theirs)
    except ValueError as error:
        if not beyond or "\n" in str(error):
            raise
        return None


def difference(kind: str, seed: int, generator: torch.Generator) -> float | None:
    """Largest difference of a random model's logits relative to the largest logit; None if the model is refused."""
    options, beyond = options_of(kind, random.Random(f"{kind}{seed}"))
    theirs = build(kind, generator, **options)
    if (ours := loaded(theirs, beyond)) is None:
        return None
    theirs.config._experts_implementation = "eager"  # the only implementation that supports float64
    tokens = drawn(generator)
    with torch.no_grad():
        expected = theirs(tokens, use_cache=False).logits
        return float((ours(tokens) - expected).abs().max() / expected.abs().max().clamp(min=1.0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_random_configuration_agrees_or_is_refused(
    kind: str, request: pytest.FixtureRequest, in_float64: None, generator: torch.Generator
) -> None:
    for seed in range(request.config.getoption("--configurations")):
        found = difference(kind, seed, generator)
        assert found is None or found <= 1e-8, options_of(kind, random.Random(f"{kind}{seed}"))
