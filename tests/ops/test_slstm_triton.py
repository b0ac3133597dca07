"""sLSTM's Triton kernels against the loop in float64, on a CUDA device or interpreted."""

from __future__ import annotations

import pytest
import torch

from tests import slow
from tests.ops.test_slstm import cotangents, draw, results
from tests.tolerances import assert_close

pytest.importorskip("triton")

from zoo.ops import transforms

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LONG = 1000 if DEVICE == "cuda" else 130  # the interpreter takes 30 ms per position


@pytest.mark.parametrize(
    ("shape", "scale", "ragged"),
    [
        ((1, 1, 1, 4), 2.0, False),
        ((17, 1, 7, 5), 2.0, True),  # more rows than one program handles
        ((1, 1, 5, 4), 1000.0, False),  # exp of the gates overflows float32
        ((1, 2, 4, 70), 2.0, False),  # more channels than one block
        slow((1, 1, LONG, 4), 2.0, True),
    ],
    ids=str,
)
def test_any_shape_equals_the_loop(
    shape: tuple[int, int, int, int],
    scale: float,
    ragged: bool,
    monkeypatch: pytest.MonkeyPatch,
    generator: torch.Generator,
) -> None:
    monkeypatch.setattr(transforms, "_device_type", lambda t: "cuda")
    given = draw(generator, *shape, scale=scale)
    batch, seq_len = shape[0], shape[2]
    valid = torch.arange(seq_len) < torch.randint(seq_len + 1, (batch, 1), generator=generator) if ragged else None
    weights = cotangents(generator, given)
    expected = results([t.detach().double().requires_grad_() for t in given], valid, weights)
    # Strided views must be read correctly.
    mine = [t.detach().to(DEVICE).transpose(0, 1).contiguous().transpose(0, 1).requires_grad_() for t in given]
    found = results(mine, None if valid is None else valid.to(DEVICE), [t.to(DEVICE) for t in weights])
    for actual, right in zip(found, expected, strict=True):
        assert_close(actual.cpu(), right)
