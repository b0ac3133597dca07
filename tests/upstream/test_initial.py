"""Parameters of fresh mixers follow the published initial distributions; seeds are fixed, margins wide."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.tolerances import assert_close
from tests.upstream.initial import TABLE, Initial, Law, normal, uniform
from zoo import Backbone, create_mixer, list_mixers
from zoo.ops.step_size import draw_dt_bias


def assert_drawn(draws: torch.Tensor, law: Law) -> None:
    """Assert by the Kolmogorov-Smirnov distance that the draws follow the law, and that they reach both its ends.

    A thousand draws from the law itself fail the first with probability 7e-4 and miss an end with 2e-9.
    """
    u = np.sort(law(draws.detach().double().numpy().ravel()))
    n = len(u)
    assert n >= 1000
    assert -1e-4 <= u[0] < 0.02
    assert 0.98 < u[-1] <= 1 + 1e-4
    assert np.abs(u - (np.arange(n) + 0.5) / n).max() < 2 / np.sqrt(n)


@pytest.mark.parametrize("entry", TABLE, ids=lambda e: f"{e.mixer}-{e.parameter}".replace(" ", "_"))
def test_a_parameter_starts_as_published(entry: Initial) -> None:
    torch.manual_seed(0)
    values = entry.read(create_mixer(entry.mixer, entry.d_model, **entry.options))
    if callable(entry.law):
        assert_drawn(values, entry.law)
    else:
        assert_close(values, torch.tensor(entry.law).expand_as(values))


ORTHOGONAL_OR_COMPOSED = ("rwkv4", "rwkv6", "rwkv7", "hybrid", "parallel_hybrid")


@pytest.mark.parametrize("name", [name for name in list_mixers() if name not in ORTHOGONAL_OR_COMPOSED])
def test_norms_start_at_one_and_other_linear_maps_as_torchs(name: str) -> None:
    """RWKV, with orthogonal maps, and hybrids, with the maps of their members, are left out."""
    torch.manual_seed(0)
    mixer = create_mixer(name, 64)
    listed = {entry.parameter for entry in TABLE if entry.mixer == name}
    special = {"mlstm", "capped_mlstm", "rg_lru"}  # all their linear maps are listed, some by rows
    for path, module in mixer.named_modules():
        if path.endswith("norm"):
            assert (module.get_parameter("weight") == 1).all()
        elif isinstance(module, nn.Linear) and name not in special and f"{path}.weight" not in listed:
            law = uniform(-(module.in_features**-0.5), module.in_features**-0.5)
            for parameter in module.parameters():
                if parameter.numel() >= 1000:
                    assert_drawn(parameter, law)


def test_embeddings_start_as_published() -> None:
    torch.manual_seed(0)
    model = Backbone(mixer={"name": "identity"}, n_outputs=2, d_model=32, n_layers=1, vocab_size=512)
    assert_drawn(model.embedding.weight, normal(0.02))


def test_no_step_starts_below_the_floor() -> None:
    """1e-4, the `dt_init_floor` of all Mamba blocks and of GatedDeltaNet."""
    torch.manual_seed(0)
    dt = torch.nn.functional.softplus(draw_dt_bias(100, 1e-7, 1e-5))
    assert_close(dt / 1e-4, np.ones(100))
