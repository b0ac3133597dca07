"""The GPU script where there is no GPU: what it counts, what it writes, what it says."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from benchmarks import gpu, sections


def test_without_a_device_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert capsys.readouterr().err == (
        "gpu.py: error: no CUDA device here; on a CPU: python benchmarks/performance.py\n"
    )


def test_the_scans_bytes_are_those_of_its_tensors() -> None:
    batch, seq_len, d_inner, d_state = 2, 5, 3, 4
    for dtype in (torch.float32, torch.bfloat16):
        x, B = torch.empty(batch, seq_len, d_inner, dtype=dtype), torch.empty(batch, seq_len, d_state, dtype=dtype)
        A, state = torch.empty(d_inner, d_state), torch.empty(batch, d_inner, d_state)
        inputs = [x, x, A, B, B, state]
        forward = sum(t.nbytes for t in (*inputs, x, state))  # dt is as large as x, C as B, y as x
        # All inputs but the state again, the gradients of both outputs, and those of all inputs.
        backward = sum(t.nbytes for t in (*inputs[:-1], x, state, *inputs))
        assert gpu.scan_bytes(batch, seq_len, d_inner, d_state, dtype.itemsize) == (forward, backward)


def test_kernels_that_are_not_installed_are_named() -> None:
    found, missing = gpu.available(
        {"there": "torch:randn", "no package": "nothing_of_that_name.ops:f", "no function": "math:f"}
    )
    assert found == {"there": torch.randn}
    assert missing == ["no package", "no function"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small shapes, on the CPU, each candidate run once and reported to have taken two milliseconds."""

    def timed(candidates: dict[str, gpu.Run], rounds: int = 1) -> dict[str, float]:
        for run in candidates.values():
            run()
        return dict.fromkeys(candidates, 2e-3)

    monkeypatch.setattr(gpu, "timed", timed)
    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    monkeypatch.setattr(gpu, "selective_scan", partial(gpu.selective_scan, backend="torch"))  # numba would compile
    monkeypatch.setattr(gpu, "COPY_BYTES", 10**6)
    monkeypatch.setattr(gpu, "SCAN_SHAPE", (1, 4, 3, 2))
    monkeypatch.setattr(gpu, "HEADS_SHAPE", (2, 6, 2, 4))


@pytest.mark.usefixtures("small")
def test_the_scans_section_compares_time_and_floor() -> None:
    section = gpu.scan()
    assert len(section.tables[0].rows) == 4
    floor = gpu.scan_bytes(1, 4, 3, 2, 4)[0] / 1e9  # at a gigabyte a second
    assert section.targets[0].measured == pytest.approx(2e-3 / floor)
    assert not section.targets[0].met
    page = gpu.page({"scan": {"measured": "a GPU, today", **section.to_plain()}})
    assert ("## Selective scan" in page, "## End to end" in page) == (True, False)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_kernels_steps_and_a_long_stream_have_their_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(gpu.chunked().tables[0].rows) == 4 * 2 * 2
    kernels = gpu.kernels().tables[0].rows
    assert len(kernels) == 6 * 2
    assert all(row[5] < 1e-6 for row in kernels)
    monkeypatch.setattr(gpu, "FULL", sections.QUICK)
    for name in ("empty_cache", "reset_peak_memory_stats", "set_sync_debug_mode"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 5e6)

    def refuse(step: gpu.Run) -> gpu.Run:
        raise RuntimeError("cannot be captured\nat all")

    monkeypatch.setattr(gpu, "captured", refuse)
    lengths = gpu.lengths().tables[0].rows
    assert [row[0] for row in lengths] == list(gpu.PAIRS)
    assert all(row[1:] == [2.0] * 3 + [5.0] * 3 for row in lengths)
    names = list(sections.QUICK.mixers)
    assert [[row[0], *row[4:]] for row in gpu.steps().tables[0].rows] == [
        [name, "no", None, "cannot be captured"] for name in names
    ]
    monkeypatch.setattr(gpu, "STREAMED", (20, 8))
    assert gpu.stream().tables[0].rows == [["selective_ssm", 10_000, 5.0]]
