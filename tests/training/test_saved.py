"""Loading trained models: from runs without lightning, from saved files; unsuitable files are one-line errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import zoo
from tests import python, refused
from tests.tolerances import assert_close
from tests.training import small
from zoo.loading.saved import check_checkpoint, load, read_checkpoint


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, with the final weights in weights.pt."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    module = small.module(seed=3)
    small.trainer(folder, max_steps=7).fit(module, datamodule=small.data(folder.parent))
    torch.save(module.backbone.state_dict(), folder / "weights.pt")
    return folder


def test_load_gives_the_trained_backbone_in_eval_mode(run: Path) -> None:
    torch.manual_seed(5)
    expected_draw = torch.rand(())
    torch.manual_seed(5)
    last = zoo.load(run, "last")
    assert torch.equal(torch.rand(()), expected_draw)
    assert isinstance(last, zoo.Backbone)
    assert not last.training
    small.assert_identical(small.weights(last), torch.load(run / "weights.pt", weights_only=True))
    best = zoo.load(run)
    assert not torch.equal(best.head.weight, last.head.weight)  # best is from step 5
    small.assert_identical(small.weights(best), small.weights(load(run / "checkpoints/best.ckpt")))


@pytest.mark.slow
def test_load_imports_no_lightning_and_no_tasks(run: Path) -> None:
    program = f"""
