"""Properties of `zoo check`: correct modules pass all of them, each planted bug fails its own; special cases."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from tests import slow
from tests.check.modules import PROTOCOLS, Attention, Bidirectional, Cached, LongConv, Ragged, Recurrence, Stepper
from tests.check.planted import ERRORS, Planted
from tests.tolerances import TOLERANCES as SUITE
from zoo.check import Adapter, Finding, check, properties
from zoo.check.outcome import TOLERANCES, miss

D_MODEL = 8
FAST = [each.name for each in properties() if not each.slow]
SLOW = [each.name for each in properties() if each.slow]
DIFFERENT = (Recurrence, Attention, Stepper, Cached, Ragged, Bidirectional)
"""Modules of the default run. They cover every streaming protocol and most forms of padding; the others are slow."""


def find(make: Any, name: str, **setting: Any) -> Finding:
    (finding,) = check(make, d_model=D_MODEL, only=[name], **setting).findings
    return finding


@pytest.mark.parametrize("module", [slow(module, unless=module in DIFFERENT) for module in PROTOCOLS])
def test_a_right_module_passes(module: type[nn.Module]) -> None:
    report = check(module, d_model=D_MODEL, only=FAST, looks_ahead=module is Bidirectional)
    report.raise_if_failed()
    verdicts = {each.property: each.verdict for each in report.findings}
    assert report.setting["protocol"] == PROTOCOLS[module]
    streams = report.setting["protocol"] != "forward alone"
    assert verdicts["one_by_one"] == ("passed" if streams else "not_applicable")
    # Later chunks update a transformers cache in place, which autograd rejects.
    assert verdicts["stream_gradients"] == ("passed" if streams and module is not Cached else "not_applicable")


@pytest.mark.slow
@pytest.mark.parametrize("module", [*DIFFERENT, nn.LSTM])
def test_a_right_module_passes_the_slow_ones(module: type[nn.Module]) -> None:
    options = {"hidden_size": D_MODEL, "batch_first": True} if issubclass(module, nn.RNNBase) else {}
    check(module, d_model=D_MODEL, only=SLOW, options=options).raise_if_failed()


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: f"{error.seen_by}: {error.bug}")
def test_a_planted_error_is_seen_by_its_property(error: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    error.plant(monkeypatch)
    finding = find(error.module, error.seen_by, looks_ahead=error.module is Bidirectional, thorough=True)
    assert finding.verdict == "failed", finding.detail
    assert "expected: " in finding.detail
    assert "\n" not in finding.detail


class Best(nn.Module):
    """Causal attention to the four positions with the largest logits."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model, bias=False), nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        logits = (q @ k.mT / x.shape[2] ** 0.5).masked_fill(future, -torch.inf)
        fourth = logits.topk(min(4, x.shape[1]), -1).values[..., -1:]
        return self.out(logits.masked_fill(logits < fourth, -torch.inf).softmax(-1) @ v)


@pytest.mark.parametrize(
    ("make", "seed", "name"),
    [*((Best, 1, name) for name in ("float32", "bfloat16", "autocast")), slow("moba", 0, "autocast")],
)
def test_rounding_may_change_a_top_k_choice(make: Any, seed: int, name: str) -> None:
    # moba selects only in long sequences, which have more blocks than it reads.
    finding = check(make, d_model=16, seed=seed, only=[name]).findings[0]
    assert finding.verdict == "passed", finding.detail


class Routed(nn.Module):
    """A cumulative sum and the best of four experts, with a weight that is always 1 and has zero gradient."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(d_model, 4), nn.Linear(d_model, 4 * d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.stream(x)[0]

    def stream(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = x.cumsum(1) if state is None else state + x.cumsum(1)
        share, best = self.router(h).softmax(-1).max(-1, keepdim=True)
        outputs = self.experts(h).unflatten(2, (4, -1))
        y = outputs.take_along_dim(best.unsqueeze(-1), 2).squeeze(2)
        return share / share.clone() * y, h[:, -1:]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rounding_of_a_zero_gradient_is_not_reported_as_a_lost_gradient(seed: int) -> None:
    (finding,) = check(Routed, d_model=16, seed=seed, only=["stream_gradients"]).findings
    assert finding.verdict == "passed", finding.detail


def test_every_property_has_a_planted_error() -> None:
    assert {error.seen_by for error in ERRORS} == {each.name for each in properties() if not each.measures}


class Changed(LongConv):
    """Accepts only float32 and at most 100 positions, and cannot be copied."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise TypeError("no float64 here")
        if x.shape[1] > 100:
            raise ValueError("at most 100 positions")
        return super().forward(x)

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("one of a kind")


class Float32(Recurrence):
    def stream(self, x: Tensor, state: Any = None) -> Any:
        if x.dtype == torch.float64:
            raise TypeError("no float64 here")
        return super().stream(x, state)


