"""Users' own modules as mixers: by `package:Class` or registered, in hybrids and backbones, streamed, saved."""

from __future__ import annotations

import copy
import pickle
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
from tests import install, refused
from tests.check import planted
from tests.check.modules import Recurrence, Stepper
from zoo.check import check
from zoo.contract import SequenceMixer
from zoo.mixers.identity import Identity
from zoo.registry import MIXERS, mixer_class


class Mean(nn.Module):
    """The running mean of a linear map."""

    def __init__(self, width: int, gain: float = 1.0, *, fails: bool = False, gives: int | None = None) -> None:
        super().__init__()
        if fails:
            raise RuntimeError("over\ntwo lines")
        self.map, self.gain = nn.Linear(width, gives or width), gain * torch.ones(1).item()

    def forward(self, x: Tensor) -> Tensor:
        n = torch.arange(1, x.shape[1] + 1).view(-1, 1)
        return self.gain * self.map(x).cumsum(1) / n


class Later(nn.Module):
    """An option before d_model, `lengths` without a default, and lazy parameters."""

    def __init__(self, scale: float, d_model: int) -> None:
        super().__init__()
        self.scale, self.map = scale, nn.LazyLinear(d_model, bias=False)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.scale * lengths.view(-1, 1, 1) * self.map(x)


class NoRows(nn.LSTM):
    """Its state is one flat tensor without a batch axis."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, d_model, batch_first=True)

    def forward(self, x: Tensor, state: Tensor | None = None) -> Any:
        y, (h, c) = super().forward(x, None if state is None else tuple(state.view(2, 1, len(x), 8)))
        return y, torch.stack((h, c)).flatten()


class Exits(nn.Module):
    def __init__(self, d_model: int) -> None:
        raise SystemExit("no GPU, bye")


MODULES = "tests.check.modules"
MEAN = f"{__name__}:Mean"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(MIXERS, "_own", {})
    monkeypatch.setattr(MIXERS, "_objects", {})
    monkeypatch.setattr(MIXERS, "_looked", True)
    return MIXERS


def test_a_plain_module_is_a_mixer() -> None:
    mixer = zoo.create_mixer(MEAN, 8, gain=2.0)
    assert isinstance(mixer, SequenceMixer)
    assert type(mixer) is mixer_class(MEAN)
    x = torch.randn(2, 5, 8)
    assert torch.equal(mixer(x), mixer.module(x))
    assert mixer.module.gain == 2.0
    for twin in (copy.deepcopy(mixer), pickle.loads(pickle.dumps(mixer))):
        assert torch.equal(twin(x), mixer(x))
        assert type(twin) is type(mixer)
    padded = mixer(x, torch.tensor([5, 3]))
    torch.testing.assert_close(padded[1, :3], mixer(x[1:, :3])[0])
    assert not padded[1, 3:].any()
    before = mixer.module.map.weight.clone()
    mixer.reset_parameters()
    assert not torch.equal(mixer.module.map.weight, before)
    assert zoo.create_mixer("torch.nn:LSTM", 8, hidden_size=8, batch_first=True)(x).shape == x.shape


class Short(Stepper):
    """A table of `most` learned positions, so longer sequences raise an error."""

    def __init__(self, d_model: int, most: int) -> None:
        super().__init__(d_model)
        self.position = nn.Embedding(most, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.position(torch.arange(x.shape[1]))

    def step(self, x: Tensor, state: Any = None) -> Any:
        h, n = state or (None, 0)
        y, h = super().step(x, h)
        return y + self.position.weight[n], (h, n + 1)


@pytest.mark.parametrize("most", [64, 40, 12])
def test_a_module_with_few_positions_is_a_mixer(most: int) -> None:
    mixer, x = zoo.create_mixer(f"{__name__}:Short", 8, most=most).eval(), torch.randn(2, most, 8)
    first, state = mixer.stream(x[:, :5])
    torch.testing.assert_close(torch.cat((first, mixer.stream(x[:, 5:], state)[0]), 1), mixer(x))
    with refused("Short cannot be run: IndexError"):
        zoo.create_mixer(f"{__name__}:Short", 8, most=3)


@pytest.mark.parametrize("grad", [True, False])
def test_the_memory_of_the_first_chunk_may_be_reused(*, grad: bool) -> None:
    mixer, x = zoo.create_mixer("torch.nn:LSTM", 8, hidden_size=8, batch_first=True), torch.randn(2, 3, 8)
    with torch.set_grad_enabled(grad):
        chunk = x[:, :1].clone()
        _, state = mixer.stream(chunk)
        y, _ = mixer.stream(chunk.copy_(x[:, 1:2]), state)
    torch.testing.assert_close(y, mixer(x)[:, 1:2])


class StartsAtZero(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.map = nn.Linear(d_model, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.map.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x)


def test_reset_parameters_keeps_a_modules_own_initialisation_of_submodules() -> None:
    mixer = zoo.create_mixer(f"{__name__}:StartsAtZero", 8)
    before = mixer.module.map.bias.clone()
    mixer.reset_parameters()
    assert not mixer.module.map.weight.any()
    assert not torch.equal(mixer.module.map.bias, before)


def test_without_a_stream_generation_is_refused_and_state_sizes_are_unknown() -> None:
    model = zoo.Backbone({"name": "hybrid", "pattern": [MEAN, "attention"]}, 8, vocab_size=5, n_outputs=5).eval()
    assert model.state_bytes(7) is None
    assert model.layers.predicted_rank(7) is None
    assert not model.layers.streams
    assert zoo.create_mixer("hybrid", 8).streams
    with torch.device("meta"):
        assert zoo.create_mixer(MEAN, 8).state_bytes(7) is None
    tokens = torch.zeros(1, 3, dtype=torch.long)
    assert model(tokens).shape == (1, 3, 5)
    with pytest.raises(
        ValueError, match=r"^test_adopted\.Mean maps whole sequences only \(it has no known stream, step, "
    ):
        model.generate(tokens, 2)


class Closed(Recurrence):
    """Its output is zero at initialisation, as with a closed gate."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model)
        self.closed = nn.Parameter(torch.zeros(d_model))

    def run(self, x: Tensor, state: Any, mask: Tensor | None) -> Any:
        y, state = super().run(x, state, mask)
        return self.closed * y, state


