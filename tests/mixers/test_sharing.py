"""`SharedTransformer` (Zamba) and `SharedCache` (YOCO): layers that share weights or a key-value cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import holding, refused
from tests.cases import draw, in_chunks, randomise
from tests.tolerances import assert_close
from zoo import Backbone, SequenceMixer, create_mixer
from zoo.blocks import ResidualBlock
from zoo.check import check, properties
from zoo.ops.rope import rotate
from zoo.sharing import CacheReader, SharedCache, SharedTransformer
from zoo.state import state_nbytes
from zoo.theory.operator import interaction


def zamba(d_model: int) -> SharedTransformer:
    blocks = [ResidualBlock(create_mixer("ssd", d_model, d_state=4, d_head=4)) for _ in range(4)]
    attention = {"n_heads": 2, "n_kv_heads": 1, "position": "rope"}
    return SharedTransformer(blocks, [0, 2, 3], 2, 12, lora_rank=2, attention_lora_rank=3, attention=attention)


def yoco(d_model: int) -> SharedCache:
    lower = [ResidualBlock(create_mixer("sliding_attention", d_model, window=4), 6) for _ in range(2)]
    return SharedCache(lower, [ResidualBlock(CacheReader(d_model, 2, n_kv_heads=1), 6) for _ in range(2)])


kinds = pytest.mark.parametrize("make", [zamba, yoco])


@kinds
def test_it_is_one_map_in_any_chunks_and_an_operator(
    make: Callable[[int], SequenceMixer], generator: torch.Generator
) -> None:
    mixer = randomise(make(8), generator).double()
    x = draw(3, 9, 8, generator=generator)
    y = mixer(x)
    assert_close(in_chunks(mixer, x, [1, 5, 3])[0], y)
    assert_close(interaction(mixer, x[:1, :5]).apply(x[:1, :5]), y[:1, :5])
    lengths = torch.tensor([2, 9, 5])
    first, state = mixer.stream(x[:, :6], None, lengths.clamp(max=6))
    second, _ = mixer.stream(x[:, 6:], state, (lengths - 6).clamp(min=0))
    for row, length in enumerate(lengths.tolist()):
        assert_close(torch.cat((first, second), 1)[row, :length], mixer(x[row : row + 1, :length])[0])


@pytest.mark.slow
@kinds
def test_it_has_every_quick_property_of_the_contract(make: Callable[[int], SequenceMixer]) -> None:
    quick = [each.name for each in properties() if each.topic in ("calls", "streaming", "padding", "parameters")]
    quick.remove("large_sizes")
    report = check(make, d_model=8, only=quick)
    assert [(each.property, each.detail) for each in report.failed] == []


def test_upper_layers_attend_to_one_shared_cache(generator: torch.Generator) -> None:
    mixer = randomise(yoco(8), generator).double()
    x = draw(2, 7, 8, generator=generator)
    u = mixer.lower(x)
    k, v = mixer.kv_proj(mixer.norm(u)).chunk(2, dim=2)
    positions = torch.arange(7).expand(2, 7)

    def turned(t: Tensor) -> Tensor:  # (batch, seq, heads * 4) -> (batch, heads, seq, 4)
        return rotate(t.unflatten(2, (-1, 4)).transpose(1, 2), positions)

    for block in mixer.upper:
        logits = turned(block.mixer.q_proj(block.mixer_norm(u))) @ turned(k).mT / 2
        weights = logits.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf).softmax(-1)
        heads = weights @ v.unsqueeze(1)
        u = block.mix_channels(u + block.mixer.out_proj(heads.transpose(1, 2).flatten(2)))
    assert_close(mixer(x), u)
    assert state_nbytes(mixer.stream(x)[1].cache) == 2 * (2 * 7 * 4 * 8 + 8)


def build(**options: Any) -> Backbone:
    return Backbone({"name": "lstm"}, 8, 4, vocab_size=5, n_outputs=5, **options)


@pytest.mark.parametrize(
    "options", [{"shared": {"layers": [1, 3]}}, {"shared_cache": {"upper": 2, "n_heads": 2}, "d_channel": 6}]
)
def test_a_model_with_shared_parts_streams_and_selects_positions(
    options: dict[str, Any], generator: torch.Generator
) -> None:
    model = build(**options).double()
    tokens = torch.randint(5, (2, 6), generator=generator)
    y = model(tokens)
    _, state = model.stream(tokens[:, :4])
    assert_close(model.stream(tokens[:, 4:], state)[0], y[:, 4:])
    assert_close(model(tokens, at=torch.tensor([3, 11])), torch.stack((y[0, 3], y[1, 5])))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shared": {"layers": [1, 4]}}, "0..3 [1, 4]"),
        ({"shared": {"layers": [2, 1]}}, "0..3 [2, 1]"),
        ({"shared": {"layers": []}}, "0..3 []"),
        ({"shared": {}}, "shared layers"),
        ({"shared": {"layers": [1], "n_blocks": 2}}, "n_blocks=2 layers=[1]"),
        ({"shared": {"layers": [1], "rank": 2}}, "shared 'rank' lora_rank"),
        ({"shared": {"layers": [1], "attention": {"heads": 2}}}, "Attention 'heads' n_heads"),
        ({"shared": {"layers": [1], "attention": {"d_out": 4}}}, "d_out attention"),
        ({"shared": {"layers": [1]}, "shared_cache": {"upper": 1}}, "shared shared_cache combined"),
        ({"shared": {"layers": [1]}, "backbone": "bare"}, "shared residual"),
        ({"shared": {"layers": [1]}, "n_experts": 4}, "shared n_experts=0"),
        ({"shared_cache": {"upper": 4}}, "1..3 4"),
        ({"shared_cache": {"n_heads": 2}}, "1..3 0"),
        ({"shared_cache": {"upper": 1, "n_heads": 3}}, "3 8"),
        ({"shared_cache": {"upper": 1, "window": 3}}, "CacheReader 'window'"),
        ({"shared_cache": {"upper": 1, "rope_base": -1.0}}, "rope_base 1 -1.0"),
        ({"shared_cache": {"upper": 1}, "canon": "C"}, "shared_cache canon"),
        ({"shared_cache": {"upper": 1}, "blocks": [{"d_channel": 6, "channel": "rwkv"}] * 4}, "rwkv shared_cache"),
    ],
)
def test_shared_parts_that_do_not_fit_are_refused(options: dict[str, Any], words: str) -> None:
    with refused(holding(*words.split(" ") if "[" not in words else [words.split(" ", 1)[0]])):
        build(**options)
