"""Count the operations of each mixer on meta tensors, for which the code of CUDA runs: `docs/launches.md`.

    python -m benchmarks.launches [--only MIXER ...]

An operation that computes is a launch on a GPU; views and allocations are none. A Triton kernel of the zoo and a kernel
of cuDNN are one operation each. The numbers depend on no machine: tests/project/test_launches.py bounds them.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.page import Table, render_table
from zoo.contract import SequenceMixer
from zoo.registry import MIXERS, create_mixer, list_mixers, mixer_class
from zoo.report.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "launches.md"
BATCH, D_MODEL, LENGTHS = 4, 1024, (4096, 16384)
_NO_LAUNCH = (
    "promote_types",
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
)


class _Counter(TorchDispatchMode):
    """Count operations that compute, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func.overloadpacket.__name__ not in _NO_LAUNCH:
            self.found[str(func)] += 1
        return func(*args, **(kwargs or {}))


def reaching(name: str, seq_len: int) -> dict[str, int]:
    """Return the option that lets a mixer take so many positions, if it has a limit."""
    if n_levels := MIXERS.entry(name).options.get("n_levels"):
        return {"n_levels": max(n_levels, 1 + (seq_len - 1).bit_length())}
    return {"max_seq_len": seq_len} if "max_seq_len" in inspect.signature(mixer_class(name)).parameters else {}


def mixer_and_input(name: str, seq_len: int, d_model: int, device: str) -> tuple[SequenceMixer, Tensor]:
    """Return a mixer that takes `seq_len` positions, and an uninitialised input of `BATCH` rows."""
    with torch.device(device):
        mixer = create_mixer(name, d_model, **reaching(name, seq_len))
        return mixer, torch.empty(BATCH, seq_len, d_model, requires_grad=True)


def launches(name: str, seq_len: int, d_model: int = D_MODEL) -> tuple[Counter[str], Counter[str]]:
    """Return the operations of a layer, forward and backward, by name."""
    mixer, x = mixer_and_input(name, seq_len, d_model, "meta")
    with _Counter() as forward:
        y = mixer(x)
    with _Counter() as backward:
        y.backward(torch.empty_like(y))
    return forward.found, backward.found


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="MIXER", help="print the operations of these by name instead")
    options = parser.parse_args(argv)
    for name in options.only or ():
        for direction, found in zip(("forward", "backward"), launches(name, LENGTHS[0]), strict=True):
            print(f"{name}, {direction}, {found.total()}: {', '.join(f'{n} {op}' for op, n in found.most_common())}")
    if options.only:
        return 0
    columns = [f"{direction}, {n:,}" for n in LENGTHS for direction in ("forward", "backward")]
    table = Table("", ["mixer", *columns])
    for name in list_mixers():
        table.rows.append([name, *(found.total() for n in LENGTHS for found in launches(name, n))])
    lines = ["# Launches on a GPU", "", "Made by `python -m benchmarks.launches`; edit that, not this page.", ""]
    lines += [
        f"Operations of one layer that compute something, at batch {BATCH} and d_model {D_MODEL:,}, counted on meta"
    ]
    lines += ["tensors, for which the code of CUDA runs. A Triton kernel of the zoo or a kernel of cuDNN is one"]
    lines += ["operation; so is FlexAttention in forgetting_attention, with some twenty small operations around its"]
    lines += ["kernel. The columns name the direction and the number of positions.", ""]
    write_atomically(PAGE, "\n".join([*lines, *render_table(table)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
