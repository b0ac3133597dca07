"""Options of a run, read from the constructors of its mixer, its task, the model and Lightning's Trainer."""

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

# Arguments that are not options: train.py fills them in from --mixer, --seed and the task's spec (FILLED), or only
# models loaded from other projects use them (ELSEWHERE).
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
        seed: seed of the weights, the data and their order.
        run_dir: folder that holds the runs.
        threads: CPU threads of torch; default one, in a sweep too, because their number changes how sums are rounded.
        looks_ahead: do not warn if your own mixer reads later positions, as an encoder does; its run is marked in
            either case.
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
    """Return the option to which a flag belongs: trainer.callbacks for trainer.callbacks+, trainer.logger.save_dir."""
    return ".".join(flag.rstrip("+").split(".")[:2])


@dataclass(frozen=True)
class Option:
    """One option of a run.

    Attributes:
        key: dotted name, as in flags.
        hint: the annotation of the constructor's parameter.
        default: default of the parameter, or of the registry's entry; `NO_DEFAULT` for a bare option of a hybrid.
        owner: class whose docstring describes the option; None for the name of a mixer or a task.
        section: heading of the option in help.
        members: for a bare option of a hybrid (mixer.n_heads), the options of its members that it sets.
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
        """Whether the type admits instances of classes, which YAML cannot represent."""
        return not all(is_plain(each) or each is timedelta for each in alternatives(self.hint))

    @property
    def takes_list(self) -> bool:
        """Whether the type admits only lists, and perhaps null."""
        return all(get_origin(each) in (list, Sequence) for each in alternatives(self.hint) if each is not type(None))


def declared(
    names: Mapping[str, str], entries: Iterable[Mapping[str, Any]] = (), groups: Iterable[str] = GROUPS
) -> dict[str, Option]:
    """Return the options of some groups, by dotted name.

    Args:
        names: names of the mixer and the task.
        entries: the complete pattern of a hybrid.
        groups: groups of options, such as mixer or trainer.
    """
    declare: dict[str, Callable[[], list[Option]]] = {
        "mixer": lambda: _mixer(names["mixer"], entries),
        "task": lambda: _task(names["task"]),
        "model": _model,
        "trainer": _trainer,
    }
    return {option.key: option for group in groups for option in declare[group]()}


def _mixer(name: str, entries: Iterable[Mapping[str, Any]]) -> list[Option]:
    """Return a mixer's options; for a hybrid, also its members' options, bare (mixer.n_heads) and per member."""
    own = _named("mixer", name, "mixer.", f"mixer {name}")
    bare: dict[str, Option] = {}
    of_members: list[Option] = []
    for member in dict.fromkeys(entry["name"] for entry in entries):
        section = f"every member that has it, as in {member}"
        for option in _named("mixer", member, f"mixer.{label(member)}.", f"{member} only")[1:]:
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
        raise UsageError(f"{name}: every run has an option {shared.pop()} already; rename the task's argument")
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
    """Return the option of the name itself, then the options of its class, with defaults from the registry's entry."""
    registry = REGISTRIES[group]
    sets = getattr(registry.entry(name), "options", {})
    options = [
        replace(option, default=sets.get(option.name, option.default))
        for option in _parameters(registry[name], prefix, section, {"d_model"} if group == "mixer" else ())
        # Your own mixer may have arguments such as devices, modules or functions, which cannot be options.
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
    """Return the members of a union; for any other type, the type itself."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def is_plain(hint: Any) -> bool:
    """Return whether every value of a type is plain data."""
    if get_origin(hint) is Literal:
        return True
    if get_origin(hint) in (list, dict, Sequence, Mapping):
        return all(is_plain(inner) for each in get_args(hint) for inner in alternatives(each))
    return hint in PLAIN


def is_data(value: Any) -> bool:
    """Return whether YAML can represent a value."""
    if isinstance(value, list | tuple | Mapping):
        return all(map(is_data, value.values() if isinstance(value, Mapping) else value))
    return value is None or type(value) in (bool, int, float, str)


def type_names(hint: Any) -> list[str]:
    """Return readable names of the types of a union and of the values of a Literal."""
    return [name for each in alternatives(hint) for name in _names(each)]


def _names(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [repr(each) for each in get_args(hint)]
    if hint is type(None):
        return ["null"]
    name = getattr(get_origin(hint) or hint, "__name__", str(hint))
    inner = [" | ".join(type_names(one)) for one in get_args(hint)]
    return [f"{name}[{', '.join(inner)}]" if inner else name]
