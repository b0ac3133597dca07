"""Tables that map our parameters to parameters of transformers, and `Weights`, which copies each of them once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.ops.precision import widest

Fields = dict[str, tuple[object, object]]
"""Field of the configuration -> its value, and the only value that the zoo supports."""


class Take(NamedTuple):
    """The source of one of our parameters.

    Attributes:
        paths: original parameters, relative to their layer; several are concatenated along the rows. If empty, our
            parameter is a frozen constant.
        change: function applied to the result in the widest dtype, for example to select rows or apply a multiplier.
        shared: whether other parameters of ours use other rows of the same originals.
        constant: value of all entries if `paths` is empty.
    """

    paths: tuple[str, ...]
    change: Callable[[Tensor], Tensor] | None = None
    shared: bool = False
    constant: float = 1.0

    def scaled(self, factor: float | Tensor) -> Take:
        """Return this source multiplied by a number, or by one number per row."""
        if isinstance(factor, float | int) and factor == 1:
            return self
        before = self.change or (lambda weight: weight)

        def change(weight: Tensor) -> Tensor:
            rows = torch.as_tensor(factor, dtype=weight.dtype, device=weight.device)
            return before(weight) * rows.view(-1, *(1,) * (weight.ndim - 1))

        return self._replace(change=change)


ONES, ZEROS = Take(()), Take((), constant=0.0)

Table = dict[str, Take]
"""Our parameter -> its source."""


def take(**paths: str) -> Table:
    """Make a table from our names, with `__` for dots, to the original paths, separated by spaces."""
    return {name.replace("__", "."): Take(tuple(path.split())) for name, path in paths.items()}


def same(*names: str) -> Table:
    """Make a table of parameters with the same name in both."""
    return {name: Take((name,)) for name in names}


def mixtures(*names: str) -> Table:
    """Make a table of RWKV's token-shift weights, which have shape (1, 1, d_model) in the original."""
    return {"shift": Take(tuple(f"time_mix_{name}" for name in names), lambda weight: weight.squeeze(1))}


def norm_weight(path: str, norm: Any) -> Take:
    """Return the source of a norm's weight; some norms of transformers store weight - 1."""
    if type(norm).__name__ in LESS_ONE:
        return Take((f"{path}.weight",), lambda weight: weight + 1)
    return Take((f"{path}.weight",))


def norm_table(path: str, norm: Any, factor: float = 1.0) -> Table:
    """Make a table of a norm, with its output multiplied by `factor`; LayerNorm has a bias too."""
    table = {"weight": norm_weight(path, norm).scaled(factor)}
    return table | ({"bias": Take((f"{path}.bias",)).scaled(factor)} if isinstance(norm, nn.LayerNorm) else {})


LESS_ONE = ("Qwen3NextRMSNorm", "Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm", "RecurrentGemmaRMSNorm")
"""Norms that store weight - 1."""


def eps_of(norm: Any) -> float:
    """Return the epsilon of a norm."""
    return norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps


def exact_buffers(theirs: Any) -> dict[str, Tensor]:
    """Return rope's frequencies or lightning attention's decays as they were before a cast rounded them.

    A buffer that differs by more than rounding is returned unchanged.
    """
    kind, made = type(theirs).__name__, {}
    if kind.endswith("RotaryEmbedding"):
        made = dict(type(theirs)(theirs.config).named_buffers())
    elif kind == "MiniMaxLightningAttention":
        slopes = theirs.get_slope_rate()
        decays = zip(("query_decay", "key_decay", "diagonal_decay"), theirs.decay_factors(slopes), strict=True)
        made = {"slope_rate": slopes, **dict(decays)}
    held = {name: theirs.get_buffer(name) for name in made}
    return {
        name: exact if torch.equal(exact.to(held[name]), held[name]) else held[name] for name, exact in made.items()
    }


class Part(NamedTuple):
    """A converted module: our options, the table of its weights, and configuration fields to check."""

    options: dict[str, Any]
    table: Table
    fields: Fields

    def below(self, path: str) -> Part:
        """Return this part relative to a parent module that has it under `path`."""
        table = {ours: it._replace(paths=tuple(join(path, p) for p in it.paths)) for ours, it in self.table.items()}
        return self._replace(table=table)

    def scaled(self, factors: Mapping[str, float | Tensor]) -> Part:
        """Return this part with some of our parameters multiplied."""
        table = {ours: it.scaled(factors.get(ours, 1.0)) for ours, it in self.table.items()}
        return self._replace(table=table)


