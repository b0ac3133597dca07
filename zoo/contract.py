"""`SequenceMixer`, the interface of all mixers: one map for whole sequences, for chunks, and as an operator.

    y = mixer(x, lengths=None)                            whole sequence
    y, state = mixer.stream(x, state=None, lengths=None)  chunk of any length; decoding uses chunks of one position
    W, c = zoo.theory.interaction(mixer, x)               y_i = sum_j W_ij(X) x_j + c_i

`forward` is `stream` from the empty state, so a subclass implements only `mix`.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from jaxtyping import Float
from torch import Tensor

from zoo.errors import unknown
from zoo.modules import Configured, no_weight_decay, on_meta, reset_submodules
from zoo.ops.precision import Device, DType
from zoo.ops.time import Lengths, as_lengths, require_within, valid_positions
from zoo.ops.transforms import readable
from zoo.state import check_state, state_nbytes, state_tensors
from zoo.validate import require_positive


class SequenceMixer(Configured, ABC):
    """Causal map (batch, seq, d_model) -> (batch, seq, d_out) that mixes positions.

    A subclass implements `empty_state` and `mix`, initialises its own parameters in `reset_parameters`, and returns its
    interaction rank from `rank_law`.
    """

    undecayed: ClassVar[tuple[str, ...]] = ()
    """Names of parameters without weight decay."""
    slow: ClassVar[tuple[str, ...]] = ()
    """Names of parameters that the mixer's authors train at a separate learning rate."""
    apart: ClassVar[tuple[str, ...]] = ()
    """Names of parameters that get no gradient from the outputs; `own_loss` trains them."""
    own_loss: Tensor | None = None
    """Loss for the parameters in `apart` from the last forward pass; None outside training or if `apart` is empty."""
    warming_up: bool = False
    """Whether a trainer is in the warm-up of its learning rate."""
    whole_only: bool = False
    """Whether the module cannot continue from a state. No mixer of the zoo sets it; an adapted module may."""

    def __init__(self, d_model: int, d_out: int | None = None) -> None:
        super().__init__()
        require_positive(d_model=d_model, d_out=d_out)
        self.d_model = d_model
        self.d_out = d_model if d_out is None else d_out
        self._expected: tuple[tuple[int, torch.dtype], Any] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Register the named tuples of the mixer's Python module, its states, for torch.load(weights_only=True)."""
        super().__init_subclass__(**kwargs)
        there = vars(sys.modules[cls.__module__]).values() if cls.__module__ in sys.modules else ()
        named = [t for t in there if isinstance(t, type) and issubclass(t, tuple) and hasattr(t, "_fields")]
        torch.serialization.add_safe_globals([t for t in named if t.__module__ == cls.__module__])

    @classmethod
    def create(cls, d_model: int, options: Mapping[str, Any]) -> Self:
        """Build a mixer from plain options; composite mixers accept the options of their members too."""
        valid = [name for name in inspect.signature(cls).parameters if name != "d_model"]
        for name in options:
            if name not in valid:
                raise ValueError(unknown(f"option of {cls.__name__}", name, valid))
        return cls(d_model, **options)

    @classmethod
    def create_layers(cls, n_layers: int, d_model: int, options: Mapping[str, Any]) -> list[SequenceMixer]:
        """Build the mixers of a stack, one per layer; a hybrid distributes its members over the layers."""
        require_positive(n_layers=n_layers)
        return [cls.create(d_model, options) for _ in range(n_layers)]

    @abstractmethod
    def empty_state(self, batch_size: int, dtype: DType = None, device: Device = None) -> Any:
        """Return the state before the first position; `dtype` is the type of the activations."""

    @abstractmethod
    def mix(self, x: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        """Map a checked chunk to outputs and the next state; in padding, `x` is zero and the outputs are ignored."""

    def reset_parameters(self) -> None:
        """Initialise all parameters anew with torch's global generator; the base class resets the submodules.

        Raises:
            NotImplementedError: the class has parameters of its own, but does not override this method.
        """
        own = [name for name, _ in self.named_parameters(recurse=False)]
        if own and type(self).reset_parameters is SequenceMixer.reset_parameters:
            raise NotImplementedError(
                f"{type(self).__name__} must define reset_parameters to initialise {', '.join(own)}"
            )
        reset_submodules(self)

    if TYPE_CHECKING:  # nn.Module's __call__ is typed Callable[..., Any]

        def __call__(self, x: Tensor, lengths: Lengths | None = None) -> Tensor: ...

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], lengths: Lengths | None = None
    ) -> Float[Tensor, "batch seq d_out"]:
        """Mix whole sequences; the same as `stream` from the empty state.

        If x and the parameters differ in dtype, most mixers raise torch's RuntimeError; the others compute in the wider
        dtype.

        Args:
            x: input.
            lengths: number of valid positions of each row, from the left. Later positions do not influence outputs,
                states or gradients; the output there is zero.

        Raises:
            ValueError: wrong shape, an x that is not floating point, an empty sequence, lengths outside 0..seq. Values
                of lengths are checked only on the CPU and in eager code, since reading them waits for the device.
        """
        return self.stream(x, None, lengths)[0]

    def stream(
        self, x: Float[Tensor, "batch seq d_model"], state: Any = None, lengths: Lengths | None = None
    ) -> tuple[Float[Tensor, "batch seq d_out"], Any]:
        """Mix the next chunk, of one or more positions.

        Args:
            x: the chunk.
            state: the state returned for the previous chunk; None at the start. It is not modified.
            lengths: number of valid positions of each row of the chunk; padding does not change the state.

        Returns:
            The outputs and the state after the chunk, both differentiable.

        Raises:
            ValueError: see `forward`; also a state of the wrong shape, dtype or device.
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
        """Whether the mixer can continue from a state: no part of it is `whole_only`."""
        return not any(getattr(part, "whole_only", False) for part in self.modules())

    def state_bytes(self, seq_len: int, batch_size: int = 1, dtype: torch.dtype = torch.float32) -> int | None:
        """Count the bytes of the state after `seq_len` positions; return None for a mixer that does not stream.

        If the empty state has no axis of length zero, the state has constant size. Otherwise we run `stream` on meta
        tensors.

        Raises:
            ValueError: seq_len or batch_size below 1, a sequence longer than the mixer accepts.
        """
        require_positive(seq_len=seq_len, batch_size=batch_size)
        for part in self.modules():
            if require_room := getattr(part, "require_room", None):
                require_room(seq_len)
        if not self.streams:
            return None
        empty = self.empty_state(batch_size, dtype, "meta")
        if all(tensor.numel() for tensor in state_tensors(empty)):
            return state_nbytes(empty)
        with torch.no_grad():
            twin = on_meta(self, dtype)
            x = torch.empty(batch_size, seq_len, self.d_model, dtype=dtype, device="meta")
            return state_nbytes(twin.stream(x)[1])

    def require_choice(self, seq_len: int) -> None:
        """Raise ValueError if `seq_len` is less than a sparse mixer, here or in a submodule, selects for each query.

        Call it before training. `forward` and `stream` accept short sequences, since every stream begins short.
        """
        for part in self.modules():
            if part is not self and isinstance(part, SequenceMixer):
                part.require_choice(seq_len)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the parameters without weight decay."""
        return no_weight_decay(self)

    def predicted_rank(self, seq_len: int) -> int | None:
        """Predict the interaction rank for generic parameters and input.

        This is `rank_law`, bounded by the seq_len (seq_len + 1) / 2 pairs of positions and by the d_out * d_model
        dimensions of an operator. It holds in exact arithmetic. If the singular values decay fast (many real or slow
        poles), the last ones lie below roundoff, and the measured rank is lower.

        Returns:
            The rank; None if no law is known.

        Raises:
            ValueError: seq_len below 1.
        """
        require_positive(seq_len=seq_len)
        rank = self.rank_law(seq_len)
        return None if rank is None else min(rank, self.d_out * self.d_model, seq_len * (seq_len + 1) // 2)

    def rank_law(self, seq_len: int) -> int | None:
        """Return the number of operators that the mixer spans by its algebra, for generic parameters; None if unknown.

        `predicted_rank` applies the bounds that hold for every mixer.
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
        if readable(lengths) and lengths.numel():
            require_within(int(lengths.min()), int(lengths.max()), x.shape[1])

    def _check_state(self, state: Any, x: Tensor) -> None:
        if torch.compiler.is_compiling():
            return
        asked = (x.shape[0], x.dtype)
        expected = self._expected  # read once, since another thread may replace it
        if expected is None or expected[0] != asked:  # cached: building it would take a fifth of a decoding step
            expected = self._expected = asked, self.empty_state(*asked, "meta")
        try:
            check_state(expected[1], state)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{type(self).__name__}: not a state of this mixer for this input: {error}") from None
        for tensor in state_tensors(state):
            if tensor.device != x.device:
                raise ValueError(f"{type(self).__name__}: the state is on {tensor.device}, the input on {x.device}")
