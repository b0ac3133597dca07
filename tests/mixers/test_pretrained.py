"""Saving and loading mixers and models: safetensors files, folders, and the Hugging Face hub (simulated)."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import torch
from torch import nn

import zoo
from zoo.__main__ import _trained
from zoo.blocks import Stack
from zoo.mixers.lstm import LSTM

BACKBONE = {"mixer": {"name": "hybrid"}, "d_model": 8, "vocab_size": 11, "n_outputs": 11}


def assert_same(loaded: nn.Module, saved: nn.Module) -> None:
    assert type(loaded) is type(saved)
    assert loaded.options == saved.options
    assert not loaded.training
    found, expected = loaded.state_dict(), saved.state_dict()
    assert list(found) == list(expected)
    for name, t in expected.items():
        assert found[name].dtype == t.dtype
        assert torch.equal(found[name], t)


@pytest.mark.parametrize("name", zoo.list_mixers())
def test_a_saved_mixer_loads_unchanged(name: str, tmp_path: Path, unchecked_shapes: None) -> None:
    mixer = zoo.create_mixer(name, 8)
    drawn = torch.random.get_rng_state()
    zoo.save(mixer, tmp_path / "mixer.safetensors")
    assert_same(zoo.load_mixer(tmp_path / "mixer.safetensors"), mixer)
    assert torch.equal(torch.random.get_rng_state(), drawn)


class Hub:
    """Replaces HfApi and the hub's download by a folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.asked = root, list[tuple[str, Any]]()

    def create_repo(self, repo_id: str, **options: Any) -> SimpleNamespace:
        self.asked.append((repo_id, options["private"]))
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str, **options: Any) -> str:
        shutil.copytree(folder_path, self.root / repo_id)
        return f"hub/{repo_id}: {commit_message}"

    def download(self, repo_id: str, filename: str, **options: Any) -> str:
        if not (self.root / repo_id / filename).is_file():
            raise huggingface_hub.errors.LocalEntryNotFoundError(f"no {filename}\nin {repo_id}")
        self.asked.append((repo_id, options["revision"]))
        return str(self.root / repo_id / filename)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path / "hub")
    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", lambda token: hub)
    monkeypatch.setattr(
        "huggingface_hub.hub_mixin.hf_hub_download", lambda repo_id, filename, **o: hub.download(repo_id, filename, **o)
    )
    monkeypatch.setattr("huggingface_hub.hf_hub_download", hub.download)
    return hub


def test_a_model_is_pushed_and_pulled(hub: Hub) -> None:
    model = zoo.Backbone(**BACKBONE)
    assert model.push_to_hub("me/model", private=True, commit_message="first") == "hub/me/model: first"
    assert_same(zoo.Backbone.from_pretrained("me/model", revision="main"), model)
    assert hub.asked == [("me/model", True), ("me/model", "main"), ("me/model", "main")]
    files = sorted(path.name for path in (hub.root / "me/model").iterdir())
    assert files == ["README.md", "config.json", "model.safetensors"]
    assert json.loads((hub.root / "me/model/config.json").read_text())["options"]["mixer"] == {"name": "hybrid"}
    assert "zoo.Backbone.from_pretrained" in (hub.root / "me/model/README.md").read_text()


class Own(zoo.Backbone):
    """A user's model class."""


def test_from_pretrained_loads_only_its_own_class(tmp_path: Path, hub: Hub) -> None:
    own = Own(**BACKBONE)
    own.save_pretrained(tmp_path / "own")
    assert_same(Own.from_pretrained(tmp_path / "own"), own)
    with pytest.raises(
        ValueError, match=r"uses the class .*:Own, which is not registered here: .* give allow=\['.*:Own'\]"
    ):
        zoo.Backbone.from_pretrained(tmp_path / "own")
    with pytest.raises(ValueError, match=r"is a file, but from_pretrained reads folders: use zoo\.load"):
        zoo.Backbone.from_pretrained(tmp_path / "own" / "model.safetensors")
    assert_same(zoo.load(tmp_path / "own/model.safetensors", allow=[f"{__name__}:Own"]), own)
    plain = zoo.Backbone(**BACKBONE)
    plain.save_pretrained(tmp_path / "plain")
    assert_same(_trained(str(tmp_path / "plain")), plain)  # the loader of zoo measure and zoo heads
    with pytest.raises(ValueError, match=r"plain contains Backbone, not Own$"):
        Own.from_pretrained(tmp_path / "plain")
    for source in ("me/nothing", "/no/such/folder"):
        with pytest.raises(
            ValueError, match=rf"^{source} is not a local folder, and the hub gave no model.safetensors: "
        ):
            zoo.Backbone.from_pretrained(source)


OWN_MIXERS = """
import torch
from zoo.mixers.lstm import LSTM

class Mine(LSTM):
    pass

class Plain(torch.nn.Linear):
    def __init__(self, d_model, scale=1.0):
        super().__init__(d_model, d_model)
        self.scale = scale
"""


