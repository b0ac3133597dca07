"""Tasks from real data (text, images, LRA's ListOps): files, folders and data sets on disk, and errors in them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import tasks
from tasks.data.cache import cache_key
from tasks.data.reading import divide
from tasks.data.splits import at_most, sample_split
from tasks.generators.real.images import Images


@pytest.fixture
def jsonl(tmp_path: Path) -> str:
    """A text data set with a train and a test split."""
    folder = tmp_path / "stories"
    folder.mkdir()
    for split, letter in (("train", "a"), ("test", "z")):
        rows = [json.dumps({"story": f"{letter * 5}{i}"}) for i in range(50)]
        (folder / f"{split}.jsonl").write_text("\n".join(rows))
    return str(folder)


@pytest.fixture
def pictures(tmp_path: Path) -> str:
    """A data set of 30 images of 3 x 2 pixels in two classes, which differ in colour."""
    rng = np.random.default_rng(0)
    for label, channel in (("blue", 2), ("red", 0)):
        folder = tmp_path / "pictures" / "train" / label
        folder.mkdir(parents=True)
        for i in range(15):
            pixels = rng.integers(0, 99, size=(2, 3, 3), dtype=np.uint8)
            pixels[:, :, channel] = 255
            Image.fromarray(pixels).save(folder / f"{i}.png")
    return str(tmp_path / "pictures")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hub")


def test_a_data_set_keeps_its_splits_and_missing_ones_are_cut_from_train(jsonl: str) -> None:
    task = tasks.create_task("text", dataset=jsonl, column="story", seq_len=8)
    letters = {
        split: set(bytes(sample_split(task, split, 50, 0)["inputs"].ravel().tolist())) & set(b"az")
        for split in ("train", "validation", "test")
    }
    assert letters == {"train": set(b"a"), "validation": set(b"a"), "test": set(b"z")}


def test_a_folder_is_read_in_the_order_of_file_names_without_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name, content in (("b.txt", "BBBB"), ("a.txt", "AAAA"), ("sub/c.txt", "CCCC" * 10)):
        (tmp_path / name).write_text(content)
    (tmp_path / ".hidden").mkdir()
    for name in (".hidden/d.txt", ".e.txt"):
        (tmp_path / name).write_text("DDDD")
    task = tasks.create_task("text", path=str(tmp_path), seq_len=1, validation=0.1, test=0.1)
    windows = sample_split(task, "train", 500, 0)
    pairs = {
        bytes(pair) for pair in zip(windows["inputs"][:, 0].tolist(), windows["labels"][:, 0].tolist(), strict=True)
    }
    assert pairs == {b"AA", b"AB", b"BB", b"BC", b"CC"}


def test_windows_start_at_every_symbol_with_enough_text_after_it(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(bytes(range(100)))
    task = tasks.create_task("text", path=str(file), seq_len=4, validation=0.2, test=0.2).of_split("train")
    rows = task.sample(np.random.default_rng(0), 2000)
    assert set(rows["inputs"][:, 0].tolist()) == set(range(60 - 4))
    assert rows["labels"][:, -1].max() == 59


@pytest.mark.parametrize("seq_len", [3, 40])  # more windows than positions in a window, and fewer
def test_chance_of_text_is_the_share_of_the_commonest_label_in_all_windows(seq_len: int, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    text = b"abca" * 5 + b"d" * 20 + b"abc" * 6 + b"bb"
    file.write_bytes(b"x" * 180 + text + b"y" * 60)
    task = tasks.create_task("text", path=str(file), seq_len=seq_len, validation=0.2, test=0.2).of_split("validation")
    labels = [text[start + 1 : start + 1 + seq_len] for start in range(len(text) - seq_len)]
    counts = Counter(symbol for window in labels for symbol in window)
    assert task.spec.chance == pytest.approx(max(counts.values()) / sum(counts.values()))


def test_editing_a_file_changes_the_fingerprint(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text("one" * 100)
    before = tasks.create_task("text", path=str(file), seq_len=4).fingerprint()
    assert before == tasks.create_task("text", path=str(file), seq_len=4).fingerprint()
    file.write_text("two" * 100)
    assert before != tasks.create_task("text", path=str(file), seq_len=4).fingerprint()


def test_a_file_that_is_not_utf8_can_be_read_only_as_bytes(tmp_path: Path) -> None:
    file = tmp_path / "binary"
    file.write_bytes(b"abc\xff" * 50)
    assert tasks.create_task("text", path=str(file), seq_len=4).spec.vocab_size == 256
    with pytest.raises(ValueError, match=r"^text: .*binary is not UTF-8 at byte 3; use unit=bytes$"):
        tasks.create_task("text", path=str(file), seq_len=4, unit="characters")


def test_images_are_read_row_by_row_in_grey_and_in_colour(pictures: str) -> None:
    grey, rgb = (tasks.create_task("images", dataset=pictures, colour=colour) for colour in ("grey", "rgb"))
    assert (grey.spec.seq_len, grey.spec.vocab_size, rgb.spec.d_input) == (6, 256, 3)
    for split, size in (("train", 24), ("validation", 3), ("test", 3)):
        rows = sample_split(rgb, split, size, 0)
        with pytest.raises(ValueError, match=rf"^images: {split} has only {size} examples, got n={size + 1}$"):
            sample_split(rgb, split, size + 1, 0)
        red = (rows["inputs"][:, :, 0] == 1).all(axis=1)
        assert (rows["labels"][:, -1] == red).all()
        assert (rows["labels"][:, :-1] == -100).all()


def test_images_are_read_once_for_all_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    read, digits = [], Images._digits
    monkeypatch.setattr(Images, "_digits", lambda self: read.append(1) or digits(self))
    task = Images()
    assert [at_most(task, split, 9) for split in ("train", "validation", "test")] == [9] * 3
    assert len(read) == 1


def test_images_are_shuffled_before_they_are_split() -> None:
    """Otherwise a data set sorted by label would have some labels in only one split."""
    pixels, _ = load_digits(return_X_y=True)
    for split in ("validation", "test"):
        part = tasks.create_task("images").of_split(split)
        read = part.take(np.arange(part.size))["inputs"]
        places = [int((pixels == picture).all(axis=1).argmax()) for picture in read]
        assert abs(np.mean(places) - len(pixels) / 2) < 4 * len(pixels) / np.sqrt(12 * part.size)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("text", {"column": "tale"}, r"^text: data set '.*': no column 'tale'; choose from: story$"),
        ("text", {"dataset": "nobody/nothing"}, r"^text: cannot load data set 'nobody/nothing': [^\n]+\Z"),
        ("images", {}, r"^images: data set '.*': no column 'image'; choose from: story$"),
    ],
)
def test_a_data_set_that_does_not_fit_is_refused_in_one_line(
    jsonl: str, name: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _ = tasks.create_task(name, **{"dataset": jsonl, **options}).spec


@pytest.mark.parametrize(
    ("image", "label", "test", "message"),
    [
        (np.full((2, 2), 300, dtype=np.uint16), 1, False, "8 bits"),  # 300 would become 255
        (np.zeros((3, 2), dtype=np.uint8), 1, True, "one size"),  # in the test split only
        (None, 1, False, "None"),
        (np.zeros((2, 2), dtype=np.uint8), -1, True, "-1"),
        (np.zeros((2, 2), dtype=np.uint8), 0.5, False, "0.5"),  # would become 0
        (np.zeros((2, 2), dtype=np.uint8), None, False, "None"),
        (np.zeros((2, 2), dtype=np.uint8), "cat", False, "cat"),
    ],
)
def test_invalid_images_and_labels_are_refused(
    image: np.ndarray | None, label: object, test: bool, message: str, tmp_path: Path
) -> None:
    odd = {"image": [image if image is None else Image.fromarray(image)] * 10, "label": [label] * 10}
    usual = {"image": [Image.fromarray(np.zeros((2, 2), dtype=np.uint8))] * 10, "label": [0] * 10}
    splits = {"train": usual, "test": odd} if test else {"train": odd}
    for split, columns in splits.items():
        kinds = datasets.Features(image=datasets.Image(), label=datasets.Dataset.from_dict(columns).features["label"])
        datasets.Dataset.from_dict(columns, features=kinds).to_parquet(tmp_path / f"{split}.parquet")
    with pytest.raises(ValueError, match=rf"^images: [^\n]*{message}[^\n]*\Z"):
        _ = tasks.create_task("images", dataset=str(tmp_path)).spec


def test_rows_without_text_are_refused(tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": ["a" * 100, None]}).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(ValueError, match=r"^text: [^\n]*None[^\n]*\Z"):
        tasks.create_task("text", dataset=str(tmp_path), seq_len=4)


def test_divide_cuts_data_into_consecutive_parts() -> None:
    parts = divide(100, {"validation": 0.1, "test": 0.2})
    assert parts == {"train": slice(0, 70), "validation": slice(70, 80), "test": slice(80, 100)}
    assert divide(3, {"test": 0.01}) == {"train": slice(0, 2), "test": slice(2, 3)}


# Expressions of Long Range Arena

HEADER = "Source\tTarget"
LINES = [
    "( ( ( [MAX 3 ) ( ( ( [SM 9 ) 4 ) ] ) ) ] )\t3",
    "( ( ( ( [MED 1 ) 2 ) 9 ) ] )\t2",
    "( ( ( [MIN 5 ) 6 ) ] )\t5",
]


def write(file: Path, lines: list[str], end: str = "\n") -> None:
    file.write_bytes((end.join([HEADER, *lines]) + end).encode())


def read(task: tasks.Task, split: str) -> list[str]:
    arrays = sample_split(task, split, at_most(task, split, 100), 0)
    found = []
    for inputs, labels in zip(arrays["inputs"], arrays["labels"], strict=True):
        words = " ".join(task.input_text(token) for token in inputs.tolist()).split()
        found.append(f"{' '.join(words)} = {labels[-1]}")
        assert (labels[:-1] == -100).all()
    return sorted(found)


def test_a_folder_of_lra_has_a_file_per_split(tmp_path: Path) -> None:
    for name, line, end in zip(("train", "val", "test"), LINES, ("\n", "\r\n", "\n"), strict=True):
        write(tmp_path / f"basic_{name}.tsv", [line], end)
    task = tasks.create_task("listops", seq_len=12, tsv=str(tmp_path))
    assert read(task, "train") == ["[MAX 3 [SM 9 4 ] ] = 3"]
    assert read(task, "validation") == ["[MED 1 2 9 ] = 2"]
    assert read(task, "test") == ["[MIN 5 6 ] = 5"]
    assert task.spec.chance == 1
    assert read(task.at_length(20), "test") == read(task, "test")


def test_a_single_file_is_split_and_editing_it_changes_the_cache_key(tmp_path: Path) -> None:
    file = tmp_path / "mine.tsv"
    lines = [f"( ( ( [MIN {i // 10} ) {i % 10} ) ] )\t{min(i // 10, i % 10)}" for i in range(100)]
    write(file, lines)
    task = tasks.create_task("listops", seq_len=4, tsv=str(file))
    parts = [read(task, split) for split in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [96, 2, 2]
    assert len(set().union(*parts)) == 100
    before = cache_key("listops", task, "train", 9, 0)
    write(file, lines[::-1])
    assert cache_key("listops", tasks.create_task("listops", seq_len=4, tsv=str(file)), "train", 9, 0) != before


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["( ( [MAX 3 ) ] )\t"], "line 2 must be an expression of 0 1 .* a digit"),
        (["( ( [MAX 3 ) ] )\t10"], r"line 2 must be an [^\n]*"),
        ([LINES[2], "( ( [MUL 3 ) ] )\t3"], r"line 3 must be an [^\n]*"),
        ([LINES[2]], "has 1 expressions, too few for three splits"),
        ([], "contains no expressions"),
        ([LINES[0]] * 3, "the longest expression has 7 tokens, which must be <= seq_len, got seq_len=6"),
    ],
)
def test_an_invalid_file_of_expressions_is_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    write(tmp_path / "mine.tsv", lines)
    with pytest.raises(ValueError, match=rf"^listops: [^\n]*{message}\Z"):
        tasks.create_task("listops", seq_len=6, tsv=str(tmp_path / "mine.tsv"))


def test_a_folder_or_header_unlike_lras_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^listops: \S+ must contain one file \*train\*.tsv, found 0\Z"):
        tasks.create_task("listops", tsv=str(tmp_path))
    (tmp_path / "mine.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(ValueError, match=r"^listops: \S+ must begin with a line of the columns Source and Target\Z"):
        tasks.create_task("listops", tsv=str(tmp_path / "mine.tsv"))
