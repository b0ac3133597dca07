"""Every registered mixer passes `zoo check` on a CUDA device, in float32 unless the property sets a dtype."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.contract.test_compile import assert_agrees
from zoo import create_mixer, list_mixers
from zoo.check import Property, properties
from zoo.check.subject import Subject

ELSEWHERE = ("costs", "rank", "gradient_decay", "options_matter", "exports")
"""Properties that do not depend on the device."""
COMPILED = ("attention", "nsa", "hyena", "selective_ssm", "ssd", "gated_delta_net", "kda", "mlstm", "slstm", "hybrid")

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("unchecked_shapes")]


@functools.cache
def subject(name: str) -> Subject:
    return Subject(name, d_model=32, device="cuda")


@pytest.mark.parametrize("each", [each for each in properties() if each.name not in ELSEWHERE], ids=str)
@pytest.mark.parametrize("name", list_mixers())
def test_the_property_holds(name: str, each: Property) -> None:
    each.find(subject(name)).raise_if_failed()


@pytest.mark.filterwarnings("ignore")  # the compiler warns about its internals
@pytest.mark.parametrize("name", COMPILED)
def test_inductor_agrees_with_eager(name: str) -> None:
    torch.compiler.reset()
    mixer, x = subject(name).module(), subject(name).draw().requires_grad_()
    assert_agrees(torch.compile(mixer, fullgraph=True), mixer, x)


@pytest.mark.parametrize("name", list_mixers())
def test_a_mixer_can_be_created_on_the_device(name: str) -> None:
    with torch.device("cuda"):
        mixer = create_mixer(name, 32)
    assert all(p.is_cuda for p in mixer.parameters())
