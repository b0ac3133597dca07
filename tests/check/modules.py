"""Correct third-party modules for the tests of `zoo.check`: one per streaming protocol and form of padding.

From `zoo` they import only `coefficient`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.coefficient import coefficient


class Recurrence(nn.Module):
    """Short convolution, then h_t = a_t h_(t-1) + (1 - |a_t|) v_t. Has `stream`; padding by `attention_mask`."""

    def __init__(self, d_model: int, d_conv: int = 3, negative: bool = False, dropout: float = 0.1) -> None:
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
        if mask is not None:
            a = self.masked(a, mask, raw)
        y, h = self.scan(a, self.value(mixed), h)
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
    """Causal attention with rotary positions; passes its cache as torch.nn.LSTM passes states; padding by `mask`."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))

    def forward(
        self, x: Tensor, cache: tuple[Tensor, Tensor] | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        past = 0 if cache is None else cache[0].shape[1]
        at = self.place(torch.arange(past, past + x.shape[1], device=x.device), past)
        k, v, q = self.rotate(self.k(x), at), self.v(x), self.rotate(self.q(x), at)
        if cache is not None:
            k, v = torch.cat((cache[0], k), dim=1), torch.cat((cache[1], v), dim=1)
        allowed = torch.ones(x.shape[1], past + x.shape[1], dtype=torch.bool, device=x.device).tril(past)
        logits = (q @ k.mT / x.shape[2] ** 0.5).masked_fill(~allowed, -torch.inf)
        if mask is not None:
            seen = mask[:, None, :] | torch.eye(x.shape[1], dtype=torch.bool, device=x.device)  # no row is all -inf
            logits = logits.masked_fill(~seen, -torch.inf)
        y = self.out(logits.softmax(-1) @ v)
        return (y if mask is None else y * mask.unsqueeze(-1)), (k, v)

    def place(self, at: Tensor, past: int) -> Tensor:
        return at

    def rotate(self, t: Tensor, at: Tensor) -> Tensor:
        half = t.shape[2] // 2
        angles = at[:, None] * 100.0 ** (-torch.arange(half, device=t.device) / half)
        cos, sin = angles.cos().to(t), angles.sin().to(t)
        a, b = t[..., :half], t[..., half:]
        return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class LongConv(nn.Module):
    """Causal FFT convolution with a kernel as long as the sequence."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.rand(d_model) + 0.05)
        self.skip = nn.Parameter(torch.randn(d_model))
        self.gain = 1.0

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        kernel = (-self.rate.abs() * torch.arange(n, device=x.device)[:, None].to(x)).exp().to(x)
        wide = torch.promote_types(x.dtype, torch.float32)
        size = 2 * n
        spectrum = torch.fft.rfft(x.to(wide), size, dim=1) * torch.fft.rfft(kernel.to(wide), size, dim=0)
        return self.gain * torch.fft.irfft(spectrum, size, dim=1)[:, :n].to(x) + self.skip * x


class Routed(LongConv):
    """The convolution, then top-1 routing of each position to one of two linear maps, by a float32 router."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.router, self.first, self.second = (nn.Linear(d_model, n) for n in (2, d_model, d_model))

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        weight, expert = self.router(y).softmax(-1, dtype=torch.float32).to(x).max(-1, keepdim=True)
        return y + weight * torch.where(expert == 0, self.first(y), self.second(y))


class Stepper(nn.Module):
    """Diagonal recurrence that decodes with `step`, one position at a time."""

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


class Named(Stepper):
    """`Stepper` with `init_state`, and a mapping as state."""

    def init_state(self, batch_size: int) -> dict[str, Tensor]:
        return {"h": torch.zeros(batch_size, len(self.rate), dtype=self.rate.dtype)}

    def step(self, x: Tensor, h: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y, h = super().step(x, h)
        return y, {"h": h}


class Several(Stepper):
    """`Stepper` with a token shift; `step` takes (batch, 1, d_model) and returns three states as separate values."""

    def step(self, x: Tensor, h: Tensor | None = None, n: Tensor | None = None, last: Tensor | None = None) -> Any:
        if x.ndim != 3:
            raise ValueError("(batch, 1, d_model)")
        y, h = super().step(x[:, 0] if last is None else x[:, 0] + 0.1 * last, h)
        return y.unsqueeze(1), h, torch.ones(()) if n is None else n + 1, x[:, 0]

    def normed(self, x: Tensor) -> Tensor:
        return super().normed(x + 0.1 * F.pad(x, (0, 0, 1, -1)))


class Cached(nn.Module):
    """Follows transformers: `inputs_embeds`, and a cache that is updated in place."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(5, d_model), Attention(d_model)

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def forward(
        self,
        inputs_embeds: Tensor,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        use_cache: bool = False,
    ) -> Any:
        cache = past_key_values or SimpleNamespace(held=None)
        mask = None if attention_mask is None else attention_mask.bool()
        y, cache.held = self.inner(inputs_embeds, cache.held if use_cache else None, mask=mask)
        return SimpleNamespace(last_hidden_state=y, past_key_values=cache if use_cache else None)


class Hiddens(nn.Module):
    """Follows x-transformers: `return_hiddens` returns the state, `cache` passes it in."""

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
    """Takes packed sequences: one row, with boundaries in `cu_seqlens`."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = Recurrence(d_model)

    def forward(self, x: Tensor, cu_seqlens: Tensor | None = None) -> Tensor:
        if cu_seqlens is None:
            return self.inner(x)
        return torch.cat([self.inner(part) for part in x.split(self.sizes(cu_seqlens), dim=1)], dim=1)

    def sizes(self, ends: Tensor) -> list[int]:
        return ends.diff().tolist()


class Bidirectional(nn.Module):
    """Adds to each position the mean over all unpadded ones; padding by `key_padding_mask`."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        counts = torch.ones_like(x[..., :1]) if key_padding_mask is None else (~key_padding_mask).unsqueeze(-1).to(x)
        return self.out(x + self.seen(x, counts).sum(1, keepdim=True) / counts.sum(1, keepdim=True))

    def seen(self, x: Tensor, counts: Tensor) -> Tensor:
        return x * counts


class Ragged(nn.Module):
    """Takes padding as `lengths`, in `forward` and in `stream`."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.inner = Recurrence(d_model, d_conv=1)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.stream(x, None, lengths)[0]

    def stream(self, x: Tensor, state: Any = None, lengths: Tensor | None = None) -> tuple[Tensor, Any]:
        mask = None if lengths is None else self.counted(x, lengths)
        return self.inner.run(x, self.inner.start(x) if state is None else state, mask)

    def counted(self, x: Tensor, lengths: Tensor) -> Tensor:
        return (torch.arange(x.shape[1]) < lengths[:, None]).to(x)


class Marked(nn.Module):
    """A gate, marked with `coefficient`, times a value."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return coefficient(self.gate(x).sigmoid()) * self.values(x)

    def values(self, x: Tensor) -> Tensor:
        return self.value(x)


@dataclass(slots=True)
class Held:
    """A state without `__dict__`: the last inputs, and the number of inputs so far."""

    last: deque[Tensor]
    n: int


class Window(nn.Module):
    """A linear map of the sum of the last three inputs, over their number; its state is an object with a deque."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.map = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.stream(x)[0]

    def stream(self, x: Tensor, state: Held | None = None) -> tuple[Tensor, Held]:
        held = Held(deque([x[:, 0] * 0] * 3 if state is None else state.last, 3), 0 if state is None else state.n)
        outputs = []
        for now in x.unbind(1):
            held.last.append(now)
            held.n += 1
            outputs.append(self.map(torch.stack(tuple(held.last)).sum(0)) / min(held.n, 3))
        return torch.stack(outputs, dim=1), held


class Complex(nn.Module):
    """Complex diagonal recurrence over inputs that a buffer of phases rotates."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.pole = nn.Parameter(torch.polar(torch.rand(d_model) / 2 + 0.4, 3 * torch.rand(d_model)))
        self.register_buffer("turn", torch.polar(torch.ones(d_model), torch.rand(d_model)))
        self.gain = nn.Parameter(torch.randn(d_model))

    def forward(self, x: Tensor) -> Tensor:
        return self.stream(x)[0]

    def stream(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h, outputs = torch.zeros_like(x[:, 0] * self.turn) if state is None else state, []
        for u in x.unbind(1):
            h = self.pole * h + self.gain * u * self.turn
            outputs.append(torch.view_as_real(h).prod(-1).tanh() + torch.view_as_real(h).sum(-1))
        return torch.stack(outputs, dim=1).to(x), h


PROTOCOLS: dict[type[nn.Module], str] = {
    Recurrence: "stream(x, state)",
    Attention: "(y, state) = module(x, state)",
    LongConv: "forward alone",
    Routed: "forward alone",
    Stepper: "step(x_t, state)",
    Named: "step(x_t, state)",
    Several: "step(x_t, state)",
    Cached: "past_key_values (transformers)",
    Hiddens: "return_hiddens and cache (x-transformers)",
    Packed: "forward alone",
    Ragged: "stream(x, state)",
    Bidirectional: "forward alone",
    Marked: "forward alone",
    Complex: "stream(x, state)",
    Window: "stream(x, state)",
}
"""{module: the protocol that the checks should detect}."""
