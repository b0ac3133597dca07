"""Protocols and forms of padding that packages use: found by trying, passed where right, seen where wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.check.planted import Attention, LongConv, Recurrence
from zoo.check import check

D_MODEL = 8
STREAMS = ("chunked", "one_by_one", "stream_gradients", "states_unchanged")


class Cache:
    """An object that calls write into, as transformers' caches."""

    def __init__(self) -> None:
        self.held: Any = None


class Cached(nn.Module):
    """As a model of transformers speaks: embeddings by keyword, a cache that goes in and comes out."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(5, d_model)
        self.inner = Attention(d_model)

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def forward(
        self,
        input_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool = False,
    ) -> Any:
        assert inputs_embeds is not None
        cache = (past_key_values or Cache()) if use_cache else None
        mask = None if attention_mask is None else attention_mask.bool()
        y, held = self.inner(inputs_embeds, None if cache is None else self.recall(cache), mask=mask)
        if cache is not None:
            cache.held = held
        return Output(y, cache)

    def recall(self, cache: Cache) -> Any:
        return cache.held


class Output(SimpleNamespace):
    def __init__(self, y: Tensor, cache: Any) -> None:
        super().__init__(last_hidden_state=y, past_key_values=cache)

    def __getitem__(self, index: int) -> Any:
        return (self.last_hidden_state, self.past_key_values)[index]


class Forgets(Cached):
    """Several positions after a cache begin from nothing."""

    def forward(self, input_ids: Tensor | None = None, **arguments: Any) -> Any:
        if arguments["inputs_embeds"].shape[1] > 1:
            arguments["past_key_values"] = None
        return super().forward(**arguments)

    forward.__signature__ = inspect.signature(Cached.forward)  # pyright: ignore[reportFunctionMemberAccess]


class Hiddens(nn.Module):
    """As x-transformers speaks: `return_hiddens` gives what `cache` takes."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = Attention(d_model)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        cache: Any = None,
        cache_age: int = 1,
        input_not_include_cache: bool = False,
        return_hiddens: bool = False,
    ) -> Any:
        y, held = self.inner(x[:, -cache_age:] if cache is not None else x, cache, mask=mask)
        return (y, held) if return_hiddens else y


class Packed(nn.Module):
    """Sequences end to end in one row, `cu_seqlens` says where they end."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = Recurrence(d_model)

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        if cu_seqlens is None:
            return self.inner(x)
        return torch.cat([self.inner(part) for part in x.split(self.sizes(cu_seqlens), dim=1)], dim=1)

    def sizes(self, ends: Tensor) -> list[int]:
        return ends.diff().tolist()


class OnePack(Packed):
    def sizes(self, ends: Tensor) -> list[int]:
        return [int(ends[-1])]


class Bidirectional(nn.Module):
    """The mean over the positions that count, beside each of them."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        counts = torch.ones_like(x[..., :1]) if key_padding_mask is None else (~key_padding_mask).unsqueeze(-1).to(x)
        return self.out(x + (self.seen(x, counts)).sum(1, keepdim=True) / counts.sum(1, keepdim=True))

    def seen(self, x: Tensor, counts: Tensor) -> Tensor:
        return x * counts


class SeesPadding(Bidirectional):
    def seen(self, x: Tensor, counts: Tensor) -> Tensor:
        return x


def verdicts(make: Callable[[int], nn.Module], only: tuple[str, ...]) -> dict[str, str]:
    return {f.property: f.verdict for f in check(make, d_model=D_MODEL, only=only).findings}


def test_a_transformers_cache_streams() -> None:
    report = check(Cached, d_model=D_MODEL, only=[*STREAMS, "parameters_trained", "padding", "inputs_unchanged"])
    report.raise_if_failed()
    assert report.setting["protocol"] == "past_key_values (transformers)"
    found = {f.property: f.verdict for f in report.findings}
    assert found["stream_gradients"] == "not_applicable"  # chunks write into the cache
    assert {v for name, v in found.items() if name != "stream_gradients"} == {"passed"}


def test_a_cache_that_is_forgotten_is_seen() -> None:
    found = verdicts(Forgets, STREAMS)
    assert found["chunked"] == "failed"
    assert found["one_by_one"] == "passed"


def test_return_hiddens_streams() -> None:
    report = check(Hiddens, d_model=D_MODEL, only=[*STREAMS, "padding"])
    report.raise_if_failed()
    assert report.setting["protocol"] == "return_hiddens and cache (x-transformers)"
    assert {f.verdict for f in report.findings} == {"passed"}


@pytest.mark.parametrize(
    ("right", "wrong"), [(Packed, OnePack), (Bidirectional, SeesPadding)], ids=["cu_seqlens", "key_padding_mask"]
)
def test_a_form_of_padding_is_found(right: type[nn.Module], wrong: type[nn.Module]) -> None:
    assert verdicts(right, ("padding",)) == {"padding": "passed"}
    assert verdicts(wrong, ("padding",)) == {"padding": "failed"}


def test_a_module_without_padding_says_so() -> None:
    (finding,) = check(LongConv, d_model=D_MODEL, only=["padding"]).findings
    assert finding.verdict == "not_applicable"
    assert "attention_mask" in finding.detail


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # transformers' own
def test_models_of_transformers_stream() -> None:
    """Llama is right; a Mamba that goes on from a cache by several positions begins from an empty state."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32}
    llama = check(lambda: transformers.LlamaModel(transformers.LlamaConfig(**sizes, **heads)), d_model=16, only=STREAMS)
    llama.raise_if_failed()
    assert llama.setting["protocol"] == "past_key_values (transformers)"
    mamba = check(
        lambda: transformers.MambaModel(transformers.MambaConfig(**sizes, state_size=4)), d_model=16, only=STREAMS
    )
    assert mamba.setting["protocol"] == "cache_params (transformers)"
    assert {f.property: f.verdict for f in mamba.findings}["one_by_one"] == "passed"
