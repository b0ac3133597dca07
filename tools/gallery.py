"""Measure each mixer for the gallery: writes docs/gallery.json, which `make docs` turns into the page.

    python -m tools.gallery [MIXER ...]      all of them take some minutes on two cores; others keep their numbers

For each mixer, and each number of heads or state size, we measure the operator at two fixed inputs
(`zoo.theory.explorer`), the gradient against distance, and the bytes of the state. For each mixer we also fit the
exponents in the length of three costs: operations, memory for a backward pass, and operations for one more position.
Time is not measured.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.launches import reaching
from zoo.contract import SequenceMixer
from zoo.docstrings import titled
from zoo.pages import SECTIONS, options
from zoo.registry import MIXERS, create_mixer, list_mixers
from zoo.report.files import write_atomically
from zoo.theory import complexity, gradient_profile
from zoo.theory.explorer import DECADES, explorer_data, rounded
from zoo.theory.gradients import spaced
from zoo.theory.measure import state_bytes
from zoo.theory.spectra import read_spectrum

ROOT = Path(__file__).resolve().parent.parent
STORED = ROOT / "docs" / "gallery.json"
D_MODEL, SEQ_LEN, GRADIENT_LEN, SEEDS = 16, 32, 128, 5
VARIED = {"n_heads": (1, 2, 4, 8), "d_state": (2, 4, 8, 16), "d_inner": (4, 8, 16)}
"""Values of the option that the explorer varies: the first of these that the mixer has."""
FURTHER = {"d_head": (4, 8, 16, 32), "window": (4, 8, 16, 32)}
"""Values of further options that it varies; `d_head` only if the first one is not `n_heads`."""
COST_LENGTHS = (1024, 2048, 4096)
"""Lengths for the exponents, which are fitted to the growth of a cost, since fixed costs dominate up to here."""
STATE_LENGTHS = (1024, 2048, 65536)
"""Lengths for the bytes of the state; two give a formula in n, and the last one confirms it."""


def main() -> None:
    """Measure the given mixers, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mixers", nargs="*", metavar="MIXER", help="default all")
    names = parser.parse_args().mixers or list_mixers()
    stored = json.loads(STORED.read_text(encoding="utf-8"))["items"] if STORED.is_file() else []
    found = {each["name"]: each for each in stored}
    for name in names:
        found[MIXERS.check(name)] = card(name)
        print(f"{name}: {len(found[name]['variants'])} variants", flush=True)
        sizes = {"d_model": D_MODEL, "decades": DECADES, "noun": "mixer"}
        sizes |= {"cost_lengths": COST_LENGTHS, "state_lengths": STATE_LENGTHS}
        cards = [found[each] for each in list_mixers() if each in found]
        write_atomically(STORED, json.dumps(sizes | {"inputs": list(inputs()), "items": cards}) + "\n")


def inputs() -> dict[str, Tensor]:
    """Return the fixed inputs by name, (1, seq, d_model): noise, and a sequence that is repeated once."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(1, SEQ_LEN, D_MODEL, generator=generator, dtype=torch.float64)
    half = noise[:, : SEQ_LEN // 2]
    return {"noise": noise, "repeated noise": torch.cat((half, half), dim=1)}


def card(name: str) -> dict[str, Any]:
    """Return the data of a mixer's card in the gallery."""
    entry = MIXERS.entry(name)
    free, sections = titled(MIXERS[name], SECTIONS)
    variants = []
    for given in chosen(name):
        option = " at ".join(f"{key} {value}" for key, value in given.items())
        try:
            variants.append({"option": option} | variant(name, given))
        except ValueError as error:  # a size that this mixer does not have
            print(f"{name} {given}: {error}")
    return {
        "name": name,
        "summary": entry.summary,
        "family": entry.family,
        "year": entry.year,
        "source": entry.source,
        "models": entry.models,
        "cost": cost(name),
        "equation": next((each for each in free if each.startswith(" ")), ""),
        "state": sections["State"],
        "law": sections["Interaction rank"],
        "variants": variants,
    }


def chosen(name: str) -> list[dict[str, int]]:
    """Return the options of each variant of a mixer; one option varies at a time, and comes first."""
    known = {option.name for option in options(name)}
    first = next((key for key in VARIED if key in known), None)
    if first is None:
        return [{}]
    steps = [{first: value} for value in VARIED[first]]
    further = [key for key in FURTHER if key in known and not (key == "d_head" and first == "n_heads")]
    return steps + [{key: value, first: VARIED[first][2]} for key in further for value in FURTHER[key]]


def variant(name: str, given: dict[str, int]) -> dict[str, Any]:
    """Measure a mixer with these options and fresh parameters."""

    def make(seed: int) -> SequenceMixer:
        torch.manual_seed(seed)
        return create_mixer(name, D_MODEL, **given).double().eval()

    layer, longest = make(0), STATE_LENGTHS[-1] + 1
    long = create_mixer(name, D_MODEL, **given, **reaching(name, longest))
    found = {key: at_input(layer, x) for key, x in inputs().items()}
    profile = gradient_profile(make, distances=spaced(GRADIENT_LEN, 24).tolist(), seeds=SEEDS, seq_len=GRADIENT_LEN)
    return {
        "params": sum(p.numel() for p in layer.parameters()),
        "state_bytes": [state_bytes(long, length) for length in STATE_LENGTHS],
        "predicted": layer.predicted_rank(SEQ_LEN),
        "gradient": [
            [int(tau), rounded(value)]
            for tau, value in zip(profile.distances.tolist(), profile.median.tolist(), strict=True)
        ],
        "inputs": found,
    }


def at_input(layer: SequenceMixer, x: Tensor) -> dict[str, Any]:
    """Measure the layer's operator at an input: rank, heads for an error, and data of the explorer."""
    read = read_spectrum(layer, x)
    return {"rank": read.rank, "heads": [*read.heads.values()]} | explorer_data(layer, x, read)


def cost(name: str) -> dict[str, float]:
    """Return the exponents in the length of a mixer's costs, over `COST_LENGTHS`."""
    torch.manual_seed(0)
    layer = create_mixer(name, D_MODEL, **reaching(name, COST_LENGTHS[-1] + 1)).eval()
    forward, step = [], []
    for length in COST_LENGTHS:
        x = torch.randn(1, length, D_MODEL)
        forward.append(computed(lambda x=x: layer(x)))
        _, state = layer.stream(x)
        step.append(computed(lambda x=x, state=state: layer.stream(x[:, :1], state)))
    held = complexity(layer, COST_LENGTHS, repeats=1).bytes
    return {"forward": growth(forward), "backward_memory": growth(held), "decode": growth(step)}


def growth(costs: Sequence[float]) -> float:
    """Return the exponent of a cost's growing part, from three lengths that double; 0 if it does not grow."""
    before, after = costs[1] - costs[0], costs[2] - costs[1]
    return rounded(math.log2(after / before)) if min(before, after) > 0 else 0.0


class Work(TorchDispatchMode):
    """Count the flops of matrix products and convolutions, and one operation per output number of other ops."""

    total = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        if (flops := flop_registry.get(op._overloadpacket)) is not None:
            self.total += flops(*args, **(kwargs or {}), out_val=out)
        elif not op.is_view:
            self.total += sum(each.numel() for each in tree_leaves(out) if isinstance(each, Tensor))
        return out


def computed(run: Callable[[], object]) -> int:
    """Count the operations of a function; attention counts by its formula, not as a fused kernel."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), Work() as work:
        run()
    return work.total


if __name__ == "__main__":
    main()