STREAMING: dict[str, tuple[dict[str, Any], int]] = {
    "torch.nn:LSTM": ({"hidden_size": 8, "num_layers": 2, "batch_first": True}, 2 * 2 * 8),
    f"{MODULES}:Recurrence": ({}, 2 * 8 + 8),
    f"{MODULES}:Attention": ({}, 2 * 9 * 8),
    f"{__name__}:Closed": ({}, 2 * 8 + 8),
    f"{MODULES}:Stepper": ({}, 8),
    f"{MODULES}:Several": ({}, 8 + 1 + 8),
    f"{MODULES}:Cached": ({}, 2 * 9 * 8),
    f"{MODULES}:Complex": ({}, 2 * 8),
    f"{MODULES}:Window": ({}, 3 * 8),
}
"""{module with its own streaming protocol: (options, numbers in its state after nine positions)}."""


@pytest.mark.parametrize("name", STREAMING)
def test_a_module_streams_by_its_own_protocol(name: str, generator: torch.Generator) -> None:
    options, size = STREAMING[name]
    mixer, x = zoo.create_mixer(name, 8, **options).eval(), torch.randn(2, 9, 8, generator=generator)
    with torch.device("meta"):
        assert zoo.create_mixer(name, 8, **options).state_bytes(9) == 4 * size
    assert mixer.state_bytes(9, batch_size=2) == 2 * 4 * size
    with torch.no_grad():
        first, state = mixer.stream(x[:, :4])
        second, state = mixer.stream(x[:, 4:6], zoo.detach_state(state))
        last, after = mixer.stream(x[:, 6:], state)
        torch.testing.assert_close(torch.cat((first, second, last), 1), mixer(x))
        assert zoo.state_nbytes(after) == 2 * 4 * size
        swapped = zoo.reorder_state(pickle.loads(pickle.dumps(state)), torch.tensor([1, 0]))
        torch.testing.assert_close(mixer.stream(x.flip(0)[:, 6:], swapped)[0], last.flip(0))
        assert torch.equal(mixer.stream(x[:, 6:], state)[0], last)


