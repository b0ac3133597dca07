"""Whatever streams: whole = chunked = one by one, with gradients through the states, which nobody overwrites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from zoo.conformance.comparison import compared, first_failure
from zoo.conformance.finding import NotApplicableError, Observation, attempting
from zoo.conformance.subject import Subject, copied, tensors_of


def chunked(subject: Subject) -> Observation:
    """Chunk by chunk the outputs are those of the whole, wherever it is cut."""
    subject.require_stream()
    if subject.adapter.longest == 1:
        raise NotApplicableError("the protocol takes one position at a time: see one_by_one")
    n = subject.seq_len
    cuts = ([n], [n // 2, n - n // 2], [1, n - 1], [n - 1, 1], [3, 1, 2, n - 6])
    return first_failure(_partitions(subject, cuts))


def one_by_one(subject: Subject) -> Observation:
    """Position by position the outputs are those of the whole."""
    subject.require_stream()
    return first_failure(_partitions(subject, ([1] * subject.seq_len,)))


def _partitions(subject: Subject, cuts: Sequence[Sequence[int]]) -> Iterator[Observation]:
    module, x = subject.module(), subject.draw()
    with torch.no_grad():
        whole = subject.whole(module, x)
        for sizes in cuts:
            said = "one position at a time" if set(sizes) == {1} else f"in chunks of {', '.join(map(str, sizes))}"
            did, lines = f"{x.shape[1]} positions went through {said}, and whole", stream_lines(subject, sizes)
            with attempting(did, "the outputs of the whole", lines):
                streamed = subject.chunks(module, x, sizes)
            errors = [float((a - b).abs().max()) for a, b in zip(streamed.unbind(1), whole.unbind(1), strict=True)]
            yield compared(did, streamed, whole, lines, error_by_position=errors)


def stream_lines(subject: Subject, sizes: Sequence[int]) -> list[str]:
    """Python that makes `a`, chunk by chunk, and `b`, whole."""
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
    """Gradients for the input and the parameters pass through the states as they pass through the whole."""
    subject.require_stream()
    if subject.adapter.in_place:
        raise NotApplicableError("later chunks write into the cache, which autograd refuses: decoding alone")
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
    actual = torch.autograd.grad((streamed * weights).sum(), of, allow_unused=True, materialize_grads=True)
    return first_failure(
        compared(f"{did}; of {name}", a, b, lines) for (name, _), a, b in zip(wanted, actual, expected, strict=True)
    )


def states_unchanged(subject: Subject) -> Observation:
    """A state that was continued is as it was, and continues a second time to the same outputs."""
    subject.require_stream()
    if subject.adapter.in_place:
        raise NotApplicableError("the state is a cache that later chunks write into; copy.deepcopy of it branches")
    module, few = subject.module(), 3
    past, x = subject.draw(seq_len=few), subject.draw(seq_len=1, seed=2)
    lines = [
        "torch.set_grad_enabled(False)",
        "state = None",
        f"for x in draw(2, {few}, {subject.d_model}).split(1, dim=1):",
        *(f"    {line}" for line in subject.adapter.chunk_lines),
        f"x, kept = draw(2, 1, {subject.d_model}, seed=2), state",
        *subject.adapter.chunk_lines,
        "b, state = y, kept",
        *subject.adapter.chunk_lines,
        "a = y",
    ]
    with torch.no_grad():
        state = None
        for part in past.split(1, dim=1):
            _, state = subject.adapter.chunk(module, part, state)
        before = copied(state)
        first, _ = subject.adapter.chunk(module, x, state)
        first = first.clone()
        again, _ = subject.adapter.chunk(module, x, state)
    seen = compared("a state was continued twice with the same position", again, first, lines)
    same = all(torch.equal(a, b) for a, b in zip(tensors_of(state), tensors_of(before), strict=True))
    if seen.passed and not same:
        return Observation(False, seen.did, "the state's tensors hold other numbers", "the state is unchanged", lines)
    return seen
