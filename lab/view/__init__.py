"""Compare many runs of train.py and sweep.py: as records, tables and charts, and in TensorBoard.

`read_runs` returns the runs under a folder, without importing torch.
"""

from lab.run.record import Run
from lab.view.rows import Group, Row, group_runs
from lab.view.runs import read_runs

__all__ = ["Group", "Row", "Run", "group_runs", "read_runs"]
