"""Linear recurrences and sLSTM: our implementations, and published ones to compare them with.

A form maps the tensors of a block, without a state; a step maps one position and the state. q, k, v are (batch, seq,
heads, d_head), gates and decays (batch, seq, heads) or one number per key channel; recurrences per channel use (batch,
seq, d_inner). transformers (extra `bench`) runs as installed, in its path without CUDA; the loops in this file are
written from the papers. tests/project/test_peers.py checks that the outputs agree, except for LSTM, a different
recurrence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from benchmarks.peers import Form, transformers_model
from zoo.ops.delta_rule import delta_rule, relaxed_delta_rule, unit_length
from zoo.ops.dplr import dplr
from zoo.ops.linear_recurrence import linear_recurrence, min_gru
from zoo.ops.mlstm import mlstm
from zoo.ops.retention import retention, retention_rates
from zoo.ops.slstm import slstm_scan

Step = Callable[..., tuple[Tensor, ...]]


def _heads_first(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.transpose(1, 2) for t in tensors)


def _whole(step: Step, empty: Callable[..., tuple[Tensor, ...]]) -> Form:
    """Turn a step that accepts any length into a form, which starts from the state `empty(*inputs)`."""
    return lambda *inputs: step(*inputs, *empty(*inputs))[0]


def _no_memory(q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> tuple[Tensor]:
    return (v.new_zeros(v.shape[0], v.shape[2], v.shape[3], v.shape[3]),)


def _no_mlstm(*inputs: Tensor) -> tuple[Tensor, ...]:
    (memory,) = _no_memory(*inputs[:3])
    return memory, memory[..., 0], memory[..., 0, 0]


def _no_channels(x: Tensor, *_: Tensor) -> tuple[Tensor]:
    return (x.new_zeros(len(x), x.shape[2]),)


def zoo_gated_delta(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the gated delta rule (2412.06464) as `gated_delta_net` calls it, from a state."""
    q, k, v, log_decay, beta = _heads_first(q * q.shape[3] ** -0.5, k, v, log_decay, beta)
    y, state = delta_rule(q, k, v, beta, log_decay, state)
    return y.transpose(1, 2), state


def transformers_gated_delta(*inputs: Tensor) -> Tensor:
    """Run the path of transformers' Qwen3-Next without CUDA, in chunks of 64."""
    return transformers_model("qwen3_next").torch_chunk_gated_delta_rule(*inputs)[0]


