"""Bits per byte of text at equal numbers of parameters."""

from __future__ import annotations

import math

from lab.experiments.vocabulary import BITS, Prediction, Runs, least, panel
from zoo.evidence import Curve, Evidence, at_least, at_most, paired
from zoo.registry import MIXERS
from zoo.report.numbers import Number

RECALLING = {"softmax", "delta rule", "hybrid"}
"""Families of mixers that can look up what followed a symbol before."""


def judge(runs: Runs) -> Evidence:
    """Judge how much of the gain over single symbols each mixer reaches, and which mixer is best; pairs by seed."""
    kinds = runs.kinds()
    names = {label: kind.values("mixer.name")[0] for label, kind in kinds.items()}
    bits = {label: kind.samples(BITS) for label, kind in kinds.items()}
    alone = bits.get("identity", {})
    others = {label: samples for label, samples in bits.items() if names[label] != "identity"}
    best = least(others.values())

    def share(alone: Number, value: Number, best: Number) -> Number:
        return (alone - value) / (alone - best or math.nan)

    gain = paired(lambda a, b: a - b, alone, best)
    checks = [at_least("bits that the best mixer gains over single symbols", gain, 0.1)]
    checks += [
        at_least(f"{label}: share of the best gain", paired(share, alone, samples, best), 0.5)
        for label, samples in others.items()
    ]
    recalls = {label: MIXERS.entry(names[label]).family in RECALLING for label in others}
    first, second = (least(bits[label] for label in others if recalls[label] is group) for group in (True, False))
    lead = paired(lambda a, b: a - b, first, second)
    checks.append(at_most("bits of the best that recalls less those of the best of the others", lead, 0))
    ordered = sorted(kinds, key=lambda label: kinds[label].median(BITS))
    scores = {label: kinds[label].scores(BITS) for label in ordered}
    curves = [Curve(at, (n,) * len(scores[at]), tuple(scores[at]), "points") for n, at in enumerate(ordered)]
    title, unit = "Bits per byte of real text", "test bits per symbol"
    drawn = panel(title, "mixers, best first", unit, curves, log_y=False, x_names=tuple(ordered))
    return Evidence(tuple(checks), (drawn,))


PREDICTION = Prediction(
    "Graves, arXiv 1308.0850; Arora et al., arXiv 2312.04927 (recall explains most of the gap on text)",
    "a mixer with less than half of the best gain, or a best one that does not recall",
    judge,
)
