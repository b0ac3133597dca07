"""Loops compiled to machine code by numba, which needs no compiler on the machine (extra `fast`).

Loops are compiled at their first call, which takes seconds each, and cached on disk; the logger `zoo.ops.numba_loops`
reports each compilation at level INFO. Threads are Python threads, as many as torch uses. An OpenMP region would wait
for every core of its team, even one that another process occupies.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numba
import torch
from numba.core import event as numba_event
from torch import Tensor

_SHARES = 4  # parts of the work per thread: if one thread is delayed, the others take over

logger = logging.getLogger(__name__)
_pool: tuple[int, ThreadPoolExecutor] | None = None
_labels: dict[Any, str] = {}


def compiled(function: Callable[..., Any], fastmath: tuple[str, ...] = ("contract",), label: str | None = None) -> Any:
    """Return `function` as machine code that releases the GIL. By default only a product and a sum may be fused.

    Args:
        function: the loops, in the subset of Python that numba compiles.
        fastmath: LLVM's names of the optimisations that the compiler may apply.
        label: name for the log when it is compiled; default None: no message.
    """
    function = inspect.unwrap(function)  # without the shape checker in which the tests wrap all functions of zoo
    options: Any = {"nogil": True, "fastmath": set(fastmath), "error_model": "numpy", "boundscheck": False}
    try:
        kernel = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no writable cache folder: compile in each process
        kernel = numba.njit(**options)(function)
    if label is not None:
        _labels[kernel] = label
    return kernel


def share_out(kernel: Callable[..., None], n_tasks: int, *given: Any) -> None:
    """Call kernel(first, last, *given) on parts of `n_tasks` tasks, in as many threads as torch uses.

    Tensors in `given` are passed as arrays.
    """
    arguments = [t.detach().numpy() if isinstance(t, Tensor) else t for t in given]
    n_threads = min(n_tasks, torch.get_num_threads())
    if n_threads <= 1:  # zero for an empty batch
        kernel(0, n_tasks, *arguments)
        return
    n_shares = min(n_tasks, _SHARES * n_threads)
    bounds = [n_tasks * share // n_shares for share in range(n_shares + 1)]
    futures = [_threads(n_threads).submit(kernel, *pair, *arguments) for pair in pairwise(bounds)]
    for future in futures:
        future.result()


def _threads(count: int) -> ThreadPoolExecutor:
    global _pool
    if _pool is None or _pool[0] < count:
        _pool = count, ThreadPoolExecutor(count, thread_name_prefix="zoo-loops")
    return _pool[1]


def _forget_threads() -> None:
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_forget_threads)


class _Announcement(numba_event.Listener):
    """Log the compilation of loops; code that is loaded from disk raises no such event."""

    def on_start(self, event: Any) -> None:
        kernel = event.data["dispatcher"]
        if kernel in _labels:
            folder = kernel.stats.cache_path
            kept = "for this process: no folder can hold the code" if folder is None else f"once; cached in {folder}"
            logger.info("compiling %s (%s)", _labels[kernel], kept)

    def on_end(self, event: Any) -> None: ...


numba_event.register("numba:compile", _Announcement())
