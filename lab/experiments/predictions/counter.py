"""Whether a model that multiplies S3 out with a single reflection per token does it by a counter."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from lab.compare.runs import Run
from lab.experiments.vocabulary import Prediction, Runs, curve, panel
from zoo.report.terminal import progress
from zoo.theory.claims.claim import Check, Curve, Evidence, at_least, at_most

if TYPE_CHECKING:
    import numpy as np

REACH = 4
"""At how many times the length of training words end."""
WORDS, SEED, FEWEST = 2000, 0, 20
"""Words on which a model is read, the seed that draws them, and of how many a share is taken at least."""
USUAL = 0.9
"""The share of prefixes of training whose counter is small."""
LEAD = 0.03
"""A lead of words with a small counter from which the counter is what is read, and up to which it is not."""


def counters(words: np.ndarray, centre: int) -> np.ndarray:
    """Return the integer that follows each prefix of words in S3, (words, positions).

    A permutation of the residues of 3 is r -> s r + a, counted from any of the three as the centre; as maps of
    integers, with a = -1, 0 or 1, the permutations of a prefix lead from 0 to its counter.
    """
    import numpy as np

    from tasks.groups import group_elements

    images = [[(int(text[(r + centre) % 3]) - 1 - centre) % 3 for r in range(3)] for text in group_elements("S3")]
    turns = np.array([(a + 1) % 3 - 1 for a, _, _ in images])
    signs = np.array([1 if (b - a) % 3 == 1 else -1 for a, b, _ in images])
    counter, found = np.zeros(len(words), dtype=np.int64), []
    for token in words.T:
        counter = signs[token] * counter + turns[token]
        found.append(counter)
    return np.stack(found, axis=1)


def lead(right: np.ndarray, is_small: np.ndarray) -> float:
    """Return how much larger the share that is right is where the counter is small, the mean over positions.

    Args:
        right: whether each prefix's element is told, (words, positions).
        is_small: whether its counter is.
    """
    found = []
    for now, small in zip(right.T, is_small.T, strict=True):
        if FEWEST <= small.sum() <= len(small) - FEWEST:
            found.append(now[small].mean() - now[~small].mean())
    return float(statistics.fmean(found)) if found else float("nan")


def reading(run: Run) -> tuple[float, dict[int, float]]:
    """Return by how much a run's model is right on more words of a small counter, and its share right by counter.

    Only positions beyond the length of training count, each by itself. The centre is the one that leads on half of the
    words; the numbers are of the other half.
    """
    import numpy as np
    import torch

    from lab.build import build_task
    from zoo.interop.saved import load

    task, model = build_task(run.config), load(run.folder).eval()
    trained = task.spec.seq_len
    arrays = task.at_length(REACH * trained).sample(np.random.default_rng(SEED), WORDS)
    with torch.no_grad():
        told = model(torch.from_numpy(arrays["inputs"])).argmax(-1).numpy()
    right = (told == arrays["labels"])[:, trained:]
    half = WORDS // 2
    found: list[tuple[float, np.ndarray, float]] = []
    for centre in range(3):
        sizes = abs(counters(arrays["inputs"], centre))
        most = np.quantile(sizes[:, :trained], USUAL)
        is_small = sizes[:, trained:] <= most
        found.append((lead(right[:half], is_small[:half]), sizes[half:, trained:], lead(right[half:], is_small[half:])))
    _, sizes, led = max(found, key=lambda each: each[0])
    counts = range(int(np.quantile(sizes, USUAL)) + 1)
    return led, {n: float(right[half:][sizes == n].mean()) for n in counts}


def judge(runs: Runs) -> Evidence:
    """Expect a lead of small counters with one reflection per token, and none with two or without reflections."""
    checks: list[Check] = []
    curves: list[Curve] = []
    with progress(len(runs)) as advance:
        for label, kind in runs.kinds().items():
            leads: dict[int, float] = {}
            shares: dict[int, list[float]] = {}
            for run in kind.runs:
                advance(f"words of {label}, seed {run.seed}")
                leads[run.seed], by_counter = reading(run)
                for counter, share in by_counter.items():
                    shares.setdefault(counter, []).append(share)
            expected = at_least if counts(kind.runs[0].options) else at_most
            checks.append(expected(f"S3, {label}: more words right where the counter is small", leads, LEAD))
            curves.append(curve(label, {counter: statistics.median(each) for counter, each in shares.items()}))
    title = "S3 beyond the length of training"
    drawn = panel(title, "size of the counter", "share right", curves, log_x=False, log_y=False)
    return Evidence(tuple(checks), (drawn,))


def counts(options: dict[str, Any]) -> bool:
    """Tell whether a counter is how the layer can do it: one reflection per token."""
    return options.get("mixer.n_householder") == 1


PREDICTION = Prediction(
    "The claim reflection_counts: S3 acts on the integers by r -> s r + a, one step of the delta rule",
    "a single reflection per token that is as right on words of a large counter, or another mixer that is not",
    judge,
)