class Options(nn.Module):
    """Every kind of option; `base` changes nothing until `rotate` is set."""

    def __init__(
        self,
        d_model: int,
        kind: Literal["plain", "tanh"] = "plain",
        scale: float = 1.0,
        rotate: bool = False,
        base: int = 3,
        shift: int | None = None,
        layer_idx: int = 0,
        *,
        label: str = "m",
    ) -> None:
        super().__init__()
        self.inner = nn.Linear(d_model, d_model)
        self.options = (kind, scale, rotate, base, shift)

    def forward(self, x: Tensor) -> Tensor:
        kind, scale, rotate, base, shift = self.options
        y = self.inner(x) * scale + (shift or 0)
        y = y.tanh() if kind == "tanh" else y
        return y.roll(base, 2) if rotate else y


class Picky(Options):
    """Rejects a value of `scale` in its constructor, and of `base` in `forward`."""

    def __init__(self, d_model: int, scale: float = 1.0, base: int = 3) -> None:
        if scale > 1:
            raise ValueError("scale is at most 1")
        super().__init__(d_model, scale=scale, base=base)

    def forward(self, x: Tensor) -> Tensor:
        if self.options[3] % 2 == 0:
            raise RuntimeError("base is odd")
        return super().forward(x)


class Unresolved(Options):
    def __init__(self, d_model: int, scale: Nowhere = 2.0) -> None:  # pyright: ignore[reportUndefinedVariable]
        super().__init__(d_model, scale=scale)


class MaskOfHeads(nn.Linear):
    """Its mask has an axis of heads."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, d_model)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        assert attention_mask is None or attention_mask.ndim == 4, "(batch, head, seq, seq)"
        return super().forward(x)


class RightOnly(Recurrence):
    def masked(self, a: Tensor, mask: Tensor, raw: Tensor) -> Tensor:
        assert mask[:, 0].all(), "padding is at the end"
        return super().masked(a, mask, raw)


class FFTInFloat32(LongConv):
    """A residual float32 convolution for inputs of any dtype; its first channel sums all positions."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.rate = nn.Parameter(10 * (torch.arange(d_model) > 0).float())

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x.float()).to(x)


class Branching(LongConv):
    """Branches on the values of its input, which cannot be exported."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() < 1e9 else x


class Untold(nn.Module):
    """Its forward has no Python signature, as in torch.jit."""

    forward = torch.tanh


class LossBeside(LongConv):
    """Returns (outputs, loss); its second argument is a mask, not a state."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y = super().forward(x if mask is None else x * mask.unsqueeze(-1))
        return y, y.square().mean()


