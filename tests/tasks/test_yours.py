"""Users' tasks from a function, a class, a file or a folder of data, and one-line errors for invalid ones."""

from __future__ import annotations

import inspect
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import tasks
from tasks import pages
from tasks.__main__ import main
from tasks.base import Arrays
from tasks.data.arrow import to_table
from tasks.data.export import write_jsonl
from tasks.datamodule import TaskDataModule
from tasks.registry import TASKS
from tasks.spec import IGNORED
from tasks.yours.arrays import conform
from tests import install
from zoo.errors import UsageError

FUNCTIONS = '''from __future__ import annotations
import numpy as np
import tasks

def echo(rng, n, seq_len: int = 6, offset: int | float = 0):
    """Repeat the first token at the end.

    Args:
        seq_len: positions.
    """
    inputs = rng.integers(4, size=(n, seq_len))
    return {"inputs": inputs, "labels": inputs[:, 0] + offset, "age": np.arange(seq_len) + 0 * inputs}

echo.n_classes = 9

def running(rng, n):
    inputs = rng.normal(size=(n, 5, 2))
    return {"inputs": inputs, "labels": inputs.sum(2).cumsum(1), "lengths": rng.integers(1, 6, size=n)}

def rare(rng, n):
    inputs = rng.integers(3, size=(n, 4))
    if n == 7:
        inputs[2, 1] = 5
    return {"inputs": inputs, "labels": inputs}

def late(rng, n):
    return {"inputs": np.zeros((n, 4), int), "labels": np.zeros((n, 3), int)}

def unseeded(rng, n):
    inputs = np.random.default_rng().integers(9, size=(n, 4))
    return {"inputs": inputs, "labels": inputs}

def broken(rng, n):
    return [][n]

def a_list(rng, n):
    return []

def few(rng, n):
    return {"inputs": np.zeros((1, 4), int), "labels": np.zeros(1)}

def needy(rng, n, width):
    return {}

def taken(rng, n, spec=1):
    return {}

def growing(rng, n):
    return {"inputs": rng.integers(50, size=(n, 4)), "labels": np.arange(4 * n).reshape(n, 4) * 5 // (4 * n)}

def wide(rng, n, seq_len=16):
    inputs = rng.integers(50_000, size=(n, seq_len))
    return {"inputs": inputs, "labels": inputs // 1000}

def nothing():
    return {}

class Mine(tasks.Task):
    """A class."""

    def __init__(self, width: int = 3) -> None:
        self.width = width

    @property
    def spec(self):
        return tasks.TaskSpec.tokens(self.width, 2)

    def sample(self, rng, n):
        inputs = rng.integers(2, size=(n, self.width))
        return {"inputs": inputs, "labels": inputs}

number = 3
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "own_tasks.py"
    file.write_text(FUNCTIONS)
    return file


def in_one_line(words: str) -> str:
    return rf"\A[^\n]*{re.escape(words)}[^\n]*\Z"


def draw(rng: np.random.Generator, n: int = 40, seq_len: int = 5, top: int = 9) -> Arrays:
    inputs = rng.integers(top, size=(n, seq_len))
    return {"inputs": inputs, "labels": inputs[:, 1]}


def splits_of(task: tasks.Task) -> dict[str, Arrays]:
    return {
        split: part.take(np.arange(part.size))
        for split in ("train", "validation", "test")
        if (part := task.of_split(split))
    }


# Functions and classes


def test_a_function_is_a_task_with_its_arguments_as_options(file: Path, rng: np.random.Generator) -> None:
    task = tasks.create_task(f"{file}:echo", seq_len=7)
    assert task.options() == {"seq_len": 7, "offset": 0, "vocab_size": None, "n_classes": 9}
    assert inspect.signature(type(task)).parameters["offset"].annotation == int | float
    spec = task.spec
    assert (spec.vocab_size, spec.n_outputs, spec.seq_len, spec.labelled, spec.facts) == (4, 9, 7, 1, ("age",))
    assert spec.chance == pytest.approx(1 / 4, abs=0.05)
    arrays = task.sample(rng, 5)
    assert (arrays["labels"][:, -1] == arrays["inputs"][:, 0]).all()
    assert (arrays["labels"][:, :-1] == IGNORED).all()
    assert arrays["age"].tolist() == [[-1] * 6 + [6]] * 5
    assert (task.at_length(9).spec.seq_len, task.at_length(9).spec.vocab_size) == (9, 4)
    assert tasks.create_task(f"{file}:growing").spec.chance == 1 / 5  # classes change from the first rows to the last


def test_another_length_has_the_tokens_and_classes_measured_in_training(file: Path) -> None:
    task = tasks.create_task(f"{file}:wide")
    shorter = task.at_length(4)  # its first examples have fewer tokens
    assert (shorter.spec.vocab_size, shorter.spec.n_outputs) == (task.spec.vocab_size, task.spec.n_outputs)


def test_regression_with_lengths(file: Path, rng: np.random.Generator) -> None:
    task = tasks.create_task(f"{file}:running")
    assert (task.spec.loss, task.spec.d_input, task.spec.n_outputs, task.spec.chance) == ("mse", 2, 1, None)
    arrays = task.sample(rng, 8)
    beyond = np.arange(5) >= arrays["lengths"][:, None]
    assert np.isnan(arrays["labels"][beyond]).all()
    assert (arrays["inputs"][beyond] == 0).all()
    assert (np.isnan(arrays["labels"][:, :, 0]) == beyond).all()
    data = TaskDataModule(task, n_train=64, n_val=8, n_test=8)
    assert next(iter(data.train_dataloader()))["lengths"].shape == (64,)


def test_a_class_is_a_task_with_its_constructor_arguments_as_options(file: Path) -> None:
    task = tasks.create_task(f"{file}:Mine", width=2)
    assert (repr(task), task.name, task.spec.seq_len) == ("Mine(width=2)", "own_tasks.Mine", 2)
    assert "width" in pages.markdown(f"{file}:Mine")  # a page needs no `Source` in the docstring


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rare", "rare: inputs: row 2 has the token 5, but vocab_size=3 allows 0 ... 2"),
        ("unseeded", "take every draw from rng"),
        ("broken", "line 34: IndexError"),
        ("a_list", "a dict of arrays, got list"),
        ("few", "requested 1024 examples, got 1"),
        ("needy", "own_tasks.py:needy: the argument width"),
        ("taken", "every task has an attribute spec"),
        ("nothing", "sample(rng, n, ...)"),
        ("number", "tasks.Task"),
        ("ecko", "did you mean 'echo'?"),
        ("late", "(1024, 4) as inputs, or (1024,), got int64 (1024, 3)"),
    ],
)
@pytest.mark.filterwarnings("ignore:.* draws few different inputs:UserWarning")
def test_an_invalid_function_is_a_one_line_error(name: str, message: str, file: Path) -> None:
    with pytest.raises(ValueError, match=in_one_line(message)):
        tasks.create_task(f"{file}:{name}").sample(np.random.default_rng(0), 7)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("    return {'inputs': np.stack([])}", "the function fails in line 4: ValueError: need at least one array"),
        ("    return helper(n)\n\ndef helper(n):\n    return np.stack([])", "fails in line 7: ValueError: need"),
    ],
)
def test_an_error_has_the_line_of_the_users_file(body: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"import numpy as np\n\ndef sample(rng, n):\n{body}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=in_one_line(said)):
        tasks.create_task(f"{file}:sample")


# Data

Writer = Callable[[Path, dict[str, Arrays]], Path]


def as_npz(folder: Path, splits: dict[str, Arrays]) -> Path:
    arrays = {f"{split}_{name}".lstrip("_"): each for split, part in splits.items() for name, each in part.items()}
    np.savez(folder / "data.npz", **arrays)
    return folder / "data.npz"


def as_parquet(folder: Path, splits: dict[str, Arrays]) -> Path:
    for split, arrays in splits.items():
        for part, rows in enumerate(np.array_split(np.arange(len(arrays["inputs"])), 2)):
            pq.write_table(
                to_table({k: v[rows] for k, v in arrays.items()}), folder / f"{split or 'all'}-{part}.parquet"
            )
    return folder


def as_feather(folder: Path, splits: dict[str, Arrays]) -> Path:
    for split, arrays in splits.items():
        (folder / (split or "all")).mkdir()
        pyarrow.feather.write_feather(to_table(arrays), folder / (split or "all") / "0.arrow", compression="lz4")
    return folder


def as_jsonl(folder: Path, splits: dict[str, Arrays]) -> Path:
    for split, arrays in splits.items():
        write_jsonl(folder / f"{split or 'all'}.jsonl", arrays, {})
    return folder / "all.jsonl" if "" in splits else folder


def as_saved(folder: Path, splits: dict[str, Arrays]) -> Path:
    parts = {split: datasets.Dataset(to_table(arrays)) for split, arrays in splits.items()}
    whole = parts[""] if "" in parts else datasets.DatasetDict({k or "train": v for k, v in parts.items()})
    whole.save_to_disk(folder / "saved")
    return folder / "saved"


@pytest.mark.parametrize("write", [as_npz, as_parquet, as_feather, as_jsonl, as_saved])
@pytest.mark.parametrize("kind", ["tokens", "vectors"])
def test_existing_splits_are_kept_and_missing_ones_are_cut_from_train(
    write: Writer, kind: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    train, test = draw(rng, top=99), draw(rng, top=99)
    if kind == "vectors":
        train, test = (
            {"inputs": rng.normal(size=(40, 5, 2)).astype(np.float32), "labels": each["inputs"].astype(np.float32)}
            for each in (train, test)
        )
    task = tasks.create_task(str(write(tmp_path, {"train": train, "test": test})))
    found = splits_of(task)
    assert [len(part["inputs"]) for part in found.values()] == [36, 4, 40]
    np.testing.assert_array_equal(found["test"]["inputs"], test["inputs"])
    whole = np.concatenate([found["train"]["inputs"], found["validation"]["inputs"]])
    assert sorted(map(bytes, whole)) == sorted(map(bytes, train["inputs"]))
    labels = found["test"]["labels"]
    np.testing.assert_array_equal(labels[:, -1] if kind == "tokens" else labels[:, :, 0], test["labels"])


@pytest.mark.parametrize("write", [as_npz, as_jsonl, as_saved])
def test_data_without_splits_is_cut_by_seed_and_equal_inputs_stay_together(
    write: Writer, tmp_path: Path, rng: np.random.Generator
) -> None:
    whole = draw(rng, n=400, seq_len=2)
    path = str(write(tmp_path, {"": whole}))
    cuts = [splits_of(tasks.create_task(path, split_seed=seed)) for seed in (0, 0, 1)]
    for name, array in cuts[0]["test"].items():
        np.testing.assert_array_equal(array, cuts[1]["test"][name])
    assert cuts[0]["test"]["inputs"].tolist() != cuts[2]["test"]["inputs"].tolist()
    rows = {split: {tuple(row) for row in part["inputs"].tolist()} for split, part in cuts[0].items()}
    distinct = {tuple(row) for row in whole["inputs"].tolist()}
    assert set.union(*rows.values()) == distinct
    assert sum(map(len, rows.values())) == len(distinct)
    assert len(rows["test"]) == len(rows["validation"]) == round(len(distinct) / 10)
    assert sum(len(part["inputs"]) for part in cuts[0].values()) == 400


def test_rows_of_several_lengths(tmp_path: Path) -> None:
    rows = [[1, 2, 3], [4], [5, 6], [3, 3, 1]]
    table = pa.table({"inputs": rows, "labels": rows, "text": ["a", "b", "c", "d"]})
    pq.write_table(table, tmp_path / "train.parquet")
    pq.write_table(pa.table({"inputs": [[7, 8]], "labels": [[7, 8]], "text": ["d"]}), tmp_path / "dev.parquet")
    pq.write_table(pa.table({"inputs": [[9]], "labels": [[9]], "text": ["e"]}), tmp_path / "test.parquet")
    found = splits_of(tasks.create_task(str(tmp_path)))
    assert found["train"]["lengths"].tolist() == [3, 1, 2, 3]
    assert found["train"]["labels"].tolist() == [[1, 2, 3], [4, IGNORED, IGNORED], [5, 6, IGNORED], [3, 3, 1]]
    assert found["validation"]["inputs"].tolist() == [[7, 8, 0]]
    assert found["test"]["lengths"].tolist() == [1]
    per_row = conform({"inputs": np.ones((2, 3), int), "labels": np.array([4, 5]), "lengths": np.array([3, 1])})
    assert per_row["labels"].tolist() == [[IGNORED, IGNORED, 4], [5, IGNORED, IGNORED]]


def test_facts_beyond_32_bits_stay_large() -> None:
    arrays = conform({"inputs": TOKENS, "labels": TOKENS, "time": TOKENS + 2**32})
    assert (arrays["time"] == 2**31 - 1).all()


def same(tokens: np.ndarray) -> Arrays:
    return {"inputs": tokens, "labels": tokens}


def changed(**arrays: Any) -> dict[str, Arrays]:
    return {"": draw(np.random.default_rng(0)) | arrays}


TOKENS = draw(np.random.default_rng(0))["inputs"]
FLOATS = np.random.default_rng(0).normal(size=(40, 5, 2))


@pytest.mark.parametrize(
    ("splits", "options", "message"),
    [
        ({"": {"x": TOKENS, "y": TOKENS}}, {}, "'inputs', only: x, y"),
        ({"": {"inputs": TOKENS, "y": TOKENS}}, {"labels": "z"}, "'z', only: inputs, y"),
        (changed(inputs=TOKENS.astype(object)), {}, "Python objects"),
        (changed(inputs=TOKENS.astype(float)), {}, "integers (n, seq) or floats (n, seq, features)"),
        (changed(inputs=TOKENS.astype(str)), {}, "integers or floats, got <U"),
        (changed(inputs=TOKENS - 3), {}, "inputs: row 0 has the token -"),
        (changed(inputs=FLOATS * np.where(np.arange(40) == 3, np.nan, 1)[:, None, None]), {}, "inputs: row 3 has NaN"),
        (changed(inputs=FLOATS * 1e39), {}, "inputs: row 0 has NaN or inf"),
        (changed(inputs=FLOATS), {"vocab_size": 8}, "vocab_size=8"),
        (changed(labels=TOKENS - 2), {}, "labels: row 1 has the class -2"),
        (changed(labels=TOKENS[:, :3]), {}, "(40, 5) as inputs, or (40,), got int64 (40, 3)"),
        (changed(labels=TOKENS[:3, 0]), {}, "labels must have 40 rows"),
        (changed(labels=np.full(40, np.inf)), {}, "labels: row 0 has inf"),
        (changed(lengths=np.full(40, 6)), {}, "from 1 to 5, row 0 has 6"),
        (changed(lengths=np.ones(40)), {}, "from 1 to 5, got float64 (40,)"),
        (changed(inputs=TOKENS + 2**40), {}, "below 16777216"),
        (changed(labels=TOKENS.astype(np.uint64) + 2**63), {}, "the class 9223372036854775807"),
        (changed(labels=np.full_like(TOKENS, IGNORED)), {}, "-100 and NaN mean none"),
        (
            {"train": same(TOKENS), "test": {"inputs": TOKENS + 9, "labels": np.full_like(TOKENS, IGNORED)}},
            {},
            "test: labels: no position has a label",
        ),
        (changed(), {"vocab_size": 4}, "train: inputs: row 0 has the token "),
        (changed(), {"n_classes": 3}, "n_classes=3 allows 0 ... 2"),
        ({"": same(TOKENS[:0])}, {}, "there are no examples"),
        ({"": same(TOKENS[:2])}, {}, "more than 2 different inputs"),
        ({"test": same(TOKENS)}, {}, "no split train, only: test"),
        (changed() | {"test": {"inputs": TOKENS}}, {}, "must begin with a split"),
        ({"train": same(TOKENS), "test": same(TOKENS[:, :4])}, {}, "test: seq_len is 4, but 5 in the other"),
        ({"train": same(TOKENS), "test": same(TOKENS[7:9])}, {}, "row 0 repeats the inputs of row 7"),
    ],
)
def test_invalid_data_is_a_one_line_error(
    splits: dict[str, Arrays], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = as_npz(tmp_path, splits)
    with pytest.raises(ValueError, match=in_one_line(message)) as refused:
        tasks.create_task(str(path), **options)
    assert str(refused.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"inputs": [[], [3]], "labels": [1, 2]}, "row 0 has 0"),
        ({"inputs": [[1, 2], [3]], "labels": [[1], [3, 4]]}, "row 0 has 1 labels and 2 inputs"),
        ({"inputs": [[1, None]], "labels": [1]}, "inputs: 1 values are null"),
        ({"inputs": [[[0.1], [0.1, 0.2]]], "labels": [1]}, "inputs: the lists within a row"),
        ({"inputs": ["a b"], "labels": [1]}, "integers or floats, got object"),
        ({"text": ["a b"], "label": [1]}, "there is no column 'inputs', only: label"),
        ({"input_ids": [[1, 2], [3]], "label": [1, 2]}, "'inputs', only: input_ids, label; set --task.inputs"),
    ],
)
def test_an_invalid_table_is_a_one_line_error(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    pq.write_table(pa.table(columns), tmp_path / "data.parquet")
    with pytest.raises(ValueError, match=in_one_line(message)):
        tasks.create_task(str(tmp_path / "data.parquet"))


def test_columns_that_are_not_used_may_have_any_content(tmp_path: Path) -> None:
    columns = {
        "inputs": TOKENS.tolist(),
        "labels": TOKENS.tolist(),
        "id": [None, *range(39)],
        "spans": [[[1, 2], [3]]] * 40,
        "grid": [[[1, 2]]] * 40,
    }
    rows = datasets.Dataset.from_dict(columns).cast_column("grid", datasets.Array2D((1, 2), "int64"))
    rows.save_to_disk(tmp_path / "saved")
    task = tasks.create_task(str(tmp_path / "saved"))
    assert (task.spec.seq_len, task.spec.facts) == (5, ())


def test_an_npz_with_too_large_a_shape_is_refused(tmp_path: Path) -> None:
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (2000000000, 1000), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("inputs.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(80))
    with pytest.raises(ValueError, match=in_one_line("claims 16,000,000,000,000 bytes but has 80")):
        tasks.create_task(str(tmp_path / "data.npz"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.npz", "put absent.npz there or into"),
        ("~absent/x.npz", "~absent/x.npz: there is no home folder of ~absent"),
        ("text.txt", "not a data file; give .npz"),
        ("broken.npz", "cannot be read"),
        ("broken.parquet", "cannot be read"),
        ("broken.arrow", "cannot be read"),
        ("broken.jsonl", "cannot be read"),
        ("empty.jsonl", "cannot be read: the file is empty"),
        ("", "cannot be read"),  # an empty folder
    ],
)
def test_files_without_data_are_refused(name: str, message: str, tmp_path: Path) -> None:
    if name and "absent" not in name:
        (tmp_path / name).write_text("" if name.startswith("empty") else "words")
    with pytest.raises(ValueError, match=in_one_line(message)):
        tasks.create_task(name if name.startswith("~") else str(tmp_path / name))


def test_allow_shared_accepts_the_same_inputs_in_two_splits(tmp_path: Path) -> None:
    task = tasks.create_task(str(as_npz(tmp_path, {"train": same(TOKENS), "test": same(TOKENS)})), allow_shared=True)
    assert task.of_split("test").spec.labelled == 5


def test_the_fingerprint_depends_on_content_not_on_the_path(tmp_path: Path, file: Path) -> None:
    path = as_npz(tmp_path, changed())
    before = tasks.create_task(str(path)).fingerprint()
    shutil.copy(path, tmp_path / "copy.npz")
    assert tasks.create_task(str(tmp_path / "copy.npz")).fingerprint() == before
    as_npz(tmp_path, changed(labels=TOKENS[:, 2]))
    assert tasks.create_task(str(path)).fingerprint() != before
    one, other = (tasks.create_task(f"{file}:echo", offset=offset).fingerprint() for offset in (0, 1))
    assert one != other


def test_the_commands_show_export_and_stats_accept_users_tasks(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["show", "own_tasks.py:echo", "--seq_len", "8", "--offset", "1"]) == 0
    shown = capsys.readouterr().out
    assert "Repeat the first token at the end." in shown
    assert "seq_len = 6: positions." in shown
    assert main(["export", "own_tasks.py:echo", "--n", "30"]) == 0
    assert main(["stats", "own_tasks.echo-train-30-seed0.parquet"]) == 0
    assert "24 of train" in capsys.readouterr().out
    assert main(["show", "own_tasks.py:echo", "--seqlen", "8"]) == 2
    assert "did you mean 'seq_len'" in capsys.readouterr().err
    with pytest.raises(UsageError, match="there is no file"):
        tasks.create_task("absent.py:echo")


def test_entry_points_add_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "other", **{"zoo.tasks": {"echoes": "tasks.generators.tracking.parity:Parity"}})
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, value in {"_own": {}, "_objects": {}, "_looked": False}.items():
        monkeypatch.setattr(TASKS, name, value)
    assert type(tasks.create_task("echoes", seq_len=4)) is type(tasks.create_task("parity", seq_len=4))
    assert tasks.list_tasks()[-1] == "echoes"


def test_a_function_of_few_inputs_warns_that_the_test_repeats_training(tmp_path: Path) -> None:
    (tmp_path / "few.py").write_text(
        "def draw(rng, n):\n    x = rng.integers(0, 2, (n, 3))\n    return {'inputs': x, 'labels': x.sum(1)}\n"
    )
    with pytest.warns(UserWarning, match="few.draw draws few different inputs, 8 among"):
        tasks.create_task(f"{tmp_path}/few.py:draw")
