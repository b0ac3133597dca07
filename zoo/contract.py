"""The contract: a sequence mixer is one map, seen whole, seen in chunks, and seen as an operator.

    y = mixer(x, lengths=None)                            whole sequence
    y, state = mixer.stream(x, state=None, lengths=None)  any chunk; a decoding step is a chunk of one
    W, c = zoo.theory.interaction(mixer, x)               y_i = sum_j W_ij(X) x_j + c_i

`forward` is `stream` from the empty state: a mixer writes `mix` and nothing twice.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from zoo.naming import unknown
from zoo.ops.precision import Device, DType
from zoo.ops.time import Lengths, as_lengths, valid_positions
from zoo.ops.transforms import followed

S = TypeVar("S")
M = TypeVar("M", bound=nn.Module)

State: TypeAlias = Tensor | tuple[Any, ...]
"""What a mixer carries from chunk to chunk: tensors with the batch first, in (named) tuples, nested at will."""


def map_state(fn: Callable[..., Tensor], state: Any, *others: Any) -> Any:
    """Apply `fn` to every tensor of `state` (and to the tensors in the same places of `others`).

    Raises:
        TypeError, ValueError: `others` are not built as `state` is.
    """
    kind = Tensor if isinstance(state, Tensor) else type(state)
    for other in others:
        if not isinstance(other, kind):
            raise TypeError(f"expected {kind.__name__}, got {type(other).__name__}")
    if isinstance(state, Tensor):
        return fn(state, *others)
    parts = [map_state(fn, *part) for part in zip(state, *others, strict=True)]
    return state._make(parts) if hasattr(state, "_make") else tuple(parts)


def state_tensors(state: Any) -> Iterator[Tensor]:
    """Yield the tensors of a state, in order."""
    if isinstance(state, Tensor):
        yield state
    else:
        for part in state:
            yield from state_tensors(part)


def detach_state(state: S) -> S:
    """Return the same state cut from the autograd graph: what truncated back-propagation carries on."""
    return map_state(lambda t: t.detach(), state)


def move_state(state: S, device: torch.device | str) -> S:
    """Return the same state on another device."""
    return map_state(lambda t: t.to(device), state)


def reorder_state(state: S, index: Int[Tensor, " new_batch"]) -> S:
    """Return rows of the state chosen by `index`, which may repeat: beam search."""
    return map_state(lambda t: t.index_select(0, index), state)


def state_nbytes(state: State) -> int:
    """Count the bytes that the tensors of a state hold."""
    return sum(t.numel() * t.element_size() for t in state_tensors(state))


def no_weight_decay(module: nn.Module) -> set[str]:
    """Return the names of the parameters below `module` that weight decay must spare.

    All scalars and vectors (biases, norms, skips), and what a class lists in `undecayed`; attributes set on parameters
    would vanish in deepcopy.
    """
    vectors = {name for name, parameter in module.named_parameters() if parameter.ndim < 2}
    return vectors | {
        f"{path}.{name}" if path else name
        for path, child in module.named_modules()
        for name in getattr(child, "undecayed", ())
        if getattr(child, name) is not None
    }


def reset_submodules(module: nn.Module) -> None:
    """Call `reset_parameters` of all submodules that have it, in the order in which they were added."""
    for child in module.children():
        getattr(child, "reset_parameters", functools.partial(reset_submodules, child))()


class Configured(nn.Module):
    """A module that knows the options it was built from.

    `options` holds the arguments of the constructor, defaults too, as far as they are plain data: numbers, strings,
    None, and lists, tuples and mappings of these. The module's repr shows them, resolved where an attribute of that
    name says what an option came to.
    """

    options: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = _remembering(cls.__init__)

    def extra_repr(self) -> str:
        resolved = {name: getattr(self, name, value) for name, value in self.options.items()}
        plain = {name: found if _is_plain(found) else self.options[name] for name, found in resolved.items()}
        return ", ".join(f"{name}={value!r}" for name, value in plain.items())


def _remembering(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)
    keywords = next((p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD), "")

    @functools.wraps(init)
    def remember(self: Configured, *args: Any, **kwargs: Any) -> None:
        if "options" not in vars(self):  # a subclass was called first
            given = signature.bind(self, *args, **kwargs)
            given.apply_defaults()
            named = dict(list(given.arguments.items())[1:])
            named |= named.pop(keywords, {})
            vars(self)["options"] = {k: copy.deepcopy(v) for k, v in named.items() if _is_plain(v)}
        init(self, *args, **kwargs)

    return remember


def _is_plain(value: object) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(v) for key, v in value.items())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (str, int, float))


class SequenceMixer(Configured, ABC):
    """Causal map (batch, seq, d_model) -> (batch, seq, d_out) that mixes positions.

    A subclass writes `empty_state` and `mix`, says in `reset_parameters` how parameters of its own start and in
    `rank_law` which interaction rank its algebra gives, and names in `undecayed` what weight decay must spare.
    """

    undecayed: ClassVar[tuple[str, ...]] = ()
    whole_only: bool = False
    """Whether it cannot go on from a state, as every mixer of the zoo can; of a module of another contract."""

    def __init__(self, d_model: int, d_out: int | None = None) -> None:
        super().__init__()
        require_positive(d_model=d_model, d_out=d_out)
        self.d_model = d_model
        self.d_out = d_model if d_out is None else d_out
        self._expected: tuple[tuple[int, torch.dtype], Any] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let torch.load(weights_only=True) read the named tuples that the mixer's module defines: its states."""
        super().__init_subclass__(**kwargs)
        there = vars(sys.modules[cls.__module__]).values() if cls.__module__ in sys.modules else ()
        named = [t for t in there if isinstance(t, type) and issubclass(t, tuple) and hasattr(t, "_fields")]
        torch.serialization.add_safe_globals([t for t in named if t.__module__ == cls.__module__])

    @classmethod
    def create(cls, d_model: int, options: Mapping[str, Any]) -> Self:
        """Build from plain options; a composite takes its members' options too."""
        valid = [name for name in inspect.signature(cls).parameters if name != "d_model"]
        for name in options:
            if name not in valid:
                raise ValueError(unknown(f"option of {cls.__name__}", name, valid))
        return cls(d_model, **options)

    @classmethod
    def create_layers(cls, n_layers: int, d_model: int, options: Mapping[str, Any]) -> list[SequenceMixer]:
        """Return the mixers of a stack, one per layer; a composite spreads its members over the depth."""
        require_positive(n_layers=n_layers)
        return [cls.create(d_model, options) for _ in range(n_layers)]

    @abstractmethod
    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> Any:
        """Return the state before the first position; `dtype` is that of the activations."""

    @abstractmethod
    def mix(self, x: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        """Return the map itself, on checked input: `x` is zero and the output is ignored from `lengths` on, per row."""

    def reset_parameters(self) -> None:
        """Draw all parameters anew from torch's generator, here those of the submodules.

        Raises:
            NotImplementedError: parameters of its own, of which the subclass does not say how they start.
        """
        own = [name for name, _ in self.named_parameters(recurse=False)]
        if own and type(self).reset_parameters is SequenceMixer.reset_parameters:
            raise NotImplementedError(f"{type(self).__name__}.reset_parameters must say how {', '.join(own)} start")
        reset_submodules(self)

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], lengths: Lengths | None = None
    ) -> Float[Tensor, "batch seq d_out"]:
        """Mix whole sequences; the same as `stream` from the empty state.

        Args:
            x: input.
            lengths: valid positions of each row, counted from the left. What lies beyond has no influence on
                outputs, states or gradients; the output there is zero.

        Raises:
            ValueError: wrong shape or dtype, an empty sequence, lengths outside 0..seq.
        """
        return self.stream(x, None, lengths)[0]

    def stream(
        self, x: Float[Tensor, "batch seq d_model"], state: Any = None, lengths: Lengths | None = None
    ) -> tuple[Float[Tensor, "batch seq d_out"], Any]:
        """Mix the next chunk, of any length from one on.

        Args:
            x: the chunk.
            state: what the call before returned; None at the start. It is not modified.
            lengths: valid positions of the chunk in each row; a row's state stops where its length ends.

        Returns:
            The outputs and the state after the chunk, both differentiable.

        Raises:
            ValueError: as `forward`; also a state of another shape, dtype or device.
        """
        lengths = as_lengths(lengths, x)
        self._check_input(x, lengths)
        if state is None:
            state = self.empty_state(x.shape[0], x.dtype, x.device)
        else:
            self._check_state(state, x)
        if lengths is None:
            return self.mix(x, state, None)
        lengths = lengths.long()  # sums of narrow integers wrap around, and uint8 indexes as a mask
        padding = ~valid_positions(lengths, x.shape[1]).unsqueeze(-1)
        y, state = self.mix(x.masked_fill(padding, 0.0), state, lengths)
        return y.masked_fill(padding, 0.0), state

    @property
    def streams(self) -> bool:
        """Return whether it can go on from a state: no part of it is `whole_only`."""
        return not any(getattr(part, "whole_only", False) for part in self.modules())

    def state_bytes(self, seq_len: int, batch_size: int = 1, dtype: torch.dtype = torch.float32) -> int | None:
        """Count the bytes of the state after `seq_len` positions; return None for a mixer that does not stream.

        A state without empty dimensions does not grow; any other is found by running `stream` on meta tensors.

        Raises:
            ValueError: seq_len or batch_size below 1.
        """
        require_positive(seq_len=seq_len, batch_size=batch_size)
        if not self.streams:
            return None
        empty = self.empty_state(batch_size, dtype, "meta")
        if all(tensor.numel() for tensor in state_tensors(empty)):
            return state_nbytes(empty)
        with torch.no_grad():
            twin = on_meta(self, dtype)
            x = torch.empty(batch_size, seq_len, self.d_model, dtype=dtype, device="meta")
            return state_nbytes(twin.stream(x)[1])

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters that weight decay must spare."""
        return no_weight_decay(self)

    def predicted_rank(self, seq_len: int) -> int | None:
        """Return the interaction rank that the mixer's algebra gives, for generic parameters and input.

        `rank_law` within its limits: one operator per pair of positions, seq_len (seq_len + 1) / 2, and d_out * d_model
        in all. In exact arithmetic: a smooth spectrum (many real or slow poles) ends above the roundoff of any
        measurement, and reads lower.

        Returns:
            The rank; None where no law is known.

        Raises:
            ValueError: seq_len below 1.
        """
        require_positive(seq_len=seq_len)
        rank = self.rank_law(seq_len)
        return None if rank is None else min(rank, self.d_out * self.d_model, seq_len * (seq_len + 1) // 2)

    def rank_law(self, seq_len: int) -> int | None:
        """Return how many operators the mixer's algebra spans, for generic parameters; None where nobody has counted.

        `predicted_rank` applies the limits that hold for every mixer.
        """
        return None

    def _check_input(self, x: Tensor, lengths: Tensor | None) -> None:
        if x.ndim != 3 or x.shape[2] != self.d_model or x.shape[1] == 0:
            raise ValueError(f"x must be (batch, seq >= 1, d_model={self.d_model}), got {tuple(x.shape)}")
        if not x.is_floating_point():
            raise ValueError(f"x must be floating point, got {x.dtype}")
        if lengths is None:
            return
        whole_numbers = not (lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool)
        if lengths.shape != x.shape[:1] or not whole_numbers:
            raise ValueError(
                f"lengths must be integers of shape ({x.shape[0]},), got {lengths.dtype} {tuple(lengths.shape)}"
            )
        if lengths.device != x.device:
            raise ValueError(f"lengths are on {lengths.device}, x on {x.device}")
        # Reading values waits for the device and cannot be traced: code that is compiled or mapped trusts its caller.
        if not followed() and not lengths.is_meta and lengths.numel():
            low, high = int(lengths.min()), int(lengths.max())
            if low < 0 or high > x.shape[1]:
                raise ValueError(f"lengths must lie in 0..{x.shape[1]}, the chunk's length, got {low}..{high}")

    def _check_state(self, state: Any, x: Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        asked = (x.shape[0], x.dtype)
        if self._expected is None or self._expected[0] != asked:  # kept: a fifth of the time that a token takes
            self._expected = asked, self.empty_state(*asked, "meta")
        expected = self._expected[1]
        try:
            map_state(_check_state_tensor, expected, state)
            _check_growth(expected, state)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{type(self).__name__}: not a state of this mixer for this input: {error}") from None
        for tensor in state_tensors(state):
            if tensor.device != x.device:
                raise ValueError(f"{type(self).__name__}: the state is on {tensor.device}, the input on {x.device}")


def _check_state_tensor(expected: Tensor, given: Tensor) -> Tensor:
    # A dimension that is empty before the first position is one that grows.
    fits = given.ndim == expected.ndim and all(e in (g, 0) for e, g in zip(expected.shape, given.shape, strict=True))
    if not fits:
        raise ValueError(f"expected shape {tuple(expected.shape)} (0 grows), got {tuple(given.shape)}")
    if given.dtype != expected.dtype and not torch.is_autocast_enabled(given.device.type):
        raise ValueError(f"expected {expected.dtype}, got {given.dtype}")
    return given


def _check_growth(expected: Any, given: Any) -> None:
    """Raise ValueError where one named tuple's tensors have grown to different lengths along the same axis."""
    if isinstance(expected, Tensor):
        return
    grown: dict[int, tuple[str, int]] = {}
    for name, before, now in zip(getattr(expected, "_fields", ()), expected, given, strict=False):
        if not isinstance(before, Tensor):
            continue
        for axis in range(1, before.ndim):  # the batch may be empty too, and does not grow
            if before.shape[axis] == 0:
                first, size = grown.setdefault(axis, (name, now.shape[axis]))
                if now.shape[axis] != size:
                    raise ValueError(f"{name} has {now.shape[axis]} slots, {first} has {size}")
    for before, now in zip(expected, given, strict=True):
        _check_growth(before, now)


