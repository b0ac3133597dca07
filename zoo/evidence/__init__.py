"""Evidence for predictions, in claims and experiments: checks with confidence intervals, and verdicts.

    samples = {seed: accuracy for seed, accuracy in enumerate([0.97, 0.99, 1.0, 0.98, 1.0])}
    check = at_least("accuracy", samples, 0.9)
    print(check.verdict, check.interval_text)

`zoo.evidence.interval` has the statistics, `zoo.evidence.page` renders verdicts.
"""

from zoo.evidence.check import (
    Check,
    Measured,
    Samples,
    at_least,
    at_most,
    controlled,
    equals,
    given,
    near,
    paired,
    within,
)
from zoo.evidence.interval import Estimate
from zoo.evidence.verdict import Curve, Evidence, Panel, Prediction, Verdict, exit_status

__all__ = [
    "Check",
    "Curve",
    "Estimate",
    "Evidence",
    "Measured",
    "Panel",
    "Prediction",
    "Samples",
    "Verdict",
    "at_least",
    "at_most",
    "controlled",
    "equals",
    "exit_status",
    "given",
    "near",
    "paired",
    "within",
]
