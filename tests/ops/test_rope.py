"""RoPE scaling beyond the trained length: linear, llama3, yarn and dynamic."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from tests import reference, refused
from tests.cases import D_MODEL, Case, draw
from tests.tolerances import assert_close
from zoo import create_mixer
from zoo.ops.rope import complete_scaling, frequencies, gain, rotate

TRAINED = {"original_max_position_embeddings": 64}
DYNAMIC = {"rope_type": "dynamic", "factor": 3.0, "original_max_position_embeddings": 8}


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **TRAINED},
        {"rope_type": "yarn", "factor": 4.0, **TRAINED},
        {"rope_type": "yarn", "factor": 4.0, **TRAINED, "truncate": False, "beta_fast": 8, "attention_factor": 0.5},
        {"rope_type": "yarn", "factor": 4.0, **TRAINED, "mscale": 2.0, "mscale_all_dim": 0.7},
        {"rope_type": "dynamic", "factor": 3.0, **TRAINED},
    ],
    ids=lambda scaling: f"{scaling['rope_type']}-{len(scaling)}",
)
def test_stretched_rope_is_the_reference(scaling: dict[str, Any]) -> None:
    d_head, base = 24, 500.0
    complete = complete_scaling(scaling, d_head)
    totals = [1, 64, 65, 300]
    ours = frequencies(d_head, base, complete, torch.tensor(totals), torch.float64).expand(len(totals), -1)
    for row, total in zip(ours, totals, strict=True):
        expected, size = reference.stretched_rope(d_head, base, scaling, total)
        assert_close(row, expected)
        assert gain(complete) == pytest.approx(size, rel=1e-12)
    plain = frequencies(d_head, base, dtype=torch.float64)[0]
    assert not torch.allclose(ours[-1], plain)
    fastest_kept = scaling["rope_type"] != "linear"
    assert torch.equal(ours[-1, 0], plain[0]) == fastest_kept


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"factor": 2.0}, "unknown rope_type None; choose from: linear, dynamic, yarn, llama3"),
        ({"rope_type": "longrope"}, "unknown rope_type 'longrope'"),
        ({"rope_type": "linear"}, "rope_type 'linear' needs factor"),
        ({"rope_type": "linear", "factor": 0.5}, "factor of rope_type 'linear' must be at least 1, got 0.5"),
        ({"rope_type": "linear", "factor": True}, "must be a positive number, got True"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 3}, "unknown field of rope_type 'linear' 'beta_fast'"),
        ({"rope_type": "yarn", "factor": 2.0}, "needs original_max_position_embeddings"),
        ({"rope_type": "yarn", "factor": 2.0, **TRAINED, "beta_slow": 40}, "need beta_slow < beta_fast, got 40 and 32"),
        ({"rope_type": "yarn", "factor": 2.0, **TRAINED, "truncate": 1}, "must be true or false, got 1"),
        (
            {"rope_type": "llama3", "factor": 2.0, **TRAINED, "low_freq_factor": 4, "high_freq_factor": 4},
            "need low_freq_factor < high_freq_factor, got 4 and 4",
        ),
        ({"rope_type": "dynamic", "factor": math.inf, **TRAINED}, "must be a positive number, got inf"),
    ],
)
def test_an_invalid_scaling_is_refused(scaling: dict[str, Any], words: str) -> None:
    with refused(re.escape(words)):
        complete_scaling(scaling, 8)


def test_dynamic_rope_needs_two_pairs_and_lengths(generator: torch.Generator) -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0, **TRAINED}
    with pytest.raises(ValueError, match="needs a d_head of at least 4, got 2"):
        complete_scaling(scaling, 2)
    q = draw(1, 1, 2, 4, generator=generator)
    with pytest.raises(ValueError, match="needs the length of each sequence"):
        rotate(q, torch.arange(2)[None], scaling=complete_scaling(scaling, 4))


# Dynamic RoPE beyond the trained length depends on the length of the whole sequence.


@pytest.fixture
def case() -> Case:
    return Case("attention", {"position": "rope", "n_heads": 2, "n_kv_heads": 1, "rope_scaling": DYNAMIC})


@pytest.mark.parametrize("seq_len", [8, 9, 20])
def test_dynamic_rope_follows_the_whole_sequence(case: Case, seq_len: int, generator: torch.Generator) -> None:
    mixer = case.create(generator)
    x = draw(2, seq_len, D_MODEL, generator=generator)
    assert_close(mixer(x), case.reference(mixer, x))


def test_a_stream_with_dynamic_rope_uses_the_length_at_the_end_of_each_chunk(
    case: Case, generator: torch.Generator
) -> None:
    mixer = case.create(generator)
    x = draw(2, 20, D_MODEL, generator=generator)
    state, start = None, 0
    for end in (5, 8, 9, 15, 20):
        y, state = mixer.stream(x[:, start:end], state)
        assert_close(y, mixer(x[:, :end])[:, start:])
        start = end
    with pytest.raises(AssertionError):  # earlier outputs are not those of the longer sequence
        assert_close(mixer(x[:, :15])[:, 9:15], mixer(x)[:, 9:15])


def test_each_row_of_a_ragged_batch_has_its_own_length(case: Case, generator: torch.Generator) -> None:
    mixer = case.create(generator)
    x = draw(2, 20, D_MODEL, generator=generator)
    lengths = torch.tensor([20, 11])
    y = mixer(x, lengths)
    assert_close(y[:1], mixer(x[:1]))
    assert_close(y[1:, :11], mixer(x[1:, :11]))


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn"])
def test_the_highway_input_with_scaled_rope_gets_all_the_attention(kind: str, generator: torch.Generator) -> None:
    scaling = {"rope_type": kind, "factor": 3.0} | ({} if kind == "linear" else TRAINED)
    options = {"position": "rope", "n_heads": 2, "rope_base": 50.0, "rope_scaling": scaling}
    mixer = Case("attention", options).create(generator)
    x = mixer.highway_input(80, 70, generator)
    p = {name: tensor.numpy() for name, tensor in mixer.state_dict().items()}
    weights = reference.attention_weights(p, x.numpy(), **options)
    assert (weights[:, -1, 9] > 1 - 1e-8).all()


@pytest.mark.parametrize("position", ["none", "alibi"])
def test_scaling_needs_rope(position: str) -> None:
    with pytest.raises(ValueError, match=f"rope_scaling and d_rope need position rope, got '{position}'"):
        create_mixer("attention", D_MODEL, position=position, rope_scaling=DYNAMIC)