def on_meta(module: M, dtype: torch.dtype | None = None) -> M:
    """Return a copy of `module` whose tensors have shapes and no storage; floating ones take `dtype`."""
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        empty = torch.empty_like(tensor, dtype=kind, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(module, memo)


def require_positive(**sizes: int | None) -> None:
    """Raise ValueError naming the first size that is not a positive integer; None means not given."""
    for name, size in sizes.items():
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"{name} must be a positive integer, got {size!r}")


def require_choice(name: str, value: object, choices: Any) -> None:
    """Raise ValueError unless `value` is one of the strings of a Literal type."""
    valid = get_args(choices)
    if value not in valid:
        raise ValueError(unknown(name, value, valid))


def require_range(**bounds: float) -> None:
    """Raise ValueError unless the two keyword arguments satisfy 0 < first <= second < infinity."""
    (low_name, low), (high_name, high) = bounds.items()
    if not 0 < low <= high < math.inf:
        raise ValueError(f"need 0 < {low_name} <= {high_name} < inf, got {low_name}={low}, {high_name}={high}")


def head_width(d_model: int, n_heads: int, d_head: int | None) -> int:
    """`d_head`, by default d_model / n_heads.

    Raises:
        ValueError: no d_head, and n_heads does not divide d_model.
    """
    if d_head is None and d_model % n_heads:
        raise ValueError(f"d_model={d_model} is not divisible by n_heads={n_heads}; choose a divisor or give d_head")
    return d_head or d_model // n_heads