def transformers_gated_delta_step(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Run a decoding step of transformers' Qwen3-Next."""
    return transformers_model("qwen3_next").torch_recurrent_gated_delta_rule(*inputs, output_final_state=True)


def zoo_kimi_delta(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the delta rule with a decay per key channel (2510.26692) as `kda` calls it, from a state."""
    q, k, v, log_decay, key = _heads_first(q * q.shape[3] ** -0.5, k, v, log_decay, beta.unsqueeze(3) * k)
    y, state = dplr(q, key, v, log_decay, key, k, state)
    return y.transpose(1, 2), state


def transformers_kimi_delta(*inputs: Tensor) -> Tensor:
    """Run the path of transformers' Kimi Linear without CUDA, in chunks of 64."""
    return transformers_model("kimi_linear").chunk_kimi_delta_attention(*inputs)[0]


def transformers_kimi_delta_step(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Run a decoding step of transformers' Kimi Linear."""
    return transformers_model("kimi_linear").recurrent_kimi_delta_attention(*inputs, True)


def zoo_mlstm(
    q: Tensor, k: Tensor, v: Tensor, log_input: Tensor, logit: Tensor, C: Tensor, n: Tensor, m: Tensor
) -> tuple[Tensor, ...]:
    """Compute the matrix memory of xLSTM (2405.04517) as `mlstm` calls it, from a state."""
    q, k, v, log_input, logit = _heads_first(q * q.shape[3] ** -0.5, k, v, log_input, logit)
    y, *state = mlstm(q, k, v, log_input, F.logsigmoid(logit), C, n, m)
    return y.transpose(1, 2), *state


def transformers_mlstm(*inputs: Tensor) -> Tensor:
    """Run the path of transformers' xLSTM without its authors' kernels, in chunks of 64."""
    given = (t.contiguous() for t in _heads_first(*inputs))
    return transformers_model("xlstm").mlstm_chunkwise_native_autograd(*given).transpose(1, 2)


def transformers_mlstm_step(
    q: Tensor, k: Tensor, v: Tensor, log_input: Tensor, logit: Tensor, C: Tensor, n: Tensor, m: Tensor
) -> tuple[Tensor, ...]:
    """Run a decoding step of transformers' xLSTM."""
    step = transformers_model("xlstm").mlstm_recurrent_step_native
    given = (q[:, 0], k[:, 0], v[:, 0], log_input.transpose(1, 2), logit.transpose(1, 2))
    y, (C, n, m) = step(*given, C, n, m.unsqueeze(2))
    return y.unsqueeze(1), C, n, m.squeeze(2)


def loop_delta(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, kappa: Tensor, rate: Tensor) -> Tensor:
    """Compute RWKV-7's recurrence (2503.14456, eq. 17) by a loop over `unbind`."""
    (S,), outputs = _no_memory(q, k, v), []
    steps = (t.unbind(1) for t in (q, k, v, log_decay.exp(), kappa, rate * kappa))
    for qt, kt, vt, at, look, erase in zip(*steps, strict=True):
        found = look.unsqueeze(2) @ S
        S = torch.addcmul(at.unsqueeze(3) * S, erase.unsqueeze(3), found, value=-1)
        S = torch.addcmul(S, kt.unsqueeze(3), vt.unsqueeze(2))
        outputs.append((qt.unsqueeze(2) @ S).squeeze(2))
    return torch.stack(outputs, dim=1)


def zoo_relaxed_delta(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, kappa: Tensor, rate: Tensor) -> Tensor:
    """Compute RWKV-7's recurrence as `rwkv7` calls it."""
    (state,) = _no_memory(q, k, v)
    q, k, v, log_decay, kappa, rate = _heads_first(q, k, v, log_decay, kappa, rate)
    return relaxed_delta_rule(q, k, v, log_decay, kappa, rate, state)[0].transpose(1, 2)


def transformers_rg_lru(decay: Tensor, written: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run h_t = decay_t h_{t-1} + written_t as transformers' RecurrentGemma does, in a loop over positions."""
    unit = transformers_model("recurrent_gemma").RecurrentGemmaRglru
    reset = torch.zeros(1, 1, 1, dtype=torch.bool)
    return unit._rnn_scan(None, written, decay, reset, state, acc_dtype=written.dtype)


def zoo_min_gru(hidden: Tensor, gate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute h_t = (1 - z) h_{t-1} + z g(hidden_t), z = sigmoid(gate_t) (2410.01201) as `min_gru` does."""
    return min_gru(gate, hidden, state)


def log_space_min_gru(hidden: Tensor, gate: Tensor) -> Tensor:
    """Compute minGRU in its published form (appendix B): a cumulative log-sum-exp (Heinsen 2311.06281)."""
    log_decay = -F.softplus(gate)
    log_candidate = torch.where(hidden >= 0, (F.relu(hidden) + 0.5).log(), -F.softplus(-hidden))
    so_far = log_decay.cumsum(1)
    return (so_far + (log_candidate - F.softplus(-gate) - so_far).logcumsumexp(1)).exp()


def lerp_min_gru_step(hidden: Tensor, gate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute minGRU's published step."""
    candidate = torch.where(hidden >= 0, hidden + 0.5, hidden.sigmoid())
    h = torch.lerp(state.unsqueeze(1), candidate, gate.sigmoid())
    return h, h[:, -1]


def zoo_slstm(
    x: Tensor, in_weight: Tensor, recurrent: Tensor, h: Tensor, c: Tensor, n: Tensor, m: Tensor
) -> tuple[Tensor, ...]:
    """Compute sLSTM (2405.04517) with a dense input map, as in an LSTM."""
    u = rearrange(F.linear(x, in_weight), "batch seq (head gate d) -> batch head seq gate d", gate=4, d=h.shape[2])
    y, last = slstm_scan(u, recurrent, (h, c, n, m))
    return rearrange(y, "batch head seq d -> batch seq (head d)"), *last


def torch_lstm(x: Tensor, in_weight: Tensor, dense: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run torch's LSTM of the same width, whose recurrent map is dense."""
    bias = in_weight.new_zeros(len(in_weight))
    return torch.lstm(x, (h, c), [in_weight, dense, bias, bias], True, 1, 0.0, torch.is_grad_enabled(), False, True)


def zoo_retention(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute linear attention with a fixed decay per head (2307.08621) as `retnet` calls it."""
    q, k, v = _heads_first(q, k, v)
    y, state = retention(q, k, v, retention_rates(q.shape[1], q.dtype), state)
    return y.transpose(1, 2), state


def loop_retention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute retention by a loop over `unbind`."""
    decay = torch.exp(-retention_rates(q.shape[2], q.dtype)).view(1, -1, 1, 1)
    (S,), outputs = _no_memory(q, k, v), []
    for qt, kt, vt in zip(*(t.unbind(1) for t in (q, k, v)), strict=True):
        S = torch.addcmul(decay * S, kt.unsqueeze(3), vt.unsqueeze(2))
        outputs.append((qt.unsqueeze(2) @ S).squeeze(2))
    return torch.stack(outputs, dim=1)


# The measured problems.


class Sizes(NamedTuple):
    """Sizes of the inputs, and the methods that draw them."""

    batch: int
    seq_len: int
    heads: int
    d_head: int
    dtype: torch.dtype = torch.float32

    def draw(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Draw normal numbers."""
        return torch.randn(shape, generator=generator, dtype=self.dtype)

    def per_key(self, generator: torch.Generator) -> Tensor:
        """Draw normal numbers, (batch, seq, heads, d_head)."""
        return self.draw(generator, *self[:4])

    def per_head(self, generator: torch.Generator) -> Tensor:
        """Draw normal numbers, (batch, seq, heads)."""
        return self.draw(generator, *self[:3])

    def per_channel(self, generator: torch.Generator) -> Tensor:
        """Draw normal numbers, (batch, seq, d_inner)."""
        return self.draw(generator, *self[:2], self.heads * self.d_head)


Inputs = Callable[[Sizes, torch.Generator], tuple[Tensor, ...]]


class Problem(NamedTuple):
    """One recurrence with its implementations.

    Attributes:
        forms: implementations for whole sequences, ours first.
        inputs: function that draws the inputs of all forms.
        steps: implementations for one position, ours first; empty if no peer has a step.
        state: function that draws a nonempty state.
    """

    forms: dict[str, Form]
    inputs: Inputs
    steps: dict[str, Step] = {}  # noqa: RUF012 (a default that is never mutated)
    state: Inputs = lambda n, g: ()


def _qkv(n: Sizes, g: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    return n.per_key(g), unit_length(n.per_key(g)), n.per_key(g)


def _memory(n: Sizes, g: torch.Generator) -> tuple[Tensor]:
    return (n.draw(g, n.batch, n.heads, n.d_head, n.d_head),)


def _channels(n: Sizes, g: torch.Generator) -> tuple[Tensor]:
    return (n.draw(g, n.batch, n.heads * n.d_head).abs(),)


def _slowly(t: Tensor) -> Tensor:
    """Map normal numbers to log-decays near zero."""
    return -F.softplus(t - 4)


PROBLEMS: dict[str, Problem] = {
    "gated_delta_net": Problem(
        {"zoo": _whole(zoo_gated_delta, _no_memory), "transformers": transformers_gated_delta},
        lambda n, g: (*_qkv(n, g), _slowly(n.per_head(g)), torch.sigmoid(n.per_head(g))),
        {"zoo": zoo_gated_delta, "transformers": transformers_gated_delta_step},
        _memory,
    ),
    "kda": Problem(
        {"zoo": _whole(zoo_kimi_delta, _no_memory), "transformers": transformers_kimi_delta},
        lambda n, g: (*_qkv(n, g), _slowly(n.per_key(g)), torch.sigmoid(n.per_head(g))),
        {"zoo": zoo_kimi_delta, "transformers": transformers_kimi_delta_step},
        _memory,
    ),
    "mlstm": Problem(
        {"zoo": _whole(zoo_mlstm, _no_mlstm), "transformers": transformers_mlstm},
        lambda n, g: (*_qkv(n, g), n.per_head(g), n.per_head(g) + 4),
        {"zoo": zoo_mlstm, "transformers": transformers_mlstm_step},
        lambda n, g: (*_memory(n, g), n.draw(g, n.batch, n.heads, n.d_head), n.draw(g, n.batch, n.heads)),
    ),
    "rwkv7": Problem(
        {"zoo": zoo_relaxed_delta, "loop over unbind": loop_delta},
        lambda n, g: (*_qkv(n, g), _slowly(n.per_key(g)), unit_length(n.per_key(g)), torch.sigmoid(n.per_key(g))),
    ),
    "retnet": Problem({"zoo": _whole(zoo_retention, _no_memory), "loop over unbind": loop_retention}, _qkv),
    "rg_lru": Problem(
        {"zoo": _whole(linear_recurrence, _no_channels), "transformers": _whole(transformers_rg_lru, _no_channels)},
        lambda n, g: (torch.sigmoid(n.per_channel(g) + 4), n.per_channel(g)),
        {"zoo": linear_recurrence, "transformers": transformers_rg_lru},
        _channels,
    ),
    "min_gru": Problem(
        {"zoo": _whole(zoo_min_gru, _no_channels), "in log space": log_space_min_gru},
        lambda n, g: (n.per_channel(g), n.per_channel(g)),
        {"zoo": zoo_min_gru, "lerp": lerp_min_gru_step},
        _channels,
    ),
}


def cells(n: Sizes, generator: torch.Generator) -> dict[str, tuple[Form, Step, tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """Return form, step, inputs and state of sLSTM and of torch's LSTM of the same width."""
    d_inner = n.heads * n.d_head
    x, in_weight = n.per_channel(generator), n.draw(generator, 4 * d_inner, d_inner) / d_inner**0.5
    blocks = n.draw(generator, 4, n.heads, n.d_head, n.d_head) / n.d_head**0.5
    dense = n.draw(generator, 4 * d_inner, d_inner) / d_inner**0.5
    ones = torch.ones(n.batch, n.heads, n.d_head, dtype=n.dtype)
    row = torch.zeros(1, n.batch, d_inner, dtype=n.dtype)
    zeros = torch.zeros_like(ones)
    from_zeros = _whole(zoo_slstm, lambda *_: (zeros, zeros, zeros, zeros - torch.inf))
    return {
        "zoo": (from_zeros, zoo_slstm, (x, in_weight, blocks), (ones, ones, ones, ones)),
        "torch LSTM": (_whole(torch_lstm, lambda *_: (row, row)), torch_lstm, (x, in_weight, dense), (row, row)),
    }
