"""What a gate per channel gains over one per head on targets of a growing span."""

from __future__ import annotations

import math

from lab.experiments.vocabulary import ERROR, NOISE, Prediction, Runs, curve, panel
from zoo.evidence import Check, Evidence, at_least, at_most, paired

PAIRS = {
    "attention": ({"mixer.gate": "head"}, {"mixer.gate": "channel"}),
    "delta rule": ({"mixer.name": "kda"}, {"mixer.name": "gdn2"}),
}
"""Runs with gates per head and per channel: of an output gate, and of erasing and writing (KDA, Gated DeltaNet 2)."""


def judge(runs: Runs) -> Evidence:
    """Expect a lower error where the target spans more than the heads, and more of it than where it does not."""
    checks: list[Check] = []
    curves = []
    for label, pair in PAIRS.items():
        errors = [{k: of_k.samples(ERROR) for k, of_k in runs.where(each).by("task.k")} for each in pair]
        (n_heads,) = runs.where(pair[0]).values("mixer.n_heads")
        gains = {k: paired(lambda a, b: math.log(a / b), of_head, errors[1][k]) for k, of_head in errors[0].items()}
        for k, gain in gains.items():
            if k > n_heads:
                left = {seed: math.exp(-value) for seed, value in gain.items()}
                checks.append(at_most(f"{label}, k={k}: error with gates per channel / per head", left, 1 - NOISE))
        more = paired(lambda wide, narrow: wide - narrow, gains[max(gains)], gains[min(gains)])
        checks.append(at_least(f"{label}: log of what is gained at k={max(gains)} / at k={min(gains)}", more, 0))
        for gate, each in zip(("head", "channel"), pair, strict=True):
            medians = {k: of_k.median(ERROR) for k, of_k in runs.where(each).by("task.k")}
            curves.append(curve(f"{label}, per {gate}", medians, "marked" if gate == "channel" else "dashed"))
    drawn = panel("Gates per channel and per head", "span k of the target", "relative squared error", curves)
    return Evidence(tuple(checks), (drawn,))


PREDICTION = Prediction(
    "Qiu et al., arXiv 2505.06708 (gates of attention); Gated DeltaNet 2, arXiv 2605.22791; Ghodsi, arXiv 2512.15115 "
    "(interaction rank)",
    "a gate per channel that does not lower the error by 3 % where k exceeds the heads, or gains no more than at k = 1",
    judge,
)
