"""One error per function, planted into a method of a right module; many are taken from real threads.

To plant an error for a new property, write the wrong method under `@planted(property, class, method)`. It gets the
right method first, then its arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.check.modules import (
    Attention,
    Bidirectional,
    Cached,
    LongConv,
    Packed,
    Ragged,
    Recurrence,
    Several,
    Stepper,
)
from zoo.coefficient import coefficient


class Marked(nn.Module):
    """A gate, marked as a coefficient, times a value."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return coefficient(self.gate(x).sigmoid()) * self.values(x)

    def values(self, x: Tensor) -> Tensor:
        return self.value(x)


class Planted(NamedTuple):
    """An error: the property that must see it, and the method that it replaces."""

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

        @functools.wraps(right)  # with its signature, by which protocols are found
        def replaced(*args: Any, **options: Any) -> Any:
            return self.wrong(right, *args, **options)

        patch.setattr(self.owner, self.method, replaced)


ERRORS: list[Planted] = []


def named(name: str) -> Planted:
    return next(error for error in ERRORS if error.wrong.__name__ == name)


def planted(name: str, owner: Any, method: str) -> Callable[[Any], Any]:
    def register(wrong: Any) -> Any:
        ERRORS.append(Planted(name, owner, method, wrong))
        return wrong

    return register


@planted("causality", LongConv, "size")
def fft_that_wraps(right: Any, self: Any, n: int) -> int:
    return n


@planted("causality", Stepper, "normed")
def looks_ahead_in_training(right: Any, self: Any, x: Tensor) -> Tensor:
    return right(self, x - x.mean(1, keepdim=True) if self.training else x)


@planted("causality", Stepper, "normed")
def gradient_from_later_positions(right: Any, self: Any, x: Tensor) -> Tensor:
    later = x.flip(1)
    return right(self, x) + later - later.detach()


@planted("rows_independent", Stepper, "normed")
def mean_of_the_batch(right: Any, self: Any, x: Tensor) -> Tensor:
    return right(self, x - x.mean(0))


@planted("rows_independent", Stepper, "normed")
def batch_statistics_in_training(right: Any, self: Any, x: Tensor) -> Tensor:
    return right(self, x - x.mean((0, 1)) if self.training else x)


@planted("inputs_unchanged", Stepper, "step")
def parameters_written_into(right: Any, self: Any, x: Tensor, state: Any = None) -> Any:  # mamba#1024
    self.rate.data[-1] += 0.5
    return right(self, x, state)


@planted("inputs_unchanged", LongConv, "forward")
def input_written_into(right: Any, self: Any, x: Tensor) -> Tensor:
    return right(self, x.mul_(2) if not torch.is_grad_enabled() else x)


@planted("deterministic", LongConv, "forward")
def memory_between_calls(right: Any, self: Any, x: Tensor) -> Tensor:  # mamba#1024
    self.__dict__["last"] = right(self, x) + 0.1 * self.__dict__.get("last", 0.0)
    return self.__dict__["last"]


@planted("no_global_draws", LongConv, "forward")
def draw_in_eval(right: Any, self: Any, x: Tensor) -> Tensor:
    torch.rand(1)
    return right(self, x)


@planted("eval_without_dropout", Recurrence, "dropping")
def dropout_in_eval(right: Any, self: Any) -> bool:
    return True


