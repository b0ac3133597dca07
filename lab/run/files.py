"""Names of the files in the folders of runs and sweeps."""

from __future__ import annotations

CONFIG, METRICS, ENVIRONMENT, LOCK = "config.yaml", "metrics.json", "environment.json", "lock"
RUNGS = "rungs.json"
"""Metrics of the run at each value of --stop_at; if it diverged, the step and the reason."""
HEADS = "heads.json"
"""Result of `zoo heads` for the run's model, if an experiment asked for it."""
LOG, DONE, INDEX = "log.txt", "done.json", "sweep.json"
"""Files of sweep.py: output of a run, mark of a finished run, and, in the sweep's folder, the index of its runs."""
EVENTS = "events.out.tfevents."
"""Beginning of the names of TensorBoard's files."""
FIRST_SCORE, FIRST_LOSS = "Score/validation ", "Training/loss"
"""Tags of the curves that TensorBoard shows first: prefix of the validation score's name, and training loss."""
HPARAMS = f"{EVENTS}0.hparams"
"""Options of the run for TensorBoard's HParams tab, which reads the alphabetically first file."""
