"""Compiled, exported and traced mixers agree with eager ones in float64, gradients included."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.export import Dim
from torch.utils._pytree import tree_leaves

from tests.cases import (
    D_MODEL,
    KINDS,
    OF_THEIR_OWN_OP,
    Case,
    assert_states_close,
    cases,
    draw,
    randomise,
    trained_by_outputs,
)
from tests.tolerances import assert_close
from zoo import Backbone, create_mixer, list_mixers
from zoo.blocks import Autoencoder
from zoo.coefficient import recording
from zoo.contract import SequenceMixer

pytestmark = pytest.mark.usefixtures("unchecked_shapes")  # the checker cannot be traced


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def assert_agrees(compiled: nn.Module, eager: nn.Module, *inputs: Tensor) -> None:
    """Assert equal outputs, and equal gradients of the parameters and of the first input if it requires one."""
    leaves = [t for t in inputs[:1] if t.requires_grad] + trained_by_outputs(eager)
    actual, expected = compiled(*inputs), eager(*inputs)
    assert_close(actual, expected)
    assert_close(*(torch.autograd.grad(y.square().sum(), leaves) for y in (actual, expected)))


@pytest.mark.slow
@cases(variants=False)
def test_forward_agrees_with_eager(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator)
    x = draw(2, 40, D_MODEL, generator=generator).requires_grad_()
    assert_agrees(torch.compile(mixer, backend="aot_eager", fullgraph=True), mixer, x)


@pytest.mark.slow
@cases(variants=False, names=random.Random("stream").sample(list_mixers(), 16))
def test_stream_with_lengths_agrees_with_eager(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator)
    x, lengths = draw(2, 4, D_MODEL, generator=generator), torch.tensor([4, 2])
    stream = torch.compile(mixer.stream, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        _, state = mixer.stream(x)
        actual, expected = stream(x, state, lengths), mixer.stream(x, state, lengths)
    assert_close(actual[0], expected[0])
    assert_states_close(actual[1], expected[1])


@pytest.mark.slow
def test_a_backbone_agrees_with_eager(generator: torch.Generator) -> None:
    model = Backbone({"name": "hybrid", "attention": {"d_conv": 3}}, D_MODEL, 2, vocab_size=7, n_outputs=7, d_conv=2)
    model = randomise(model, generator).double()
    tokens = torch.randint(7, (2, 5), generator=generator)
    assert_agrees(torch.compile(model, backend="aot_eager", fullgraph=True), model, tokens, torch.tensor([5, 3]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rg_lru", "gated_delta_net", "ssd"])
def test_a_new_sequence_length_does_not_recompile(name: str, generator: torch.Generator) -> None:
    mixer, counter = Case(name, {}).create(generator), CompileCounter()
    compiled = torch.compile(mixer, backend=counter, dynamic=True)
    for seq_len in (65, 66, 100, 127):  # a whole number of chunks needs no padding, hence another program
        x = draw(1, seq_len, D_MODEL, generator=generator)
        assert_close(compiled(x), mixer(x))
    assert counter.frame_count == 1


@pytest.mark.slow
def test_recording_after_compilation_is_seen(generator: torch.Generator) -> None:
    """Dynamo guards on the mode of `coefficient`: code compiled without recording does not run while recording."""
    mixer, x = Case("attention", {}).create(generator), draw(2, 5, D_MODEL, generator=generator)
    compiled = torch.compile(mixer, backend="eager")
    with torch.no_grad():
        expected = compiled(x)
        with recording() as tape:
            compiled(x)
        assert len(tape.kept) == 2  # queries and keys
        assert_close(compiled(x), expected)


class Shapes(torch.fx.Interpreter):
    """Run an exported program and assert that every tensor has the shape recorded in the program."""

    def run_node(self, n: torch.fx.Node) -> Any:
        found = super().run_node(n)
        for real, recorded in zip(tree_leaves(found), tree_leaves(n.meta.get("val")), strict=True):
            if isinstance(recorded, Tensor):
                sizes = (size.node.hint if isinstance(size, torch.SymInt) else size for size in recorded.shape)
                assert real.shape == torch.Size(sizes), n.target
        return found


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_THEIR_OWN_OP)
def test_an_exported_program_takes_sequences_of_any_length(name: str, generator: torch.Generator) -> None:
    mixer = create_mixer(name, D_MODEL).eval()
    lengths = Dim("seq", min=2, max=1000)
    with torch.no_grad():
        example = draw(2, 100, D_MODEL, generator=generator).float()
        program = torch.export.export(mixer, (example,), dynamic_shapes=({1: lengths},))
        Shapes(program.module()).run(example)
        for seq_len in (2, 63, 1000):
            x = draw(2, seq_len, D_MODEL, generator=generator).float()
            assert_close(program.module()(x), mixer(x))


@pytest.mark.parametrize(
    "build",
    [
        lambda: create_mixer("diagonal_ssm", D_MODEL),
        lambda: create_mixer("mamba3", D_MODEL),
        lambda: create_mixer("attention", D_MODEL, sink="constant"),
        lambda: Autoencoder(create_mixer("lstm", D_MODEL), decode_from=5),
    ],
)
def test_an_exported_program_takes_batches_of_any_size(
    build: Callable[[], SequenceMixer], generator: torch.Generator
) -> None:
    mixer, batch = build().eval(), Dim("batch", min=2, max=100)
    x, lengths = draw(5, 9, D_MODEL, generator=generator).float(), torch.tensor([9, 5, 3, 9, 0])
    program = torch.export.export(mixer, (x[:3], lengths[:3]), dynamic_shapes=({0: batch}, {0: batch}))
    assert_close(program.module()(x, lengths), mixer(x, lengths))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # a trace has constant sizes
@cases(variants=False, by_default=KINDS)
def test_a_trace_agrees_with_eager_at_its_own_shape(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator)
    x, other = (draw(2, 40, D_MODEL, generator=generator) for _ in range(2))
    traced = torch.jit.trace(mixer, (x,), check_trace=False)
    assert_close(traced(other), mixer(other))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex:UserWarning")
@cases(variants=False, names=random.Random("inductor").sample(OF_THEIR_OWN_OP, 8))  # ten seconds each
def test_inductor_agrees_with_eager(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator)
    x = draw(2, 5, D_MODEL, generator=generator).requires_grad_()
    assert_agrees(torch.compile(mixer, fullgraph=True), mixer, x)
