"""What each property answers of modules, protocols and compilers that are unlike the usual ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from tests.check.planted import Attention, LongConv, Recurrence, Stepper
from zoo import create_mixer
from zoo.check import Finding, check

D_MODEL = 8


def find(make: Any, name: str, **setting: Any) -> Finding:
    (finding,) = check(make, d_model=D_MODEL, only=[name], **setting).findings
    return finding


class Narrow(LongConv):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).float()


class SteepAtZero(LongConv):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + (0 * x).sqrt()


class Divides(LongConv):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / x.abs().clamp(max=1e-3).round()


class Single(LongConv):
    """Knows nothing but float32."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            raise TypeError("no float64 here")
        return super().forward(x)


class Short(LongConv):
    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 100:
            raise ValueError("at most 100 positions")
        return super().forward(x)


class Local(nn.Linear):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, d_model)


class Constant(Local):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).detach()


class Uncopied(LongConv):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("one of a kind")


class Options(nn.Module):
    """Every kind of option; `base` says nothing until `rotate` is set."""

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
    """Refuses one value when it is built, and another when it is called."""

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


class Lengths(nn.Module):
    """Padding by `lengths`, also of a chunk."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = Recurrence(d_model, d_conv=1)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.stream(x, None, lengths)[0]

    def stream(self, x: Tensor, state: Any = None, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        mask = None if lengths is None else self.counted(x, state, lengths)
        return self.inner.run(x, self.inner.start(x) if state is None else state, mask)

    def counted(self, x: Tensor, state: Any, lengths: Tensor) -> Tensor:
        return (torch.arange(x.shape[1]) < lengths[:, None]).to(x)


class LengthsOfWhole(Lengths):
    """Streams a ragged chunk as if all of it counted."""

    def stream(self, x: Tensor, state: Any = None, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        return super().stream(x, state, lengths if x.shape[1] > 6 else None)


class MaskOfHeads(nn.Linear):
    """Its mask is one for each head."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, d_model)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        assert attention_mask is None or attention_mask.ndim == 4, "(batch, head, seq, seq)"
        return super().forward(x)


class RightOnly(Recurrence):
    def masked(self, a: Tensor, mask: Tensor, raw: Tensor) -> Tensor:
        assert mask[:, 0].all(), "padding is at the end"
        return super().masked(a, mask, raw)


class Named(Stepper):
    """Begins with a state of its own, which is a mapping."""

    def init_state(self, batch_size: int) -> dict[str, Tensor]:
        return {"h": torch.zeros(batch_size, D_MODEL)}

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y, h = super().step(x, h)
        return y, {"h": h}


