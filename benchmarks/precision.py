"""Measure the error of chunked ops by precision and length: docs/precision.md.

    python -m benchmarks.precision [--quick --out FOLDER]

It runs on the CPU. bf16 is autocast: operands are rounded, products computed in float32. tf32 is emulated: the operands
of every matrix product are rounded to ten bits, as in a GPU's tensor cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.page import Section, Table, describe_machine, render_section
from zoo.ops.delta_rule import delta_rule, relaxed_delta_rule, unit_length
from zoo.ops.dplr import dplr
from zoo.ops.mlstm import mlstm
from zoo.ops.path import path_attend
from zoo.ops.ssd import ssd
from zoo.report.files import write_all

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/precision.md"
LENGTHS, QUICK_LENGTHS = (256, 1024, 4096, 16384), (64, 128)
HEADS, D_HEAD = 2, 32
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")

Form = Callable[..., Tensor]


class TF32(TorchDispatchMode):
    """Round the operands of float32 matrix products to tf32 (ten mantissa bits); sums stay in float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in _PRODUCTS:
            args = *args[:-2], *(_ten_bits(t) for t in args[-2:])
        return func(*args, **(kwargs or {}))


def _ten_bits(t: Tensor) -> Tensor:
    if t.dtype != torch.float32:
        return t
    return (t.view(torch.int32) + 0x1000).bitwise_and(~0x1FFF).view(torch.float32)


PRECISIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "ieee": nullcontext,
    "tf32": TF32,
    "bf16": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


def _state(q: Tensor, v: Tensor) -> Tensor:
    return q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3])


def _path(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, channels: Tensor, beta: Tensor) -> Tensor:
    cached = torch.zeros(len(q), dtype=torch.int64)
    return path_attend(q, k, v, unit_length(k), 2 * beta, k[:, :, :0], cached)[0]


def _mlstm(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, channels: Tensor, beta: Tensor) -> Tensor:
    empty = _state(q, v)
    return mlstm(q, k, v, beta.log(), decay, empty, empty[..., 0], empty[..., 0, 0])[0]


OPS: dict[str, Form] = {
    "linear attention": lambda q, k, v, *_: dplr(q, k, v, None, None, None, _state(q, v))[0],
    "a decay per head": lambda q, k, v, decay, *_: dplr(q, k, v, decay.unsqueeze(3), None, None, _state(q, v))[0],
    "a decay per channel": lambda q, k, v, _, channels, __: dplr(q, k, v, channels, None, None, _state(q, v))[0],
    "ssd": lambda q, k, v, decay, *_: ssd(q, k, v, decay, _state(q, v))[0],
    "mlstm": _mlstm,
    "delta rule": lambda q, k, v, _, __, beta: delta_rule(q, k, v, beta, None, _state(q, v))[0],
    "gated delta rule": lambda q, k, v, decay, _, beta: delta_rule(q, k, v, beta, decay, _state(q, v))[0],
    "rwkv7": lambda q, k, v, _, channels, beta: relaxed_delta_rule(
        q, k, v, channels, k, beta.unsqueeze(3).expand_as(k), _state(q, v)
    )[0],
    "path": _path,
}


def inputs(seq_len: int) -> list[Tensor]:
    """Draw unit q and k, v, log-decays per head and per channel (about -1/55), and write strengths from 0 to 1."""
    draw = torch.Generator().manual_seed(0)
    q, k, v, channels = (torch.randn(1, HEADS, seq_len, D_HEAD, generator=draw) for _ in range(4))
    decay, beta = (torch.randn(1, HEADS, seq_len, generator=draw) for _ in range(2))
    return [unit_length(q), unit_length(k), v, F.logsigmoid(4 + decay), F.logsigmoid(4 + channels), beta.sigmoid()]


def errors(form: Form, seq_len: int) -> Iterator[tuple[float, float]]:
    """Yield the relative errors of outputs and of gradients for each precision; all gradients form one vector."""
    given = inputs(seq_len)
    cotangent = torch.randn(1, HEADS, seq_len, D_HEAD, generator=torch.Generator().manual_seed(1))
    exact = _values(form, [t.double() for t in given], cotangent.double())
    for precision in PRECISIONS.values():
        with precision():
            found = _values(form, given, cotangent)
        output, gradient = (
            float((ours.double() - true).norm() / true.norm()) for ours, true in zip(found, exact, strict=True)
        )
        yield output, gradient


def _values(form: Form, given: Sequence[Tensor], cotangent: Tensor) -> tuple[Tensor, Tensor]:
    leaves = [t.clone().requires_grad_() for t in given]
    y = form(*leaves)
    gradients = torch.autograd.grad(y, leaves, cotangent.to(y.dtype), allow_unused=True)
    return y.detach(), torch.cat([g.flatten() for g in gradients if g is not None])


def measure(lengths: Sequence[int]) -> Section:
    """Measure every op at every precision and length."""
    section = Section(
        f"Relative error (norm of the difference / norm) against the same op in float64; {HEADS} heads of width"
        f" {D_HEAD}, float32 inputs, empty initial state. Solves and states between chunks are float32 in every row."
    )
    heads = [f"{what} at {n:,}" for what in ("output", "gradient") for n in lengths]
    table = Table("", ["op", "precision", *heads])
    for name, form in OPS.items():
        by_length = [list(errors(form, n)) for n in lengths]
        for row, precision in enumerate(PRECISIONS):
            found = [by_length[i][row][part] for part in (0, 1) for i in range(len(lengths))]
            table.rows.append([name, precision, *found])
        print(f"{name} done", flush=True)
    section.tables.append(table)
    return section


HEAD = """# Precision

Products of matrices inside chunks follow torch's own switches:

| precision | how | products | sums, states, triangular solves |
|---|---|---|---|
| ieee | the default | float32 | float32 |
| tf32 | `torch.set_float32_matmul_precision("high")` | tf32 on a GPU that has it | float32 |
| bf16 | `train.py --trainer.precision bf16-mixed`, or `torch.autocast` | operands in bfloat16 | float32 |

The same holds for the products that carry the state of a delta rule from chunk to chunk, also in its Triton kernel; the
state itself is float32. Under bf16 its kernels invert the triangle of a chunk in float32, and multiply by the rounded
inverse. In float64, on devices other than CPU and CUDA, and under transforms of torch.func, the maps of chunks are
multiplied in the dtype of the state instead. On CUDA, lstm, gru and rnn run in cuDNN, which uses tf32 unless
`torch.backends.cudnn.allow_tf32` is False. `zoo check lstm --only float32 --device cuda` shows the error.

With a float64 state, none of this applies: products are computed in float64.

Made by `python -m benchmarks.precision`; edit that, not this page.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short sequences, to test the script; needs --out")
    parser.add_argument("--out", type=Path, default=ROOT, help="output folder; default the repository's root")
    options = parser.parse_args(argv)
    if options.quick and options.out == ROOT:
        parser.error("--quick would overwrite the published numbers: give --out FOLDER")
    section = measure(QUICK_LENGTHS if options.quick else LENGTHS)
    lines = render_section("Measured error", section, describe_machine())
    write_all(options.out, {PAGE: "\n".join([HEAD, *lines])})
    return 0


if __name__ == "__main__":
    sys.exit(main())
