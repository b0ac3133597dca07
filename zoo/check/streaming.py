"""Properties of streaming: chunked outputs and gradients equal whole ones, and states can be reused and reordered."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from zoo.adapters.states import parts_of, run, tensors_of, with_tensors
from zoo.check.calls import LONG
from zoo.check.outcome import NotApplicableError, Outcome, Outcomes, attempting, equal, root_mean_square
from zoo.check.property import checks
from zoo.check.subject import Subject

_ROUNDOFF = 8  # in units of eps times the RMS of the outputs


@checks("streaming")
def chunked(subject: Subject) -> Outcomes:
    """Check that outputs chunk by chunk equal outputs of the whole sequence, for several chunk sizes."""
    subject.require_stream()
    if subject.protocol.longest == 1:
        raise NotApplicableError("the protocol allows one position at a time only: see one_by_one")
    n = subject.seq_len
    for sizes in ([n], [n // 2, n - n // 2], [1, n - 1], [n - 1, 1], [3, 1, 2, n - 6]):
        yield partition(subject, sizes)
    if subject.takes(LONG):
        for sizes in ([200, LONG - 200], [130, 200, LONG - 330]):
            yield partition(subject, sizes)


@checks("streaming")
def one_by_one(subject: Subject) -> Outcomes:
    """Check that outputs position by position equal outputs of the whole sequence."""
    subject.require_stream()
    yield partition(subject, [1] * subject.seq_len)


def partition(subject: Subject, sizes: Sequence[int]) -> Outcome:
    """Compare a sequence streamed in chunks of these sizes with the whole sequence."""
    module, x = subject.module(), subject.draw(seq_len=sum(sizes))
    whole = subject.outputs(module, x)
    cut = "one by one" if set(sizes) == {1} else f"in chunks of {', '.join(map(str, sizes))}"
    if (longest := subject.protocol.longest) is not None and longest < max(sizes):
        cut += f", divided into at most {longest},"
    did = f"{x.shape[1]} positions were streamed {cut} and compared with the whole"
    with torch.no_grad(), attempting(did, "the outputs of the whole"):
        streamed = subject.chunks(module, x, sizes)
    errors = (streamed - whole).abs().amax((0, 2)).tolist() if streamed.shape == whole.shape else []
    seen = equal(did, streamed, whole, error_by_position=errors)
    return _forgetting(subject, sizes, seen) if seen.passed and max(errors) > 0 else seen


@torch.no_grad()
def _forgetting(subject: Subject, sizes: Sequence[int], seen: Outcome) -> Outcome:
    """Return `seen`, or a failure if the error exceeds half of the past's contribution: then the state is lost.

    A state that contributes little, as in a fresh layer with small steps, can be lost without a large error. So we
    compare in float64, where roundoff is far smaller; a module that refuses float64 passes.
    """
    module, x = subject.module(torch.float64), subject.draw(seq_len=sum(sizes), dtype=torch.float64)
    try:
        whole, streamed = subject.whole(module, x), subject.chunks(module, x, sizes)
    except Exception:  # noqa: BLE001 - a foreign module may raise anything
        return seen
    # Some modules compute in float32 inside.
    roundoff = _ROUNDOFF * torch.finfo(torch.float32).eps * root_mean_square(whole)
    at = sizes[0]
    for size in sizes[1:]:
        now = slice(at, at + size)
        at += size
        misses = (streamed[:, now] - whole[:, now]).abs().amax((0, 2))
        if float(misses.max()) <= roundoff:
            continue
        adds = (subject.whole(module, x[:, now]) - whole[:, now]).abs().amax((0, 2))
        lost = (misses > roundoff) & (misses > 0.5 * adds)
        if bool(lost.any()):
            where = int(lost.nonzero()[0])
            lost_share = f"error {misses[where]:.2g}, contribution of earlier chunks {adds[where]:.2g}"
            found = f"the state is lost at position {now.start + where}: {lost_share} (in float64)"
            return replace(seen, passed=False, found=found, expected="an error of roundoff only")
    return seen


@checks("streaming")
def stream_gradients(subject: Subject) -> Outcomes:
    """Check that gradients through the states equal gradients of the whole sequence, for input and parameters."""
    subject.require_stream()
    if subject.protocol.in_place:
        raise NotApplicableError("later chunks modify the cache in place, so it has no gradients: for decoding only")
    module, n = subject.module(), min(subject.seq_len, 12)
    x = subject.draw(seq_len=n).requires_grad_()
    sizes = [1] * n if subject.protocol.longest == 1 else [n // 2, 1, n - n // 2 - 1]
    whole, streamed = subject.whole(module, x), subject.chunks(module, x, sizes)
    if not whole.requires_grad:
        raise NotApplicableError("the output has no gradient")
    wanted = {"x": x, **{name: p for name, p in module.named_parameters() if p.requires_grad}}
    weights = subject.weights(whole)
    expected = torch.autograd.grad((whole * weights).sum(), [*wanted.values()], materialize_grads=True)
    cut = "one by one" if set(sizes) == {1} else f"in chunks of {', '.join(map(str, sizes))}"
    did = f"gradients of {n} positions streamed {cut} were compared with the whole"
    with attempting(did, "the gradients of the whole"):
        actual = torch.autograd.grad((streamed * weights).sum(), [*wanted.values()], materialize_grads=True)
    # Gradients that are zero up to roundoff, as of a router of one expert, cannot be compared.
    noise = 10 * torch.finfo(x.dtype).eps * max(map(root_mean_square, expected))
    for name, a, b in zip(wanted, actual, expected, strict=True):
        if not (root_mean_square(a) < noise and root_mean_square(b) < noise):  # NaN is no noise
            yield equal(f"{did}; gradient of {name}", a, b)


@checks("streaming")
def states_unchanged(subject: Subject) -> Outcomes:
    """Check that continuing a state does not modify it, and that continuing it again gives the same outputs.

    For caches that chunks modify in place, we check a copy made by copy.deepcopy.
    """
    subject.require_stream()
    module, cache, state = subject.module(), subject.protocol.in_place, None
    past, x = subject.draw(seq_len=3), subject.draw(seq_len=1, seed=2)
    with torch.no_grad():
        for part in past.split(1, dim=1):
            _, state = subject.protocol.chunk(module, part, state)
        before, kept = [t.clone() for t in tensors_of(state)], copy.deepcopy(state) if cache else state
        first = subject.protocol.chunk(module, x, state)[0].clone()
        again, _ = subject.protocol.chunk(module, x, kept)
    did = "a state was continued twice with the same position"
    yield equal(did, again, first)
    if not cache:
        same = all(torch.equal(a, b) for a, b in zip(tensors_of(state), before, strict=True))
        unchanged = "the state's tensors are unchanged"
        yield Outcome(same, did, unchanged if same else "the state's tensors were modified", unchanged)


@checks("streaming")
def prefix_restored(subject: Subject) -> Outcomes:
    """Check that two sequences can continue from one state, as servers do with cached prefixes."""
    subject.require_stream()
    prefix, ways = subject.draw(seq_len=9), [subject.draw(seq_len=4, seed=seed) for seed in (2, 3)]
    module, state = subject.module(), None
    with torch.no_grad():
        _, state = run(subject.protocol, module, prefix)
        for number, way in enumerate(ways, 1):
            y, _ = run(subject.protocol, module, way, _kept(subject, state))
            whole = subject.outputs(module, torch.cat((prefix, way), dim=1))
            did = f"the state after 9 positions was continued by 4 others, continuation {number} of 2"
            yield equal(did, y, whole[:, 9:])


@checks("streaming")
def draft_rolled_back(subject: Subject) -> Outcomes:
    """Check that a stream can return to the state before rejected tokens, as in speculative decoding."""
    subject.require_stream()
    prefix, draft, rest = subject.draw(seq_len=9), subject.draw(seq_len=4, seed=2), subject.draw(seq_len=3, seed=3)
    module = subject.module()
    with torch.no_grad():
        _, state = run(subject.protocol, module, prefix)
        states = [_kept(subject, state)]
        for token in draft.split(1, dim=1):
            _, state = run(subject.protocol, module, token, state)
            states.append(_kept(subject, state))
        for accepted in (0, 2):
            y, _ = run(subject.protocol, module, rest, states[accepted])
            whole = subject.outputs(module, torch.cat((prefix, draft[:, :accepted], rest), dim=1))
            did = f"of 4 drafted tokens {accepted} were accepted, then 3 others followed"
            yield equal(did, y, whole[:, 9 + accepted :])


@checks("streaming")
def rows_exchanged(subject: Subject) -> Outcomes:
    """Check that rows of a state can be reordered, dropped and repeated, as in continuous batching."""
    subject.require_stream()
    module, order = subject.module(), torch.tensor([2, 0, 0], device=subject.device)
    prefix, rest = subject.draw(3, 9), subject.draw(3, 4, seed=2)
    try:
        with torch.no_grad():
            parts = parts_of(subject.protocol, module, prefix)
    except ValueError as error:
        raise NotApplicableError(str(error)) from None

    def moved(place: int, t: torch.Tensor) -> torch.Tensor:
        rows = parts[place].rows
        return t.clone() if rows is None else t.index_select(rows, order)

    with torch.no_grad():
        _, state = run(subject.protocol, module, prefix)
        y, _ = run(subject.protocol, module, rest, with_tensors(state, moved))
        whole = subject.outputs(module, torch.cat((prefix[order], rest), dim=1))
    yield equal("rows 2, 0 and 0 of a state with three rows were continued", y, whole[:, 9:])


def _kept(subject: Subject, state: Any) -> Any:
    """Return a state that later chunks do not modify."""
    return copy.deepcopy(state) if subject.protocol.in_place else state
