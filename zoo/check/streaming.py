"""Check streaming: whole = chunked = one by one, gradients pass through the states, and no call overwrites a state."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from zoo.check.adapters.carried import tensors_of
from zoo.check.comparison import compared, first_failure, root_mean_square
from zoo.check.finding import NotApplicableError, Observation, attempting
from zoo.check.subject import Subject

_ROUNDOFF = 8  # times eps of the outputs' size


def chunked(subject: Subject) -> Observation:
    """Check that outputs chunk by chunk equal those of the whole sequence, wherever it is cut."""
    subject.require_stream()
    if subject.adapter.longest == 1:
        raise NotApplicableError("the protocol takes one position at a time: see one_by_one")
    n = subject.seq_len
    cuts = ([n], [n // 2, n - n // 2], [1, n - 1], [n - 1, 1], [3, 1, 2, n - 6])
    return first_failure(_partitions(subject, cuts))


def one_by_one(subject: Subject) -> Observation:
    """Check that outputs position by position equal those of the whole sequence."""
    subject.require_stream()
    return first_failure(_partitions(subject, ([1] * subject.seq_len,)))


def _partitions(subject: Subject, cuts: Sequence[Sequence[int]]) -> Iterator[Observation]:
    module, x = subject.module(), subject.draw()
    with torch.no_grad():
        whole = subject.whole(module, x)
    for sizes in cuts:
        said = "one position at a time" if set(sizes) == {1} else f"in chunks of {', '.join(map(str, sizes))}"
        did, lines = f"{x.shape[1]} positions went through {said}, and whole", stream_lines(subject, sizes)
        with torch.no_grad(), attempting(did, "the outputs of the whole", lines):
            streamed = subject.chunks(module, x, sizes)
        errors = [float((a - b).abs().max()) for a, b in zip(streamed.unbind(1), whole.unbind(1), strict=True)]
        seen = compared(did, streamed, whole, lines, error_by_position=errors)
        yield _forgetting(subject, sizes, seen) if seen.passed and max(errors) > 0 else seen


@torch.no_grad()
def _forgetting(subject: Subject, sizes: Sequence[int], seen: Observation) -> Observation:
    """`seen`, unless the difference is as large as all that a chunk has from the past: then the state is not used.

    A state that adds little, as in a fresh layer with small steps, may be lost without a large difference. So this
    compares in float64, where roundoff is far smaller; a module that refuses float64 passes.
    """
    module, x = subject.module(torch.float64), subject.draw(dtype=torch.float64)
    try:
        whole, streamed = subject.whole(module, x), subject.chunks(module, x, sizes)
    except Exception:  # noqa: BLE001 - a stranger's module may raise anything
        return seen
    roundoff = _ROUNDOFF * torch.finfo(torch.float32).eps * root_mean_square(whole)  # some compute in it inside
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
            missed = f"misses {misses[where]:.2g} of the {adds[where]:.2g} that the past adds"
            found = f"in float64 position {now.start + where} {missed}"
            return replace(seen, passed=False, found=found, expected="nothing but roundoff is missing")
    return seen


def stream_lines(subject: Subject, sizes: Sequence[int]) -> list[str]:
    """Return Python lines that make `a`, chunk by chunk, and `b`, from the whole sequence."""
    adapter = subject.adapter
    split = 1 if set(sizes) == {1} else list(sizes)
    return [
        f"x = whole = draw(2, {sum(sizes)}, {subject.d_model})",
        "with torch.no_grad():",
        f"    b = {adapter.whole_line}",
        "    state, outputs = None, []",
        f"    for x in whole.split({split}, dim=1):",
        *(f"        {line}" for line in adapter.chunk_lines),
        "        outputs.append(y)",
        "a = torch.cat(outputs, dim=1)",
    ]


def stream_gradients(subject: Subject) -> Observation:
    """Check that gradients for input and parameters through the states equal those of the whole sequence."""
    subject.require_stream()
    if subject.adapter.in_place:
        raise NotApplicableError("later chunks write into the cache, which autograd refuses: it is for decoding only")
    module, n = subject.module(), min(subject.seq_len, 12)
    x = subject.draw(seq_len=n).requires_grad_()
    sizes = [1] * n if subject.adapter.longest == 1 else [n // 2, 1, n - n // 2 - 1]
    whole, streamed = subject.whole(module, x), subject.chunks(module, x, sizes)
    if not whole.requires_grad:
        raise NotApplicableError("the output has no gradient")
    wanted = [("x", x), *((name, p) for name, p in module.named_parameters() if p.requires_grad)]
    weights = torch.randn(whole.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(whole)
    of = [t for _, t in wanted]
    expected = torch.autograd.grad((whole * weights).sum(), of, allow_unused=True, materialize_grads=True)
    did = f"gradients were taken of {n} positions in chunks of {', '.join(map(str, sizes))}, and whole"
    lines = [
        f"x = whole = draw(2, {n}, {subject.d_model}).requires_grad_()",
        f"b = torch.autograd.grad({subject.adapter.whole_line}.square().sum(), whole)[0]",
        "state, outputs = None, []",
        f"for x in whole.split({sizes}, dim=1):",
        *(f"    {line}" for line in subject.adapter.chunk_lines),
        "    outputs.append(y)",
        "a = torch.autograd.grad(torch.cat(outputs, dim=1).square().sum(), whole)[0]",
    ]
    if not streamed.requires_grad:
        return Observation(False, did, "the chunked output has no gradient", "the gradients of the whole", lines)
    with attempting(did, "the gradients of the whole", lines):
        actual = torch.autograd.grad((streamed * weights).sum(), of, allow_unused=True, materialize_grads=True)
    return first_failure(
        compared(f"{did}; of {name}", a, b, lines) for (name, _), a, b in zip(wanted, actual, expected, strict=True)
    )


def states_unchanged(subject: Subject) -> Observation:
    """Check that continuing a state leaves it unchanged, and that continuing it again gives the same outputs.

    Where chunks write into a cache, a copy made by copy.deepcopy is checked instead.
    """
    subject.require_stream()
    cache = subject.adapter.in_place
    module, few = subject.module(), 3
    past, x = subject.draw(seq_len=few), subject.draw(seq_len=1, seed=2)
    lines = [
        "torch.set_grad_enabled(False)",
        "state = None",
        f"for x in draw(2, {few}, {subject.d_model}).split(1, dim=1):",
        *(f"    {line}" for line in subject.adapter.chunk_lines),
        *(("import copy", "kept = copy.deepcopy(state)") if cache else ("kept = state",)),
        f"x = draw(2, 1, {subject.d_model}, seed=2)",
        *subject.adapter.chunk_lines,
        "b, state = y, kept",
        *subject.adapter.chunk_lines,
        "a = y",
    ]
    with torch.no_grad():
        state = None
        for part in past.split(1, dim=1):
            _, state = subject.adapter.chunk(module, part, state)
        before, kept = [t.clone() for t in tensors_of(state)], copy.deepcopy(state) if cache else state
        first, _ = subject.adapter.chunk(module, x, state)
        first = first.clone()
        again, _ = subject.adapter.chunk(module, x, kept)
    seen = compared("a state was continued twice with the same position", again, first, lines)
    same = cache or all(torch.equal(a, b) for a, b in zip(tensors_of(state), before, strict=True))
    if seen.passed and not same:
        return Observation(False, seen.did, "the state's tensors hold other numbers", "the state is unchanged", lines)
    return seen
