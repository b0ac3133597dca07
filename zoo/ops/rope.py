"""Rotary position encoding (RoPE), and its scalings beyond the trained length."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from zoo.errors import unknown

Scaling = Mapping[str, Any]
"""`{"rope_type": ..., **fields}`, with the field names of transformers' config.json."""


def require_pairs(d_head: int) -> None:
    """Raise ValueError unless the channels of a head form pairs, as `rotate` needs."""
    if d_head % 2:
        raise ValueError(f"rope needs an even d_head, got {d_head}")


def rotate(
    t: Float[Tensor, "batch heads seq d_head"],
    positions: Int[Tensor, "batch seq"],
    base: float = 1e4,
    scaling: Scaling | None = None,
    total: Int[Tensor, " batch"] | None = None,
    d_rope: int | None = None,
) -> Float[Tensor, "batch heads seq d_head"]:
    """Apply rotary position encoding (Su et al. 2104.09864, eq. 34).

    The pair (c, c + d_rope / 2) is rotated by the angle position * frequency_c and multiplied by `gain(scaling)`.

    Args:
        t: queries or keys.
        positions: position of each query or key in its row.
        base: frequency_c is base^(-2c / d_rope) without scaling.
        scaling: result of `complete_scaling`.
        total: length of each row's sequence so far; needed by type dynamic.
        d_rope: rotated channels, the first ones (Qwen3-Next); default all.
    """
    if d_rope == 0:
        return t
    if d_rope not in (None, t.shape[-1]):
        rotary, rest = t.split((d_rope, t.shape[-1] - d_rope), dim=-1)
        return torch.cat((rotate(rotary, positions, base, scaling, total), rest), dim=-1)
    half = t.shape[-1] // 2
    wide = torch.promote_types(t.dtype, torch.float32)
    frequency = frequencies(2 * half, base, scaling, total, wide, t.device).unsqueeze(1)
    angle = positions.unsqueeze(-1) * frequency
    size = gain(scaling)
    turns = (turn if size == 1 else size * turn for turn in (angle.cos(), angle.sin()))
    cos, sin = (turn.to(t.dtype).unsqueeze(1) for turn in turns)
    a, b = t[..., :half], t[..., half:]
    return torch.cat((torch.addcmul(a * cos, b, sin, value=-1), torch.addcmul(b * cos, a, sin)), dim=-1)


def turned_channels(d_rope: int | None, d_head: int, base: float) -> int:
    """Return the number of channels of a head that `rotate` rotates: d_rope, by default d_head rounded down to even.

    Raises:
        ValueError: d_rope is not an even number from 0 to d_head, or base is not a finite number above 1.
    """
    if d_rope is None:
        d_rope = d_head // 2 * 2
    if isinstance(d_rope, bool) or not isinstance(d_rope, int) or d_rope % 2 or not 0 <= d_rope <= d_head:
        raise ValueError(f"d_rope must be an even number from 0 to d_head={d_head}, got {d_rope!r}")
    if not 1 < base < math.inf:
        raise ValueError(f"rope_base must be above 1 and finite, got {base}")
    return d_rope


