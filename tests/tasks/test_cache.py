"""The disk cache of tasks: it returns the drawn arrays, is never stale, repairs damage, and allows several writers."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tasks
from tasks.base import Arrays
from tasks.data import cache, splits
from tasks.data.cache import KEY, cache_key, default_cache_dir, materialise
from tasks.data.splits import SHARD_ROWS, sample_split
from tests import ROOT

SMALL = {
    "mqar": {"vocab_size": 300, "seq_len": 16, "n_pairs": 2},
    "needle": {"distance": 5},
    "ssm_teacher": {"seq_len": 6, "d_input": 3, "d_output": 2},
}


def assert_same(found: Arrays, expected: Arrays) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def the_file(cache: Path) -> Path:
    [path] = cache.rglob("*.npz")
    return path


@pytest.mark.parametrize("name", sorted(SMALL))
@pytest.mark.parametrize("n", [1, SHARD_ROWS + 1])
def test_the_cache_returns_the_arrays_that_the_task_draws(
    name: str, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tasks.create_task(name, **SMALL[name])
    expected = sample_split(task, "validation", n, 3)
    assert_same(materialise(name, task, "validation", n, 3, tmp_path), expected)
    monkeypatch.setattr(task, "sample", None)  # the second call only reads
    assert_same(materialise(name, task, "validation", n, 3, tmp_path), expected)


def test_integers_have_the_narrowest_dtype_and_are_writable(tmp_path: Path) -> None:
    for vocab_size, dtype in [(128, np.int8), (129, np.int16), (2**15, np.int16), (2**15 + 1, np.int32)]:
        task = tasks.create_task("mqar", vocab_size=vocab_size, seq_len=4, n_pairs=1)
        arrays = materialise("mqar", task, "train", 2, 0, tmp_path)
        assert arrays["inputs"].dtype == arrays["labels"].dtype == dtype
        arrays["inputs"][0, 0] = 1
        assert_same(materialise("mqar", task, "train", 2, 0, tmp_path), sample_split(task, "train", 2, 0))


def test_the_incomplete_file_of_a_killed_writer_is_replaced(tmp_path: Path) -> None:
    task = tasks.create_task("needle", distance=5)
    materialise("needle", task, "train", 3, 0, tmp_path)
    whole = the_file(tmp_path)
    half = whole.with_name(f".{whole.name}.incomplete")
    whole.rename(half)  # as if killed before the final rename
    half.write_bytes(half.read_bytes()[:-9])
    assert_same(materialise("needle", task, "train", 3, 0, tmp_path), sample_split(task, "train", 3, 0))
    assert not half.exists()


def test_the_key_has_everything_that_determines_the_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needle, other = tasks.create_task("needle", distance=5), tasks.create_task("needle", distance=5, n_noise=3)
    for task, split, n, seed in [
        (needle, "train", 3, 0),
        (other, "train", 3, 0),
        (needle, "test", 3, 0),
        (needle, "train", 4, 0),
        (needle, "train", 3, 1),
    ]:
        assert_same(materialise("needle", task, split, n, seed, tmp_path), sample_split(task, split, n, seed))
    assert len(list(tmp_path.rglob("*.npz"))) == 5
    key = cache_key("needle", needle, "train", 3, 0)
    assert set(key["libraries"]) == {"numpy"}
    monkeypatch.setattr(splits, "SHARD_ROWS", 7)
    assert cache_key("needle", needle, "train", 3, 0) != key


@pytest.mark.parametrize("edited", ["package/generators/draws.py", "elsewhere/further.py"])
def test_editing_a_module_that_a_generator_uses_changes_the_key(
    edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These are all modules of the package `tasks`, and those that the task lists in `sources`."""
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "package" / "data" / "cache.py"))
    monkeypatch.setattr(tasks.task_class("needle"), "sources", ("further",))
    for file in (tmp_path / "package/generators/draws.py", tmp_path / "elsewhere/further.py"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("before = 1")
    needle = tasks.create_task("needle")
    before = cache_key("needle", needle, "train", 3, 0)
    assert before == cache_key("needle", needle, "train", 3, 0)
    (tmp_path / edited).write_text("after = 1")
    assert before != cache_key("needle", needle, "train", 3, 0)


def flip_a_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def of_another_seed(content: bytes) -> bytes:
    with np.load(io.BytesIO(content)) as stored:
        arrays = dict(stored)
    arrays[KEY] = np.array(str(arrays[KEY]).replace('"seed": 0', '"seed": 9'))
    other = io.BytesIO()
    np.savez(other, **arrays)
    return other.getvalue()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda content: content[: len(content) // 2],
    "the end missing": lambda content: content[:-8],
    "a bit flipped": flip_a_bit,
    "text in its place": lambda _: b"no archive",
    "nothing in it": lambda _: b"",
    "other data": of_another_seed,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_reported_and_replaced(damage: str, tmp_path: Path, logged: list[str]) -> None:
    task = tasks.create_task("needle", distance=5)
    materialise("needle", task, "train", 50, 0, tmp_path)
    path = the_file(tmp_path)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert_same(materialise("needle", task, "train", 50, 0, tmp_path), sample_split(task, "train", 50, 0))
    materialise("needle", task, "train", 50, 0, tmp_path)
    [message] = logged  # logged only once
    assert str(path) in message
    assert "\n" not in message


WRITER = """
import sys, numpy as np, tasks
from tasks.data.splits import sample_split
task = tasks.create_task("mqar", seq_len=64)
print("ready", flush=True)
sys.stdin.readline()
found = tasks.materialise("mqar", task, "train", 5000, 0, sys.argv[1])
expected = sample_split(task, "train", 5000, 0)
assert all((found[name] == expected[name]).all() for name in expected)
"""


@pytest.mark.slow
def test_several_processes_can_materialise_the_same_split_at_once(tmp_path: Path) -> None:
    piped: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | {"text": True, "cwd": ROOT}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], **piped) for _ in range(3)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:  # all three are waiting: release them together
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        _, complaints = writer.communicate(timeout=60)
        assert writer.returncode == 0, complaints
        assert complaints == ""
    assert the_file(tmp_path)
    assert not list(tmp_path.rglob("*.incomplete"))


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    for variable, folder in (("", ".cache/mixer-zoo"), ("~/elsewhere", "elsewhere")):
        monkeypatch.setenv("MIXER_ZOO_CACHE", variable)
        assert default_cache_dir() == Path("/home/someone", folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("dev", 3, 0, ""), "train, validation, test"),
        (("train", 0, 0, ""), "needle: .*n=0"),
        (("train", 3, -1, ""), "seed=-1"),
        (("train", 3, 0, "file/cache"), "file/cache.* MIXER_ZOO_CACHE"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_written(
    arguments: tuple[str, int, int, str], words: str, tmp_path: Path
) -> None:
    *given, folder = arguments
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ValueError, match=rf"\A.*{words}.*\Z"):
        materialise("needle", tasks.create_task("needle"), *given, tmp_path / folder)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_failing_generator_raises_its_own_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tasks.create_task("needle", distance=5)
    first = task.sample(np.random.default_rng(0), SHARD_ROWS)
    answers = iter([first])
    monkeypatch.setattr(task, "sample", lambda rng, n: next(answers, None) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        materialise("needle", task, "train", 2 * SHARD_ROWS, 0, tmp_path)
    assert [path.suffix for path in (tmp_path / "needle").iterdir()] == [".lock"]