@planted("lengths", Recurrence, "scan")
def wrong_at_one_length(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:  # fla#98
    y, last = right(self, a, v, h)
    return (y * torch.linspace(1, 2, 32).to(y)[:, None] if y.shape[1] == 32 else y), last


@planted("lengths", Stepper, "forward")
def one_position_is_refused(right: Any, self: Any, x: Tensor) -> Tensor:  # mamba#985
    return right(self, x.squeeze(1)[:, : x.shape[1]])


@planted("chunked", Recurrence, "stream")
def convolution_of_a_chunk_starts_with_zeros(right: Any, self: Any, x: Tensor, state: Any = None) -> Any:  # fla#494
    return right(self, x, None if state is None else (self.start(x)[0], state[1]))


@planted("chunked", Recurrence, "stream")
def chunk_starts_from_an_empty_state(right: Any, self: Any, x: Tensor, state: Any = None) -> Any:  # fla#285, mamba#641
    return right(self, x, None if x.shape[1] > 1 else state)


@planted("chunked", Recurrence, "run")
def forgotten_state_adds_little(right: Any, self: Any, x: Tensor, state: Any, mask: Any) -> Any:  # mamba#641
    """As a fresh Mamba with small steps: the contribution of the state is far below the tolerance of the outputs."""
    y, after = right(self, x, self.start(x) if x.shape[1] > 1 else state, mask)
    return 3e-5 * y + x, after


@planted("chunked", Attention, "place")
def position_off_by_one_after_a_chunk(right: Any, self: Any, at: Tensor, past: int) -> Tensor:
    return at - 1 if past else at  # rotary-embedding-torch#11


@planted("chunked", Attention, "allowed")
def causal_mask_from_the_start_of_the_cache(right: Any, self: Any, n: int, past: int) -> Tensor:
    return torch.ones(n, past + n, dtype=torch.bool).tril(0) if n > 1 else right(self, n, past)  # x-transformers#187


@planted("chunked", Cached, "recall")
def cache_forgotten_by_several_positions(right: Any, self: Any, cache: Any, n: int) -> Any:
    return None if n > 1 else cache.held


@planted("one_by_one", Attention, "place")
def positions_start_anew(right: Any, self: Any, at: Tensor, past: int) -> Tensor:  # x-transformers#219
    return at - past


@planted("one_by_one", Stepper, "step")
def step_without_the_norm(right: Any, self: Any, x: Tensor, state: Any = None) -> Any:  # mamba#500, #887
    h = self.rate.sigmoid() * (torch.zeros_like(x) if state is None else state) + self.value(x)
    return h, h


@planted("one_by_one", Recurrence, "scan")
def state_kept_in_bfloat16(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:  # fla#83
    y, last = right(self, a, v, h)
    return y, last.bfloat16().to(last.dtype)


@planted("stream_gradients", Recurrence, "scan")
def state_cut_from_the_graph(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:
    return right(self, a, v, h.detach())


@planted("states_unchanged", Recurrence, "scan")
def state_overwritten(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:
    y, last = right(self, a, v, h)
    if not torch.is_grad_enabled():
        h.copy_(last)
    return y, last


@planted("states_unchanged", Several, "step")
def counter_written_into(right: Any, self: Any, x: Tensor, h: Any = None, n: Any = None) -> Any:
    y, h, count = right(self, x, h, n)
    return y, h, count if n is None else n.add_(1)


@planted("padding", Recurrence, "masked")
def padding_decays_the_state(right: Any, self: Any, a: Tensor, mask: Tensor, raw: Tensor) -> Tensor:  # fla#1272
    return torch.where(mask.bool().unsqueeze(-1), a, self.decay(raw))


@planted("padding", Attention, "weights")
def padding_in_the_normaliser(right: Any, self: Any, logits: Tensor) -> Tensor:  # fla#1263
    return logits.exp() / (1e-6 + logits.logsumexp((1, 2), keepdim=True).exp())


@planted("padding", Attention, "forward")
def mask_not_used(right: Any, self: Any, x: Tensor, cache: Any = None, mask: Any = None) -> Any:  # x-transformers#187
    return right(self, x, cache)


@planted("padding", Bidirectional, "forward")
def gradient_into_the_padding(right: Any, self: Any, x: Tensor, key_padding_mask: Any = None) -> Tensor:
    total = x.sum(1, keepdim=True)
    return right(self, x, key_padding_mask) + total - total.detach()


@planted("padding", Bidirectional, "seen")
def padding_in_the_mean(right: Any, self: Any, x: Tensor, counts: Tensor) -> Tensor:
    return x


@planted("padding", Bidirectional, "seen")
def padding_in_the_count(right: Any, self: Any, x: Tensor, counts: Tensor) -> Tensor:
    return x * counts * counts.mean(1, keepdim=True)


@planted("padding", Packed, "sizes")
def packed_sequences_run_together(right: Any, self: Any, ends: Tensor) -> list[int]:
    return [int(ends[-1])]


@planted("padding", Ragged, "counted")
def state_after_the_padding(right: Any, self: Any, x: Tensor, lengths: Tensor) -> Tensor:
    return right(self, x, lengths) if x.shape[1] > 6 else torch.ones_like(x[..., 0])


@planted("parameters_trained", LongConv, "__init__")
def parameter_without_effect(right: Any, self: Any, d_model: int) -> None:
    right(self, d_model)
    self.unused = nn.Parameter(torch.ones(d_model))


@planted("parameters_trained", LongConv, "forward")
def gradient_of_a_parameter_is_nan(right: Any, self: Any, x: Tensor) -> Tensor:
    return right(self, x) + (0 * self.skip).sqrt()


@planted("parameters_trained", LongConv, "forward")
def output_without_gradient(right: Any, self: Any, x: Tensor) -> Tensor:
    return right(self, x).detach()


@planted("options_matter", Recurrence, "decay")
def option_ignored(right: Any, self: Any, x: Tensor) -> Tensor:  # fla#832
    return self.gate(x).sigmoid() * 0.99


@planted("deep_copy", LongConv, "__init__")
def copy_refused(right: Any, self: Any, d_model: int) -> None:
    right(self, d_model)
    self.numbers = (n for n in range(3))


@planted("deep_copy", LongConv, "__init__")
def copy_shares_parameters(right: Any, self: Any, d_model: int) -> None:
    class Shared(nn.Parameter):
        def __deepcopy__(self, memo: Any) -> Any:
            return self

    right(self, d_model)
    self.skip = Shared(self.skip.data)


@planted("pickled", LongConv, "__init__")
def lambda_that_pickle_refuses(right: Any, self: Any, d_model: int) -> None:
    right(self, d_model)
    self.activation = lambda t: t.tanh()


@planted("pickled", LongConv, "__setstate__")
def parameter_changed_by_pickle(right: Any, self: Any, state: Any) -> None:
    right(self, state)
    self.skip.data = 2 * self.skip.data


@planted("state_dict", LongConv, "__init__")
def number_outside_the_state_dict(right: Any, self: Any, d_model: int) -> None:
    right(self, d_model)
    self.gain = float(torch.randn(()))


@planted("float64", LongConv, "forward")
def float32_out(right: Any, self: Any, x: Tensor) -> Tensor:
    return right(self, x).float()


@planted("float32", LongConv, "forward")
@planted("autocast", LongConv, "forward")
def infinite_slope_at_zero(right: Any, self: Any, x: Tensor) -> Tensor:
    return right(self, x) + (0 * x).sqrt()


@planted("bfloat16", LongConv, "forward")
def inexact_in_bfloat16(right: Any, self: Any, x: Tensor) -> Tensor:
    return right(self, x) * (1.1 if x.dtype == torch.bfloat16 else 1.0)


@planted("bfloat16", Recurrence, "stream")
def inexact_chunks_in_bfloat16(right: Any, self: Any, x: Tensor, state: Any = None) -> Any:
    y, state = right(self, x, state)
    return y * (1.1 if x.dtype == torch.bfloat16 else 1.0), state


@planted("autocast", LongConv, "forward")
def inexact_under_autocast(right: Any, self: Any, x: Tensor) -> Tensor:
    return right(self, x) * (1.1 if torch.is_autocast_enabled("cpu") else 1.0)


@planted("large_inputs", Recurrence, "scan")
def division_by_small_decays(right: Any, self: Any, a: Tensor, v: Tensor, h: Tensor) -> Any:  # fla#547
    total = a.clamp(min=1e-30).log().cumsum(1)
    y = total.exp() * (((1 - a.abs()) * v * (-total).exp()).cumsum(1) + h.unsqueeze(1))
    return y, y[:, -1]


@planted("tiny_inputs", LongConv, "forward")
def division_by_inputs(right: Any, self: Any, x: Tensor) -> Tensor:
    return right(self, x) / x.abs().clamp(max=1e-3).round()


@planted("operator", Marked, "values")
def value_that_is_not_affine(right: Any, self: Any, x: Tensor) -> Tensor:
    return right(self, x).tanh()


def refuse(*_: Any) -> Any:
    raise RuntimeError("no code for this")


@planted("compiles", torch, "compile")
def compiled_to_other_numbers(right: Any, function: Any, **_: Any) -> Any:
    return lambda x: 1.01 * function(x)


@planted("compiles", torch, "compile")
def compiled_to_another_gradient(right: Any, function: Any, **_: Any) -> Any:
    return lambda x: function(x) + x - x.detach()


@planted("compiles", torch, "compile")
def not_compiled(right: Any, function: Any, **_: Any) -> Any:
    return refuse


@planted("exports", torch.export, "export")
def exported_as_a_constant(right: Any, module: nn.Module, examples: tuple[Tensor]) -> Any:
    return SimpleNamespace(module=lambda: lambda x: module(*examples))


@planted("exports", torch.export, "export")
def not_exported(right: Any, module: nn.Module, examples: tuple[Tensor]) -> Any:
    return refuse()
