"""Fixtures of the tests of runs: a separate cache, and event files that TensorBoard reads in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tensorboard.summary.writer import event_file_writer


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIXER_ZOO_CACHE", str(tmp_path_factory.mktemp("cache")))
        # TensorBoard sorts a run's event files by name: second, host, process, counter. Here one process starts many
        # runs within a second, and counter 10 would sort before 9.
        patch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(10_000))
        yield
