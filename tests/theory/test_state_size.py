"""Effective state size against known ranks: of recurrences and of matrices by hand."""

from __future__ import annotations

import pytest
import torch

from tests.cases import draw, randomise
from tests.tolerances import assert_close
from zoo import create_mixer
from zoo.theory import effective_state_size, interaction


def sizes(name: str, generator: torch.Generator, **options: object) -> torch.Tensor:
    layer = randomise(create_mixer(name, 4, **options), generator).double()
    return effective_state_size(interaction(layer, draw(1, 12, 4, generator=generator)).operator).rank[0]


def test_a_recurrence_has_at_most_the_size_of_its_state(generator: torch.Generator) -> None:
    """A linear RNN of width 4 has state size 4; three pairs of complex poles have 6."""
    assert sizes("rnn", generator, nonlinearity="linear").tolist() == [4] * 11
    ssm = sizes("diagonal_ssm", generator, d_state=6)
    assert ssm.tolist() == [4, 6, 6, 6, 6, 6, 6, 6, 6, 6, 4]


def test_state_sizes_of_a_shift_a_sum_and_a_multiple_of_the_identity() -> None:
    """A shift by one position and a cumulative sum pass on one vector of 3 channels, the identity nothing."""
    eye = torch.eye(3, dtype=torch.float64)

    def spread(weights: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ij,pd->ijpd", weights.double(), eye)

    for weights, rank in (
        (torch.ones(5, 5).diagonal(-1).diag_embed(-1), [3] * 4),
        (torch.ones(5, 5).tril(), [3] * 4),
        (2 * torch.eye(5), [0] * 4),
    ):
        found = effective_state_size(spread(weights))
        assert found.rank.tolist() == rank
        assert found.positions.tolist() == [1, 2, 3, 4]
        assert_close(found.entropy, found.rank.double())  # equal singular values
    shift = torch.ones(3, 3).diagonal(-1).diag_embed(-1).double()
    found = effective_state_size(torch.einsum("ij,pd->ijpd", shift, torch.tensor([3.0, 1.0]).diag().double()))
    assert_close(found.entropy, torch.tensor([4 / 3**0.75] * 2, dtype=torch.float64))  # shares 3/4 and 1/4


def test_chosen_positions_and_batches(generator: torch.Generator) -> None:
    layer = randomise(create_mixer("kda", 4), generator).double()
    operator = interaction(layer, draw(2, 8, 4, generator=generator)).operator
    every, some = effective_state_size(operator), effective_state_size(operator, [2, 7])
    assert every.rank.shape == every.entropy.shape == (2, 7)
    assert torch.equal(some.rank, every.rank[:, [1, 6]])
    assert torch.equal(effective_state_size(operator[0], [2]).rank, every.rank[0, [1]])


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_input_is_a_one_line_error() -> None:
    operator = torch.zeros(4, 4, 2, 2)
    for positions in ([0], [4]):
        with pytest.raises(ValueError, match="positions must lie between 1 and 3"):
            effective_state_size(operator, positions)
    with pytest.raises(ValueError, match="has no past"):
        effective_state_size(operator[:1, :1])
    with pytest.raises(ValueError, match="operator must be"):
        effective_state_size(operator[:3])
