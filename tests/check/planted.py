"""Right modules as strangers write them, and errors from real threads planted into them, one each.

Nothing here is built on `zoo`: the checks must manage with plain torch. A bug is a subclass that overrides one method.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Recurrence(nn.Module):
    """Short convolution, then h_t = a_t h_(t-1) + (1 - a_t) v_t; `stream`, and `attention_mask` for padding."""

    def __init__(self, d_model: int, d_conv: int = 3, negative: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.d_conv, self.negative, self.dropout = d_conv, negative, dropout
        self.conv = nn.Parameter(torch.randn(d_conv, d_model) / d_conv)
        self.value, self.gate, self.out = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.run(x, self.start(x), attention_mask)[0]

    def stream(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.run(x, self.start(x) if state is None else state, None)

    def start(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_zeros(len(x), self.d_conv - 1, x.shape[2]), x.new_zeros(len(x), x.shape[2])

    def run(self, x: Tensor, state: tuple[Tensor, Tensor], mask: Tensor | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        raw = x
        if mask is not None:
            x = x * mask.unsqueeze(-1)
        window, h = state
        padded = torch.cat((window, x), dim=1)
        mixed = sum(padded[:, k : k + x.shape[1]] * self.conv[k] for k in range(self.d_conv))
        a = self.decay(mixed)
        v = self.value(mixed)
        if mask is not None:
            a = self.masked(a, mask, raw)
        y, h = self.scan(a, v, h)
        y = F.dropout(self.out(y), self.dropout, self.dropping())
        return y, (padded[:, padded.shape[1] - self.d_conv + 1 :], h)

    def decay(self, x: Tensor) -> Tensor:
        return (self.gate(x).tanh() if self.negative else self.gate(x).sigmoid()) * 0.99

    def masked(self, a: Tensor, mask: Tensor, raw: Tensor) -> Tensor:
        return torch.where(mask.bool().unsqueeze(-1), a, 1.0)

    def scan(self, a: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for now, new in zip(a.unbind(1), v.unbind(1), strict=True):
            h = now * h + (1 - now.abs()) * new
            outputs.append(h)
        return torch.stack(outputs, dim=1), h

    def dropping(self) -> bool:
        return self.training


class Attention(nn.Module):
    """Causal attention with rotary positions, a cache as torch.nn.LSTM has states, and a `mask` for padding."""

    def __init__(self, d_model: int, base: float = 100.0) -> None:
        super().__init__()
        self.base = base
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(
        self, x: Tensor, cache: tuple[Tensor, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        past = 0 if cache is None else cache[0].shape[1]
        at = torch.arange(past, past + x.shape[1], device=x.device)
        k, v = self.rotate(self.k(x), self.place(at, past)), self.v(x)
        q = self.rotate(self.q(x), self.place(at, past))
        if cache is not None:
            k, v = torch.cat((cache[0], k), dim=1), torch.cat((cache[1], v), dim=1)
        allowed = self.allowed(x.shape[1], past).to(x.device)
        logits = (q @ k.mT / x.shape[2] ** 0.5).masked_fill(~allowed, -torch.inf)
        if mask is not None:
            seen = mask[:, None, :] | torch.eye(x.shape[1], dtype=torch.bool, device=x.device)  # no row of -inf alone
            logits = logits.masked_fill(~seen, -torch.inf)
        y = self.out(self.weights(logits, mask) @ v)
        return (y if mask is None else y * mask.unsqueeze(-1)), (k, v)

    def place(self, at: Tensor, past: int) -> Tensor:
        return at

    def allowed(self, n: int, past: int) -> Tensor:
        return torch.ones(n, past + n, dtype=torch.bool).tril(past)

    def weights(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return logits.softmax(-1)

    def rotate(self, t: Tensor, at: Tensor) -> Tensor:
        half = t.shape[2] // 2
        angles = at[:, None] * self.base ** (-torch.arange(half, device=t.device) / half)
        cos, sin = angles.cos().to(t), angles.sin().to(t)
        a, b = t[..., :half], t[..., half:]
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class LongConv(nn.Module):
    """A causal convolution as long as the sequence, by FFT."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.rand(d_model) + 0.05)
        self.skip = nn.Parameter(torch.randn(d_model))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        kernel = (-self.rate.abs() * torch.arange(n, device=x.device)[:, None].to(x)).exp().to(x)
        wide = torch.promote_types(x.dtype, torch.float32)
        size = self.size(n)
        spectrum = torch.fft.rfft(x.to(wide), size, dim=1) * torch.fft.rfft(kernel.to(wide), size, dim=0)
        return torch.fft.irfft(spectrum, size, dim=1)[:, :n].to(x) + self.skip * x

    def size(self, n: int) -> int:
        return 2 * n


