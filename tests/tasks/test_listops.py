"""listops: files as Long Range Arena publishes them, and the lengths that are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

import tasks
from tasks.data.cache import cache_key
from tasks.data.splits import at_most, sample_split

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


def test_a_folder_of_lra_is_read_file_by_file(tmp_path: Path) -> None:
    for name, line, end in zip(("train", "val", "test"), LINES, ("\n", "\r\n", "\n"), strict=True):
        write(tmp_path / f"basic_{name}.tsv", [line], end)
    task = tasks.create_task("listops", seq_len=12, tsv=str(tmp_path))
    assert read(task, "train") == ["[MAX 3 [SM 9 4 ] ] = 3"]
    assert read(task, "validation") == ["[MED 1 2 9 ] = 2"]
    assert read(task, "test") == ["[MIN 5 6 ] = 5"]
    assert task.spec.chance == 1
    assert read(task.at_length(20), "test") == read(task, "test")


def test_a_file_is_divided_and_another_file_is_another_key(tmp_path: Path) -> None:
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
    ("lines", "said"),
    [
        (["( ( [MAX 3 ) ] )\t"], "line 2 must be an expression of 0 1 .* a digit"),
        (["( ( [MAX 3 ) ] )\t10"], r"line 2 must be an [^\n]*"),
        ([LINES[2], "( ( [MUL 3 ) ] )\t3"], r"line 3 must be an [^\n]*"),
        ([LINES[2]], "holds 1 expressions, too few for three splits"),
        ([], "holds no expressions"),
        ([LINES[0]] * 3, "the longest expression has 7 tokens, which must be <= seq_len, got seq_len=6"),
    ],
)
def test_what_is_no_file_of_expressions_is_refused(tmp_path: Path, lines: list[str], said: str) -> None:
    write(tmp_path / "mine.tsv", lines)
    with pytest.raises(ValueError, match=rf"^listops: [^\n]*{said}\Z"):
        tasks.create_task("listops", seq_len=6, tsv=str(tmp_path / "mine.tsv"))


def test_a_folder_or_a_header_that_is_not_lras_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^listops: \S+ must hold one file \*train\*.tsv, found 0\Z"):
        tasks.create_task("listops", tsv=str(tmp_path))
    (tmp_path / "mine.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(ValueError, match=r"^listops: \S+ must begin with a line of the columns Source and Target\Z"):
        tasks.create_task("listops", tsv=str(tmp_path / "mine.tsv"))
