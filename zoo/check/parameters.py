"""Properties of parameters and options: all of them matter, and copies and files keep them."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import torch
from torch import nn

from zoo.adapters.states import tensors_of
from zoo.check.outcome import NotApplicableError, Outcome, Outcomes, attempting, equal
from zoo.check.property import checks
from zoo.check.subject import Subject

PLACES = ("device", "dtype", "layer_idx", "name")
"""Options that do not affect the outputs."""

_LENGTH = 24


@checks("parameters")
def parameters_trained(subject: Subject) -> Outcomes:
    """Check that every trainable parameter gets a finite, nonzero gradient."""
    module = subject.module()
    named = subject.trained(module)
    if not named:
        raise NotApplicableError("the module has no parameters to train")
    y = subject.whole(module, subject.draw(4))
    did, expected = "gradient of a random sum of the outputs", "a finite, nonzero gradient of every parameter"
    if not y.requires_grad:
        yield Outcome(False, did, "the output has no gradient at all", expected)
        return
    gradients = torch.autograd.grad((y * subject.weights(y)).sum(), list(named.values()), allow_unused=True)
    dead = [name for name, g in zip(named, gradients, strict=True) if g is None or not g.any()]
    broken = [name for name, g in zip(named, gradients, strict=True) if g is not None and not g.isfinite().all()]
    found = [f"no gradient for {', '.join(dead)}"] if dead else []
    found += [f"NaN or infinity for {', '.join(broken)}"] if broken else []
    yield Outcome(not found, did, "; ".join(found) or f"all {len(named)} parameters have one", expected)


@checks("parameters")
def options_matter(subject: Subject) -> Outcomes:
    """Check that every option with a plain value has an effect, alone or together with another option."""
    if isinstance(subject.made_of, nn.Module):
        raise NotApplicableError("the target is a module, not a class or function with options")
    others = {name: list(_others(value, hint)) for name, value, hint in _plain_options(subject)}
    others = {name: values for name, values in others.items() if values}
    if not others:
        raise NotApplicableError("the constructor has no options with plain defaults")
    ignored = [name for name in others if not _matters(subject, name, others)]
    yield Outcome(
        not ignored,
        f"other values were given to {', '.join(others)}",
        f"no effect of {', '.join(ignored)}" if ignored else "each has an effect",
        "every option changes outputs, parameters or states, or raises an error",
    )


def _plain_options(subject: Subject) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, value and annotation of the options with defaults."""
    for name, p in subject.signature().parameters.items():
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.default is not p.empty and name not in PLACES:
            yield name, subject.options.get(name, p.default), p.annotation


def _others(now: Any, hint: Any) -> Iterator[Any]:
    """Yield other values of the same kind as `now`, those most likely to be accepted first."""
    choices = [c for h in (hint, *get_args(hint)) if get_origin(h) is Literal for c in get_args(h)]
    if choices:
        yield from (choice for choice in choices if choice != now)
    elif isinstance(now, bool):
        yield not now
    elif isinstance(now, int):
        yield from (value for value in (2 * now, now + 1, 1, 2, 4) if value != now)
    elif isinstance(now, float):
        yield from (value for value in (2 * now, now / 2, 0.97 * now, 0.25, 0.5) if value != now)
    elif now is None and any(h in (int, float) for h in (hint, *get_args(hint))):
        yield from (1, 2, 3, 4, 0.5)


def _matters(subject: Subject, name: str, others: Mapping[str, list[Any]]) -> bool:
    """Return whether the option has an effect, if need be after changing another one (a rotary base needs rotation)."""
    for beside in ({}, *({other: value} for other in others if other != name for value in others[other])):
        base = _fingerprint(subject, beside)
        changed = (_fingerprint(subject, {**beside, name: value}) for value in others[name])
        if base is not None and any(each is not None and each != base for each in changed):
            return True
    return False


def _fingerprint(subject: Subject, options: Mapping[str, Any]) -> list[Any] | str | None:
    """Return parameters, buffers, outputs in both modes and state, or the error of a call; None if it is not built."""
    try:
        module = subject.placed(subject.make(options))
    except Exception:  # noqa: BLE001 - the constructor rejects the value
        return None
    found = [*module.parameters(), *module.buffers()]
    x = subject.draw(seq_len=subject.fitting(_LENGTH))
    try:
        found += [subject.outputs(module.train(mode), x) for mode in (False, True)]
        if subject.protocol.streams:
            with torch.no_grad():
                _, state = subject.protocol.chunk(module.eval(), x[:, :1], None)
            found += tensors_of(state)
    except Exception as error:  # noqa: BLE001 - an error is an effect too
        return type(error).__name__
    return [
        (t.shape, t.dtype, t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()) for t in found
    ]


@checks("parameters")
def deep_copy(subject: Subject) -> Outcomes:
    """Check that copy.deepcopy gives a module with the same outputs and separate parameters."""
    original, did, x = subject.original, "the module was copied by copy.deepcopy", subject.draw()
    with attempting(did, "a copy"):
        other = copy.deepcopy(original)
    expected = subject.outputs(original, x)
    yield equal(did, subject.outputs(other, x), expected)
    disturb(other)
    yield equal("the copy's parameters were changed", subject.outputs(original, x), expected)


@checks("parameters")
def pickled(subject: Subject) -> Outcomes:
    """Check that pickle restores the module with the same outputs."""
    module, did, x = subject.module(), "the module was pickled and unpickled", subject.draw()
    with attempting(did, "the same module"):
        other = pickle.loads(pickle.dumps(module))
    yield equal(did, subject.outputs(other, x), subject.outputs(module, x))


@checks("parameters")
def state_dict(subject: Subject) -> Outcomes:
    """Check that state_dict contains everything that the outputs depend on."""
    x, did = subject.draw(), "state_dict was saved and loaded into another module"
    first, other = subject.module(), subject.module()
    if not isinstance(subject.made_of, nn.Module):
        other = subject.placed(subject.make(seed=5)).eval()
    disturb(other)
    with attempting(did, "the same outputs"):
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
    yield equal(did, subject.outputs(other, x), subject.outputs(first, x))


def disturb(module: nn.Module) -> None:
    """Change every parameter."""
    for p in module.parameters():
        if p.is_floating_point() or p.is_complex():
            p.data = p.data + 1