def shared_heads(n_heads: int, n_kv_heads: int | None, name: str = "n_kv_heads") -> int:
    """`n_kv_heads`, by default n_heads: heads each of which serves an equal group of n_heads.

    Raises:
        ValueError: n_kv_heads, under its `name`, does not divide n_heads.
    """
    if n_kv_heads is not None and n_heads % n_kv_heads:
        raise ValueError(f"n_heads={n_heads} is not divisible by {name}={n_kv_heads}")
    return n_kv_heads or n_heads


def require_distance(seq_len: int, distance: int) -> None:
    """Raise ValueError unless `distance` before the last position lies another position of the sequence."""
    require_positive(seq_len=seq_len)
    if not 1 <= distance < seq_len:
        raise ValueError(f"distance must lie in 1..{seq_len - 1} (seq_len={seq_len}), got {distance}")


def accumulator(dtype: torch.dtype | None) -> torch.dtype:
    """Return the type in which a recurrence accumulates for activations of `dtype`: at least float32."""
    return torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)


def complex_accumulator(dtype: torch.dtype | None) -> torch.dtype:
    """`accumulator` for complex states; a table, since torch.compile does not trace `dtype.to_complex`."""
    return {torch.float32: torch.complex64, torch.float64: torch.complex128}[accumulator(dtype)]
