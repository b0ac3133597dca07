"""Commands of the application, such as `python -m lab experiments --setting small`; `--help` lists them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from lab.experiments.command import main as experiments
from lab.experiments.command import render as pages
from lab.experiments.papers import main as reproduce
from lab.view.leaderboard import main as leaderboard
from zoo.errors import unknown
from zoo.report.terminal import ends_unread, fail

VERBS = {"experiments": experiments, "leaderboard": leaderboard, "pages": pages, "reproduce": reproduce}

HELP = """\
usage: python -m lab VERB ...

  experiments  judge the experiments of configs/experiment/ from their runs; write docs/results.md
  leaderboard  run the missing cells of the leaderboard (mixers x tasks) and write its pages
  pages        render the pages whose numbers come from records: README.md, docs/{findings,results,choosing,papers}.md
  reproduce    run a paper's recipe, and write its published scores and ours to docs/papers.md

For options, see `python -m lab VERB --help`. train.py and sweep.py make runs; `python -m zoo compare` compares them.
"""


@ends_unread
def main(argv: Sequence[str]) -> int:
    """Run a command line and return the exit status: 0 without a verb, 2 for an unknown one, else the verb's status."""
    if not argv or argv[0] in {"-h", "--help"}:
        print(HELP, end="")
        return 0
    if argv[0] not in VERBS:
        return fail("lab", unknown("verb", argv[0], VERBS), 2)
    try:
        return VERBS[argv[0]](argv[1:])
    except (ValueError, ImportError, OSError) as error:
        return fail(f"lab {argv[0]}", error, 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
