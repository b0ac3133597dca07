"""Save and load models without Lightning: checkpoints of runs, and files written by `save`."""

from __future__ import annotations

import inspect
import io
import os
import pickle
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from zoo import pretrained
from zoo.backbone import Backbone
from zoo.contract import SequenceMixer
from zoo.loading.names import CHECKPOINTS
from zoo.lookup import unknown
from zoo.pretrained import build, build_fitting, misfit, require_plain, require_whole, with_allowed
from zoo.registry import MIXERS
from zoo.report.files import write_atomically

BACKBONE_OPTIONS = tuple(inspect.signature(Backbone).parameters)


M = TypeVar("M", Backbone, SequenceMixer)

_PREFIX = "backbone."  # prefix of the model's weights in the state_dict of a training module


def save(model: Backbone | SequenceMixer, path: str | os.PathLike[str]) -> None:
    """Write class, options and weights of a model or a mixer to a file, without optimizer state.

    Tied weights of head and embedding are tied again after loading. requires_grad is not saved.

        zoo.save(model, "model.safetensors")
        model = zoo.load("model.safetensors")
        zoo.save(mixer, "mixer.safetensors")
        mixer = zoo.load_mixer("mixer.safetensors")

    Args:
        model: a `Backbone` or a mixer, on any device, in any floating dtype.
        path: the file, written atomically; an existing file is replaced. With the suffix .safetensors (extra `hub`)
            other programs can read the weights. With any other suffix the file is a checkpoint in the format of
            training runs, for a `Backbone` only (no mixers, no subclasses).

    Raises:
        ValueError: another kind of module; a module that its options cannot rebuild, because it was built from objects
            or modified afterwards; a sharded module; a mixer or a subclass of `Backbone` without the suffix.
        OSError: the folder does not exist or is not writable.
    """
    if not isinstance(model, Backbone | SequenceMixer):
        other = f"got {type(model).__name__}; for other modules save the state_dict"
        raise ValueError(f"zoo.save needs a zoo.Backbone or a mixer, {other}")
    if Path(path).suffix == pretrained.SUFFIX:
        pretrained.write(model, path)
        return
    if isinstance(model, SequenceMixer):
        raise ValueError(f"zoo.save writes mixers to files with the suffix {pretrained.SUFFIX} only, got {path}")
    require_whole(model)
    require_plain(model)
    if type(model) is not Backbone:
        raise ValueError(
            f"a checkpoint of {type(model).__name__} would be loaded as a Backbone: use the suffix {pretrained.SUFFIX}"
        )
    held = model.state_dict()
    copies = {(t.data_ptr(), t.shape): t.detach().cpu() for t in held.values()}  # tied weights stay one tensor
    weights = {name: copies[t.data_ptr(), t.shape] for name, t in held.items()}
    if found := misfit(build(Backbone, model.options).state_dict(), weights):
        raise ValueError(f"the model was modified, so that its options would not rebuild it: {found}")
    file = io.BytesIO()
    named = {_PREFIX + name: t for name, t in weights.items()}
    torch.save({"hyper_parameters": model.options, "state_dict": named}, file)
    write_atomically(path, file.getvalue())


def load(
    run_dir: str | os.PathLike[str],
    checkpoint: Literal["best", "last"] | str = "best",
    *,
    allow: Iterable[str] | None = None,
) -> Backbone:
    """Load the model of a run or of a file written by `save`: on the CPU, in eval mode, in the dtype of the file.

        model = zoo.load("runs/mqar/hybrid/seed0")
        logits = model(tokens)  # (batch, seq) -> (batch, seq, n_outputs)

    Args:
        run_dir: a run folder or a file.
        checkpoint: which checkpoint of the run: best (on validation) or last.
        allow: classes outside this package that may be imported: `package.module:Class`. Default: none for a file, any
            for a run folder, which we assume to be yours. For a run folder that you do not trust, give `allow=[]`.

    Raises:
        ValueError: no such run or checkpoint, a file that is not a checkpoint of this project, a class that is not
            allowed, or weights that do not fit the model in this version.
    """
    path = find_checkpoint(run_dir, checkpoint)
    if path.suffix == pretrained.SUFFIX:
        return _read(path, Backbone, allow or ())
    saved = read_checkpoint(path)
    hyper, weights = saved["hyper_parameters"], saved["state_dict"]
    options = {name: hyper[name] for name in BACKBONE_OPTIONS}
    if allow is not None or path == Path(run_dir):
        options = with_allowed(path, options, list(allow or ()))
    weights = {name.removeprefix(_PREFIX): w for name, w in weights.items() if name.startswith(_PREFIX)}
    model = build_fitting(path, Backbone, options, weights)
    model.load_state_dict({name: w.clone() for name, w in weights.items()}, assign=True)
    embedding, head = weights.get("embedding.weight"), weights.get("head.weight")
    # Tied weights are stored once in the file.
    if embedding is not None and head is not None and embedding.data_ptr() == head.data_ptr():
        assert model.head is not None
        assert model.embedding is not None
        model.head.weight = model.embedding.weight
    return model.eval()


