"""The contract of `SequenceMixer`, for every registered mixer: references, gradients, padding, states, errors.

Tests use float64 and the tolerance of tests/tolerances.py unless noted.
"""

from __future__ import annotations

import copy
import functools
import inspect
import io
import math
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests import holding, reference, refused, slow
from tests.cases import (
    ALL_CASES,
    CHOOSING,
    D_MODEL,
    DEFAULTS,
    KINDS,
    OF_THEIR_OWN_OP,
    Case,
    assert_rows_alone,
    assert_states_close,
    cases,
    draw,
    drawn,
    in_chunks,
    label,
    parameters,
    randomise,
    some_variants,
    trained_by_outputs,
)
from tests.tolerances import assert_close, tolerance
from zoo import Backbone, create_mixer, detach_state, list_mixers, map_state, move_state, reorder_state, state_nbytes
from zoo.check import Property, properties
from zoo.check.outcome import relative_error
from zoo.check.subject import Subject
from zoo.contract import SequenceMixer
from zoo.mixers.attention import AttentionState
from zoo.modules import listed
from zoo.registry import mixer_class
from zoo.state import state_tensors
from zoo.theory.operator import check_offset, interaction

SEED = 20_251_217

HELD = (
    "causality rows_independent inputs_unchanged chunked one_by_one stream_gradients states_unchanged "
    "parameters_trained deep_copy state_dict float32 bfloat16 operator"
)
"""Properties of `zoo.check` that every mixer must pass; tests below cover padding, lengths and more."""
OF_EACH_KIND = (
    *("causality", "rows_independent"),
    *("inputs_unchanged", "one_by_one", "float32", "deep_copy", "state_dict"),
)
"""Properties that the default run checks for one mixer per kind of state. The first two follow from agreement with the
reference, which is causal and sees one row; the others belong to the base class."""
HELD_BY_DEFAULTS = ("deterministic", "no_global_draws", "eval_without_dropout", "lengths", "tiny_inputs", "pickled")


def rounds_alike(case: Case) -> bool:
    """Whether the case selects the same positions in reduced precision."""
    return case.name not in CHOOSING or not case.options


def held() -> list[Any]:
    """Pairs of case and property. Variants are slow here: by default only the reference and padding test them."""
    pairs = [(case, each) for each in properties(*HELD.split()) for case in (*DEFAULTS, *some_variants(each.name))]
    pairs = [pair for pair in pairs if pair[1].name != "bfloat16" or rounds_alike(pair[0])]
    pairs += [(case, each) for case in DEFAULTS for each in properties(*HELD_BY_DEFAULTS)]
    shared = {*OF_EACH_KIND, *HELD_BY_DEFAULTS}
    return [
        slow(
            case,
            each,
            unless=not case.options and (case.name in KINDS or each.name not in shared),
            id=f"{label(case)}-{each}",
        )
        for case, each in pairs
    ]


def gradients(y: Tensor, weights: Tensor, x: Tensor, module: nn.Module) -> list[Tensor]:
    """Gradients of sum(weights * y) for the input and every parameter; a parameter that y does not use is an error."""
    return list(torch.autograd.grad((y * weights).sum(), [x, *trained_by_outputs(module)]))


# Outputs, streams, gradients and operator.


@cases()
def test_forward_is_the_reference(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator)
    for seq_len in (1, 40) if case.options else (1, 2, 7, 63):
        x = draw(2, seq_len, D_MODEL, generator=generator)
        assert_close(mixer(x), case.reference(mixer, x))


@cases(variants=False, by_default=KINDS)
def test_forward_and_stream_are_the_reference_at_length_1000(case: Case, generator: torch.Generator) -> None:
    mixer, x = case.create(generator), draw(1, 1000, D_MODEL, generator=generator)
    expected = case.reference(mixer, x)
    with torch.no_grad():
        assert_close(mixer(x), expected)
        assert_close(in_chunks(mixer, x, [1, 130, 1, 500, 368])[0], expected)


@functools.cache
def subject(name: str) -> Subject:
    """The check's subject for the case with this label, cached: properties work on copies of its module."""
    case = next(case for case in ALL_CASES if label(case) == name)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)
        module = case.create(torch.Generator().manual_seed(SEED))
        return Subject(module, d_model=D_MODEL, seq_len=12, dtype=torch.float64)


@pytest.mark.parametrize(("case", "each"), held())
def test_the_property_holds(case: Case, each: Property) -> None:
    finding = each.find(subject(label(case)))
    finding.raise_if_failed()
    # `zoo check` allows modules to skip the operator, but the zoo's mixers must have one.
    may_skip = each.name in HELD_BY_DEFAULTS or (case.name, each.name) == ("identity", "parameters_trained")
    assert finding.verdict == "passed" or may_skip, finding.detail


class Streaming(nn.Module):
    """`stream` as a function of tensors only, so that gradcheck can perturb the state too."""

    def __init__(self, mixer: SequenceMixer, state: Any) -> None:
        super().__init__()
        self.mixer = mixer
        self.tensors = list(state_tensors(state))
        self.state = state

    def forward(self, x: Tensor, *floats: Tensor) -> tuple[Tensor, ...]:
        given = iter(floats)
        state = map_state(lambda t: next(given) if _differentiable(t) else t, self.state)
        y, state = self.mixer.stream(x, state)
        return y, *(t for t in state_tensors(state) if _differentiable(t))