def test_gradients_pass_through_the_states_of_a_module(generator: torch.Generator) -> None:
    mixer, x = zoo.create_mixer(f"{MODULES}:Stepper", 8), torch.randn(2, 6, 8, generator=generator)

    def gradient(detach: bool, *sizes: int) -> Tensor:
        state, total = None, torch.zeros(())
        for part in x.split(sizes, dim=1):
            y, state = mixer.stream(part, zoo.detach_state(state) if detach and state is not None else state)
            total = total + y.square().sum()
        return torch.autograd.grad(total, mixer.module.rate)[0]

    torch.testing.assert_close(gradient(False, 2, 3, 1), gradient(False, 6))
    twice = [gradient(True, *sizes) for sizes in ((2, 4), (2, 3, 1))]
    assert not torch.allclose(twice[0], gradient(False, 6))
    assert not torch.allclose(twice[1], twice[0])


def test_a_module_with_wrong_chunks_streams_position_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.named("chunk starts from an empty state").plant(monkeypatch)
    mixer, x = zoo.create_mixer(f"{MODULES}:Recurrence", 8).eval(), torch.randn(2, 9, 8)
    first, state = mixer.stream(x[:, :4])
    torch.testing.assert_close(torch.cat((first, mixer.stream(x[:, 4:], state)[0]), 1), mixer(x))


