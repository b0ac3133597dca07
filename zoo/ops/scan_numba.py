"""Backend `numba` of `zoo.ops.scan`: float32 on the CPU, compiled without a compiler on the machine (extra `fast`).

One pass over time with the state in cache, in place of the bulk operations of `zoo.ops.scan_torch`. Threads are
Python's own, one for each of torch's, over rows and blocks of channels; there is no OpenMP region inside that would
wait for a core which another process holds. numba itself is imported by the first call.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

_CHUNK = 32
_BLOCK = 64
_SHARES = 4  # parts of the work for a thread: one that is held up leaves the rest to the others

_pool: tuple[int, ThreadPoolExecutor] | None = None


def chunk_length(batch: int, d_inner: int, d_state: int, seq_len: int) -> int:
    """Steps between the states that forward keeps for backward."""
    return _CHUNK


def scan(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y, the final state, and the state that enters each chunk (chunk, batch, d_state, d_inner)."""
    from zoo.ops.scan_numba_kernels import forward

    batch, seq_len, d_inner = x.shape
    y, final = torch.empty_like(x), torch.empty_like(state)
    entering = x.new_empty(-(-seq_len // _CHUNK), batch, A.shape[1], d_inner)
    _run(forward, batch, d_inner, (x, dt, A, B, C, state, y, final, entering))
    return y, final, entering


def scan_backward(
    grad_y: Tensor, grad_final: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, entering: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, dt, A, B, C and the initial state."""
    from zoo.ops.scan_numba_kernels import backward

    batch, _, d_inner = x.shape
    grad_x, grad_dt, grad_state = torch.empty_like(x), torch.empty_like(dt), torch.empty_like(grad_final)
    grad_A = A.new_empty(batch, *A.shape, dtype=torch.float64)
    grad_B, grad_C = (t.new_empty(-(-d_inner // _BLOCK), *t.shape) for t in (B, C))
    given = (grad_y, grad_final, x, dt, A, B, C, entering)
    _run(backward, batch, d_inner, (*given, grad_x, grad_dt, grad_A, grad_B, grad_C, grad_state))
    return grad_x, grad_dt, _in_order(grad_A).to(A.dtype), _in_order(grad_B), _in_order(grad_C), grad_state


def _in_order(shares: Tensor) -> Tensor:
    """Their sum, added up one after the other: however many threads there are, the same numbers."""
    total, *rest = shares.unbind(0)
    for share in rest:
        total = total + share
    return total.contiguous()


def _run(kernel: Callable[..., None], batch: int, d_inner: int, tensors: tuple[Tensor, ...]) -> None:
    """Call `kernel` for all tasks, in as many threads as torch would use."""
    arrays: list[Any] = [t.detach().numpy() for t in tensors]
    n_tasks = batch * -(-d_inner // _BLOCK)
    n_threads = min(n_tasks, torch.get_num_threads())
    if n_threads <= 1:  # none for a batch without rows
        kernel(0, n_tasks, *arrays)
        return
    n_shares = min(n_tasks, _SHARES * n_threads)
    bounds = [n_tasks * share // n_shares for share in range(n_shares + 1)]
    futures = [_threads(n_threads).submit(kernel, *pair, *arrays) for pair in pairwise(bounds)]
    for future in futures:
        future.result()


def _threads(count: int) -> ThreadPoolExecutor:
    global _pool
    if _pool is None or _pool[0] < count:
        _pool = count, ThreadPoolExecutor(count, thread_name_prefix="zoo-scan")
    return _pool[1]


def _forget_threads() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_threads)  # a forked process has none of its parent's threads
