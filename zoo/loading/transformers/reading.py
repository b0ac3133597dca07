"""Tables from transformers' parameters to the zoo's; every parameter is read exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.ops.precision import widest

Fields = dict[str, tuple[object, object]]
"""A field of theirs -> its value, and the only value that the zoo can express."""


class Take(NamedTuple):
    """The source of one parameter of ours.

    Attributes:
        paths: their parameters, below their layer; several are stacked in rows. None at all: a constant
            of theirs; ours is that, and frozen.
        change: change of the whole, in the widest type: some of its rows, a multiplier that they apply in passing.
        shared: other parameters of ours take other rows of the same ones.
        constant: all entries of ours if there are no paths.
    """

    paths: tuple[str, ...]
    change: Callable[[Tensor], Tensor] | None = None
    shared: bool = False
    constant: float = 1.0

    def scaled(self, factor: float | Tensor) -> Take:
        """Return the same, multiplied by a number, or by one for each row."""
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
    """Return a table from our names, in which `__` means a dot, to the paths in their model."""
    return {name.replace("__", "."): Take(tuple(path.split())) for name, path in paths.items()}


def same(*names: str) -> Table:
    """Make a table of parameters that have one name, theirs and ours."""
    return {name: Take((name,)) for name in names}


def mixtures(*names: str) -> Table:
    """Return RWKV's weights of an input beside the one before it, which are (1, 1, d_model) each there."""
    return {"shift": Take(tuple(f"time_mix_{name}" for name in names), lambda weight: weight.squeeze(1))}


def norm_weight(path: str, norm: Any) -> Take:
    """Read the weight of a norm of theirs, some of which store it less one."""
    if type(norm).__name__ in LESS_ONE:
        return Take((f"{path}.weight",), lambda weight: weight + 1)
    return Take((f"{path}.weight",))


def norm_table(path: str, norm: Any, factor: float = 1.0) -> Table:
    """Return a table of a norm of theirs whose output is multiplied; only some have a bias."""
    table = {"weight": norm_weight(path, norm).scaled(factor)}
    return table | ({"bias": Take((f"{path}.bias",)).scaled(factor)} if isinstance(norm, nn.LayerNorm) else {})


LESS_ONE = ("Qwen3NextRMSNorm", "Qwen3_5RMSNorm", "Qwen3_5MoeRMSNorm", "RecurrentGemmaRMSNorm")


def eps_of(norm: Any) -> float:
    """Return the epsilon of a norm of theirs."""
    return norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps


def exact_buffers(theirs: Any) -> dict[str, Tensor]:
    """Return the frequencies of rope, or the decays of lightning attention, before a cast rounded them.

    A buffer that is more than rounded is returned as it is.
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
    """One of their modules read: options of ours, its weights, and the fields that ours cannot vary."""

    options: dict[str, Any]
    table: Table
    fields: Fields

    def below(self, path: str) -> Part:
        """Return the same, as seen from a module that has it under `path`."""
        table = {ours: it._replace(paths=tuple(join(path, p) for p in it.paths)) for ours, it in self.table.items()}
        return self._replace(table=table)

    def scaled(self, factors: Mapping[str, float | Tensor]) -> Part:
        """Return the same with some of our parameters multiplied."""
        table = {ours: it.scaled(factors.get(ours, 1.0)) for ours, it in self.table.items()}
        return self._replace(table=table)


def expect(theirs: object, fields: Fields) -> None:
    """Raise ValueError for the first field whose value the zoo cannot express."""
    for field, (value, expected) in fields.items():
        if value != expected:
            raise ValueError(
                f"{type(theirs).__name__}: the zoo cannot express {field}={value!r}; it can express {expected!r}"
            )


class Weights:
    """Theirs under our names: all of them, each read once."""

    def __init__(self, theirs: nn.Module) -> None:
        self.theirs, self.kind = theirs, type(theirs).__name__
        self.unread = {id(parameter): path for path, parameter in theirs.named_parameters()}
        self.found: dict[str, nn.Parameter] = {}
        self.constants: dict[str, float] = {}

    def read(self, table: Table, their_path: str = "", our_path: str = "") -> None:
        """Copy the parameters of a table, theirs below one path, ours below the other."""
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
            raise ValueError(f"{self.kind}: {path} is read twice; only a head may share its weight, the embedding's")
        depthwise = type(layer) is nn.Conv1d and name == "weight"
        return weight.squeeze(1) if depthwise else weight

    def leave_out(self, path: str) -> None:
        """Count the parameters of a module as read: their model never runs it, or it is part of other weights here."""
        for parameter in self.theirs.get_submodule(path).parameters():
            self.unread.pop(id(parameter), None)

    def fill(self, ours: nn.Module) -> None:
        """Put every parameter into `ours`, which was built on the meta device."""
        if unread := [path for path in self.unread.values() if self.theirs.get_parameter(path).numel()]:
            raise ValueError(f"{self.kind}: the zoo has no place for {few(unread)}")
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
    """Join a path from its parts, of which some may be empty."""
    return ".".join(part for part in path if part)


def few(names: Sequence[str]) -> str:
    """List the first names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
