"""What every test of runs stands on: a cache of its own, and files of events that TensorBoard reads in their order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tensorboard.summary.writer import event_file_writer


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIXER_ZOO_CACHE", str(tmp_path_factory.mktemp("cache")))
        # TensorBoard reads a run's files in the order of their names: second, host, process, count. Here one process
        # starts many runs within a second, and its tenth file would come before the ninth.
        patch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(10_000))
        yield
