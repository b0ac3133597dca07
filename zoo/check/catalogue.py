"""The properties, in the order in which a report lists them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from zoo.check import calls, compiled, costs, operators, options, padding, parameters, precision, streaming
from zoo.check.finding import (
    FailedError,
    Finding,
    NotApplicableError,
    Observation,
    describe_error,
)
from zoo.check.subject import Factory, Subject
from zoo.errors import unknown


@dataclass(frozen=True)
class Property:
    """One property that a sequence mixer must have.

    Attributes:
        name: what reports call it.
        subject: what it is about; reports group by it.
        summary: one line that describes it.
        observe: the function that checks it.
        measures: whether it only measures and never fails.
        slow: whether it takes seconds.
    """

    name: str
    subject: str
    summary: str
    observe: Callable[[Subject], Observation]
    measures: bool = False
    slow: bool = False

    def __str__(self) -> str:
        return self.name

    def check(self, module_or_factory: nn.Module | Factory, *, d_model: int, **setting: Any) -> Finding:
        """Check one module; `setting` as for `zoo.check.check`.

        Raises:
            ValueError: what `check` refuses.
        """
        return self.find(Subject(module_or_factory, d_model=d_model, **setting))

    def find(self, subject: Subject) -> Finding:
        """Return the finding about a subject; an exception that the module raises is a finding too."""
        try:
            seen = self.observe(subject)
        except NotApplicableError as reason:
            return Finding(self.name, "not_applicable", str(reason))
        except FailedError as failed:
            seen = failed.observation
        except Exception as error:  # noqa: BLE001 - a stranger's module may raise anything
            line = subject.adapter.whole_line
            draw = f"x = draw(2, {subject.seq_len}, {subject.d_model})"
            seen = Observation(False, self.summary, describe_error(error), "no error", [draw, line])
        script = subject.script(seen.lines) if seen.lines else ""
        if seen.passed:
            return Finding(self.name, "passed", f"{seen.did}: {seen.found}", script, seen.measured)
        detail = f"{seen.did}: {seen.found}; expected: {seen.expected}"
        return Finding(self.name, "failed", detail, script, seen.measured)


_TABLE: dict[str, list[tuple[Any, ...]]] = {
    "calls": [
        ("causality", "later positions change nothing earlier, and get no gradient", calls.causality),
        ("rows_independent", "the output of a row does not depend on the other rows", calls.rows_independent),
        ("inputs_unchanged", "input and parameters are not written into", calls.inputs_unchanged),
        ("deterministic", "the same input gives the same output again", calls.deterministic),
        ("no_global_draws", "eval mode takes nothing from the global generator", calls.no_global_draws),
        ("eval_without_dropout", "eval mode is the same under any seed", calls.eval_without_dropout),
        ("lengths", "1, 2, 7, 63 positions and those around powers of two", calls.lengths),
    ],
    "streaming": [
        ("chunked", "chunk by chunk equals whole, wherever it is cut", streaming.chunked),
        ("one_by_one", "position by position equals whole", streaming.one_by_one),
        ("stream_gradients", "gradients pass through the states", streaming.stream_gradients),
        ("states_unchanged", "a state can be continued twice", streaming.states_unchanged),
    ],
    "padding": [("padding", "the content of the padding changes nothing", padding.padding)],
    "parameters": [
        ("parameters_trained", "every parameter gets a gradient", parameters.parameters_trained),
        ("options_matter", "every option changes something", options.options_matter),
        ("deep_copy", "copy.deepcopy gives an equal, separate module", parameters.deep_copy),
        ("pickled", "pickle brings it back", parameters.pickled),
        ("state_dict", "state_dict carries all that outputs depend on", parameters.state_dict),
    ],
    "precision": [
        ("float64", "float64 in, float64 out", precision.float64),
        ("float32", "near float64", precision.float32),
        ("bfloat16", "finite and near float64", precision.bfloat16),
        ("autocast", "finite and near float32", precision.autocast),
        ("large_inputs", "inputs of size 30 and 1000 stay finite", precision.large_inputs),
        ("tiny_inputs", "inputs of size 1e-6 and 0 stay finite", precision.tiny_inputs),
    ],
    "compilers": [
        ("compiles", "torch.compile gives what eager code gives", compiled.compiles, {"slow": True}),
        ("exports", "torch.export gives what eager code gives", compiled.exports, {"slow": True}),
    ],
    "operator": [
        ("operator", "W x + c = y", operators.operator),
        ("rank", "interaction rank, heads needed, effective state size", operators.rank, {"measures": True}),
    ],
    "measurements": [
        ("costs", "time and memory against length", costs.costs, {"measures": True, "slow": True}),
        ("state_size", "bytes of the state", costs.state_size, {"measures": True}),
        ("gradient_decay", "gradient against distance", costs.gradient_decay, {"measures": True}),
    ],
}
_ALL = tuple(
    Property(name, subject, summary, observe, **(flags[0] if flags else {}))
    for subject, lines in _TABLE.items()
    for name, summary, observe, *flags in lines
)


def properties(*names: str) -> tuple[Property, ...]:
    """Return all properties, or those named; parametrise a test with them.

    Raises:
        ValueError: a name that no property has.
    """
    by_name = {each.name: each for each in _ALL}
    for name in names:
        if name not in by_name:
            raise ValueError(unknown("property", name, by_name))
    return tuple(by_name[name] for name in names) if names else _ALL
