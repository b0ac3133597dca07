"""What every test stands on: checked shapes, seeded draws, few threads, no network, uninitialised memory that shows."""

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

# A shell starts what it puts in the background with Ctrl-C ignored, which processes inherit: tests send it to some.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jaxtyping

from tests import ROOT, install, shapes

# The shapes in zoo's signatures are checked by the tests alone. torch.compile cannot trace the checker: tests of
# compiled code take the fixture `unchecked_shapes`, and ZOO_NO_SHAPES=1 leaves the checker out of a whole run.
if os.environ.get("ZOO_NO_SHAPES") != "1":
    shapes.install()

import hypothesis
import numpy as np
import pytest
import torch

from zoo.threads import threads

# Without a CUDA device Triton's kernels are interpreted; that has to be said before triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Drawn examples are the same in every run, and no verdict depends on how busy the machine is.
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
        help="write tests/tasks/digests.json from what the selected tests of digests find, in place of comparing",
    )
    parser.addoption(
        "--configurations",
        type=int,
        default=2,
        metavar="N",
        help="random configurations of each family of transformers that test_configurations.py loads (slow)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--write-digests") and config.getoption("numprocesses", None):
        raise pytest.UsageError("--write-digests writes one file: leave -n out")
    logging.getLogger().addHandler(logging.NullHandler())  # else Python writes warnings on stderr


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage is looked for while everything is imported, nor later among what was: it stays, and it is large."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_unconfigure() -> None:
    """What is left at the end is taken apart as ever: libraries in C report what is not."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    no_gpu = pytest.mark.skip(reason="needs a CUDA device; torch.cuda.is_available() is false")
    for item in items:
        if item.get_closest_marker("gpu"):  # keywords hold the names of folders too
            item.add_marker(no_gpu)


def _seed(request: pytest.FixtureRequest) -> int:
    """A seed of the test's own, the same in every run and whatever else is run."""
    return zlib.crc32(request.node.nodeid.encode())


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """Modules draw their parameters from torch's global generator: no test inherits it from the one before.

    `torch.manual_seed` would do so for other devices too, and format the stack for each that is not initialised.
    """
    if request.node.get_closest_marker("gpu"):
        torch.manual_seed(_seed(request))
    torch.default_generator.manual_seed(_seed(request))


@pytest.fixture(scope="session", autouse=True)
def _entry_points(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The entry points of pyproject.toml are found, also if the project was installed before they were added."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    folder = tmp_path_factory.mktemp("installed")
    install(folder, "of_project", **groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """A NumPy generator, seeded by the test's name."""
    return np.random.default_rng(_seed(request))


@pytest.fixture
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    """A torch generator on the CPU, seeded by the test's name."""
    return torch.Generator().manual_seed(_seed(request))


class _Kept(logging.Handler):
    """Keeps the messages."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The warnings that the project logs. Pytest's `caplog` is off: in each test it visits every logger of torch."""
    kept, loggers = _Kept(), [logging.getLogger(name) for name in ("zoo", "tasks", "lab")]
    for logger in loggers:
        logger.addHandler(kept)
    yield kept.messages
    for logger in loggers:
        logger.removeHandler(kept)


@pytest.fixture(autouse=True)
def _uninitialised_memory_is_nan(request: pytest.FixtureRequest) -> Iterator[None]:
    """`torch.empty` comes back full of NaN, so that code which reads what it never wrote is seen.

    Not on a GPU, where the same switch refuses kernels that have no deterministic form.
    """
    if request.node.get_closest_marker("gpu"):
        yield
        return
    torch.set_deterministic_debug_mode("error")  # as use_deterministic_algorithms, which imports Inductor: two seconds
    yield
    torch.set_deterministic_debug_mode("default")


@pytest.fixture(autouse=True)
def _full_precision_on_a_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuDNN computes recurrent nets in float32, not in tf32 as torch lets it by default."""
    if request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are blank, for tests that do not look at them: painting one takes a second."""
    monkeypatch.setattr("matplotlib.figure.Figure.draw", lambda *_: None)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Torch computes with two threads, or as many as the test says, until it ends."""
    with threads(2):
        yield


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Switch the shape checker off for one test: for torch.compile, and for a reader of tracebacks."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium that keeps what its console says and what it asks the network for."""
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
