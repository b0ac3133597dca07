"""Bugs planted into the modules of `tests.check.modules`, many from real issue threads; one property detects each.

A new property needs an entry in `ERRORS`: the bug, the property that must detect it, class and method, and a
replacement for the method. The replacement is called with the original method, then with its arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests import raising
from tests.check.modules import Attention, Bidirectional, LongConv, Marked, Packed, Ragged, Recurrence, Several, Stepper
from zoo.check.calls import LONG


class Planted(NamedTuple):
    bug: str
    seen_by: str
    owner: Any
    method: str
    wrong: Callable[..., Any]

    @property
    def module(self) -> type[nn.Module]:
        """The module to check: the owner of the method, or any module for a function of torch."""
        return self.owner if isinstance(self.owner, type) else LongConv

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        right = getattr(self.owner, self.method)

        @functools.wraps(right)  # protocols are detected by signature
        def replaced(*args: Any, **options: Any) -> Any:
            return self.wrong(right, *args, **options)

        patch.setattr(self.owner, self.method, replaced)


def in_train(right: Any, self: Any, x: Tensor, dims: Any) -> Tensor:
    return right(self, x - x.mean(dims, keepdim=True) if self.training else x)


def written_into(right: Any, self: Any, x: Tensor, state: Any = None) -> Any:
    self.rate.data[-1] += 0.5
    return right(self, x, state)


def remembers(right: Any, self: Any, x: Tensor) -> Tensor:
    self.__dict__["last"] = right(self, x) + 0.1 * self.__dict__.get("last", 0.0)
    return self.__dict__["last"]


def draws(right: Any, self: Any, x: Tensor) -> Tensor:
    torch.rand(1)
    return right(self, x)


def wrong_at_32(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:
    y, last = right(self, a, v, h)
    return (y * torch.linspace(1, 2, 32).to(y)[:, None] if y.shape[1] == 32 else y), last


def refuses_long_chunks(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:
    if 200 < v.shape[1] < LONG:
        raise ValueError("at most 200 positions")
    return right(self, a, v, h)


def adds_little(right: Any, self: Any, x: Tensor, state: Any, mask: Any) -> Any:
    """Like a fresh Mamba with small steps: the state contributes far less than the tolerance of the outputs."""
    y, after = right(self, x, self.start(x) if x.shape[1] > 1 else state, mask)
    return 3e-5 * y + x, after


def rounds_its_state(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:
    y, last = right(self, a, v, h)
    return y, last.bfloat16().to(last.dtype)


def overwrites(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:
    y, last = right(self, a, v, h)
    if not torch.is_grad_enabled():
        h.copy_(last)
    return y, last


def counts_in_place(right: Any, self: Any, x: Tensor, h: Any = None, n: Any = None, last: Any = None) -> Any:
    y, h, count, last = right(self, x, h, n, last)
    return y, h, count if n is None else n.add_(1), last


def leaks_a_gradient(right: Any, self: Any, x: Tensor, key_padding_mask: Any = None) -> Tensor:
    total = x.sum(1, keepdim=True)
    return right(self, x, key_padding_mask) + total - total.detach()


def built_with(**attributes: Callable[[Any], Any]) -> Any:
    """A constructor that also sets these attributes, each computed from the module."""

    def wrong(right: Any, self: Any, d_model: int) -> None:
        right(self, d_model)
        for name, make in attributes.items():
            setattr(self, name, make(self))

    return wrong


class Shared(nn.Parameter):
    def __deepcopy__(self, memo: Any) -> Any:
        return self


def unpickled(right: Any, self: Any, state: Any) -> None:
    right(self, state)
    self.skip.data = 2 * self.skip.data


def steep(right: Any, self: Any, x: Tensor) -> Tensor:
    return right(self, x) + (0 * x).sqrt()


def inexact_chunks(right: Any, self: Any, x: Tensor, state: Any = None) -> Any:
    y, state = right(self, x, state)
    return y * (1.1 if x.dtype == torch.bfloat16 else 1.0), state


def divides_by_decays(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:
    total = a.clamp(min=1e-30).log().cumsum(1)
    y = total.exp() * (((1 - a.abs()) * v * (-total).exp()).cumsum(1) + h.unsqueeze(1))
    return y, y[:, -1]


def program(of: Callable[..., Any]) -> Any:
    """A replacement of torch.export.export that returns `of(module, example)` as its program."""
    return lambda right, module, examples: SimpleNamespace(module=lambda: of(module, *examples))


class Halved(torch.autograd.Function):
    """The identity, with a hand-written backward that drops the gradient from later chunks."""

    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> Tensor:
        return 0 * g[0]


def forgets_the_adjoint(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:
    outputs = []
    for now, new in zip(a.split(64, 1), v.split(64, 1), strict=True):
        y, h = right(self, now, new, Halved.apply(h))
        outputs.append(y)
    return torch.cat(outputs, 1), h


def sums_in_bfloat16(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:
    outputs = []
    for now, new in zip(a.unbind(1), v.unbind(1), strict=True):
        h = (now * h + new).bfloat16().to(v.dtype)
        outputs.append(h)
    return torch.stack(outputs, dim=1), h


def sums_in_its_dtype(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:
    outputs = []
    for new in v.unbind(1):
        h = h.to(v) + 0.1 * new.abs()  # in bfloat16 the sum soon stops growing
        outputs.append(h)
    return torch.stack(outputs, dim=1), h


def narrow_state(right: Any, self: Any, x: Tensor, state: Any = None) -> Any:
    y, after = right(self, x, None if state is None else tuple(t.to(x) for t in state))
    return y, tuple(t.bfloat16() for t in after)


def kept_in_the_module(right: Any, self: Any, x: Tensor, state: Any = None) -> Any:
    y, after = right(self, x, None if state is None else (state[0], self.__dict__["h"]))
    self.__dict__["h"] = after[1]
    return y, after


def late(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:
    y, last = right(self, a, v, h)
    return y * (1 + 0.1 * (torch.arange(y.shape[1]) > 1100)).to(y)[:, None], last


def from_afar(right: Any, self: Any, x: Tensor) -> Any:
    return right(self, x) + nn.functional.pad(x[:, 99:], (0, 0, 0, min(99, x.shape[1])))


ERRORS = [
    Planted("adjoint that is not carried", "gradients", Recurrence, "scan", forgets_the_adjoint),
    Planted(
        "gradient for the input doubled",
        "gradients",
        LongConv,
        "forward",
        lambda f, self, x: f(self, 2 * x - x.detach()),
    ),
    Planted(
        "gradient for one parameter doubled",
        "gradients",
        LongConv,
        "forward",
        lambda f, self, x: f(self, x) + (self.skip - self.skip.detach()) * x.detach(),
    ),
    Planted(
        "gradient doubled in float32",
        "gradients",
        LongConv,
        "forward",
        lambda f, self, x: f(self, 2 * x - x.detach() if x.dtype == torch.float32 else x),
    ),
    Planted(
        "wrong beyond 300 positions",
        "lengths",
        LongConv,
        "forward",
        lambda f, self, x: f(self, x) * (1 + 0.1 * (x.shape[1] > 300)),
    ),
    Planted(
        "wrong beyond 1,000 positions",
        "lengths",
        LongConv,
        "forward",
        lambda f, self, x: f(self, x) * (1 + 0.1 * (x.shape[1] > 1000)),
    ),
    Planted(
        "wrong beyond 16 rows",
        "rows_independent",
        LongConv,
        "forward",
        lambda f, self, x: f(self, x) * torch.where(torch.arange(len(x)) < 16, 1.0, 1.1)[:, None, None].to(x),
    ),
    Planted(
        "rows mixed beyond 64 channels",
        "large_sizes",
        LongConv,
        "forward",
        lambda f, self, x: f(self, x) + (0.1 * x.mean(0) if x.shape[2] > 64 else 0.0),
    ),
    Planted(
        "wrong beyond 1,000 positions",
        "large_sizes",
        Recurrence,
        "scan",
        late,
    ),
    Planted("sums in bfloat16", "float32", Recurrence, "scan", sums_in_bfloat16),
    Planted("bfloat16 state", "float32", Recurrence, "stream", narrow_state),
    Planted("long sums in bfloat16", "bfloat16", Recurrence, "scan", sums_in_its_dtype),
    Planted("long sums in bfloat16", "autocast", Recurrence, "scan", sums_in_its_dtype),
    Planted("state kept in the module", "prefix_restored", Recurrence, "stream", kept_in_the_module),
    Planted("state kept in the module", "draft_rolled_back", Recurrence, "stream", kept_in_the_module),
    Planted("state kept in the module", "rows_exchanged", Recurrence, "stream", kept_in_the_module),
    Planted(
        "positions counted from the padding",
        "padding",
        Attention,
        "forward",
        lambda f, self, x, cache=None, mask=None: f(
            self, x + 0.1 * torch.arange(x.shape[1])[:, None].to(x), cache, mask
        ),
    ),
    Planted(
        "leak of a millionth", "causality", Stepper, "normed", lambda f, self, x: f(self, x) + 1e-6 * x.roll(-1, 1)
    ),
    Planted(
        "leak at the end alone",
        "causality",
        Stepper,
        "normed",
        lambda f, self, x: f(self, x) + x.roll(-1, 1) * (torch.arange(x.shape[1]) == x.shape[1] - 2).to(x)[:, None],
    ),
    Planted(
        "looks ahead with many rows",
        "causality",
        Stepper,
        "normed",
        lambda f, self, x: f(self, x.roll(-1, 1) if len(x) > 32 else x),
    ),
    Planted("leak from afar", "causality", Stepper, "normed", from_afar),
    Planted("looks ahead in training", "causality", Stepper, "normed", lambda f, self, x: in_train(f, self, x, 1)),
    Planted(
        "gradient from later positions",
        "causality",
        Stepper,
        "normed",
        lambda f, self, x: f(self, x) + x.flip(1) - x.flip(1).detach(),
    ),
    Planted(
        "batch statistics in training",
        "rows_independent",
        Stepper,
        "normed",
        lambda f, self, x: in_train(f, self, x, (0, 1)),
    ),
    Planted("parameters written into", "inputs_unchanged", Stepper, "step", written_into),  # mamba#1024
    Planted("input written into", "inputs_unchanged", LongConv, "forward", lambda f, self, x: f(self, x.mul_(2))),
    Planted("memory between calls", "deterministic", LongConv, "forward", remembers),  # mamba#1024
    Planted("draws in eval mode", "no_global_draws", LongConv, "forward", draws),
    Planted("dropout in eval mode", "eval_without_dropout", Recurrence, "dropping", lambda f, self: True),
    Planted("wrong at one length", "lengths", Recurrence, "scan", wrong_at_32),  # fla#98
    Planted(  # mamba#985
        "one position refused", "lengths", Stepper, "forward", lambda f, self, x: f(self, x.squeeze(1)[:, :99])
    ),
    Planted(  # fla#285, mamba#641
        "chunk starts from an empty state",
        "chunked",
        Recurrence,
        "stream",
        lambda f, self, x, state=None: f(self, x, None if x.shape[1] > 1 else state),
    ),
    Planted("lost state adds little", "chunked", Recurrence, "run", adds_little),  # mamba#641
    Planted(  # x-transformers#219
        "positions start anew", "one_by_one", Attention, "place", lambda f, self, at, past: at - past
    ),
    Planted("positions lost after 256", "chunked", Attention, "place", lambda f, self, at, past: at - past // 257),
    Planted("state kept in bfloat16", "one_by_one", Recurrence, "scan", rounds_its_state),  # fla#83
    Planted(
        "state cut from the graph",
        "stream_gradients",
        Recurrence,
        "scan",
        lambda f, self, a, v, h: f(self, a, v, h.detach()),
    ),
    Planted("long chunks refused", "chunked", Recurrence, "scan", refuses_long_chunks),
    Planted(
        "gradients are NaN",
        "stream_gradients",
        Recurrence,
        "decay",
        lambda f, self, x: f(self, x) + (0 * self.gate.weight).sqrt().sum(),
    ),
    Planted("state overwritten", "states_unchanged", Recurrence, "scan", overwrites),
    Planted("state kept in the module", "states_unchanged", Recurrence, "stream", kept_in_the_module),
    Planted("counter written into", "states_unchanged", Several, "step", counts_in_place),
    Planted(  # fla#1272
        "padding decays the state",
        "padding",
        Recurrence,
        "masked",
        lambda f, self, a, mask, raw: torch.where(mask.bool().unsqueeze(-1), a, self.decay(raw)),
    ),
    Planted("gradient into the padding", "padding", Bidirectional, "forward", leaks_a_gradient),
    Planted(
        "padding in the count",
        "padding",
        Bidirectional,
        "seen",
        lambda f, self, x, counts: x * counts * counts.mean(1, keepdim=True),
    ),
    Planted("packed rows run together", "padding", Packed, "sizes", lambda f, self, ends: [int(ends[-1])]),
    Planted(
        "state after the padding",
        "padding",
        Ragged,
        "counted",
        lambda f, self, x, lengths: f(self, x, lengths) if x.shape[1] > 6 else torch.ones_like(x[..., 0]),
    ),
    Planted(
        "parameter without effect",
        "parameters_trained",
        LongConv,
        "__init__",
        built_with(unused=lambda self: nn.Parameter(torch.ones(3))),
    ),
    Planted(
        "gradient of a parameter is NaN",
        "parameters_trained",
        LongConv,
        "forward",
        lambda f, self, x: f(self, x) + (0 * self.skip).sqrt(),
    ),
    Planted(  # fla#832
        "option ignored", "options_matter", Recurrence, "decay", lambda f, self, x: self.gate(x).sigmoid() * 0.99
    ),
    Planted(
        "copy shares parameters",
        "deep_copy",
        LongConv,
        "__init__",
        built_with(skip=lambda self: Shared(self.skip.data)),
    ),
    Planted("parameter changed by pickle", "pickled", LongConv, "__setstate__", unpickled),
    Planted(
        "number outside the state_dict",
        "state_dict",
        LongConv,
        "__init__",
        built_with(gain=lambda self: float(torch.randn(()))),
    ),
    Planted("float32 out", "float64", LongConv, "forward", lambda f, self, x: f(self, x).float()),
    Planted("infinite slope at zero", "float32", LongConv, "forward", steep),
    Planted("infinite slope at zero", "autocast", LongConv, "forward", steep),
    Planted("inexact chunks in bfloat16", "bfloat16", Recurrence, "stream", inexact_chunks),
    Planted("division by small decays", "large_inputs", Recurrence, "scan", divides_by_decays),  # fla#547
    Planted(
        "exponential of large numbers alone",
        "large_inputs",
        LongConv,
        "forward",
        lambda f, self, x: f(self, x) + (x / 8).exp(),
    ),
    Planted(
        "division by inputs",
        "tiny_inputs",
        LongConv,
        "forward",
        lambda f, self, x: f(self, x) / x.abs().clamp(max=1e-3).round(),
    ),
    Planted(
        "division by a norm of zero",
        "tiny_inputs",
        LongConv,
        "forward",
        lambda f, self, x: f(self, x) + x / x.norm(dim=2, keepdim=True),
    ),
    Planted("value that is not affine", "operator", Marked, "values", lambda f, self, x: f(self, x).tanh()),
    Planted("other numbers", "compiles", torch, "compile", lambda f, code, **_: lambda x: 1.01 * code(x)),
    Planted("other gradient", "compiles", torch, "compile", lambda f, code, **_: lambda x: code(x) + x - x.detach()),
    Planted("no code", "compiles", torch, "compile", lambda f, code, **_: raising(RuntimeError("no code for this"))),
    Planted("constant", "exports", torch.export, "export", program(lambda module, x: lambda _: module(x))),
]


def named(bug: str) -> Planted:
    return next(error for error in ERRORS if error.bug == bug)
