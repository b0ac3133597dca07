"""Bind layers of values to constructors: which options a run has, and the value of each after all layers."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

from lab.config.choice import GROUPS, REGISTRIES, TOP, Choice
from lab.config.layers import Layer, UsageError
from lab.config.objects import Objects, names_object, read_objects
from lab.config.options import NO_DEFAULT, Option, fit, options_of
from lab.nested import nested
from zoo.registry import MIXERS
from zoo.targets import label

# What train.py fills in, from --mixer, --seed and the task's spec, and what is of models that come from elsewhere.
MODEL_FILLED = {"mixer", "vocab_size", "d_input", "n_outputs"}
MODEL_ELSEWHERE = {"norm_eps", "blocks", "embedding_scale", "logit_cap"}
TRAINING_FILLED = {"loss", "facts", "perplexity", "seed"}
DATA_FILLED = {"task", "batch_size", "seed"}


@dataclass(frozen=True)
class RunOptions:
    """What a run needs besides mixer, task, model and trainer.

    Args:
        batch_size: sequences per step.
        seed: decides the weights, the data and their order.
        run_dir: folder that holds the runs.
        figures_every: figures of each layer's operator, spectrum and gradient every so many
            steps; default only at the end, never for 0.
    """

    batch_size: int = 64
    seed: int = 0
    run_dir: str = "runs"
    figures_every: int | None = None


class Options:
    """The options of one mixer and one task, of the model that they meet in, and of the Trainer, by dotted name.

    Args:
        choice: what the command line names, `with_members`.
        groups: those whose options are wanted.
    """

    def __init__(self, choice: Choice, groups: Collection[str] = GROUPS) -> None:
        self.names = choice.names
        self.entries = choice.entries
        self.members = list(dict.fromkeys(entry["name"] for entry in choice.entries))
        declare: dict[str, Callable[[], list[Option]]]
        declare = {"mixer": self._mixer, "task": self._task, "model": self._model, "trainer": self._trainer}
        self.declared: dict[str, Option] = {each.key: each for group in groups for each in declare[group]()}
        for entry in self.entries if "mixer" in groups else ():
            own = {key: value for key, value in entry.items() if key != "name"}
            self._bound(Layer("mixer.pattern", {"mixer": {label(entry["name"]): own}}))

    def defaults(self) -> dict[str, Any]:
        """Return what the constructors say, by dotted name."""
        return {key: each.default for key, each in self.declared.items() if each.default is not NO_DEFAULT}

    def layered(self, layers: Iterable[Layer], below: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration by dotted name after `layers`, from low to high, over the one `below`.

        Raises:
            UsageError: an unknown name or a bad value; says in which layer.
        """
        config = dict(below)
        for layer in layers:
            values = self._bound(layer)
            config |= self._handed_out(values, config) if self.members else values
        return config

    def objects(self, choice: Choice) -> Objects:
        """Return the Trainer's options that some layer gives as objects.

        Raises:
            UsageError: no such class, an argument that it does not take.
        """
        values = [each for layer in (*choice.shipped, *choice.given) for each in layer.leaves(self.declared)]
        names = {key.rstrip("+").split(".")[1] for key, value in values if self._names_object(key, value)}
        return read_objects(names, choice.shipped, choice.given[:-1], choice.flags)

    def _names_object(self, key: str, value: Any) -> bool:
        if not key.startswith("trainer."):
            return False
        option = self.declared.get(".".join(key.rstrip("+").split(".")[:2]))
        return option is not None and option.takes_objects and (key != option.key or names_object(key, value))

    def _bound(self, layer: Layer) -> dict[str, Any]:
        """Return the layer's values by dotted name, each of its option's type; objects are left to `objects`."""
        source = f"{layer.source}: " if layer.source else ""
        values = {}
        for key, value in layer.leaves(self.declared):
            if self._names_object(key, value):
                continue
            option = self.declared.get(key)
            if option is None:
                raise UsageError(source + self._unknown(key, is_flag=not layer.source))
            if value is None and not layer.source:
                raise UsageError(f"--{key}: expected one argument")
            try:
                values[key] = fit(value, option.hint)
            except ValueError as error:
                raise UsageError(f"{source}{key}: {error}") from None
        return values

    def _handed_out(self, values: dict[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
        """Hand a hybrid's bare options to its members, so that a higher layer wins in whatever form it is written."""
        from zoo.mixers.hybrid import Hybrid

        hybrids = {"mixer.name", *(f"mixer.{name}" for name in signature(MIXERS[self.names["mixer"]]).parameters)}
        own = {key: value for key, value in values.items() if not key.startswith("mixer.") or key in hybrids}
        options = nested({key.removeprefix("mixer."): value for key, value in values.items() if key not in own})
        said = {entry.pop("name"): entry for entry in Hybrid.distribute(self.members, options)}
        if "mixer.pattern" not in own:
            own["mixer.pattern"] = Hybrid.without(below["mixer.pattern"], said)
        return own | {
            f"mixer.{label(name)}.{key}": value for name, entry in said.items() for key, value in entry.items()
        }

    def _mixer(self) -> list[Option]:
        name = self.names["mixer"]
        own = self._of_registry("mixer", name, "mixer.", f"mixer {name}")
        if not self.members:
            return own
        bare: dict[str, Option] = {}
        for member in self.members:
            section = f"of every member that has it, as in {member}"
            for option in options_of(MIXERS[member], "mixer.", section, {"d_model"}):
                bare.setdefault(option.key, replace(option, default=NO_DEFAULT))
        of_one = [
            self._of_registry("mixer", each, f"mixer.{label(each)}.", f"of {each} only")[1:] for each in self.members
        ]
        return [*own, *bare.values(), *(option for options in of_one for option in options)]

    def _of_registry(self, group: str, name: str, prefix: str, section: str) -> list[Option]:
        """Return the name, and the options of what it stands for, with the defaults that it sets."""
        registry = REGISTRIES[group]
        sets = getattr(registry.entry(name), "options", {})
        options = options_of(registry[name], prefix, section, {"d_model"} if group == "mixer" else ())
        options = [
            replace(option, default=sets.get(option.name, option.default))
            for option in options
            if option.default is NO_DEFAULT or not option.takes_objects  # devices and functions of a mixer of your own
        ]
        return [Option(f"{group}.name", str, name, None, section), *options]

    def _task(self) -> list[Option]:
        from tasks.data.datamodule import TaskDataModule

        name = self.names["task"]
        own = self._of_registry("task", name, "task.", f"task {name}")
        data = options_of(TaskDataModule, "task.", "examples", DATA_FILLED)
        if shared := {each.name for each in own} & {*DATA_FILLED, *(each.name for each in data)}:
            raise UsageError(f"{name}: an option of every run is named {shared.pop()}; rename the task's argument")
        return [*own, *data]

    def _model(self) -> list[Option]:
        from zoo.backbone import Backbone
        from zoo.training import SequenceModule

        return [
            *options_of(Backbone, "", "model", MODEL_FILLED | MODEL_ELSEWHERE),
            *options_of(SequenceModule, "", "training", TRAINING_FILLED),
            *options_of(RunOptions, "", "run"),
        ]

    def _trainer(self) -> list[Option]:
        from lightning.pytorch import Trainer

        return options_of(Trainer, "trainer.", "Lightning's Trainer")

    def _unknown(self, key: str, is_flag: bool) -> str:
        kind, prefix = ("flag", "--") if is_flag else ("key", "")
        group, _, leaf = key.rpartition(".")
        names = [*REGISTRIES, *(TOP if is_flag else ())]
        names += [name for name in self.declared if not name.endswith(".name")]
        siblings = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == group}
        # A forgotten group (n_heads for mixer.n_heads) is nearer than anything spelt alike.
        near = [name for name in names if name.endswith(f".{key}")]
        near += [siblings[name] for name in difflib.get_close_matches(leaf, siblings, 1)]
        near += difflib.get_close_matches(key, names, 1) if not (group and siblings) else []
        hint = f" (did you mean {prefix}{near[0]}?)" if near else ""
        if group and siblings:
            valid = f"see --{group}.help" if group == "trainer" else f"choose from: {', '.join(siblings.values())}"
        else:
            top = [name for name in names if "." not in name]
            valid = f"choose from: {', '.join([*top, 'mixer.*', 'task.*', 'trainer.*'])}"
        return f"unknown {kind} {prefix}{key}{hint}; {valid}"
