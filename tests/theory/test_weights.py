"""Scalar weights of heads, against matrices computed from the papers and against the whole operator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests import slow
from tests.cases import draw, randomise
from tests.tolerances import assert_close
from zoo import Bidirectional, create_mixer, list_mixers
from zoo.cores import core
from zoo.ops.delta_rule import delta_rule
from zoo.theory import OperatorError, head_weights, interaction


def _has_weights(layer: nn.Module, x: Tensor) -> bool:
    try:
        return head_weights(layer, x).shape[1] > 0
    except OperatorError as error:
        if "declares scalar weights" not in str(error):
            raise
        return False


WITH = ("delta_product", "hybrid", "kda", "mlstm", "path_attention", "rg_lru", "s4d", "ssd")


@pytest.mark.parametrize("name", [slow(name, unless=name in WITH) for name in list_mixers()])
def test_head_weights_are_causal_or_refused(name: str, generator: torch.Generator) -> None:
    """head_weights itself raises an error if the weights do not reproduce the core's outputs."""
    layer, x = randomise(create_mixer(name, 8), generator).double(), draw(2, 7, 8, generator=generator)
    if name not in WITH and not _has_weights(layer, x):
        return
    weights = head_weights(layer, x)
    assert weights.shape == (2, weights.shape[1], 7, 7)
    assert weights.isfinite().all()
    assert weights.tril().abs().amax((2, 3)).gt(0).all()
    assert not weights.triu(1).any()


def test_a_recurrent_net_has_no_scalar_weights(generator: torch.Generator) -> None:
    with pytest.raises(OperatorError, match="no op of LSTM declares scalar weights"):
        head_weights(create_mixer("lstm", 8).double(), draw(1, 5, 8, generator=generator))


def test_softmax_weights_sum_to_one_and_make_the_operator(generator: torch.Generator) -> None:
    layer = randomise(create_mixer("attention", 8, n_heads=2), generator).double()
    x = draw(2, 6, 8, generator=generator)
    weights = head_weights(layer, x)
    assert_close(weights.sum(3), torch.ones(2, 2, 6, dtype=torch.float64))
    values = layer.qkv_proj.weight.double()[-8:].unflatten(0, (2, 4))
    outputs = layer.out_proj.weight.double().unflatten(1, (2, 4))
    expected = torch.einsum("bhij,phd,hdq->bijpq", weights, outputs, values)
    assert_close(interaction(layer, x).operator, expected)


def test_weights_of_a_reversed_mixer_are_at_the_positions_of_the_input(generator: torch.Generator) -> None:
    one, other = (randomise(create_mixer(name, 8), generator).double() for name in ("attention", "rg_lru"))
    x = draw(2, 6, 8, generator=generator)
    turned = head_weights(other, x.flip(1)).flip(2, 3)
    assert_close(head_weights(Bidirectional(one, other), x), torch.cat((head_weights(one, x), turned), dim=1))


class Delta(nn.Module):
    """A gated delta rule with fixed queries, keys, strengths and decays."""

    def __init__(self, q: Tensor, k: Tensor, beta: Tensor, log_decay: Tensor) -> None:
        super().__init__()
        self.given = q, k, beta, log_decay

    def forward(self, x: Tensor) -> Tensor:
        q, k, beta, log_decay = (t.expand(len(x), *t.shape[1:]) for t in self.given)
        state = x.new_zeros(len(x), 1, k.shape[3], x.shape[2])
        return delta_rule(q, k, x.unsqueeze(1), beta, log_decay, state)[0].squeeze(1)


@pytest.mark.parametrize("seq_len", [1, 7])
def test_weights_of_a_delta_rule_include_its_erasure(seq_len: int, generator: torch.Generator) -> None:
    """w_ij = q_i^T prod_{t = j + 1 .. i} exp(g_t) (I - beta_t k_t k_t^T) beta_j k_j, by a loop."""
    q, k = (draw(1, 1, seq_len, 5, generator=generator) for _ in range(2))
    k = k / k.norm(dim=3, keepdim=True)
    beta, log_decay = (draw(1, 1, seq_len, generator=generator).sigmoid() for _ in range(2))
    weights = head_weights(Delta(q, k, beta, -log_decay), draw(1, seq_len, 3, generator=generator))[0, 0]
    expected = np.zeros((seq_len, seq_len))
    queries, keys, steps, decays = (t[0, 0].numpy() for t in (q, k, beta, torch.exp(-log_decay)))
    for j in range(seq_len):
        carried = steps[j] * keys[j]
        for i in range(j, seq_len):
            if i > j:
                carried = decays[i] * (carried - steps[i] * keys[i] * (keys[i] @ carried))
            expected[i, j] = queries[i] @ carried
    assert_close(weights, torch.from_numpy(expected))


def test_a_core_that_is_not_linear_in_its_values_is_refused(generator: torch.Generator) -> None:
    @core("v", "batch seq value")
    def squared(v: Tensor) -> Tensor:
        return v.square()

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return squared(x)

    with pytest.raises(OperatorError, match="squared is not a core"):
        head_weights(Layer(), draw(1, 4, 3, generator=generator))
