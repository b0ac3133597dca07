"""Models saved and loaded without lightning: checkpoints of runs, and files of `save`, contain their own options."""

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

_PREFIX = "backbone."  # of the weights' names, since a training module holds more than the model


def save(model: Backbone | SequenceMixer, path: str | os.PathLike[str]) -> None:
    """Write a model's or a mixer's class, options and weights to a file; no optimizer, nothing to resume from.

    A head that is the embedding is so again when it is loaded; every weight is then one that training changes.

        zoo.save(model, "model.safetensors")
        model = zoo.load("model.safetensors")
        zoo.save(mixer, "mixer.safetensors")
        mixer = zoo.load_mixer("mixer.safetensors")

    Args:
        model: on any device, in any floating type.
        path: the file, written whole or not at all; an old file is replaced. With the suffix .safetensors (extra
            `hub`) other programs can read the weights; with any other one it is a checkpoint as training writes them,
            of a `Backbone` itself only.

    Raises:
        ValueError: no `Backbone` or mixer, or one that was built from objects or changed after it was built, and could
            not be built again; one in shards; a mixer or a class of your own to a file without the suffix.
        OSError: the folder is not there or cannot be written.
    """
    if not isinstance(model, Backbone | SequenceMixer):
        other = f"got {type(model).__name__}; of any other module save the state_dict"
        raise ValueError(f"zoo.save takes a zoo.Backbone or a mixer, {other}")
    if Path(path).suffix == pretrained.SUFFIX:
        pretrained.write(model, path)
        return
    if isinstance(model, SequenceMixer):
        raise ValueError(f"zoo.save takes a mixer to a file with the suffix {pretrained.SUFFIX}")
    require_whole(model)
    require_plain(model)
    if type(model) is not Backbone:
        raise ValueError(f"{type(model).__name__} would be loaded as a Backbone: give the suffix {pretrained.SUFFIX}")
    held = model.state_dict()
    copies = {(t.data_ptr(), t.shape): t.detach().cpu() for t in held.values()}  # one tensor for names that share it
    weights = {name: copies[t.data_ptr(), t.shape] for name, t in held.items()}
    if found := misfit(build(Backbone, model.options).state_dict(), weights):
        raise ValueError(f"the model is not the one that its options build, and could not be loaded: {found}")
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
    """Load the model of a run, or one that `save` wrote: on the CPU, in eval mode, in the type it was saved in.

        model = zoo.load("runs/mqar/hybrid/seed0")
        logits = model(tokens)  # (batch, seq) -> (batch, seq, n_outputs)

    Args:
        run_dir: folder of the run, or a file itself.
        checkpoint: which of the run's checkpoints: best on validation, or last.
        allow: classes besides those of this package that the file may name, and that are then imported:
            `package.module:Class`. By default a file may name none, and a run's folder any, since a run is taken to be
            yours: of one that is not, give `allow=[]`.

    Raises:
        ValueError: no such run or checkpoint, a file that is not a checkpoint of this project, a class that is not
            allowed, or weights that do not fit the model as this version builds it.
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
    if embedding is not None and head is not None and embedding.data_ptr() == head.data_ptr():  # kept once in the file
        assert model.head is not None
        assert model.embedding is not None
        model.head.weight = model.embedding.weight
    return model.eval()


def load_mixer(path: str | os.PathLike[str], allow: Iterable[str] = ()) -> SequenceMixer:
    """Load a mixer that `save` wrote: on the CPU, in eval mode, in the type it was saved in.

    Args:
        path: the .safetensors file.
        allow: classes besides those of this package that the file may name: `package.module:Class`.

    Raises:
        ValueError: no such file, one that `save` did not write, a class that is not allowed, a file of a `Backbone`, or
            weights that do not fit the mixer as this version builds it.
    """
    return _read(path, SequenceMixer, allow)


def _read(path: str | os.PathLike[str], kind: type[M], allow: Iterable[str]) -> M:
    found = pretrained.read(path, allow)
    if not isinstance(found, kind):
        loads = "zoo.load" if isinstance(found, Backbone) else "zoo.load_mixer"
        raise ValueError(f"{path} holds {type(found).__name__}, which {loads} reads")
    return found


def find_checkpoint(run_dir: str | os.PathLike[str], checkpoint: str = "best") -> Path:
    """Return the file of a run's checkpoint, or `run_dir` itself if it is a file.

    Raises:
        ValueError: no such run, or no such checkpoint in it; the message lists those there are.
    """
    run = Path(run_dir)
    if run.is_file():
        return run
    if not run.is_dir():
        raise ValueError(f"no run at {run}")
    path = run / CHECKPOINTS / f"{checkpoint}.ckpt"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in (run / CHECKPOINTS).glob("*.ckpt"))) or "none"
        raise ValueError(f"no checkpoint {checkpoint!r} in {run / CHECKPOINTS}; there: {there}")
    return path


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the dictionary a training run, or `save`, wrote: plain data and tensors on the CPU, mapped from the file.

    Raises:
        ValueError: no such file, a damaged one, or one that no training run of this project wrote.
    """
    if not Path(path).is_file():
        raise ValueError(f"no checkpoint at {path}")
    if not is_whole(path):
        raise ValueError(f"{path} is damaged, or no checkpoint")
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError):
        raise ValueError(f"{path} is damaged, or no checkpoint") from None
    if isinstance(saved, Mapping) and saved and all(isinstance(value, Tensor) for value in saved.values()):
        raise ValueError(
            f"{path} is a state_dict: weights without the options of their model, which zoo.save writes too"
        )
    hyper = saved.get("hyper_parameters") if isinstance(saved, Mapping) else None
    if not isinstance(hyper, Mapping) or not hyper.keys() >= {*BACKBONE_OPTIONS}:
        raise ValueError(f"{path} is no checkpoint of a training run of this project, nor a file of zoo.save")
    return dict(saved)


def is_whole(path: str | os.PathLike[str]) -> bool:
    """Return whether every byte of a checkpoint is as it was written, by the checksums in the file; reads all of it.

    A file cut short does not open; after a crash of the machine one may also hold zeros where data should be. A process
    reads a file that did not change since only once.
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
    """Make sure that a checkpoint is of the model a run asks for, before anything is built on it.

    Args:
        path: the checkpoint.
        mixer: the run's {"name": ..., **options}; an option that is not given is not compared.
        **options: further options of `Backbone` that the run asks for.

    Returns:
        The optimizer step at which it was saved.

    Raises:
        ValueError: as `read_checkpoint`; also another mixer, another value of an option, an unknown option.
    """
    for name in options.keys() - set(BACKBONE_OPTIONS):
        raise ValueError(unknown("option of Backbone", name, BACKBONE_OPTIONS))
    saved = read_checkpoint(path)
    if "global_step" not in saved:
        raise ValueError(f"{path} holds a model and no state of training: a run cannot resume from it")
    hyper = saved["hyper_parameters"]
    held = dict(hyper["mixer"])
    if MIXERS.check(held["name"]) != MIXERS.check(mixer["name"]):
        raise ValueError(f"checkpoint {path} holds mixer {held['name']!r}, this run asks for {mixer['name']!r}")
    pairs = [(f"mixer.{name}", held[name], mixer[name]) for name in held if name in mixer]
    pairs += [(name, hyper[name], options[name]) for name in BACKBONE_OPTIONS if name in options]
    for name, there, asked in pairs:
        if there != asked:
            raise ValueError(f"checkpoint {path} holds {name}={there!r}, this run asks for {name}={asked!r}")
    return int(saved["global_step"])
