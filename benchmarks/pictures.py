"""Take the screenshots for the docs: the page of `zoo compare`, TensorBoard over the same runs, and the gallery.

    python -m benchmarks.pictures        trains fourteen tiny runs, some minutes on two cores, and writes
                                         docs/compare.png, docs/tensorboard.png and, in docs/figures,
                                         layers.png, gallery.png and explorer.png

Runs are kept in --run_dir: the same command resumes unfinished ones. Needs chromium and chromedriver on the
PATH.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.view import group_runs, read_runs
from lab.view.command import write_comparison
from lab.view.tensorboard import lay_out, serve
from zoo.report.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
SWEEPS = {
    "mqar": "--mixer attention,hybrid,ssd --task mqar --task.vocab_size 128 --task.seq_len 32 "
    "--task.n_pairs 4 --task.n_train 12800 --task.n_val 200 --task.n_test 500 --task.test_lengths [64,96] --d_model 32 "
    "--batch_size 32 --trainer.max_steps 300 --trainer.val_check_interval 30 --figures_every 60",
    "heads": "--mixer factorized --mixer.n_heads 1,2,3,4 --task ssm_teacher --backbone bare --trainer.max_steps 200 "
    "--figures_every 0",
}
COMMON = "--trainer.accelerator cpu --seed 0-1 --slots 1"
DOCS = ROOT / "docs"


@contextmanager
def browser(width: int, height: int) -> Iterator[Any]:
    """Start headless Chromium with a window of this size in pixels."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for switch in ("headless", "no-sandbox", "disable-gpu", "hide-scrollbars", f"window-size={width},{height}"):
        options.add_argument(f"--{switch}")
    chrome = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield chrome
    finally:
        chrome.quit()


def photograph(address: str, width: int, height: int, seconds: float) -> bytes:
    """Take a screenshot of a page `seconds` after it was loaded."""
    with browser(width, height) as chrome:
        chrome.get(address)
        time.sleep(seconds)
        return chrome.get_screenshot_as_png()


def main(argv: Sequence[str] | None = None) -> None:
    """Train the missing runs, and take the screenshots."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run_dir", type=Path, default=Path("runs/pictures"), help="where runs are kept")
    runs = parser.parse_args(argv).run_dir
    for name, flags in SWEEPS.items():
        command = [sys.executable, "sweep.py", *shlex.split(f"{flags} {COMMON}"), "--run_dir", str(runs.resolve())]
        subprocess.run([*command, "--name", name], cwd=ROOT, check=True)
    groups = group_runs(read_runs(runs))
    with tempfile.TemporaryDirectory(prefix="pictures-") as folder:
        write_comparison(groups, Path(folder, "page"))
        write_atomically(DOCS / "compare.png", photograph(Path(folder, "page", "compare.html").as_uri(), 1400, 1400, 8))
        lay_out(groups, Path(folder, "board"))
        address = serve(Path(folder, "board"), None)
        write_atomically(
            DOCS / "tensorboard.png", photograph(f"{address}#custom_scalars&_smoothingWeight=0", 1500, 900, 30)
        )
        layers = f"{address}&tagFilter=theory/layer#timeseries"
        write_atomically(DOCS / "figures" / "layers.png", photograph(layers, 1500, 900, 30))
    photograph_gallery()


def photograph_gallery() -> None:
    """Build the site, and take screenshots of its gallery and of two mixers side by side."""
    subprocess.run([sys.executable, "-m", "tools.site"], cwd=ROOT, check=True)
    gallery = (ROOT / "build" / "site" / "gallery.html").as_uri()
    for name, chosen, height in (("gallery", "", 1000), ("explorer", "#attention,selective_ssm", 1420)):
        write_atomically(DOCS / "figures" / f"{name}.png", photograph(f"{gallery}{chosen}", 1200, height, 3))


if __name__ == "__main__":
    main()
