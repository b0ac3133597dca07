"""Settings and fixtures of all tests: shape checks, seeds, one thread, no network, NaN in uninitialised memory."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import tomllib
import zlib
from collections.abc import Generator, Iterator
from typing import Any

# Set before torch, matplotlib or datasets is imported; subprocesses inherit them.
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small tensors: more threads are slower
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

# A shell ignores Ctrl-C in background jobs, and child processes inherit that. Some tests send SIGINT to a child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jaxtyping

from tests import ROOT, install, shapes

# Only the tests check the shapes in zoo's signatures. torch.compile cannot trace the checker: tests of compiled code
# use the fixture `unchecked_shapes`, and ZOO_NO_SHAPES=1 disables the checker for a whole run.
if os.environ.get("ZOO_NO_SHAPES") != "1":
    shapes.install()

import hypothesis
import numpy as np
import pytest
import torch

from zoo.threads import threads

# Without a CUDA device Triton's kernels are interpreted; the variable must be set before triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Hypothesis draws the same examples in every run, and a busy machine fails no test.
hypothesis.settings.register_profile(
    "zoo",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("zoo")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-digests",
        action="store_true",
        help="write the digests of the selected tests to tests/tasks/digests.json instead of comparing them",
    )
    parser.addoption(
        "--configurations",
        type=int,
        default=2,
        metavar="N",
        help="number of random configurations per transformers family in test_configurations.py (slow)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--write-digests") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--write-digests cannot be combined with -n: all tests write to one file")
    logging.getLogger().addHandler(logging.NullHandler())  # otherwise Python prints logged warnings to stderr


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Switch garbage collection off during imports, and exempt the many imported objects from it afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure() -> None:
    """Let the imported objects be collected at exit: C libraries report leaks otherwise."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    no_gpu = pytest.mark.skip(reason="needs a CUDA device; torch.cuda.is_available() is false")
    for item in items:
        if item.get_closest_marker("gpu"):  # item.keywords would match folders of that name too
            item.add_marker(no_gpu)


def _seed(request: pytest.FixtureRequest) -> int:
    """A seed from the test's node id: the same in every run and every selection of tests."""
    return zlib.crc32(request.node.nodeid.encode())


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """Seed torch's global generator, from which modules draw their parameters, for each test.

    `torch.manual_seed` seeds every device, and is slow: it formats the stack for each uninitialised one.
    """
    if request.node.get_closest_marker("gpu"):
        torch.manual_seed(_seed(request))
    torch.default_generator.manual_seed(_seed(request))


@pytest.fixture(scope="session", autouse=True)
def _entry_points(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Register the entry points of pyproject.toml, in case the installed metadata is older."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    folder = tmp_path_factory.mktemp("installed")
    install(folder, "of_project", **groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A NumPy generator, seeded by the test's node id."""
    return np.random.default_rng(_seed(request))


@pytest.fixture
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """A torch generator on the CPU, seeded by the test's node id."""
    return torch.Generator().manual_seed(_seed(request))


class _Messages(logging.Handler):
    """Collects the messages of warnings and errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The project's logged warnings. Replaces pytest's `caplog`, which visits every logger of torch in each test."""
    handler, loggers = _Messages(), [logging.getLogger(name) for name in ("zoo", "tasks", "lab")]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler.messages
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.fixture(autouse=True)
def _uninitialised_memory_is_nan(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fill `torch.empty` with NaN, so that code which reads uninitialised memory fails.

    GPU tests are exempt: there the same switch rejects kernels without a deterministic version.
    """
    if request.node.get_closest_marker("gpu"):
        yield
        return
    torch.set_deterministic_debug_mode("error")  # as use_deterministic_algorithms, which imports Inductor: two seconds
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.fixture(autouse=True)
def _full_precision_on_a_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make cuDNN compute recurrent networks in float32: torch allows tf32 by default."""
    if request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave figures blank, for tests that do not look at them: drawing one takes a second."""
    monkeypatch.setattr("matplotlib.figure.Figure.draw", lambda *_: None)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Run torch with two threads and restore their number afterwards; the test may change it."""
    with threads(2):
        yield


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Switch the shape checker off for one test: torch.compile cannot trace it, and it lengthens tracebacks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium that logs its console messages and network requests."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("needs chromium and chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    switches = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    for switch in f"{switches} disable-component-update disable-sync window-size=1400,2400".split():
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    yield chrome
    chrome.quit()
