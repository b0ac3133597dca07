from lab.run.record import Run as Run
from lab.training import train as train
from lab.view.runs import Runs as Runs
from lab.view.runs import read_runs as read_runs