@pytest.mark.parametrize(("name", "options"), [("Mine", {"d_inner": 4}), ("Plain", {"scale": 2.0})])
def test_loading_a_users_mixer_needs_allow(
    name: str, options: dict[str, Any], tmp_path: Path, unchecked_shapes: None
) -> None:
    (tmp_path / "own.py").write_text(OWN_MIXERS)
    mixer = zoo.create_mixer(f"{tmp_path}/own.py:{name}", 8, **options)
    zoo.save(mixer, tmp_path / "mixer.safetensors")
    with pytest.raises(ValueError, match=rf"uses the class .*own.py:{name}, which is not registered here"):
        zoo.load_mixer(tmp_path / "mixer.safetensors")
    assert_same(zoo.load_mixer(tmp_path / "mixer.safetensors", allow=[f"{tmp_path}/own.py:{name}"]), mixer)
    (tmp_path / "moved").mkdir()
    (tmp_path / "own.py").rename(tmp_path / "moved/own.py")
    moved = zoo.load_mixer(tmp_path / "mixer.safetensors", allow=[f"{tmp_path}/moved/own.py:{name}"])
    assert moved.options == mixer.options == {**mixer.options, "d_model": 8, **options}


class SharedMask(nn.Module):
    """Two layers with one mask, as attention layers share a causal mask."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        mask = torch.ones(d_model)
        for layer in (self.first, self.second):
            layer.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) * self.first.mask) * self.second.mask


def test_a_buffer_that_two_submodules_share_is_saved_once_and_shared_again(
    tmp_path: Path, unchecked_shapes: None
) -> None:
    mixer, path = zoo.create_mixer(f"{__name__}:SharedMask", 8), tmp_path / "mixer.safetensors"
    zoo.save(mixer, path)
    loaded = zoo.load_mixer(path, allow=[f"{__name__}:SharedMask"])
    assert_same(loaded, mixer)
    assert loaded.module.first.mask is loaded.module.second.mask


@pytest.mark.parametrize("where", ["class", "mixer", "pattern"])
def test_loading_a_file_imports_nothing_without_allow(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "payload.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    named = {"mixer": {"name": "payload:Mixer"}, "pattern": {"name": "hybrid", "pattern": ["lstm", "payload:Mixer"]}}
    options = {**BACKBONE, "mixer": named.get(where, {"name": "lstm"})}
    record = {
        "class": "payload:Mixer" if where == "class" else "zoo.backbone:Backbone",
        "options": options,
        "shared": {},
    }
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(1)}, path, {"mixer_zoo": json.dumps(record)})
    with pytest.raises(ValueError, match=r"^.* uses the class payload:Mixer, which is not registered here: [^\n]*$"):
        zoo.load(path)
    assert "payload" not in sys.modules


class ByPosition(LSTM):
    def __init__(self, d_model: int, /) -> None:
        super().__init__(d_model)


def test_unreadable_files_and_unsaveable_modules_are_one_line_errors(tmp_path: Path, unchecked_shapes: None) -> None:
    path, mixer = tmp_path / "x.safetensors", zoo.create_mixer("lstm", 8)

    def refused(line: str, call: Any = lambda: zoo.load_mixer(path)) -> None:
        with pytest.raises(ValueError, match=f"^{line}$"):
            call()

    refused(r"there is no file .*x\.safetensors")
    path.write_bytes(b"nothing")
    refused(r".* is damaged, or is not a safetensors file")
    safetensors.torch.save_file(mixer.state_dict(), path)
    refused(r".* has weights but no module class and options: write it with zoo.save")
    record = {"class": "zoo.mixers.lstm:LSTM", "options": {"d_model": 8}, "shared": {}}
    for changed, line in (
        ({"options": {"d_model": 4}}, r".* does not fit LSTM as this version builds it: \w+ has shape .*"),
        ({"options": {"d_model": 0}}, r".* has class LSTM, which this version cannot build: d_model must be .*"),
        ({"options": {"d_model": 8, "width": 8}}, r".* has class LSTM, which this version cannot build: .*'width'"),
    ):
        metadata = {"mixer_zoo": json.dumps(record | changed)}
        safetensors.torch.save_file({k: t.contiguous() for k, t in mixer.state_dict().items()}, path, metadata)
        refused(line)
    zoo.save(zoo.Backbone(**BACKBONE), path)
    refused(".* contains Backbone: load it with zoo.load")
    zoo.save(mixer, path)
    refused(".* contains LSTM: load it with zoo.load_mixer", lambda: zoo.load(path))
    refused(
        r"zoo.save writes mixers to files with the suffix \.safetensors only, got x.ckpt",
        lambda: zoo.save(mixer, "x.ckpt"),
    )
    refused(
        "Stack has arguments that are not plain data and cannot be stored: layers; .*",
        lambda: zoo.save(Stack([mixer]), path),
    )
    refused("ByPosition cannot be rebuilt from its options .*", lambda: zoo.save(ByPosition(8), path))
    mixer.register_buffer("more", torch.zeros(1))
    refused("the module was modified, so that its options would not rebuild it: .*", lambda: zoo.save(mixer, path))


def test_a_damaged_file_or_one_with_wrong_sizes_is_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "model.safetensors", zoo.Backbone(**BACKBONE)
    zoo.save(model, path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 0x80  # the sign of a weight
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        zoo.load(path)
    huge = {"class": "zoo.backbone:Backbone", "options": {**BACKBONE, "d_model": 2**22}, "shared": {}}
    weights = {name: t.contiguous() for name, t in model.state_dict().items()}
    safetensors.torch.save_file(weights, path, {"mixer_zoo": json.dumps(huge)})
    with pytest.raises(ValueError, match=r"model\.safetensors does not fit Backbone .*has shape"):
        zoo.load(path)