class ScaledLoss(LossBeside):
    def forward(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        return super().forward(scale * x)


class StepAlone(Stepper):
    """Its `step` returns no state."""

    def step(self, x: Tensor, state: Any = None) -> Any:
        return super().step(x, state)[0]


@pytest.mark.parametrize(
    ("make", "name", "verdict", "detail"),
    [
        (Changed, "float32", "passed", "is not smooth"),
        (Changed, "one_by_one", "not_applicable", "an adapter of ten lines"),
        (Changed, "causality", "passed", ""),
        (Float32, "chunked", "passed", ""),
        (Changed, "costs", "not_applicable", "no training pass at 512 positions: ValueError: at most 100 positions"),
        (Changed, "gradient_decay", "not_applicable", "no gradient profile at 128 positions"),
        (Changed, "padding", "not_applicable", "attention_mask"),
        (MaskOfHeads, "gradient_decay", "passed", "the gradient vanishes beyond 0 positions"),
        (LongConv, "costs", "passed", "kept for the backward pass of 512 positions"),
        (Attention, "state_size", "passed", "it grows"),
        (Stepper, "state_size", "passed", "the same at both lengths"),
        (Options, "options_matter", "passed", "other values were given to kind, scale, rotate, base, shift"),
        (Picky, "options_matter", "passed", "other values were given to scale, base"),
        (Unresolved, "options_matter", "passed", "other values were given to scale"),
        (lambda d: Options(d), "options_matter", "not_applicable", "no options with plain defaults"),
        (LongConv(D_MODEL), "options_matter", "not_applicable", "the target is a module"),
        (Ragged, "padding", "passed", "a chunk with a row of length 2 of 6"),
        (
            MaskOfHeads,
            "padding",
            "not_applicable",
            "rejects attention_mask of shape (3, 20): (batch, head, seq, seq)",
        ),
        (RightOnly, "padding", "passed", "compared with the unpadded row (right, attention_mask)"),
        ("lstm", "padding", "passed", "a chunk with a row of length 2 of 6"),
        ("linear_attention", "rank", "passed", "heads for an error of 10 %"),
        (Branching, "exports", "not_applicable", "the module has data-dependent control flow"),
        (StepAlone, "one_by_one", "not_applicable", "the module has no known protocol for states"),
        (Untold, "padding", "not_applicable", "has none of the arguments lengths"),
        (LossBeside, "one_by_one", "not_applicable", "the module has no known protocol for states"),
        (ScaledLoss, "one_by_one", "not_applicable", "the module has no known protocol for states"),
        (lambda d: nn.LSTM(d, d, batch_first=True), "chunked", "passed", "512 positions"),
        (lambda d: nn.GRU(d, d, 2, batch_first=True), "chunked", "passed", "512 positions"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_verdict_and_detail_of_special_cases(make: Any, name: str, verdict: str, detail: str) -> None:
    finding = find(make, name)
    assert (finding.verdict, detail in finding.detail) == (verdict, True), finding.detail


class Few(Stepper):
    """Accepts at most 16 positions, or only multiples of 16."""

    def __init__(self, d_model: int, most: bool, scale: float = 1.0) -> None:
        super().__init__(d_model)
        self.most, self.scale = most, scale

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 16 if self.most else x.shape[1] % 16:
            raise ValueError("16 positions")
        return self.scale * super().forward(x)

    def step(self, x: Tensor, state: Any = None) -> Any:
        y, h = super().step(x, state)
        return self.scale * y, h


class OfFour(Adapter):
    """Streams at most four positions at a time."""

    streams = True
    longest = 4

    def chunk(self, module: Any, x: Tensor, state: Any) -> Any:
        assert x.shape[1] <= 4
        return module.stream(x, state)


@pytest.mark.parametrize("name", ["chunked", "stream_gradients", "bfloat16"])
def test_no_chunk_is_longer_than_the_adapter_allows(name: str) -> None:
    finding = find(Recurrence, name, adapter=OfFour())
    assert finding.verdict == "passed", finding.detail


@pytest.mark.parametrize("most", [True, False])
@pytest.mark.usefixtures("unchecked_shapes")
def test_a_module_that_rejects_lengths_fails_only_the_property_lengths(most: bool) -> None:
    names = ("lengths", "float64", "float32", "bfloat16", "autocast", "large_inputs", "tiny_inputs", "options_matter")
    only = [*names, "compiles", "exports"]
    report = check(Few, d_model=D_MODEL, seq_len=16, options={"most": most}, only=only)
    assert [each.property for each in report.failed] == ["lengths"], report.failed


@pytest.mark.parametrize("d_model", [8, 64])
def test_roundoff_of_an_fft_is_not_reported_as_a_leak(d_model: int) -> None:
    check(FFTInFloat32, d_model=d_model, only=["causality"]).raise_if_failed()


@pytest.mark.parametrize("graphs", ["one graph", "several graphs"])
def test_a_graph_break_passes_compiles(graphs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(function: Any, *, backend: str, fullgraph: bool = False) -> Any:
        return (lambda x: 1 / 0) if fullgraph and graphs == "several graphs" else function

    monkeypatch.setattr(torch, "compile", compiled)
    finding = find(LongConv, "compiles")
    assert (finding.verdict, graphs in finding.detail) == ("passed", True)


def test_an_encoder_may_look_ahead() -> None:
    def make(d_model: int) -> nn.Module:
        return nn.TransformerEncoderLayer(d_model, 2, batch_first=True)

    assert find(make, "causality").verdict == "failed"
    found = {name: find(make, name, looks_ahead=True).verdict for name in ("causality", "lengths", "padding")}
    assert found == {"causality": "not_applicable", "lengths": "passed", "padding": "passed"}
    # A stack has two masks: `mask` over pairs of positions, and one over the padding.
    seen = find(nn.TransformerEncoder(make(D_MODEL), 1, enable_nested_tensor=False), "padding", looks_ahead=True)
    assert (seen.verdict, "src_key_padding_mask" in seen.detail) == ("passed", True), seen.detail


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # transformers' own
@pytest.mark.parametrize(("name", "protocol"), [("Llama", "past_key_values"), ("Mamba", "cache_params")])
def test_a_model_of_transformers_streams(name: str, protocol: str) -> None:
    transformers = pytest.importorskip("transformers")
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32} if name == "Llama" else {}
    config = getattr(transformers, f"{name}Config")(hidden_size=8, num_hidden_layers=1, vocab_size=8, **heads)
    report = check(lambda: getattr(transformers, f"{name}Model")(config), d_model=8, only=["chunked", "one_by_one"])
    assert report.setting["protocol"] == f"{protocol} (transformers)"
    # Given several positions and a cache, Mamba restarts its scan from zero: a known bug of transformers.
    assert [each.property for each in report.failed] == (["chunked"] if name == "Mamba" else [])


def test_tolerances_are_no_looser_than_the_suites() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        assert TOLERANCES[dtype] == tuple(SUITE[dtype].values())
    assert TOLERANCES[torch.float32].rtol == SUITE[torch.float32]["rtol"]


def test_a_miss_is_relative_to_the_allowed_error() -> None:
    one = torch.ones(3, dtype=torch.float64)
    assert miss(one, one) == 0
    assert miss(one * (1 + 0.9e-9), one) < 1 < miss(one * (1 + 1.2e-9), one)
    assert miss(1e-20 * one, 1e-20 * one) == 0
    assert miss(one * float("nan"), one) == float("inf")
    with pytest.raises(ValueError, match="shape"):
        miss(one[:2], one)
