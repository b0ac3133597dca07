"""The GPU benchmark without a GPU: its counts of bytes, its sections on small shapes, its error."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from benchmarks import gpu
from benchmarks.page import Section
from tests import raising
from zoo import list_mixers


def test_without_a_gpu_it_exits_with_a_one_line_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert capsys.readouterr().err == (
        "gpu.py: error: no CUDA device here; on a CPU: python -m benchmarks.performance\n"
    )


def test_scan_bytes_is_the_size_of_the_scans_tensors() -> None:
    batch, seq_len, d_inner, d_state = 2, 5, 3, 4
    for dtype in (torch.float32, torch.bfloat16):
        x, B = torch.empty(batch, seq_len, d_inner, dtype=dtype), torch.empty(batch, seq_len, d_state, dtype=dtype)
        A, state = torch.empty(d_inner, d_state), torch.empty(batch, d_inner, d_state)
        inputs = [x, x, A, B, B, state]
        forward = sum(t.nbytes for t in (*inputs, x, state))  # dt and y have the size of x, C the size of B
        # The inputs without the state, the gradients of both outputs, and the gradients of all inputs.
        backward = sum(t.nbytes for t in (*inputs[:-1], x, state, *inputs))
        assert gpu.scan_bytes(batch, seq_len, d_inner, d_state, dtype.itemsize) == (forward, backward)


def test_kernels_that_are_not_installed_are_listed() -> None:
    found, missing = gpu.available(
        {"there": "torch:randn", "no package": "nothing_of_that_name.ops:f", "no function": "math:f"}
    )
    assert found == {"there": torch.randn}
    assert missing == ["no package", "no function"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the benchmark with small shapes on the CPU; each candidate runs once and counts as two milliseconds."""

    def timed(candidates: dict[str, gpu.Run], rounds: int = 1) -> dict[str, float]:
        for run in candidates.values():
            run()
        return dict.fromkeys(candidates, 2e-3)

    monkeypatch.setattr(gpu, "timed", timed)
    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    monkeypatch.setattr(gpu, "selective_scan", partial(gpu.selective_scan, backend="torch"))  # numba would compile
    monkeypatch.setattr(gpu, "COPY_BYTES", 10**6)
    monkeypatch.setattr(gpu, "SCAN_SHAPES", ((1, 4, 3, 2),))
    monkeypatch.setattr(gpu, "HEADS_SHAPE", (2, 6, 2, 4))
    monkeypatch.setattr(gpu, "MODEL", gpu.Model(16, 8, 2, 11, 1, 8))
    for name in ("empty_cache", "reset_peak_memory_stats", "set_sync_debug_mode"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 5e6)


def last(section: Iterator[Section]) -> Section:
    return [*section][-1]


@pytest.mark.usefixtures("small")
def test_the_scans_section_compares_time_memory_and_floor() -> None:
    section = last(gpu.scan())
    assert len(section.tables[0].rows) == 4
    floor = gpu.scan_bytes(1, 4, 3, 2, 4)[0] / 1e9  # at 1 GB/s
    assert section.tables[0].rows[0][6] == pytest.approx(2e-3 / floor)
    assert not section.targets[0].met
    page = gpu.page({"scan": {"measured": "a GPU, today", **section.to_plain()}})
    assert ("## Selective scan" in page, "## End to end" in page) == (True, False)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_the_sections_have_a_row_per_kernel_mixer_and_length(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(last(gpu.chunked()).tables[0].rows) == 4 * 3 * 2
    kernels = last(gpu.kernels()).tables[0].rows
    assert len(kernels) == 9 * 2
    assert all(row[5] < 1e-6 for row in kernels)

    monkeypatch.setattr(gpu, "captured", raising(RuntimeError("cannot be captured\nat all")))
    assert gpu._replayed("attention") == (None, "cannot be captured")
    monkeypatch.setattr(gpu, "LENGTHS", {8: 2, 16: 1})
    lengths = last(gpu.lengths()).tables[0].rows
    assert [row[0] for row in lengths] == list(gpu.LONG)
    assert all(row[1:] == [1.0] * 2 + [5e-3] * 2 for row in lengths)
    steps = last(gpu.steps())
    assert [[row[0], *row[3:]] for row in steps.tables[0].rows] == [[name, 1.0, 5e-3, "no"] for name in list_mixers()]
    assert steps.targets[0].met
    monkeypatch.setattr(gpu, "STREAMED", (20, 8))
    monkeypatch.setattr(gpu, "_device_seconds", lambda run: run() and 2e-3)
    assert [row[:4] for row in last(gpu.stream()).tables[0].rows] == [[name, 10_000, 5.0, 5.0] for name in gpu.ENDLESS]
