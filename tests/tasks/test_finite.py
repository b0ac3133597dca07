"""Users' own task classes: splits of a `FiniteTask`, tasks in scripts, files that belong to the cache key."""

from __future__ import annotations

import os
import sys
from itertools import chain
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tasks.base import Arrays, FiniteTask, Task
from tasks.data.batches import FreshBatches
from tasks.data.cache import cache_key, materialise
from tasks.data.splits import SPLITS, sample_split
from tasks.datamodule import TaskDataModule
from tasks.spec import TaskSpec

SPEC = TaskSpec(input="tokens", seq_len=1, n_outputs=2, loss="cross_entropy", chance=0.5, vocab_size=10_000)


class Numbers(FiniteTask):
    """The minimal FiniteTask: classify the numbers below `size` as even or odd."""

    name = "numbers"

    def __init__(self, size: int = 3000) -> None:
        self._size = size

    @property
    def spec(self) -> TaskSpec:
        return SPEC

    @property
    def size(self) -> int:
        return self._size

    def take(self, rows: np.ndarray) -> Arrays:
        return {"inputs": rows[:, None], "labels": rows[:, None] % 2}


def test_a_finite_tasks_splits_share_nothing_and_hold_everything(tmp_path: Path) -> None:
    seen: dict[str, set[int]] = {}
    for seed in (0, 1):
        data = TaskDataModule(Numbers(), seed=seed, cache_dir=tmp_path)
        rows = {split: data.split(split)["inputs"][:, 0].tolist() for split in SPLITS}
        assert {split: len(found) for split, found in rows.items()} == {"train": 2400, "validation": 300, "test": 300}
        assert sorted(chain.from_iterable(rows.values())) == list(range(3000))
        # Splits are the same for every seed, so no seed trains on another's test examples.
        assert all(seen.setdefault(split, set(found)) == set(found) for split, found in rows.items())
    first, second = (sample_split(Numbers(), "train", 50, seed)["inputs"].tolist() for seed in (0, 1))
    assert first != second
    assert {Numbers().of_split(split).spec for split in SPLITS} == {Numbers().spec}


def test_a_task_may_be_defined_in_the_script_that_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("__main__")
    script.__file__, script.__spec__ = str(tmp_path / "script.py"), None
    monkeypatch.setitem(sys.modules, "__main__", script)
    monkeypatch.setattr(Numbers, "__module__", "__main__")
    keys = []
    for text in ("first", "second"):
        (tmp_path / "script.py").write_text(text)
        keys.append(cache_key("numbers", Numbers(), "train", 5, 0)["sources"]["__main__"])
    assert keys[0] != keys[1]
    del script.__file__  # like a notebook
    with pytest.raises(ValueError, match=r"source of '__main__' cannot be found.* write the task into a file"):
        materialise("numbers", Numbers(), "train", 5, 0, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_fresh_examples_of_a_finite_task_are_those_of_its_training_split() -> None:
    batches = FreshBatches(Numbers(30), 10_000, 100, seed=0)
    drawn = set(np.concatenate([batches[i]["inputs"][:, 0].numpy() for i in range(20)]).tolist())
    assert drawn == set(sample_split(Numbers(30), "train", 24, 0)["inputs"][:, 0].tolist())


def test_the_smallest_finite_task_has_an_example_in_each_split() -> None:
    rows = [sample_split(Numbers(3), split, 1, 0)["inputs"].item() for split in SPLITS]
    assert sorted(rows) == [0, 1, 2]
    with pytest.raises(ValueError, match=r"^numbers: three splits need at least three examples, got 2\Z"):
        sample_split(Numbers(2), "train", 1, 0)


def test_asking_for_too_many_examples_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    message = r"^numbers: train has only 2,400 examples, got n_train=10000\Z"
    with pytest.raises(ValueError, match=message):
        TaskDataModule(Numbers(), n_train=10_000, cache_dir=tmp_path)
    with pytest.raises(ValueError, match=r"^numbers: test has only 300 examples, got n=301\Z"):
        materialise("numbers", Numbers(), "test", 301, 0, tmp_path)
    assert not list(tmp_path.iterdir())


class Listed(Task):
    """Numbers from a file, or from all files of a folder."""

    name = "listed"

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def spec(self) -> TaskSpec:
        return SPEC

    def sample(self, rng: np.random.Generator, n: int) -> Arrays:
        path = Path(self.path)
        texts = [file.read_text() for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
        numbers = np.array([int(word) for text in texts for word in text.split()])
        return {"inputs": rng.choice(numbers, size=(n, 1)), "labels": np.zeros((n, 1), dtype=np.int64)}


class Declared(Listed):
    """Reads a file that is not an option but is declared in `files`."""

    def options(self) -> dict[str, str]:
        return {}

    def files(self) -> list[Path]:
        return [Path(self.path)]


@pytest.mark.parametrize("kind", ["file", "folder", "declared"])
def test_an_edited_file_of_an_own_task_is_read_again(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "data" / "numbers.txt"
    file.parent.mkdir()
    task = Declared(str(file)) if kind == "declared" else Listed(str(file if kind == "file" else file.parent))

    def inputs() -> set[int]:
        return set(materialise("listed", task, "train", 200, 0, tmp_path / "cache")["inputs"].ravel().tolist())

    file.write_text("11 12 13")
    assert inputs() == {11, 12, 13}
    before = file.stat()
    file.write_text("21 22 23")
    later = int(kind == "folder")  # for a file its content counts, not the time of writing
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + later))
    assert inputs() == {21, 22, 23}
    assert len(list((tmp_path / "cache").rglob("*.npz"))) == 2


@pytest.mark.parametrize("option", ["", "no/such/file", "~nobody-here/file", "x" * 5000, "a\0b"])
def test_an_option_that_is_no_path_of_a_file_is_ignored(option: str) -> None:
    assert Listed(option).files() == []
    assert Listed(option).fingerprint() == {}