def _differentiable(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


@cases(variants="slow", by_default=OF_THEIR_OWN_OP)
def test_gradients_of_input_state_and_parameters_pass_gradcheck(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator).eval()  # in training some add a loss of their own, detached from the input
    x = draw(2, 4, D_MODEL, generator=generator).requires_grad_()
    state = detach_state(mixer.stream(draw(2, 3, D_MODEL, generator=generator))[1])
    function = Streaming(mixer, state)
    names = [name for name, _ in function.named_parameters()]
    floats = [t.requires_grad_() for t in function.tensors if _differentiable(t)]

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        values, rest = inputs[: len(names)], inputs[len(names) :]
        return torch.func.functional_call(function, dict(zip(names, values, strict=True)), rest)

    values = [p.detach().clone().requires_grad_() for p in function.parameters()]
    assert torch.autograd.gradcheck(call, (*values, x, *floats), fast_mode=True)


@cases(variants="slow", by_default=KINDS)
def test_the_operators_offset_comes_from_biases(case: Case, generator: torch.Generator) -> None:
    """With biases at zero the offset is exactly zero, so no part of the value path is marked as a coefficient.

    Mixers with constants that are not biases have the offset of `reference.OFFSETS`.
    """
    mixer, x = case.create(generator), draw(2, 7, D_MODEL, generator=generator)
    if case.name in reference.OFFSETS:
        expected = [reference.OFFSETS[case.name](parameters(mixer), row, **case.options) for row in x.numpy()]
        assert_close(interaction(mixer, x).offset, np.stack(expected))
    else:
        check_offset(mixer, x)


@cases(variants="slow", names=reference.OPERATORS)  # for the other mixers tests/theory compares the rank
def test_the_operator_equals_its_closed_form(case: Case, generator: torch.Generator) -> None:
    mixer, x = case.create(generator), draw(2, 7, D_MODEL, generator=generator)
    expected = [reference.OPERATORS[case.name](parameters(mixer), row, **case.options) for row in x.numpy()]
    assert_close(interaction(mixer, x).operator, np.stack(expected))


# Causality, batches, padding.


@cases(variants="slow", by_default=KINDS)
def test_the_operator_has_no_entry_in_the_future(case: Case, generator: torch.Generator) -> None:
    """Nor beyond a window or kernel: entry (i, j) is nonzero exactly if output i has a gradient at input j."""
    mixer, x = case.create(generator), draw(1, 7, D_MODEL, generator=generator).requires_grad_()
    entries = interaction(mixer, x.detach()).operator[0].flatten(2).any(dim=2)
    y = mixer(x)
    reached = [torch.autograd.grad(y[:, i].square().sum(), x, retain_graph=True)[0][0].any(dim=1) for i in range(7)]
    assert torch.equal(entries, torch.stack(reached))
    assert not entries.triu(diagonal=1).any()
    assert case.name == "dsa" or entries.diagonal().all()  # dsa may leave out the current position


@pytest.mark.parametrize(
    ("case", "padding"),
    [
        slow(
            case,
            padding,
            unless=not case.options and (padding == 1e9 or (case.name in KINDS and padding != math.inf)),
            id=f"{label(case)}-{padding}",
        )
        for padding in (1e9, math.nan, math.inf)
        for case in (drawn("padding") if padding == 1e9 else DEFAULTS)
    ],
)
def test_padding_affects_no_output_and_no_gradient(case: Case, padding: float, generator: torch.Generator) -> None:
    """In three chunks, two with padding, each row equals its valid positions run alone; gradients too."""
    mixer = case.create(generator)
    sizes, ragged = [6, 5, 3], torch.tensor([[6, 0, 4], [2, 5, 0], [3, 3, 3]])
    valid = torch.cat([torch.arange(n) < each[:, None] for n, each in zip(sizes, ragged, strict=True)], dim=1)
    x = draw(3, sum(sizes), D_MODEL, generator=generator).masked_fill(~valid.unsqueeze(2), padding)

    def streamed(x: Tensor) -> Tensor:
        state, outputs = None, []
        for chunk, lengths in zip(x.split(sizes, dim=1), [*ragged[:2], None], strict=True):
            y, state = mixer.stream(chunk, state, lengths)
            outputs.append(y)
        return torch.cat(outputs, dim=1)

    assert_rows_alone(streamed, mixer, x, list(valid), generator)


@pytest.mark.usefixtures("unchecked_shapes")  # the annotation asks for signed integers, the code does not
@cases(variants=False, names=KINDS)
def test_lengths_of_any_integer_type_are_the_same(case: Case, generator: torch.Generator) -> None:
    """120 of 300 positions after 140: sums and differences with these lengths would overflow 8 bits."""
    mixer, x = case.create(generator, torch.float32), draw(2, 440, D_MODEL, generator=generator, dtype=torch.float32)
    with torch.no_grad():
        _, state = mixer.stream(x[:, :140])
        expected, expected_state = mixer.stream(x[:, 140:], state, torch.tensor([120, 3]))
        for lengths in (*(torch.tensor([120, 3], dtype=t) for t in (torch.uint8, torch.int8)), [120, 3], (120, 3)):
            y, after = mixer.stream(x[:, 140:], state, lengths)
            assert torch.equal(y, expected)
            assert_states_close(after, expected_state)


@cases(variants=False, by_default=KINDS)
def test_an_empty_batch_passes(case: Case, generator: torch.Generator) -> None:
    mixer, x = case.create(generator), draw(0, 5, D_MODEL, generator=generator)
    assert mixer(x).shape == (0, 5, D_MODEL)
    assert mixer(x, torch.zeros(0, dtype=torch.int64)).shape == (0, 5, D_MODEL)


@cases(variants=False, names=KINDS)
def test_activation_checkpointing_changes_nothing(case: Case, generator: torch.Generator) -> None:
    """With activation checkpointing outputs, states and gradients are the same."""
    mixer, past = case.create(generator), draw(2, 3, D_MODEL, generator=generator)
    x, lengths = draw(2, 6, D_MODEL, generator=generator).requires_grad_(), torch.tensor([6, 4])
    state = detach_state(mixer.stream(past)[1])
    weights = draw(2, 6, mixer.d_out, generator=generator)
    for arguments in ((x, state), (x, state, lengths)):
        expected, expected_state = mixer.stream(*arguments)
        y, after = checkpoint(mixer.stream, *arguments, use_reentrant=False)
        assert_close(y, expected)
        assert_states_close(after, expected_state)
        assert_close(gradients(y, weights, x, mixer), gradients(expected, weights, x, mixer))


# Transforms of torch.func.


@pytest.mark.filterwarnings("ignore:There is a performance drop.* aten:UserWarning")  # torch's own kernels
@cases(variants=False, by_default=KINDS)
def test_per_sample_gradients_by_vmap_are_those_of_single_samples(case: Case, generator: torch.Generator) -> None:
    mixer, other = case.create(generator), case.create(generator)
    x, lengths = draw(3, 40, D_MODEL, generator=generator), torch.tensor([40, 7, 33])
    values = dict(other.named_parameters())

    def loss(values: dict[str, Tensor], row: Tensor, length: Tensor) -> Tensor:
        return torch.func.functional_call(mixer, values, (row[None], length[None])).square().sum()

    of_x, of_values = torch.func.vmap(torch.func.grad(loss, argnums=(1, 0)), in_dims=(None, 0, 0))(values, x, lengths)
    for number, (row, length) in enumerate(zip(x, lengths, strict=True)):
        row = row.clone().requires_grad_()
        total, inputs = other(row[None], length[None]).square().sum(), [row, *values.values()]
        own = torch.autograd.grad(total, inputs, materialize_grads=True)
        assert_close([of_x[number], *(gradient[number] for gradient in of_values.values())], own)


@pytest.mark.filterwarnings("ignore:There is a performance drop.* aten:UserWarning")  # torch's own kernels
@cases(variants=False, by_default=(*KINDS, "forgetting_attention"))
def test_vmap_over_batches_equals_one_large_batch(case: Case, generator: torch.Generator) -> None:
    mixer, x = case.create(generator), draw(2, 3, 9, D_MODEL, generator=generator).requires_grad_()
    y, rows = torch.func.vmap(mixer)(x), mixer(x.flatten(0, 1)).unflatten(0, (2, 3))
    assert_close(y, rows)
    weights = draw(*y.shape, generator=generator)
    assert_close(gradients(y, weights, x, mixer), gradients(rows, weights, x, mixer))


ONCE_DIFFERENTIABLE = (
    "attention gated_attention differential_attention mla dsa nsa head_hybrid sliding_attention selective_ssm hybrid "
    "parallel_hybrid"
)
"""Mixers on torch's attention or the selective scan, whose kernels have no second derivative."""


@cases(variants=False, by_default=KINDS)
def test_second_derivatives_are_right_or_refused(case: Case, generator: torch.Generator) -> None:
    mixer, x = case.create(generator), draw(1, 34, D_MODEL, generator=generator).requires_grad_()

    def slope(x: Tensor) -> Tensor:
        return torch.autograd.grad(mixer(x).square().sum(), x, create_graph=True)[0].square().sum()

    if case.name in ONCE_DIFFERENTIABLE.split():
        with pytest.raises((NotImplementedError, RuntimeError), match=r"is not implemented|is differentiable once"):
            slope(x).backward()
        return
    (second,) = torch.autograd.grad(slope(x), x)
    functional = torch.func.grad(lambda x: torch.func.grad(lambda x: mixer(x).square().sum())(x).square().sum())
    size = second.abs().max()  # for some in the thousands, so that roundoff dominates entries near zero
    assert_close(functional(x.detach()) / size, second / size)


# Parameters.


@cases(variants="slow")
def test_defaults_give_every_parameter_a_gradient_from_the_start(case: Case, generator: torch.Generator) -> None:
    """A parameter that starts at zero must not block the gradient of those before it."""
    mixer = create_mixer(case.name, D_MODEL, **case.options).double()
    loss = mixer(draw(2, 7, D_MODEL, generator=generator).requires_grad_()).square().sum()
    (loss if mixer.own_loss is None else loss + mixer.own_loss).backward()
    assert [name for name, p in mixer.named_parameters() if p.grad is None or not p.grad.any()] == []


class Adapted(nn.Linear):
    """A linear map with an extra term, like a LoRA adapter."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.sum(-1, keepdim=True)


@cases(variants=False)
def test_replacing_a_linear_map_by_a_subclass_acts_or_is_refused(case: Case, generator: torch.Generator) -> None:
    mixer, x = case.create(generator), draw(2, 9, D_MODEL, generator=generator)
    without, apart = mixer(x), listed(mixer, "apart")
    for name, module in mixer.named_modules():
        if type(module) is nn.Linear and f"{name}.weight" not in apart:
            adapted = copy.deepcopy(mixer)
            adapted.get_submodule(name).__class__ = Adapted
            try:
                silent = torch.equal(adapted(x), without)
            except TypeError as error:
                silent = Adapted.__name__ not in str(error)
            assert not silent, name


@cases(variants="slow")
def test_reset_parameters_resets_every_parameter(case: Case, generator: torch.Generator) -> None:
    fresh = create_mixer(case.name, D_MODEL, **case.options)
    changed = randomise(copy.deepcopy(fresh), generator)
    for mixer in (fresh, changed):
        torch.default_generator.manual_seed(SEED)
        mixer.reset_parameters()
    for (name, a), b in zip(fresh.named_parameters(), changed.parameters(), strict=True):
        assert torch.equal(a, b), name


@cases()
def test_no_weight_decay_lists_biases_norms_and_dynamics(case: Case) -> None:
    mixer = create_mixer(case.name, D_MODEL, **case.options)
    names = mixer.no_weight_decay()
    assert names <= {name for name, _ in mixer.named_parameters()}
    spared = ("bias", "norm.weight", "A_log", "log_dt", "log_rate", "frequency", "slopes", "sink_logit")
    decayed = {"B_bias", "C_bias"} if case.name == "mamba3" else set()  # as in the authors' code
    ones = {name for name, p in mixer.named_parameters() if bool((p == 1).all())}
    assert {name for name, _ in mixer.named_parameters() if name.endswith(spared)} - names == decayed
    assert ones - names <= decayed
    assert listed(mixer, "slow") <= {name for name, _ in mixer.named_parameters()}


@pytest.mark.parametrize(
    ("name", "decayed"),
    [
        ("slstm", {"weight", "conv.weight"}),  # NX-AI/xlstm, xlstm/utils.py
        ("s5", {"C"}),  # lindermanlab/S5, s5/train_helpers.py, "standard"
        ("lru", {"C"}),  # NicolasZucchet/minimal-LRU, lru/train_helpers.py
        ("s4d", {"C", "out_proj.weight"}),  # state-spaces/s4, models/s4/s4d.py
        ("hyena", {"in_proj.weight", "conv.weight", "out_proj.weight"}),  # HazyResearch/safari, HyenaFilter
        # BlinkDL/RWKV-LM: RWKV-7 (RWKV-v7/train_temp) decays names with ".weight", RWKV-6 (RWKV-v5) none with _w1, _w2
        ("rwkv7", {f"{each}_proj.weight" for each in ("r", "k", "v", "out")}),
        ("rwkv6", {f"{each}_proj.weight" for each in ("r", "k", "v", "gate", "out")}),
    ],
)
def test_weight_decay_applies_to_the_same_parameters_as_in_the_authors_code(name: str, decayed: set[str]) -> None:
    mixer = create_mixer(name, D_MODEL)
    assert {name for name, _ in mixer.named_parameters()} - mixer.no_weight_decay() == decayed


# States.


@cases(variants="slow", by_default=KINDS)
def test_state_bytes_is_the_size_of_streams_state(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        mixer.to(dtype)
        for batch_size, seq_len in ((3, 1), (2, 33)):
            with torch.no_grad():
                _, state = mixer.stream(draw(batch_size, seq_len, D_MODEL, generator=generator, dtype=dtype))
            assert mixer.state_bytes(seq_len, batch_size, dtype) == state_nbytes(state)
            storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in state_tensors(state)}
            assert sum(storages.values()) <= 2 * state_nbytes(state)  # not a view of the whole chunk
        assert all(parameter.dtype == dtype for parameter in mixer.parameters())


@cases(variants=False, by_default=KINDS)
def test_an_initial_state_can_be_learned(case: Case, generator: torch.Generator) -> None:
    mixer, x = case.create(generator).eval(), (2 * draw(2, 20, D_MODEL, generator=generator)).requires_grad_()
    _, state = mixer.stream(x)
    learned = map_state(lambda t: nn.Parameter(t.detach(), requires_grad=t.requires_grad), state)
    y, _ = mixer.stream(x, learned)
    y.square().sum().backward()
    assert all(t.grad.any() for t in state_tensors(learned) if t.requires_grad and t.numel())


@cases(variants=False, names=KINDS)
def test_a_state_is_moved_saved_and_loaded(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator)
    past, x = (draw(2, 4, D_MODEL, generator=generator) for _ in range(2))
    _, state = mixer.stream(past, lengths=torch.tensor([4, 1]))
    moved = move_state(state, "meta")
    assert type(moved) is type(state)
    for there, here in zip(state_tensors(moved), state_tensors(state), strict=True):
        assert (there.device.type, there.shape, there.dtype) == ("meta", here.shape, here.dtype)
    file = io.BytesIO()
    torch.save(detach_state(state), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert_states_close(loaded, state)
    assert torch.equal(mixer.stream(x, loaded)[0], mixer.stream(x, state)[0])


@cases(variants=False, names=KINDS)
def test_a_reordered_state_continues_as_its_rows(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator)
    past, x = (draw(3, 4, D_MODEL, generator=generator) for _ in range(2))
    index = torch.tensor([2, 0, 0, 1])
    _, state = mixer.stream(past, lengths=torch.tensor([4, 1, 3]))
    expected, _ = mixer.stream(x, state)
    y, _ = mixer.stream(x[index], reorder_state(state, index))
    assert_close(y, expected[index])


def test_threads_stream_batches_of_different_sizes_through_one_mixer(generator: torch.Generator) -> None:
    mixer, often = create_mixer("lstm", D_MODEL).double(), sys.getswitchinterval()

    def streamed(x: Tensor) -> Tensor:
        with torch.no_grad():
            return in_chunks(mixer, x, [1] * x.shape[1])[0]

    batches = [draw(n, 200, D_MODEL, generator=generator) for n in (1, 2, 3, 4)]
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(len(batches)) as pool:
            found = list(pool.map(streamed, batches))
    finally:
        sys.setswitchinterval(often)
    assert_close(found, [mixer(x) for x in batches])


# Reduced precision.


@cases(variants="slow", by_default=KINDS)
def test_autocast_stays_finite_and_near(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator, torch.float32)
    x = draw(2, 63, D_MODEL, generator=generator, dtype=torch.float32).requires_grad_()
    expected = mixer(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, (streamed, _) = mixer(x), in_chunks(mixer, x, [1, 20, 42])
        padded = mixer(x, torch.tensor([63, 20]))
    y.float().square().mean().backward()
    assert all(p.grad.isfinite().all() for p in trained_by_outputs(mixer))
    for actual, target in ((y, expected), (streamed, expected), (padded[1, :20], expected[1, :20])):
        assert actual.isfinite().all()
        assert not rounds_alike(case) or relative_error(actual, target) < tolerance(torch.bfloat16)["rtol"]


@cases(variants="slow")
def test_a_repr_shows_the_options(case: Case) -> None:
    mixer = create_mixer(case.name, D_MODEL, **case.options)
    assert set(mixer.options) == set(inspect.signature(type(mixer)).parameters)
    shown = mixer.extra_repr()
    assert f"d_model={D_MODEL}" in shown
    assert [n for n, v in mixer.options.items() if f"{n}={getattr(mixer, n, v)!r}" not in shown] == []
    given = {name: value for name, value in case.options.items() if name != "pattern"}  # patterns are normalised
    assert mixer.options | given == mixer.options
    assert shown in repr(mixer)
    assert "Parameter containing" not in repr(mixer)
    assert copy.deepcopy(mixer).extra_repr() == shown


# Errors, in one line.


def assert_refused(call: Callable[[], object], word: str, *words: str) -> None:
    """Assert that the call raises ValueError with a one-line message that has all these words."""
    with refused(holding(word, *words)):
        call()


@pytest.mark.usefixtures("unchecked_shapes")
@cases(variants=False, names=KINDS)
def test_wrong_input_is_refused(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator)
    for shape in ((5, D_MODEL), (2, 5, D_MODEL + 1), (2, 0, D_MODEL), (1, 2, 5, D_MODEL)):
        assert_refused(lambda shape=shape: mixer(torch.zeros(shape, dtype=torch.float64)), "x must be", str(shape))
    for dtype in (torch.int64, torch.bool, torch.complex128):
        assert_refused(lambda dtype=dtype: mixer(torch.zeros(2, 5, D_MODEL, dtype=dtype)), "floating", str(dtype))


@pytest.mark.usefixtures("unchecked_shapes")
@cases(variants=False, names=KINDS)
def test_wrong_lengths_are_refused(case: Case, generator: torch.Generator) -> None:
    mixer, x = case.create(generator), draw(2, 5, D_MODEL, generator=generator)
    for values in ([5, 6], [-1, 5]):
        assert_refused(lambda values=values: mixer(x, torch.tensor(values)), "0..5", f"{min(values)}..{max(values)}")
    for lengths in (torch.tensor([5.0, 5.0]), torch.tensor([5]), torch.tensor([[5, 5]]), torch.tensor([True, False])):
        assert_refused(lambda lengths=lengths: mixer(x, lengths), "lengths must be integers", "(2,)")
    for lengths in ([5.0, 5.0], [True, True], ["5", "5"], [[5, 5]], 5, np.array([5, 5])):
        assert_refused(
            lambda lengths=lengths: mixer(x, lengths), "lengths must be a tensor, list or tuple of 2 integers"
        )
    assert_refused(lambda: mixer(x, [5]), "lengths must be integers of shape (2,)", "(1,)")
    assert_refused(lambda: mixer(x, torch.zeros(2, dtype=torch.int64, device="meta")), "lengths are on meta, x on cpu")


@functools.cache
def state_of(name: str) -> Any:
    """The state of another mixer after input of the same shape."""
    return create_mixer(name, D_MODEL).double().stream(torch.zeros(2, 5, D_MODEL, dtype=torch.float64))[1]


@pytest.mark.usefixtures("unchecked_shapes")
@cases(variants=False, names=KINDS)
def test_wrong_states_are_refused(case: Case, generator: torch.Generator) -> None:
    mixer, x = case.create(generator), draw(2, 5, D_MODEL, generator=generator)
    _, state = mixer.stream(x)
    wrong = {"no state": torch.zeros(2)}
    if list(state_tensors(state)):  # some states have no tensors
        wrong |= {
            "other batch": mixer.stream(x[:1])[1],
            "other dtype": mixer.empty_state(2, torch.float32),
            "other device": move_state(state, "meta"),
            "other width": map_state(lambda t: torch.cat((t, t[..., -1:]), dim=-1), state),
            "plain tuple": tuple(state_tensors(state)),
            "cut short": state[:-1],
        }
    for other in list_mixers():
        if mixer_class(other) is not type(mixer):
            wrong[other] = state_of(other)
    for value in wrong.values():
        assert_refused(lambda value=value: mixer.stream(x, value), type(mixer).__name__)


@cases(variants=False, names=KINDS)
def test_a_state_from_before_a_change_of_dtype_is_refused(case: Case, generator: torch.Generator) -> None:
    """The cached check of an earlier call must not hold for another precision."""
    mixer, x = case.create(generator).float(), draw(2, 5, D_MODEL, generator=generator)
    _, state = mixer.stream(x.float())
    _, state = mixer.stream(x.float(), state)
    if list(state_tensors(state)):
        mixer.double()
        assert_refused(lambda: mixer.stream(x, state), type(mixer).__name__, "expected torch.", "got torch.")


def test_map_state_refuses_states_of_different_structure() -> None:
    one, state = torch.ones(2), AttentionState(*torch.ones(4, 2).unbind(0))
    summed = map_state(torch.add, (one, (one, state)), (one, (one, state)))
    assert all(torch.equal(t, 2 * one) for t in state_tensors(summed))
    for other in ((one,), (one, one, one), (one, (one,)), (one, (one, state[:3]))):
        with pytest.raises((ValueError, TypeError)):
            map_state(torch.add, (one, (one, state)), other)


@pytest.mark.usefixtures("unchecked_shapes")
def test_keys_and_values_of_different_lengths_are_refused(generator: torch.Generator) -> None:
    mixer, x = create_mixer("attention", D_MODEL).double(), draw(2, 5, D_MODEL, generator=generator)
    _, state = mixer.stream(x)
    cut = state._replace(values=state.values[:, :, 1:])
    assert_refused(lambda: mixer.stream(x, cut), "Attention", "values has 4 slots, keys has 5")


@pytest.mark.usefixtures("unchecked_shapes")
@cases(variants=False)
def test_unknown_options_and_sizes_are_refused(case: Case) -> None:
    assert_refused(lambda: create_mixer(case.name, D_MODEL, d_stat=3), "d_stat", "choose from")
    for d_model in (0, -8, 2.5, True):
        assert_refused(lambda d_model=d_model: create_mixer(case.name, d_model), "d_model must be a positive integer")
    mixer = create_mixer(case.name, D_MODEL)
    for size in (0, -1, 1.5):
        assert_refused(lambda size=size: mixer.state_bytes(size), "seq_len must be a positive integer")
        assert_refused(lambda size=size: mixer.state_bytes(1, size), "batch_size must be a positive integer")


MAY_BE_ZERO = ("d_rope", "depth", "norm_groups", "n_levels")
NEEDS = {
    ("attention", "d_rope"): {"position": "rope"},
    ("sliding_attention", "d_rope"): {"position": "rope"},
    ("attention", "max_seq_len"): {"position": "relative"},
    ("conv", "max_seq_len"): {"kernel": "implicit"},
    ("conv", "d_filter"): {"kernel": "implicit"},
    ("conv", "n_frequencies"): {"kernel": "implicit"},
    ("factorized", "d_head"): {"kernel": "bilinear"},
}
"""{(mixer, option): options that the option requires}."""


@pytest.mark.usefixtures("unchecked_shapes")
@cases(variants=False)
def test_sizes_must_be_positive_integers(case: Case) -> None:
    for option, parameter in inspect.signature(mixer_class(case.name)).parameters.items():
        if not parameter.annotation.startswith("int") or option == "d_model":
            continue
        smallest = 0 if option in MAY_BE_ZERO or (case.name, option) == ("attention", "d_conv") else 1
        for value in (smallest - 1, True):
            options = {option: value, **NEEDS.get((case.name, option), {})}
            assert_refused(lambda options=options: create_mixer(case.name, D_MODEL, **options), option, str(value))


DELTAS = "delta_net gated_delta_net delta_product kda head_hybrid"
OF_EIGHT = (
    "attention forgetting_attention path_attention linear_attention gated_linear_attention delta_net "
    "gated_delta_net delta_product kda retnet lightning_attention hgrn2 rwkv7 capped_mlstm "
    "comba mesa_net gsa titans rwkv6 "
    "sliding_attention slstm head_hybrid deltaformer mla dsa moba nsa"
)
"""Mixers whose n_heads must divide d_model."""
NAN = float("nan")
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (OF_EIGHT, {"n_heads": 3}, "d_model=8 n_heads=3"),
    (
        "attention forgetting_attention path_attention sliding_attention moba",
        {"n_kv_heads": 3},
        "n_heads=4 n_kv_heads=3",
    ),
    ("attention sliding_attention", {"n_heads": 8, "position": "rope"}, "d_head 1"),
    ("attention", {"position": "ropes"}, "position rope alibi"),
    ("attention", {"sink": "bos"}, "alibi relative"),
    ("attention", {"position": "rope", "rope_base": math.inf}, "rope_base inf"),
    ("gated_attention", {"gate": "heads"}, "'head'"),
    ("gated_attention", {"d_rope": 3}, "d_rope d_head=4 3"),
    ("gated_attention", {"d_rope": 6}, "d_rope d_head=4 6"),
    ("gated_attention", {"n_heads": 8}, "d_rope d_head=1"),
    ("gated_attention", {"rope_base": 1.0}, "rope_base 1"),
    ("gated_attention", {"n_kv_heads": 3}, "n_heads=2 n_kv_heads=3"),
    ("gated_attention", {"rope_base": NAN}, "rope_base nan"),
    ("differential_attention", {"n_heads": 3}, "d_model=8 n_heads=3"),
    ("differential_attention deltaformer moba nsa", {"d_rope": 4}, "d_rope d_head=2 4"),
    ("nsa", {"top_k": 2}, "top_k 3 2"),
    ("mla dsa", {"d_latent": 9}, "d_latent d_model=8 9"),
    ("mla", {"d_query": 9}, "d_query d_model=8 9"),
    ("mla", {"d_rope": 3}, "d_rope even 3"),
    ("dsa", {"d_rope": 4, "d_index": 3}, "d_index d_rope=4 3"),
    ("mla", {"rope_scaling": {"rope_type": "linear", "factor": 2}, "position": "none"}, "rope_scaling position rope"),
    ("sliding_attention", {"d_rope": 2}, "d_rope position rope"),
    ("sliding_attention", {"position": "relative"}, "position rope alibi"),
    ("factorized", {"kernel": "toplitz"}, "'toeplitz'"),
    ("linear_attention", {"feature_map": "identity"}, "normalize=False"),
    ("diagonal_ssm s4d", {"d_state": 5}, "even 5"),
    ("s5", {"d_state": 7}, "even 7"),
    ("diagonal_ssm", {"init": "hippo"}, "s4d_lin real_log ring"),
    ("diagonal_ssm", {"dt_min": 0.1, "dt_max": 0.01}, "dt_min=0.1 dt_max=0.01"),
    ("diagonal_ssm", {"init": "ring", "r_max": 1.0}, "r_max 1.0"),
    ("lru rg_lru", {"r_max": 1.0}, "r_max 1.0"),
    ("rg_lru", {"r_min": 0.99, "r_max": 0.9}, "r_min=0.99 r_max=0.9"),
    ("rg_lru", {"n_heads": 3}, "d_inner=8 n_heads=3"),
    ("s4d", {"output": "gelu"}, "output glu none"),
    ("selective_ssm head_hybrid", {"dt_min": 0.0}, "dt_min=0.0"),
    ("selective_ssm", {"norm_eps": 0.0}, "norm_eps 0.0"),
    ("selective_ssm", {"norm_eps": math.inf}, "norm_eps inf"),
    *(("gated_attention delta_product kda ssd", {"norm_eps": e}, f"norm_eps {e}") for e in (0.0, -1.0, NAN, "1e-5")),
    ("ssd", {"d_head": 3}, "d_inner=16 d_head=3"),
    ("ssd", {"d_head": 4, "n_groups": 3}, "n_heads=4 n_groups=3"),
    ("ssd", {"norm_groups": 3}, "d_inner=16 norm_groups=3"),
    ("mamba3", {"d_state": 6}, "4 6"),
    ("mamba3", {"d_state": 5, "rotated": "all"}, "2 5"),
    ("mamba3", {"rotated": "none"}, "rotated half all"),
    ("mamba3", {"rate_map": "exp"}, "rate_map heavy_tail softplus"),
    ("mamba3", {"d_head": 5}, "d_inner=16 d_head=5"),
    ("mamba3", {"n_groups": 2}, "n_heads=1 n_groups=2"),
    ("comba delta_product", {"dt_min": 0.2}, "dt_min=0.2 dt_max=0.1"),
    ("kda gdn2", {"dt_max": math.inf}, "dt_min=0.001 dt_max=inf"),
    ("kda", {"gates": "heads"}, "'head'"),
    ("retnet", {"n_heads": 8}, "even d_head 1"),
    ("retnet", {"d_head": 3}, "even d_head 3"),
    ("rwkv6 rwkv7", {"n_heads": 8}, "n_heads=8 d_model=8"),
    ("lightning_attention", {"slope_scale": -1.0}, "slope_scale -1.0"),
    ("lightning_attention", {"slope_scale": NAN}, "slope_scale nan"),
    *(("hgrn2", {"lower_bound": value}, f"lower_bound {value}") for value in (1.0, -0.1, NAN)),
    ("mlstm", {"n_heads": 3}, "d_inner=16 n_heads=3"),
    ("mlstm", {"d_block": 3}, "d_inner=16 d_block=3"),
    ("mlstm", {"n_heads": 16}, "n_heads=16 d_inner=16"),
    ("capped_mlstm slstm", {"n_heads": 8}, "n_heads=8"),
    ("capped_mlstm rwkv6", {"d_head": 1}, "d_head=1"),
    ("capped_mlstm", {"gate_cap": 0.0}, "gate_cap 0.0"),
    ("conv", {"kernel": "long"}, "kernel short implicit"),
    ("rnn", {"nonlinearity": "relu"}, "nonlinearity tanh linear"),
    ("lstm", {"forget_bias": NAN}, "forget_bias nan"),
    ("min_gru", {"cell": "lsmt"}, "'lstm'"),
    ("head_hybrid", {"n_softmax_heads": 4}, "n_softmax_heads=4 n_heads=4 attention"),
    ("parallel_hybrid", {"pattern": ()}, "one mixer"),
    ("hybrid parallel_hybrid", {"pattern": "ssd"}, "pattern list 'ssd'"),
    ("hybrid", {"pattern": [3, "ssd"]}, "pattern list [3,"),
    ("hybrid parallel_hybrid", {"pattern": 3}, "pattern list 3"),
    ("hybrid parallel_hybrid", {"pattern": {"name": "lstm"}}, "pattern list {'name': 'lstm'}"),
    ("hybrid parallel_hybrid", {"pattern": [{"name": "lstm", "d_model": 4}]}, "d_model hybrid"),
    ("parallel_hybrid", {"pattern": ("lstm", {"name": "factorized", "d_out": 5})}, "d_out 8 5"),
    *((DELTAS, {"beta_max": value}, f"beta_max {value}") for value in (0.0, -1.0, 2.1, NAN)),
]
"""(mixers, options that they refuse, words of the error)."""


@pytest.mark.parametrize(
    ("name", "options", "words"), [(name, *rest) for names, *rest in REFUSED for name in names.split()]
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_invalid_options_are_refused(name: str, options: dict[str, Any], words: str) -> None:
    assert_refused(lambda: create_mixer(name, D_MODEL, **options), *words.split())


@pytest.mark.parametrize(
    ("name", "options", "longest"),
    [
        ("attention", {"position": "relative", "max_seq_len": 6}, 6),
        ("attention", {"sink": "position", "max_seq_len": 6}, 6),
        ("factorized", {"max_seq_len": 6}, 6),
        ("conv", {"kernel": "implicit", "max_seq_len": 6}, 6),
        ("hyena", {"max_seq_len": 6}, 6),
        *((f"log_linear_{name}", {"n_levels": 4}, 8) for name in ("ssd", "gated_delta_net")),
    ],
)
def test_a_sequence_beyond_the_longest_is_refused(name: str, options: dict[str, Any], longest: int) -> None:
    mixer = create_mixer(name, D_MODEL, **options)
    _, state = mixer.stream(torch.zeros(1, longest, D_MODEL))
    option = next(f"{key}={value}" for key, value in options.items() if isinstance(value, int))
    assert_refused(lambda: mixer(torch.zeros(1, longest + 1, D_MODEL)), str(longest + 1), option)
    assert_refused(lambda: mixer.stream(torch.zeros(1, 1, D_MODEL), state), str(longest + 1), option)
    assert_refused(lambda: mixer.state_bytes(longest + 1), str(longest + 1), option)
    assert mixer.state_bytes(longest) is not None
    model = Backbone({"name": name, **options}, D_MODEL, 1, vocab_size=5, n_outputs=5, d_conv=2)
    assert_refused(lambda: model.state_bytes(longest + 1), str(longest + 1), option)


@pytest.mark.parametrize(
    ("name", "options", "shortest"),
    [
        ("moba", {"block_size": 4, "top_k": 3}, 9),
        ("moba", {"block_size": 8, "top_k": 1}, 8),
        ("nsa", {"block_size": 4, "top_k": 3}, 9),
        ("dsa", {"top_k": 5}, 5),
    ],
)
def test_require_choice_refuses_sequences_too_short_for_top_k(
    name: str, options: dict[str, Any], shortest: int
) -> None:
    pattern = ["linear_attention", {"name": name, **options}]
    model = Backbone({"name": "hybrid", "pattern": pattern}, D_MODEL, 2, vocab_size=5, n_outputs=5)
    model.require_choice(shortest)
    assert_refused(lambda: model.require_choice(shortest - 1), str(shortest - 1))
    assert model(torch.zeros(1, 1, dtype=torch.int64)).isfinite().all()  # but streams may start with one position