def frequencies(
    d_head: int,
    base: float,
    scaling: Scaling | None = None,
    total: Int[Tensor, " batch"] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Float[Tensor, "rows half"]:
    """Return radians per position for each pair of channels: one row, or one per sequence if its length matters."""
    exponent = torch.arange(d_head // 2, device=device, dtype=dtype) / -(d_head // 2)
    plain = (base**exponent).unsqueeze(0)
    if scaling is None:
        return plain
    return SCALINGS[scaling["rope_type"]].frequencies(plain, base, scaling, total)


def gain(scaling: Scaling | None) -> float:
    """Return the factor of queries and keys: 1 except for type yarn (Peng et al. 2309.00071, eq. 22)."""
    if scaling is None or scaling["rope_type"] != "yarn":
        return 1.0
    if scaling["attention_factor"] is not None:
        return float(scaling["attention_factor"])
    growth = 0.1 * max(0.0, math.log(scaling["factor"]))
    if scaling["mscale"] and scaling["mscale_all_dim"]:
        return (1.0 + scaling["mscale"] * growth) / (1.0 + scaling["mscale_all_dim"] * growth)
    return 1.0 + growth


def _linear(plain: Tensor, base: float, scaling: Scaling, total: Tensor | None) -> Tensor:
    """Divide positions by the factor (Chen et al. 2306.15595, eq. 4)."""
    return plain / scaling["factor"]


def _dynamic(plain: Tensor, base: float, scaling: Scaling, total: Tensor | None) -> Tensor:
    """Increase the base with the row's length beyond the trained one ("dynamic NTK", Peng et al. 2309.00071, 3.3).

    The slowest pair then rotates as if positions were divided by factor * total / trained - (factor - 1).
    """
    if total is None:
        raise ValueError("rope of type dynamic needs the length of each sequence")
    trained, factor, half = scaling["original_max_position_embeddings"], scaling["factor"], plain.shape[-1]
    stretch = factor * total.clamp(min=trained).to(plain).unsqueeze(1) / trained - (factor - 1)
    return plain * stretch ** (-torch.arange(half, device=plain.device, dtype=plain.dtype) / (half - 1))


def _yarn(plain: Tensor, base: float, scaling: Scaling, total: Tensor | None) -> Tensor:
    """Divide frequencies of slow pairs by the factor, keep fast ones, ramp between (Peng et al. 2309.00071, eq. 17-20).

    The ramp is between the pairs that rotate beta_fast and beta_slow times within the trained length.
    """
    half, trained = plain.shape[-1], scaling["original_max_position_embeddings"]
    first, last = (
        half * math.log(trained / (2 * math.pi * scaling[turns])) / math.log(base)
        for turns in ("beta_fast", "beta_slow")
    )
    if scaling["truncate"]:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * half - 1)  # `last` has the published bound, twice the number of pairs
    width = last - first or 0.001
    slow = ((torch.arange(half, device=plain.device, dtype=plain.dtype) - first) / width).clamp(0, 1)
    return plain * (1 - slow) + plain / scaling["factor"] * slow


def _llama3(plain: Tensor, base: float, scaling: Scaling, total: Tensor | None) -> Tensor:
    """Divide the frequencies of slow pairs by the factor, keep fast ones, interpolate in between (Llama 3.1).

    Slow and fast pairs rotate less than low_freq_factor and more than high_freq_factor times within the trained length
    (Grattafiori et al. 2407.21783, 3.4; the bands follow Meta's llama-models).
    """
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * kept + plain / scaling["factor"] * (1 - kept)


class _Kind(NamedTuple):
    frequencies: Callable[[Tensor, float, Scaling, Tensor | None], Tensor]
    required: tuple[str, ...]
    defaults: dict[str, Any]


_TRAINED = "original_max_position_embeddings"
_YARN = {
    "attention_factor": None,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": None,
    "mscale_all_dim": None,
    "truncate": True,
}
SCALINGS = {
    "linear": _Kind(_linear, ("factor",), {}),
    "dynamic": _Kind(_dynamic, ("factor", _TRAINED), {}),
    "yarn": _Kind(_yarn, ("factor", _TRAINED), _YARN),
    "llama3": _Kind(_llama3, ("factor", _TRAINED, "low_freq_factor", "high_freq_factor"), {}),
}
"""Each type of scaling: its frequencies, its required fields, and its optional fields with their defaults."""


def complete_scaling(scaling: Scaling, d_head: int) -> dict[str, Any]:
    """Return `scaling` with its type's defaults filled in.

    Raises:
        ValueError: an unknown type or field, or a field that is missing or has an invalid value.
    """
    given = dict(scaling)
    name = given.pop("rope_type", None)
    if name not in SCALINGS:
        raise ValueError(unknown("rope_type", name, SCALINGS))
    kind = SCALINGS[name]
    for field in given:
        if field not in (*kind.required, *kind.defaults):
            raise ValueError(unknown(f"field of rope_type {name!r}", field, [*kind.required, *kind.defaults]))
    for field in kind.required:
        if field not in given:
            raise ValueError(f"rope_type {name!r} needs {field}; required fields: {', '.join(kind.required)}")
    complete: dict[str, Any] = {"rope_type": name, **kind.defaults, **given}
    for field, value in complete.items():
        if field == "rope_type" or (value is None and kind.defaults.get(field, 0) is None):
            continue
        if field == "truncate":
            if not isinstance(value, bool):
                raise ValueError(f"truncate of rope_type {name!r} must be true or false, got {value!r}")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{field} of rope_type {name!r} must be a positive number, got {value!r}")
    if complete["factor"] < 1:
        raise ValueError(f"factor of rope_type {name!r} must be at least 1, got {complete['factor']}")
    if name == "dynamic" and d_head < 4:
        raise ValueError(f"rope_type 'dynamic' needs a d_head of at least 4, got {d_head}")
    for slow, fast in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        if slow in complete and not complete[slow] < complete[fast]:
            raise ValueError(f"need {slow} < {fast}, got {complete[slow]} and {complete[fast]}")
    return complete