import sys, torch, zoo
model = zoo.load({str(run)!r}, "last")
logits = model(torch.zeros(2, 8, dtype=torch.int64))
assert logits.shape == (2, 8, {small.CLASSES})
loaded = [name for name in ("lightning", "tasks", "datasets", "tensorboard", "torchmetrics") if name in sys.modules]
assert not loaded, loaded
"""
    python("-W", "error", "-c", program)


@pytest.mark.parametrize("suffix", ["ckpt", "safetensors"])
@pytest.mark.parametrize(("mixer", "dtype", "tied"), [("lstm", torch.bfloat16, False), ("hybrid", torch.float64, True)])
def test_a_saved_backbone_loads_unchanged(
    mixer: str, dtype: torch.dtype, tied: bool, suffix: str, tmp_path: Path, unchecked_shapes: None
) -> None:
    options = {"name": mixer} | ({"attention": {"n_heads": 2}} if mixer == "hybrid" else {"d_inner": 6})
    model = zoo.Backbone(options, 8, 2, vocab_size=5, n_outputs=5, d_conv=2, n_experts=2).to(dtype)
    if tied:
        model.head.weight = model.embedding.weight
    model.layers.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        expected = torch.rand(())
    file = tmp_path / f"model.{suffix}"
    zoo.save(model, file)
    loaded = zoo.load(file)
    assert torch.equal(torch.rand(()), expected)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert (type(loaded), loaded.training, loaded.options) == (zoo.Backbone, False, model.options)
    assert all(p.dtype == dtype and p.requires_grad for p in loaded.parameters())
    assert (loaded.head.weight is loaded.embedding.weight) == tied
    small.assert_identical(small.weights(loaded), small.weights(model))
    tokens = torch.tensor([[1, 4, 0]])
    assert_close(loaded(tokens), model.eval()(tokens))
    zoo.save(loaded, file)  # replaces the file that it was loaded from
    small.assert_identical(small.weights(zoo.load(file)), small.weights(model))


def test_a_model_that_could_not_be_loaded_is_not_saved(run: Path, tmp_path: Path, unchecked_shapes: None) -> None:
    model = zoo.Backbone({"name": "lstm"}, 8, 2, vocab_size=5, n_outputs=3)
    path = tmp_path / "model.ckpt"
    with refused(r"^zoo.save needs a zoo.Backbone or a mixer, got Linear; for other modules .*$"):
        zoo.save(torch.nn.Linear(2, 2), path)  # pyright: ignore[reportArgumentType]
    model.head = torch.nn.Linear(8, 7, bias=False)
    with pytest.raises(ValueError, match=r"^the model was modified, .*: head.weight has shape \(7, 8\), .*$"):
        zoo.save(model, path)
    with pytest.raises(FileNotFoundError):
        zoo.save(load(run), tmp_path / "nowhere" / "model.ckpt")
    assert not list(tmp_path.iterdir())


def test_subclasses_of_backbone_cannot_be_saved_as_ckpt(tmp_path: Path) -> None:
    class Own(zoo.Backbone):
        def __init__(self, d_model: int) -> None:
            super().__init__({"name": "lstm"}, d_model, 1, vocab_size=5, n_outputs=3)

    class Doubled(zoo.Backbone):
        def read_out(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().read_out(x)

    for model in (Own(8), Doubled({"name": "lstm"}, 8, 1, vocab_size=5, n_outputs=3)):
        with refused(f"{type(model).__name__} .*safetensors"):
            zoo.save(model, tmp_path / "model.ckpt")
    assert not list(tmp_path.iterdir())


def test_resuming_from_a_saved_model_is_refused(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.ckpt"
    zoo.save(load(run), path)
    with pytest.raises(ValueError, match=f"^{path} has a model but no training state: .*$"):
        check_checkpoint(path, {"name": "attention"})


def test_a_missing_run_or_checkpoint_is_an_error_that_lists_those_present(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^no run at {tmp_path / 'nowhere'}$"):
        load(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"^no checkpoint 'worst' in .*checkpoints; existing: best, last, previous$"):
        load(run, "worst")
    with pytest.raises(ValueError, match=r"^no checkpoint 'best' in .*; existing: none$"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"^no checkpoint at .*x\.ckpt$"):
        check_checkpoint(tmp_path / "x.ckpt", {"name": "attention"})


@pytest.mark.parametrize("content", ["", "text", "truncated", "foreign", "state_dict"])
def test_a_file_that_is_no_checkpoint_is_a_one_line_error(run: Path, tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.ckpt"
    whole = (run / "checkpoints/last.ckpt").read_bytes()
    if content in ("foreign", "state_dict"):
        torch.save({"weights": torch.ones(2)} | ({"name": "x"} if content == "foreign" else {}), path)
    else:
        path.write_bytes({"": b"", "text": b"not a checkpoint\n", "truncated": whole[: len(whole) // 2]}[content])
    with refused(f"^{path} is "):
        load(path)


@pytest.mark.parametrize("part", [0.3, 0.5, 0.7])
def test_a_flipped_bit_is_detected_by_every_reader(run: Path, tmp_path: Path, part: float) -> None:
    content = bytearray((run / "checkpoints/last.ckpt").read_bytes())
    content[int(part * len(content))] ^= 0x80
    path = tmp_path / "x.ckpt"
    path.write_bytes(content)
    for read in (load, read_checkpoint, lambda path: check_checkpoint(path, {"name": "attention"})):
        with pytest.raises(ValueError, match=rf"^{path} is damaged"):
            read(path)


def test_a_flipped_bit_in_the_directory_of_the_file_is_damage(run: Path, tmp_path: Path) -> None:
    content = bytearray((run / "checkpoints/last.ckpt").read_bytes())
    content[content.rindex(b"PK\x01\x02") + 8] ^= 1  # the flag "encrypted" of the last entry
    path = tmp_path / "x.ckpt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{path} is damaged"):
        load(path)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"mixer": {"name": "hybrid"}}, "has mixer 'attention', but this run has 'hybrid'"),
        ({"mixer": {"name": "attention", "n_heads": 4}}, "has mixer.n_heads=2, but this run has mixer.n_heads=4"),
        ({"mixer": {"name": "attention"}, "d_model": 32}, "has d_model=16, but this run has d_model=32"),
        (
            {"mixer": {"name": "attention"}, "embedding_scale": 2.0},
            "has embedding_scale=1.0, but this run has embedding_scale=2.0",
        ),
        ({"mixer": {"name": "attention"}, "dmodel": 32}, "unknown option of Backbone 'dmodel'.*d_model"),
    ],
)
def test_check_checkpoint_refuses_other_options_with_the_difference(
    run: Path, asked: dict[str, Any], message: str
) -> None:
    path = run / "checkpoints/last.ckpt"
    assert check_checkpoint(path, {"name": "attention", "n_heads": 2}, d_model=16, n_layers=1) == 7
    with pytest.raises(ValueError, match=message):
        check_checkpoint(path, **asked)


def test_weights_that_do_not_fit_are_a_one_line_error(run: Path, tmp_path: Path) -> None:
    saved = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    path = tmp_path / "x.ckpt"
    weight = saved["state_dict"].pop("backbone.head.weight")
    for change, message in (
        ({}, "it lacks head.weight"),
        ({"backbone.head.weight": weight[:2]}, r"head.weight has shape \(2, 16\), expected \(4, 16\)"),
        ({"backbone.head.weight": weight, "backbone.tail": weight}, "it has the unknown weight tail"),
    ):
        torch.save({**saved, "state_dict": {**saved["state_dict"], **change}}, path)
        with pytest.raises(ValueError, match=f"^{path} does not fit Backbone .*: {message}$"):
            load(path)
