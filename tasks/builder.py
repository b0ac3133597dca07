"""The Hugging Face builder that writes one generated split. Importing this imports `datasets`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import datasets
import pyarrow as pa
from datasets.builder import Key

from tasks.arrow import Column
from tasks.splits import SHARD_ROWS


class SplitBuilder(datasets.ArrowBasedBuilder):
    """Writes whole tables as they are generated; nothing is downloaded.

    Args:
        task_name: name of the data set.
        split: name of its only split.
        layout: its columns.
        tables: its rows, in order; consumed once.
        scratch_dir: folder for the builder's own locks, made if missing.
    """

    def __init__(
        self, task_name: str, split: str, layout: dict[str, Column], tables: Iterable[pa.Table], scratch_dir: Path
    ) -> None:
        self._split = split
        self._tables = tables
        columns = {k: datasets.List(datasets.Value(c.dtype), length=c.width) for k, c in layout.items()}
        super().__init__(
            cache_dir=str(scratch_dir),
            dataset_name=task_name,
            features=datasets.Features(columns),
            writer_batch_size=SHARD_ROWS,
        )

    def write(self, folder: Path) -> None:
        """Write the split into `folder`, which appears when it is complete: one Arrow file and `dataset_info.json`."""
        with _quiet():
            self.download_and_prepare(str(folder), max_shard_size=1 << 60)

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo()

    def _split_generators(self, dl_manager: object) -> list[datasets.SplitGenerator]:
        return [datasets.SplitGenerator(name=self._split)]

    def _generate_tables(self, **kwargs: object) -> Iterator[tuple[Key, pa.Table]]:
        for index, table in enumerate(self._tables):
            yield Key(0, index), table


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's own progress bars: they count tables, and appear for the shortest split."""
    were_disabled = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_disabled:
            datasets.enable_progress_bars()
