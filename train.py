"""Train one sequence mixer on one task: `python train.py --mixer hybrid --task mqar`; see `--help`."""

import sys

from lab.training import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