class Several(Stepper):
    """Returns two states as separate values, of positions with an axis of their own."""

    def step(self, x: Tensor, h: Tensor | None = None, n: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if x.ndim != 3:
            raise ValueError("(batch, 1, d_model)")
        y, h = super().step(x[:, 0], h)
        return y.unsqueeze(1), h, torch.ones(()) if n is None else n + 1


class Alone(Stepper):
    """Its step gives no state back."""

    def step(self, x: Tensor, state: Any = None) -> Tensor:
        return super().step(x, state)[0]


@pytest.mark.parametrize(
    ("make", "name", "verdict", "said"),
    [
        (Narrow, "float64", "failed", "outputs in torch.float32; expected: outputs in torch.float64"),
        (SteepAtZero, "float32", "failed", "NaN or infinity in the gradient of x"),
        (SteepAtZero, "autocast", "failed", "NaN or infinity in the gradient of x"),
        (Divides, "tiny_inputs", "failed", "NaN or infinity in the outputs"),
        (Single, "float32", "passed", "finite outputs and gradients"),
        (Single, "one_by_one", "not_applicable", "an adapter of ten lines"),
        (Constant, "float32", "passed", "of the norm away from float64"),
        (Short, "costs", "not_applicable", "no training pass at 512 positions: ValueError: at most 100 positions"),
        (Short, "gradient_decay", "not_applicable", "no gradient profile at 128 positions"),
        (Local, "gradient_decay", "passed", "no rate, the reach is too short: the gradient ends after 0 positions"),
        (LongConv, "costs", "passed", "kept for the backward pass of 512 positions"),
        (Attention, "state_size", "passed", "it grows"),
        (Stepper, "state_size", "passed", "the same at both lengths"),
        (Uncopied, "deep_copy", "failed", "TypeError: one of a kind; expected: a copy"),
        (Uncopied, "causality", "passed", ""),
        (Options, "options_matter", "passed", "each of kind, scale, rotate, base, shift was given other values"),
        (Picky, "options_matter", "passed", "each of scale, base was given other values"),
        (Unresolved, "options_matter", "passed", "each of scale was given"),
        (lambda d: Options(d), "options_matter", "not_applicable", "no options with plain defaults"),
        (LongConv(D_MODEL), "options_matter", "not_applicable", "a module was given"),
        (Lengths, "padding", "passed", "a chunk with a row of 2 positions of 6 was continued"),
        (LengthsOfWhole, "padding", "failed", "a chunk with a row of 2 positions of 6 was continued"),
        (MaskOfHeads, "padding", "not_applicable", "attention_mask is not (batch, seq) here: (batch, head, seq, seq)"),
        (RightOnly, "padding", "passed", "the same rows unpadded (attention_mask)"),
        (lambda d: create_mixer("lstm", d), "padding", "passed", "a chunk with a row of 2 positions of 6"),
        (Named, "one_by_one", "passed", "one position at a time"),
        (Named, "states_unchanged", "passed", "continued twice"),
        (Several, "one_by_one", "passed", "one position at a time"),
        (Alone, "one_by_one", "not_applicable", "no way to continue from a state is known"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_the_answer_of_a_property(make: Any, name: str, verdict: str, said: str) -> None:
    finding = find(make, name)
    assert (finding.verdict, said in finding.detail) == (verdict, True), finding.detail


def refuse(*_: Any) -> Any:
    raise RuntimeError("no code for this")


def compiler(change: Any, whole_graphs: bool = True) -> Any:
    """A stand-in of torch.compile, whose code is the function's with a change."""

    def compile_(function: Any, *, backend: str, fullgraph: bool = False) -> Any:
        return lambda x: change(refuse if fullgraph and not whole_graphs else function, x)

    return compile_


@pytest.mark.parametrize(
    ("stand_in", "verdict", "said"),
    [
        (compiler(lambda f, x: f(x)), "passed", "in one graph"),
        (compiler(lambda f, x: f(x), whole_graphs=False), "passed", "in several graphs"),
        (compiler(lambda f, x: 1.01 * f(x)), "failed", "they differ by"),
        (compiler(lambda f, x: f(x) + x - x.detach()), "failed", "gradients for the input: they differ"),
        (compiler(refuse), "failed", "RuntimeError: no code for this; expected: the outputs of eager code"),
    ],
    ids=["right", "broken graph", "wrong", "wrong gradient", "refused"],
)
def test_the_answer_of_compiles(stand_in: Any, verdict: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", stand_in)
    finding = find(Local, "compiles")
    assert (finding.verdict, said in finding.detail) == (verdict, True), finding.detail


@pytest.mark.parametrize(
    ("program", "verdict", "said"),
    [
        (lambda module, example: module, "passed", "equal"),
        (lambda module, example: lambda x: module(example), "failed", "they differ by"),
        (refuse, "failed", "RuntimeError: no code for this; expected: the outputs of the module"),
    ],
    ids=["right", "frozen", "refused"],
)
def test_the_answer_of_exports(program: Any, verdict: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def export(module: nn.Module, examples: tuple[Tensor]) -> Any:
        return SimpleNamespace(module=lambda: program(module, *examples))

    monkeypatch.setattr(torch.export, "export", export)
    finding = find(Local, "exports")
    assert (finding.verdict, said in finding.detail) == (verdict, True), finding.detail
