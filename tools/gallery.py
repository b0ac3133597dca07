"""Measure each mixer for the gallery: docs/gallery.json, from which `make docs` makes the page.

    python tools/gallery.py [MIXER ...]      all of them take some minutes on two cores; others keep their numbers

For each mixer, and each number of heads or size of state: what it reads at two fixed inputs (the norms of the blocks of
its operator, and the weights of each head), the error of its best H operators, and the gradient against distance.
"""

from __future__ import annotations

import argparse
import base64
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from zoo.contract import SequenceMixer  # noqa: E402
from zoo.docstrings import titled  # noqa: E402
from zoo.pages import SECTIONS, options  # noqa: E402
from zoo.registry import MIXERS, create_mixer, list_mixers  # noqa: E402
from zoo.report.files import write_atomically  # noqa: E402
from zoo.theory import OperatorError, gradient_profile, head_weights  # noqa: E402
from zoo.theory.gradients import spaced  # noqa: E402
from zoo.theory.measure import state_bytes  # noqa: E402
from zoo.theory.rank import heads_needed, tail_energies  # noqa: E402
from zoo.theory.spectra import operator_norms, read_spectrum  # noqa: E402

STORED = ROOT / "docs" / "gallery.json"
D_MODEL, SEQ_LEN, GRADIENT_LEN, SEEDS = 16, 32, 128, 5
VARIED = {"n_heads": (1, 2, 4, 8), "d_state": (2, 4, 8, 16)}
"""Options that the explorer steps through, one of them for each mixer."""
DECADES = 4
MOST_HEADS = 8
STATE_LENGTHS = (1024, 65536)


def main() -> None:
    """Measure the mixers that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mixers", nargs="*", metavar="MIXER", help="default all")
    names = parser.parse_args().mixers or list_mixers()
    stored = json.loads(STORED.read_text(encoding="utf-8"))["mixers"] if STORED.is_file() else []
    found = {each["name"]: each for each in stored}
    for name in names:
        found[MIXERS.check(name)] = card(name)
        print(f"{name}: {len(found[name]['variants'])} variants", flush=True)
        sizes = {"d_model": D_MODEL, "seq_len": SEQ_LEN, "decades": DECADES, "state_lengths": STATE_LENGTHS}
        cards = [found[each] for each in list_mixers() if each in found]
        write_atomically(STORED, json.dumps(sizes | {"inputs": list(inputs()), "mixers": cards}) + "\n")


def inputs() -> dict[str, Tensor]:
    """Return the fixed inputs by name, (1, seq, d_model): noise, and a sequence that is said twice."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(1, SEQ_LEN, D_MODEL, generator=generator, dtype=torch.float64)
    half = noise[:, : SEQ_LEN // 2]
    return {"noise": noise, "said twice": torch.cat((half, half), dim=1)}


def card(name: str) -> dict[str, Any]:
    """Return what the gallery shows of a mixer."""
    entry = MIXERS.entry(name)
    free, sections = titled(MIXERS[name], SECTIONS)
    known = {option.name: option.default for option in options(name)}
    varied = next((key for key in VARIED if isinstance(known.get(key), int)), None)
    chosen = [{}] if varied is None else [{varied: value} for value in VARIED[varied]]
    variants = []
    for given in chosen:
        try:
            variants.append(
                {"option": "".join(f"{key} {value}" for key, value in given.items())} | variant(name, given)
            )
        except ValueError as error:  # a size that this mixer does not have
            print(f"{name} {given}: {error}")
    return {
        "name": name,
        "summary": entry.summary,
        "family": entry.family,
        "year": entry.year,
        "source": entry.source,
        "equation": next((each for each in free if each.startswith(" ")), ""),
        "state": sections["State"],
        "law": sections["Interaction rank"],
        "variants": variants,
    }


def variant(name: str, given: dict[str, int]) -> dict[str, Any]:
    """Return the measurements of a mixer with these options, freshly drawn."""

    def make(seed: int) -> SequenceMixer:
        torch.manual_seed(seed)
        return create_mixer(name, D_MODEL, **given).double().eval()

    layer = make(0)
    found = {key: at_input(layer, x) for key, x in inputs().items()}
    profile = gradient_profile(make, distances=spaced(GRADIENT_LEN, 24).tolist(), seeds=SEEDS, seq_len=GRADIENT_LEN)
    return {
        "params": sum(p.numel() for p in layer.parameters()),
        "state_bytes": [state_bytes(layer.float(), length) for length in STATE_LENGTHS],
        "predicted": layer.predicted_rank(SEQ_LEN),
        "gradient": [[int(tau), _short(value)] for tau, value in zip(profile.distances, profile.median, strict=True)],
        "inputs": found,
    }


def at_input(layer: SequenceMixer, x: Tensor) -> dict[str, Any]:
    """Return what the layer reads at an input, and the error of its best H operators."""
    read = read_spectrum(layer, x)
    try:
        weights = head_weights(layer, x)[0]
    except OperatorError:
        weights = x.new_empty(0, SEQ_LEN, SEQ_LEN)
    left = [error for error in tail_energies(read.values.double()).sqrt()[1:65].tolist() if error > 1e-6]
    return {
        "rank": read.rank,
        "heads": [int(heads_needed(read.values, error)) for error in (0.1, 0.01, 0.001)],
        "errors": [_short(error) for error in [*left, 0.0]],
        "norms": _packed(operator_norms(layer, x)),
        "weights": [_packed(each.abs()) for each in weights] if len(weights) <= MOST_HEADS else [],
    }


def _packed(matrix: Tensor) -> str:
    """Return a byte for each entry, its logarithm over `DECADES` below the largest."""
    shares = matrix / matrix.max().clamp(min=1e-300)
    levels = 255 * (1 + shares.clamp(min=1e-300).log10() / DECADES).clamp(min=0)
    return base64.b64encode(levels.round().to(torch.uint8).numpy().tobytes()).decode()


def _short(value: float) -> float:
    return float(f"{float(value):.3g}")


if __name__ == "__main__":
    main()