def load_mixer(path: str | os.PathLike[str], allow: Iterable[str] = ()) -> SequenceMixer:
    """Load a mixer from a file written by `save`: on the CPU, in eval mode, in the dtype of the file.

    Args:
        path: the .safetensors file.
        allow: classes outside this package that may be imported: `package.module:Class`.

    Raises:
        ValueError: no such file, a file that `save` did not write, a class that is not allowed, a file of a `Backbone`,
            or weights that do not fit the mixer in this version.
    """
    return _read(path, SequenceMixer, allow)


def _read(path: str | os.PathLike[str], kind: type[M], allow: Iterable[str]) -> M:
    found = pretrained.read(path, allow)
    if not isinstance(found, kind):
        loads = "zoo.load" if isinstance(found, Backbone) else "zoo.load_mixer"
        raise ValueError(f"{path} contains {type(found).__name__}: load it with {loads}")
    return found


def find_checkpoint(run_dir: str | os.PathLike[str], checkpoint: str = "best") -> Path:
    """Return the file of a run's checkpoint, or `run_dir` itself if it is a file.

    Raises:
        ValueError: no such run, or no such checkpoint in it; the message lists the existing ones.
    """
    run = Path(run_dir)
    if run.is_file():
        return run
    if not run.is_dir():
        raise ValueError(f"no run at {run}")
    path = run / CHECKPOINTS / f"{checkpoint}.ckpt"
    if not path.is_file():
        existing = ", ".join(sorted(p.stem for p in (run / CHECKPOINTS).glob("*.ckpt"))) or "none"
        raise ValueError(f"no checkpoint {checkpoint!r} in {run / CHECKPOINTS}; existing: {existing}")
    return path


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the dictionary of a checkpoint: plain data, and tensors on the CPU that are memory-mapped.

    Raises:
        ValueError: no such file, a damaged one, or one that was not written by a training run or `save`.
    """
    if not Path(path).is_file():
        raise ValueError(f"no checkpoint at {path}")
    if not is_whole(path):
        raise ValueError(f"{path} is damaged, or is not a checkpoint")
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError):
        raise ValueError(f"{path} is damaged, or is not a checkpoint") from None
    if isinstance(saved, Mapping) and saved and all(isinstance(value, Tensor) for value in saved.values()):
        raise ValueError(
            f"{path} is a state_dict, which lacks the options of its model: write the file with zoo.save instead"
        )
    hyper = saved.get("hyper_parameters") if isinstance(saved, Mapping) else None
    if not isinstance(hyper, Mapping) or not hyper.keys() >= {*BACKBONE_OPTIONS}:
        raise ValueError(f"{path} is not a checkpoint of this project's training runs or of zoo.save")
    return dict(saved)


def is_whole(path: str | os.PathLike[str]) -> bool:
    """Return whether a checkpoint is undamaged, by the checksums in the file.

    A truncated file does not open; after a crash of the machine a file may also contain zeros instead of data. The
    whole file is read, but only once per process unless it changes.
    """
    try:
        found = Path(path).stat()
        return _is_whole(str(Path(path).resolve()), found.st_ino, found.st_size, found.st_mtime_ns)
    except OSError:
        return False


@lru_cache(maxsize=16)
def _is_whole(path: str, *_: int) -> bool:
    try:
        with zipfile.ZipFile(path) as file:
            return file.testzip() is None
    except (ValueError, RuntimeError, EOFError, zipfile.BadZipFile, zlib.error):  # RuntimeError: "is encrypted"
        return False


def check_checkpoint(path: str | os.PathLike[str], mixer: Mapping[str, Any], **options: Any) -> int:
    """Check that a checkpoint fits the model of a run that resumes from it.

    Args:
        path: the checkpoint.
        mixer: the run's {"name": ..., **options}; options that are not given are not compared.
        **options: further options of `Backbone` to compare.

    Returns:
        The optimizer step of the checkpoint.

    Raises:
        ValueError: another mixer, another value of an option, an unknown option; the errors of `read_checkpoint`.
    """
    for name in options.keys() - set(BACKBONE_OPTIONS):
        raise ValueError(unknown("option of Backbone", name, BACKBONE_OPTIONS))
    saved = read_checkpoint(path)
    if "global_step" not in saved:
        raise ValueError(f"{path} has a model but no training state: a run cannot resume from it")
    hyper = saved["hyper_parameters"]
    held = dict(hyper["mixer"])
    if MIXERS.check(held["name"]) != MIXERS.check(mixer["name"]):
        raise ValueError(f"checkpoint {path} has mixer {held['name']!r}, but this run has {mixer['name']!r}")
    pairs = [(f"mixer.{name}", held[name], mixer[name]) for name in held if name in mixer]
    pairs += [(name, hyper[name], options[name]) for name in BACKBONE_OPTIONS if name in options]
    for name, there, asked in pairs:
        if there != asked:
            raise ValueError(f"checkpoint {path} has {name}={there!r}, but this run has {name}={asked!r}")
    return int(saved["global_step"])