@pytest.mark.parametrize(
    ("error", "name", "why"),
    [
        ("", "torch.nn:LSTM", "chunks differ"),
        ("positions start anew", f"{MODULES}:Attention", "chunks differ"),
        ("faint memory", f"{MODULES}:Stepper", "chunks differ"),
        ("", f"{__name__}:NoRows", r"its state has a tensor \(48,\) without a batch axis"),
    ],
)
def test_a_module_that_cannot_stream_correctly_reads_whole_sequences_only(
    error: str, name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if error == "positions start anew":
        planted.named(error).plant(monkeypatch)
    elif error == "faint memory":  # in float32 the large term hides the state's contribution
        forward, step = Stepper.forward, Stepper.step
        monkeypatch.setattr(Stepper, "forward", lambda self, x: 1e5 * x + forward(self, x))
        monkeypatch.setattr(Stepper, "step", lambda self, x, state=None: (1e5 * x + step(self, x)[0], step(self, x)[1]))
    options = {"hidden_size": 4, "batch_first": True, "bidirectional": True} if "LSTM" in name else {}
    mixer, x = zoo.create_mixer(name, 8, **options), torch.randn(2, 5, 8)
    assert not mixer.streams
    with pytest.raises(ValueError, match=rf"maps whole sequences only \({why}"):
        mixer.stream(x, mixer.stream(x)[1])


def test_a_stream_with_rows_of_different_lengths_cannot_be_continued() -> None:
    mixer, x = zoo.create_mixer("torch.nn:GRU", 8, hidden_size=8, batch_first=True), torch.randn(2, 5, 8)
    with pytest.raises(ValueError, match=r"nn\.GRU maps whole sequences only \(these had rows of different lengths\)"):
        mixer.stream(x, mixer.stream(x, lengths=torch.tensor([5, 3]))[1])


def test_d_model_and_lengths_are_passed_by_parameter_name() -> None:
    name, x = f"{__name__}:Later", torch.ones(2, 4, 8)
    with torch.device("meta"):
        assert [p.shape for p in zoo.create_mixer(name, 8, scale=3.0).parameters()] == [(8, 8)]
    mixer = zoo.create_mixer(name, 8, scale=3.0)
    assert mixer.module.scale == 3.0
    torch.testing.assert_close(mixer(x)[:, :2], 2 * mixer(x, torch.tensor([2, 2]))[:, :2])
    check(Later, d_model=8, options={"scale": 3.0}, only=["causality", "inputs_unchanged"]).raise_if_failed()


def test_loading_a_checkpoint_imports_only_allowed_classes(tmp_path: Path) -> None:
    model = zoo.Backbone({"name": "hybrid", "pattern": [MEAN, "attention"]}, 8, vocab_size=5, n_outputs=5)
    zoo.save(model, tmp_path / "model.ckpt")
    with pytest.raises(
        ValueError, match=r"model\.ckpt uses the class .*:Mean, which is not registered here: .* give allow=\['"
    ):
        zoo.load(tmp_path / "model.ckpt", allow=[])
    with pytest.raises(ValueError, match=r"is not registered here"):
        zoo.load(tmp_path / "model.ckpt")  # the file is outside any run's folder
    for allow in ([MEAN], [f"{__file__}:Mean", MEAN]):
        assert torch.equal(zoo.load(tmp_path / "model.ckpt", allow=allow).norm.weight, model.norm.weight)


class Activated(nn.Linear):
    def __init__(self, d_model: int, act: nn.Module = nn.GELU()) -> None:  # noqa: B008
        super().__init__(d_model, d_model)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(super().forward(x))


def test_saving_a_mixer_with_an_object_as_option_is_refused(tmp_path: Path) -> None:
    name, path, x = f"{__name__}:Activated", tmp_path / "mixer.safetensors", torch.randn(2, 5, 8)
    mixer = zoo.create_mixer(name, 8)
    zoo.save(mixer, path)
    assert torch.equal(zoo.load_mixer(path, allow=[name])(x), mixer(x))
    with refused("Activated has arguments that are not plain data and cannot be stored: act; "):
        zoo.save(zoo.create_mixer(name, 8, act=nn.ReLU()), path)
    model = zoo.Backbone({"name": name, "act": nn.ReLU()}, 8, vocab_size=5, n_outputs=5)
    for suffix in ("ckpt", "safetensors"):
        with refused("Backbone has arguments that are not plain data and cannot be stored: mixer; "):
            zoo.save(model, tmp_path / f"model.{suffix}")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (MEAN, {"gian": 1}, r"'gian' \(did you mean 'gain'\?\); choose from: gain, fails, gives"),
        (MEAN, {"fails": True}, r"Mean cannot be built: RuntimeError: over two lines \(line \d+ of .*\.py\)$"),
        (MEAN, {"gives": 3}, r"Mean cannot be run: .*maps \(3, 64, 8\) to \(3, 64, 3\)"),
        (f"{__name__}:Exits", {}, r"Exits cannot be built: SystemExit: no GPU, bye \(line \d+ of .*\.py\)$"),
        (f"{__name__}:Later", {}, "Later cannot be built: TypeError: .*'scale'.*--mixer.scale VALUE"),
        ("torch.nn:LSTM", {"hidden_size": 8}, r"nn\.LSTM cannot be built: LSTM expects \(seq, batch, d_model\)"),
        ("torch.nn:functional", {}, "torch.nn:functional is of type module"),
        ("collections:OrderedDict", {}, "is the class OrderedDict"),
    ],
)
def test_an_unusable_class_is_a_one_line_error(name: str, options: dict[str, Any], message: str) -> None:
    with refused(message):
        zoo.create_mixer(name, 8, **options)