class Stepper(nn.Module):
    """A diagonal recurrence that decodes by `step`, a position at a time."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.randn(d_model))
        self.norm, self.value = nn.LayerNorm(d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        h, outputs = x.new_zeros(len(x), x.shape[2]), []
        for v in self.value(self.normed(x)).unbind(1):
            h = self.rate.sigmoid() * h + v
            outputs.append(h)
        return torch.stack(outputs, dim=1)

    def step(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = torch.zeros_like(x) if state is None else state
        h = self.rate.sigmoid() * h + self.value(self.norm(x))
        return h, h

    def normed(self, x: Tensor) -> Tensor:
        return self.norm(x)


RIGHT: dict[str, type[nn.Module]] = {
    "recurrence": Recurrence,
    "attention": Attention,
    "long convolution": LongConv,
    "stepper": Stepper,
}


class EmptyWindow(Recurrence):
    def stream(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        start = self.start(x)
        return self.run(x, start if state is None else (start[0], state[1]), None)


class EmptyMemory(Recurrence):
    def stream(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        start = self.start(x)
        return self.run(x, start if state is None or x.shape[1] > 1 else state, None)


class FaintMemory(EmptyMemory):
    """As a fresh Mamba with small steps: what the state adds is far below the tolerance of the outputs."""

    def run(self, x: Tensor, state: tuple[Tensor, Tensor], mask: Tensor | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = super().run(x, state, mask)
        return 3e-5 * y + x, state


class Overwritten(Recurrence):
    def scan(self, a: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y, last = super().scan(a, v, h)
        if not torch.is_grad_enabled():
            h.copy_(last)
        return y, last


class Rounded(Recurrence):
    def scan(self, a: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y, last = super().scan(a, v, h)
        return y, last.bfloat16().to(last.dtype)


class DetachedState(Recurrence):
    def scan(self, a: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y, last = super().scan(a, v, h)
        return y, last.detach()


class PaddingDecays(Recurrence):
    def masked(self, a: Tensor, mask: Tensor, raw: Tensor) -> Tensor:
        return torch.where(mask.bool().unsqueeze(-1), a, self.decay(raw))


class PaddingCounts(Attention):
    def weights(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        return logits.exp() / (1e-6 + logits.logsumexp((1, 2), keepdim=True).exp())


class PaddingSeen(Attention):
    def forward(
        self, x: Tensor, cache: tuple[Tensor, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return super().forward(x, cache)


class OptionIgnored(Recurrence):
    def decay(self, x: Tensor) -> Tensor:
        return self.gate(x).sigmoid() * 0.99


class DropoutInEval(Recurrence):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, dropout=0.1)

    def dropping(self) -> bool:
        return True


class BatchStatistics(Stepper):
    def normed(self, x: Tensor) -> Tensor:
        return super().normed((x - x.mean((0, 1))) / (1e-3 + x.std((0, 1), correction=0)))


class BatchMean(Stepper):
    def normed(self, x: Tensor) -> Tensor:
        return super().normed(x - x.mean(0))


class DeadParameter(Recurrence):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.skip = nn.Parameter(torch.ones(d_model))


class LargeDecays(Recurrence):
    def scan(self, a: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """In closed form, by dividing through cumulative decays, which underflow."""
        total = a.clamp(min=1e-30).log().cumsum(1)
        grown = ((1 - a.abs()) * v * (-total).exp()).cumsum(1)
        y = total.exp() * (grown + h.unsqueeze(1))
        return y, y[:, -1]


class OneBlockWrong(Recurrence):
    def scan(self, a: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        y, last = super().scan(a, v, h)
        return (y * torch.linspace(1, 2, 32, device=y.device).to(y)[:, None] if y.shape[1] == 32 else y), last


class WritesParameters(Stepper):
    def step(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if x.shape[1] % 64:
            self.rate.data[-1] += 0.5
        return super().step(x, state)


class OnePosition(Stepper):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.squeeze(1)[:, : x.shape[1]])


class StepWithoutNorm(Stepper):
    def step(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = self.rate.sigmoid() * (torch.zeros_like(x) if state is None else state) + self.value(x)
        return h, h


class OffByOne(Attention):
    def place(self, at: Tensor, past: int) -> Tensor:
        return at - 1 if past else at


class PositionsAnew(Attention):
    def place(self, at: Tensor, past: int) -> Tensor:
        return at - past


class TopLeftMask(Attention):
    def allowed(self, n: int, past: int) -> Tensor:
        return torch.ones(n, past + n, dtype=torch.bool).tril(0) if n > 1 else super().allowed(n, past)


class Circular(LongConv):
    def size(self, n: int) -> int:
        return n


class Remembers(LongConv):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.__dict__["last"] = y + 0.1 * self.__dict__.get("last", 0.0)
        return self.__dict__["last"]


class OutsideStateDict(LongConv):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.mix = torch.randn(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ self.mix.to(x)


class Unpicklable(LongConv):
    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.activation = lambda t: t.tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(super().forward(x))


class Bug(NamedTuple):
    """An error, where it was seen, and the property that ought to see it."""

    module: type[nn.Module]
    thread: str
    property: str


BUGS: dict[str, Bug] = {
    "the convolution of a chunk begins with zeros": Bug(EmptyWindow, "fla#494", "chunked"),
    "a chunk begins from an empty state": Bug(EmptyMemory, "fla#285, mamba#641", "chunked"),
    "a chunk begins from an empty state that adds little": Bug(FaintMemory, "mamba#641", "chunked"),
    "positions begin anew in a cached chunk": Bug(PositionsAnew, "x-transformers#219", "one_by_one"),
    "a position off by one after a chunk": Bug(OffByOne, "rotary-embedding-torch#11", "chunked"),
    "a causal mask that begins at the cache's start": Bug(TopLeftMask, "x-transformers#187, #311", "chunked"),
    "a step that leaves out what forward does": Bug(StepWithoutNorm, "mamba#500, #887", "one_by_one"),
    "a state that is overwritten": Bug(Overwritten, "", "states_unchanged"),
    "a state kept in bfloat16": Bug(Rounded, "fla#83", "one_by_one"),
    "a state cut from the graph": Bug(DetachedState, "", "stream_gradients"),
    "padding whose decay counts": Bug(PaddingDecays, "fla#1272", "padding"),
    "padding that the normaliser counts": Bug(PaddingCounts, "fla#1263", "padding"),
    "a mask that is not used": Bug(PaddingSeen, "x-transformers#187", "padding"),
    "an option that is ignored": Bug(OptionIgnored, "fla#832", "options_matter"),
    "wrong at one length": Bug(OneBlockWrong, "fla#98", "lengths"),
    "parameters written into at some widths": Bug(WritesParameters, "mamba#1024", "inputs_unchanged"),
    "one position is refused": Bug(OnePosition, "mamba#985", "lengths"),
    "an FFT that wraps": Bug(Circular, "", "causality"),
    "batch statistics": Bug(BatchStatistics, "", "rows_independent"),
    "the mean of the batch": Bug(BatchMean, "", "rows_independent"),
    "a parameter without effect": Bug(DeadParameter, "", "parameters_trained"),
    "dropout in eval mode": Bug(DropoutInEval, "", "eval_without_dropout"),
    "NaN at large decays": Bug(LargeDecays, "fla#547", "large_inputs"),
    "memory between calls": Bug(Remembers, "mamba#1024", "deterministic"),
    "a matrix outside the state_dict": Bug(OutsideStateDict, "", "state_dict"),
    "a lambda that pickle refuses": Bug(Unpicklable, "", "pickled"),
}
