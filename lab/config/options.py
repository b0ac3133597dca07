"""Options are the parameters of constructors: of a mixer, a task, the model around them, and Lightning's Trainer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from lab.config.layers import GROUPS, REGISTRIES
from zoo.errors import UsageError
from zoo.targets import label

# The arguments that train.py fills in, from --mixer, --seed and the task's spec, and those of models from elsewhere.
MODEL_FILLED = {"mixer", "vocab_size", "d_input", "n_outputs"}
MODEL_ELSEWHERE = {"norm_eps", "norm_type", "blocks", "embedding_scale", "logit_cap"}
TRAINING_FILLED = {"loss", "facts", "perplexity", "seed"}
DATA_FILLED = {"task", "batch_size", "seed"}
NO_DEFAULT = inspect.Parameter.empty
PLAIN = {int, float, str, bool, type(None), Path, Any}


@dataclass(frozen=True)
class RunOptions:
    """Options of a run besides mixer, task, model and trainer.

    Args:
        batch_size: sequences per step.
        seed: decides the weights, the data and their order.
        run_dir: folder that holds the runs.
        threads: threads of the CPU that torch uses, by default one, in a sweep too: other numbers give other last bits.
        looks_ahead: the mixer may read later positions, as an encoder does; otherwise a mixer of your own that does so
            is reported, and its run is marked.
        figures_every: steps between figures of each layer's operator, spectrum and gradient; null for figures only at
            the end, 0 for none.
    """

    batch_size: int = 64
    seed: int = 0
    run_dir: str = "runs"
    threads: int | None = None
    looks_ahead: bool = False
    figures_every: int | None = None


def option_of(flag: str) -> str:
    """Return the option that a flag sets, adds to or sets an argument of: trainer.callbacks for trainer.callbacks+."""
    return ".".join(flag.rstrip("+").split(".")[:2])


@dataclass(frozen=True)
class Option:
    """One option of a run.

    Attributes:
        key: dotted name, as in flags.
        hint: the annotation of the constructor's parameter.
        default: default of the parameter, or of the registry's entry; `NO_DEFAULT` for a bare option of a hybrid.
        owner: the class whose docstring describes it; None for the name of a mixer or a task.
        section: the heading under which help shows it.
        members: of a bare option of a hybrid, the options of its members that it sets.
    """

    key: str
    hint: Any
    default: Any
    owner: type | None
    section: str
    members: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self.key.rpartition(".")[2]

    @property
    def takes_objects(self) -> bool:
        """Whether the type has values that YAML cannot spell: instances of classes."""
        return not all(is_plain(each) or each is timedelta for each in alternatives(self.hint))

    @property
    def takes_list(self) -> bool:
        """Whether every value but null is a list."""
        return all(get_origin(each) in (list, Sequence) for each in alternatives(self.hint) if each is not type(None))


def declared(
    names: Mapping[str, str], entries: Iterable[Mapping[str, Any]] = (), groups: Iterable[str] = GROUPS
) -> dict[str, Option]:
    """Return the options of some groups, by dotted name.

    Args:
        names: of mixer and task.
        entries: the complete pattern of a hybrid.
        groups: such as mixer or trainer.
    """
    declare: dict[str, Callable[[], list[Option]]] = {
        "mixer": lambda: _mixer(names["mixer"], entries),
        "task": lambda: _task(names["task"]),
        "model": _model,
        "trainer": _trainer,
    }
    return {option.key: option for group in groups for option in declare[group]()}


def _mixer(name: str, entries: Iterable[Mapping[str, Any]]) -> list[Option]:
    """Return a mixer's options; of a hybrid also its members' options, bare (mixer.n_heads) and by member."""
    own = _named("mixer", name, "mixer.", f"mixer {name}")
    bare: dict[str, Option] = {}
    of_members: list[Option] = []
    for member in dict.fromkeys(entry["name"] for entry in entries):
        section = f"of every member that has it, as in {member}"
        for option in _named("mixer", member, f"mixer.{label(member)}.", f"of {member} only")[1:]:
            key = f"mixer.{option.name}"
            first = bare.setdefault(key, replace(option, key=key, default=NO_DEFAULT, section=section))
            bare[key] = replace(first, members=(*first.members, option.key))
            of_members.append(option)
    return [*own, *bare.values(), *of_members]


def _task(name: str) -> list[Option]:
    from tasks.datamodule import TaskDataModule

    own = _named("task", name, "task.", f"task {name}")
    data = _parameters(TaskDataModule, "task.", "examples", DATA_FILLED)
    if shared := {each.name for each in own} & {*DATA_FILLED, *(each.name for each in data)}:
        raise UsageError(f"{name}: an option of every run is named {shared.pop()}; rename the task's argument")
    return [*own, *data]


def _model() -> list[Option]:
    from zoo.backbone import Backbone
    from zoo.training import SequenceModule

    return [
        *_parameters(Backbone, "", "model", MODEL_FILLED | MODEL_ELSEWHERE),
        *_parameters(SequenceModule, "", "training", TRAINING_FILLED),
        *_parameters(RunOptions, "", "run"),
    ]


def _trainer() -> list[Option]:
    from lightning.pytorch import Trainer

    return _parameters(Trainer, "trainer.", "Lightning's Trainer")


def _named(group: str, name: str, prefix: str, section: str) -> list[Option]:
    """Return the name, and the options of its class with the defaults that the registry's entry sets."""
    registry = REGISTRIES[group]
    sets = getattr(registry.entry(name), "options", {})
    options = [
        replace(option, default=sets.get(option.name, option.default))
        for option in _parameters(registry[name], prefix, section, {"d_model"} if group == "mixer" else ())
        # Not the devices, modules and functions of a mixer of your own.
        if option.default is NO_DEFAULT or (is_data(option.default) and not option.takes_objects)
    ]
    return [Option(f"{group}.name", str, name, None, section), *options]


def _parameters(owner: type, prefix: str, section: str, skip: Iterable[str] = ()) -> list[Option]:
    """Return the parameters of a constructor as options `<prefix><parameter>`."""
    parameters = inspect.signature(owner, eval_str=True).parameters
    return [
        Option(f"{prefix}{name}", Any if each.annotation is NO_DEFAULT else each.annotation, default, owner, section)
        for name, each in parameters.items()
        for default in (list(each.default) if isinstance(each.default, tuple) else each.default,)
        if name not in set(skip) and each.kind is not each.VAR_KEYWORD
    ]


# Types


def alternatives(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union; of another type that itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def is_plain(hint: Any) -> bool:
    """Return whether every value of a type is plain data."""
    if get_origin(hint) is Literal:
        return True
    if get_origin(hint) in (list, dict, Sequence, Mapping):
        return all(is_plain(inner) for each in get_args(hint) for inner in alternatives(each))
    return hint in PLAIN


def is_data(value: Any) -> bool:
    """Return whether YAML can spell a value."""
    if isinstance(value, list | tuple | Mapping):
        return all(map(is_data, value.values() if isinstance(value, Mapping) else value))
    return value is None or type(value) in (bool, int, float, str)


def type_names(hint: Any) -> list[str]:
    """Return the types of a union, and the words of a Literal, as a person writes them."""
    return [name for each in alternatives(hint) for name in _names(each)]


def _names(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [repr(each) for each in get_args(hint)]
    if hint is type(None):
        return ["null"]
    name = getattr(get_origin(hint) or hint, "__name__", str(hint))
    inner = [" | ".join(type_names(one)) for one in get_args(hint)]
    return [f"{name}[{', '.join(inner)}]" if inner else name]
