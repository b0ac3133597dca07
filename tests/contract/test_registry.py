"""The registry of mixers: names and aliases, options of mixers and members, the layers of a hybrid."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import nn

from tests import refused
from zoo import create_layers, create_mixer, list_mixers
from zoo.contract import SequenceMixer
from zoo.errors import UnknownNameError
from zoo.lookup import Registry
from zoo.registry import MIXERS, mixer_class


def test_every_name_is_a_mixer_with_a_summary_and_a_source() -> None:
    for name in list_mixers():
        entry = MIXERS.entry(name)
        assert issubclass(mixer_class(name), SequenceMixer)
        assert 0 < len(MIXERS.summary(name)) <= 70
        assert entry.family
        assert entry.source
        assert 1980 < entry.year <= 2026


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    for given, nearest in (("atention", "attention"), ("selective-ssm", "selective_ssm")):
        message = rf"'{given}' \(did you mean '{nearest}'\?\); choose from: {', '.join(list_mixers())}"
        for call in (lambda name: create_layers(name, 2, 8), lambda name: create_mixer("hybrid", 8, pattern=[name])):
            with pytest.raises(UnknownNameError, match=message):
                call(given)
    with pytest.raises(UnknownNameError, match=r"^unknown mixer 'xyzzy'; choose from: "):
        create_mixer("xyzzy", 8)
    with pytest.raises(UnknownNameError, match=r"^unknown mixer 'torch.nn.LSTM' \(did you mean 'torch.nn:LSTM'\?\)$"):
        create_mixer("torch.nn.LSTM", 8)


def test_an_alias_works_like_its_name() -> None:
    assert mixer_class("mamba") is mixer_class("selective_ssm")
    assert MIXERS.check("mamba") == "selective_ssm"
    assert "mamba" in MIXERS
    assert "mamba" not in list_mixers()
    assert "(or mamba)" in MIXERS.summary("selective_ssm")
    pattern = ["mamba2", {"name": "mamba2", "d_state": 3}, "attention"]
    first, second, _ = create_layers("hybrid", 3, 8, pattern=pattern, mamba2={"d_state": 5})
    assert (first.d_state, second.d_state) == (5, 3)


def test_a_registry_imports_nothing_until_asked() -> None:
    registry = Registry("thing", {"missing": ("no.such.module:Thing", "a line")})
    assert list(registry) == ["missing"]
    assert registry.summary("missing") == "a line"
    registry.check("missing")
    with pytest.raises(ModuleNotFoundError):
        registry["missing"]


# Layers over depth.


def kinds(layers: Sequence[nn.Module]) -> list[str]:
    return [type(layer).__name__ for layer in layers]


def test_a_plain_mixer_repeats_and_the_default_hybrid_alternates() -> None:
    layers = create_layers("attention", 3, 8, n_heads=2)
    assert [(type(layer).__name__, layer.n_heads) for layer in layers] == [("Attention", 2)] * 3
    assert len({id(p) for layer in layers for p in layer.parameters()}) == 3 * len(list(layers[0].parameters()))
    assert kinds(create_layers("hybrid", 5, 8)) == ["SelectiveSSM", "Attention"] * 2 + ["SelectiveSSM"]


def test_too_few_layers_for_the_pattern_are_refused() -> None:
    with pytest.raises(ValueError, match="n_layers=1 cannot hold the 2 layers"):
        create_layers("hybrid", 1, 8)
    for n_layers in (0, -2):
        for name in ("hybrid", "lstm"):
            with pytest.raises(ValueError, match="n_layers must be a positive integer"):
                create_layers(name, n_layers, 8)


def test_a_hybrid_as_a_mixer_has_its_pattern_once() -> None:
    hybrid = create_mixer("hybrid", 8, pattern=["lstm", "attention", "lstm"])
    assert kinds([block.mixer for block in hybrid.blocks.layers]) == ["LSTM", "Attention", "LSTM"]


# Options of members.


def test_options_go_to_members_that_declare_them_and_the_most_specific_wins() -> None:
    pattern = ["selective_ssm", "attention", "linear_attention", {"name": "attention", "n_heads": 1}]
    given = {"pattern": pattern, "n_heads": 2, "d_conv": 3, "linear_attention": {"n_heads": 8}}
    ssm, attention, linear, last = create_layers("hybrid", 4, 8, **given)
    assert [layer.n_heads for layer in (attention, linear, last)] == [2, 8, 1]
    assert [layer.conv.weight.shape[1] for layer in (ssm, attention)] == [3, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_head": 2}, "hybrid 'n_head'.*'n_heads'"),
        ({"feature_map": "elu"}, "unknown option of hybrid 'feature_map'"),
        ({"atention": {"n_heads": 2}}, r"did you mean 'attention'\?"),
        ({"attention": {"n_head": 2}}, "Attention 'n_head'.*'n_heads'"),
        ({"attention": 4}, "options of the member attention must be a mapping, got 4"),
        ({"selective_ssm": {"d_state": 2}, "mamba": {"d_conv": 2}}, "given twice, under two of its names"),
        ({"pattern": []}, "at least one mixer"),
        ({"pattern": ["atention"]}, r"unknown mixer 'atention' \(did you mean 'attention'\?\)"),
        ({"pattern": ["hybrid", "lstm"]}, "cannot be a member of a hybrid"),
        ({"pattern": [{"n_heads": 2}]}, "needs a name"),
        ({"pattern": [{"name": "attention", "n_head": 2}]}, r"did you mean 'n_heads'\?"),
        ({"d_model": 16}, "unknown option of hybrid 'd_model'"),
    ],
)
def test_options_that_fit_no_member_are_refused(options: dict[str, object], message: str) -> None:
    with refused(message):
        MIXERS["hybrid"].create(8, options)


def test_a_misspelt_option_of_a_parallel_hybrid_is_corrected() -> None:
    with refused(r"unknown option of parallel_hybrid 'merg' \(did you mean 'merge'\?\)"):
        create_mixer("parallel_hybrid", 8, merg="sum")


def test_an_entry_may_set_options_of_its_class() -> None:
    kda, gdn2 = create_mixer("kda", 8), create_mixer("gdn2", 8)
    assert type(kda) is type(gdn2)
    assert (kda.gates, gdn2.gates) == ("head", "channel")
    assert create_mixer("gdn2", 8, n_heads=4).gates == "channel"
    assert [layer.gates for layer in create_layers("gdn2", 2, 8)] == ["channel", "channel"]
    hybrid = create_mixer("hybrid", 8, pattern=["gdn2", "kda"])
    assert [block.mixer.gates for block in hybrid.blocks.chain()] == ["channel", "head"]


def test_the_layers_of_a_stack_know_their_depth() -> None:
    layers = create_layers("differential_attention", 3, 8)
    assert [layer.depth for layer in layers] == [0, 1, 2]
    assert [round(layer.lambda_init, 6) for layer in layers] == [0.2, 0.355509, 0.470713]
    assert [layer.depth for layer in create_layers("differential_attention", 2, 8, depth=4)] == [4, 4]
