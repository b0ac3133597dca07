"""`Bidirectional`, the sum of one mixer and a reversed one: outputs, operator, padding, errors."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests import slow
from tests.cases import D_MODEL, KINDS, Case, assert_rows_alone, draw
from tests.tolerances import assert_close
from zoo import Bidirectional, SequenceMixer, create_mixer, list_mixers
from zoo.theory.operator import interaction

NAMES = list_mixers()
PAIRS = [  # every mixer is forwards once and backwards once; the default run has forward mixers of every kind of state
    slow(names, unless=names[0] in KINDS, id="-".join(names)) for names in itertools.pairwise([*NAMES, NAMES[0]])
]


def pair(names: tuple[str, str], generator: torch.Generator) -> Bidirectional:
    return Bidirectional(*(Case(name, {}).create(generator) for name in names))


@pytest.mark.parametrize("names", PAIRS)
def test_it_is_one_mixer_forwards_and_one_backwards(names: tuple[str, str], generator: torch.Generator) -> None:
    both, x = pair(names, generator), draw(1, 5, D_MODEL, generator=generator)
    assert_close(both(x), both.mixer_a(x) + both.mixer_b(x.flip(1)).flip(1))
    operator, offset = interaction(both, x)
    forwards, backwards = interaction(both.mixer_a, x), interaction(both.mixer_b, x.flip(1))
    assert_close(operator, forwards.operator + backwards.operator.flip(1, 2))
    assert_close(offset, forwards.offset + backwards.offset.flip(1))


@pytest.mark.parametrize("names", [("attention", "gru"), ("selective_ssm", "conv"), ("lstm", "sliding_attention")])
def test_padding_affects_no_output_and_no_gradient(names: tuple[str, str], generator: torch.Generator) -> None:
    both, lengths = pair(names, generator), torch.tensor([6, 0, 1, 4], dtype=torch.int32)
    x = draw(4, 6, D_MODEL, generator=generator)
    spans = [slice(0, length) for length in lengths.tolist()]
    for row, span in enumerate(spans):
        x[row, span.stop :] = float("nan")
    assert_rows_alone(lambda x: both(x, lengths), both, x, spans, generator)


def test_it_is_no_sequence_mixer_but_resets_and_excludes_from_weight_decay(generator: torch.Generator) -> None:
    both = pair(("lstm", "gru"), generator)
    assert not isinstance(both, SequenceMixer)
    assert not hasattr(both, "stream")
    spared = {f"mixer_a.{name}" for name in both.mixer_a.no_weight_decay()}
    assert both.no_weight_decay() == spared | {f"mixer_b.{name}" for name in both.mixer_b.no_weight_decay()}
    before = [p.clone() for p in both.parameters()]
    both.reset_parameters()
    assert not any(torch.equal(a, b) for a, b in zip(before, both.parameters(), strict=True))


def test_mixers_that_do_not_fit_are_refused() -> None:
    eight = create_mixer("gru", 8)
    with pytest.raises(ValueError, match=r"same \(d_model, d_out\), got \(8, 8\) and \(4, 4\)"):
        Bidirectional(eight, create_mixer("gru", 4))
    with pytest.raises(ValueError, match=r"got \(8, 5\) and \(8, 8\)"):
        Bidirectional(create_mixer("factorized", 8, d_out=5), eight)
    with pytest.raises(ValueError, match="two different modules"):
        Bidirectional(eight, eight)
