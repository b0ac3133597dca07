"""Count the kernel launches of each mixer on meta tensors, which take the code path of CUDA: `docs/launches.md`.

    python -m benchmarks.launches [--only MIXER ...]

Each operation that computes is a launch on a GPU; views and allocations are not. A Triton kernel of the zoo or a kernel
of cuDNN is one operation. The numbers are the same on every machine; tests/project/test_launches.py bounds them.
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
    """Return the option that raises a mixer's maximal length to `seq_len`; empty if it has no limit."""
    if n_levels := MIXERS.entry(name).options.get("n_levels"):
        return {"n_levels": max(n_levels, 1 + (seq_len - 1).bit_length())}
    return {"max_seq_len": seq_len} if "max_seq_len" in inspect.signature(mixer_class(name)).parameters else {}


def mixer_and_input(name: str, seq_len: int, d_model: int, device: str) -> tuple[SequenceMixer, Tensor]:
    """Return a mixer for `seq_len` positions, and an uninitialised input of `BATCH` rows."""
    with torch.device(device):
        mixer = create_mixer(name, d_model, **reaching(name, seq_len))
        return mixer, torch.empty(BATCH, seq_len, d_model, requires_grad=True)


def launches(name: str, seq_len: int, d_model: int = D_MODEL) -> tuple[Counter[str], Counter[str]]:
    """Count the operations of a layer by name, forward and backward."""
    mixer, x = mixer_and_input(name, seq_len, d_model, "meta")
    with _Counter() as forward:
        y = mixer(x)
    with _Counter() as backward:
        y.backward(torch.empty_like(y))
    return forward.found, backward.found


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="MIXER", help="only print the operations of these mixers")
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
    lines += [f"Kernel launches of one layer at batch {BATCH} and d_model {D_MODEL:,}: its operations except views and"]
    lines += ["allocations, counted on meta tensors, which take the code path of CUDA. A Triton kernel of the zoo or a"]
    lines += ["kernel of cuDNN counts as one; so does FlexAttention in forgetting_attention, although it adds about"]
    lines += ["twenty small operations around its kernel. Columns are direction and number of positions.", ""]
    write_atomically(PAGE, "\n".join([*lines, *render_table(table)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
