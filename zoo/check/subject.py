"""The subject of a check: a module or a factory, and its reproducible random inputs."""

from __future__ import annotations

import copy
import functools
import inspect
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from zoo.adapters.factories import Factory, built_with, nudge, require_batch_first, settle, signature_of, with_width
from zoo.adapters.protocols import Adapter, find_adapter, load_adapter
from zoo.check.command import read_option
from zoo.check.outcome import NotApplicableError, describe_error, miss
from zoo.errors import UsageError
from zoo.ops.precision import complex_accumulator
from zoo.registry import MIXERS, create_mixer, mixer_class
from zoo.seeds import seeded
from zoo.targets import load, target_of
from zoo.validate import require_device, require_positive, require_seed


@dataclass(eq=False)
class Subject:
    """The module to check. Every property gets a fresh copy, in eval mode, with the same parameters.

    Args:
        target: a module (batch, seq, d_model) -> (batch, seq, d_out), which is copied and not modified; a class or
            function that makes one, called with d_model (see `with_width`) and `options`; or a name: a registered
            mixer, `package.module:Class` or `path/file.py:Class`.
        d_model: width of the input.
        seq_len: length of the input, at least 8; some properties use other lengths.
        options: keyword arguments of the class or function.
        device: device of module and input.
        dtype: dtype of module and input.
        adapter: the protocol, as an adapter or the name of its class; default: found by trial calls.
        looks_ahead: whether the module is not causal, such as an encoder.
        seed: seed of parameters and inputs.
        thorough: whether to check long sequences too, which takes minutes for slow modules.

    Raises:
        ValueError: invalid sizes, a target that is no module and makes none, options together with a module, or a
            module that does not map (batch, seq, d_model) to (batch, seq, d_out).
        UsageError: an unknown name.
    """

    target: nn.Module | Factory | str
    _: KW_ONLY
    d_model: int
    seq_len: int = 40
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    adapter: Adapter | str | None = None
    looks_ahead: bool = False
    seed: int = 0
    thorough: bool = False

    def __post_init__(self) -> None:
        require_positive(d_model=self.d_model, seq_len=self.seq_len)
        require_seed(self.seed)
        if self.seq_len < 8:
            raise ValueError(f"seq_len must be at least 8, got {self.seq_len}")
        require_device(self.device)
        given = self.target
        self.name = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
        self._given = {each.name: getattr(self, each.name) for each in fields(self)[1:]}
        self.made_of, self._options_of, self.options = _find(given, self.options)
        if isinstance(self.made_of, nn.Module) and self.options:
            raise ValueError("options need a class or a function that makes modules, but the target is a module")
        if not callable(self.made_of):
            raise ValueError(f"a check needs a module or a function that makes one, got {type(given).__name__}")
        self.original = self._built()
        self.protocol = self._protocol()

    def of_width(self, d_model: int) -> Subject:
        """Return the same subject at another width.

        Raises:
            ValueError: the module cannot be built or called at this width.
        """
        return Subject(self.target, **{**self._given, "d_model": d_model})

    def make(self, options: Mapping[str, Any] | None = None, seed: int = 0) -> nn.Module:
        """Make a new module with parameters drawn from `seed`, or copy the given module."""
        if isinstance(self.made_of, nn.Module):
            return copy.deepcopy(self.made_of)
        with seeded(self.seed + seed):
            width, named = with_width(self.made_of, self.d_model, {**self.options, **(options or {})})
            made = self.made_of(*width, **named)
        if not isinstance(made, nn.Module):
            raise TypeError(f"{self.name} must return a torch.nn.Module, got {type(made).__name__}")
        return made

    def placed(self, module: nn.Module) -> nn.Module:
        """Return the module on the subject's device, in its dtype."""
        return to_dtype(module.to(self.device), self.dtype)

    def signature(self) -> inspect.Signature:
        """Return the signature of the class or function; empty if unknown."""
        return signature_of(self._options_of)

    def module(self, dtype: torch.dtype | None = None) -> nn.Module:
        """Return a copy of the module in eval mode, in the given dtype or the subject's."""
        try:
            made = copy.deepcopy(self.original)
        except Exception:  # noqa: BLE001 - the property deep_copy reports it
            made = self._built()
        return made if dtype is None else to_dtype(made, dtype)

    def draw(
        self, batch_size: int = 2, seq_len: int | None = None, *, seed: int = 1, dtype: torch.dtype | None = None
    ) -> Float[Tensor, "batch seq d_model"]:
        """Draw standard normal input, which depends only on shape and seed, up to rounding to the dtype."""
        shape = (batch_size, self.seq_len if seq_len is None else seq_len, self.d_model)
        return self.normal(shape, seed).to(self.device, self.dtype if dtype is None else dtype)

    def weights(self, y: Tensor) -> Tensor:
        """Draw random weights for a sum of the outputs, so that its gradient is generic."""
        return self.normal(y.shape, seed=3).to(y)

    def whole(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return the outputs of `module` for whole sequences.

        Raises:
            ValueError: the outputs are not (batch, seq, d_out).
        """
        y = self.protocol.whole(module, x)
        if y.ndim != 3 or y.shape[:2] != x.shape[:2]:
            raise ValueError(f"the module maps {tuple(x.shape)} to {tuple(y.shape)}, not to (batch, seq, d_out)")
        return y

    @torch.no_grad()
    def outputs(self, module: nn.Module, x: Tensor, *, global_seed: int = 0) -> Tensor:
        """Return `whole` without gradients, with torch's global generator seeded."""
        with seeded(global_seed):
            return self.whole(module, x)

    def chunks(self, module: nn.Module, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the outputs chunk by chunk; chunks that the protocol does not allow are divided further."""
        outputs, state = [], None
        longest = self.protocol.longest or x.shape[1]
        for part in (part for chunk in x.split(list(sizes), dim=1) for part in chunk.split(longest, dim=1)):
            y, state = self.protocol.chunk(module, part, state)
            if y.ndim != 3 or y.shape[:2] != part.shape[:2]:
                raise ValueError(f"a chunk {tuple(part.shape)} gives {tuple(y.shape)}, not (batch, seq, d_out)")
            outputs.append(y)
        return torch.cat(outputs, dim=1)

    def takes(self, seq_len: int) -> bool:
        """Return whether the module accepts sequences of this length."""
        try:
            self.outputs(self.module(), self.draw(seq_len=seq_len))
        except Exception:  # noqa: BLE001 - a module may raise anything
            return False
        return True

    def fitting(self, seq_len: int) -> int:
        """Return this length if the module accepts it, else the subject's `seq_len`."""
        return seq_len if self.takes(seq_len) else self.seq_len

    def trained(self, module: nn.Module) -> dict[str, nn.Parameter]:
        """Return the trainable parameters by name, without those that are unused if the input is vectors."""
        bypassed = {id(p) for p in self.protocol.bypassed(module)}
        return {name: p for name, p in module.named_parameters() if p.requires_grad and id(p) not in bypassed}

    def require_stream(self) -> None:
        """Raise NotApplicableError if the module has no known protocol for states."""
        if not self.protocol.streams:
            raise NotApplicableError(
                "the module has no known protocol for states (stream, step, a (y, state) pair, or a cache); "
                "you can add it by an adapter of ten lines (see zoo check --help)"
            )

    @functools.cached_property
    def causal(self) -> bool:
        """Whether earlier outputs do not depend on later positions."""
        if self.looks_ahead:
            return False
        module, x, half = self.module(), self.draw(), self.seq_len // 2
        other = torch.cat((x[:, :half], self.draw(seed=2)[:, half:]), dim=1)
        return miss(self.outputs(module, other)[:, :half], self.outputs(module, x)[:, :half]) <= 1

    def plain(self, dtype: torch.dtype | None = None) -> Plain:
        """Return the module as a map from one tensor to one tensor, for the measurements of `zoo.theory`."""
        return Plain(self.module(dtype), self.protocol, self.d_model)

    def setting(self) -> dict[str, Any]:
        """Return the arguments of the check as plain data."""
        return {
            **self._given,
            "options": {key: value if _is_plain(value) else repr(value) for key, value in self.options.items()},
            "dtype": str(self.dtype).removeprefix("torch."),
            "adapter": _adapter_name(self.adapter),
            "protocol": self.protocol.name,
            "torch": torch.__version__,
        }

    def command(self, name: str) -> str:
        """Return a command that checks one property again, or a call in Python if the target is not a name."""
        defaults = {each.name: each.default for each in fields(self)}
        given = {**self._given, "adapter": _adapter_name(self.adapter)}
        given = {key: value for key, value in given.items() if value != defaults[key] and value != {}}
        if not isinstance(self.target, str):
            arguments = "".join(f", {key}={value!r}" for key, value in given.items())
            return f"zoo.check.check({self.name}{arguments}, only=[{name!r}])"
        words = ["zoo", "check", self.target, "--only", name]
        for key, value in given.items():
            if key == "options":
                words += [word for option in value.items() for word in ("--option", _written(*option))]
            elif value is True:
                words.append(f"--{key}")
            else:
                words += [f"--{key}", str(value).removeprefix("torch.")]
        return shlex.join(words)

    def normal(self, shape: Sequence[int], seed: int) -> Tensor:
        """Draw standard normal numbers in float64, which depend only on shape and seed."""
        generator = torch.Generator().manual_seed(1000 * self.seed + seed)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def _built(self) -> nn.Module:
        try:
            module = self.placed(self.make()).eval()
        except (Exception, SystemExit) as error:  # a foreign constructor may raise anything
            hint = built_with(self.made_of, self.options)
            raise ValueError(f"{self.name} cannot be built: {describe_error(error)}{hint}") from error
        require_batch_first(module)
        settle(module, self.draw())
        nudge(module)
        return module

    def _protocol(self) -> Adapter:
        x = self.draw()
        given = load_adapter(self.adapter) if isinstance(self.adapter, str) else self.adapter
        try:
            with seeded():
                self.protocol = find_adapter(self.module(), x) if given is None else given
            self.outputs(self.module(), x)
        except Exception as error:  # a foreign module may raise anything
            raise ValueError(
                f"{self.name} does not take (batch, seq, d_model) {tuple(x.shape)}: {describe_error(error)}"
            ) from error
        return self.protocol


class Plain(nn.Module):
    """A module wrapped by its adapter: one tensor in, one tensor out."""

    def __init__(self, module: nn.Module, adapter: Adapter, d_model: int) -> None:
        super().__init__()
        self.module, self.d_model = module, d_model
        self._adapter = adapter

    def forward(self, x: Tensor) -> Tensor:
        return self._adapter.whole(self.module, x)


def to_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert the floating tensors of a module in place, and complex tensors to the corresponding complex dtype.

    `Module.to` would drop imaginary parts.
    """
    wide = complex_accumulator(dtype)
    return module._apply(lambda t: t.to(wide) if t.is_complex() else t.to(dtype) if t.is_floating_point() else t)


def _find(target: Any, options: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return the module or its factory, the class or function with its signature, and all options."""
    if not isinstance(target, str):
        return target, target, dict(options)
    if ":" not in target:
        name = MIXERS.check(target)
        entry = MIXERS.entry(name)
        options = {**entry.options, **options}
        if name not in MIXERS.own:
            return functools.partial(create_mixer, name), mixer_class(name), options
        target = entry.home
    found = load(target, lambda found: isinstance(found, type) and issubclass(found, nn.Module))
    if not callable(found):
        raise UsageError(
            f"{target} is {type(found).__name__}: a target must be a torch.nn.Module class or a function that makes one"
        )
    return found, found, dict(options)


def _adapter_name(adapter: Adapter | str | None) -> str | None:
    """Return the name by which `load_adapter` finds the adapter's class."""
    return adapter if adapter is None or isinstance(adapter, str) else target_of(type(adapter))


def _written(name: str, value: Any) -> str:
    """Format NAME=VALUE for `read_option`, with quotes if it would not read the value as text."""
    text = f"{name}={value}"
    return f"{name}={value!r}" if isinstance(value, str) and read_option(text)[1] != value else text


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float, str, type(None)))
