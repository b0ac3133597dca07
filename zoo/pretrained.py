"""Save and load modules (class, options, weights) as one safetensors file, and on the Hugging Face hub.

A file contains no code and no pickle, only the name of a class. The class must be registered by this package, or
allowed by the caller.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from zoo import targets
from zoo.adapters.adopted import Adopted, adopt
from zoo.extras import require_extra
from zoo.modules import Configured
from zoo.registry import MIXERS
from zoo.report.files import write_atomically

C = TypeVar("C", bound=Configured)

SUFFIX = ".safetensors"
FILE = f"model{SUFFIX}"
"""File name that the hub expects."""

_RECORD = "mixer_zoo"  # key of class and options in the file's metadata
_BUILT_IN = "zoo.backbone:Backbone"

_CARD = """\
---
{{ card_data }}
---

A sequence model of mixer-zoo. `config.json` shows its options; `model.safetensors` holds these and the weights.

```python
import zoo

model = zoo.Backbone.from_pretrained("user/name")  # the name of this repository
```
"""


class Pretrained(Configured):
    """A module with `save_pretrained`, `from_pretrained` and `push_to_hub`, based on huggingface_hub's `ModelHubMixin`.

    The mixin (extra `hub`) is imported by these methods and is not a base class, so that `import zoo` does not need
    huggingface_hub. We do not use `PyTorchModelHubMixin`, because it falls back to pickled weights.
    """

    def save_pretrained(self, folder: str | os.PathLike[str], **options: Any) -> str | None:
        """Write model.safetensors, config.json (the options, for human readers) and a model card into a folder.

        Args:
            folder: the folder; created if missing.
            **options: options of the mixin, such as push_to_hub=True and repo_id.

        Returns:
            The URL of the commit if push_to_hub is true.

        Raises:
            ValueError: a module that its options cannot rebuild, because it was modified, or a sharded module.
        """
        return _repository()(self).save_pretrained(folder, config=_record(self), **options)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the files of `save_pretrained` to the hub; the repository is created if missing.

        Args:
            repo_id: user/name.
            **options: options of the mixin, such as private, token, branch, commit_message and create_pr.

        Returns:
            The URL of the commit.

        Raises:
            ValueError: the errors of `save_pretrained`.
        """
        return _repository()(self).push_to_hub(repo_id, config=_record(self), **options)

    @classmethod
    def from_pretrained(cls, source: str | os.PathLike[str], *, allow: Iterable[str] = (), **options: Any) -> Self:
        """Load a module from a folder or the hub: on the CPU, in eval mode, in the dtype of the file.

            model = zoo.Backbone.from_pretrained("user/name", revision="main")

        Args:
            source: a folder, or the name of a repository on the hub.
            allow: see `read`.
            **options: options of the mixin: revision, cache_dir, force_download, local_files_only, token.

        Raises:
            ValueError: `source` is a file, or not a folder or repository with a model.safetensors; the errors of
                `read`.
        """
        if Path(source).is_file():
            raise ValueError(f"{source} is a file, but from_pretrained reads folders: use zoo.load")
        repository = _repository()
        try:
            found = repository.from_pretrained(source, allow=[*allow, class_path(cls)], **options).module
        except (OSError, require_extra("huggingface_hub.errors", "hub").HFValidationError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise ValueError(f"{source} is not a local folder, and the hub gave no {FILE}: {reason}") from error
        if not isinstance(found, cls):
            raise ValueError(f"{source} contains {type(found).__name__}, not {cls.__name__}")
        return found


def class_path(cls: type[Configured]) -> str:
    """Return the name of a class in a file; for a plain torch module adapted as a mixer, the name of its own class."""
    return cls.name if issubclass(cls, Adopted) else targets.target_of(cls)


def write(module: Configured, path: str | os.PathLike[str]) -> None:
    """Write class, options and weights to one safetensors file, atomically.

    Raises:
        ValueError: a module that its options cannot rebuild, because it was built from objects or modified afterwards,
            or a sharded module.
        OSError: the folder does not exist or is not writable.
    """
    record, weights = _record(module), module.state_dict()
    try:
        fresh = build(type(module), module.options)
    except TypeError as error:  # positional-only arguments or *args
        raise ValueError(
            f"{type(module).__name__} cannot be rebuilt from its options ({error}): save its parts, or its state_dict"
        ) from None
    if found := misfit(fresh.state_dict(), weights):
        raise ValueError(f"the module was modified, so that its options would not rebuild it: {found}")
    first: dict[tuple[Any, ...], str] = {}
    for name, t in weights.items():
        first.setdefault((t.data_ptr(), t.shape) if t.numel() else (name,), name)
    kept = set(first.values())
    shared = {name: first[t.data_ptr(), t.shape] for name, t in weights.items() if name not in kept}
    tensors = {name: weights[name].detach().cpu().contiguous() for name in kept}
    metadata = {"format": "pt", _RECORD: json.dumps({**record, "shared": shared, "digest": _digest(tensors)})}
    write_atomically(path, require_extra("safetensors.torch", "hub").save(tensors, metadata))


def read(path: str | os.PathLike[str], allow: Iterable[str] = ()) -> Configured:
    """Load the module of a file that `write` wrote: on the CPU, in eval mode, in the dtypes of the file.

    Names and shapes are compared before the module is allocated, if its class can be built on the meta device.

    Args:
        path: the file.
        allow: trusted classes outside this package: `package.module:Class` or `path/file.py:Class`. No other code is
            imported.

    Raises:
        ValueError: a missing or damaged file, a file that `write` did not write, a class that is not registered or
            allowed, options or weights that do not fit the installed version of the class.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}")
    safetensors = require_extra("safetensors", "hub")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            record = json.loads((file.metadata() or {}).get(_RECORD, "null"))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        name, options, shared = str(record["class"]), record["options"], record["shared"]
        is_whole = record.get("digest", digest := _digest(weights)) == digest
        weights |= {again: weights[once] for again, once in shared.items()}
    except safetensors.SafetensorError:
        raise ValueError(f"{path} is damaged, or is not a safetensors file") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"{path} has weights but no module class and options: write it with zoo.save") from None
    if not is_whole:
        raise ValueError(f"{path} is damaged: the checksum of its weights is wrong")
    allowed = list(allow)
    cls = _find_class(path, name, allowed)
    module = build_fitting(path, cls, with_allowed(path, options, allowed), weights)
    module.load_state_dict(weights, assign=True)
    for again, once in shared.items():
        owner, _, attribute = again.rpartition(".")
        setattr(module.get_submodule(owner), attribute, attrgetter(once)(module))
    return module.eval()


def with_allowed(path: str | os.PathLike[str], options: Any, allowed: Iterable[str]) -> Any:
    """Return a file's options, with each user-defined class replaced by its entry in `allowed` (its path may differ).

    Raises:
        ValueError: a user-defined class that is not allowed.
    """
    if isinstance(options, Mapping):
        return {key: with_allowed(path, each, allowed) for key, each in options.items()}
    if isinstance(options, list):
        return [with_allowed(path, each, allowed) for each in options]
    return _allowed(path, options, allowed) if targets.is_target(options) else options


def _allowed(path: str | os.PathLike[str], name: str, allowed: Iterable[str]) -> str:
    for each in map(targets.absolute, allowed):
        moved = ".py:" in name and targets.short(name) == targets.short(each)  # same file name, another folder
        if moved or targets.absolute(name) == each:
            return each
    raise ValueError(
        f"{path} uses the class {name}, which is not registered here: if you trust it, give allow=[{name!r}], "
        f"or --allow {name} on the command line"
    )


def build(cls: type[C], options: Mapping[str, Any]) -> C:
    """Build a module without advancing torch's global generator; its initial weights will be overwritten."""
    with torch.random.fork_rng(devices=[]):
        return cls(**options)


def build_fitting(path: str | os.PathLike[str], cls: type[C], options: Any, weights: Mapping[str, Tensor]) -> C:
    """Build the module of a file; names and shapes are compared first on the meta device, if it can be built there.

    Raises:
        ValueError: options that the class rejects, weights with other names or shapes.
    """
    expected: Mapping[str, Tensor] = {}
    try:
        # Constructors that read values fail on meta.
        with suppress(NotImplementedError, RuntimeError), torch.device("meta"):
            expected = build(cls, options).state_dict()
        found = misfit(expected, weights) if expected else None
        module = None if found else build(cls, options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} has class {cls.__name__}, which this version cannot build: {error}") from error
    if module is None or (found := misfit(module.state_dict(), weights)):
        raise ValueError(f"{path} does not fit {cls.__name__} as this version builds it: {found}")
    return module


def misfit(expected: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str | None:
    """Describe the first difference in names or shapes; return None if all agree."""
    for name in expected:
        if name not in given:
            return f"it lacks {name}"
        if expected[name].shape != given[name].shape:
            return f"{name} has shape {tuple(given[name].shape)}, expected {tuple(expected[name].shape)}"
    return next((f"it has the unknown weight {name}" for name in given if name not in expected), None)


def require_whole(module: Configured) -> None:
    """Raise ValueError for a module with sharded parameters (`zoo.parallel.shard`)."""
    if any(hasattr(p, "full_tensor") for p in module.parameters()):
        raise ValueError(
            "a sharded model cannot be saved: load get_model_state_dict(model, options=StateDictOptions("
            "full_state_dict=True)) of torch.distributed.checkpoint.state_dict into an unsharded model, and save that"
        )


def require_plain(module: Configured) -> None:
    """Raise ValueError for a module built from arguments that a file cannot store, such as other modules."""
    if module.objects:
        raise ValueError(
            f"{type(module).__name__} has arguments that are not plain data and cannot be stored: "
            f"{', '.join(module.objects)}; save its parts, or its state_dict"
        )


def _record(module: Configured) -> dict[str, Any]:
    require_whole(module)
    require_plain(module)
    return {"class": class_path(type(module)), "options": module.options}


def _find_class(path: str | os.PathLike[str], name: str, allowed: list[str]) -> type[Configured]:
    """Return the class of this name if it is registered or allowed; otherwise raise ValueError."""
    if name == _BUILT_IN:
        return targets.load(name)
    for each in (*MIXERS, *MIXERS.own):
        if MIXERS.entry(each)[0] == name:
            return MIXERS[each]
    for each in allowed:
        found = targets.load(each)
        if not (isinstance(found, type) and issubclass(found, Configured)):
            found = adopt(targets.absolute(each), found)
        if name == class_path(found):
            return found
    found = targets.load(each := _allowed(path, name, allowed))
    return found if isinstance(found, type) and issubclass(found, Configured) else adopt(each, found)


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a checksum of names, shapes and bytes."""
    found = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        found.update(f"{name} {tuple(t.shape)} {t.dtype}".encode())
        found.update(t.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


@functools.cache
def _repository() -> Any:
    """Return a subclass of huggingface_hub's mixin that wraps one module."""
    hub = require_extra("huggingface_hub", "hub")

    class Repository(  # pyright: ignore[reportGeneralTypeIssues]
        hub.ModelHubMixin,
        library_name="mixer-zoo",  # pyright: ignore[reportCallIssue]
        tags=["sequence-mixer"],  # pyright: ignore[reportCallIssue]
        model_card_template=_CARD,  # pyright: ignore[reportCallIssue]
    ):
        def __init__(self, module: Configured) -> None:
            self.module = module

        def _save_pretrained(self, save_directory: Path) -> None:
            write(self.module, save_directory / FILE)

        @classmethod
        def _from_pretrained(cls, *, model_id: str, allow: Iterable[str], **where: Any) -> Self:
            folder = Path(model_id)
            file = folder / FILE if folder.is_dir() else hub.hf_hub_download(model_id, FILE, **where)
            return cls(read(file, allow))

    return Repository