def test_a_registered_name_is_a_mixer_like_any_other(registry: Any) -> None:
    zoo.register("mean", Mean, summary="a mean", gain=3.0)
    zoo.register("still", Identity, year=2026)
    zoo.register("elsewhere", "no_such:Thing")
    assert zoo.list_mixers()[-3:] == ["mean", "still", "elsewhere"]
    assert "mean" not in list(registry)
    assert registry.summary("mean") == "a mean"
    assert mixer_class("still") is Identity
    assert zoo.create_mixer("mean", 8).module.gain == 3.0
    first, second = zoo.create_layers("hybrid", 2, 8, pattern=["mean", "still"], mean={"gain": 5.0})
    assert (first.module.gain, type(second)) == (5.0, Identity)
    zoo.register("mean", Mean)
    taken = {
        "lstm": "built in",
        "mamba": "built in",
        "mean": f"{__name__}:Mean",
        "a.b": "'a.b' is not a valid name for a mixer",
    }
    for name, message in taken.items():
        with refused(message):
            zoo.register(name, Identity)
    with refused(r"unknown mixer 'maen' \(did you mean 'mean'\?\); .*, elsewhere; or give pack"):
        zoo.create_mixer("maen", 8)
    with refused("there is no module no_such"):
        zoo.create_mixer("elsewhere", 8)
    with refused("builtins:int is the class int"):
        zoo.register("three", int)


def test_entry_points_add_mixers_but_cannot_replace_built_in_ones(
    registry: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "other", **{"zoo.mixers": {"theirs": MEAN, "lstm": "other:LSTM", "mine": "absent:Thing"}})
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(registry, "_looked", False)
    assert "lstm" in registry
    with pytest.warns(match="lstm = other:LSTM is ignored") as said:
        assert type(zoo.create_mixer("theirs", 8)) is mixer_class(MEAN)
    assert len(said) == 1
    assert zoo.list_mixers()[-2:] == ["theirs", "mine"]
    assert mixer_class("lstm").__module__ == "zoo.mixers.lstm"
    with pytest.raises(ValueError, match="there is no module absent"):
        zoo.create_mixer("mine", 8)


@pytest.mark.parametrize("name", [None, 3, ["lstm"], {"lstm": 1}])
def test_a_name_that_is_no_string_is_an_unknown_mixer(name: Any) -> None:
    with pytest.raises(ValueError, match=r"^unknown mixer .*; choose from: attention, "):
        MIXERS.check(name)


def test_a_hybrids_member_has_its_options_under_its_class() -> None:
    pattern = [MEAN, {"name": MEAN, "gain": 4.0}, "attention"]
    layers = zoo.create_layers("hybrid", 3, 8, pattern=pattern, Mean={"gain": 2.0}, n_heads=2)
    assert [layers[0].module.gain, layers[1].module.gain, layers[2].n_heads] == [2.0, 4.0, 2]
    with pytest.raises(ValueError, match="two members are called LSTM: rename one of the classes"):
        zoo.create_layers("hybrid", 2, 8, pattern=["torch.nn:LSTM", "zoo.mixers.lstm:LSTM"])


@dataclass
class Config:
    hidden_size: int
    scale: float = 2.0


class Configurable(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.map = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x)


class Unknown(Configurable):
    def __init__(self, config) -> None:
        super().__init__(config)


class Wide(nn.Module):
    def __init__(self, heads: int = 2, dim: int = 512) -> None:
        super().__init__()
        self.map, self.heads = nn.Linear(dim, dim), heads

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x)


class Bare(nn.Module):
    """A class without a constructor."""

    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(1)


@pytest.mark.parametrize("cls", [Configurable, Wide, Bare, nn.Identity])
def test_d_model_finds_the_usual_names_of_the_width(cls: type[nn.Module]) -> None:
    check(cls, d_model=8, only=["causality"]).raise_if_failed()
    name = f"{cls.__module__}:{cls.__name__}"
    assert zoo.create_mixer(name, 8)(torch.ones(1, 3, 8)).shape == (1, 3, 8)
    if cls is Wide:
        assert zoo.create_mixer(name, 8, heads=3, dim=8).module.heads == 3
        with pytest.raises(ValueError, match=r"cannot be run: .*; dim=4, but d_model=8 is the width"):
            zoo.create_mixer(name, 8, dim=4)


def test_a_class_with_an_untyped_config_is_refused_with_advice() -> None:
    for call in (lambda: zoo.create_mixer(f"{__name__}:Unknown", 8), lambda: check(Unknown, d_model=8)):
        with pytest.raises(ValueError, match=r"it needs a config: write a class that builds it, such as class Mine"):
            call()
