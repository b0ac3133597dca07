"""The state between chunks as Triton kernels (`zoo.ops.carry` on CUDA): one launch for any number of chunks.

    decayed    S_{c+1} = decay_c S_c + added_c                               element by element, real or complex
    erased     S_{c+1} = decay_c S_c + added_c + keys_c written_c            written_c = values_c - sought_c S_c
               plus across_c P S_c, where P swaps the upper and lower half of the rows

In `erased` a program handles one head of one row and a block of value channels, which are independent. It reads the
entering state in tiles of keys, from the place where it has just written it and where it is still cached, so any number
of keys fits. Products are in full float32, or in tf32 if torch allows it. If keys and sought have a narrower dtype, the
other operands are rounded to it; sums and states are float32. Inputs may have any strides. `backwards` runs from the
last chunk to the first, with the signs of keys and sought reversed. Under TRITON_INTERPRET=1 the same code runs on the
CPU.
"""

from __future__ import annotations

from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 256  # elements of a state per program of `decayed`
KEYS, VALUES = 64, 32  # tile of a state in `erased`


# `no_type_check` hides the kernels from the tests' shape checker: triton compiles their source, not the functions.


@triton.jit
@no_type_check
def _decayed(
    state_ptr, decay_ptr, added_ptr, entering_ptr, final_ptr, heads, chunks, d_key, d_value,
    decay_row, decay_head, decay_chunk, decay_key, decay_value,
    added_row, added_head, added_chunk, added_key, added_value,
    BACKWARDS: tl.constexpr, COMPLEX: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(d_key * d_value, NUMBERS)
    sequence = (tl.program_id(0) // blocks).to(tl.int64)
    row, head = sequence // heads, sequence % heads
    number = (tl.program_id(0) % blocks) * NUMBERS + tl.arange(0, NUMBERS)
    real = number < d_key * d_value
    key, value = number // d_value, number % d_value
    PARTS: tl.constexpr = 2 if COMPLEX else 1  # real and imaginary parts are adjacent
    decay_ptr += row * decay_row + head * decay_head + key * decay_key + value * decay_value
    added_ptr += row * added_row + head * added_head + key * added_key + value * added_value
    at = sequence * d_key * d_value + number
    entering_ptr += (sequence * chunks * d_key * d_value + number) * PARTS
    s = tl.load(state_ptr + at * PARTS, mask=real, other=0.0)
    if COMPLEX:
        s_im = tl.load(state_ptr + at * PARTS + 1, mask=real, other=0.0)
    for step in range(chunks):
        chunk = tl.cast(step, tl.int64)
        if BACKWARDS:
            chunk = chunks - 1 - chunk
        to = entering_ptr + chunk * d_key * d_value * PARTS
        tl.store(to, s, mask=real)
        a = tl.load(decay_ptr + chunk * decay_chunk, mask=real, other=0.0)
        b = tl.load(added_ptr + chunk * added_chunk, mask=real, other=0.0)
        if COMPLEX:
            tl.store(to + 1, s_im, mask=real)
            a_im = tl.load(decay_ptr + chunk * decay_chunk + 1, mask=real, other=0.0)
            b_im = tl.load(added_ptr + chunk * added_chunk + 1, mask=real, other=0.0)
            s, s_im = a * s - a_im * s_im + b, a * s_im + a_im * s + b_im
        else:
            s = a * s + b
    tl.store(final_ptr + at * PARTS, s, mask=real)
    if COMPLEX:
        tl.store(final_ptr + at * PARTS + 1, s_im, mask=real)


@triton.jit
@no_type_check
def _erased(
    state_ptr, decay_ptr, across_ptr, added_ptr, keys_ptr, sought_ptr, values_ptr, entering_ptr, final_ptr, written_ptr,
    heads, chunks, size, d_key, d_value,
    decay_row, decay_head, decay_chunk, decay_key,
    across_row, across_head, across_chunk, across_key,
    added_row, added_head, added_chunk, added_key, added_value,
    keys_row, keys_head, keys_chunk, keys_key, keys_size,
    sought_row, sought_head, sought_chunk, sought_size, sought_key,
    values_row, values_head, values_chunk, values_size, values_value,
    BACKWARDS: tl.constexpr, ADDED: tl.constexpr, ACROSS: tl.constexpr, PRECISION: tl.constexpr,
    SIZE: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(d_value, VALUES)
    sequence = (tl.program_id(0) // blocks).to(tl.int64)
    row, head = sequence // heads, sequence % heads
    v = (tl.program_id(0) % blocks) * VALUES + tl.arange(0, VALUES)[None, :]
    r, k = tl.arange(0, SIZE), tl.arange(0, KEYS)
    decay_ptr += row * decay_row + head * decay_head
    across_ptr += row * across_row + head * across_head
    keys_ptr += row * keys_row + head * keys_head
    sought_ptr += row * sought_row + head * sought_head
    values_ptr += row * values_row + head * values_head + v * values_value
    if ADDED:
        added_ptr += row * added_row + head * added_head + v * added_value
    state_ptr += sequence * d_key * d_value + v
    final_ptr += sequence * d_key * d_value + v
    entering_ptr += sequence * chunks * d_key * d_value + v
    written_ptr += sequence * chunks * size * d_value + v
    for step in range(chunks):
        chunk = tl.cast(step, tl.int64)
        following = chunk + 1
        if BACKWARDS:
            chunk = chunks - 1 - chunk
            following = chunk - 1
        now_ptr = entering_ptr + chunk * d_key * d_value
        next_ptr = entering_ptr + following * d_key * d_value
        if step == chunks - 1:
            next_ptr = final_ptr
        if step == 0:  # copy the state to where the later chunks find theirs
            for first in range(0, d_key, KEYS):
                at = first + k[:, None]
                inside = (at < d_key) & (v < d_value)
                tl.store(now_ptr + at * d_value, tl.load(state_ptr + at * d_value, mask=inside), mask=inside)
            tl.debug_barrier()
        here = (r[:, None] < size) & (v < d_value)
        written = tl.load(values_ptr + chunk * values_chunk + r[:, None] * values_size, mask=here, other=0.0)
        for first in range(0, d_key, KEYS):
            at = first + k
            inside = (at[:, None] < d_key) & (v < d_value)
            s = tl.load(now_ptr + at[:, None] * d_value, mask=inside, other=0.0)
            from_sought = sought_ptr + chunk * sought_chunk + r[:, None] * sought_size + at[None, :] * sought_key
            sought = tl.load(from_sought, mask=(r[:, None] < size) & (at[None, :] < d_key), other=0.0)
            found = tl.dot(sought, s.to(sought.dtype), input_precision=PRECISION)
            if BACKWARDS:
                written += found
            else:
                written -= found
        tl.store(written_ptr + (chunk * size + r[:, None]) * d_value, written, mask=here)
        for first in range(0, d_key, KEYS):
            at = first + k
            inside = (at[:, None] < d_key) & (v < d_value)
            s = tl.load(now_ptr + at[:, None] * d_value, mask=inside, other=0.0)
            a = tl.load(decay_ptr + chunk * decay_chunk + at[:, None] * decay_key, mask=at[:, None] < d_key, other=0.0)
            from_keys = keys_ptr + chunk * keys_chunk + at[:, None] * keys_key + r[None, :] * keys_size
            keys = tl.load(from_keys, mask=(r[None, :] < size) & (at[:, None] < d_key), other=0.0)
            change = tl.dot(keys, written.to(keys.dtype), input_precision=PRECISION)
            if BACKWARDS:
                s = a * s - change
            else:
                s = a * s + change
            if ACROSS:
                other = (at + d_key // 2) % d_key
                from_across = across_ptr + chunk * across_chunk + at[:, None] * across_key
                a = tl.load(from_across, mask=at[:, None] < d_key, other=0.0)
                s += a * tl.load(now_ptr + other[:, None] * d_value, mask=inside, other=0.0)
            if ADDED:
                s += tl.load(added_ptr + chunk * added_chunk + at[:, None] * added_key, mask=inside, other=0.0)
            tl.store(next_ptr + at[:, None] * d_value, s, mask=inside)
        tl.debug_barrier()  # the next chunk reads elements that other threads have written


def decayed_states(state: Tensor, decay: Tensor, added: Tensor, backwards: bool) -> tuple[Tensor, Tensor]:
    """Return the state that enters each chunk, and the state after the last."""
    batch, heads, chunks, d_key, d_value = added.shape
    state = state.contiguous()
    entering, final = state.new_empty(added.shape), torch.empty_like(state)
    given = [state, decay.expand(added.shape), added, entering, final]
    if state.is_complex():
        given = [torch.view_as_real(t.resolve_conj()) for t in given]
    strides = [stride for t in given[1:3] for stride in t.stride()[:5]]
    grid = (batch * heads * triton.cdiv(d_key * d_value, NUMBERS),)
    sizes = {"BACKWARDS": backwards, "COMPLEX": state.is_complex(), "NUMBERS": NUMBERS}
    _launch(_decayed, grid, *given, heads, chunks, d_key, d_value, *strides, **sizes)
    return entering, final


def erased_states(
    state: Tensor,
    decay: Tensor,
    added: Tensor | None,
    keys: Tensor,
    sought: Tensor,
    values: Tensor,
    across: Tensor | None,
    backwards: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the state that enters each chunk, the state after the last, and the values that each chunk writes."""
    batch, heads, chunks, size, d_value = values.shape
    d_key, state = state.shape[2], state.contiguous()
    entering, final = state.new_empty(batch, heads, chunks, d_key, d_value), torch.empty_like(state)
    written = state.new_empty(values.shape)
    decay = decay.expand(-1, -1, -1, d_key, 1)
    strides = [*decay.stride()[:4], *(4 * (0,) if across is None else across.stride()[:4])]
    strides += [*(5 * (0,) if added is None else added.stride())]
    strides += [stride for t in (keys, sought, values) for stride in t.stride()]
    optional = (state if t is None else t for t in (across, added))
    inputs = (state, decay, *optional, keys, sought, values)
    grid = (batch * heads * triton.cdiv(d_value, VALUES),)
    tiles = {"SIZE": max(16, triton.next_power_of_2(size)), "KEYS": KEYS, "VALUES": VALUES}
    tiles |= {"BACKWARDS": backwards, "ADDED": added is not None, "ACROSS": across is not None}
    tiles |= {"PRECISION": "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"}
    # On an H100, ptxas 12.8 (Triton 3.6) miscompiles products of narrow types with four warps, but not with two.
    tiles |= {"num_warps": 4 if keys.dtype == state.dtype else 2}
    _launch(_erased, grid, *inputs, entering, final, written, heads, chunks, size, d_key, d_value, *strides, **tiles)
    return entering, final, written


def _launch(kernel: Any, grid: tuple[int], *given: Any, **sizes: Any) -> None:
    with torch.cuda.device_of(given[0]):  # triton launches on the current device, not on the tensors'
        kernel[grid](*given, **sizes, enable_fp_fusion=True)
