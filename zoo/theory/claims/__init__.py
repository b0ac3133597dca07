"""Claims of the theory: predictions, the measurements that could refute them, and verdicts.

    for verdict in run_claims(["head_count", "gradient_lti"]):
        print(verdict.claim.name, verdict.status)

Listing names does not import torch; a claim is imported when it is looked up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from zoo.lookup import Registry

if TYPE_CHECKING:
    from zoo.evidence import Verdict
    from zoo.theory.claims.claim import Settings

_SUMMARIES = {
    "rank_of_cores": ("ranks", "interaction rank of each core, exact integers"),
    "rank_of_mixers": ("ranks", "interaction rank of each mixer as configured"),
    "gates_and_depth": ("ranks", "a gate multiplies the rank, two layers square it"),
    "write_gate": ("ranks", "a write gate per channel raises the rank from H to H d_value"),
    "one_head_gap": ("heads", "one factorized head against an SSM of rank k"),
    "head_count": ("heads", "error against heads: at the bound below k, zero from k on"),
    "heads_for_an_error": ("heads", "real poles need few heads, oscillations many"),
    "outputs_need_fewer": ("heads", "two heads reproduce rank four on unit inputs"),
    "softmax_floor": ("softmax", "sink-free softmax has an error floor at any head count"),
    "differential_floor": ("softmax", "two softmaxes per head: rank H and the same error floor"),
    "softmax_heads": ("softmax", "with a sink: k heads if positive, else k + 1"),
    "alibi_ema": ("softmax", "ALiBi with a BOS token is an exact moving average"),
    "gradient_lti": ("gradients", "the gradient decays by log rho per token"),
    "gradient_attention": ("gradients", "attention: flat in distance, level 1/n"),
    "gradient_closed_gates": ("gradients", "closed gates are a gradient highway too"),
    "gradient_hybrid": ("gradients", "one attention layer puts a floor under a stack's gradient"),
    "gradient_residuals": ("gradients", "residuals do not change the exponent"),
    "polarised_channels": ("gradients", "one channel with A = 1, one with A = 0"),
    "state_size": ("memory", "effective state: bounded in a recurrence, growing in softmax"),
    "key_removal": ("memory", "a delta rule's weights are not q . k times decays"),
    "reflection_counts": ("memory", "one reflection per token counts, and so solves S3"),
    "reflections_rotate": ("memory", "two reflections per token rotate: A4, S4 and A5; one does not"),
    "recall_by_weights": ("retrieval", "recall with constructed weights: the key width it needs"),
    "nearest_neighbour": ("retrieval", "one head of full rank, not many of low rank"),
    "slogan_rank_is_power": ("ranks", "'rank one cannot track a state'"),
    "slogan_ssm_attenuates": ("gradients", "'SSMs attenuate'"),
    "slogan_selective_between": ("gradients", "'selective is between a fixed SSM and attention'"),
}
"""Claim -> the module of this package that defines it, and a summary."""

CLAIMS = Registry("claim", {name: (f"{__name__}.{home}:{name}", line) for name, (home, line) in _SUMMARIES.items()})


def list_claims() -> list[str]:
    """Return the names of all claims, in the order in which `run_claims` measures them."""
    return list(CLAIMS)


def claims_by_paper() -> dict[str, list[str]]:
    """Return {arXiv number: claims that cite it}, papers ascending; claims without a paper come last, under ""."""
    found: dict[str, list[str]] = {}
    for name in CLAIMS:
        for paper in CLAIMS[name].papers or ("",):
            found.setdefault(paper, []).append(name)
    return dict(sorted(found.items(), key=lambda item: (item[0] == "", item[0])))


def run_claims(
    names: str | Iterable[str] | None = None,
    settings: Settings | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Verdict]:
    """Measure claims and judge them.

    Args:
        names: one claim or several; default all.
        settings: sizes of the measurements; default `zoo.theory.claims.claim.QUICK`, or the larger `FULL`.
        progress: called before each claim with its name, the number of finished claims and their total; finally once
            with an empty name.

    Returns:
        One verdict per claim, in the order of `names`.

    Raises:
        UnknownNameError: an unknown claim; raised before anything is measured.
    """
    from zoo.evidence import Verdict
    from zoo.theory.claims.claim import QUICK

    chosen = [names] if isinstance(names, str) else list(CLAIMS if names is None else names)
    for name in chosen:
        CLAIMS.check(name)
    verdicts = []
    for done, name in enumerate(chosen):
        if progress is not None:
            progress(name, done, len(chosen))
        claim = CLAIMS[name]
        start = time.perf_counter()
        evidence = claim.measure(settings or QUICK)
        verdicts.append(Verdict(claim, evidence, claim.judge(evidence), time.perf_counter() - start))
    if progress is not None:
        progress("", len(chosen), len(chosen))
    return verdicts