def expect(theirs: object, fields: Fields) -> None:
    """Raise ValueError for the first field whose value the zoo does not support."""
    for field, (value, expected) in fields.items():
        if value != expected:
            raise ValueError(
                f"{type(theirs).__name__}: the zoo does not support {field}={value!r}; it supports {expected!r}"
            )


class Weights:
    """Copies of the original weights under our names; checks that each weight is read exactly once."""

    def __init__(self, theirs: nn.Module) -> None:
        self.theirs, self.kind = theirs, type(theirs).__name__
        self.unread = {id(parameter): path for path, parameter in theirs.named_parameters()}
        self.found: dict[str, nn.Parameter] = {}
        self.constants: dict[str, float] = {}

    def read(self, table: Table, their_path: str = "", our_path: str = "") -> None:
        """Copy the parameters of a table; its paths are relative to `their_path`, its names to `our_path`."""
        for name, (paths, change, shared, constant) in table.items():
            if not paths:
                self.constants[join(our_path, name)] = constant
                continue
            parts = [self._take(join(their_path, path), shared) for path in paths]
            kinds = {(str(part.dtype), str(part.device), f"requires_grad={part.requires_grad}") for part in parts}
            if len(kinds) > 1:
                raise ValueError(
                    f"{self.kind}: {', '.join(paths)} are one parameter in the zoo and must agree in dtype, "
                    f"device and requires_grad, got {' and '.join(' '.join(kind) for kind in sorted(kinds))}"
                )
            copied = torch.cat([part.detach() for part in parts]) if len(parts) > 1 else parts[0].detach().clone()
            if change is not None:
                copied = change(copied.to(widest(copied.device))).to(copied.dtype).contiguous()
            self.found[join(our_path, name)] = nn.Parameter(copied, parts[0].requires_grad)  # a buffer's is False

    def _take(self, path: str, shared: bool) -> Tensor:
        owner, _, name = path.rpartition(".")
        layer = self.theirs.get_submodule(owner)
        weight = getattr(layer, name)
        once = isinstance(weight, nn.Parameter) and not shared  # buffers are not counted
        if self.unread.pop(id(weight), None) is None and once:
            raise ValueError(f"{self.kind}: {path} is shared; only the head and the embedding may share a weight")
        depthwise = type(layer) is nn.Conv1d and name == "weight"
        return weight.squeeze(1) if depthwise else weight

    def leave_out(self, path: str) -> None:
        """Mark the parameters of a module as read: the model never uses it, or we fold it into other weights."""
        for parameter in self.theirs.get_submodule(path).parameters():
            self.unread.pop(id(parameter), None)

    def fill(self, ours: nn.Module) -> None:
        """Assign all parameters to `ours`, which was built on the meta device."""
        if unread := [path for path in self.unread.values() if self.theirs.get_parameter(path).numel()]:
            raise ValueError(f"{self.kind}: the zoo has no parameter for {few(unread)}")
        shapes = {name: parameter.shape for name, parameter in ours.named_parameters()}
        like = next(iter(self.found.values()))
        for name, constant in self.constants.items():
            value = torch.full(shapes[name], constant, dtype=like.dtype, device=like.device)
            self.found[name] = nn.Parameter(value, False)
        for name, weight in self.found.items():
            if weight.shape != shapes[name]:
                raise ValueError(
                    f"{self.kind}: the source of {name} has shape {tuple(weight.shape)}; its configuration implies "
                    f"{tuple(shapes[name])}"
                )
        trained = {name: weight.requires_grad for name, weight in self.found.items()}  # assignment overwrites it
        ours.load_state_dict(self.found, assign=True)
        for name, parameter in ours.named_parameters():
            parameter.requires_grad_(trained[name])


def join(*path: str) -> str:
    """Join the parts of a path; empty parts are skipped."""
    return ".".join(part for part in path if part)


def few(names: Sequence[str]) -> str:
    """List the first three names and the number of the others."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
