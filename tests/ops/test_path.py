"""PaTH's logits are the same with chunks merged in pairs, as on a GPU, and one by one.

The contract suite compares the sequential version with the loop over positions in float64.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests import slow
from tests.tolerances import assert_close
from zoo.ops import transforms
from zoo.ops.path import path_logits


@pytest.mark.parametrize("past", [0, 5])
@pytest.mark.parametrize("seq_len", [1, 2, 7, 63, 65, 200, slow(1000)])
def test_chunks_merged_in_pairs_have_the_logits_keys_and_gradients_of_one_by_one(
    seq_len: int, past: int, monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    beta = 2 * torch.rand(2, 2, seq_len, generator=generator, dtype=torch.float64)
    beta[0, :, seq_len // 2 :] = 0  # padding
    drawn = draw(2, 6, seq_len, 5), draw(2, 2, seq_len, 5), F.normalize(draw(2, 2, seq_len, 5), dim=3), beta
    given = [t.requires_grad_() for t in (*drawn, draw(2, 2, past, 5))]

    def results(device: str) -> list[Tensor]:
        monkeypatch.setattr(transforms, "_device_type", lambda t: device)
        logits, after = path_logits(torch.matmul, *given)
        outputs = logits.tril(past), after  # entries above the diagonal are unused
        return [*outputs, *torch.autograd.grad(sum(t.pow(3).sum() for t in outputs), given)]

    for pairs, one_by_one in zip(results("cuda"), results("cpu"), strict=True):
        assert_close(pairs, one_by_one)
