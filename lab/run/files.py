"""Names of the files in a run's folder; only this module spells them."""

from __future__ import annotations

CONFIG, METRICS, ENVIRONMENT, LOCK = "config.yaml", "metrics.json", "environment.json", "lock"
RUNGS = "rungs.json"
"""Metrics of the run at each value of --stop_at; step and reason if it diverged."""
HEADS = "heads.json"
"""Result of `zoo heads` for the run's model, if an experiment asked for it."""
LOG, DONE, INDEX = "log.txt", "done.json", "sweep.json"
"""Files of sweep.py: a run's output, the mark of a run that is done, and the runs of a sweep, in its own folder."""
EVENTS = "events.out.tfevents."
"""Beginning of the names of TensorBoard's files."""
FIRST_SCORE, FIRST_LOSS = "Score/validation ", "Training/loss"
"""Tags of the curves that TensorBoard shows first: validation score, before its name, and training loss."""
HPARAMS = f"{EVENTS}0.hparams"
"""Options of the run for TensorBoard's HParams tab, which takes the first file in the alphabet."""
