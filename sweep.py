"""Start many runs of train.py: `python sweep.py --mixer attention,lstm --seed 0-4`; see `--help`."""

import sys

from lab.sweep.sweep import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
