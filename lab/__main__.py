"""The verbs of the application: `python -m lab experiments --setting small`; `--help` says more."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lab.experiments.judge import main as experiments
from zoo.naming import unknown
from zoo.report.terminal import ends_unread, fail

VERBS = {"experiments": experiments}

HELP = """\
usage: python -m lab VERB ...

  experiments  judge the experiments of configs/experiment/ by their runs; write docs/results.md

`python -m lab VERB --help` says more. Runs are made by train.py and sweep.py, and compared by `python -m zoo compare`.
"""


@ends_unread
def main(argv: Sequence[str]) -> int:
    """Carry out a command line: 0 without a verb, 2 for one that there is not; else what the verb returns."""
    if not argv or argv[0] in {"-h", "--help"}:
        print(HELP, end="")
        return 0
    if argv[0] not in VERBS:
        return fail("lab", unknown("verb", argv[0], VERBS), 2)
    return VERBS[argv[0]](argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
